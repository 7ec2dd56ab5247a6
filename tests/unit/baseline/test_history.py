"""Checks the recorded sessions of a case, with what the file stores for several."""

from __future__ import annotations

import dataclasses

from made_up_past import facts
from msgspec import structs

from pytest_gpukern.baseline.history import past_of
from pytest_gpukern.baseline.record import (
    Baseline,
    Epoch,
    OutputAccuracy,
    Record,
    RecordedSession,
    RecordedTime,
    SessionEntry,
    as_recorded,
)
from pytest_gpukern.values.result import KernelFacts

TIME = RecordedTime(10, 100.0, 99.0, 101.0, 96.0, 98.0, 102.0, 104.0)
STAMP = "2026-11-20T10:00:00Z"


def recorded(*keys, **changes):
    return RecordedSession(
        STAMP, "f1", None, {}, dict.fromkeys(keys or ("kernel/cupti/cold",), TIME), **changes
    )


def baseline(*epochs, **changes):
    made = tuple(Epoch(STAMP, number, sessions, {"n": number}) for number, sessions in enumerate(epochs, 1))
    values = {"fingerprints": {"f1": {"driver_version": "580"}}, "cases": {"a": Record({"n": 1}, made)}}
    return Baseline("saxpy", "nvidia-h200", **{**values, **changes})


def test_a_case_that_is_not_recorded_has_no_past():
    assert past_of(baseline((recorded(),)), "b") is None


def test_without_a_key_it_is_the_newest_epoch_and_with_one_the_newest_that_holds_it():
    made = baseline((recorded(),), (recorded("transfer/host/hot"),))
    assert past_of(made, "a").problem_version == 2
    assert past_of(made, "a", "kernel/cupti/cold").measured_point == {"n": 1}
    assert past_of(made, "a", "kernel/event/cold") is None


def test_sessions_without_the_measurement_are_left_out():
    made = baseline((recorded(), recorded("kernel/event/cold")))
    assert len(past_of(made, "a").sessions) == 2
    assert len(past_of(made, "a", "kernel/event/cold").sessions) == 1


def test_a_session_has_its_fingerprint_and_its_kernels():
    kernel = KernelFacts("saxpy", 32, 0, 0, "beef")
    (session,) = past_of(baseline((recorded(kernels=(kernel,)),)), "a").sessions
    assert session.fingerprint == {"driver_version": "580"}
    assert session.kernels == (kernel,)


def test_what_the_file_holds_elsewhere_is_put_to_each_session():
    kernel = KernelFacts("saxpy", 32, 64, 0, grid=(63, 1, 1), block=(256, 1, 1))
    session = structs.replace(
        recorded(kernels=(kernel,)),
        session="s1",
        correctness={"y": OutputAccuracy(0.0, 0.0, 0.0, bits="splitmix64:1"), "z": OutputAccuracy(0, 0, 0)},
    )
    table = {
        "s1": SessionEntry(STAMP, "", {"copy": 100.0, "launch": None}),
        "s2": SessionEntry(STAMP, "", {}),
    }
    (past,) = past_of(dataclasses.replace(baseline((session,)), sessions=table), "a").sessions
    assert past.bits == {"y": "splitmix64:1"}
    assert past.canaries == {"copy": 100.0}
    assert past.session == "s1"
    (known,) = past.kernels
    assert (known.grid, known.block) == ((63, 1, 1), (256, 1, 1))


def test_a_kernel_just_seen_is_compared_as_a_record_would_have_it():
    long = "kernel<" + "int, " * 60 + "float>(float*)"
    seen = dataclasses.replace(facts(shared=1024), name=long)
    assert as_recorded(seen).name == "kernel<…>(…)"
    assert as_recorded(seen).shared_bytes == 1024
