"""Holds what the forms of the report say of stored runs: verdicts, findings, headings and failures.

`tests/data/golden/NAME.json.gz` is the file of a run, and `NAME.txt` what is said of it. The runs were made
on a host with two CPUs, but for `h200`, which is `run-h200.json.gz`:

    host         three timed calls against their record
    busy         the same while other programs use all CPUs
    slower       one of them does its work twice
    against      the same, compared with the commit before
    wrong        another has wrong results too
    simulator    four suites without a GPU
    another_card a fake GPU 20 % slower than the recorded one: eight kernels do as recorded, one has other
                 code, and of one no scalar arguments are known
    code         add_constant compiled for sm_90, with a kernel that was changed
    made_up      each kind of verdict on a GPU, made up; `made_up_runs.py` makes larger runs of it
    forms        made-up results: the name of each problem says what its rows show

Of `forms`, `forms_at_length.txt` has all that any form can say: details, colours, each cell and figure. To
show another row, append a result to what `read_run` reads, and write `run_text` of it.

With `GPUKERN_WRITE_GOLDEN=1` the tests write the texts anew. Read their difference before you commit it.
"""

import csv
import dataclasses
import io
import json
import os
import re
from pathlib import Path

import pytest

from pytest_gpukern.report.details import gpu_trace
from pytest_gpukern.report.forms import file_content
from pytest_gpukern.report.junit import properties
from pytest_gpukern.report.recorded import read_all
from pytest_gpukern.report.run_file import read_run, run_text
from pytest_gpukern.report.terminal import render

DATA = Path(__file__).parents[1] / "data"
RUNS = {"h200": DATA / "run-h200.json.gz"} | {
    path.name.partition(".")[0]: path for path in sorted((DATA / "golden").glob("*.json.gz"))
}
COLUMNS = ("case", "scope", "timer", "cache", "correctness", "verdict", "ratio", "threshold", "reason")
CONCLUSION = ("headline", "context", "verdict", "failures", "others")
PAGE = (*CONCLUSION, "facts", "problems", "since", "notes", "closing")


def told_of(path):
    """Returns what each form says of a run, one part a form."""
    (run,) = read_all([path])
    yield "terminal", "\n".join(line.text for line in render(run, width=100))
    yield "comment", file_content(Path("run.md"), [run])
    rows = csv.DictReader(io.StringIO(file_content(Path("run.csv"), [run])))
    measured = (row for row in rows if row["role"] == "measured")
    yield "table", "\n".join(" | ".join(row[name] for name in COLUMNS) for row in measured)
    shown = shown_on_the_page(run)
    yield "page", json.dumps({name: shown[name] for name in PAGE}, ensure_ascii=False, indent=1)


def shown_on_the_page(run):
    page = file_content(Path("run.html"), [run]).decode()
    assert len(page) < 1_500_000, "it is sent by mail, and opened on a phone"
    (shown,) = json.loads(re.search(r' id="data">(.*?)</script>', page, re.DOTALL)[1])["runs"]
    return shown


def told_at_length(path):
    """Returns all that each form can say of a run, one part a form."""
    (run,) = read_all([path])
    for width in (160, 80):
        lines = render(run, width=width, verbose=True)
        yield f"terminal, -v, {width} columns", "\n".join(map(coloured, lines))
    yield "trace", "\n".join(line.text for line in gpu_trace(run.results))
    yield "table", file_content(Path("run.csv"), [run])
    yield "JUnit", "\n".join(f"{name} = {value}" for of in run.results for name, value in junit_of(run, of))
    for name, value in shown_on_the_page(run).items():
        table = value if isinstance(value, dict) else {"rows": value if isinstance(value, list) else [value]}
        rows = (
            json.dumps(row, ensure_ascii=False)
            for row in [*filter(None, [table.get("names")]), *table["rows"]]
        )
        yield f"page: {name}", "\n".join(rows)


def junit_of(run, result):
    failures = {test: failure for test, failure in run.failures.items() if test == result.nodeid}
    return properties(dataclasses.replace(run, results=[result], failures=failures))


def coloured(line):
    return "".join(f"<{' '.join(markup)}>{text}</>" if markup else text for text, markup in line.parts())


def text_of(parts):
    return "".join(f"== {form}\n{text.rstrip()}\n" for form, text in parts)


def agrees(text, name):
    golden = DATA / "golden" / f"{name}.txt"
    if os.environ.get("GPUKERN_WRITE_GOLDEN"):
        golden.write_text(text, encoding="utf-8")
    assert text == golden.read_text(encoding="utf-8"), "with GPUKERN_WRITE_GOLDEN=1 written anew"


@pytest.mark.parametrize("name", RUNS)
def test_the_forms_say_the_same_of_a_stored_run(name):
    agrees(text_of(told_of(RUNS[name])), name)


@pytest.mark.parametrize("name", RUNS)
def test_a_stored_run_that_is_written_again_is_the_same(name, tmp_path):
    run = read_run(RUNS[name])
    (tmp_path / "again.json").write_text(run_text(run), encoding="utf-8")
    assert read_run(tmp_path / "again.json") == run


def test_the_forms_say_the_same_of_each_kind_of_row_at_length():
    agrees(text_of(told_at_length(RUNS["forms"])), "forms_at_length")
