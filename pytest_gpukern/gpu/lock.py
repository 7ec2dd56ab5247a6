"""Lets only one process of a machine measure on a device at a time, whoever started it."""

from __future__ import annotations

import fcntl
import getpass
import os
import socket
import stat
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partialmethod
from pathlib import Path

from pytest_gpukern.gpu.errors import DeviceError, DeviceLockTimeout
from pytest_gpukern.gpu.processes import ancestors
from pytest_gpukern.values.fingerprint import file_key
from pytest_gpukern.values.untrusted_json import bounded, printable

DIRECTORY_VARIABLE = "GPUKERN_LOCK_DIR"
_COMMAND_LENGTH = 80
_ENTRY_BYTES, _LONGEST = 4096, 300
_NESTED = "a measured call must not start another measurement"
# Everybody may write into the folder: never follow a link that somebody has put there.
_FLAGS = os.O_NOFOLLOW | os.O_CLOEXEC

# How long a waiter gives a new holder to write who it is.
_GRACE_S = 1.0


@dataclass
class _Acquired:
    fd: int
    count: int = 1


# Held locks by path: two DeviceLock objects of one process and device are one lock.
_held: dict[Path, _Acquired] = {}
_guard = threading.RLock()
_turns: weakref.WeakSet[HostTurns] = weakref.WeakSet()


class DeviceLock:
    """A lock on one device. At most one process of the machine holds it.

    We use `flock` on a file named by the UUID, so the kernel releases the lock however the holder dies. The
    file lies in GPUKERN_LOCK_DIR, else in /tmp/gpukern-locks. Containers that share a GPU must share that
    folder too.

    A process may acquire again, which is only counted; its threads do not exclude each other. A child of
    the holder is refused: the holder may wait for it.
    """

    def __init__(self, uuid: str) -> None:
        self.uuid = uuid
        self._path = default_directory() / f"{file_key(uuid)}.lock"

    def acquire(
        self,
        on_wait: Callable[[str], None] | None = None,
        timeout_s: float | None = None,
        poll_s: float = 0.1,
        quiet_s: float = 0.0,
    ) -> None:
        """Takes the lock, waiting at most `timeout_s` seconds for its holder (None: forever).

        After `quiet_s` seconds `on_wait` is called once with the holder. Raises DeviceLockTimeout, which
        names the holder, and DeviceError if the lock file cannot be used, or if we would wait forever for a
        process that started this one.
        """
        with _guard:
            if self._path in _held:
                _held[self._path].count += 1
                return
            started, announced, fd = time.monotonic(), False, self._try()
            # An ancestor may wait for us, so we would wait forever.
            above = [*map(str, ancestors())] if fd is None and timeout_s is None else []
            while fd is None:  # polled, since a blocking flock has no time-out and names no holder
                waited_s, (pid, other) = time.monotonic() - started, self.holder()
                if pid in above:
                    raise DeviceError(f"{self._in_use(other)}, which started this process: {_NESTED}")
                if timeout_s is not None and waited_s >= timeout_s:
                    raise DeviceLockTimeout(f"{self._in_use(other)}; gave up after {timeout_s:g} s")
                due = waited_s >= (quiet_s if other else max(quiet_s, _GRACE_S))
                if on_wait is not None and due and not announced:
                    on_wait(self._in_use(other))
                    announced = True
                time.sleep(poll_s)
                fd = self._try()
            write_holder(fd, _this_process())
            _held[self._path] = _Acquired(fd)

    def release(self) -> None:
        """Gives the lock back once; RuntimeError if this process does not hold it."""
        with _guard:
            if self._path not in _held:
                raise RuntimeError(f"the lock of {self.uuid} is not held by this process")
            held = _held[self._path]
            held.count -= 1
            if held.count:
                return
            del _held[self._path]
            write_holder(held.fd, "")  # first, so that no later holder's name is wiped out
            os.close(held.fd)

    def holder(self) -> tuple[str, str]:
        """Returns the holder's process id, and who it says it is, safe to print; "" for nothing."""
        try:
            fd = os.open(self._path, os.O_RDONLY | _FLAGS)
        except OSError:
            return "", ""
        try:
            pid, _, words = os.pread(fd, _ENTRY_BYTES, 0).decode(errors="replace").partition("\n")
            return pid, bounded(printable(words), _LONGEST)
        except OSError:
            return "", ""
        finally:
            os.close(fd)

    def _in_use(self, holder: str) -> str:
        return f"{self.uuid} is in use by {holder or f'another process, which left no entry in {self._path}'}"

    def _try(self) -> int | None:
        """Locks the file and returns it open, or None while somebody else holds it."""
        fd = open_lock_file(self._path)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # A cleaner of temporary files may have removed the file before we locked it; the next process
            # would then lock another file.
            if os.path.samestat(os.fstat(fd), self._path.stat(follow_symlinks=False)):
                return fd
        except (BlockingIOError, FileNotFoundError):
            pass
        except OSError as error:
            os.close(fd)
            raise unusable(self._path, error) from error
        os.close(fd)
        return None


class HostTurns:
    """Lets one process of a run time something on the host while no other of them works there.

    A process is `busy` while it compiles or checks; any number may be. One that times on the host is
    `alone`. It waits until nobody is busy, and nobody begins meanwhile, so its wait ends. Contexts of one
    process may be nested: `alone` counts before `resting`, and that before `busy`.

    Args:
        folder: of the run, where two lock files lie; None if the run has one process, and nothing is locked.
    """

    def __init__(self, folder: Path | None) -> None:
        self.folder = folder
        self._depth = {"alone": 0, "resting": 0, "busy": 0}
        self._is = "resting"
        self._fd: int | None = None
        _turns.add(self)

    def forget(self) -> None:
        """Closes the file of a forked child, which would keep the lock when its parent dies."""
        if self._fd is not None:
            os.close(self._fd)
        self.folder, self._fd, self._is = None, None, "resting"

    def busy_from_its_start(self) -> int | None:
        """Returns an open lock file: whoever inherits it is `busy` until it closes it or ends.

        Hand it to a process that is about to start, and close it here. None if nothing is locked.
        """
        return None if self.folder is None else self._lock("busy")

    @contextmanager
    def _being(self, state: str) -> Iterator[None]:
        self._depth[state] += 1
        try:
            self._become()
            yield
        finally:
            self._depth[state] -= 1
            self._become()

    alone = partialmethod(_being, "alone")
    """Returns the context in which this process times something on the host."""
    resting = partialmethod(_being, "resting")
    """Returns the context in which this process waits, or times what the host does not disturb."""
    busy = partialmethod(_being, "busy")
    """Returns the context in which this process works on the host."""

    def _become(self) -> None:
        """Gives back the lock of the last state, and takes the lock of the state of this process now."""
        state = next((name for name, depth in self._depth.items() if depth), "resting")
        if self.folder is None or state == self._is:
            return
        if self._fd is not None:
            _unlock(self._fd)
        self._fd, self._is = None, "resting"
        if state != "resting":
            self._fd = self._lock(state)
            self._is = state

    def _lock(self, state: str) -> int:
        """Waits for the lock of a state, `busy` or `alone`; returns its open file."""
        assert self.folder is not None
        # flock is not fair: without this gate, ever new shared locks would starve who waits to be alone.
        gate = _locked(self.folder / "host-gate", alone=True)
        try:
            return _locked(self.folder / "host", alone=state == "alone")
        finally:
            _unlock(gate)


def _locked(path: Path, *, alone: bool) -> int:
    fd = os.open(path, os.O_RDWR | os.O_CREAT | _FLAGS, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
    except BaseException:  # Ctrl-C
        os.close(fd)
        raise
    return fd


def _unlock(fd: int) -> None:
    fcntl.flock(fd, fcntl.LOCK_UN)  # a forked child may have the file open too
    os.close(fd)


def _let_go_in_forked_child() -> None:
    """Closes a forked child's copies of the lock files; they would keep the lock when the parent dies."""
    global _guard
    _guard = threading.RLock()
    for held in _held.values():
        os.close(held.fd)
    _held.clear()
    for turns in _turns:
        turns.forget()


os.register_at_fork(after_in_child=_let_go_in_forked_child)


def default_directory() -> Path:
    """Returns GPUKERN_LOCK_DIR, or a folder that is the same for every user, unlike TMPDIR.

    Raises DeviceError for a path that is not absolute.
    """
    folder = Path(os.environ.get(DIRECTORY_VARIABLE) or "/tmp/gpukern-locks")
    if folder.is_absolute():
        return folder
    raise DeviceError(
        f"{DIRECTORY_VARIABLE}={str(folder)!r} is not an absolute path, so each process could use "
        f"another folder. Set it to an absolute path that all users of the GPU can write to, or unset it."
    )


def open_lock_file(path: Path) -> int:
    """Opens a lock file, making it and its folder usable by every user; DeviceError if that fails."""
    try:
        _make_directory(path.parent)
        while True:
            try:
                return _open_existing(path)
            except FileNotFoundError:
                pass
            # Never O_CREAT on a file that exists: fs.protected_regular forbids it to other users
            # (https://docs.kernel.org/admin-guide/sysctl/fs.html#protected-regular).
            try:
                fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | _FLAGS, 0o666)
            except FileExistsError:
                continue
            os.fchmod(fd, 0o666)  # despite the umask
            return fd
    except OSError as error:
        raise unusable(path, error) from error


def unusable(path: Path, error: OSError) -> DeviceError:
    return DeviceError(
        f"the device lock {path} cannot be used: {error}. Set {DIRECTORY_VARIABLE} to a folder that "
        f"all users of the GPU can write to."
    )


def write_holder(fd: int, holder: str) -> None:
    """Writes who holds the lock, "" for nobody; skips another user's file, which is open for reading only."""
    with suppress(OSError):
        os.ftruncate(fd, 0)
        os.pwrite(fd, holder.encode(errors="replace"), 0)


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
        directory.chmod(0o1777)  # as /tmp: everybody may add files, and remove none of others


def _this_process() -> str:
    """Returns the id of this process, and in a second line who it is and since when it holds a lock."""
    command = " ".join([Path(sys.argv[0] or sys.executable).name, *sys.argv[1:]])
    if len(command) > _COMMAND_LENGTH:
        command = command[: _COMMAND_LENGTH - 1] + "…"
    now = time.strftime("%Y-%m-%d %H:%M %Z")
    return f"{os.getpid()}\npid {os.getpid()} on {socket.gethostname()} ({_user()}): {command}, since {now}"


def _user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError, ImportError):  # a container's user without a name
        return f"uid {os.getuid()}"
