"""Files of runs and baselines → the series of each time, and the lines that `gpukern report` says of them."""

from __future__ import annotations

import gzip
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from made_up_results import measured, result
from made_up_runs import write_run_file
from msgspec import structs

from pytest_gpukern.cli import main as cli
from pytest_gpukern.report.recorded import read_all, trends
from pytest_gpukern.report.run import RunResults
from pytest_gpukern.values.fingerprint import Fingerprint, Provenance
from pytest_gpukern.values.result import Correctness, SessionRole

BASELINE = Path(__file__).parents[3] / "suites" / "vector_exp" / "baselines" / "vector_exp.nvidia-h200.json"
CASE = "vector_exp/cupy.exp/n=1000"
KEY = (CASE, "kernel/event/cold")
TIMES_US = (50.0, 50.1, 49.9, 50.05, 49.95, 55.0, 55.1, 54.9, 55.05, 54.95)
H200, H100 = (Fingerprint(device_uuid="GPU-1", device_model_key=model) for model in ("h200", "h100"))


def runs(*times_us, **changes):
    """A run a day with one case, oldest first, each with a confirming session in which it was slow."""
    made = []
    for number, us in enumerate(times_us):
        filled = {"fingerprint": H200, "session": f"s{number}", "provenance": Provenance(f"{number:040x}")}
        first = result("cupy.exp", measured(us * 1000), **{**filled, **changes})
        slow = result("cupy.exp", measured(9e4), **{**filled, "session": f"c{number}"})
        confirming = structs.replace(slow, role=SessionRole.CONFIRMING)
        created = datetime(2026, 11, 1, tzinfo=UTC) + timedelta(number)
        made.append(RunResults([first], {first.nodeid: [confirming]}, created=created))
    return made


def test_the_runs_of_a_case_are_a_series_without_the_sessions_that_confirmed_a_suspicion():
    trend = trends(runs(*TIMES_US)[::-1])[KEY]
    assert [ns / 1000 for ns in trend.times_ns] == pytest.approx(TIMES_US)
    assert trend.change.startswith("+10.0 % since the session of 6 Nov, recorded on 0000000; ")


@pytest.mark.parametrize(
    "other",
    [
        {"fingerprint": H100},
        {"simulated": True},
        {"correctness": Correctness.INCORRECT},
        {"nodeid": f"elsewhere.py::test_it[{CASE}]"},
    ],
)
def test_what_is_not_like_the_newest_result_does_not_count(other):
    others = runs(70.0, **other)
    assert trends([*others, *runs(*TIMES_US)[1:]])[KEY].times_ns == trends(runs(*TIMES_US)[1:])[KEY].times_ns


def test_a_baseline_and_runs_of_its_cases_are_one_series_in_which_each_session_counts_once():
    (baseline,) = read_all([BASELINE])
    recorded = {
        name: [point.session.session for point in trend.points] for name, trend in trends([baseline]).items()
    }
    new = [structs.replace(of, session="new", nodeid=f"t.py::t[{of.case.id}]") for of in baseline.results]
    both = trends([RunResults(new, created=baseline.created + timedelta(1)), baseline])
    assert both.keys() == recorded.keys()
    assert all(
        [point.session.session for point in both[name].points] == [*recorded[name], "new"] for name in both
    )
    assert all(set(trend.points[0].session.canaries) == {"copy", "fma", "launch"} for trend in both.values())


def test_several_runs_are_told_with_each_time_that_has_a_new_level(tmp_path, capsys):
    for number, run in enumerate(runs(*TIMES_US)):
        write_run_file(tmp_path / f"{number}.json", run)
    files = sorted(map(str, tmp_path.iterdir()))
    assert cli.main(["report", *files]) == 0
    *_, line, count = capsys.readouterr().out.splitlines()
    assert line.startswith(f"{CASE} kernel: +10.0 % since the session of 6 Nov, recorded on 0000000")
    assert count == "gpukern: 1 of 1 times with 8 sessions or more have a new level"
    assert cli.main(["report", files[0]]) == 0
    assert "new level" not in capsys.readouterr().out
    assert cli.main(["report", *files, "-o", str(tmp_path / "page.html")]) == 0
    assert f'"{line.partition(": ")[2]}"' in (tmp_path / "page.html").read_text(encoding="utf-8")


@pytest.mark.parametrize("folder", ["artifacts", "baselines"])
@pytest.mark.parametrize("command", ["report", "compare"])
def test_packed_files_are_read_wherever_they_lie(tmp_path, capsys, folder, command):
    (tmp_path / folder).mkdir()
    write_run_file(tmp_path / "run.json", runs(50.0)[0])
    for name, plain in (("run.json.gz", tmp_path / "run.json"), ("exp.nvidia-h200.json.gz", BASELINE)):
        packed = tmp_path / folder / name
        packed.write_bytes(gzip.compress(plain.read_bytes()))
        assert cli.main([command, str(packed), *([str(plain)] if command == "compare" else [])]) == 0
        packed.write_bytes(gzip.compress(plain.read_bytes())[:-20])
        assert cli.main([command, str(packed), str(plain)]) != 0
        assert f"{name}: is not complete gzip" in capsys.readouterr().err
