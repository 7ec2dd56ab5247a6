"""One measurement on a device at a time, across the processes and users of a machine."""

from __future__ import annotations

import os
import sys
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_gpukern.gpu.errors import DeviceLockTimeout
from pytest_gpukern.gpu.lock_file import (
    Holder,
    default_directory,
    open_lock_file,
    read_holder,
    unusable,
    write_holder,
)
from pytest_gpukern.gpu.model import file_key
from pytest_gpukern.gpu.process_tree import ancestors, process_id

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

if TYPE_CHECKING:
    from collections.abc import Callable, MutableMapping
    from pathlib import Path

_TELL_AGAIN_AFTER_S = 60.0
# How long a waiter gives a holder that has just got the lock to write who it is.
_GRACE_S = 1.0


@dataclass
class _Held:
    """A lock that this process holds: the open file and how often it was acquired."""

    fd: int
    count: int = 1


# By path: two DeviceLock objects of one process and device are one lock.
_held: dict[Path, _Held] = {}
_guard = threading.RLock()


class DeviceLock:
    """A lock on one device, held by at most one process of the machine and passed by that process's children.

    It is `flock` on a file named by the UUID, so the kernel releases it when the holder dies, however it
    dies. The file lies in `directory`, else in GPUKERN_LOCK_DIR, else in /tmp/gpukern-locks; containers
    that share a GPU must share that folder too.

    While a process holds the lock it says so in its environment: a child that finds its living ancestor
    both there and in the file passes without locking, so a parent that waits for the one child that
    measures holds the lock for both. Processes that measure side by side, as xdist's workers do, must not
    have a parent that holds it. A child is not told when its parent releases. Acquiring again in one
    process only counts; threads of a process do not exclude each other.

    Where there is no `flock` (Windows) nothing is locked, and `unavailable_reason` says so.
    """

    def __init__(
        self,
        uuid: str,
        directory: Path | None = None,
        environ: MutableMapping[str, str] | None = None,
    ) -> None:
        self.uuid = uuid
        self._environ = os.environ if environ is None else environ
        self._path = (directory or default_directory(self._environ)) / f"{file_key(uuid)}.lock"
        self._variable = "GPUKERN_LOCK_" + "".join(c if c.isalnum() else "_" for c in uuid).upper()
        self._passes = 0

    @property
    def unavailable_reason(self) -> str | None:
        """Why nothing is locked here, or None where locking works."""
        if fcntl is not None:
            return None
        return f"{sys.platform} has no flock: other processes may measure on the same device at the same time"

    def acquire(
        self,
        on_wait: Callable[[str], None] | None = None,
        timeout_s: float | None = None,
        poll_s: float = 0.1,
    ) -> None:
        """Take the lock, waiting at most `timeout_s` seconds for its holder (None: as long as it takes).

        `on_wait` is told who holds it, once at first and then every minute.

        Raises DeviceLockTimeout, which names the holder, and DeviceError where the lock file cannot be used.
        """
        with _guard:
            if self._path in _held:
                _held[self._path].count += 1
                return
            if fcntl is None or self._is_inherited():
                self._passes += 1
                return
            fd = self._wait(on_wait, timeout_s, poll_s)
            holder = Holder.here(self.uuid)
            write_holder(fd, holder)
            _held[self._path] = _Held(fd)
            self._environ[self._variable] = f"{holder.pid}:{holder.nonce}"

    def release(self) -> None:
        """Give the lock back once; the last of as many calls as acquired it frees the device.

        Raises RuntimeError when this process does not hold it.
        """
        with _guard:
            if self._passes:
                self._passes -= 1
                return
            if self._path not in _held:
                raise RuntimeError(f"the lock of {self.uuid} is not held by this process")
            held = _held[self._path]
            held.count -= 1
            if held.count:
                return
            del _held[self._path]
            self._environ.pop(self._variable, None)
            write_holder(held.fd, None)
            os.close(held.fd)

    def __enter__(self) -> DeviceLock:
        self.acquire()
        return self

    def __exit__(self, *exc: object) -> None:
        self.release()

    def holder(self) -> Holder | None:
        """Return who holds the lock now, as far as the lock file tells."""
        return read_holder(self._path)

    def _is_inherited(self) -> bool:
        """Return whether a living ancestor holds the lock: the variable alone may be a leftover."""
        text, _, nonce = self._environ.get(self._variable, "").partition(":")
        pid = process_id(text)
        if pid is None or pid not in ancestors():
            return False
        holder = self.holder()
        return holder is not None and (holder.pid, holder.nonce) == (pid, nonce)

    def _wait(self, on_wait: Callable[[str], None] | None, timeout_s: float | None, poll_s: float) -> int:
        started = time.monotonic()
        told_after_s: float | None = None
        while (fd := self._try()) is None:
            waited_s = time.monotonic() - started
            holder = self.holder()
            if timeout_s is not None and waited_s >= timeout_s:
                raise DeviceLockTimeout(f"{self._in_use(holder)}; gave up after {timeout_s:g} s")
            due = told_after_s is None or waited_s - told_after_s >= _TELL_AGAIN_AFTER_S
            if on_wait is not None and due and (holder is not None or waited_s >= _GRACE_S):
                on_wait(self._in_use(holder))
                told_after_s = waited_s
            time.sleep(poll_s)
        return fd

    def _in_use(self, holder: Holder | None) -> str:
        return f"{self.uuid} is in use by {holder or f'another process, which left no entry in {self._path}'}"

    def _try(self) -> int | None:
        """Lock the file and return it open, or None while somebody else holds it."""
        fd = open_lock_file(self._path)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # A cleaner of temporary files may have removed the file between opening and locking; whoever
            # came next would then lock another one.
            if os.path.samestat(os.fstat(fd), self._path.stat(follow_symlinks=False)):
                return fd
        except (BlockingIOError, FileNotFoundError):
            pass
        except OSError as error:
            os.close(fd)
            raise unusable(self._path, error) from error
        os.close(fd)
        return None


def _let_go_in_forked_child() -> None:
    """Close a forked child's copies of the lock files: else they would keep the lock when the parent dies."""
    global _guard
    _guard = threading.RLock()
    for held in _held.values():
        os.close(held.fd)
    _held.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_let_go_in_forked_child)
