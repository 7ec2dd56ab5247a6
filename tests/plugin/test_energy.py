"""Tests what `--gpukern-energy` shows of the energy of a call, or why there is none."""

from __future__ import annotations

import pytest

from pytest_gpukern.measure.energy import HOST_BOUND, NO_COUNTER, NOT_ASKED, OF_CALLABLES, OF_INVALID

from . import fake_gpu
from .conftest import FIRST, SECOND, results_in


def measured(pytester, case=FIRST):
    (found,) = results_in(pytester.path / "run.json")[case]["measurements"]
    return {name: found[name] for name in ("energy_mj", "mean_power_w", "energy_untold")}


@pytest.fixture
def on_board(gpu, monkeypatch, pytester):
    """Runs the problem for the fake GPU on a board; returns the whole output in one line."""

    def run(board, *options):
        fake_gpu.install(monkeypatch, board=board)
        result = gpu("--gpukern-energy", "--gpukern-report=run.json", *options)
        return " ".join(result.stdout.str().split())

    return run


def test_each_kernel_has_its_energy_and_the_power_that_it_is_checked_by(on_board, pytester):
    output = on_board(fake_gpu.Board())
    # 256 calls of a batch take 20 ms at 600 W.
    assert output.count("46.9 mJ 600 W") == 2
    assert output.count("calls back to back, nothing flushed") == 1
    assert measured(pytester) == {
        "energy_mj": pytest.approx(46.875, rel=0.001),
        "mean_power_w": pytest.approx(600.0),
        "energy_untold": None,
    }


@pytest.mark.parametrize(
    ("board", "reason"),
    [
        (fake_gpu.Board(counts=False), NO_COUNTER),
        (fake_gpu.Board(launch_s=0.03), HOST_BOUND),
        (None, NOT_ASKED),
    ],
    ids=["no counter", "launching takes longer", "no NVML"],
)
def test_if_energy_is_unknown_the_reason_appears_once_for_all_rows(on_board, pytester, board, reason):
    output = on_board(board)
    assert output.count(f"note 2 cases ({FIRST}, …): no energy told: {reason}") == 1
    assert output.count(reason) == 1
    assert "mJ" not in output
    for case in (FIRST, SECOND):
        assert measured(pytester, case) == {
            "energy_mj": None,
            "mean_power_w": None,
            "energy_untold": reason,
        }


def test_a_number_and_a_reason_stand_in_one_table(on_board, pytester, monkeypatch):
    monkeypatch.setenv("FIRST_ESCAPES", "it works elsewhere")
    output = on_board(fake_gpu.Board())
    assert output.count("46.9 mJ 600 W") == 1
    assert f"note {FIRST}: no energy told: {OF_INVALID}" in output


def test_nothing_is_shown_if_not_asked_for(gpu, monkeypatch, pytester):
    fake_gpu.install(monkeypatch, board=fake_gpu.Board())
    result = gpu("--gpukern-report=run.json")
    result.stdout.no_fnmatch_line("*energy*")
    assert set(measured(pytester).values()) == {None}


def test_a_test_of_a_callable_of_its_own_says_why_it_has_none(gpu, monkeypatch, pytester):
    fake_gpu.install(monkeypatch, board=fake_gpu.Board())
    pytester.makepyfile(test_doubling="def test_plain(gpu_benchmark): gpu_benchmark(lambda: None)")
    result = gpu("--gpukern-energy")
    result.assert_outcomes(passed=1)
    assert f"no energy told: {OF_CALLABLES}" in " ".join(result.stdout.str().split())
