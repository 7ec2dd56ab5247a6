"""Results → the file of a run, and back."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import pytest
from made_up_results import measured, result
from made_up_runs import write_run_file

from pytest_gpukern.report.run import RunResults, Skip
from pytest_gpukern.report.run_file import read_run
from pytest_gpukern.values.untrusted_json import FileError

CREATED = datetime(2026, 11, 5, 12, 30, tzinfo=UTC)


def write(path, *results):
    write_run_file(path, RunResults(results, created=CREATED, version="0.1.0"))
    return json.loads(path.read_text(encoding="utf-8"))


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
