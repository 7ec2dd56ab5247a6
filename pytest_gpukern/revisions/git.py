"""Asks git for the merge base of a revision and HEAD, and makes a worktree of it."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from pytest_gpukern.gpu.fingerprint import git
from pytest_gpukern.processes.process import last_lines
from pytest_gpukern.values.atomic_file import TemporaryFolder
from pytest_gpukern.values.fingerprint import COMMIT, OF_A_REPOSITORY, Provenance

_LAST_LINES = 15


class AgainstError(Exception):
    """Says why two revisions cannot be compared, and what to do."""


@dataclass(frozen=True)
class Revisions:
    """Holds a working tree and the commit that it is measured against.

    Attributes:
        requested: the revision as the user wrote it.
        base: merge base of it and HEAD, the commit that is measured.
        identical: whether both sides are the same code: that commit, and no change or untracked file.
    """

    top: Path
    requested: str
    base: str
    identical: bool

    @property
    def short(self) -> str:
        return self.base[:7]

    def __str__(self) -> str:
        return f"merge-base {self.short} of {self.requested}"


def resolve(revision: str, folder: Path, *, exact: bool = False) -> Revisions:
    """Finds the commit that the working tree around `folder` is to be measured against.

    With `exact` it is the revision itself, which need not be in HEAD's history, as after a squash. Its code
    may then be ours in another commit, such as the one with the records that were made on it.

    Raises:
        AgainstError: there is no git, no repository, no such revision or no common commit.
    """
    top = Path(run(["rev-parse", "--show-toplevel"], folder).removesuffix("\n")).resolve()
    head, commit = _commit("HEAD", top), _commit(revision, top)
    if commit is None:
        raise AgainstError(f"{revision!r} names no commit in {top}: {_FETCH}")
    bases = [commit] if exact else run(["merge-base", "HEAD", commit], top, accepted=(0, 1)).splitlines()
    if not bases:
        remedy = f"name a revision of this branch's history; of a shallow clone, {_FETCH}"
        raise AgainstError(f"{revision} and HEAD have no commit in common in {top}: {remedy}")
    differs = bases[0] != head
    if exact and differs:
        differs = bool(run([*_OTHER_FILES, bases[0], "HEAD", "--", _NO_RECORDS], top))
    return Revisions(
        top=top,
        requested=revision,
        base=bases[0],
        identical=not differs and not run(["status", "--porcelain"], top).strip(),
    )


def recorded_on(provenance: Provenance, folder: Path, environ: Mapping[str, str] = os.environ) -> Revisions:
    """Finds the commit that was recorded, or else the merge base with the branch that this change goes to.

    Code that was recorded with uncommitted changes lies in no commit.

    Raises:
        AgainstError: git has neither, or the merge base is the working tree.
    """
    problem = AgainstError("the record names no commit that holds its code")
    if provenance.commit and not provenance.dirty:
        try:
            return resolve(provenance.commit, folder, exact=True)
        except AgainstError as error:
            problem = error
    with contextlib.suppress(AgainstError):
        found = resolve(f"origin/{environ.get('GITHUB_BASE_REF') or 'HEAD'}", folder)
        # What is not committed may be a run's own output, and beside itself any code is the same.
        if run([*_OTHER_FILES, found.base, "HEAD"], found.top):
            return found
    raise problem


def run(arguments: list[str], folder: Path, *, accepted: tuple[int, ...] = (0,)) -> str:
    """Runs git, and returns what it prints.

    Raises:
        AgainstError: there is no git, or it ended with another status.
    """
    if shutil.which("git") is None:
        raise AgainstError("there is no git here: install it, or put it on PATH")
    done = git(arguments, folder)
    if done.returncode not in accepted:
        said = last_lines(done.stderr or done.stdout)
        raise AgainstError(f"git {arguments[0]} in {folder} ended with status {done.returncode}: {said}")
    return done.stdout


def _commit(revision: str, top: Path) -> str | None:
    """Returns the commit that a revision means, or None; what begins with a dash would be an option."""
    if not revision.strip() or revision.startswith("-") or not revision.isprintable():
        return None
    arguments = ["rev-parse", "--verify", "--quiet", f"{revision}^{{commit}}"]
    commit = run(arguments, top, accepted=(0, 1, 128)).strip()
    return commit if COMMIT.fullmatch(commit) else None


_FETCH = (
    "fetch it with its history: in GitHub Actions give actions/checkout `fetch-depth: 0`, elsewhere run "
    "`git fetch origin BRANCH:refs/remotes/origin/BRANCH`, with `--unshallow` in a shallow clone"
)
_OTHER_FILES = ("diff", "--name-only")
_NO_RECORDS = ":(exclude,glob)**/baselines/*.json"

WORKTREE_VARIABLE = "GPUKERN_WORKTREE"
"""In the environment of the set-up command: the worktree's folder."""


@contextlib.contextmanager
def worktree(revisions: Revisions) -> Iterator[Path]:
    """Checks the base out in a temporary folder, detached; first removes what killed runs left over.

    Its top folder is named like the working tree's: with `__init__.py` that is a package's name.

    Raises:
        AgainstError: git refuses; nothing is left behind.
    """
    folder = TemporaryFolder(f"against-{revisions.short}")
    path = Path(folder.name).resolve() / revisions.top.name
    try:
        with folder:
            forget_left_over(revisions.top)
            run(["worktree", "add", "--detach", str(path), revisions.base], revisions.top)
            yield path
    finally:
        forget_left_over(revisions.top)


def set_up(worktree: Path, command: str) -> None:
    """Runs a shell command of the user's in a worktree; AgainstError holds the last lines of its output."""
    done = subprocess.run(
        command,
        shell=True,
        cwd=worktree,
        env={name: of for name, of in os.environ.items() if name not in OF_A_REPOSITORY}
        | {WORKTREE_VARIABLE: str(worktree)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        check=False,
    )
    if done.returncode != 0:
        lines = [line for line in map(str.rstrip, done.stdout.splitlines()) if line]
        said = "\n".join(lines[-_LAST_LINES:]) or "it said nothing"
        raise AgainstError(
            f"--gpukern-against-setup={command}: ended with status {done.returncode} in the base's "
            f"worktree:\n{said}"
        )


def forget_left_over(top: Path) -> None:
    """Removes git's entries of our worktrees whose folder is gone, as those of killed runs."""
    with contextlib.suppress(AgainstError):  # the user's own commands will meet it
        for line in run(["worktree", "list", "--porcelain"], top).splitlines():
            path = Path(line.removeprefix("worktree "))
            if path.parent.name.startswith("gpukern-against-") and not path.parent.exists():
                run(["worktree", "remove", "--force", str(path)], top)
