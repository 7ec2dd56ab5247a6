"""Checks which targets sessions reach, by what they measured."""

from __future__ import annotations

import dataclasses

import pytest
from made_up_results import measured, result

from pytest_gpukern.cli.selftest import render
from pytest_gpukern.report.run import Failure, RunResults, Skip
from pytest_gpukern.selftest.known_times import KnownTimes, Node, Spin, as_observations
from pytest_gpukern.selftest.targets import Section, conclusions_of

KERNELS = {("exp", 65_536): 1_312.0, ("exp", 10_000_000): 48_640.0, ("sgemm", 2048): 338_720.0}
NAMES = dict(zip(KERNELS, ("exp 64 K f32", "exp 10 M f32", "sgemm 2048"), strict=True))
SPINS = (500.0, 1_500.0, 20_000.0, 10_000_000.0)
GAP, REPLAY, EVENT_COST = 40.0, 25.0, 3_200.0
BEYOND = {"cupti": 704.0, "event": 704.0 + GAP + EVENT_COST}
REACHED = 3 + 2 + 1 + 1 + 1 + 6
"""Spins; events of 2 spins and a node; a difference of nodes; a whole kernel; A/A."""


def known(off=None, *, timers=("cupti", "event"), cost=EVENT_COST, nodes=(1_500.0, 20_000.0)):
    """Readings of a machine as good as promised; `off` has (length, timer) → by what one is off."""

    def spin(ns, timer):
        own, beyond = ns + 16, BEYOND[timer] + (off or {}).get((ns, timer), 0.0)
        return Spin(ns, timer, own, own + beyond, beyond)

    return KnownTimes(
        timers[0],
        cost,
        tuple(spin(ns, timer) for ns in SPINS for timer in timers),
        tuple(Node(ns, ns + 720 + GAP, ns + 720) for ns in nodes),
    )


def session(known_times=None, *, slower=1.0, half=0.0001, graph=0.0, timers=("cupti", "event")):
    """The results of one session: of the test of known times, and of each kernel in each way."""
    found = [result("test_known_times", observations=as_observations(known_times or known(timers=timers)))]

    def timed(ns, timer, cache, **changes):
        values = {"timer": timer, "cache": cache, "half": half, "beside": timer != timers[0], **changes}
        return measured(slower * ns, **values)

    def of_kernel(problem, n, way, *measurements):
        parameters = {"point": {"n": n}, "parameters": {"way": way}}
        found.append(result("cupy.k", *measurements, problem=f"selftest_{problem}", **parameters))

    more = {"cupti": 0.0, "event": EVENT_COST}
    for (problem, n), ns in KERNELS.items():
        for cache in ("cold", "hot"):
            of_kernel(problem, n, cache, *(timed(ns + more[timer], timer, cache) for timer in timers))
        if problem == "exp":
            node = measured(ns + GAP + REPLAY + graph, timer="graph", cache="hot", fixed_cost_ns=REPLAY)
            of_kernel(problem, n, "graph", node)
    return found


def concluded(*sessions, asked=None, **run):
    """Conclusions from these sessions; the first is the one that a run reports."""
    numbered = [
        [dataclasses.replace(each, session=str(number)) for each in results]
        for number, results in enumerate(sessions)
    ]
    others = {}
    for each in (each for results in numbered[1:] for each in results):
        others.setdefault(each.nodeid, []).append(each)
    made = RunResults(numbered[0], others, **run)
    return made, conclusions_of(made, asked or len(sessions))


def missed(*sessions, **options):
    """What is missed, by name."""
    conclusions = concluded(*sessions, **options)[1]
    return [row.what for row in conclusions.rows if row.reached is False] + list(conclusions.missing)


def row(conclusions, what, timer="cupti", section=Section.TRUTH):
    (found,) = [
        each
        for each in conclusions.rows
        if each.what.startswith(what) and each.timer == timer and each.section is section
    ]
    return found


def test_a_machine_as_good_as_promised_reaches_every_target():
    conclusions = concluded(session(), session(), session())[1]
    assert conclusions.reached
    assert conclusions.missing == ()
    assert len(conclusions.verdicts) == REACHED


@pytest.mark.parametrize(
    ("asked_ns", "error_ns", "is_reached"),
    [
        (1_500.0, 32.0, True),  # one tick
        (1_500.0, -32.0, True),
        (1_500.0, 33.0, False),
        (20_000.0, 194.0, True),  # 1 % of the difference to the shortest spin, 19.5 µs
        (20_000.0, 196.0, False),
        (10_000_000.0, 99_990.0, True),
        (10_000_000.0, -100_100.0, False),
    ],
)
def test_the_default_timer_may_be_off_by_a_tick_or_one_percent(asked_ns, error_ns, is_reached):
    off = session(known({(asked_ns, "cupti"): error_ns}))
    assert len(missed(off, off)) == (0 if is_reached else 1)


def test_one_session_of_three_that_is_off_is_shown_and_not_judged():
    off = session(known({(1_500.0, "cupti"): -64.0}))
    found = row(concluded(session(), off, session())[1], "spin 1.5 µs − spin 500")
    assert (found.found_ns, found.worst_ns, found.reached) == (0.0, -64.0, True)


@pytest.mark.parametrize(("error_ns", "is_reached"), [(195.0, True), (-195.0, True), (220.0, False)])
def test_events_may_be_off_by_one_percent_of_a_spin_and_of_its_node_less_the_stated_cost(
    error_ns, is_reached
):
    conclusions = concluded(*[session(known({(20_000.0, "event"): error_ns}))] * 2)[1]
    rows = [row(conclusions, f"spin 20 µs{rest}", "event") for rest in (" − spin 500", ", less")]
    assert [each.reached for each in rows] == [is_reached] * 2
    assert row(conclusions, "spin 1.5 µs, less", "event").reached is None


@pytest.mark.parametrize(
    ("changed", "what"),
    [
        ({"cost": EVENT_COST + 250.0}, "spin 20 µs, less the stated cost"),
        ({"cost": None}, "the event timer states no fixed cost"),
    ],
)
def test_events_have_to_state_what_they_cost(changed, what):
    assert missed(*[session(known(**changed))] * 2) == [what]


def test_the_gap_between_nodes_cancels_in_differences_and_counts_in_whole_kernels():
    conclusions = concluded(session(), session())[1]
    difference = row(conclusions, "spin 20 µs − spin 1.5 µs, per node")
    assert (difference.time_ns, difference.found_ns) == (18_500.0, 0.0)
    whole = row(conclusions, "exp 10 M f32, hot")
    assert (whole.time_ns, whole.found_ns, whole.reached) == (48_680.0, -GAP, True)
    assert row(conclusions, "exp 64 K f32, hot").reached is None, "shorter than 20 µs"


def test_a_kernel_that_the_default_timer_sees_otherwise_than_a_graph_is_missed():
    assert missed(*[session(graph=500.0)] * 2) == ["exp 10 M f32, hot"]


def test_without_slopes_and_without_readings_there_is_no_truth():
    told = missed(*[session(known(nodes=()))] * 2)
    assert told == ["the event timer states no fixed cost", "no slope of a graph was measured"]
    only_kernels = session()[1:]
    assert "no kernel of known time was read by the default timer" in missed(only_kernels, only_kernels)
    only_truth = session()[:1]
    assert missed(only_truth, only_truth) == ["no kernel was measured"]


@pytest.mark.parametrize(
    ("slower", "half", "names"),
    [
        (1.004, 0.0001, []),  # below 0.5 %; 5 ns of exp 64 K
        (1.006, 0.0001, ["exp 10 M f32", "sgemm 2048"]),  # 8 ns of exp 64 K are less than two ticks
        (1.049, 0.0001, list(NAMES.values())),  # 64.3 ns
        (1.009, 0.004, []),  # 1.27 times a width of 0.8 %
        (1.011, 0.004, ["exp 10 M f32", "sgemm 2048"]),
        (1.0199, 0.25, []),  # no interval lets sessions differ by more than the gate's threshold
        (1.0202, 0.25, ["exp 10 M f32", "sgemm 2048"]),
    ],
)
def test_sessions_may_differ_by_half_a_percent_or_two_ticks_or_what_their_intervals_explain(
    slower, half, names
):
    conclusions = concluded(session(half=half), session(half=half, slower=slower))[1]
    apart = [each for each in conclusions.rows if each.section is Section.REPEATS and each.reached is False]
    assert [each.what for each in apart] == [
        f"{name}, {cache}" for name in names for cache in ("cold", "hot")
    ]


def test_fewer_sessions_than_asked_for_reach_nothing():
    verdicts = concluded(session(), session(), asked=3)[1].verdicts
    assert verdicts == [False] * REACHED
    assert concluded(session(), asked=1)[1].verdicts.count(False) == 6, "one session has no range"


def test_a_reading_that_the_plugin_refuses_is_one_session_less():
    bad = session()
    bad[-1] = dataclasses.replace(bad[-1], measurements=(measured(9e9, timer="cupti", invalid="it fell"),))
    conclusions = concluded(session(), session(), bad)[1]
    found = row(conclusions, "sgemm 2048, hot", section=Section.REPEATS)
    assert (found.found_ns, found.sessions, found.reached) == (0.0, 2, False)


def test_without_cupti_events_are_the_default_and_are_held_to_its_targets():
    conclusions = concluded(*[session(timers=("event",))] * 2)[1]
    assert row(conclusions, "spin 1.5 µs − spin 500 ns", "event").reached
    repeats = [each for each in conclusions.rows if each.section is Section.REPEATS]
    assert [each.reached for each in repeats] == [True] * 6


def test_sessions_by_different_timers_cannot_be_compared():
    assert "sessions chose different timers: cupti, event" in missed(session(), session(timers=("event",)))


def test_the_table_says_what_was_found_and_what_is_missing():
    skips, failures = (
        [Skip("selftest_add/numba.add", "numba is missing")],
        {"t.py::test_x": Failure("INVALID")},
    )
    made, conclusions = concluded(session(), session(slower=1.01), skips=skips, failures=failures)
    lines = [" ".join(line.split()) for line in render(made, conclusions, width=140)]
    assert lines[0].startswith("gpukern selftest: NVIDIA H200 · driver 580.159, CUDA 13.0 · AMD EPYC · ")
    assert "spin 20 µs − spin 500 ns own time cupti 19.50 µs 0 ns 0.00 % 0 ns 195 ns 2 PASS" in lines
    assert "exp 64 K f32, hot graph cupti 1.352 µs −33.4 ns −2.47 % −40.0 ns 2" in lines
    assert "sgemm 2048, hot cupti 340.4 µs 3.39 µs 1.00 % 1.69 µs 2 FAIL" in lines
    assert lines[-3:] == [
        "FAIL: selftest_add/numba.add: numba is missing",
        "FAIL: test_x: INVALID",
        f"{REACHED - 4} of {REACHED + 2} targets reached",
    ]
