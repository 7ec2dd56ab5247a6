"""Has tests report how they ended in sessions that ran before pytest's loop.

`--gpukern-against`, `--gpukern-sanitize` and `--gpukern-code` are a `Plan` each. The controller runs it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, Protocol

import pytest

from pytest_gpukern.session.item import case_of, fail_by_the_gate, failure, new_test

if TYPE_CHECKING:
    from pytest_gpukern.processes.sessions import Ending
    from pytest_gpukern.values.result import JsonDict

_PASSED_AGAINST_A_STRICT_MARK = "[XPASS(strict)]"
"""pytest's text for a test that passed but should fail. It passes here: its mark fails it once more."""


@dataclass(frozen=True)
class Ahead:
    """Holds what a plan's sessions came to.

    Attributes:
        endings: test → how it ended in them; the other tests run in pytest's loop.
        listed: test → how pytest-benchmark lists it.
        compared_with: what verdicts compare with, in a word or two.
        heading: lines above the report's tables; `closing` stands below them.
        problems: why the run fails, besides its tests.
        passed_before: tests that passed in what they are compared with.
        weaker: what else checks less than there, a sentence each.
    """

    endings: Mapping[str, Ending] = field(default_factory=dict)
    listed: Mapping[str, JsonDict] = field(default_factory=dict)
    compared_with: str = "baseline"
    heading: Sequence[str] = ()
    closing: Sequence[str] = ()
    problems: Sequence[str] = ()
    passed_before: Set[str] = frozenset()
    weaker: Sequence[str] = ()


class Plan(Protocol):
    """Runs tests in sessions of its own; also a pytest plugin of the process that reports."""

    def run(self, items: Sequence[pytest.Item]) -> Ahead:
        """Runs those of the collected tests that are its own; raises pytest.UsageError if it cannot."""


def hand_over(item: pytest.Item, ending: Ending, nextitem: pytest.Item | None) -> None:
    """Makes the reports of a test that ended in another session, which has set up its fixtures, too.

    They are pytest's own: its marks, our gate and every plugin that looks at reports see an ordinary test.
    """
    marks = item.config.pluginmanager.get_plugin("skipping")
    phases: tuple[tuple[Literal["setup", "call", "teardown"], Callable[[], object]], ...] = (
        ("setup", lambda: marks and marks.pytest_runtest_setup(item)),
        ("call", lambda: _end(item, ending)),
        ("teardown", lambda: item.session._setupstate.teardown_exact(nextitem)),
    )
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    runs = True
    for when, act in phases:
        if runs or when == "teardown":
            call = pytest.CallInfo.from_call(act, when, reraise=(pytest.exit.Exception, KeyboardInterrupt))
            report = item.ihook.pytest_runtest_makereport(item=item, call=call)
            item.ihook.pytest_runtest_logreport(report=report)
            runs = report.passed
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)


def _end(item: pytest.Item, ending: Ending) -> None:
    """Ends a test as it ended elsewhere; one that passed there may still fail by the gate."""
    case, test = case_of(item), new_test(item)
    test.verified = True  # else the other session has said that the test never called us
    test.result, test.sessions = ending.result, ending.sessions
    if ending.outcome == "passed" and case is not None and case.variant.is_broken:
        test.rejected = case
    if ending.outcome == "failed" and not ending.text.startswith(_PASSED_AGAINST_A_STRICT_MARK):
        raise failure(ending.text)
    if ending.outcome == "xfailed":
        pytest.xfail(ending.text)
    if ending.outcome == "skipped":
        raise pytest.skip.Exception(ending.text, _use_item_location=True)
    fail_by_the_gate(item, test, test.settle())
