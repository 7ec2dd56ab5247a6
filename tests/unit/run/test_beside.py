"""Checks what is measured beside the commit of a record of other cards, and what its pairs then decide."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace

import pytest
from made_up_results import EXP_KERNEL, FINGERPRINT, measured, result
from msgspec import structs

from pytest_gpukern.baseline.record import NO_RECORD
from pytest_gpukern.gate.comparability import SessionTime
from pytest_gpukern.processes.sessions import ChildSessions, Ending
from pytest_gpukern.run.spine import Settled, left_open, measured_beside, settle_together, settled_beside
from pytest_gpukern.values.fingerprint import Provenance
from pytest_gpukern.values.result import Verdict
from pytest_gpukern.values.verdict_table import VerdictKind as Kind

KEY = "kernel/event/cold"
OTHER_CARD = Verdict(Kind.UNDECIDED, "cards differ", 1.1, other_card=True)
SUSPECTED = structs.replace(OTHER_CARD, kind=Kind.SLOWER, suspected=True)
OTHER_DRIVER = {"fingerprint": structs.replace(FINGERPRINT, driver_version="590")}
OTHER_CODE = {"code": "code:bb"}
AFTER_A_DRIVER = {**OTHER_DRIVER, **OTHER_CODE}
BY_HOST = {"key": "end_to_end/host/cold", "files": None}


def session(code="code:aa", key=KEY, **changes):
    kernel = structs.replace(EXP_KERNEL.kernel, machine_code_sha256=code)
    scope, timer, _ = key.split("/")
    timed = measured(1e4, scope, timer, work=(structs.replace(EXP_KERNEL, kernel=kernel),), order=(0,))
    return result("cupy.exp", timed, kernels=(kernel,), **changes)


def settled(by_record, ended, baseline="compare", key=KEY, **now):
    """Returns the verdict of a run, what it came to, and which commits were asked for."""
    asked = []

    def beside(waiting, children):
        asked.extend(of.recorded.commit for of in waiting)
        return dict.fromkeys([of.result.nodeid for of in waiting], ended)

    past = session(key=key, provenance=Provenance("c0"), files={"a.py": "1f"})
    record = SimpleNamespace(past=lambda key: [SessionTime(past.time(key), session=past)])
    environment = SimpleNamespace(
        gpu=SimpleNamespace(clock_stopped=nullcontext),
        record_of=lambda case: record,
        settings=SimpleNamespace(baseline=baseline, threshold=0.02),
        children=ChildSessions((), (), (), "", ()),
        beside=beside,
    )
    result = structs.replace(session(key=key, **{"files": past.files, **now}), verdicts={key: by_record})
    found = Settled(result)
    if (waiting := left_open(found, environment)) is not None:
        found = settled_beside(found, waiting, measured_beside([waiting], environment)[result.nodeid])
    return found.result.verdicts[key], found, asked


@pytest.mark.parametrize(
    ("by_record", "now", "left"),
    [
        (SUSPECTED, {}, True),
        (SUSPECTED, OTHER_CODE, True),
        (SUSPECTED, AFTER_A_DRIVER, True),
        (OTHER_CARD, OTHER_CODE, True),
        (OTHER_CARD, {}, False),
        (OTHER_CARD, {"files": {"a.py": "2f"}}, True),
        (OTHER_CARD, {"files": {"a.py": "2f"}, **OTHER_DRIVER}, False),
        (OTHER_CARD, AFTER_A_DRIVER, False),
        (structs.replace(SUSPECTED, other_card=False), OTHER_CODE, False),
        (structs.replace(OTHER_CARD, kind=Kind.SAME), OTHER_CODE, False),
        # most are open on another card, 16 of 18 on an H200, and too coarse to show the same work
        (OTHER_CARD, BY_HOST, False),
        (SUSPECTED, BY_HOST, True),
    ],
)
def test_suspicions_and_changed_code_that_only_other_cards_recorded_are_measured_beside(by_record, now, left):
    for baseline in ("compare", "append"):
        verdict, _, asked = settled(by_record, "no git", baseline, **now)
        assert verdict == by_record
        assert asked == (["c0"] if baseline == "compare" and left else [])


SETTLING = (Kind.SLOWER, Kind.SAME, Kind.SAME_CODE, Kind.FASTER, Kind.UNDECIDED)


@pytest.mark.parametrize(("now", "settling"), [(OTHER_CODE, SETTLING), (AFTER_A_DRIVER, SETTLING[:1])])
@pytest.mark.parametrize("kind", [*SETTLING, Kind.NEW, Kind.UNCOMPARABLE, Kind.INVALID])
def test_pairs_settle_it_but_what_another_driver_did_they_do_not_show(kind, now, settling):
    by_pairs = Verdict(kind, "by pairs")
    here = structs.replace(session(**now), verdicts={KEY: by_pairs})
    more = session(session="fresh")
    verdict, found, _ = settled(SUSPECTED, Ending("passed", "", here, (more,)), **now)
    assert verdict == (by_pairs if kind in settling else SUSPECTED.adding(f"{kind.value}: by pairs"))
    assert found.sessions == (more,)


def test_a_test_that_fails_when_it_is_measured_beside_does_not_pass():
    verdict, _, _ = settled(SUSPECTED, Ending("failed", "INCORRECT: y"))
    assert (verdict.kind, verdict.suspected) == (Kind.INVALID, False)
    assert verdict.reason.endswith("INCORRECT: y")
    _, found, _ = settled(SUSPECTED, "no git")
    (note,) = found.result.notes
    assert note.text == "recorded on other cards only, and not measured beside that commit: no git"


def test_in_a_run_that_ended_early_no_session_is_measured_for_a_suspicion():
    alone = Settled(structs.replace(session(), verdicts={KEY: structs.replace(SUSPECTED, other_card=False)}))
    settings = SimpleNamespace(baseline="compare", benchmark=False, fail_on=(), run_file=None)
    environment = SimpleNamespace(settings=settings, record_of=lambda case: NO_RECORD)
    (found,) = settle_together([alone], environment, early=True)
    assert found.result.verdicts[KEY].reason.endswith("failed: the run ended before")
    assert [failure.kind for failure in found.failures] == ["INVALID"]
