"""A verdict that something changed → what else changed, in words."""

from __future__ import annotations

import math

import pytest
from made_up_past import BEFORE, UUID, facts, kernel, now, past, session

from pytest_gpukern.baseline.record import as_recorded
from pytest_gpukern.findings.explain import (
    because,
    clock_change,
    code_changes,
    cycles_change,
    dimensions,
    other_machine,
    significant,
)
from pytest_gpukern.values.difference import CYCLES, Difference
from pytest_gpukern.values.result import Choice, Verdict
from pytest_gpukern.values.verdict_table import VerdictKind

SAME_CODE, NEW_CODE = "same machine code", "new machine code"
NOTHING_DIFFERS = "nothing else that is recorded differs"
SAME_CYCLES = "the same number of cycles: clock or power, not code"
GREW = facts(code="cafe", registers=96, local=128, shared=1024)
TAKES_MORE = ("registers 32 → 96", "local 0 → 128 B", "shared 0 → 1024 B")
UPGRADED = {**BEFORE, "driver_version": "580.95", "libraries": {"cupy": "14.0", "numba": "0.68"}}
COPY = session(key="transfer/cupti/cold")
MODULE, OTHER_MODULE = kernel(code="code:beef"), facts(code="code:cafe")


def said(differences):
    return tuple(map(str, differences))


def reasons(result, recorded=(), *, ratio=None, deciding=None):
    (verdict,) = result.verdicts.values()
    verdict = Verdict(VerdictKind.SLOWER, "confirmed", ratio, sessions=2) if ratio else verdict
    return said(because(result, deciding or result.measurements, verdict, past(*recorded)))


@pytest.mark.parametrize(
    ("result", "recorded", "expected"),
    [
        (now(), (), (SAME_CODE, NOTHING_DIFFERS)),
        (now(kernels=()), (), (NOTHING_DIFFERS,)),
        (now(kernels=(facts(code="cafe"),)), (), (NEW_CODE,)),
        (now(kernels=(GREW,)), (), (NEW_CODE, *TAKES_MORE)),
        # a hash by another method, as of whole modules with all names in them, tells nothing of the code
        (now(kernels=(OTHER_MODULE,)), (), (NOTHING_DIFFERS,)),
        (now(kernels=(OTHER_MODULE,)), (session(), session(MODULE)), (NEW_CODE,)),
        (now(kernels=(facts(code="code:beef"),)), (session(), session(MODULE)), (SAME_CODE, NOTHING_DIFFERS)),
        (now(fingerprint=UPGRADED), (), (SAME_CODE, "driver 580.65.06 → 580.95", "numba 0.67 → 0.68")),
        # clocks
        (now(1980 / 1725, sm_mhz=1725.0), (), (SAME_CODE, "clock 1980 → 1725 MHz", SAME_CYCLES)),
        (now(1.15 * 1.1, sm_mhz=1800.0), (), (SAME_CODE, "clock 1980 → 1800 MHz", "in cycles +15.0 %")),
        (now(1.02, sm_mhz=1800.0), (), (SAME_CODE, "clock 1980 → 1800 MHz")),
        (now(state={"memory_mhz": 1593}), (), (SAME_CODE, "memory clock 2619 → 1593 MHz")),
        (now(1.1, scope="transfer", sm_mhz=1725.0), (COPY,), ("clock 1980 → 1725 MHz",)),
    ],
)
def test_what_else_changed(result, recorded, expected):
    assert reasons(result, recorded) == expected


@pytest.mark.parametrize("of_own_card", [1.05, 1.1])
def test_a_clock_says_nothing_of_cycles_where_the_ratio_is_to_other_sessions(of_own_card):
    """The gate held the measurement against the sessions of its own card only."""
    assert reasons(now(1.148, sm_mhz=1725.0), ratio=of_own_card) == (SAME_CODE, "clock 1980 → 1725 MHz")


@pytest.mark.parametrize(
    ("clocks_mhz", "expected"),
    [
        ((1720.0, 1730.0), ("clock 1980 → 1725 MHz", SAME_CYCLES)),
        # as far apart as the record is away
        ((1980.0, 1725.0), (NOTHING_DIFFERS,)),
    ],
)
def test_the_clock_is_that_of_the_sessions_that_decided(clocks_mhz, expected):
    """The suspicion's ran at another."""
    deciding = [now(1980 / 1725, sm_mhz=mhz).measurements[0] for mhz in clocks_mhz]
    assert reasons(now(1980 / 1725, sm_mhz=1100.0), deciding=deciding) == (SAME_CODE, *expected)


WITHOUT_CODE, WITHOUT_SIZE = kernel(code=None), kernel(grid=None, block=None)
A_AND_B, A_AND_C = [facts("a"), facts("b")], (kernel("a"), kernel("c"))
FOUR = [facts("a", code="cafe"), *map(facts, "bcd")]


@pytest.mark.parametrize(
    ("new", "recorded", "expected"),
    [
        ([facts(code="cafe")], [(kernel(),), (kernel(code="cafe"),)], [SAME_CODE]),  # as in any session
        # without hashes only what is known is told
        ([facts(code=None, registers=40)], [(WITHOUT_CODE,)], ["registers 32 → 40"]),
        ([facts(code=None)], [(WITHOUT_CODE,)], []),
        ([], [(kernel(),)], []),
        ([facts()], [()], []),
        # another launch
        ([facts(grid=(32, 4, 1))], [(kernel(),)], [SAME_CODE, "grid 63 → 32×4"]),
        ([facts(grid=(9, 1, 1), block=(512, 1, 1))], [(WITHOUT_SIZE,)], [SAME_CODE]),
        ([facts(), facts(block=(9, 1, 1))], [(kernel(),)], [SAME_CODE, "block 256 → 256 or 9"]),
        # kernels that came and went
        (A_AND_B, [A_AND_C, (kernel("a"),)], [f"a: {SAME_CODE}", "new: kernel b"]),
        (A_AND_B, [A_AND_C] * 2, [f"a: {SAME_CODE}", "new: kernel b", "gone: kernel c"]),
        # many with the same to say are counted
        (FOUR, [tuple(map(kernel, "abcd"))], [f"a: {NEW_CODE}", f"3 kernels: {SAME_CODE}"]),
    ],
)
def test_what_changed_in_the_kernels(new, recorded, expected):
    assert list(said(code_changes(map(as_recorded, new), recorded))) == expected


@pytest.mark.parametrize(
    ("size", "words"),
    [((1, 1, 1), "1"), ((15625, 1, 1), "15625"), ((63, 4, 1), "63×4"), ((2, 1, 3), "2×1×3")],
)
def test_a_size_is_written_without_the_trailing_ones(size, words):
    assert dimensions(size) == words


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
    fingerprint = {**BEFORE, "libraries": {"cupy": "14.1", "numba": "0.68"}}
    assert reasons(now(label=label, fingerprint=fingerprint)) == (SAME_CODE, *told)


def test_a_host_variants_time_is_explained_by_the_host_and_not_by_the_device():
    fingerprint = {**BEFORE, "driver_version": "999", "cpu_count": 48}
    result = now(label="host.saxpy", timer="host", fingerprint=fingerprint, kernels=(), state={})
    assert reasons(result, [session(key="kernel/host/cold")]) == ("CPUs 96 → 48",)
    clocked = now(1980 / 1725, timer="host", sm_mhz=1725.0)
    assert reasons(clocked, [session(key="kernel/host/cold")]) == (SAME_CODE, "clock 1980 → 1725 MHz")


@pytest.mark.parametrize(
    ("now_mhz", "recorded", "spread", "moved"),
    [
        (1994.0, [2000.0], 0.0, False),  # 0.3 % are never told
        (1993.9, [2000.0], 0.0, True),
        (1970.0, [1980.0], 10.0, False),
        (1969.9, [1980.0], 10.0, True),
        (1970.0, [1980.0, 1965.0, 1950.0], 0.0, False),
        (1725.0, [1980.0, 1965.0, 1980.0], 0.0, True),
        (None, [1980.0], 0.0, False),
        (1980.0, [None, None], 0.0, False),
    ],
)
def test_a_clock_has_moved_where_it_did_by_more_than_its_own_spread(now_mhz, recorded, spread, moved):
    assert (clock_change(now_mhz, recorded, spread) is not None) is moved


@pytest.mark.parametrize(
    ("time", "clock", "expected"),
    [
        (1.0, -0.75, Difference(CYCLES)),
        (1.0, -0.74, Difference(CYCLES, now="+29.7 %")),
        (-1.0, 0.75, Difference(CYCLES)),
        (math.log(1.08), math.log(1 / 1.04), Difference(CYCLES, now="+3.8 %")),
        (1.0, 0.0, None),
        (1.0, 0.1, None),
        (1.0, -2.0, None),
    ],
)
def test_cycles_are_the_same_where_a_quarter_of_the_change_or_less_remains(time, clock, expected):
    assert cycles_change(time, clock) == expected


@pytest.mark.parametrize(
    ("low", "high", "changed"),
    [(1.001, 1.03, True), (0.9, 0.99, True), (1.0, 1.02, False), (0.9, 1.0, False), (None, None, False)],
)
def test_an_undecided_change_is_significant_where_its_interval_leaves_out_no_change(low, high, changed):
    assert significant(Verdict(VerdictKind.UNDECIDED, "", 1.0, low, high)) is changed


# fingerprints

OTHERS = [{**BEFORE, "device_uuid": f"GPU-{number}"} for number in range(2, 6)]
LIBRARIES = {"libraries": {"cupy": "14.0", "numba": "0.67"}}
UPGRADE = {
    "driver_version": "590.10",
    "cuda_driver_version": "13.1",
    "power_limit_w": 500.0,
    "device_uuid": "GPU-2",
}
UPGRADE_TOLD = (
    "driver 580.65.06 → 590.10",
    "CUDA 13.0 → 13.1",
    "power limit 700 → 500 W",
    f"device {UUID} → GPU-2",
)


@pytest.mark.parametrize(
    ("recorded", "changes", "expected"),
    [
        ([BEFORE], UPGRADE, UPGRADE_TOLD),
        ([BEFORE], {"cpu_model": "Xeon"}, ()),
        # what any recorded session had is no difference, and many values are counted
        ([BEFORE, OTHERS[0]], {"device_uuid": "GPU-2"}, ()),
        ([BEFORE, OTHERS[0]], {"device_uuid": "GPU-3"}, (f"device {UUID} or GPU-2 → GPU-3",)),
        ([BEFORE, *OTHERS[:2]], {"device_uuid": "GPU-9"}, ("device → GPU-9 (3 others recorded)",)),
        # nor is what a fingerprint does not tell
        ([LIBRARIES], {"driver_version": "590"}, ()),
        ([BEFORE], {"driver_version": None}, ()),
        ([{**BEFORE, "driver_version": None}], {"driver_version": "590"}, ()),
        ([{}], {"libraries": {"numba": "0.68"}}, ()),
        ([BEFORE], {"libraries": None}, ("cupy 14.0 → none", "numba 0.67 → none")),
        ([BEFORE], {"libraries": {**LIBRARIES["libraries"], "torch": "3.0"}}, ("torch none → 3.0",)),
    ],
)
def test_what_differs_in_the_machine_is_told_with_both_values_and_the_unit(recorded, changes, expected):
    assert said(other_machine({**BEFORE, **changes}, recorded, host=False)) == expected


def test_for_a_host_it_is_the_processor_that_counts():
    machine = {**BEFORE, "cpu_model": "Xeon", "driver_version": "590"}
    assert said(other_machine(machine, [BEFORE], host=True)) == ("processor AMD EPYC 9654 → Xeon",)


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
    assert reasons(now(3.2, autotuned=chosen), recorded)[0] == first
