"""Runs child sessions of the two sides of a comparison in turn, A-B-B-A, each on its own code.

If the base loaded the working tree's modules, we would compare the tree with itself: SAME, whatever changed.
So every session says where its modules came from: its own tree, the other one, or a copy installed elsewhere.
"""

from __future__ import annotations

import inspect
import sys
import tomllib
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from pytest_gpukern.gate.change import FRESH_PAIRS, MOST_FRESH_PAIRS
from pytest_gpukern.processes.messages import ChildRequest, LoadedModule
from pytest_gpukern.processes.sessions import ChildRun, ChildSessions, Waiting
from pytest_gpukern.report.progress import telling_now_and_then
from pytest_gpukern.revisions import judging
from pytest_gpukern.revisions.git import AgainstError, Revisions
from pytest_gpukern.revisions.judging import Both, Conclusion
from pytest_gpukern.values.result import Correctness, SessionRole


@dataclass(frozen=True)
class Trees:
    """Holds the base in its worktree, and the working tree.

    `moved` maps folders of the working tree to those that the base's sessions use instead; environments with
    installed packages stay where they are.
    """

    base: Tree
    head: Tree
    moved: Mapping[str, str]

    @classmethod
    def of(cls, revisions: Revisions, worktree: Path) -> Trees:
        """Returns both trees, as this process finds its modules."""
        head = Tree("the working tree", revisions.top)
        base = Tree(f"the base ({revisions.short})", worktree)
        moved = {str(head.top): str(base.top)}
        for entry in filter(None, dict.fromkeys([sys.prefix, sys.base_prefix, *sys.path])):
            folder, lies = Path(entry), Path(entry).resolve()
            if folder.is_relative_to(head.top) and not head.holds(folder / "module.py"):
                moved[str(base.top / folder.relative_to(head.top))] = str(folder)
            elif not folder.is_relative_to(head.top) and head.holds(lies / "module.py"):  # by way of a link
                moved[entry] = str(base.top / lies.relative_to(head.top))
        return cls(base, head, moved)


BOTH = (True, False)
"""The sessions that may follow: of the base, then of the working tree."""


@dataclass
class Turns:
    """Runs child sessions of both sides in turn, and keeps their runs.

    Attributes:
        thresholds: test → smallest change that counts.
        hosts: whether times of host variants can fail a test.
        finds_removed: whether to list the tests that the base has and nobody wants.
        base: runs of the base's sessions, in order; `head` has those of the working tree's.
        same: test → the times whose work is the same on both sides, where that was asked or measured.
        asked: the tests of which all that is to be measured is the same: no more sessions run them.
        base_again: a second session of the base, of those of them that compare with other values there.
    """

    sides: Trees
    children: ChildSessions
    environ: Mapping[str, str | None]
    waiting: Waiting
    thresholds: dict[str, float] = field(default_factory=dict)
    hosts: bool = False
    finds_removed: bool = True
    base: list[ChildRun] = field(default_factory=list)
    head: list[ChildRun] = field(default_factory=list)
    same: dict[str, frozenset[str]] = field(default_factory=lambda: defaultdict(frozenset))
    asked: frozenset[str] = frozenset()
    base_again: ChildRun | None = None

    def conclusions(
        self, pairs: int, *, asks: bool, is_stored: bool, by_work: bool = True
    ) -> dict[str, Conclusion]:
        """Measures the tests in `pairs` sessions of each side, judges them and confirms what looks slower.

        What these leave open and may be slower has two pairs more, and is judged by all of them.
        With `asks`, what does the same on both sides is only asked. With `by_work`, a time that is open is
        SAME CODE if its work is the same. If the run is stored, a session of what is slower is added, so that
        an epoch accepted from its file gates. It raises as `take` does.
        """
        left = self.ask([*self.thresholds]) if asks else [*self.thresholds]
        if left:
            self.take(left, pairs, then=BOTH)
        cases = self.cases(self.thresholds)
        spreads = judging.shared_spreads(cases.values())
        for name in left if by_work else ():
            self.same[name] |= judging.same_times(cases[name], self.thresholds[name])[0]
        rules = {
            name: judging.Rule(threshold, spreads, self.hosts, self.same[name], name in self.asked)
            for name, threshold in self.thresholds.items()
        }
        conclusions = {nodeid: judging.conclude(case, rules[nodeid]) for nodeid, case in cases.items()}
        if left_open := [name for name, of in conclusions.items() if of.may_be_slower]:
            self.take(left_open, FRESH_PAIRS, f" for {len(left_open)} that may be slower", then=BOTH)
            both = self.cases(left_open).items()
            conclusions |= {name: judging.conclude(case, rules[name]) for name, case in both}
        first, most, still = len(self.base), max(MOST_FRESH_PAIRS, pairs), "still " * bool(left_open)
        while again := [name for name, of in conclusions.items() if of.suspected]:
            last = len(self.base) - first + FRESH_PAIRS >= most
            why = f" for {len(again)} that {still}may be slower"
            self.take(again, FRESH_PAIRS, why, then=(False,) if last else BOTH)
            for name, case in self.cases(again, since=first).items():
                conclusions[name] = judging.confirm(conclusions[name], case, rules[name], last=last)
            still = "still "
        slower = [nodeid for nodeid, conclusion in conclusions.items() if conclusion.confirmed]
        if slower and is_stored:
            before, what = len(self.head), f"one more session for {len(slower)} confirmed to be slower"
            try:
                self.take_one(slower, what, on_base=False)
            except AgainstError as error:  # everything is decided: the file has one session fewer
                self.waiting.tell(str(error))
            for nodeid, (_, head) in self.cases(slower, since=before).items():
                more = judging.valid_sessions(head, SessionRole.FURTHER)
                sessions = (*conclusions[nodeid].sessions, *more)
                conclusions[nodeid] = conclusions[nodeid]._replace(sessions=sessions)
        return conclusions

    def ask(self, nodeids: Sequence[str]) -> list[str]:
        """Asks a session of each side what the tests do; returns those that have to be measured.

        Times of so few samples do not count for them. What the sessions checked does: they check in full. If
        both compare with different values, a second session of the base tells whether it draws them anew.
        """
        for on_base, coming in ((True, (False, True, False)), (False, (True, False))):
            self.take_one(nodeids, "asking what tests do", on_base=on_base, coming=coming, asks=True)
        for nodeid, case in self.cases(nodeids).items():
            self.same[nodeid], is_all = judging.same_times(case, self.thresholds[nodeid])
            self.asked |= {nodeid} if is_all else set()
        left = [nodeid for nodeid in nodeids if nodeid not in self.asked]
        if others := [name for name, case in self.cases(self.asked).items() if judging.values_differ(case)]:
            self.base_again = self.ask_base(others)
        for run in (self.base[0], self.head[0]):
            for name in run.endings.keys() & {*left}:
                run.endings[name] = judging.without_times(run.endings[name])
        return left

    def ask_base(self, nodeids: Sequence[str]) -> ChildRun:
        """Asks a session of the base alone, which is no part of a pair; raises as `take` does.

        Its tests passed when they were recorded, so they are not checked in full again.
        """
        self.take_one(nodeids, "asking what tests do", on_base=True, asks=True, checked=frozenset(nodeids))
        return self.base.pop()

    def take(self, nodeids: Sequence[str], pairs: int, why: str = "", then: Sequence[bool] = ()) -> None:
        """Runs `pairs` sessions of each side: base, head, head, base, and so on, so that a trend cancels.

        `then` says whether each of the sessions that may follow is the base's.

        Raises:
            AgainstError: a session did not come to its end, or did not run its side's code.
        """
        order = [number % 4 in (0, 3) for number in range(2 * pairs)]
        for number, on_base in enumerate(order, 1):
            what = f"session {number} of {2 * pairs}{why}"
            self.take_one(nodeids, what, on_base=on_base, coming=[*order[number:], *then])

    def take_one(
        self,
        nodeids: Sequence[str],
        what: str,
        *,
        on_base: bool,
        coming: Sequence[bool] = (),
        asks: bool = False,
        checked: frozenset[str] = frozenset(),
    ) -> None:
        """Runs one session, before those that are `coming`, or raises as `take` does."""
        both = (self.sides.base, self.sides.head)
        (side, other), runs = (both, self.base) if on_base else (both[::-1], self.head)
        line = f"{what}: {side.label}"
        self.waiting.tell(line)
        if on_base and runs:  # what it lacks, or what failed, is not compared
            first = runs[0].endings
            nodeids = [nodeid for nodeid in nodeids if nodeid in first and first[nodeid].outcome != "failed"]
        # If the run names single tests, the others in their files were not removed.
        names_tests = any("::" in argument for argument in self.children.positional)
        request = ChildRequest(
            nodeids=tuple(nodeids),
            moved=self.sides.moved if on_base else {},
            environ=self.environ,
            watched_roots=tuple(str(tree.top) for tree in both),
            watched_names=tuple({*side.names, *other.names}),
            collects_all=on_base and not runs and self.finds_removed and not names_tests,
            checked=checked or _checked(runs),
            datasets=str(self.waiting.folder / ("base" if on_base else "head")),
            asks=asks,
        )
        started = self.waiting.take(on_base, coming)
        run = self.children.run(request, telling_now_and_then(self.waiting.tell, line), started)
        if run.ended_early and (on_base or not (run.endings or run.during)):
            build = "\nIf the base has to be built first, give --gpukern-against-setup=CMD"
            hint = build if on_base else ""
            raise AgainstError(f"a session of {side.label} failed: {run.problem}{hint}")
        wrong = misplaced(run.modules, side, other) or _changed(runs, run)
        loads_own = any(side.holds(Path(module.file)) for module in run.modules)
        if any(map(run.result_of, run.endings)) and not loads_own:
            wrong = wrong or f"{side.label} loaded no module from {side.top}: other code was run"
        if wrong is not None:
            raise AgainstError(wrong)
        runs.append(run)

    def cases(self, nodeids: Iterable[str], since: int = 0) -> dict[str, Both]:
        """Returns how each test ended in all sessions, but for the first ones of each side."""
        cases = dict[str, Both]()
        for nodeid in nodeids:
            those = slice(since, 1 if nodeid in self.asked else None)
            base, head = ([run.ending(nodeid) for run in runs[those]] for runs in (self.base, self.head))
            cases[nodeid] = base, head
        return cases


def _checked(runs: Iterable[ChildRun]) -> frozenset[str]:
    return frozenset(
        nodeid
        for run in runs
        for nodeid, end in run.endings.items()
        if end.outcome == "passed" and end.result and end.result.correctness is Correctness.PASSED
    )


def _changed(earlier: Iterable[ChildRun], run: ChildRun) -> str | None:
    """Says which file is another than an earlier session of that side loaded, or returns None."""
    files = {module.file: module.sha256 for ran in earlier for module in ran.modules}
    for module in run.modules:
        if files.get(module.file, module.sha256) != module.sha256:
            return f"{module.file} changed while it was measured; run it again"
    return None


_OF_INSTALLERS = ("site-packages", "dist-packages")
_MARKS_AN_ENVIRONMENT = ("pyvenv.cfg", "conda-meta")
_NOT_JUDGED = ("pytest_gpukern", "__main__", "__mp_main__")
"""This plugin's own code measures both sides."""
_NOT_OF_PROJECTS = {*sys.stdlib_module_names, *_NOT_JUDGED, "test", "conftest", "setup", "noxfile"}
"""Top-level names that say nothing about a project: the standard library's, and those of tools."""


@dataclass(frozen=True)
class Tree:
    """Holds one side by its top folder."""

    label: str
    top: Path

    @cached_property
    def names(self) -> Mapping[str, Path]:
        """Returns the import names that it provides, and where: in its top, in `src` and as declared.

        pyproject.toml declares folders of packages for setuptools, Hatch and maturin, and pytest's
        `pythonpath`. Namespace packages are known only if they are declared by name.
        """
        declared: dict[str, Any] = {}
        with suppress(OSError, tomllib.TOMLDecodeError):
            declared = tomllib.loads((self.top / "pyproject.toml").read_text(encoding="utf-8"))
        names: dict[str, Path] = {}
        below = (where for place in _DECLARE_FOLDERS for where in _texts(declared, place))
        for folder in (self.top, self.top / "src", *(self.top / where for where in below)):
            for path in sorted(folder.iterdir()) if folder.is_dir() else ():
                is_package = (path / "__init__.py").is_file()
                name = path.name if is_package else inspect.getmodulename(path)
                if name is not None and name.isidentifier() and (is_package or path.is_file()):
                    names.setdefault(name, path)
        for package in _texts(declared, "hatch/build/targets/wheel/packages"):
            if (path := self.top / package).is_dir():
                names.setdefault(path.name, path)
        return {name: path for name, path in names.items() if name not in _NOT_OF_PROJECTS}

    def holds(self, file: Path) -> bool:
        """Returns whether a file is code of this tree, and not of an environment that lies in it."""
        if not file.is_relative_to(self.top):
            return False
        inside = file.relative_to(self.top)
        if any(part in _OF_INSTALLERS for part in inside.parts):
            return False
        folders = [self.top / folder for folder in inside.parents if folder.name]
        return not any((folder / mark).exists() for folder in folders for mark in _MARKS_AN_ENVIRONMENT)


def misplaced(modules: Iterable[LoadedModule], side: Tree, other: Tree) -> str | None:
    """Says which modules of a side's session are not its own, with the remedy, or returns None."""
    complaints: dict[str, str] = {}
    for module in modules:
        package = module.name.partition(".")[0]
        if package in _NOT_JUDGED:
            continue
        named, file = Path(module.file), Path(module.file).resolve()
        home = _tree_of(file, side, other)
        if home is other:
            text = f"{module.name} was loaded from {named}, which is {other.label}"
        elif package in side.names and home is not side and not side.holds(named):
            text = f"{module.name} was loaded from {named}, not from {side.names[package]}"
        else:
            continue
        complaints.setdefault(package, f"  {text}")
    if not complaints:
        return None
    return "\n".join([f"{side.label} did not run its own code:", *complaints.values(), _remedy(complaints)])


def _tree_of(file: Path, *trees: Tree) -> Tree | None:
    """Returns the tree that a file is code of; if one tree lies inside the other, the inner one."""
    round_it = [tree for tree in trees if file.is_relative_to(tree.top)]
    nearest = max(round_it, key=lambda tree: len(tree.top.parts), default=None)
    return nearest if nearest is not None and nearest.holds(file) else None


def _remedy(packages: Iterable[str]) -> str:
    return (
        'Let each side find its code by path: set `pythonpath = ["src"]` in pytest\'s ini, or PYTHONPATH=src '
        "for code in that folder (we map paths in the working tree to the other side). Then run "
        f"`pip uninstall {' '.join(packages)}` if an editable install or a copy is there. If the code has to "
        "be built, give --gpukern-against-setup='pip install --no-deps --target=build/against .', run the "
        "same pip command in the working tree, and set PYTHONPATH=build/against"
    )


_DECLARE_FOLDERS = (
    "setuptools/package-dir/",
    "setuptools/packages/find/where",
    "maturin/python-source",
    "pytest/ini_options/pythonpath",
)
"""Where pyproject.toml names folders on the import path, below `[tool]`."""


def _texts(declared: Mapping[str, Any], place: str) -> list[str]:
    """Returns the texts at a place below `[tool]`: one alone, or those of a list."""
    value: Any = declared.get("tool")
    for key in place.split("/"):
        value = value.get(key) if isinstance(value, dict) else None
    return [text for text in (value if isinstance(value, list) else [value]) if isinstance(text, str)]
