"""How long the report of a recorded run of an H200 is; `tests/plugin/test_golden.py` holds what it says."""

from __future__ import annotations

import json
import re
from pathlib import Path

from pytest_gpukern.cli import main as cli
from pytest_gpukern.report.run_file import read_run
from pytest_gpukern.report.terminal import render

RECORDED = Path(__file__).parents[2] / "data" / "run-h200.json.gz"
INCORRECT = "add_constant/cupy.elementwise_kernel/z=1024,y=1024,x=37,fill=random"


def test_a_run_of_the_suites_takes_a_screen_without_v():
    lines = [line.text for line in render(read_run(RECORDED), width=80)]
    assert len(lines) <= 60
    assert sum(INCORRECT in line for line in lines) == 1, "in the command that repeats it"


def test_the_page_is_small_and_holds_each_case(tmp_path):
    assert cli.main(["report", str(RECORDED), "-o", str(tmp_path / "report.html")]) == 0
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert len(page.encode()) < 1_500_000
    text = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    (shown,) = json.loads(text[1])["runs"]
    ids = [result.case.id for result in read_run(RECORDED).results]
    place = shown["cases"]["names"].index("id")
    assert sorted(row[place] for row in shown["cases"]["rows"]) == sorted(ids)
