"""A worktree of the base in a temporary folder: made, set up, removed, and a killed run's pruned.

The owner of a worktree holds an advisory lock on git's own file that says why the worktree is locked
(`.git/worktrees/…/locked`). The kernel gives that lock up when the process ends, however it ends: what nobody
holds is left over. A process number would say less, since they are used again, in containers at once.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_gpukern.revisions.git import GitError, last_lines, run, short, without_git

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pytest_gpukern.revisions.git import Revisions

_FOLDER = "gpukern-against-"
_REASON = "pytest-gpukern measures it"
WORKTREE_VARIABLE = "GPUKERN_WORKTREE"
"""In the environment of the set-up command: the worktree's folder."""


@dataclass
class Worktree:
    """A detached checkout of the base, ours until `remove`.

    Attributes:
        path: its top folder, named like the working tree's, since that name is a package's where the top
            folder holds an `__init__.py`.
    """

    path: Path
    _top: Path
    _environ: Mapping[str, str]
    _held: int | None

    @classmethod
    def make(cls, revisions: Revisions, environ: Mapping[str, str] = os.environ) -> Worktree:
        """Checks the base out in a new temporary folder, once what earlier runs left over is pruned.

        Raises:
            GitError: git refuses; what was made of it until then is gone.
        """
        top = revisions.top
        folder = Path(tempfile.mkdtemp(prefix=f"{_FOLDER}{short(revisions.base)}-")).resolve()
        path = folder / top.name
        made = cls(path, top, environ, None)
        try:
            with _one_at_a_time(top, environ):
                prune_left_over(top, environ)
                reason = f"{_REASON} (process {os.getpid()})"
                run(
                    ["worktree", "add", "--detach", "--lock", "--reason", reason, str(path), revisions.base],
                    top,
                    environ,
                )
                made._held = _hold(_lock_file(path, environ))
        except BaseException:
            made.remove()
            raise
        return made

    def set_up(self, command: str) -> None:
        """Runs a command of the user's by the shell in the worktree.

        Raises:
            GitError: it failed; the message holds the last lines of what it said.
        """
        environ = without_git(self._environ) | {WORKTREE_VARIABLE: str(self.path)}
        process = subprocess.Popen(
            command,
            shell=True,
            cwd=self.path,
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        try:
            said, _ = process.communicate()
        except BaseException:  # Ctrl-C ends what the shell started too
            with contextlib.suppress(OSError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            raise
        if process.returncode != 0:
            raise GitError(
                f"--gpukern-against-setup={command}: it ended with status {process.returncode} in a worktree "
                f"of the base:\n{last_lines(said, 15)}"
            )

    def remove(self) -> None:
        """Removes the folder and what git knows of it; says nothing where that is gone already."""
        if self._held is not None:
            os.close(self._held)
            self._held = None
        _remove(self.path, self._top, self._environ)


def prune_left_over(top: Path, environ: Mapping[str, str] = os.environ) -> list[Path]:
    """Removes worktrees of this plugin whose owner is dead; returns their folders.

    Others' worktrees, and those that a process holds, stay as they are.
    """
    pruned = []
    for path in _ours(top, environ):
        file = _registered(path, top, environ)
        held = None if file is None else _hold(file)
        if held is None:
            continue  # somebody measures there, or nobody can tell
        os.close(held)
        _remove(path, top, environ)
        pruned.append(path)
    return pruned


def _ours(top: Path, environ: Mapping[str, str]) -> list[Path]:
    """Worktrees that git knows of and that a run of this plugin made: by the folder's name and the reason."""
    found = []
    for entry in run(["worktree", "list", "--porcelain"], top, environ).split("\n\n"):
        lines = entry.splitlines()
        path = Path(lines[0].removeprefix("worktree ")) if lines else Path()
        locked = [line.removeprefix("locked ") for line in lines if line.startswith("locked ")]
        if path.parent.name.startswith(_FOLDER) and any(text.startswith(_REASON) for text in locked):
            found.append(path)
    return found


def _registered(path: Path, top: Path, environ: Mapping[str, str]) -> Path | None:
    """git's lock file of a worktree, found in the repository: the folder itself may be gone."""
    for file in (_common(top, environ) / "worktrees").glob("*/gitdir"):
        with contextlib.suppress(OSError):
            if Path(file.read_text().strip()).parent == path:
                return file.with_name("locked")
    return None


def _common(top: Path, environ: Mapping[str, str]) -> Path:
    """The repository's own folder, which all its worktrees share."""
    return (top / run(["rev-parse", "--git-common-dir"], top, environ).removesuffix("\n")).resolve()


def _lock_file(path: Path, environ: Mapping[str, str]) -> Path:
    return Path(run(["rev-parse", "--absolute-git-dir"], path, environ).removesuffix("\n")) / "locked"


@contextlib.contextmanager
def _one_at_a_time(top: Path, environ: Mapping[str, str]) -> Iterator[None]:
    """No other run prunes between our making a worktree and our holding it."""
    held = _hold(_common(top, environ), wait=True)
    try:
        yield
    finally:
        if held is not None:
            os.close(held)


def _hold(path: Path, *, wait: bool = False) -> int | None:
    """An open file that holds the advisory lock on a path; None where another holds it, or there is none."""
    if fcntl is None:
        return None
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except OSError:
        os.close(descriptor)
        return None
    return descriptor


def _remove(path: Path, top: Path, environ: Mapping[str, str]) -> None:
    shutil.rmtree(path.parent, ignore_errors=True)
    with contextlib.suppress(GitError):  # as where git never made it
        run(["worktree", "remove", "--force", "--force", str(path)], top, environ)
