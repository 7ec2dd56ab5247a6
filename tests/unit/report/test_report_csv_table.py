"""Runs → a table of their measurements."""

import csv
import io
import re
from datetime import UTC, datetime
from pathlib import Path

import pytest
from made_up_results import COPY_IN, EXP_KERNEL, error, measured, result, verdict
from msgspec import structs

from pytest_gpukern.report.csv_table import csv_text
from pytest_gpukern.report.run import RunResults

FILES = Path(__file__).parents[3] / "docs/reference/files.md"
CREATED = datetime(2026, 11, 5, 12, 30, tzinfo=UTC)


def table(*results, sessions=None):
    run = RunResults(results=results, sessions=sessions or {}, created=CREATED, name="run.json")
    return list(csv.DictReader(io.StringIO(csv_text([run]))))


def test_each_measurement_is_a_row_with_case_time_and_verdict():
    slower = structs.replace(
        verdict("SLOWER", 1.05, "it grew\nmore"), ratio_low=1.04, ratio_high=1.06, threshold=0.02
    )
    times = [measured(1000.0, half=0.01, traffic_bytes=4000), measured(9000.5, scope="transfer")]
    kernel, transfer = table(result("cupy.exp", *times, verdicts=[slower]))
    assert {name: kernel[name] for name in ("run", "case", "backend", "variant", "size", "device")} == {
        "run": "run.json",
        "case": "vector_exp/cupy.exp/n=1000",
        "backend": "cupy",
        "variant": "exp",
        "size": "n=1000",
        "device": "NVIDIA H200",
    }
    assert [kernel[name] for name in ("scope", "timer", "cache")] == ["kernel", "event", "cold"]
    assert [kernel[name] for name in ("median_ns", "low_ns", "high_ns")] == ["1000.0", "990.0", "1010.0"]
    assert (kernel["samples"], kernel["traffic_bytes"], kernel["max_ulp"]) == ("10", "4000", "0.5")
    assert [kernel[name] for name in ("verdict", "ratio", "ratio_low", "ratio_high", "threshold")] == [
        *("SLOWER", "1.05", "1.04", "1.06", "0.02")
    ]
    assert kernel["reason"] == "it grew"
    assert (transfer["scope"], transfer["median_ns"], transfer["verdict"]) == ("transfer", "9000.5", "")
    assert kernel["created"] == "2026-11-05T12:30:00+00:00"


def test_the_columns_are_those_of_the_documentation_in_its_order():
    documented = FILES.read_text(encoding="utf-8").partition("## Table")[2]
    names = [
        name for row in re.findall(r"^\| (`.*?`) \|", documented, re.MULTILINE) for name in row.split(", ")
    ]
    (row,) = table(result("cupy.exp", measured()))
    own = [name for name in row if "." not in name]  # those of observers are in tests of their table
    assert [f"`{name}`" for name in own] == [name for name in names if "." not in name]


def test_the_kernel_that_takes_longest_is_named_but_not_for_copies():
    short = structs.replace(
        EXP_KERNEL, time_ns=10.0, kernel=structs.replace(EXP_KERNEL.kernel, name="short", symbol="short")
    )
    times = [measured(work=(short, EXP_KERNEL, COPY_IN)), measured(scope="transfer")]
    kernels = (short.kernel, structs.replace(EXP_KERNEL.kernel, occupancy=0.75))
    kernel, transfer = table(result("cupy.exp", *times, kernels=kernels))
    names = ("kernels", "kernel", "registers", "local_bytes", "shared_bytes", "occupancy")
    assert [kernel[name] for name in names] == ["2", "exp_kernel", "40", "128", "3072", "0.75"]
    assert [transfer[name] for name in names] == [""] * 6


def test_the_simulator_has_rows_without_times():
    (row,) = table(result("numba.exp", measured(), simulated=True))
    assert (row["simulated"], row["median_ns"], row["low_ns"], row["high_ns"]) == ("true", "", "", "")


def test_an_error_without_a_value_is_empty():
    (row,) = table(result("host.numpy", measured(timer="host"), errors={"y": error(ulp=None)}))
    assert (row["max_rel"], row["max_ulp"], row["device"]) == ("2.3e-07", "", "AMD EPYC")


@pytest.mark.parametrize(
    ("reason", "cell"),
    [("+10 %, threshold 2 %", "time +10 %, threshold 2 %"), ("−1 %", "time −1 %"), ("=1;=2", "time =1;'=2")],
)
def test_a_reason_that_begins_with_a_change_begins_with_a_word_instead_of_an_apostrophe(reason, cell):
    (row,) = table(result("cupy.exp", measured(), verdicts=[verdict("UNDECIDED", 1.1, reason)]))
    assert row["reason"] == cell


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
