"""Where the time of a run went, in words."""

import pytest
from made_up_results import measured, result

from pytest_gpukern.report.run import RunResults
from pytest_gpukern.report.summary import time_spent
from pytest_gpukern.report.terminal import render

SPENT = {"starting": 8.4, "checking": 62.0, "preparing": 0.4, "timing": 36.5}


@pytest.mark.parametrize(
    ("duration_s", "spent_s", "told"),
    [
        (
            193.2,
            SPENT,
            "193 s: pytest and the tests' own code 86 s, checking 62 s, timing 36 s, starting 8.40 s",
        ),
        # processes side by side leave no rest that could be told
        (
            38.0,
            SPENT,
            "38 s, of all processes side by side 107 s: checking 62 s, timing 36 s, starting 8.40 s",
        ),
        (3.0, {"timing": None, "checking": 3.0}, "3.00 s: checking 3.00 s"),
    ],
)
def test_the_longest_phase_comes_first_and_small_ones_are_left_out(duration_s, spent_s, told):
    assert time_spent(RunResults(duration_s=duration_s, spent_s=spent_s)) == f"time: {told}"
    assert time_spent(RunResults(spent_s=spent_s)) == "", "as of an older release"


def test_only_a_run_over_20_s_says_it_in_its_summary():
    short, long = (
        RunResults([result("cupy.exp", measured())], duration_s=duration_s, spent_s={"timing": 15.0})
        for duration_s in (19.9, 20.1)
    )
    told = [line.text for line in render(long, width=100) if line.text.startswith("time: ")]
    assert told == ["time: 20 s: timing 15 s, pytest and the tests' own code 5.10 s"]
    assert not any(line.text.startswith("time: ") for line in render(short, width=100, verbose=True))
