"""The self-test's conclusions from a run that was recorded on an H200: logic only, no GPU."""

from pathlib import Path

import pytest

from pytest_gpukern import cli

RECORDED = Path(__file__).parent.parent / "data" / "selftest-h200.json"


@pytest.fixture
def replayed(capsys):
    status = cli.main(["selftest", "--replay", str(RECORDED)])
    return status, capsys.readouterr().out


def test_the_recorded_run_reaches_most_targets_and_misses_these(replayed):
    status, text = replayed
    assert status == 1
    assert "32 of 35 targets reached" in text
    missed = [line.split("  ")[1].strip() for line in text.splitlines() if line.endswith("MISSED")]
    assert missed == ["add 32 M f64, hot, per node", "exp 10 M f32", "exp 10 M f32"]


def test_the_default_timer_read_known_times_within_its_tick(replayed):
    _, text = replayed
    spins = [line for line in text.splitlines() if "own time" in line and "cupti" in line and "spin" in line]
    assert len(spins) >= 6
    assert all(line.endswith("reached") for line in spins[:6])


def test_other_tools_stand_beside_it(replayed):
    _, text = replayed
    for tool in ("cupyx.profiler.benchmark", "triton.testing.do_bench", "cuda-bench (NVBench)"):
        assert tool in text
