"""Writes a file whole or not at all, with one writer at a time; makes folders that go with their process."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import functools
import os
import secrets
import shutil
import stat
import tempfile
import time
import weakref
from collections.abc import Iterator
from pathlib import Path

from pytest_gpukern.values.untrusted_json import FileError

_WAIT_S = 30.0
_POLL_S = 0.05
_BUSY = (errno.EACCES, errno.EAGAIN)


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Locks the folder against other runs that write baselines in it, from reading to replacing.

    The lock is advisory and on the folder itself, so no lock file remains, and it ends with the process. If
    the file system has no locks, the run goes on without.

    Raises:
        FileError: the folder cannot be made or opened, or another run has held it for 30 s.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise _refused(folder, error) from error
    try:
        deadline = time.monotonic() + _WAIT_S
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError as error:
                if error.errno not in _BUSY:
                    break  # a file system without locks
                if time.monotonic() > deadline:
                    problem = f"another run has been writing baselines here for {_WAIT_S:g} s"
                    raise FileError(folder, problem, "Wait for it to end, or end it") from error
                time.sleep(_POLL_S)
        yield
    finally:
        os.close(descriptor)


def replace(path: Path, content: bytes) -> None:
    """Writes a file so that readers see the old content or the new, never a part, and keeps its permissions.

    It follows a link, and replaces files alone. The file then belongs to the writer and its group.

    Raises:
        FileError: the file cannot be written or is read-only; it stays as it was.
    """
    target = Path(os.path.realpath(path))
    # In the same folder, since only there a rename replaces the old file in one step.
    temporary = target.with_name(f".{target.name}.{secrets.token_hex(4)}.tmp")
    try:
        mode = target.stat().st_mode if target.exists() else None
        if mode is not None and not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
            raise FileError(path, "is there already, and no regular file", "Remove it, or name another file")
        if mode is not None and not mode & 0o222:
            raise FileError(path, "is read-only", f"Make it writable: chmod u+w {path.name}")
        try:
            _write(temporary, content, mode)
            temporary.replace(target)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as error:
        raise _refused(path, error) from error
    _sync_folder(target.parent)


def write_named(path: Path, content: str | bytes, option: str) -> None:
    """Writes a file that an option names, whole or not at all; folders that are missing are made.

    Names in a text may hold halves of surrogate pairs, which are escaped as JSON does it.

    Raises:
        FileError: the file or a missing folder cannot be made; an old file is as it was.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        encoded = content.encode(errors="backslashreplace") if isinstance(content, str) else content
        replace(path, encoded)
    except (FileError, OSError) as error:
        unmade = f"cannot be written: {getattr(error, 'strerror', None) or error}"
        remedy = f"Check permissions and free space, or name another file with {option}"
        raise FileError(path, getattr(error, "problem", unmade), remedy) from error


def remove(path: Path) -> None:
    try:
        path.unlink()
    except OSError as error:
        raise _refused(path, error) from error
    _sync_folder(path.parent)


def _write(path: Path, content: bytes, mode: int | None) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)  # less the umask
    with os.fdopen(descriptor, "wb") as stream:
        stream.write(content)
        stream.flush()
        os.fsync(stream.fileno())  # else a power cut may leave the new name with no content
    if mode is not None:
        path.chmod(mode)


def _sync_folder(folder: Path) -> None:
    """Makes the new name survive a power cut, if the file system can; the file is in place anyway."""
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _refused(path: Path, error: OSError) -> FileError:
    remedy = "Check permissions and free space, or choose another folder with --gpukern-baseline-dir"
    return FileError(path, f"cannot be written: {error.strerror or error}", remedy)


_OWNER = ".owner"


class TemporaryFolder(tempfile.TemporaryDirectory[str]):
    """Makes a temporary folder called `gpukern-…`; if this process is killed, a later one removes it.

    The file `.owner` in it is locked as long as this process lives. It has that name only once it is locked.
    """

    def __init__(self, kind: str) -> None:
        _remove_orphans(tempfile.gettempdir())
        super().__init__(prefix=f"gpukern-{kind}-", ignore_cleanup_errors=True)
        unlocked = Path(self.name, f"{_OWNER}.new")
        descriptor = os.open(unlocked, os.O_RDWR | os.O_CREAT, 0o600)
        self._let_go = weakref.finalize(self, os.close, descriptor)
        with contextlib.suppress(OSError):  # a file system without locks
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            unlocked.rename(unlocked.with_name(_OWNER))

    def cleanup(self) -> None:
        self._let_go()
        super().cleanup()


@functools.cache
def _remove_orphans(place: str) -> None:
    """Removes folders of this user whose process has ended; looks once in a process."""
    for folder in Path(place).glob("gpukern-*"):
        with contextlib.suppress(OSError):  # it has no owner, or its owner lives
            if folder.lstat().st_uid == os.geteuid():
                with (folder / _OWNER).open("r+") as owner:
                    fcntl.flock(owner, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(folder)  # which refuses a link
