"""The self-test's table in words."""

from __future__ import annotations

import dataclasses

import pytest
from made_up_selftest import readings, recording, session

from pytest_gpukern.selftest.recording import Preparation, Suites
from pytest_gpukern.selftest.table import render
from pytest_gpukern.selftest.targets import conclude


def shown(made, width=140):
    return render(made, conclude(made), width=width)


def line(made, beginning):
    """The one line that begins so, its columns separated by one space."""
    (found,) = [
        " ".join(text.split()) for text in shown(made) if " ".join(text.split()).startswith(beginning)
    ]
    return found


def test_the_header_says_device_driver_date_versions_timer_and_ticks():
    text = "\n".join(shown(recording()))
    for words in (
        "NVIDIA H200 · driver 580.159, CUDA 13.0 · 2026-11-20T13:00:00+00:00 · pytest-gpukern 0.1.0",
        "AMD EPYC; cupy-cuda13x 14.2, triton 3.5, Python 3.12.3",
        "default timer: cupti; ticks: cupti 32 ns, event 32 ns, the global timer 32 ns; 3 sessions in 1 min",
    ):
        assert words in text


def test_truth_has_its_source_its_error_and_what_is_allowed():
    assert line(recording(), "spin 20 µs − spin 500 ns") == (
        "spin 20 µs − spin 500 ns own time cupti 19.50 µs 0 ns +0.00 % 0 ns 195 ns reached"
    )
    assert line(recording(), "exp 64 K f32, hot, per node") == (
        "exp 64 K f32, hot, per node graph slope cupti 1.352 µs −40.0 ns −2.96 % −40.0 ns"
    )


def test_the_readings_constant_and_the_stated_cost_are_said():
    text = " ".join(" ".join(shown(recording())).split())
    assert "cupti read 704 ns more than the spinning kernels' own time" in text
    assert "event states a fixed cost of 3200 ns" in text


def test_ranges_stand_beside_their_target():
    made = recording(session(), session(readings=readings(1.01)))
    (row,) = [text for text in shown(made) if text.split()[:4] == ["sgemm", "2048", "hot", "cupti"]]
    assert row.split()[-6:] == ["1.00", "%", "3.39", "µs", "2", "MISSED"]
    (beside,) = [text for text in shown(made) if text.split()[:4] == ["sgemm", "2048", "hot", "event"]]
    assert beside.split()[-1] == "2", "events have no target here"


def test_invalid_readings_are_explained_below():
    bad = tuple(
        dataclasses.replace(reading, invalid="the clock fell") if reading.kernel == "sgemm 2048" else reading
        for reading in readings()
    )
    text = "\n".join(shown(recording(session(), session(readings=bad))))
    assert "sgemm 2048, cold, cupti: 1 sessions INVALID: the clock fell" in text


def test_wall_times_come_with_data_compilation_and_checks_apart():
    rows = [" ".join(text.split()) for text in shown(recording())]
    assert "sgemm 2048 cold 250 ms 250 ms reached 1.20 s 300 ms 100 ms" in rows
    assert "once a process, to make the timers: 600 ms" in "\n".join(shown(recording()))


@pytest.mark.parametrize(
    ("suites", "words"),
    [
        (Suites(95.0, 0), "95 s; ≤ 180 s: reached"),
        (Suites(181.0, 0), "181 s; ≤ 180 s: MISSED"),
        (Suites(10.0, 1), "10 s, but they failed with status 1; ≤ 180 s: MISSED"),
    ],
)
def test_the_suites_are_a_line(suites, words):
    assert words in line(recording(suites=suites), "the suites whole")


def test_suites_that_were_left_out_are_not_mentioned():
    assert "suites" not in "\n".join(shown(recording(suites=None)))


def test_other_tools_are_rows_and_what_is_not_installed_a_line():
    assert (
        line(recording(), "do_bench exp 10 M") == "do_bench exp 10 M f32 cold 51.64 µs +6.2 % +6.1 % 0.00 % 3"
    )
    assert line(recording(), "NVBench") == "NVBench: not installed; cuda-bench brings it"


def test_without_other_tools_there_is_no_table_of_them():
    made = recording(session(rivals=()), session(rivals=()))
    assert "other tools" not in "\n".join(shown(made))


def test_the_last_line_counts_and_what_was_not_measured_is_named_before():
    assert shown(recording())[-1] == "20 of 20 targets reached"
    lost = recording(session(), session(), session(preparations=(Preparation("add", problem="no numba"),)))
    assert [" ".join(text.split()) for text in shown(lost)[-2:]] == [
        "MISSED: add: no numba",
        "20 of 21 targets reached",
    ]


def test_a_test_without_any_session_says_why():
    made = recording(session(problem="no CUDA"), session(problem="no CUDA"), suites=None)
    text = "\n".join(shown(made))
    assert "nothing was measured" in text
    assert "MISSED: session 2 found nothing: no CUDA" in text
    assert text.endswith("0 of 2 targets reached")


def test_a_fallback_is_explained():
    made = recording(session(fallback="cupti-python is not installed"), session())
    assert "not timed by CUPTI: cupti-python is not installed" in "\n".join(shown(made))


def test_a_narrow_terminal_shortens_names_and_never_numbers():
    lines = shown(recording(), width=100)
    assert any("19.50 µs" in text for text in lines)
