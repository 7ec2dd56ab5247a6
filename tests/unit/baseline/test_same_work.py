"""Tests whether two sessions are known to have had the device do the same; the results are made up."""

from __future__ import annotations

from pathlib import Path

import pytest
from made_up_results import COPY_IN, EXP_KERNEL, FINGERPRINT, measured, result
from msgspec import structs

from pytest_gpukern.baseline.codec import parse, render
from pytest_gpukern.baseline.record import Baseline, Epoch, Record, trimmed
from pytest_gpukern.baseline.same_work import SameWork, same_work

NO, SEEN, ALL = SameWork.NO, SameWork.SEEN, SameWork.ALL
MOMENT = "2026-11-01T12:00:00Z"
FILES = {"files": {"test_it.py": "1f"}}
OLD = {"scalars": None}
KERNEL, END_TO_END, TRANSFER = "kernel/event/cold", "end_to_end/event/cold", "transfer/event/cold"


def launch(code="code:aa", **changes):
    """The work of a kernel with this code."""
    kernel = structs.replace(EXP_KERNEL.kernel, machine_code_sha256=code, symbol=f"exp of {code}", **changes)
    return structs.replace(EXP_KERNEL, kernel=kernel)


ONE, OTHER = launch(), launch("code:bb")
IN, OUT = COPY_IN, structs.replace(COPY_IN, name="memcpy DtoH, pageable")


def session(*work, order=None, scope="kernel", **changes):
    """A session in which a call did this work, of which a timer sees no machine code."""
    work = work or (ONE,)
    order = tuple(range(len(work))) if order is None else order
    seen = tuple(
        structs.replace(each, kernel=structs.replace(each.kernel, machine_code_sha256=None))
        if each.kernel
        else each
        for each in work
    )
    times = (measured(scope="end_to_end", work=seen, order=order), measured(scope="transfer"))
    times += (measured(scope=scope, work=seen, order=order),) * (scope != "end_to_end")
    kernels = tuple(each.kernel for each in work if each.kernel)
    return result("cupy.exp", *times, **{"kernels": kernels, "inputs": "1a", "scalars": "5c", **changes})


def recorded(of):
    """The session as a baseline's file gives it back."""
    record = Record(of.case.id, (Epoch(MOMENT, (trimmed(of, recorded=MOMENT),)),))
    read = parse(render(Baseline("exp", "h200", {of.case.id: record})), Path("exp.json"))
    return read.of(of.case.id).sessions[0]


def compared(now, before, key=KERNEL):
    """What both say of a session and of its record; a record says the same as the session."""
    (found,) = {same_work(now, of, key) for of in (before, recorded(before))}
    return found


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({}, ALL),
        ({"fingerprint": structs.replace(FINGERPRINT, device_uuid="another card")}, ALL),
        ({"fingerprint": structs.replace(FINGERPRINT, libraries={"cupy": "14.0", "torch": "3"})}, ALL),
        ({"fingerprint": structs.replace(FINGERPRINT, python_version="3.14")}, ALL),
        ({"scalars": None}, SEEN),
        ({"inputs": None}, SEEN),
        ({"scalars": "6c"}, SEEN),
        ({"inputs": "1b"}, NO),
        ({"kernels": (OTHER.kernel,)}, NO),
        ({"kernels": (launch(None).kernel,)}, NO),
        ({"kernels": ()}, NO),
        ({"point": {"n": 999}}, NO),
        ({"parameters": {"block": 128}}, NO),
        ({"fingerprint": structs.replace(FINGERPRINT, driver_version="590")}, NO),
        ({"fingerprint": structs.replace(FINGERPRINT, libraries={"cupy": "15"})}, NO),
        ({"fingerprint": structs.replace(FINGERPRINT, max_sm_clock_mhz=1200)}, NO),
        ({"fingerprint": structs.replace(FINGERPRINT, power_limit_w=300.0)}, NO),
        ({"fingerprint": structs.replace(FINGERPRINT, device_model_key="h100")}, NO),
        ({"scope": "launch"}, NO),
    ],
)
def test_what_has_to_agree_besides_the_work(changed, expected):
    """All is known of one kernel by its scalar arguments."""
    for now, before in ((session(), session(**changed)), (session(**changed), session())):
        assert compared(now, before) is expected


def test_another_version_of_the_problem_is_other_work():
    now = session()
    assert compared(structs.replace(now, case=structs.replace(now.case, problem_version=2)), now) is NO


@pytest.mark.parametrize(
    "work",
    [
        (launch(grid=(64, 2, 1)),),
        (launch(registers=41),),
        (ONE, ONE),
        (ONE, OTHER),
        (OTHER, ONE),
        (ONE, IN),
        (IN, ONE),
        (structs.replace(IN, size_bytes=8.0), ONE),
        (structs.replace(IN, name="memcpy HtoD, pinned"), ONE),
    ],
)
def test_other_launches_copies_or_orders_are_other_work(work):
    others = session(), session(ONE, OTHER, IN, order=(0, 1, 0, 2)), session(ONE, order=(0, 0, 0))
    for key in (KERNEL, END_TO_END):
        for other in others:
            assert compared(session(*work), other, key) is NO
            assert compared(other, session(*work), key) is NO
        assert compared(session(*work), session(*work), key) is not NO
        assert compared(session(*work, order=()), session(*work, order=()), key) is NO


@pytest.mark.parametrize(
    ("of", "key", "changed", "expected"),
    [
        ((), KERNEL, OLD, ALL),
        ((), KERNEL, OLD | {"inputs": None}, ALL),
        ((ONE, OTHER), KERNEL, {"files": {}}, SEEN),
        ((ONE, OTHER), KERNEL, {}, ALL),
        ((IN, ONE, OUT), END_TO_END, {"files": {}}, SEEN),
        ((IN, ONE, OUT), END_TO_END, {}, ALL),
        ((IN, ONE, OUT), TRANSFER, {"files": {}, "scalars": None}, ALL),
        ((IN, ONE, OUT), TRANSFER, {"inputs": None}, NO),
    ],
)
def test_the_host_part_of_a_call_is_known_by_the_files_alone(of, key, changed, expected):
    """The inputs say what a transfer copies, so it needs neither."""
    both = [session(*of, **{**FILES, **changed}) for _ in "ab"]
    assert compared(*both, key) is expected


def test_another_file_leaves_what_its_code_may_do_unknown():
    now, edited = session(ONE, OTHER, **FILES), session(ONE, OTHER, files={"test_it.py": "2f"})
    assert compared(now, edited) is SEEN
    one = session(**FILES), session(files={"test_it.py": "2f"})
    assert compared(*one) is ALL, "by its scalar arguments"
    assert compared(*one, END_TO_END) is SEEN


def test_a_launch_does_what_the_kernels_of_its_session_do():
    """The host times a launch, and sees none of its work."""

    def launching(*work, **changes):
        of = session(*work, **changes)
        return structs.replace(of, measurements=(*of.measurements, measured(scope="launch")))

    assert compared(launching(**FILES), launching(**FILES), "launch/event/cold") is ALL
    assert compared(launching(), launching(), "launch/event/cold") is SEEN
    assert compared(launching(OTHER), launching(), "launch/event/cold") is NO


def test_another_python_is_another_host_part():
    newer = session(fingerprint=structs.replace(FINGERPRINT, python_version="3.14"), **FILES)
    assert compared(newer, session(**FILES), KERNEL) is ALL
    assert compared(newer, session(**FILES), END_TO_END) is NO


def test_a_host_variant_never_does_the_same():
    of_host = [result("host.numpy", measured(), inputs="1a", **FILES) for _ in "ab"]
    assert compared(*of_host) is NO
