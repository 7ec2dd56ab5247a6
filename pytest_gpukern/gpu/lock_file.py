"""The file behind a device lock: made for every user of the machine, and telling who holds the lock."""

from __future__ import annotations

import getpass
import json
import os
import secrets
import socket
import stat
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_gpukern.gpu.errors import DeviceError
from pytest_gpukern.gpu.process_tree import is_alive
from pytest_gpukern.values.strict_json import decoded

if TYPE_CHECKING:
    from collections.abc import Mapping

DIRECTORY_VARIABLE = "GPUKERN_LOCK_DIR"
_COMMAND_LENGTH = 80
# The folder is open to everybody: never follow a link that somebody has put there.
_FLAGS = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)


@dataclass(frozen=True)
class Holder:
    """Who holds a lock, as the holder wrote it into the lock file; `since` in seconds since the epoch."""

    uuid: str
    pid: int
    user: str
    host: str
    command: str
    since: float
    nonce: str

    @classmethod
    def here(cls, uuid: str) -> Holder:
        """Describe this process, now."""
        command = " ".join([Path(sys.argv[0] or sys.executable).name, *sys.argv[1:]])
        if len(command) > _COMMAND_LENGTH:
            command = command[: _COMMAND_LENGTH - 1] + "…"
        return cls(
            uuid, os.getpid(), _user(), socket.gethostname(), command, time.time(), secrets.token_hex(8)
        )

    def __str__(self) -> str:
        then, now = time.localtime(self.since), time.localtime()
        same_day = (then.tm_year, then.tm_yday) == (now.tm_year, now.tm_yday)
        since = time.strftime("%H:%M" if same_day else "%Y-%m-%d %H:%M", then)
        where = "" if self.host == socket.gethostname() else f" on {self.host}"
        return f"pid {self.pid}{where} ({self.user}): {self.command}, since {since}"

    def is_whole(self) -> bool:
        """Return whether every field is of its kind: anybody may write into the file."""
        texts = (self.uuid, self.user, self.host, self.command, self.nonce)
        numbers = type(self.pid) is int and type(self.since) in (int, float)
        return (
            numbers
            and 0 < self.pid < 2**31
            and 0 <= self.since < 2**40
            and all(isinstance(text, str) for text in texts)
        )

    def is_credible(self) -> bool:
        """Return whether this can be the present holder, and is no entry left by a process that died."""
        return self.host != socket.gethostname() or is_alive(self.pid)


def default_directory(environ: Mapping[str, str]) -> Path:
    """Return GPUKERN_LOCK_DIR, or a folder that every user of the machine sees alike.

    Not under TMPDIR, which users, batch jobs and test runners have of their own.

    Raises DeviceError for a path that is not absolute.
    """
    if environ.get(DIRECTORY_VARIABLE):
        folder = Path(environ[DIRECTORY_VARIABLE])
        if folder.is_absolute():
            return folder
        raise DeviceError(
            f"{DIRECTORY_VARIABLE}={str(folder)!r} is no absolute path, so each process could mean another "
            f"folder. Set it to one that all users of the GPU can write to, or unset it."
        )
    common = Path("/tmp") if os.name == "posix" else Path(tempfile.gettempdir())
    return common / "gpukern-locks"


def open_lock_file(path: Path) -> int:
    """Open a lock file, making it and its folder usable by every user when they are not there yet.

    Raises DeviceError when that is not possible, when the file is a link or no regular file.
    """
    try:
        _make_directory(path.parent)
        while True:
            try:
                return _open_existing(path)
            except FileNotFoundError:
                pass
            # Never O_CREAT on a file that exists: under fs.protected_regular the kernel refuses that to
            # other users (https://docs.kernel.org/admin-guide/sysctl/fs.html#protected-regular).
            try:
                fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | _FLAGS, 0o666)
            except FileExistsError:
                continue
            os.fchmod(fd, 0o666)  # whatever the umask
            return fd
    except OSError as error:
        raise unusable(path, error) from error


def unusable(path: Path, error: OSError) -> DeviceError:
    """Make the error for a lock file that cannot be opened or locked."""
    return DeviceError(
        f"the device lock {path} cannot be used: {error}. Set {DIRECTORY_VARIABLE} to a folder that "
        f"all users of the GPU can write to."
    )


def write_holder(fd: int, holder: Holder | None) -> None:
    """Write who holds the lock, or nobody.

    A file opened for reading only (another user's) stays as it is: it is locked all the same, and waiters
    hear of another process.
    """
    try:
        os.ftruncate(fd, 0)
        if holder is not None:
            os.pwrite(fd, json.dumps(asdict(holder)).encode(), 0)
    except OSError:
        return


def read_holder(path: Path) -> Holder | None:
    """Return who wrote that it holds the lock, None when nobody did or the writer is dead."""
    try:
        fd = os.open(path, os.O_RDONLY | _FLAGS)
    except OSError:
        return None
    try:
        holder = Holder(**decoded(os.pread(fd, 4096, 0)))
    except (OSError, ValueError, TypeError):  # empty, being written, or somebody else's
        return None
    finally:
        os.close(fd)
    return holder if holder.is_whole() and holder.is_credible() else None


def _open_existing(path: Path) -> int:
    try:
        fd = os.open(path, os.O_RDWR | _FLAGS)
    except PermissionError:
        fd = os.open(path, os.O_RDONLY | _FLAGS)  # enough for flock
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError("it is not a regular file")
    return fd


def _make_directory(directory: Path) -> None:
    try:
        directory.mkdir(parents=True)
    except FileExistsError:
        if not stat.S_ISDIR(directory.lstat().st_mode):
            raise OSError(f"{directory} is not a folder") from None
    else:
        directory.chmod(0o1777)


def _user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError, ImportError):  # a container's user without a name
        return f"uid {os.getuid()}" if hasattr(os, "getuid") else "unknown user"
