"""A verdict that something changed → what else changed, in words."""

from __future__ import annotations

import math

import pytest
from made_up_past import BEFORE, UUID, facts, kernel, now, past, session
from msgspec import structs

from pytest_gpukern.findings.explain import because
from pytest_gpukern.values.fingerprint import Fingerprint
from pytest_gpukern.values.result import Choice, Verdict
from pytest_gpukern.values.verdict_table import VerdictKind

SAME_CODE, NEW_CODE = "same machine code", "new machine code"
SAME_CYCLES = "the same number of cycles: clock or power, not code"


def reasons(result, *recorded, ratio=None, deciding=None):
    (verdict,) = result.verdicts.values()
    verdict = Verdict(VerdictKind.SLOWER, "confirmed", ratio, sessions=2) if ratio else verdict
    return tuple(map(str, because(result, deciding or result.measurements, verdict, past(*recorded))))


def running(*kernels):
    return now(kernels=kernels)


A_AND_B, A_AND_C = map(facts, "ab"), session(kernel("a"), kernel("c"))
CODELESS, SIZELESS = session(kernel(code=None)), session(kernel(grid=None, block=None))
OF_MODULE = session(kernel(code="code:beef"))
GREW = facts(code="cafe", registers=96, local_bytes=128, shared_bytes=1024)


@pytest.mark.parametrize(
    ("result", "recorded", "expected"),
    [
        (running(facts()), (), (SAME_CODE,)),
        (running(facts(code="cafe")), (), (NEW_CODE,)),
        (running(GREW), (), (NEW_CODE, "registers 32 → 96", "local 0 → 128 B", "shared 0 → 1024 B")),
        (running(facts(code="cafe")), (session(), session(kernel(code="cafe"))), (SAME_CODE,)),
        # without hashes only what is known is told; one by another method, as of whole modules, tells nothing
        (running(facts(code=None, registers=40)), (CODELESS,), ("registers 32 → 40",)),
        (running(facts(code=None)), (CODELESS,), ()),
        (running(), (), ()),
        (running(facts(code="code:cafe")), (), ()),
        (running(facts(code="code:cafe")), (session(), OF_MODULE), (NEW_CODE,)),
        (running(facts(code="code:beef")), (session(), OF_MODULE), (SAME_CODE,)),
        # another launch
        (running(facts(grid=(32, 1, 4))), (), (SAME_CODE, "grid 63 → 32×1×4")),
        (running(facts(grid=(9, 1, 1), block=(512, 1, 1))), (SIZELESS,), (SAME_CODE,)),
        (running(facts(), facts(block=(1, 1, 1))), (), (SAME_CODE, "block 256 → 256 or 1")),
        # kernels that came and went; many with the same to say are counted
        (running(*A_AND_B), (A_AND_C, A_AND_C), (f"a: {SAME_CODE}", "new: kernel b", "gone: kernel c")),
        (running(facts("a")), (A_AND_C, session(kernel("a"))), (SAME_CODE,)),
        (
            running(facts("a", code="cafe"), *map(facts, "bcd")),
            (session(*map(kernel, "abcd")),),
            (f"a: {NEW_CODE}", f"3 kernels: {SAME_CODE}"),
        ),
    ],
)
def test_what_changed_in_the_kernels(result, recorded, expected):
    assert reasons(result, *recorded) == expected


# clocks


def at(*clocks_mhz):
    return [session(sm_mhz=mhz) for mhz in clocks_mhz]


@pytest.mark.parametrize(
    ("result", "recorded", "expected"),
    [
        (now(1980 / 1725, sm_mhz=1725.0), (), ("clock 1980 → 1725 MHz", SAME_CYCLES)),
        (now(1.15 * 1.1, sm_mhz=1800.0), (), ("clock 1980 → 1800 MHz", "in cycles +15.0 %")),
        (now(1.02, sm_mhz=1800.0), (), ("clock 1980 → 1800 MHz",)),
        # cycles are the same where a quarter of the change or less remains
        (now(math.e, sm_mhz=1980 * math.exp(-0.7501)), (), ("clock 1980 → 935 MHz", SAME_CYCLES)),
        (now(math.e, sm_mhz=1980 * math.exp(-0.7499)), (), ("clock 1980 → 935 MHz", "in cycles +28.4 %")),
        (now(math.e, sm_mhz=1980 * math.exp(-1.5)), (), ("clock 1980 → 442 MHz", "in cycles −39.3 %")),
        (now(1 / math.e, sm_mhz=1980 * math.exp(0.7501)), (), ("clock 1980 → 4192 MHz", SAME_CYCLES)),
        (now(clocks={"memory_mhz": 1593}), (), ("memory clock 2619 → 1593 MHz",)),
        # by more than 0.3 %, the spread within the session, which is 6 MHz here, and that of the recorded
        (now(sm_mhz=1994.0), at(2000.0), ()),
        (now(sm_mhz=1993.9), at(2000.0), ("clock 2000 → 1994 MHz", "in cycles +14.6 %")),
        (now(sm_mhz=994.0), at(1000.0), ()),
        (now(sm_mhz=993.9), at(1000.0), ("clock 1000 → 994 MHz", "in cycles +14.3 %")),
        (now(sm_mhz=1970.0), at(1980.0, 1965.0, 1950.0), ()),
        (now(sm_mhz=1725.0), at(1980.0, 1965.0, 1980.0), ("clock 1980 → 1725 MHz", SAME_CYCLES)),
        (now(clocks={}), (), ()),
        (now(sm_mhz=1725.0), at(None, None), ()),
    ],
)
def test_a_clock_that_moved_explains_a_time_of_the_same_code(result, recorded, expected):
    assert reasons(result, *recorded) == (SAME_CODE, *expected)


def test_a_clock_says_nothing_of_cycles_where_the_device_did_not_time_a_kernel():
    copy = now(1.1, scope="transfer", sm_mhz=1800.0)
    assert reasons(copy, session(key="transfer/cupti/cold")) == ("clock 1980 → 1800 MHz",)
    by_host = now(1.1, timer="host", sm_mhz=1800.0)
    assert reasons(by_host, session(key="kernel/host/cold")) == (SAME_CODE, "clock 1980 → 1800 MHz")
    for of_own_card in (1.05, 1.1):  # by which the gate judged, while the clock is that of all sessions
        found = reasons(now(1.148, sm_mhz=1725.0), ratio=of_own_card)
        assert found == (SAME_CODE, "clock 1980 → 1725 MHz")


@pytest.mark.parametrize(
    ("clocks_mhz", "expected"),
    [
        ((1720.0, 1730.0), ("clock 1980 → 1725 MHz", SAME_CYCLES)),
        ((1980.0, 1725.0), ()),  # as far apart as the record is away
    ],
)
def test_the_clock_is_that_of_the_sessions_that_decided(clocks_mhz, expected):
    """The suspicion's ran at another."""
    deciding = [now(1980 / 1725, sm_mhz=mhz).measurements[0] for mhz in clocks_mhz]
    assert reasons(now(1980 / 1725, sm_mhz=1100.0), deciding=deciding) == (SAME_CODE, *expected)


# fingerprints

OTHERS = [structs.replace(BEFORE, device_uuid=f"GPU-{number}") for number in range(2, 6)]
OLD = Fingerprint(libraries=BEFORE.libraries)
UPGRADE = {"driver_version": "590.10", "cuda_driver_version": "13.1", "power_limit_w": 500.0}


@pytest.mark.parametrize(
    ("recorded", "changes", "expected"),
    [
        ([BEFORE], UPGRADE, ("driver 580.65.06 → 590.10", "CUDA 13.0 → 13.1", "power limit 700 → 500 W")),
        ([BEFORE], {"cpu_model": "Xeon"}, ()),
        # what any recorded session had is no difference, and many values are counted
        ([BEFORE, OTHERS[0]], {"device_uuid": "GPU-2"}, ()),
        ([BEFORE, OTHERS[0]], {"device_uuid": "GPU-3"}, (f"device {UUID} or GPU-2 → GPU-3",)),
        ([BEFORE, *OTHERS[:2]], {"device_uuid": "GPU-9"}, ("device → GPU-9 (3 others recorded)",)),
        # nor is what a fingerprint does not tell
        ([OLD], {"driver_version": "590"}, ()),
        ([BEFORE], {"driver_version": None}, ()),
        ([structs.replace(BEFORE, driver_version=None)], {"driver_version": "590"}, ()),
        ([Fingerprint()], {"libraries": {"numba": "0.68"}}, ()),
        ([BEFORE], {"libraries": {}}, ("numba 0.67 → none",)),
        ([BEFORE], {"libraries": {"numba": "0.68", "scipy": "3"}}, ("numba 0.67 → 0.68", "scipy none → 3")),
    ],
)
def test_what_differs_in_the_machine_is_told_with_both_values_and_the_unit(recorded, changes, expected):
    result = now(fingerprint=structs.replace(BEFORE, **changes))
    told = reasons(result, *(session(fingerprint=each) for each in recorded))
    assert told == (SAME_CODE, *expected)


@pytest.mark.parametrize(
    ("label", "told"),
    [
        ("numba.saxpy", ("numba 0.67 → 0.68",)),
        ("cupy.saxpy", ("cupy 14.0 → 14.1",)),
        ("dask.saxpy", ("cupy 14.0 → 14.1",)),
        ("test_plain", ("cupy 14.0 → 14.1", "numba 0.67 → 0.68")),
    ],
)
def test_a_library_that_the_backend_does_not_use_is_no_reason(label, told):
    fingerprint = structs.replace(BEFORE, libraries={"cupy": "14.1", "numba": "0.68"})
    assert reasons(now(label=label, fingerprint=fingerprint)) == (SAME_CODE, *told)


def test_a_host_variants_time_is_explained_by_the_host_and_not_by_the_device():
    fingerprint = structs.replace(BEFORE, driver_version="999", cpu_count=48, cpu_model="Xeon")
    result = now(label="host.saxpy", timer="host", fingerprint=fingerprint, kernels=(), clocks={})
    told = ("processor AMD EPYC 9654 → Xeon", "CPUs 96 → 48")
    assert reasons(result, session(key="kernel/host/cold")) == told


# what an autotuner chose


def tuned(**values):
    return {"saxpy": {"num_stages": "3", **{name: str(value) for name, value in values.items()}}}


def choosing(count=3, **values):
    return (session(choice=Choice.of(tuned(**values), ())),) * count


@pytest.mark.parametrize(
    ("chosen", "recorded", "first"),
    [
        (tuned(num_warps=32), choosing(num_warps=1), "autotuned: num_warps 32, recorded: 1"),
        (tuned(b=2, a=4), choosing(b=1, a=8), "autotuned: a 4 b 2, recorded: 8 1"),
        (
            {**tuned(num_warps=32), "b": {}},
            choosing(num_warps=1),
            "saxpy: autotuned: num_warps 32, recorded: 1",
        ),
        # a choice that the judging sessions made too, or that was not recorded, tells nothing
        (tuned(num_warps=1), choosing(num_warps=1), SAME_CODE),
        (tuned(num_warps=1), choosing(5, num_warps=8) + choosing(num_warps=1), SAME_CODE),
        (tuned(num_warps=1), (), SAME_CODE),
    ],
)
def test_another_choice_of_an_autotuner_is_the_first_thing_told(chosen, recorded, first):
    assert reasons(now(3.2, autotuned=chosen), *recorded)[0] == first
