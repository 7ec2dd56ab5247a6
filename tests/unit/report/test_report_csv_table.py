"""Runs → a table of their measurements."""

import csv
import io
import re
from datetime import UTC, datetime
from pathlib import Path

import pytest
from made_up_results import measured, result

from pytest_gpukern.report.csv_table import csv_text
from pytest_gpukern.report.run import RunResults

FILES = Path(__file__).parents[3] / "docs/reference/files.md"
CREATED = datetime(2026, 11, 5, 12, 30, tzinfo=UTC)


def table(*results, sessions=None):
    run = RunResults(results=results, sessions=sessions or {}, created=CREATED, name="run.json")
    return list(csv.DictReader(io.StringIO(csv_text([run]))))


def test_the_columns_are_those_of_the_documentation_in_its_order():
    documented = FILES.read_text(encoding="utf-8").partition("## Table")[2]
    names = [
        name for row in re.findall(r"^\| (`.*?`) \|", documented, re.MULTILINE) for name in row.split(", ")
    ]
    (row,) = table(result("cupy.exp", measured()))
    own = [name for name in row if "." not in name]  # those of observers are in tests of their table
    assert [f"`{name}`" for name in own] == [name for name in names if "." not in name]


@pytest.mark.parametrize(
    ("text", "cell"),
    [
        ("=HYPERLINK(1)", "'=HYPERLINK(1)"),
        ("+1", "'+1"),
        ("-1+1", "'-1+1"),
        ("@SUM(1)", "'@SUM(1)"),
        (" =1", "' =1"),
        ("\t=1", "\\u0009=1"),
        ("\n=1", "\\u000a=1"),
        ("a;=1", "a;'=1"),
        ('a;"=1', "a;'\"=1"),
        ("＝1", "'＝1"),
        ("a=b-c", "a=b-c"),
        ('say "a,b"', 'say "a,b"'),
        ("test_\udc80", "test_\\udc80"),
    ],
)
def test_no_text_of_a_run_becomes_a_formula_or_breaks_the_file(text, cell):
    (row,) = table(result("cupy.exp", measured(), nodeid=text))
    assert row["test"] == cell
