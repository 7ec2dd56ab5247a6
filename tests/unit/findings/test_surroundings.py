"""Fingerprints → what differs between them, in words."""

from __future__ import annotations

from made_up_past import BEFORE, UUID

from pytest_gpukern.findings.explain import differences


def told(host=False, recorded=(BEFORE,), **changes):
    return differences({**BEFORE, **changes}, recorded, host=host)


def test_equal_fingerprints_differ_in_nothing():
    assert told() == told(host=True) == ()


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


def test_libraries_that_came_and_went_are_told():
    assert told(libraries={"numba": "0.68", "torch": "2.9"}) == (
        "cupy 14.0 → none",
        "numba 0.67 → 0.68",
        "torch none → 2.9",
    )


def test_what_any_recorded_session_had_is_no_difference():
    other = {**BEFORE, "device_uuid": "GPU-2"}
    assert told(recorded=(BEFORE, other), device_uuid="GPU-2") == ()
    assert told(recorded=(BEFORE, other), device_uuid="GPU-3") == (f"device {UUID} or GPU-2 → GPU-3",)


def test_what_a_fingerprint_does_not_tell_is_no_difference():
    assert told(recorded=({"libraries": {"cupy": "14.0", "numba": "0.67"}},), driver_version="590") == ()
    assert told(driver_version=None) == ()
    assert told(recorded=({},), libraries={"numba": "0.68"}) == ()


def test_for_a_host_it_is_the_processor_that_counts():
    assert told(host=True, cpu_model="Xeon", driver_version="590") == ("processor AMD EPYC 9654 → Xeon",)
    assert told(cpu_model="Xeon") == ()
