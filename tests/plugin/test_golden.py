"""Holds what the forms of the report say of stored runs: verdicts, findings, headings and failures.

`tests/data/golden/NAME.json.gz` is the file of a run, and `NAME.txt` what is said of it. The runs were made
on a host with two CPUs, but for `h200`, which is `run-h200.json.gz`:

    host         three timed calls against their record
    busy         the same while other programs use all CPUs
    slower       one of them does its work twice
    against      the same, compared with the commit before
    wrong        another has wrong results too
    simulator    four suites without a GPU
    code         add_constant compiled for sm_90, with a kernel that was changed
    made_up      `made_up_runs.gpu_run(60)`: each kind of verdict on a GPU

With `GPUKERN_WRITE_GOLDEN=1` the tests write the texts anew. Read their difference before you commit it.
"""

import csv
import io
import itertools
import json
import os
import re
from pathlib import Path

import pytest

from plugin.test_fleet import run_of
from pytest_gpukern.cli import main as cli
from pytest_gpukern.report.fleet_files import write_run
from pytest_gpukern.report.forms import file_content
from pytest_gpukern.report.recorded import read_all
from pytest_gpukern.report.run import EmptyReportError
from pytest_gpukern.report.terminal import render

DATA = Path(__file__).parents[1] / "data"
RUNS = {"h200": DATA / "run-h200.json.gz"} | {
    path.name.partition(".")[0]: path for path in sorted((DATA / "golden").glob("*.json.gz"))
}
COLUMNS = ("case", "scope", "timer", "cache", "correctness", "verdict", "ratio", "threshold", "reason")
PAGE = (
    "headline",
    "context",
    "verdict",
    "failures",
    "others",
    "facts",
    "problems",
    "since",
    "notes",
    "closing",
)
SLOW, CORRUPT = (3, 1), (7, 0)


def told_of(path):
    """Returns what each form says of a run, one part a form."""
    (run,) = read_all([path])
    yield "terminal", "\n".join(line.text for line in render(run, width=100))
    yield "comment", file_content(Path("run.md"), [run])
    try:
        rows = csv.DictReader(io.StringIO(file_content(Path("run.csv"), [run])))
        measured = (row for row in rows if row["role"] == "measured")
        yield "table", "\n".join(" | ".join(row[name] for name in COLUMNS) for row in measured)
    except EmptyReportError as nothing:
        yield "table", str(nothing)
    page = file_content(Path("run.html"), [run]).decode()
    (shown,) = json.loads(re.search(r' id="data">(.*?)</script>', page, re.DOTALL)[1])["runs"]
    yield "page", json.dumps({name: shown[name] for name in PAGE}, ensure_ascii=False, indent=1)


def text_of(path):
    return "".join(f"== {form}\n{text.rstrip()}\n" for form, text in told_of(path))


def agrees(text, name):
    golden = DATA / "golden" / f"{name}.txt"
    if os.environ.get("GPUKERN_WRITE_GOLDEN"):
        golden.write_text(text, encoding="utf-8")
    assert text == golden.read_text(encoding="utf-8")


@pytest.mark.parametrize("name", RUNS)
def test_the_forms_say_the_same_of_a_stored_run(name):
    agrees(text_of(RUNS[name]), name)


def fleet_text(folder, capsys):
    """What is said of 24 cards: one is 6 % slower, and one has other bits from the same machine code."""
    for host, index, session in itertools.product(range(12), range(2), range(3)):
        slow, change = 0.06 * ((host, index) == SLOW), other_bits if (host, index) == CORRUPT else None
        text = run_of(f"{host}-{index}", session, slow=slow, change=change)
        write_run(folder / "runs", f"node{host}", f"{index}", text)
    assert cli.main(["fleet", str(folder / "runs"), "-o", str(folder / "fleet.csv")]) == 1
    return capsys.readouterr().out.replace(f"{folder}/", "") + (folder / "fleet.csv").read_text()


def other_bits(run):
    for error in run["results"][0]["errors"].values():
        error["bits"] = f"{error['bits'].partition(':')[0]}:0123456789abcdef"


def test_the_report_of_a_fleet_is_the_same(tmp_path, capsys):
    agrees(fleet_text(tmp_path, capsys), "fleet")
