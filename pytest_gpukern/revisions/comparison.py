"""Measures both sides of `--gpukern-against` before the test loop.

The main process collects and reports. Tests that measure run in child sessions of both sides instead. Then
each test fails, passes or skips as it did there, and by the verdict on its paired times.
"""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from msgspec import structs

from pytest_gpukern.findings.weaker import weaker
from pytest_gpukern.gate.judge import BY_MACHINE
from pytest_gpukern.processes.messages import ChildRequest
from pytest_gpukern.processes.process import Process
from pytest_gpukern.processes.sessions import ChildSessions, Ending, Waiting
from pytest_gpukern.report.run import AGAINST
from pytest_gpukern.report.units import SHOWN, named
from pytest_gpukern.revisions import judging
from pytest_gpukern.revisions.git import AgainstError, Revisions, recorded_on, resolve, set_up, worktree
from pytest_gpukern.revisions.trees import BOTH, Trees, Turns
from pytest_gpukern.revisions.weaker import weaker_options, weaker_records
from pytest_gpukern.session import stash
from pytest_gpukern.session.item import marker_of, measures_in
from pytest_gpukern.session.plan import Ahead
from pytest_gpukern.values.backend_table import imports_of
from pytest_gpukern.values.grouping import grouped
from pytest_gpukern.values.phases import phase
from pytest_gpukern.values.untrusted_json import first_line
from pytest_gpukern.values.verdict_table import VerdictKind

if TYPE_CHECKING:
    from pytest_gpukern.run.environment import Open


class Against:
    """Compares revisions in a run with `--gpukern-against`; a pytest plugin of the process that reports.

    Raises:
        pytest.UsageError: git cannot tell the base, or tests are distributed.
    """

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        revision = stash.settings_of(config).against
        assert revision is not None
        self._held = ExitStack()
        config.add_cleanup(self._held.close)
        self._option = f"--gpukern-against={revision}"
        stash.refuse_distribution(config, self._option, "the sessions of both sides")
        with stash.refusing(AgainstError, option=self._option):
            self._revisions = resolve(revision, config.rootpath)

    @pytest.hookimpl(trylast=True)
    def pytest_sessionstart(self, session: pytest.Session) -> None:
        """Starts the first sessions, so that they import what this process imports while it collects."""
        settings = stash.settings_of(self._config)
        in_vain = not stash.runs_tests(session) or settings.against_setup is not None
        if in_vain or not stash.environment_of(self._config).gpu.measures:
            return
        with suppress(AgainstError):  # said when the tests are to run
            self._waiting.prepare(BOTH)

    def run(self, items: Sequence[pytest.Item]) -> Ahead:
        """Measures both sides; a test then ends by the verdict on its paired times."""
        here = {item.nodeid for item in items}
        with stash.refusing(AgainstError, option=self._option), phase("paired sessions"), self._held:
            return self._compare({item.nodeid: item for item in items if measures_in(item)}, here)

    @functools.cached_property
    def _worktree(self) -> Path:
        return _checked_out(self._config, self._revisions, self._held)

    @functools.cached_property
    def _waiting(self) -> Waiting:
        return _waiting(self._config, self._revisions, self._worktree, self._say, self._held)

    def _compare(self, items: Mapping[str, pytest.Item], here: Set[str]) -> Ahead:
        settings = stash.settings_of(self._config)
        unchanged = getattr(self._config.stash.get(stash.UNCHANGED, None), "tests", ())
        if not items:
            if unchanged:
                return Ahead(weaker=self._weaker())
            raise AgainstError("no selected test measures anything")
        environment = stash.environment_of(self._config)
        if "no-gpu" in settings.fail_on and not environment.gpu.has_gpu:
            raise AgainstError(f"--gpukern-fail-on=no-gpu cannot be met: {environment.gpu.why_no_gpu}")
        if settings.against_setup is not None:
            self._say(f"setting up the base: {settings.against_setup}")
            set_up(self._worktree, settings.against_setup)
        turns = _turns(self._config, self._revisions, self._worktree, self._waiting, environment.children)
        turns.finds_removed = not getattr(self._config.known_args_namespace, "lf", False)
        turns.hosts = "host" in settings.fail_on
        turns.thresholds = {
            nodeid: marker_of(item).threshold or settings.threshold for nodeid, item in items.items()
        }
        # Of one commit, any difference is noise, which this run is to show.
        conclusions = turns.conclusions(
            settings.sessions,
            asks=not self._revisions.identical,
            by_work=not self._revisions.identical,
            is_stored=settings.run_file is not None,
        )
        cases, pairs = turns.cases(items), settings.sessions if len(turns.asked) < len(items) else 0
        base, about = turns.base[0], f"against {self._revisions}"
        gone = [nodeid for nodeid in base.others if nodeid not in here and nodeid not in unchanged]
        removed = [f"{len(gone)} removed since the base: {named(gone, SHOWN)}"] if gone else []
        again = turns.base_again.ending if turns.base_again is not None else lambda _: None
        passed = {name: [*filter(_passed, (*of_base, again(name)))] for name, (of_base, _) in cases.items()}
        xpassed = (name for name, of in passed.items() if any(each and each.text for each in of))
        as_before = {name for name in xpassed if _passed(conclusions[name])}
        return Ahead(
            {
                name: _saying(each, about, passed[name], settings.threshold)
                for name, each in conclusions.items()
            },
            turns.head[0].listed,
            f"{AGAINST}{self._revisions.short}",
            heading(self._revisions, 2 * pairs),
            closing(cases, asked=len(turns.asked), uncollected=any(map(base.why_uncollected, cases))),
            passed_before={*base.others, *filter(passed.get, passed)} - as_before,
            weaker=[*removed, *self._weaker()],
        )

    def _weaker(self) -> list[str]:
        options = weaker_options(self._config.rootpath, self._revisions, self._worktree)
        return [*options, *weaker_records(self._revisions, self._worktree)]

    def _say(self, line: str) -> None:
        stash.tell(self._config, line)


_BESIDE: pytest.StashKey[dict[Revisions, Path]] = pytest.StashKey()
"""The commits that this process has measured beside, with their worktrees, which go with it."""


def measured_beside(
    config: pytest.Config, waiting: Sequence[Open], children: ChildSessions
) -> dict[str, Ending | str]:
    """Measures tests beside the commits of their records, A-B-B-A: what `Environment.beside` does.

    Those of one commit share their sessions. One session of that commit first shows what it does: where that
    is the same work, no other follows.
    """
    found: dict[str, Ending | str] = {}
    by_commit: dict[Revisions, list[Open]] = {}
    for test in waiting:
        try:
            by_commit.setdefault(recorded_on(test.recorded, config.rootpath), []).append(test)
        except AgainstError as error:
            found[test.result.nodeid] = " ".join(str(error).split())
    for revisions, tests in by_commit.items():
        if revisions.identical:
            found |= {test.result.nodeid: _identical(test, revisions.short) for test in tests}
            continue
        try:
            for name, conclusion in _beside(config, revisions, tests, children):
                found[name] = _saying(conclusion, f"measured beside {revisions.short} on this card")
        except AgainstError as error:
            for test in tests:
                found.setdefault(test.result.nodeid, " ".join(str(error).split()))
    return found


def _identical(test: Open, commit: str) -> Ending | str:
    """Returns how a test of the very commit that was recorded ends: what differs from it is not in git."""
    result, reason = test.result, f"the working tree is {commit}, as recorded"
    by_machine = all((result.verdicts[key].ratio_low or 1.0) <= 1 + BY_MACHINE for key in test.keys)
    if not test.same_work or not by_machine:
        return f"{reason}: what differs is not in git"
    same = {"kind": VerdictKind.SAME_CODE, "suspected": False, "false_alarm": 0.0}
    verdicts = {key: result.verdicts[key].adding(reason, **same) for key in test.keys}
    return Ending("passed", "", structs.replace(result, verdicts=verdicts))


def _beside(
    config: pytest.Config, revisions: Revisions, tests: Sequence[Open], children: ChildSessions
) -> Iterator[tuple[str, judging.Conclusion]]:
    """Yields the conclusion on each test beside one commit; raises as `Turns.take` does."""
    known = config.stash.setdefault(_BESIDE, {})
    if revisions not in known:
        of_run = ExitStack()
        config.add_cleanup(of_run.close)
        known[revisions] = _checked_out(config, revisions, of_run)

    def tell(line: str) -> None:
        if len(tests) > 1:
            stash.tell(config, line)

    libraries = imports_of(test.result.case.backend for test in tests)
    with ExitStack() as held:
        waiting = _waiting(config, revisions, known[revisions], tell, held, libraries)
        turns = _turns(config, revisions, known[revisions], waiting, children)
        turns.thresholds = {test.result.nodeid: test.threshold for test in tests}
        turns.finds_removed = False
        base = turns.ask_base([*turns.thresholds])
        for test in tests:
            name = test.result.nodeid
            both = [base.ending(name) or Ending("skipped")], [Ending("passed", "", test.result)]
            same, _ = judging.same_times(both, test.threshold)
            if same.issuperset(test.keys):
                del turns.thresholds[name]
                yield name, judging.conclude(both, judging.Rule(test.threshold, {}, same=same, asked=True))
        if turns.thresholds:
            is_stored = stash.settings_of(config).run_file is not None
            yield from turns.conclusions(judging.FEWEST_PAIRS, asks=False, is_stored=is_stored).items()


def _waiting(
    config: pytest.Config,
    revisions: Revisions,
    base: Path,
    tell: Callable[[str], None],
    held: ExitStack,
    libraries: Iterable[str] | None = None,
) -> Waiting:
    """Returns what starts sessions of both sides before their turn; it goes with `held`."""

    def start(on_base: bool) -> Process:
        moved = Trees.of(revisions, base).moved if on_base else {}
        request = ChildRequest(moved=moved, environ=waiting.environ(_environ(config)))
        return stash.children_of(config).start(request)

    most = _MOST_AHEAD if stash.environment_of(config).gpu.measures else 0
    waiting = Waiting(start, most, tell, libraries)
    held.callback(waiting.close)
    return waiting


def _turns(
    config: pytest.Config, revisions: Revisions, base: Path, waiting: Waiting, children: ChildSessions
) -> Turns:
    """Returns what runs sessions of both; they run the other tests if some files cannot be collected."""
    going_on = dataclasses.replace(children, options=(*children.options, "--continue-on-collection-errors"))
    return Turns(Trees.of(revisions, base), going_on, waiting.environ(_environ(config)), waiting)


def _passed(ending: Ending | None) -> bool:
    return ending is not None and ending.outcome == "passed"


def _saying(
    conclusion: judging.Conclusion, about: str, passed: judging.Side = (), threshold: float = 0.0
) -> judging.Conclusion:
    """Returns a conclusion whose verdicts say what they are about, also where they are stored.

    It tells which checks are weaker than in the sessions that `passed`.
    """
    if conclusion.result is None:
        return conclusion
    past = [ending.result for ending in passed if ending is not None and ending.result is not None]
    found = (*conclusion.result.findings, *weaker(conclusion.result, past, threshold))
    verdicts = {key: verdict.adding(about) for key, verdict in conclusion.verdicts.items()}
    return conclusion._replace(result=structs.replace(conclusion.result, verdicts=verdicts, findings=found))


def _checked_out(config: pytest.Config, revisions: Revisions, held: ExitStack) -> Path:
    """Makes the base's worktree, which goes with `held`, and returns its folder."""
    folder = held.enter_context(worktree(revisions))
    for needed in (config.invocation_params.dir, config.rootpath):
        if needed.is_relative_to(revisions.top):  # it may be new in the working tree, and so all its tests
            (folder / needed.relative_to(revisions.top)).mkdir(parents=True, exist_ok=True)
    return folder


def _environ(config: pytest.Config) -> dict[str, str | None]:
    """Returns the variables of sessions that differ from those here.

    The working tree's conftests and test files may have set some here. The base must not have them, and
    the sessions of the working tree set them by themselves.
    """
    began = config.stash.get(stash.BEGAN_WITH, dict(os.environ))  # a conftest may have loaded this plugin
    changed = {
        name: began.get(name)
        for name in {*began, *os.environ}
        if os.environ.get(name) != began.get(name) and not name.startswith("GPUKERN_")
    }
    return {**changed, **stash.environment_of(config).gpu.for_children}


_MOST_AHEAD = 2
"""Sessions that wait for their turn at a time: their imports take longer than a turn with few cases."""


def heading(revisions: Revisions, sessions: int) -> list[str]:
    """Returns the lines above the tables."""
    asks = [] if revisions.identical else ["a short pair of sessions that asks what both do"]
    counted_sessions = ", then ".join([*asks, *([f"{sessions} sessions A-B-B-A"] if sessions else [])])
    lines = [f"working tree against {revisions}, {counted_sessions}"]
    if revisions.identical:
        lines.append("  the working tree is that commit, unchanged: any difference is noise (A/A)")
    return [*lines, "  times below are the working tree's; stored baselines are not used", ""]


def closing(cases: Mapping[str, judging.Both], *, asked: int, uncollected: bool) -> list[str]:
    """Returns the lines below the tables: what was compared, and what the tests do not show.

    So many tests were only `asked`. With `uncollected`, the base could not collect some of them.
    """
    new = [nodeid for nodeid, (base, _) in cases.items() if not any(base)]
    failures = {nodeid: judging.failure_in(base) for nodeid, (base, _) in cases.items()}
    failed = grouped((first_line(text), nodeid) for nodeid, text in failures.items() if text is not None)
    lines = []
    if asked:
        lines.append(f"{asked} measured in the short pair of sessions alone: {judging.SAME_WORK}")
    for why, nodeids in failed.items():
        lines.append(f"{len(nodeids)} failed on the base, so not compared: {named(nodeids, SHOWN)}: {why}")
    if uncollected:
        lines.append("if the base has to be built first, give --gpukern-against-setup=CMD")
    if new:
        lines.append(f"{len(new)} new, not in the base: {named(new, SHOWN)}")
    return lines
