"""Results → the file of a run, and back."""

from __future__ import annotations

import json
from datetime import UTC, datetime

from made_up_results import measured, result
from made_up_runs import write_run_file

from pytest_gpukern.report.run import RunResults
from pytest_gpukern.report.run_file import read_run

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
