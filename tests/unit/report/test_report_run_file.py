"""Results → the file of a run, and back."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import pytest
from made_up_results import measured, result, verdict
from made_up_runs import write_run_file
from made_up_times import record_of, recorded
from msgspec import structs

from pytest_gpukern.findings.common_shift import CanaryChange, Shift
from pytest_gpukern.report.run import Advice, Failure, RunResults, Skip
from pytest_gpukern.report.run_file import read_run
from pytest_gpukern.values.fingerprint import Provenance
from pytest_gpukern.values.result import GateFailure
from pytest_gpukern.values.untrusted_json import FileError

KEY = "kernel/event/cold"
CREATED = datetime(2026, 11, 5, 12, 30, tzinfo=UTC)


def write(path, *results):
    write_run_file(path, RunResults(results, created=CREATED, version="0.1.0"))
    return json.loads(path.read_text(encoding="utf-8"))


def test_all_that_a_report_tells_comes_back(tmp_path):
    slower = result("cupy.exp", measured(), verdicts=[verdict("SLOWER", 1.05)])
    slower.verdicts[KEY] = structs.replace(
        slower.verdicts[KEY], threshold=0.02, pairs=((5e4, 5.2e4), (5e4, 5.3e4))
    )
    where = {"recorded": "2026-11-01T00:00:00+00:00", "session": "0000000a", "device": "GPU-1"}
    known = {"canaries": {"copy": 1e5}, "provenance": Provenance("beef", dirty=True)}
    time = recorded(5e4, 0.02, **where, **known)
    epochs = [(where["recorded"], "another algorithm")]
    run = RunResults(
        (slower,),
        skips=(Skip("copy/pycuda.copy", "no GPU: none", "no GPU"),),
        rejected=("copy/numba.broken",),
        failures={
            slower.nodeid: Failure(
                "SLOWER (kernel): …", (GateFailure("SLOWER", "…", "kernel"), GateFailure("tail", "more"))
            ),
            "b": Failure("x"),
        },
        history={slower.nodeid: record_of({KEY: (time,)}, epochs)},
        shift=Shift(8, 1.02, 1.01, 1.03, {"copy": CanaryChange(1.02, moved=True)}, 0.01),
        since_record=("since the record: driver 580 → 590",),
        compared_with="against beef",
        heading=("gpukern: above",),
        closing=("below", Advice("to record", "pytest --gpu-benchmark")),
        problems=("a problem",),
        duration_s=12.5,
        spent_s={"checking": 3.0},
        created=CREATED,
        version="0.1.0",
    )
    write_run_file(tmp_path / "run.json", run)
    assert read_run(tmp_path / "run.json") == run


def test_the_file_says_what_it_is_and_numbers_that_are_not_finite_are_null(tmp_path):
    data = write(tmp_path / "run.json", result("cupy.exp", measured(float("inf"))))
    assert (data["schema"], data["gpukern"], data["created"]) == (7, "0.1.0", "2026-11-05T12:30:00Z")
    text = json.dumps(data)
    assert "Infinity" not in text
    assert "NaN" not in text
    assert read_run(tmp_path / "run.json").results[0].measurements[0].summary.median_ns is None


def test_a_file_may_leave_out_what_has_a_default(tmp_path):
    data = write(tmp_path / "run.json", result("cupy.exp", measured()))
    data["skips"] = [["copy/pycuda.copy", "too hot"]]
    assert data.pop("recorded_sessions", None) is None
    (tmp_path / "run.json").write_text(json.dumps(data), encoding="utf-8")
    assert read_run(tmp_path / "run.json").skips == (Skip("copy/pycuda.copy", "too hot"),)


def test_a_run_that_cannot_be_written_leaves_the_old_file_and_nothing_else(tmp_path):
    path = tmp_path / "new" / "run.json"
    write(path, result("cupy.old"))
    path.chmod(0o444)
    with pytest.raises(FileError, match="--gpukern-report") as caught:
        write(path, result("cupy.new"))
    assert caught.value.path == path
    assert read_run(path).results[0].case.variant == "old"
    assert [*path.parent.iterdir()] == [path]
