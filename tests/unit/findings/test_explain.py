"""A verdict that something changed → what else changed, in words."""

from __future__ import annotations

import dataclasses
import math

import pytest
from made_up_past import BEFORE, UUID, facts, kernel, now, past, session

from pytest_gpukern.baseline.record import as_recorded
from pytest_gpukern.findings.explain import (
    because,
    clock_change,
    code_changes,
    cycles_change,
    other_machine,
    significant,
)
from pytest_gpukern.values.difference import CYCLES, Difference
from pytest_gpukern.values.fingerprint import Fingerprint
from pytest_gpukern.values.result import Choice, Verdict
from pytest_gpukern.values.verdict_table import VerdictKind

SAME_CODE = "same machine code"
NOTHING_DIFFERS = "nothing else that is recorded differs"
SAME_CYCLES = "the same number of cycles: clock or power, not code"


def said(differences):
    """The differences in words."""
    return tuple(map(str, differences))


def reasons(result, recorded=None):
    ((key, verdict),) = result.verdicts.items()
    (measurement,) = result.measurements
    assert measurement.key == key
    return said(because(result, [measurement], verdict, recorded or past()))


def changes(new, *recorded):
    return list(said(code_changes([as_recorded(each) for each in new], recorded)))


def test_a_lower_clock_explains_a_time_of_the_same_code_and_cycles():
    assert reasons(now(1980 / 1725, sm_mhz=1725.0)) == (SAME_CODE, "clock 1980 → 1725 MHz", SAME_CYCLES)


@pytest.mark.parametrize("of_own_card", [1.05, 1.1])
def test_a_clock_says_nothing_of_cycles_where_the_ratio_is_to_other_sessions(of_own_card):
    """The gate held the measurement against the sessions of its own card only."""
    result = now(1.148, sm_mhz=1725.0)
    verdict = Verdict(VerdictKind.SLOWER, "confirmed", of_own_card, sessions=2)
    found = said(because(result, result.measurements, verdict, past()))
    assert found == (SAME_CODE, "clock 1980 → 1725 MHz")


def decided_by(*clocks_mhz, times=1980 / 1725):
    """Reasons of a verdict that sessions at these clocks decided; the suspicion's ran at another."""
    suspicious = now(times, sm_mhz=1100.0)
    deciding = [now(times, sm_mhz=mhz).measurements[0] for mhz in clocks_mhz]
    (verdict,) = suspicious.verdicts.values()
    return said(because(suspicious, deciding, verdict, past()))


def test_the_clock_is_that_of_the_sessions_that_decided():
    assert decided_by(1720.0, 1730.0) == (SAME_CODE, "clock 1980 → 1725 MHz", SAME_CYCLES)


def test_sessions_that_decided_at_clocks_as_far_apart_as_the_record_is_away_moved_none():
    assert decided_by(1980.0, 1725.0) == (SAME_CODE, NOTHING_DIFFERS)


def test_a_lower_clock_that_explains_only_a_part_leaves_the_rest_in_cycles():
    found = reasons(now(1.15 * 1.1, sm_mhz=1980 / 1.1))
    assert found == (SAME_CODE, "clock 1980 → 1800 MHz", "in cycles +15.0 %")


def test_new_machine_code_is_told_with_what_it_takes():
    result = now(kernels=(facts(code="cafe", registers=96, local=128, shared=1024),))
    assert reasons(result) == (
        "new machine code",
        "registers 32 → 96",
        "local 0 → 128 B",
        "shared 0 → 1024 B",
    )


def test_new_machine_code_that_takes_the_same_is_just_that():
    assert reasons(now(kernels=(facts(code="cafe"),))) == ("new machine code",)


def test_a_hash_by_another_method_tells_nothing_of_the_code():
    """As those of whole modules, with all names in them, that older releases recorded."""
    before = past(session(kernel(code="c0de")))
    assert reasons(now(kernels=(facts(code="code:c0de"),)), before) == (
        "nothing else that is recorded differs",
    )
    mixed = past(session(kernel(code="c0de")), session(kernel(code="code:beef")))
    assert reasons(now(kernels=(facts(code="code:beef"),)), mixed) == (SAME_CODE, NOTHING_DIFFERS)
    assert reasons(now(kernels=(facts(code="code:cafe"),)), mixed) == ("new machine code",)


def test_code_that_any_recorded_session_had_is_the_same():
    assert changes([facts(code="cafe")], (kernel(),), (kernel(code="cafe"),)) == [SAME_CODE]


def test_without_hashes_only_what_is_known_is_told():
    assert changes([facts(code=None, registers=40)], (kernel(code=None),)) == ["registers 32 → 40"]
    assert changes([facts(code=None)], (kernel(code=None),)) == []
    assert changes([], (kernel(),)) == changes([facts()], ()) == []


def test_another_launch_of_the_same_code_is_told():
    found = changes([facts(grid=(32, 4, 1), block=(512, 1, 1))], (kernel(),))
    assert found == [SAME_CODE, "grid 63 → 32×4", "block 256 → 512"]
    assert changes([facts(grid=(9, 1, 1))], (kernel(grid=None, block=None),)) == [SAME_CODE]


def test_kernels_that_came_and_went_are_named():
    before = (kernel("saxpy"), kernel("scale"))
    assert changes([facts("saxpy"), facts("fused")], before) == [
        f"saxpy: {SAME_CODE}",
        "new: kernel fused",
        "gone: kernel scale",
    ]


def test_many_kernels_with_the_same_to_say_are_counted():
    names = ("a", "b", "c", "d")
    before = tuple(kernel(name) for name in names)
    new = [facts("a", code="cafe"), *(facts(name) for name in names[1:])]
    assert changes(new, before) == ["a: new machine code", f"3 kernels: {SAME_CODE}"]


def test_versions_that_differ_are_told_and_those_that_do_not_are_not():
    fingerprint = dataclasses.replace(
        BEFORE, driver_version="580.95", libraries={"cupy": "14.0", "numba": "0.68"}
    )
    assert reasons(now(fingerprint=fingerprint)) == (
        SAME_CODE,
        "driver 580.65.06 → 580.95",
        "numba 0.67 → 0.68",
    )


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
    fingerprint = dataclasses.replace(BEFORE, libraries={"cupy": "14.1", "numba": "0.68"})
    assert reasons(now(label=label, fingerprint=fingerprint)) == (SAME_CODE, *told)


def test_a_host_variants_time_is_explained_by_the_host_and_not_by_the_device():
    fingerprint = dataclasses.replace(BEFORE, driver_version="999", cpu_count=48)
    result = now(
        label="host.saxpy", scope="kernel", timer="host", fingerprint=fingerprint, kernels=(), clocks={}
    )
    assert reasons(result, past(session(key="kernel/host/cold"))) == ("CPUs 96 → 48",)


@pytest.mark.parametrize(
    ("now_mhz", "recorded", "spread", "moved"),
    [
        (1975.0, [1980.0], 0.0, False),
        (1970.0, [1980.0], 0.0, True),
        (1970.0, [1980.0], 30.0, False),
        (1970.0, [1980.0, 1965.0, 1950.0], 0.0, False),
        (1725.0, [1980.0, 1965.0, 1980.0], 0.0, True),
        (None, [1980.0], 0.0, False),
        (1980.0, [None, None], 0.0, False),
    ],
)
def test_a_clock_has_moved_where_it_did_by_more_than_its_own_spread(now_mhz, recorded, spread, moved):
    assert (clock_change(now_mhz, recorded, spread) is not None) is moved


def test_cycles_are_the_same_where_a_quarter_of_the_change_or_less_remains():
    assert cycles_change(math.log(1.08), math.log(1 / 1.07)) == Difference(CYCLES)
    assert cycles_change(math.log(1.08), math.log(1 / 1.04)) == Difference(CYCLES, now="+3.8 %")
    assert cycles_change(math.log(1.08), math.log(1.02)) is None


@pytest.mark.parametrize(
    ("low", "high", "said"),
    [(1.001, 1.03, True), (0.9, 0.99, True), (0.99, 1.02, False), (None, None, False)],
)
def test_an_undecided_change_is_significant_where_its_interval_leaves_out_no_change(low, high, said):
    assert significant(Verdict(VerdictKind.UNDECIDED, "", 1.0, low, high)) is said


# fingerprints
def told(host=False, recorded=(BEFORE,), **changes):
    return said(other_machine(dataclasses.replace(BEFORE, **changes), recorded, host=host))


def test_what_an_upgrade_changes_is_told_with_both_values_and_the_unit():
    found = told(
        driver_version="590.10", cuda_driver_version="13.1", power_limit_w=500.0, device_uuid="GPU-2"
    )
    assert found == (
        "driver 580.65.06 → 590.10",
        "CUDA 13.0 → 13.1",
        "power limit 700 → 500 W",
        f"device {UUID} → GPU-2",
    )


def test_what_any_recorded_session_had_is_no_difference():
    other = dataclasses.replace(BEFORE, device_uuid="GPU-2")
    assert told(recorded=(BEFORE, other), device_uuid="GPU-2") == ()
    assert told(recorded=(BEFORE, other), device_uuid="GPU-3") == (f"device {UUID} or GPU-2 → GPU-3",)


def test_many_recorded_cards_are_counted():
    others = [dataclasses.replace(BEFORE, device_uuid=f"GPU-{number}") for number in range(2, 6)]
    assert told(recorded=(BEFORE, *others), device_uuid="GPU-9") == ("device → GPU-9 (5 others recorded)",)


def test_what_a_fingerprint_does_not_tell_is_no_difference():
    assert told(recorded=(Fingerprint(libraries=BEFORE.libraries),), driver_version="590") == ()
    assert told(driver_version=None) == ()
    assert told(recorded=(Fingerprint(),), libraries={"numba": "0.68"}) == ()


def test_for_a_host_it_is_the_processor_that_counts():
    assert told(host=True, cpu_model="Xeon", driver_version="590") == ("processor AMD EPYC 9654 → Xeon",)
    assert told(cpu_model="Xeon") == ()


# what an autotuner chose


def tuned(**values):
    return {"saxpy": {"num_stages": "3", **{name: str(value) for name, value in values.items()}}}


def choosing(count=3, **values):
    return (session(choice=Choice.of(tuned(**values), ())),) * count


def test_another_choice_of_an_autotuner_is_the_first_thing_told():
    result = now(3.2, kernels=(facts(registers=96),), autotuned=tuned(num_warps=32))
    first, *_ = reasons(result, past(*choosing(num_warps=1)))
    assert first == "autotuned: num_warps 32, recorded: 1"
    both = now(3.2, autotuned=tuned(num_warps=32, BLOCK=64))
    first, *_ = reasons(both, past(*choosing(num_warps=1, BLOCK=128)))
    assert first == "autotuned: BLOCK 64 num_warps 32, recorded: 128 1"


def test_a_choice_that_the_judging_sessions_made_too_tells_nothing():
    result = now(1.15, autotuned=tuned(num_warps=1))
    assert "autotuned" not in " ".join(reasons(result, past(*choosing(num_warps=1))))
    mixed = past(*choosing(5, num_warps=8), *choosing(num_warps=1))
    assert "autotuned" not in " ".join(reasons(result, mixed))
    assert "autotuned" not in " ".join(reasons(result, past())), "it was not recorded then"
