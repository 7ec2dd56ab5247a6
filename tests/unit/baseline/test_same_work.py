"""Tests whether two sessions are known to have had the device do the same; the results are made up."""

from __future__ import annotations

from pathlib import Path

import pytest
from made_up_results import COPY_IN, EXP_KERNEL, FINGERPRINT, measured, result
from msgspec import structs

from pytest_gpukern.baseline.codec import parse, render
from pytest_gpukern.baseline.record import Baseline, Epoch, Record, trimmed
from pytest_gpukern.baseline.same_work import SameWork, same_work

NO, SEEN, BY_FILES, ALL = SameWork
MOMENT = "2026-11-01T12:00:00Z"
FILES = {"files": "1f"}
KERNEL, END_TO_END, TRANSFER, LAUNCH = (
    f"{scope}/event/cold" for scope in ("kernel", "end_to_end", "transfer", "launch")
)


def launch(code="code:aa", **changes):
    """The work of a kernel with this code."""
    kernel = structs.replace(EXP_KERNEL.kernel, machine_code_sha256=code, symbol=f"exp of {code}", **changes)
    return structs.replace(EXP_KERNEL, kernel=kernel)


ONE, OTHER = launch(), launch("code:bb")
IN, OUT = COPY_IN, structs.replace(COPY_IN, name="memcpy DtoH, pageable")
MANY = (IN, ONE, OTHER, OUT)


def session(*work, order=None, **changes):
    """A session in which a call did this work, in all scopes; a timer sees no machine code."""
    work = work or (ONE,)
    kernels = tuple(each.kernel for each in work if each.kernel)
    seen = tuple(
        structs.replace(each, kernel=each.kernel and structs.replace(each.kernel, machine_code_sha256=None))
        for each in work
    )
    order = tuple(range(len(work))) if order is None else order
    by_device = (measured(scope=scope, work=seen, order=order) for scope in ("end_to_end", "kernel"))
    times = (*by_device, measured(scope="transfer"), measured(scope="launch"))
    return result("cupy.exp", *times, **{"kernels": kernels, "inputs": "1a", "scalars": "5c", **changes})


def compared(now, before, key=KERNEL):
    """What is said of a session and another one; of its record, as a file gives it back, the same is said."""
    record = Record(before.case.id, (Epoch(MOMENT, (trimmed(before, recorded=MOMENT),)),))
    read = parse(render(Baseline("exp", "h200", {before.case.id: record})), Path("exp.json"))
    (found,) = {same_work(now, of, key) for of in (before, *read.of(before.case.id).sessions)}
    return found


def on(**changes):
    return {"fingerprint": structs.replace(FINGERPRINT, **changes)}


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({}, ALL),
        (on(device_uuid="another card"), ALL),
        (on(libraries={"cupy": "14.0", "torch": "3"}), ALL),
        (on(python_version="3.14"), ALL),
        ({"scalars": None}, SEEN),
        ({"scalars": "6c"}, SEEN),
        ({"inputs": None}, SEEN),
        ({"inputs": "1b"}, NO),
        ({"kernels": (OTHER.kernel,)}, NO),
        ({"kernels": (launch(None).kernel,)}, NO),
        ({"kernels": ()}, NO),
        ({"point": {"n": 999}}, NO),
        ({"parameters": {"block": 128}}, NO),
        (on(driver_version="590"), NO),
        (on(libraries={"cupy": "15"}), NO),
        (on(max_sm_clock_mhz=1200), NO),
        (on(power_limit_w=300.0), NO),
        (on(device_model_key="h100"), NO),
        ({"inputs": None, **FILES}, SEEN),
        ({"measurements": ()}, NO),
    ],
)
def test_what_has_to_agree_besides_the_work(changed, expected):
    files = {name: of for name, of in changed.items() if name == "files"}
    both = session(**files), session(**changed)
    for now, before in (both, both[::-1]):
        assert same_work(now, before, KERNEL) is expected
        assert not before.measurements or compared(now, before) is expected


def test_what_is_known_of_neither_session_is_not_known_to_be_the_same():
    unknown = structs.replace(ONE.kernel, machine_code_sha256=None)
    for changed, expected in (
        ({"kernels": (unknown,)}, NO),
        ({"inputs": None}, SEEN),
        ({"scalars": None}, SEEN),
    ):
        assert compared(session(**changed), session(**changed)) is expected
    times = session(**FILES).measurements
    unordered = (structs.replace(times[0], order=()), *times[1:])
    of_a_glance = [session(measurements=unordered, **FILES) for _ in "ab"]
    assert (compared(*of_a_glance, END_TO_END), compared(*of_a_glance)) == (NO, ALL)


def of(backend, **changes):
    made = session(**FILES, **changes)
    return structs.replace(made, case=structs.replace(made.case, backend=backend))


def test_another_numba_that_is_installed_beside_counts_for_the_host_alone():
    alone = {"numba-cuda": "0.30.4"}
    both = {**alone, "numba-cuda-mlir": "0.6.0"}
    alone, beside, newer = (
        of("numba", **on(libraries=each)) for each in (alone, both, {**both, "numba-cuda": "0.31"})
    )
    assert [compared(beside, alone, key) for key in (KERNEL, TRANSFER, END_TO_END)] == [ALL, ALL, NO]
    assert compared(newer, beside) is NO


def test_another_version_of_the_problem_and_a_host_variant_never_do_the_same():
    now = session(**FILES)
    assert compared(structs.replace(now, case=structs.replace(now.case, problem_version=2)), now) is NO
    assert compared(of("host"), now) is NO


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
    for key in (KERNEL, END_TO_END):
        for other in (session(), session(ONE, OTHER, IN, order=(0, 1, 0, 2)), session(ONE, order=(0, 0, 0))):
            assert compared(session(*work), other, key) is compared(other, session(*work), key) is NO
        assert compared(session(*work), session(*work), key) is not NO
        assert compared(session(*work, order=()), session(*work, order=()), key) is NO


@pytest.mark.parametrize(
    ("work", "key", "by_scalars"),
    [
        ((), KERNEL, ALL),
        ((ONE, OTHER), KERNEL, SEEN),  # the host may do more between them
        ((), LAUNCH, SEEN),
        (MANY, END_TO_END, SEEN),
        (MANY, TRANSFER, ALL),  # our code makes its copies
    ],
)
def test_scalars_tell_all_of_one_kernel_and_files_of_any_call(work, key, by_scalars):
    now, unknown = session(*work, **FILES), {"scalars": None, "inputs": None}
    assert compared(now, now, key) is (ALL if by_scalars is ALL else BY_FILES)
    assert compared(now, session(*work, files="2f"), key) is by_scalars
    if key != TRANSFER:
        assert (
            compared(session(*work, **FILES, **unknown), session(*work, **FILES, **unknown), key) is BY_FILES
        )
        assert compared(session(*work, **unknown), session(*work, **unknown), key) is SEEN
        assert compared(now, session(*work, scalars="6c", **FILES), key) is SEEN, "by a variable, perhaps"
    python = compared(structs.replace(now, **on(python_version="3.14")), now, key)
    assert python is (NO if key in (LAUNCH, END_TO_END) else compared(now, now, key))
