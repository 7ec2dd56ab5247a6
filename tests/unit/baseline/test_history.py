"""Checks what a baseline knows of a case: epochs, their sessions, and what a file stores for several."""

from __future__ import annotations

import dataclasses
from datetime import datetime, timedelta

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from made_up_past import facts
from made_up_results import COPY_IN, measured, result
from msgspec import structs

from pytest_gpukern.baseline.record import (
    Baseline,
    Epoch,
    Record,
    RecordedLaunches,
    RecordedSession,
    SessionEntry,
    as_recorded,
)
from pytest_gpukern.gate.comparability import Conditions, OutputAccuracy, SessionTime
from pytest_gpukern.values.fingerprint import Fingerprint
from pytest_gpukern.values.result import DeviceWork, KernelFacts

NVIDIA = Fingerprint(driver_version="580", device_uuid="GPU-1", device_model_key="nvidia-h200")
KEYS = CUPTI, EVENT, COPY = "kernel/cupti/cold", "kernel/event/cold", "transfer/host/hot"
BEGAN = datetime(2026, 11, 20, 10)


def moment(number):
    return f"{BEGAN + timedelta(minutes=number):%Y-%m-%dT%H:%M:%SZ}"


def session(number, keys=(CUPTI,), **changes):
    """Session `number`, which measured these keys; its times are that many nanoseconds above 100."""
    time = SessionTime(10, 100.0 + number, 99.0, 500.0)
    return RecordedSession(f"s{number}", dict.fromkeys(keys, time), **changes)


def entries(count):
    return {f"s{n}": SessionEntry(moment(n), "f1", {"copy": 100.0, "launch": None}) for n in range(count)}


def baseline(*epochs, **shared):
    """A baseline whose case "a" has epochs of these sessions, each opened when its first session ended."""
    made = tuple(
        Epoch(moment(int(sessions[0].session[1:])), number, tuple(sessions), **shared)
        for number, sessions in enumerate(epochs, 1)
    )
    return Baseline("saxpy", "nvidia-h200", {"f1": NVIDIA}, entries(99), {"a": Record({"n": 1}, made)})


def numbers(times):
    return [int(time.median_ns) - 100 for time in times]


sets_of_keys = st.sets(st.sampled_from(KEYS), min_size=1)


@given(st.lists(st.lists(sets_of_keys, min_size=1, max_size=8), min_size=1, max_size=5))
def test_a_time_is_judged_by_the_newest_epoch_that_holds_it_and_anchored_by_the_oldest(history):
    numbered, count = [], 0
    for epoch in history:
        numbered.append([(count + place, keys) for place, keys in enumerate(epoch)])
        count += len(epoch)
    made = baseline(*[[session(n, keys) for n, keys in epoch] for epoch in numbered])
    recorded = made.history("a")
    assert [epoch.opened for epoch in recorded.epochs] == [moment(epoch[0][0]) for epoch in numbered]
    current = {}
    for key in KEYS:
        holding = [[n for n, keys in epoch if key in keys] for epoch in numbered]
        held = [place for place, those in enumerate(holding) if those]
        if not held:
            assert (made.past("a", key), made.newer_epoch("a", key)) == ((), None)
            assert (made.anchor_times("a", key), key in recorded.times) == ((), False)
            continue
        newest, oldest = held[-1], held[0]
        current[key] = holding[newest]
        times = made.session_times("a", key)
        assert {(time.key, time.epoch) for time in times} == {(key, newest)}
        assert [time.opening for time in times] == [place < 5 for place in range(len(times))]
        assert times[0].conditions == Conditions(newest + 1, "nvidia-h200")
        assert made.past("a", key) == times
        assert numbers(made.anchor_times("a", key)) == ([] if oldest == newest else holding[oldest])
        later = None if newest == len(holding) - 1 else moment(numbered[-1][0][0])
        assert made.newer_epoch("a", key) == later
        assert numbers(recorded.times[key]) == [n for those in holding for n in those]
        assert {time.epoch for time in recorded.times[key]} == set(held)
    of_scope = [n for key in (CUPTI, EVENT) for n in current.get(key, ())]
    for key in KEYS:
        nearest = current.get(key) or (of_scope if key != COPY else [])
        assert numbers(made.session_times("a", key)) == nearest
    assert [numbers(times) for times in made.all_times()] == [current[key] for key in KEYS if key in current]
    assert [each.session for each in made.past("a")] == [f"s{n}" for n, _ in numbered[-1]]


def test_of_a_case_that_is_not_recorded_nothing_is_known():
    made = baseline([session(0)])
    assert made.history("b") is made.newer_epoch("b", CUPTI) is None
    assert made.past("b") == made.session_times("b", CUPTI) == made.anchor_times("b", CUPTI) == ()


@given(st.lists(sets_of_keys, min_size=1, max_size=12))
def test_a_record_keeps_the_newest_three_epochs_and_the_first_and_last_of_each_key(history):
    epochs = [Epoch(moment(n), n, (session(n, keys),)) for n, keys in enumerate(history)]
    record = Record({}, (epochs[0],))
    for epoch in epochs[1:]:
        record = record.opening(epoch)
    holders = [[n for n, keys in enumerate(history) if key in keys] for key in KEYS]
    kept = {n for those in holders if those for n in (those[0], those[-1])}
    kept |= set(range(len(epochs))[-3:])
    assert [epoch.problem_version for epoch in record.epochs] == sorted(kept)


@given(st.integers(1, 25), st.integers(0, 25))
@example(opened=2, appended=19)
@example(opened=3, appended=18)
@example(opened=11, appended=10)
def test_of_each_key_an_epoch_keeps_the_sessions_that_opened_it_and_the_newest(opened, appended):
    """At most ten of the former, twenty in all; if fewer than three opened it, the first five count so."""
    count = opened + appended
    whole = [session(n, (CUPTI, COPY) if n % 2 else (CUPTI,)) for n in range(count)]
    made = Epoch(moment(opened - 1), 1, ()).adding(whole[:opened], entries(count))
    for each in whole[opened:]:
        made = made.adding([each], entries(count))
    for key, those in ((CUPTI, range(count)), (COPY, range(1, count, 2))):
        opening = sum(n < opened for n in those)
        first = min(opening if opening >= 3 else 5, 10)
        kept = [*those] if len(those) <= 20 else [*those[:first], *those[first - 20 :]]
        assert numbers(each.times[key] for each in made.holding(key)) == kept
        assert made.first(key, entries(count)) == first
    assert all(each.times for each in made.sessions)


def test_what_the_file_holds_elsewhere_is_put_to_each_session_and_time():
    kernel = KernelFacts("saxpy", 32, 64, 0, "beef", grid=(63, 1, 1), block=(256, 1, 1))
    shared = {"correctness": {"y": OutputAccuracy(0, 0, 0)}, "launches": RecordedLaunches((kernel,))}
    own = {"correctness": {"y": OutputAccuracy(0, 0, 0, bits="splitmix64:1")}, "launches": RecordedLaunches()}
    made = baseline([session(0), session(1, **own)], **shared)
    first, second = made.past("a", CUPTI)
    assert (first.outputs["y"].bits, second.outputs["y"].bits) == (None, "splitmix64:1")
    assert (first.kernels, second.kernels) == ((kernel,), ())
    assert first.choice.launches == (("saxpy", (63, 1, 1), (256, 1, 1), 32),)
    assert (first.canaries, first.fingerprint) == ({"copy": 100.0, "launch": None}, NVIDIA)
    assert (first.device, first.session, first.recorded) == ("GPU-1", "s0", moment(0))


@pytest.mark.parametrize(("model", "device"), [("nvidia-h200", "GPU-1"), ("amd-epyc", None)])
def test_a_time_of_the_host_has_no_device_though_the_machine_has_one(model, device):
    made = structs.replace(baseline([session(0)]), device_model=model)
    assert made.session_times("a", CUPTI)[0].device == device


def test_a_kernel_just_seen_is_compared_as_a_record_would_have_it():
    for length, shown in ((120, f"f<{'a' * 114}>(x)"), (121, "f<…>(…)")):
        seen = structs.replace(facts(shared_bytes=1024), name=f"f<{'a' * (length - 6)}>(x)")
        assert as_recorded(seen).name == shown
        assert as_recorded(seen).shared_bytes == 1024


GRIDS = st.sampled_from([None, 1, 2, 3])


@given(st.lists(GRIDS, min_size=1, max_size=5), st.data())
def test_the_launches_of_a_call_are_recorded_in_their_order(grids, data):
    """Each configuration stands once; copies, here without a grid, are none of them."""

    def launched(number, grid):
        kernel = KernelFacts("k", 1, 0, 0, grid=(grid, 1, 1), symbol=f"_{number}")
        return DeviceWork("kernel", "k", 1.0, 1.0, kernel=kernel)

    work = tuple(COPY_IN if grid is None else launched(n, grid) for n, grid in enumerate(grids))
    order = tuple(data.draw(st.lists(st.integers(0, len(work) - 1), max_size=6)))
    seen = tuple(each.kernel for each in work if each.kernel)
    timed = measured(timer="cupti", work=work, order=order)
    others = (measured(timer="event"), measured(scope="end_to_end", work=work[:1], order=(0,)))
    launches = RecordedLaunches.of(result("cupy.a", *others, timed, kernels=seen))
    assert [kernel.grid[0] for kernel in launches.kernels] == list(dict.fromkeys(filter(None, grids)))
    assert [launches.kernels[place].grid[0] for place in launches.order] == [
        grids[place] for place in order if grids[place] is not None
    ]
    of_another = RecordedLaunches.of(result("cupy.a", timed, kernels=(*seen, facts())))
    assert of_another.order == ()
    untimed = dataclasses.replace(timed, order=())
    assert RecordedLaunches.of(result("cupy.a", untimed, kernels=seen)) == RecordedLaunches(launches.kernels)
