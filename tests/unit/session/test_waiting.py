"""Which tests wait for the end of the run, and which of their reports are held back."""

from __future__ import annotations

from types import SimpleNamespace
from unittest.mock import Mock

import pytest
from made_up_results import measured, result
from msgspec import structs

from pytest_gpukern.run import spine
from pytest_gpukern.run.spine import Settled
from pytest_gpukern.session import isolation, stash
from pytest_gpukern.session.isolation import _Attempt
from pytest_gpukern.session.item import _may_wait
from pytest_gpukern.values.result import GateFailure
from pytest_gpukern.values.stored import plain


@pytest.mark.parametrize(
    ("changed", "waits"),
    [
        ({}, True),
        ({"child": None}, False),
        ({"judges": False}, False),
        ({"worker": {"workerid": "gw0"}}, False),
        ({"mark": "xfail"}, False),
        ({"mark": "flaky"}, False),
        ({"mark": "slow"}, True),
        ({"option": "maxfail"}, False),
        ({"option": "stepwise"}, False),
        ({"option": "reruns"}, False),
    ],
    ids=str,
)
def test_a_test_waits_where_its_report_can_and_nobody_needs_it_at_once(changed, waits):
    given = {"judges": True, "worker": None, "mark": None, "option": None, **changed}
    child = SimpleNamespace(judges=given["judges"], begin=SimpleNamespace(worker=given["worker"]))
    config = Mock(getoption=lambda name, default=None: 1 if name == given["option"] else default)
    config.stash = {stash.CHILD: changed.get("child", child)}
    item = Mock(config=config, get_closest_marker=lambda name: Mock() if name == given["mark"] else None)
    assert _may_wait(item) is waits


FOUND = result("cupy.exp", measured())
WAITS = {
    "result": plain(FOUND),
    "sessions": [],
    "gate_failures": [],
    "waits": {"threshold": 0.02, "expects_check": True},
}


def report(when, outcome="passed", **carried):
    made = pytest.TestReport("test_it.py::test_a", ("test_it.py", 1, "test_a"), {}, outcome, None, when)
    made.gpukern = carried
    return made


def heard(*reports):
    """Returns an attempt that got reports, the attempts that wait, and what was shown, as it was then."""
    shown, waiting = [], []
    hook = Mock(pytest_runtest_logreport=lambda report: shown.append((report.when, report.outcome)))
    attempt = _Attempt(Mock(nodeid="test_it.py::test_a", ihook=hook), waiting)
    attempt.begun = True
    for each in reports:
        attempt._report(each)
    return attempt, waiting, shown


def test_a_further_attempt_takes_the_place_of_one_that_waits():
    again = [report("setup"), report("call", **WAITS), report("teardown")]
    attempt, waiting, shown = heard(*again[:2], report("teardown", "failed"), *again)
    assert waiting == [attempt]
    assert shown == [("setup", "passed"), ("call", "passed"), ("teardown", "failed"), ("setup", "passed")]
    assert [each.when for each in attempt.held] == ["call", "teardown"]
    settled = attempt.waiting()
    found = (settled.result.measurements, settled.threshold, settled.expects_check)
    assert found == (FOUND.measurements, 0.02, True)


def test_a_teardown_that_fails_has_the_last_result_and_the_failures_of_its_own():
    leaks = {**WAITS, "gate_failures": plain((GateFailure("memory", "keeps 1 KiB"),))}
    attempt, _, shown = heard(report("call", **WAITS), report("teardown", "failed", **leaks))
    last, slower = structs.replace(FOUND, seed=7), GateFailure("SLOWER", "+6.0 %")
    attempt.report_settled(Settled(last, failures=(slower,)))
    assert shown == [("call", "failed"), ("teardown", "failed")]
    assert str(slower) in str(attempt.held[0].longrepr)
    kinds = [[reason["kind"] for reason in each.gpukern["gate_failures"]] for each in attempt.held]
    assert kinds == [["SLOWER"], ["memory"]]
    assert [each.gpukern["result"] for each in attempt.held] == [plain(last)] * 2


def test_two_interrupts_while_tests_are_settled_end_the_run_as_one_does(monkeypatch):
    for name in ("environment_of", "tell"):
        monkeypatch.setattr(isolation, name, Mock())
    monkeypatch.setattr(spine, "settle_together", Mock(side_effect=KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        isolation.Isolation._settle(Mock(_held=[Mock()]), early=False)
