"""git as a process: which commit a revision means here, and where it and HEAD parted."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_OF_A_REPOSITORY = (
    "GIT_DIR",
    "GIT_WORK_TREE",
    "GIT_INDEX_FILE",
    "GIT_OBJECT_DIRECTORY",
    "GIT_ALTERNATE_OBJECT_DIRECTORIES",
    "GIT_COMMON_DIR",
    "GIT_IMPLICIT_WORK_TREE",
    "GIT_GRAFT_FILE",
    "GIT_SHALLOW_FILE",
    "GIT_NAMESPACE",
    "GIT_PREFIX",
    "GIT_QUARANTINE_PATH",
)
"""What git sets for its hooks, and what would make every command speak of another repository or index.

Not `GIT_CONFIG_…`: a container in CI passes `safe.directory` by these.
"""

_COMMIT = re.compile(r"[0-9a-f]{40}([0-9a-f]{24})?")  # SHA-1 or SHA-256
_SHORT = 7
_REFS_SHOWN = 5
_LAST_LINES = 5


class GitError(Exception):
    """What was asked of git cannot be had; the message says why and what to do."""


@dataclass(frozen=True)
class Revisions:
    """A working tree and the commit that it is measured against.

    Attributes:
        top: top folder of the working tree.
        asked: the revision as the user wrote it.
        commit: the commit that it means.
        base: merge base of it and HEAD, the commit that is measured.
        head: HEAD's commit.
        changed: whether the working tree holds changes that are not committed, or untracked files.
        notes: what a checkout of the base will lack, in words.
    """

    top: Path
    asked: str
    commit: str
    base: str
    head: str
    changed: bool
    notes: tuple[str, ...] = ()

    @property
    def identical(self) -> bool:
        """Whether both sides are the same code."""
        return self.base == self.head and not self.changed

    def __str__(self) -> str:
        return f"merge-base {short(self.base)} of {self.asked}"


def short(commit: str) -> str:
    """The beginning of a commit's name, as git abbreviates it."""
    return commit[:_SHORT]


def without_git(environ: Mapping[str, str]) -> dict[str, str]:
    """An environment in which git finds the repository by the current folder, also inside a git hook."""
    return {name: value for name, value in environ.items() if name not in _OF_A_REPOSITORY}


def resolve(revision: str, folder: Path, environ: Mapping[str, str] = os.environ) -> Revisions:
    """Which commit the working tree round `folder` is to be measured against.

    Args:
        revision: a branch, tag, commit or anything else that git takes for one commit.
        folder: where the tests are.
        environ: of the processes.

    Raises:
        GitError: there is no git, no repository, no such revision or no common commit.
    """
    top = _top(folder, environ)
    head = _commit("HEAD", top, environ)
    if head is None:
        raise GitError(f"{top} has no commit yet, so that there is nothing to measure it against")
    commit = _commit(revision, top, environ)
    if commit is None:
        raise GitError(_unknown(revision, top, environ))
    found = run(["merge-base", head, commit], top, environ, accepted=(0, 1)).strip()
    if not found:
        raise GitError(_no_merge_base(revision, top, environ))
    return Revisions(
        top=top,
        asked=revision,
        commit=commit,
        base=found.splitlines()[0],
        head=head,
        changed=bool(run(["status", "--porcelain"], top, environ).strip()),
        notes=_not_checked_out(found.splitlines()[0], top, environ),
    )


def run(
    arguments: list[str],
    folder: Path,
    environ: Mapping[str, str] = os.environ,
    *,
    accepted: tuple[int, ...] = (0,),
) -> str:
    """What git prints.

    Args:
        arguments: the command and what belongs to it.
        folder: where it runs.
        environ: of the process; variables that name another repository are left out, no hook of the
            repository runs, nothing asks for a password and git-lfs fetches nothing.
        accepted: statuses that are no error.

    Raises:
        GitError: there is no git, or it ended with another status.
    """
    if shutil.which("git") is None:
        raise GitError("there is no git here: install it, or make sure that it is on the PATH")
    env = without_git(environ) | {
        "LC_ALL": "C",
        "GIT_TERMINAL_PROMPT": "0",
        "GIT_OPTIONAL_LOCKS": "0",
        "GIT_LFS_SKIP_SMUDGE": "1",
    }
    done = subprocess.run(
        ["git", "-c", f"core.hooksPath={os.devnull}", *arguments],
        cwd=folder,
        env=env,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="surrogateescape",
        check=False,
    )
    if done.returncode not in accepted:
        said = last_lines(done.stderr or done.stdout)
        raise GitError(f"git {arguments[0]} in {folder} ended with status {done.returncode}: {said}")
    return done.stdout


def last_lines(text: str, count: int = _LAST_LINES) -> str:
    """The last lines of what a process said, that say something."""
    lines = [line.rstrip() for line in text.splitlines() if line.strip()]
    return "\n".join(lines[-count:]) or "it said nothing"


def _top(folder: Path, environ: Mapping[str, str]) -> Path:
    try:
        found = run(["rev-parse", "--show-toplevel"], folder, environ)
    except GitError as error:
        text = str(error)
        if "not a git repository" in text:
            raise GitError(f"{folder} is in no git repository") from None
        if "must be run in a work tree" in text:
            raise GitError(f"{folder} is in a repository without a working tree") from None
        raise  # such as a folder of another user: git's own words name the remedy
    return Path(found.removesuffix("\n")).resolve()


def _commit(revision: str, top: Path, environ: Mapping[str, str]) -> str | None:
    """The commit that a revision means, or None; what begins with a dash would be an option."""
    if not revision.strip() or revision.startswith("-") or not revision.isprintable():
        return None
    arguments = ["rev-parse", "--verify", "--quiet", f"{revision}^{{commit}}"]
    found = run(arguments, top, environ, accepted=(0, 1, 128)).strip()
    return found if _COMMIT.fullmatch(found) else None


def _is_shallow(top: Path, environ: Mapping[str, str]) -> bool:
    return run(["rev-parse", "--is-shallow-repository"], top, environ).strip() == "true"


_UNSHALLOW = "in GitHub Actions give actions/checkout `fetch-depth: 0`, elsewhere run `git fetch --unshallow`"


def _unknown(revision: str, top: Path, environ: Mapping[str, str]) -> str:
    known = run(
        ["for-each-ref", "--format=%(refname:short)", "refs/heads", "refs/remotes", "refs/tags"], top, environ
    ).split()
    there = f"; known here: {', '.join(known[:_REFS_SHOWN])}" if known else ""
    more = ", …" if len(known) > _REFS_SHOWN else ""
    remedy = _UNSHALLOW if _is_shallow(top, environ) else f"fetch it: {_fetch(revision)}"
    return f"{revision!r} is no commit known in {top}{there}{more}. {remedy[0].upper()}{remedy[1:]}"


def _fetch(revision: str) -> str:
    remote, slash, branch = revision.partition("/")
    if slash and re.fullmatch(r"[\w.-]+", remote) and re.fullmatch(r"[\w./-]+", branch):
        return f"git fetch {remote} {branch}:refs/remotes/{remote}/{branch}"
    return "git fetch --all --tags"


def _no_merge_base(revision: str, top: Path, environ: Mapping[str, str]) -> str:
    if _is_shallow(top, environ):
        return (
            f"this shallow clone does not reach back to where {revision} and HEAD parted: {_UNSHALLOW}, "
            f"and fetch {revision}"
        )
    return f"{revision} and HEAD have no commit in common: name a revision of this history"


def _not_checked_out(commit: str, top: Path, environ: Mapping[str, str]) -> tuple[str, ...]:
    """What a worktree of a commit lacks: submodules, and the contents of files that git-lfs keeps."""
    notes = []
    listed = run(["ls-tree", "-r", "-z", commit], top, environ).split("\0")
    if any(entry.startswith("160000 ") for entry in listed):
        remedy = '--gpukern-against-setup="git submodule update --init --recursive"'
        notes.append(f"submodules are not checked out in the base's worktree ({remedy})")
    attributes = [entry.partition("\t")[2] for entry in listed if entry.endswith(".gitattributes")]
    texts = (run(["show", f"{commit}:{path}"], top, environ) for path in attributes)
    if any("filter=lfs" in text for text in texts):
        remedy = '--gpukern-against-setup="git lfs pull"'
        notes.append(f"files of git-lfs are pointers in the base's worktree ({remedy})")
    return tuple(notes)


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
