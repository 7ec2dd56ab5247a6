"""The self-test's conclusions from a run that was recorded on an H200: logic only, no GPU."""

from pathlib import Path

import pytest

from pytest_gpukern.cli import main as cli

RECORDED = Path(__file__).parents[1].parent / "data" / "selftest-h200.json"


@pytest.fixture
def replayed(capsys):
    status = cli.main(["selftest", "--replay", str(RECORDED)])
    return status, capsys.readouterr().out


def test_the_recorded_run_reaches_all_targets(replayed):
    status, text = replayed
    assert status == 0
    assert "36 of 36 targets reached" in text
    assert "MISSED" not in text


def test_the_default_timer_read_known_times_within_its_tick(replayed):
    _, text = replayed
    spins = [line for line in text.splitlines() if "own time" in line and "cupti" in line and "spin" in line]
    assert len(spins) >= 6
    assert all(line.endswith("reached") for line in spins[:6])


def test_other_tools_stand_beside_it(replayed):
    _, text = replayed
    for tool in ("cupyx.profiler.benchmark", "triton.testing.do_bench", "cuda-bench (NVBench)"):
        assert tool in text
