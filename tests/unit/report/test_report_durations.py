"""Where the time of a run went, in words."""

import dataclasses

from made_up_results import measured, result

from pytest_gpukern.report.durations import durations, time_spent
from pytest_gpukern.report.run import Run
from pytest_gpukern.report.terminal import render

SPENT = {"starting": 8.4, "checking": 62.0, "reference": 0.4, "sampling": 36.5}


def spent(variant, **seconds):
    return dataclasses.replace(result(variant, measured()), spent_s=seconds)


def test_the_longest_phase_comes_first_the_rest_is_the_runs_and_small_ones_are_left_out():
    assert time_spent(Run(duration_s=193.2, spent_s=SPENT)) == (
        "time: 193 s: pytest and the tests' own code 86 s, checking 62 s, sampling 36 s, starting 8.40 s"
    )


def test_processes_side_by_side_leave_no_rest_that_could_be_told():
    told = time_spent(Run(duration_s=38.0, spent_s=SPENT))
    assert told == (
        "time: 38 s, of all processes side by side 107 s: checking 62 s, sampling 36 s, starting 8.40 s"
    )


def test_a_phase_without_a_time_is_left_out():
    unknown = {"sampling": None, "checking": 3.0}
    told = "checking 3.00 s"
    assert time_spent(Run(duration_s=3.0, spent_s=unknown)).endswith(told)
    (_, line) = durations(Run([spent("cupy.exp", **unknown)], duration_s=3.0), width=100)
    assert line.text.endswith(told)


def test_a_file_of_an_older_release_says_nothing():
    assert time_spent(Run()) is None
    assert durations(Run([result("cupy.exp", measured())]), width=100) == []


def test_only_a_run_over_20_s_says_it_in_its_summary():
    short, long = (
        Run([result("cupy.exp", measured())], duration_s=duration_s, spent_s={"sampling": 15.0})
        for duration_s in (19.9, 20.1)
    )
    told = [line.text for line in render(long, width=100) if line.text.startswith("time: ")]
    assert told == ["time: 20 s: sampling 15 s, pytest and the tests' own code 5.10 s"]
    assert not any(line.text.startswith("time: ") for line in render(short, width=100, verbose=True))


def test_cases_follow_the_run_the_slowest_first():
    run = Run(
        [spent("cupy.quick", sampling=0.5), spent("cupy.slow", sampling=0.5, checking=12.0)],
        duration_s=14.0,
        spent_s={"sampling": 1.0, "checking": 12.0},
    )
    run_line, slow, quick = (line.text for line in durations(run, width=100))
    assert run_line.startswith("time: 14 s: checking 12 s")
    assert slow == "12 s  vector_exp/cupy.slow/n=1000: checking 12 s, sampling 500 ms"
    assert quick == "500 ms  vector_exp/cupy.quick/n=1000: sampling 500 ms"
