"""Makes every form of the report from the recorded run of an H200; three cases have planted mistakes."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path

import pytest
from made_up_runs import write_run_file

from pytest_gpukern.cli import main as cli
from pytest_gpukern.report.run_file import read_run
from pytest_gpukern.report.terminal import render

RECORDED = Path(__file__).parents[2] / "data" / "run-h200.json.gz"
SLOWER = "vector_exp/numba.grid_stride/n=10000000,block=128,most_blocks=1056"
INCORRECT = "add_constant/cupy.elementwise_kernel/z=1024,y=1024,x=37,fill=random"


def made(tmp_path, name):
    """What `gpukern report` writes from the run."""
    assert cli.main(["report", str(RECORDED), "-o", str(tmp_path / name)]) == 0
    return (tmp_path / name).read_text(encoding="utf-8")


def test_the_file_that_a_run_is_written_to_again_is_the_same(tmp_path):
    run = read_run(RECORDED)
    write_run_file(tmp_path / "again.json", run)
    assert read_run(tmp_path / "again.json") == run
    assert len(run.results) == 249
    assert sum(result.trace is not None for result in run.results) == 33


def test_a_run_of_the_suites_takes_a_screen_without_v():
    lines = [line.text for line in render(read_run(RECORDED), width=80)]
    assert len(lines) <= 60
    assert sum(INCORRECT in line for line in lines) == 1, "in the command that repeats it"
    text = " ".join(" ".join(lines).split())
    assert text.startswith(
        "FAILED: 2 wrong results, 1 kernel +25.4 % NVIDIA H200, driver 580.159.04 compared"
    )
    assert "INCORRECT add_constant/cupy.elementwise_kernel: x=512, x=37 what" in text
    slower = f"SLOWER {SLOWER} kernel 37.4 → 46.8 µs, +25.4 % [+22.4, +28.4], threshold 2 % 51 → 40 % of copy"
    assert f"{slower} since new in this run; all 7 recorded sessions of 20 to 22 Nov were at the old" in text
    assert "why new machine code, registers 30 → 53, the code, not the machine repeat pytest " in text
    assert "undecided 102 timings: the largest suspicion +4.8 %, matmul/pycuda.naive/n=50" in text
    assert "32 threads: the machine, not the change" in text
    assert "gpukern: 246 passed, 2 incorrect, 1 failed by the gate, 59 skipped · baseline: 95 same" in text


def test_the_page_is_small_and_holds_each_case(tmp_path):
    page = made(tmp_path, "report.html")
    assert len(page.encode()) < 1_500_000
    text = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    (shown,) = json.loads(text[1])["runs"]
    ids = [result.case.id for result in read_run(RECORDED).results]
    place = shown["cases"]["names"].index("id")
    assert sorted(row[place] for row in shown["cases"]["rows"]) == sorted(ids)
    assert ": ".join(shown["headline"]) == "FAILED: 2 wrong results, 1 kernel +25.4 %"
    assert "246 passed, 2 incorrect, 1 failed by the gate" in shown["verdict"]


def test_the_comment_names_what_failed_first(tmp_path):
    comment = made(tmp_path, "comment.md")
    failed, *folded = comment.split("<details>")
    assert failed.startswith("<!-- gpukern -->\n### gpukern: FAILED&#58; 2 wrong results, 1 kernel +25.4")
    row = "**+25.4 %**<br>&#91;+22.4, +28.4&#93; | 37.4 → 46.8 µs | 51 → 40 %<br>of copy |"
    assert row in failed.replace("\N{NO-BREAK SPACE}", " ")
    assert "</code> x=512, x=37 |" in failed
    assert "10 timings of discount |" in folded[-1]


def test_the_table_has_a_row_for_each_measurement(tmp_path):
    rows = list(csv.DictReader(made(tmp_path, "run.csv").splitlines()))
    run = read_run(RECORDED)
    sessions = [*run.results, *(each for found in run.sessions.values() for each in found)]
    assert len(rows) == sum(len(each.measurements) for each in sessions)
    (slower,) = [row for row in rows if row["verdict"] == "SLOWER"]
    assert (slower["case"], slower["registers"]) == (SLOWER, "53")
    assert float(slower["ratio"]) == pytest.approx(1.2537, abs=1e-4)
