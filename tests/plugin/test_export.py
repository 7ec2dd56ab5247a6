"""The command `gpukern export`, from a run to a table."""

import csv

import pytest

from pytest_gpukern.cli import main as cli

from .conftest import FIRST, SECOND


@pytest.fixture
def runs(recorded, monkeypatch, pytester):
    """The files of two runs, the second with a slower kernel."""
    recorded("--gpukern-output=one.json")
    monkeypatch.setenv("FIRST_TAKES_NS", "1100")
    recorded("--gpukern-output=two.json")
    return pytester.path


def test_two_runs_become_one_table(runs, capsys):
    capsys.readouterr()
    assert cli.main(["export", "one.json", "two.json", "-o", "all.csv"]) == 0
    with (runs / "all.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert capsys.readouterr().out == f"{len(rows)} rows in all.csv\n"
    found = [
        (row["run"], row["case"], row["median_ns"], row["verdict"])
        for row in rows
        if row["role"] == "measured"
    ]
    assert found == [
        ("one.json", FIRST, "1000.0", "SAME"),
        ("one.json", SECOND, "1000.0", "SAME"),
        ("two.json", FIRST, "1100.0", "SLOWER"),
        ("two.json", SECOND, "1000.0", "SAME"),
    ]
    assert {row["role"] for row in rows} == {"measured", "confirming", "further"}


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (["one.json", "-o", "two.json"], 2, "two.json is no table: -o takes a name that ends in .csv"),
        (["missing.json", "-o", "all.csv"], 3, "missing.json: cannot be read"),
        (["one.json", "-o", "no/folder.csv"], 3, "no/folder.csv: cannot be written"),
    ],
)
def test_what_cannot_be_exported_is_refused_with_the_reason(runs, capsys, arguments, status, said):
    before = (runs / "two.json").read_bytes()
    assert cli.main(["export", *arguments]) == status
    assert said in capsys.readouterr().err
    assert (runs / "two.json").read_bytes() == before
    assert not (runs / "all.csv").exists()


def test_a_run_that_measured_nothing_has_no_table(host, pytester, capsys):
    host("--gpukern-output=run.json")
    assert cli.main(["export", "run.json", "-o", "run.csv"]) == 1
    assert "no measurement in run.json: run pytest with --gpu-benchmark" in capsys.readouterr().err
