"""Runs → a table of their measurements."""

import csv
import io
import re
from pathlib import Path

import pytest
from made_up_results import measured, result, verdict
from msgspec import structs

from pytest_gpukern.report.csv_table import csv_text
from pytest_gpukern.report.run import Failure, RunResults
from pytest_gpukern.values.result import SessionRole

FILES = Path(__file__).parents[3] / "docs/reference/files.md"


def table(*results, **fields):
    return list(csv.DictReader(io.StringIO(csv_text([RunResults(results, **fields)]))))


def test_a_test_that_failed_by_itself_did_so_in_its_own_session_alone():
    made = result("cupy.exp", measured(), verdicts=[verdict("SAME", 1.2)])
    again = structs.replace(made, role=SessionRole.FURTHER)
    rows = table(made, sessions={made.nodeid: [again]}, failures={made.nodeid: Failure("KeyError")})
    assert [row["verdict"] for row in rows] == ["FAILED", "SAME"]


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
