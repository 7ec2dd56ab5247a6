"""Checks what is recorded of a case: epochs, their sessions, and what a file stores for several."""

from __future__ import annotations

from datetime import datetime, timedelta
from operator import attrgetter

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from made_up_past import facts
from made_up_results import COPY_IN, measured, result
from msgspec import structs

from pytest_gpukern.baseline.codec import parse, render
from pytest_gpukern.baseline.record import Baseline, Epoch, Record, as_recorded, launches_of, trimmed
from pytest_gpukern.gate.comparability import Conditions
from pytest_gpukern.values.fingerprint import Fingerprint
from pytest_gpukern.values.result import DeviceWork, KernelFacts, OutputError, Summary

NVIDIA = Fingerprint(driver_version="580", device_uuid="GPU-1", device_model_key="nvidia-h200")
KEYS = CUPTI, EVENT, COPY = "kernel/cupti/cold", "kernel/event/cold", "transfer/host/hot"
BEGAN = datetime(2026, 11, 20, 10)


def moment(number):
    return f"{BEGAN + timedelta(minutes=number):%Y-%m-%dT%H:%M:%SZ}"


def session(number, keys=(CUPTI,), version=1, **changes):
    """Session `number`, which measured these keys; its times are that many nanoseconds above 100."""
    summary = Summary(100.0 + number, 99.0, 500.0, 10)
    times = [structs.replace(measured(1.0, *key.split("/")), summary=summary) for key in sorted(keys)]
    made = result("cupy.a", *times, canaries={"copy": 100.0, "launch": None}, session=f"s{number}")
    case = structs.replace(made.case, id="a", problem_version=version)
    made = structs.replace(made, case=case, fingerprint=NVIDIA, errors={}, **changes)
    return trimmed(made, recorded=moment(number))


def recorded(*epochs):
    """A record with epochs of these sessions, each opened when its first session ended."""
    made = tuple(Epoch(sessions[0].recorded, tuple(sessions)) for sessions in epochs)
    return Record("a", made, "nvidia-h200")


def numbers(times):
    return [int(time.median_ns) - 100 for time in times]


sets_of_keys = st.sets(st.sampled_from(KEYS), min_size=1)


@given(st.lists(st.lists(sets_of_keys, min_size=1, max_size=8), min_size=1, max_size=5))
def test_a_time_is_judged_by_the_newest_epoch_that_holds_it_and_anchored_by_the_oldest(history):
    numbered, count = [], 0
    for epoch in history:
        numbered.append([(count + place, keys) for place, keys in enumerate(epoch)])
        count += len(epoch)
    made = recorded(*[[session(n, keys, v) for n, keys in epoch] for v, epoch in enumerate(numbered, 1)])
    current = {}
    for key in KEYS:
        holding = [[n for n, keys in epoch if key in keys] for epoch in numbered]
        held = [place for place, those in enumerate(holding) if those]
        if not held:
            assert (made.past(key), made.newer_epoch(key), made.anchor(key)) == ((), None, ())
            assert made.times(key) == ()
            continue
        newest, oldest = held[-1], held[0]
        current[key] = holding[newest]
        times = made.comparable(key)
        assert {(time.key, time.epoch) for time in times} == {(key, newest)}
        assert [time.opening for time in times] == [place < 5 for place in range(len(times))]
        assert times[0].conditions == Conditions(newest + 1, "nvidia-h200")
        assert made.past(key) == times
        assert numbers(made.anchor(key)) == ([] if oldest == newest else holding[oldest])
        assert made.newer_epoch(key) == (None if newest == len(holding) - 1 else moment(numbered[-1][0][0]))
        assert numbers(made.times(key)) == [n for those in holding for n in those]
        assert {time.epoch for time in made.times(key)} == set(held)
    of_scope = [n for key in (CUPTI, EVENT) for n in current.get(key, ())]
    for key in KEYS:
        nearest = current.get(key) or (of_scope if key != COPY else [])
        assert numbers(made.comparable(key)) == nearest
    baseline = Baseline("saxpy", "nvidia-h200", {"a": made})
    assert [numbers(times) for times in baseline.all_times()] == [
        current[key] for key in KEYS if key in current
    ]
    assert [each.session.session for each in made.past()] == [f"s{n}" for n, _ in numbered[-1]]
    assert parse(render(baseline), None) == baseline
    shown = made.for_report()
    assert [shown.times(key) == made.times(key) for key in KEYS] == [not made.times(key) for key in KEYS]
    for key in KEYS:
        for ours, theirs in zip(shown.times(key), made.times(key), strict=True):
            of_time = attrgetter("measurement.summary", "device", "epoch")
            of_session = attrgetter("session", "recorded", "canaries")
            assert of_time(ours) == of_time(theirs)
            assert of_session(ours.session) == of_session(theirs.session)


def test_of_a_case_that_is_not_recorded_nothing_is_known():
    made = Baseline("saxpy", "nvidia-h200", {"a": recorded([session(0)])}).of("b")
    assert made.newer_epoch(CUPTI) is None
    assert made.past() == made.comparable(CUPTI) == made.anchor(CUPTI) == ()


@given(st.lists(sets_of_keys, min_size=1, max_size=12))
def test_a_record_keeps_the_newest_three_epochs_and_the_first_and_last_of_each_key(history):
    epochs = [Epoch(moment(n), (session(n, keys, n),)) for n, keys in enumerate(history)]
    record = Record("a", (epochs[0],))
    for epoch in epochs[1:]:
        record = record.opening(epoch)
    holders = [[n for n, keys in enumerate(history) if key in keys] for key in KEYS]
    kept = {n for those in holders if those for n in (those[0], those[-1])}
    kept |= set(range(len(epochs))[-3:])
    assert [epoch.sessions[0].case.problem_version for epoch in record.epochs] == sorted(kept)


@given(st.integers(1, 25), st.integers(0, 25))
@example(opened=2, appended=19)
@example(opened=3, appended=18)
@example(opened=11, appended=10)
def test_of_each_key_an_epoch_keeps_the_sessions_that_opened_it_and_the_newest(opened, appended):
    """At most ten of the former, twenty in all; if fewer than three opened it, the first five count so."""
    count = opened + appended
    whole = [session(n, (CUPTI, COPY) if n % 2 else (CUPTI,)) for n in range(count)]
    made = Epoch(moment(opened - 1), ()).adding(whole[:opened])
    for each in whole[opened:]:
        made = made.adding([each])
    for key, those in ((CUPTI, range(count)), (COPY, range(1, count, 2))):
        opening = sum(n < opened for n in those)
        first = min(opening if opening >= 3 else 5, 10)
        kept = [*those] if len(those) <= 20 else [*those[:first], *those[first - 20 :]]
        assert [int(each.session[1:]) for each in made.holding(key)] == kept
        assert made.first(key) == first
    assert all(each.measurements for each in made.sessions)


def test_what_a_file_holds_once_is_put_to_each_session_and_time():
    kernel = KernelFacts("saxpy", 32, 64, 0, "beef", grid=(63, 1, 1), block=(256, 1, 1))
    errors = {"y": OutputError(10, 0, 0.0, 0.0, 0.0)}
    other = {"y": structs.replace(errors["y"], bits="splitmix64:1")}
    sessions = [
        structs.replace(session(0), errors=errors, kernels=(kernel,)),
        structs.replace(session(1), errors=other),
        structs.replace(session(2), fingerprint=Fingerprint(), canaries={}),
    ]
    content = render(Baseline("saxpy", "nvidia-h200", {"a": recorded(sessions)}))
    assert (content.count(b'"saxpy", "registers"'), content.count(b'"driver_version"')) == (1, 2)
    first, second, third = parse(content, None).of("a").past(CUPTI)
    old, newer = first.session, second.session
    assert (old.errors["y"].bits, newer.errors["y"].bits) == (None, "splitmix64:1")
    assert (old.kernels, newer.kernels) == ((kernel,), ())
    assert first.choice.launches == (("saxpy", (63, 1, 1), (256, 1, 1), 32),)
    assert (old.canaries, old.fingerprint) == ({"copy": 100.0, "launch": None}, NVIDIA)
    assert (first.device, old.session, old.recorded) == ("GPU-1", "s0", moment(0))
    assert (third.session.canaries, third.session.fingerprint, third.device) == ({}, Fingerprint(), None)


@pytest.mark.parametrize(("model", "device"), [("nvidia-h200", "GPU-1"), ("amd-epyc", None)])
def test_a_time_of_the_host_has_no_device_though_the_machine_has_one(model, device):
    made = structs.replace(recorded([session(0)]), device_model=model)
    assert made.comparable(CUPTI)[0].device == device


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
    kernels, launched_order = launches_of(result("cupy.a", *others, timed, kernels=seen))
    assert [kernel.grid[0] for kernel in kernels] == list(dict.fromkeys(filter(None, grids)))
    assert [kernels[place].grid[0] for place in launched_order] == [
        grids[place] for place in order if grids[place] is not None
    ]
    assert launches_of(result("cupy.a", timed, kernels=(*seen, facts())))[1] == ()
    untimed = structs.replace(timed, order=())
    assert launches_of(result("cupy.a", untimed, kernels=seen)) == (kernels, ())
