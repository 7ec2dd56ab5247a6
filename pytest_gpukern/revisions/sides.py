"""The two sides of a comparison, and their child sessions in turn: A-B-B-A."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_gpukern.processes.child_sessions import ChildRequest, could_not_collect
from pytest_gpukern.report.progress import telling_now_and_then
from pytest_gpukern.revisions.git import short
from pytest_gpukern.revisions.judging import CaseRuns, Told
from pytest_gpukern.revisions.provenance import Loaded, Tree, combined_hash, misplaced

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from pytest_gpukern.processes.child_messages import ChildRun
    from pytest_gpukern.processes.child_sessions import ChildSessions
    from pytest_gpukern.revisions.git import Revisions
    from pytest_gpukern.revisions.worktree import Worktree

_SHOWN = 200


class AgainstError(Exception):
    """The two sides cannot be compared; the message says why and what to do."""


@dataclass(frozen=True)
class Sides:
    """The base in its worktree, and the working tree.

    Attributes:
        base: where the base's code lies.
        head: where that of the working tree lies.
        moved: folders of the working tree → where the base's sessions find them; environments with installed
            packages stay where they are.
    """

    base: Tree
    head: Tree
    moved: Mapping[str, str]

    @classmethod
    def of(cls, revisions: Revisions, worktree: Worktree, path: Sequence[str] = ()) -> Sides:
        """Both trees; `path` are entries of `sys.path`, those of this process where none are given."""
        head = Tree.at("the working tree", revisions.top)
        base = Tree.at(f"the base ({short(revisions.base)})", worktree.path)
        moved = {str(head.top): str(base.top)}
        for entry in filter(None, dict.fromkeys([sys.prefix, sys.base_prefix, *(path or sys.path)])):
            folder, lies = Path(entry), Path(entry).resolve()
            if folder.is_relative_to(head.top) and not head.holds(folder / "module.py"):
                moved[str(base.top / folder.relative_to(head.top))] = str(folder)
            elif not folder.is_relative_to(head.top) and head.holds(lies / "module.py"):  # by way of a link
                moved[entry] = str(base.top / lies.relative_to(head.top))
        return cls(base, head, moved)

    @property
    def names(self) -> tuple[str, ...]:
        """What either tree provides, by its top-level name."""
        return tuple(dict.fromkeys([*self.base.names, *self.head.names]))


class Turns:
    """Child sessions of both sides in turn, and what they told.

    Args:
        sides: the two.
        children: starts sessions.
        tell: is told what happens, a line each.
        environ: environment variables of the sessions.
    """

    def __init__(
        self,
        sides: Sides,
        children: ChildSessions,
        tell: Callable[[str], None],
        environ: Mapping[str, str] | None = None,
    ) -> None:
        self._sides = sides
        self._environ = environ or {}
        self._children = children
        self._tell = tell
        self.base: list[ChildRun] = []
        self.head: list[ChildRun] = []

    def take(self, nodeids: Sequence[str], pairs: int, why: str = "") -> None:
        """Runs so many sessions a side: base, head, head, base, and so on.

        Raises:
            AgainstError: a session did not come to its end, or did not run its side's code.
        """
        for number, on_base in enumerate(turns(pairs), 1):
            side = self._sides.base if on_base else self._sides.head
            line = f"session {number} of {2 * pairs}{why}: {side.label}"
            self._tell(line)
            runs = self.base if on_base else self.head
            runs.append(self._run(nodeids, line, on_base=on_base))
            if on_base and not runs[-1].outcomes:
                some = ", ".join(nodeids)[:_SHOWN]
                raise AgainstError(f"{side.label} has none of the tests, so nothing is compared: {some}")
            if combined_hash((Loaded(*each) for each in runs[-1].modules), side)[0] == 0:
                raise AgainstError(f"{side.label} loaded no module from {side.top}: that is not what was run")

    def take_head(self, nodeids: Sequence[str], why: str) -> None:
        """Runs one session of the working tree alone.

        Raises:
            AgainstError: as for `take`.
        """
        line = f"{why}: {self._sides.head.label}"
        self._tell(line)
        self.head.append(self._run(nodeids, line, on_base=False))

    def cases(self, nodeids: Sequence[str]) -> dict[str, CaseRuns]:
        """What all sessions told of each test."""
        return {nodeid: CaseRuns(_told(self.base, nodeid), _told(self.head, nodeid)) for nodeid in nodeids}

    def code(self) -> list[str]:
        """How many modules of its own each side loaded, and one hash over them, in words."""
        lines, digests = [], set()
        for side, runs in ((self._sides.base, self.base), (self._sides.head, self.head)):
            count, digest = combined_hash((Loaded(*each) for each in runs[-1].modules), side)
            lines.append(f"{side.label} loaded {count} modules of its own, hash {digest}")
            digests.add(digest)
        return [*lines, *(["the modules of both are the same"] if len(digests) == 1 else [])]

    @property
    def removed(self) -> list[str]:
        """Tests that the base has besides those that were asked for."""
        return list(self.base[0].others) if self.base else []

    def _run(self, nodeids: Sequence[str], line: str, *, on_base: bool) -> ChildRun:
        sides = self._sides
        side, other = (sides.base, sides.head) if on_base else (sides.head, sides.base)
        # Of a run that names single tests, the others in their files were not removed.
        names_tests = any("::" in each for each in self._children.positional)
        request = ChildRequest(
            nodeids=tuple(nodeids),
            moved=sides.moved if on_base else {},
            environ=self._environ,
            watched_roots=(str(sides.base.top), str(sides.head.top)),
            watched_names=sides.names,
            collects_all=on_base and not self.base and not names_tests,
        )
        run = self._children.run(request, telling_now_and_then(self._tell, line))
        problem = run.problem if run.ended_early and (on_base or not run.outcomes) else None
        if on_base and run.uncollected:  # else its tests would pass for new ones
            problem = could_not_collect(run.uncollected)
        if problem is not None:
            raise AgainstError(f"a session of {side.label} failed: {problem}{_hint(on_base=on_base)}")
        wrong = misplaced((Loaded(*each) for each in run.modules), side, other)
        if wrong is not None:
            raise AgainstError(wrong)
        return run


def turns(pairs: int) -> Iterator[bool]:
    """Whether each session in turn is the base's: yes, no, no, yes, … so that a trend falls out."""
    for number in range(pairs):
        yield from (True, False) if number % 2 == 0 else (False, True)


def _told(runs: Sequence[ChildRun], nodeid: str) -> tuple[Told | None, ...]:
    """What each session told of a test; one that broke off before its turn tells that it failed."""
    found: list[Told | None] = []
    for run in runs:
        if nodeid in run.outcomes:
            outcome, text = run.outcomes[nodeid]
            found.append(Told(outcome, text.removeprefix("Failed: "), run.results.get(nodeid)))
        elif not run.ended_early:
            found.append(None)
        else:
            found.append(Told("failed", f"its session broke off: {run.problem}", None))
    return tuple(found)


def _hint(*, on_base: bool) -> str:
    if not on_base:
        return ""
    return "\nWhere the base has to be built first: --gpukern-against-setup=CMD"
