"""Checks the recorded sessions of a case, with what the file stores for several."""

from __future__ import annotations

from made_up_past import facts
from msgspec import structs

from pytest_gpukern.baseline.record import (
    Baseline,
    Epoch,
    OutputAccuracy,
    Record,
    RecordedLaunches,
    RecordedSession,
    SessionEntry,
    as_recorded,
)
from pytest_gpukern.gate.comparability import Conditions, SessionTime
from pytest_gpukern.values.fingerprint import Fingerprint
from pytest_gpukern.values.result import KernelFacts

TIME = SessionTime(10, 100.0, 99.0, 101.0)
STAMP = "2026-11-20T10:00:00Z"
NVIDIA = Fingerprint(driver_version="580", device_uuid="GPU-1", device_model_key="nvidia-h200")


def recorded(*keys, **changes):
    return RecordedSession("s1", dict.fromkeys(keys or ("kernel/cupti/cold",), TIME), **changes)


def baseline(*epochs, **changes):
    made = tuple(Epoch(STAMP, number, {"n": number}, sessions) for number, sessions in enumerate(epochs, 1))
    entry = SessionEntry(STAMP, "f1", {"copy": 100.0, "launch": None})
    values = {
        "fingerprints": {"f1": NVIDIA},
        "sessions": {"s1": entry},
        "cases": {"a": Record({"n": 1}, made)},
    }
    return Baseline("saxpy", "nvidia-h200", **{**values, **changes})


def test_a_case_that_is_not_recorded_has_no_past():
    assert baseline((recorded(),)).past("b") is None


def test_without_a_key_it_is_the_newest_epoch_and_with_one_the_newest_that_holds_it():
    made = baseline((recorded(),), (recorded("transfer/host/hot"),))
    assert made.past("a").problem_version == 2
    assert made.past("a", "kernel/cupti/cold").measured_point == {"n": 1}
    assert made.past("a", "kernel/event/cold") is None


def test_sessions_without_the_measurement_are_left_out():
    made = baseline((recorded(), recorded("kernel/event/cold")))
    assert len(made.past("a").sessions) == 2
    assert len(made.past("a", "kernel/event/cold").sessions) == 1


def test_a_session_has_its_fingerprint_and_its_kernels():
    kernel = KernelFacts("saxpy", 32, 0, 0, "beef")
    (session,) = baseline((recorded(launches=RecordedLaunches((kernel,))),)).past("a").sessions
    assert session.fingerprint == NVIDIA
    assert session.kernels == (kernel,)


def test_what_the_file_holds_elsewhere_is_put_to_each_session_and_time():
    kernel = KernelFacts("saxpy", 32, 64, 0, grid=(63, 1, 1), block=(256, 1, 1))
    shared = {"correctness": {"y": OutputAccuracy(0, 0, 0)}, "launches": RecordedLaunches((kernel,))}
    own = recorded(correctness={"y": OutputAccuracy(0, 0, 0, bits="splitmix64:1")})
    made = baseline((recorded(), own))
    epoch = structs.replace(made.cases["a"].epochs[0], **shared)
    made = structs.replace(made, cases={"a": Record({"n": 1}, (epoch,))})
    first, second = made.past("a").sessions
    assert (first.outputs["y"].bits, second.outputs["y"].bits) == (None, "splitmix64:1")
    assert first.kernels == second.kernels == (kernel,)
    assert (first.canaries, first.session) == ({"copy": 100.0}, "s1")
    time = made.session_times("a", "kernel/cupti/cold")[0]
    assert (time.key, time.device, time.session, time.recorded) == ("kernel/cupti/cold", "GPU-1", "s1", STAMP)
    assert time.conditions == Conditions(1, {"n": 1}, "nvidia-h200")


def test_the_history_has_the_times_of_all_epochs():
    made = baseline((recorded(),), (recorded(), recorded("transfer/host/hot")))
    assert made.history("b") is None
    times = made.history("a").times
    assert [time.epoch for time in times["kernel/cupti/cold"]] == [0, 1]
    assert [time.median_ns for time in times["transfer/host/hot"]] == [100.0]


def test_a_kernel_just_seen_is_compared_as_a_record_would_have_it():
    long = "kernel<" + "int, " * 60 + "float>(float*)"
    seen = structs.replace(facts(shared=1024), name=long)
    assert as_recorded(seen).name == "kernel<…>(…)"
    assert as_recorded(seen).shared_bytes == 1024
