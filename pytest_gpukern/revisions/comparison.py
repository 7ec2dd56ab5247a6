"""Measures both sides of `--gpukern-against` before the test loop, and has tests report the outcome.

The main process collects and reports. Tests that measure run in child sessions of both sides instead. Then
each test fails, passes or skips as it did there, and by the verdict on its paired times.
"""

from __future__ import annotations

import dataclasses
import os
import sys
from collections.abc import Generator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest

from pytest_gpukern.gate.change import FRESH_PAIRS, MOST_FRESH_PAIRS
from pytest_gpukern.gpu.lock import HostTurns
from pytest_gpukern.processes.process import Process
from pytest_gpukern.revisions import judging
from pytest_gpukern.revisions.git import GitError, Revisions, Worktree, resolve, short
from pytest_gpukern.revisions.sides import AgainstError, Ahead, Sides, Turns
from pytest_gpukern.session.controller import Controller
from pytest_gpukern.session.item import end_as, marker_of, measures_in, new_test, replay
from pytest_gpukern.session.stash import (
    BEGAN_WITH,
    children_of,
    environment_of,
    refuse_distribution,
    runs_tests,
    settings_of,
    tell,
)
from pytest_gpukern.values.atomic_file import TemporaryFolder
from pytest_gpukern.values.options import RUN_FOLDER_VARIABLE
from pytest_gpukern.values.phases import phase
from pytest_gpukern.values.result import Result, SessionRole


class Against:
    """Compares revisions in a run with `--gpukern-against`; a pytest plugin of the process that reports.

    Args:
        config: of the run.
        controller: collects what is reported.

    Raises:
        pytest.UsageError: git cannot tell the base, or tests are distributed.
    """

    def __init__(self, config: pytest.Config, controller: Controller) -> None:
        self._config = config
        self._controller = controller
        self._collected: set[str] = set()
        revision = settings_of(config).against
        assert revision is not None
        self._ahead: Ahead | None = None
        self._held = ExitStack()
        config.add_cleanup(self._held.close)
        refuse_distribution(config, f"--gpukern-against={revision}", "the sessions of both sides")
        try:
            self._revisions = resolve(revision, config.rootpath)
        except GitError as error:
            raise pytest.UsageError(f"--gpukern-against={revision}: {error}") from error

    @pytest.hookimpl(trylast=True)
    def pytest_sessionstart(self, session: pytest.Session) -> None:
        """Starts the first sessions, so that they import what this process imports while it collects."""
        settings = settings_of(self._config)
        in_vain = not runs_tests(session) or settings.against_setup is not None
        if in_vain or not environment_of(self._config).gpu.measures:
            return
        try:
            self._begin()
        except GitError:
            return  # said when the tests are to run
        if self._ahead is not None:
            self._ahead.prepare([True, False])

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> Generator[None]:
        """Notes all tests before any is deselected: tests that only the base has were removed."""
        self._collected = {item.nodeid for item in items}
        return (yield)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> Generator[None, object, object]:
        """Measures both sides before the first test runs."""
        if runs_tests(session):
            items = {item.nodeid: item for item in session.items if measures_in(item)}
            try:
                with phase("paired sessions"):
                    self._compare(items)
            except (AgainstError, GitError) as error:
                revision = self._revisions.asked
                raise pytest.UsageError(f"--gpukern-against={revision}: {error}") from error
        return (yield)

    def _compare(self, items: Mapping[str, pytest.Item]) -> None:
        """Measures both sides and has each of the tests report its outcome."""
        settings = settings_of(self._config)
        if not items:
            raise AgainstError("no selected test measures anything")
        gpu = environment_of(self._config).gpu
        if "no-gpu" in settings.fail_on and not gpu.has_gpu:
            raise AgainstError(f"--gpukern-fail-on=no-gpu cannot be met: {gpu.why_no_gpu}")
        if self._ahead is None:
            self._begin()
        try:
            if settings.against_setup is not None:
                tell(self._config, f"setting up the base: {settings.against_setup}")
                self._worktree.set_up(settings.against_setup)
            self._measure(items)
        finally:
            self._held.close()

    def _begin(self) -> None:
        """Makes the base's worktree and the run's folder, which go with `self._held`, as sessions do."""
        self._worktree = Worktree.make(self._revisions)
        self._held.callback(self._worktree.remove)
        top = self._revisions.top
        for needed in (self._config.invocation_params.dir, self._config.rootpath):
            if needed.is_relative_to(top):  # it may be new in the working tree, and so all its tests
                (self._worktree.path / needed.relative_to(top)).mkdir(parents=True, exist_ok=True)
        folder = TemporaryFolder("run")
        self._folder = Path(self._held.enter_context(folder))
        self._host = HostTurns(self._folder)
        most = most_ahead() if environment_of(self._config).gpu.measures else 0
        self._ahead = Ahead(self._start, most, self._say)
        self._held.callback(self._ahead.close)

    def _start(self, on_base: bool) -> Process:
        """Starts a session that waits for its turn."""
        moved = Sides.of(self._revisions, self._worktree).moved if on_base else {}
        return children_of(self._config).start(self._environ, moved=moved, turns=self._host)

    @property
    def _environ(self) -> dict[str, str | None]:
        """Returns the variables of sessions that differ from those here.

        The working tree's conftests and test files may have set some here. The base must not have them, and
        the sessions of the working tree set them by themselves.
        """
        gpu = environment_of(self._config).gpu
        began = self._config.stash.get(BEGAN_WITH, dict(os.environ))  # a conftest may have loaded this plugin
        changed = {
            name: began.get(name)
            for name in {*began, *os.environ}
            if os.environ.get(name) != began.get(name) and not name.startswith("GPUKERN_")
        }
        return {**changed, **gpu.for_children, RUN_FOLDER_VARIABLE: str(self._folder)}

    def _say(self, line: str) -> None:
        tell(self._config, line)

    def _measure(self, items: Mapping[str, pytest.Item]) -> None:
        """Runs the sessions of both sides, and those that a suspicion needs, and judges by them."""
        children = environment_of(self._config).children
        # Else an ini file that only one side has would change the node ids of that side.
        root = f"--rootdir={self._config.rootpath}"
        options = (*children.options, root, "--continue-on-collection-errors")
        children = dataclasses.replace(children, options=options)
        sides = Sides.of(self._revisions, self._worktree)
        assert self._ahead is not None
        turns = Turns(sides, children, self._say, self._environ, self._ahead, self._folder)
        settings = settings_of(self._config)
        base_and_head = (True, False)
        thresholds = {
            nodeid: marker_of(item).threshold or settings.threshold for nodeid, item in items.items()
        }

        def does_the_same(nodeid: str, case: judging.CaseRuns) -> bool:
            return judging.does_the_same(case, thresholds[nodeid])

        turns.take(
            list(items),
            settings.sessions,
            then=base_and_head,
            does_the_same=None if self._revisions.identical else does_the_same,
        )
        cases = turns.cases(list(items))
        hosts = "host" in settings.fail_on
        conclusions = judging.conclusions(cases, thresholds, hosts=hosts)
        suspects = [nodeid for nodeid, conclusion in conclusions.items() if conclusion.suspected]
        if suspects:
            fresh, spreads = turns.again(), judging.shared_spreads(cases.values())
            most = max(MOST_FRESH_PAIRS, settings.sessions)
            while suspects:
                still = "still " if fresh.base else ""
                last = len(fresh.base) + FRESH_PAIRS >= most
                fresh.take(
                    suspects,
                    FRESH_PAIRS,
                    f" for {len(suspects)} {still}suspected to be slower",
                    then=(False,) if last else base_and_head,
                )
                for nodeid, again in fresh.cases(suspects).items():
                    conclusions[nodeid] = judging.confirm(
                        *(conclusions[nodeid], cases[nodeid], again, thresholds[nodeid], spreads),
                        hosts=hosts,
                        last=last,
                    )
                suspects = [nodeid for nodeid in suspects if conclusions[nodeid].suspected]
        slower = [nodeid for nodeid, conclusion in conclusions.items() if conclusion.confirmed]
        more: Mapping[str, judging.CaseRuns] = {}
        if slower and settings.run_file is not None:
            more = self._once_more(turns.again(), slower)
        for nodeid, item in items.items():
            sessions = more[nodeid].sessions(SessionRole.FURTHER) if nodeid in more else ()
            self._replay(item, conclusions[nodeid], sessions)
            if nodeid in turns.head[0].listed:
                self._controller.listed[nodeid] = turns.head[0].listed[nodeid]
        self._report(turns, cases)

    def _once_more(self, turns: Turns, slower: list[str]) -> Mapping[str, judging.CaseRuns]:
        """Runs one more session of the working tree, so that an epoch accepted from the run file gates."""
        try:
            turns.take_head(slower, f"one more session for {len(slower)} confirmed to be slower")
        except AgainstError as error:  # everything is decided: the file has one session fewer
            tell(self._config, str(error))
        return turns.cases(slower)

    def _report(self, turns: Turns, cases: Mapping[str, judging.CaseRuns]) -> None:
        """Has the controller say what was compared, and what the tests do not show."""
        self._controller.compared_with = f"against {short(self._revisions.base)}"
        self._controller.heading = heading(self._revisions, 2 * len(turns.base), turns.code())
        removed = [nodeid for nodeid in turns.removed if nodeid not in self._collected]
        self._controller.closing = closing(
            {nodeid: case.same_code for nodeid, case in cases.items()},
            same_work=sum(case.same_work for case in cases.values()),
            new=[nodeid for nodeid, case in cases.items() if not any(case.base)],
            removed=removed,
            failed_on_base={
                nodeid: judging.first_line(text)
                for nodeid, case in cases.items()
                if (text := judging.failure_on_base(case)) is not None
            },
            uncollected=any(map(turns.base[0].why_uncollected, cases)),
        )

    def _replay(self, item: pytest.Item, conclusion: judging.Conclusion, more: tuple[Result, ...]) -> None:
        """Has a test report what its sessions found, instead of running."""
        about = f"against {self._revisions}"  # so that a stored verdict says what it is about
        verdicts = {
            key: dataclasses.replace(verdict, reason=f"{verdict.reason}; {about}")
            for key, verdict in conclusion.verdicts.items()
        }

        def say() -> None:
            test = new_test(item)
            test.verified = True  # else the child session has said that the test never called us
            if conclusion.result is not None:
                test.result = dataclasses.replace(conclusion.result, verdicts=verdicts, inputs=None)
                test.sessions = (*conclusion.sessions, *more)
            end_as(conclusion.outcome, conclusion.text)

        replay(item, say)


_MOST_AHEAD = 2
"""Sessions that wait for their turn at a time: their imports take longer than a turn with few cases."""
_NAMED = 3


def most_ahead() -> int:
    """Returns how many sessions may wait at a time; each needs a processor beside the measuring one."""
    return min(_MOST_AHEAD, len(os.sched_getaffinity(0)) - 1) if sys.platform == "linux" else 0


def heading(revisions: Revisions, sessions: int, code: Sequence[str]) -> list[str]:
    """Returns the lines above the tables; `code` tells the modules of each side, and whether they differ."""
    lines = [f"working tree against {revisions}, {sessions} sessions A-B-B-A"]
    if revisions.identical:
        lines.append("  the working tree is that commit, unchanged: any difference is noise (A/A)")
    lines += [f"  {line}" for line in code]
    lines += [f"  {note}" for note in revisions.notes]
    return [*lines, "  times below are the working tree's; stored baselines are not used", ""]


def closing(
    same_code: Mapping[str, bool | None],
    *,
    same_work: int,
    new: Sequence[str],
    removed: Sequence[str],
    failed_on_base: Mapping[str, str],
    uncollected: bool = False,
) -> list[str]:
    """Returns the lines below the tables.

    Args:
        same_code: test → whether its kernels' machine code is the same on both sides, where that is known.
        same_work: how many tests were not measured again, since both sides do the same.
        new: tests that the base does not have.
        removed: tests that only the base has.
        failed_on_base: test → why.
        uncollected: whether some of these could not be collected there.
    """
    known = {nodeid: same for nodeid, same in same_code.items() if same is not None}
    changed = [nodeid for nodeid, same in known.items() if not same]
    lines = []
    if known:
        some = f" ({_some(changed)})" if changed else ""
        unknown = f", unknown in {len(same_code) - len(known)}" if len(known) < len(same_code) else ""
        equal = len(known) - len(changed)
        same = f"machine code: same in {equal} case{'' if equal == 1 else 's'}"
        lines.append(f"{same}, changed in {len(changed)}{some}{unknown}")
    if same_work:
        lines.append(
            f"{same_work} measured in one pair of sessions: the same machine code, launches, inputs and "
            "libraries on both sides, and times that agree"
        )
    for why in dict.fromkeys(failed_on_base.values()):
        failed = [nodeid for nodeid, reason in failed_on_base.items() if reason == why]
        lines.append(f"{len(failed)} failed on the base, so not compared: {_some(failed)}: {why}")
    if uncollected:
        lines.append("if the base has to be built first, give --gpukern-against-setup=CMD")
    if new:
        lines.append(f"{len(new)} new, not in the base: {_some(new)}")
    if removed:
        lines.append(f"{len(removed)} removed since the base: {_some(removed)}")
    return lines


def _some(nodeids: Sequence[str]) -> str:
    shown = ", ".join(nodeids[:_NAMED])
    return f"{shown}, …" if len(nodeids) > _NAMED else shown
