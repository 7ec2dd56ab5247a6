"""Checks what is timed in each scope, and by which timer."""

from __future__ import annotations

import dataclasses
import weakref
from pathlib import Path

import numpy as np
import pytest
from fakes import FakeEnvironment, FakeTimer, case_of, doubling, measuring, noting, right, run

from pytest_gpukern.check import engine
from pytest_gpukern.measure.measure import Repeated, Sampler, rule_for, rule_of_a_glance
from pytest_gpukern.measure.observers import Observers
from pytest_gpukern.problems.dataset import CONTENTS
from pytest_gpukern.run.case_subject import scopes_of
from pytest_gpukern.run.spine import SubjectContext
from pytest_gpukern.run.timed_scope import TimedScope
from pytest_gpukern.values.marker import MarkerOptions
from pytest_gpukern.values.result import Correctness, Trace

N = 8

# scopes


@pytest.mark.parametrize(
    ("scope", "one_call"),
    [
        ("transfer", ["load", "fetch"]),
        ("end_to_end", ["queue_poison", "load", "launch", "fetch"]),
        ("kernel", ["queue_poison", "launch"]),
    ],
)
def test_a_scope_contains_the_copies_the_launch_or_both(gpu, timer, events, scope, one_call):
    result = run(case_of(noting(events)), FakeEnvironment(gpu, settings=measuring(scopes=(scope,))))
    (measurement,) = result.measurements
    assert measurement.scope == scope
    assert result.correctness is Correctness.PASSED
    first, last = events.index("timed"), len(events) - 1 - events[::-1].index("timed")
    after_timing = events.index("fill", last)
    executed = [event for event in events[first:after_timing] if event != "timed"]
    assert executed == one_call * len(measurement.samples_ns)


def test_copies_of_all_scopes_bring_outputs_into_one_host_array_a_buffer_set_which_is_freed(gpu, timer):
    """Variants are given other memory: what a kernel can write is none of these arrays."""
    fetched = {}

    def before(method, name=None, into=None):
        if method == "fetch" and into is not None:
            fetched[id(into)] = weakref.ref(into)
            given = (array for made in gpu.workspaces for array in made.arrays.values())
            assert not any(np.shares_memory(into, other) for other in given)

    gpu.before = before
    result = run(case_of(right), FakeEnvironment(gpu, settings=measuring(scopes=("transfer", "end_to_end"))))
    assert {measurement.scope for measurement in result.measurements} == {"transfer", "end_to_end"}
    assert len(fetched) == CONTENTS
    assert not any(held() is not None for held in fetched.values())


def test_outputs_that_are_not_poisoned_in_turn_are_poisoned_before_timing(timer, events):
    """On the host a fill would cost more than the call; still no answer of the check may be left."""
    held = []

    def prepare(a, out):
        def launch():
            held.append(np.isnan(out).all())
            np.multiply(a, 2, out=out)

        return launch

    assert run(case_of(prepare, "host"), FakeEnvironment()).correctness is Correctness.PASSED
    assert held[:4] == [True, True, False, True], "three checked launches, and the first of the warm-up"
    behind = held.index(True, 6)
    assert all(held[behind:]), "the checked launches after timing"


def test_end_to_end_brings_back_what_an_allocating_variant_returned(gpu, timer, events, monkeypatch):
    monkeypatch.setattr(engine, "REPEATED_NS", 0)
    fetched, returned = [], []
    gpu.before = lambda method, *args: fetched.extend(args[1:] if method == "fetch" else ())

    def prepare(a):
        def launch():
            returned.append(2 * a)
            return returned[-1]

        return launch

    case = case_of(prepare, allocates=True)
    result = run(case, FakeEnvironment(gpu, settings=measuring(scopes=("end_to_end",))))
    assert result.correctness is Correctness.PASSED
    after_timing = len(gpu.workspaces)  # a checked launch on other inputs for each set
    assert np.array_equal(fetched[-1], returned[-1 - after_timing])


@pytest.mark.parametrize("allocates", [False, True])
def test_nothing_is_copied_out_before_the_launch_has_ended(gpu, timer, allocates):
    queue = []
    gpu.synchronize = queue.clear

    def before(method, *_):
        assert method not in ("fetch", "adopt") or not queue, "the launch still runs"

    gpu.before = before

    def writes(a, out):
        return lambda: queue.append("work") or np.multiply(a, 2, out=out)

    def returns(a):
        return lambda: queue.append("work") or 2 * a

    case = case_of(returns if allocates else writes, allocates=allocates)
    result = run(case, FakeEnvironment(gpu, settings=measuring(scopes=("end_to_end",))))
    assert result.correctness is Correctness.PASSED


@pytest.mark.parametrize(("declared", "copied"), [(None, 4 * N + 4 * N), (lambda n: 100 * n, 100 * N)])
def test_a_case_is_measured_once_in_each_of_its_scopes_on_one_stream_with_the_work_that_belongs_to_it(
    gpu, timer, declared, copied
):
    problem = doubling(N, scopes=("kernel", "transfer", "end_to_end"), transfer_bytes=declared)
    environment = FakeEnvironment(gpu, settings=measuring(timer="auto"))
    found = run(case_of(right, problem=problem), environment).measurements
    keys = ("kernel/cupti/cold", "transfer/host/cold", "end_to_end/host/cold")
    work = ((8 * N, N), (copied, None), (copied, N))
    assert tuple(each.key for each in found) == keys
    assert tuple((each.traffic_bytes, each.flops) for each in found) == work
    assert {stream for _, stream, _ in timer.asked} == {gpu.timed_stream}
    assert {name: any_stream for name, _, any_stream in timer.asked[:2]} == {"cupti": False, "event": False}


def test_a_variant_that_moves_its_own_data_gets_host_arrays_and_is_timed_as_it_is(gpu, timer, events):
    given = []

    def prepare(a, out):
        given.append(type(a))
        return noting(events)(a, out)

    result = run(case_of(prepare, host_data=True), FakeEnvironment(gpu))
    assert given == [np.ndarray]
    assert [measurement.scope for measurement in result.measurements] == ["end_to_end"]
    assert {"load", "fetch", "poison"}.isdisjoint(events), "its arrays are not in the GPU's workspace"


@pytest.mark.parametrize(
    ("asked", "backend", "arguments", "expected"),
    [
        ((), "numba", {}, ("kernel",)),
        (("transfer", "kernel"), "numba", {}, ("transfer", "kernel")),
        (("kernel",), "host", {}, ()),
        (("kernel", "end_to_end"), "host", {}, ("end_to_end",)),
        (("kernel",), "numba", {"host_data": True}, ()),
    ],
)
def test_scopes_asked_for_are_kept_where_they_make_sense(asked, backend, arguments, expected):
    environment = FakeEnvironment(settings=measuring(scopes=asked))
    assert scopes_of(case_of(right, backend, **arguments), environment) == expected


# timers and cache


@pytest.mark.parametrize(
    ("of_the_run", "of_the_marker", "timed"),
    [
        ({"cache": "cold"}, {}, "event/cold"),
        ({"cache": "hot"}, {}, "event/hot"),
        ({"cache": "cold"}, {"cache": "hot"}, "event/hot"),
        ({"cache": "hot"}, {"cache": "cold"}, "event/cold"),
        ({"timer": "event"}, {"timer": "cupti"}, "cupti/cold"),
        ({"timer": "auto"}, {"timer": "graph"}, "graph/cold"),
    ],
)
def test_the_markers_timer_and_cache_policy_win_over_the_runs(gpu, timer, of_the_run, of_the_marker, timed):
    environment = FakeEnvironment(gpu, settings=measuring(**of_the_run))
    (only,) = run(case_of(right), environment, MarkerOptions(**of_the_marker)).measurements
    assert only.key == f"kernel/{timed}"
    assert set(timer.colds) == {timed.endswith("cold")}


@pytest.fixture
def asked(monkeypatch):
    """Lists (timer, how, whether outputs are checked, length of the call, rule) of each sampling."""
    found = []

    def noting_what(how):
        sampling = getattr(Sampler, how)

        def noted(sampler):
            looks = sampler.inspect is not None
            found.append((sampler.timer.name, how, looks, sampler.call_ns, sampler.rule))
            return sampling(sampler)

        monkeypatch.setattr(Sampler, how, noted)

    noting_what("measure")
    noting_what("glance")
    return found


@pytest.fixture
def observed(monkeypatch):
    """Lists the timers of what observers looked at."""
    found = []
    monkeypatch.setattr(Observers, "observe", lambda _, __, timer: found.append(timer.name) or {})
    return found


def test_each_timer_has_its_rule_and_a_glance_is_unobserved_and_looks_at_no_outputs(
    gpu, timer, asked, observed
):
    scopes = ("kernel", "transfer", "end_to_end")
    run(case_of(right), FakeEnvironment(gpu, settings=measuring(timer="auto", scopes=scopes)))
    assert [(name, how, looks) for name, how, looks, _, _ in asked] == [
        ("cupti", "measure", True),
        ("event", "glance", False),
        ("host", "measure", False),  # a transfer launches nothing
        ("host", "measure", True),
        ("cupti", "glance", False),
    ]
    for name, how, _, call_ns, rule in asked:
        by_host = name == "host"
        assert rule == (rule_of_a_glance(call_ns) if how == "glance" else rule_for(call_ns, by_host=by_host))
    assert observed == ["cupti", "host", "host"]


def timed_scope(gpu, call_ns, count, **how):
    context = SubjectContext(FakeEnvironment(gpu), MarkerOptions(), "test_it", Path(), **how)
    return TimedScope("kernel", Repeated(lambda: None), context, True, call_ns, count=count)


@pytest.mark.parametrize("count", [None, 1, 3, 30, 2000])
@pytest.mark.parametrize("call_ns", [1e3, 5e6, 5e7, 1e9])
def test_a_glance_takes_no_more_samples_than_rounds_were_requested(gpu, timer, asked, count, call_ns):
    timed = timed_scope(gpu, call_ns, count)
    timed.by(timer)
    timed.glance_by(timer)
    (*_, rule), (*_, glance) = asked
    usual, most = rule_of_a_glance(call_ns), count or 10**9
    fewer = {"min_samples": min(most, usual.min_samples), "max_samples": min(most, usual.max_samples)}
    assert glance == dataclasses.replace(usual, **fewer)
    requested = {} if count is None else {"min_samples": count, "max_samples": count}
    assert rule == dataclasses.replace(rule_for(call_ns), **requested)


@pytest.mark.parametrize(("by", "count", "taken"), [("cupti", None, 50), ("cupti", 7, 7), ("host", None, 1)])
def test_a_session_that_asks_what_tests_do_takes_the_fewest_samples(gpu, asked, by, count, taken):
    timed_scope(gpu, 1e3, count, asks=True).by(FakeTimer(by))
    ((*_, rule),) = asked
    assert (rule.min_samples, rule.max_samples) == (taken, taken)


def test_a_host_variant_is_measured_end_to_end_with_nothing_to_copy_flush_or_look_at(timer, asked):
    (measurement,) = run(case_of(right, "host"), FakeEnvironment()).measurements
    assert (measurement.scope, measurement.cache) == ("end_to_end", "hot")
    assert measurement.traffic_bytes == 8 * N
    assert set(timer.colds) == {False}
    ((name, _, looks, call_ns, rule),) = asked
    assert (name, looks, rule) == ("host", False, rule_for(call_ns, by_host=True))


@pytest.mark.parametrize(("most", "fewer"), [(4, True), (512, False)])
def test_a_cold_graph_on_too_few_buffer_sets_says_that_it_may_be_warm(gpu, timer, monkeypatch, most, fewer):
    from pytest_gpukern.run import case_subject

    monkeypatch.setattr(case_subject, "MOST_SETS", most)
    environment = FakeEnvironment(gpu, settings=measuring(timer="graph"))
    (only,) = run(case_of(right), environment).measurements
    assert only.buffer_sets == (4 if fewer else 33)
    warned = [note for note in only.summary.notes if "may be warm" in note.text]
    assert bool(warned) is fewer
    text = "its 4 buffer sets are fewer than the 33 that evict each other"
    assert all(text in note.text for note in warned)


# the trace


@pytest.fixture
def traced(monkeypatch, events):
    """What was asked to be traced: scope, stream and cache; CUPTI records no more than that."""
    asked = []

    def trace_of(scope, iteration, stream, *, cold):
        asked.append((scope, stream, cold))
        events.append("traced")
        iteration.execute()
        events.append("over")
        return Trace(scope, ())

    monkeypatch.setattr("pytest_gpukern.timers.cupti.timer.trace_of", trace_of)
    return asked


@pytest.mark.parametrize(
    ("scopes", "scope", "one_call"),
    [
        (("kernel", "transfer", "end_to_end"), "end_to_end", ["queue_poison", "load", "launch", "fetch"]),
        (("kernel", "launch"), "kernel", ["queue_poison", "launch"]),
        (("transfer",), "transfer", ["load", "fetch"]),
    ],
)
def test_the_scope_that_does_most_is_traced_once_behind_all_that_is_timed(
    gpu, timer, events, traced, scopes, scope, one_call
):
    settings = measuring(scopes=scopes, trace=True, cache="hot" if scope == "transfer" else "cold")
    result = run(case_of(noting(events)), FakeEnvironment(gpu, settings=settings))
    assert result.correctness is Correctness.PASSED
    assert traced == [(scope, gpu.timed_stream, scope != "transfer")]
    assert result.trace == Trace(scope, ())
    begins = events.index("traced")
    executed = events[begins + 1 : events.index("over")]
    assert executed == one_call * (2 if scope == "transfer" else 1), "the first fills a hot cache"
    assert "timed" not in events[begins:]


@pytest.mark.parametrize(("backend", "trace"), [("numba", False), ("host", True)])
def test_nothing_is_traced_unless_it_was_asked_for_nor_on_the_host(gpu, timer, traced, backend, trace):
    settings = measuring(trace=trace)
    result = run(case_of(right, backend), FakeEnvironment(gpu, settings=settings))
    assert (traced, result.trace) == ([], None)
    assert result.correctness is Correctness.PASSED


def test_a_case_that_turns_out_wrong_has_no_trace_either(gpu, timer, traced, events):
    case = case_of(lambda a, out: lambda: np.multiply(a, 3 if "traced" in events else 2, out=out))
    result = run(case, FakeEnvironment(gpu, settings=measuring(trace=True)))
    assert result.correctness is Correctness.INCORRECT
    assert (len(traced), result.measurements, result.trace) == (1, (), None)
