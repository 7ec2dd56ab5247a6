"""Checks what a self-test concludes from the readings of the timers, and its table."""

from __future__ import annotations

import dataclasses

import pytest
from made_up_selftest import (
    BEYOND_CUPTI,
    BEYOND_EVENT,
    EVENT_COST,
    KERNELS,
    nodes,
    readings,
    spins,
    timer_recording,
    timer_session,
    walls,
)

from pytest_gpukern.selftest.recording import Node, Preparation, Reading, RivalReading, Suites
from pytest_gpukern.selftest.tables import render_timers
from pytest_gpukern.selftest.timer_results import RepeatRow, conclude


def missed(conclusions):
    """Returns every target that is missed, by its name."""
    found = [row.subject for row in conclusions.truth if row.reached is False]
    found += [f"{row.kernel} {row.cache}" for row in conclusions.repeats if row.reached is False]
    found += [f"{row.kernel} {row.cache} wall" for row in conclusions.walls if not row.reached]
    found += ["suites"] if conclusions.suites and not conclusions.suites.reached else []
    return [*found, *conclusions.missing]


def truth_row(conclusions, beginning, timer="cupti"):
    (row,) = [r for r in conclusions.truth if r.subject.startswith(beginning) and r.timer == timer]
    return row


def with_beyond(asked_ns, timer, beyond_ns):
    """Returns the made-up spins, one of them read differently."""
    return tuple(
        dataclasses.replace(spin, reading_ns=spin.own_ns + beyond_ns, beyond_ns=beyond_ns)
        if (spin.asked_ns, spin.timer) == (asked_ns, timer)
        else spin
        for spin in spins()
    )


def test_a_machine_as_good_as_promised_reaches_every_target():
    conclusions = conclude(timer_recording())
    assert missed(conclusions) == []
    assert conclusions.reached
    assert conclusions.default_timer == "cupti"
    # 3 spins; events of 2 spins and a node; a difference of nodes, a whole kernel; A/A; walls; suites
    assert len(conclusions.verdicts) == 3 + 2 + 1 + 1 + 1 + 6 + 6 + 1


@pytest.mark.parametrize(
    ("asked_ns", "error_ns", "reached"),
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
def test_the_default_timer_may_be_off_by_a_tick_or_one_percent(asked_ns, error_ns, reached):
    off = timer_session(spins=with_beyond(asked_ns, "cupti", BEYOND_CUPTI + error_ns))
    conclusions = conclude(timer_recording(off, off, off))
    rows = [row for row in conclusions.truth if row.against == "own time" and row.timer == "cupti"]
    assert [row.reached for row in rows].count(False) == (0 if reached else 1)
    assert conclusions.reached is reached


def test_one_session_of_three_that_is_off_is_shown_and_not_judged():
    off = timer_session(spins=with_beyond(1_500.0, "cupti", BEYOND_CUPTI - 64))
    row = truth_row(conclude(timer_recording(timer_session(), off, timer_session())), "spin 1.5 µs")
    assert (row.error_ns, row.worst_ns, row.reached) == (0.0, -64.0, True)


@pytest.mark.parametrize(("error_ns", "reached"), [(195.0, True), (-195.0, True), (220.0, False)])
def test_events_may_be_off_by_one_percent_of_a_spin_and_of_its_node_less_the_stated_cost(error_ns, reached):
    conclusions = conclude(
        timer_recording(timer_session(spins=with_beyond(20_000.0, "event", BEYOND_EVENT + error_ns)))
    )
    rows = [truth_row(conclusions, f"spin 20 µs{rest}", "event") for rest in (" − spin 500", ", less")]
    assert [row.reached for row in rows] == [reached] * 2
    assert truth_row(conclusions, "spin 1.5 µs, less", "event").reached is None


def test_a_cost_that_is_not_what_events_read_beyond_a_node_misses_its_target():
    costly = timer_session(fixed_costs_ns={"cupti": None, "event": EVENT_COST + 250.0})
    assert missed(conclude(timer_recording(costly, costly))) == ["spin 20 µs, less the stated cost"]


def test_events_that_state_no_cost_miss_their_target():
    silent = timer_session(fixed_costs_ns={"cupti": None, "event": None})
    assert missed(conclude(timer_recording(silent, silent))) == ["the event timer states no fixed cost"]


def test_the_gap_between_nodes_cancels_in_differences_and_counts_in_whole_kernels():
    conclusions = conclude(timer_recording())
    difference = truth_row(conclusions, "spin 20 µs − spin 1.5 µs, per node")
    assert (difference.truth_ns, difference.error_ns) == (18_500.0, 0.0)
    whole = truth_row(conclusions, "exp 10 M f32, hot")
    assert (whole.truth_ns, whole.error_ns, whole.reached) == (48_680.0, -40.0, True)


def test_a_slope_that_the_default_timer_does_not_see_is_missed():
    wrong = timer_session(nodes=(*nodes()[:3], Node("exp 10 M f32", 50_000.0, 48_640.0)))
    assert missed(conclude(timer_recording(wrong, wrong))) == ["exp 10 M f32, hot, per node"]


def test_where_nothing_can_be_captured_the_reason_is_a_missed_target():
    none = timer_session(nodes=(Node("spin 1500", problem="no graphs here"),))
    assert missed(conclude(timer_recording(none, none))) == ["no slope of a graph: no graphs here"]


def repeat(low_ns, high_ns, **changes):
    row = RepeatRow("k", "cold", "cupti", low_ns, low_ns, high_ns, 32.0, 8, 8, None, judged=True)
    return dataclasses.replace(row, **changes)


@pytest.mark.parametrize(
    ("low_ns", "high_ns", "reached"),
    [
        (1312.0, 1376.0, True),  # two ticks, though 4.9 %
        (1312.0, 1377.0, False),
        (100_000.0, 100_500.0, True),  # 0.5 %
        (100_000.0, 100_501.0, False),
        (0.0, 0.0, True),
        (0.0, 100.0, False),
    ],
)
def test_sessions_may_differ_by_half_a_percent_or_two_ticks(low_ns, high_ns, reached):
    assert repeat(low_ns, high_ns).reached is reached


@pytest.mark.parametrize(
    ("width", "high_ns", "reached"),
    [
        (0.008, 101_000.0, True),  # 1 %, and 1.27 widths are 1.02 %
        (0.008, 101_030.0, False),
        (0.001, 100_500.0, True),
        (0.5, 101_990.0, True),  # no interval lets sessions differ by more than the gate's threshold
        (0.5, 102_010.0, False),
    ],
)
def test_sessions_may_differ_by_what_their_own_intervals_explain(width, high_ns, reached):
    assert repeat(100_000.0, high_ns, width=width).reached is reached


def test_a_range_of_fewer_sessions_than_asked_for_reaches_nothing():
    assert not repeat(100.0, 100.0, sessions=7).reached
    assert not repeat(100.0, 100.0, sessions=1, asked_sessions=1).reached
    assert repeat(100.0, 900.0, judged=False).reached is None


def test_the_range_is_over_the_sessions_medians_of_each_timer():
    conclusions = conclude(
        timer_recording(timer_session(), timer_session(readings=readings(1.004)), timer_session())
    )
    (row,) = [
        r for r in conclusions.repeats if (r.kernel, r.cache, r.timer) == ("sgemm 2048", "hot", "cupti")
    ]
    assert row.range == pytest.approx(0.004)
    assert conclusions.reached
    apart = conclude(timer_recording(timer_session(), timer_session(readings=readings(1.006))))
    assert missed(apart) == [f"{name} {cache}" for name in list(KERNELS)[1:] for cache in ("cold", "hot")]


def test_a_reading_that_the_plugin_refuses_leaves_the_range_and_misses_the_target():
    bad = Reading("sgemm 2048", "cold", "cupti", 9e9, 10, invalid="the clock fell")
    others = tuple(r for r in readings() if (r.kernel, r.cache, r.timer) != ("sgemm 2048", "cold", "cupti"))
    conclusions = conclude(
        timer_recording(timer_session(), timer_session(), timer_session(readings=(*others, bad)))
    )
    (row,) = [r for r in conclusions.repeats if r.invalid]
    assert (row.high_ns, row.sessions, row.invalid) == (KERNELS["sgemm 2048"], 2, "the clock fell")
    assert missed(conclusions) == ["sgemm 2048 cold"]


def test_the_median_wall_time_is_judged_and_the_worst_is_shown():
    conclusions = conclude(timer_recording(timer_session(), timer_session(walls=walls(0.9)), timer_session()))
    assert {(row.median_s, row.worst_s) for row in conclusions.walls} == {(0.25, 0.9)}
    assert conclusions.reached
    assert len(missed(conclude(timer_recording(timer_session(walls=walls(0.301)))))) >= 6


@pytest.mark.parametrize(
    ("suites", "reached"), [(Suites(180.0, 0), True), (Suites(180.1, 0), False), (Suites(9.0, 1), False)]
)
def test_the_suites_have_to_pass_in_time(suites, reached):
    assert conclude(timer_recording(suites=suites)).reached is reached


def test_a_session_that_found_nothing_is_a_missed_target_and_the_others_count():
    conclusions = conclude(
        timer_recording(
            timer_session(), timer_session(problem="it ended with status 1: boom"), timer_session()
        )
    )
    assert "session 2 failed: it ended with status 1: boom" in missed(conclusions)
    assert {row.sessions for row in conclusions.repeats} == {2}


def test_without_cupti_events_are_the_default_and_are_held_to_its_targets():
    alone = timer_session(
        default_timer="event",
        fallback="cupti-python is not installed",
        spins=tuple(spin for spin in spins() if spin.timer == "event"),
        readings=tuple(reading for reading in readings() if reading.timer == "event"),
    )
    conclusions = conclude(timer_recording(alone, alone))
    assert truth_row(conclusions, "spin 20 µs − spin 500 ns", "event").reached
    assert all(row.judged for row in conclusions.repeats)


def test_sessions_by_different_timers_cannot_be_compared():
    conclusions = conclude(timer_recording(timer_session(), timer_session(default_timer="event")))
    assert "sessions chose different timers: cupti, event" in missed(conclusions)


def test_other_tools_stand_beside_the_default_timer_of_their_cache_policy_and_the_slope():
    rows = {(row.tool, row.kernel): row for row in conclude(timer_recording()).rivals}
    row = rows["do_bench", "exp 10 M f32"]
    assert row.of_default == pytest.approx(51_640 / 48_640)
    assert row.of_slope == pytest.approx(51_640 / 48_680)
    assert (row.range, row.sessions) == (0.0, 3)
    assert rows["do_bench", "sgemm 2048"].of_slope is None
    assert rows["NVBench", ""].problem == "not installed; cuda-bench provides it"


def test_a_tool_that_fails_sometimes_has_its_numbers_and_its_error():
    good = RivalReading("tool", "sgemm 2048", "hot", 340_000.0)
    bad = RivalReading("tool", "sgemm 2048", "hot", problem="RuntimeError: no")
    conclusions = conclude(timer_recording(timer_session(rivals=(good,)), timer_session(rivals=(bad,))))
    (row,) = conclusions.rivals
    assert (row.median_ns, row.sessions, row.range, row.problem) == (340_000.0, 1, None, "RuntimeError: no")
    assert conclusions.reached, "no other tool is a target"


def test_without_any_spin_the_truth_is_missing():
    conclusions = conclude(timer_recording(timer_session(spins=()), timer_session(spins=())))
    assert "no kernel of known time was read by the default timer" in missed(conclusions)


# the table


def shown(made, width=140):
    return render_timers(made, conclude(made), width=width)


def line(made, beginning):
    """Returns the one line that begins so, its columns separated by one space."""
    lines = [" ".join(text.split()) for text in shown(made)]
    (found,) = [text for text in lines if text.startswith(beginning)]
    return found


def test_the_header_says_device_driver_date_versions_timer_and_ticks():
    text = "\n".join(shown(timer_recording()))
    for words in (
        "NVIDIA H200 · driver 580.159, CUDA 13.0 · 2026-11-20T13:00:00+00:00 · pytest-gpukern 0.1.0",
        "AMD EPYC; cupy-cuda13x 14.2, triton 3.5, Python 3.12.3",
        "default timer: cupti; ticks: cupti 32 ns, event 32 ns, the global timer 32 ns; 3 sessions in 1 min",
        "cupti read 704 ns more than the spinning kernels' own time",
        "event states a fixed cost of 3200 ns",
        "making the timers, once per process: 600 ms",
    ):
        assert words in text


def test_every_row_has_its_figures_and_whether_its_target_is_reached():
    made = timer_recording(timer_session(), timer_session(readings=readings(1.01)))
    assert line(made, "spin 20 µs − spin 500 ns own time cupti") == (
        "spin 20 µs − spin 500 ns own time cupti 19.50 µs 0 ns +0.00 % 0 ns 195 ns reached"
    )
    assert line(made, "exp 64 K f32, hot, per node") == (
        "exp 64 K f32, hot, per node graph slope cupti 1.352 µs −40.0 ns −2.96 % −40.0 ns"
    )
    assert line(made, "sgemm 2048 hot cupti").endswith("1.00 % 3.39 µs 0.50 % 2 MISSED")
    assert line(made, "sgemm 2048 hot event").endswith("2"), "events have no target here"
    assert (
        line(made, "sgemm 2048 cold 250 ms") == "sgemm 2048 cold 250 ms 250 ms reached 1.20 s 300 ms 100 ms"
    )
    assert line(made, "all suites") == ("all suites, compilation included: 95 s; ≤ 180 s: reached")
    assert line(timer_recording(), "do_bench exp 10 M") == (
        "do_bench exp 10 M f32 cold 51.64 µs +6.2 % +6.1 % 0.00 % 3"
    )
    assert line(made, "NVBench") == "NVBench: not installed; cuda-bench provides it"


def test_what_went_wrong_is_said_below_and_counted():
    refused = tuple(dataclasses.replace(each, invalid="the clock fell") for each in readings())
    lost = timer_session(
        fallback="cupti-python is not installed",
        readings=refused,
        preparations=(Preparation("add", problem="no numba"),),
    )
    lines = [" ".join(text.split()) for text in shown(timer_recording(timer_session(), lost))]
    assert "not timed by CUPTI: cupti-python is not installed" in lines
    assert "sgemm 2048, cold, cupti: 1 sessions INVALID: the clock fell" in lines
    assert lines[-2:] == ["MISSED: add: no numba", "15 of 22 targets reached"]
