"""Runs → one page: small, closed to everything from outside, and with the words of the terminal."""

from __future__ import annotations

import base64
import hashlib
import json
import random
import re

import made_up_results as made_up
import made_up_runs
import pytest
from made_up_results import COPY_IN, EXP_KERNEL, measured, result
from made_up_times import record_of, recorded
from msgspec import structs

from pytest_gpukern.report import html
from pytest_gpukern.report.details import spent
from pytest_gpukern.report.run import RunResults
from pytest_gpukern.values.result import Summary


def data_of(*runs):
    """What the page's script reads, its tables as lists of dicts."""
    page = html.page(runs).decode()
    text = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    data = json.loads(text[1])
    for run in data["runs"]:
        run |= {name: records(run[name]) for name in ("cases", "scopes", "rows")}
    return data


def records(table):
    return [dict(zip(table["names"], row, strict=True)) for row in table["rows"]]


def test_the_page_lets_nothing_run_but_its_script_and_nothing_be_loaded():
    page = html.page([made_up_runs.gpu_run(12)]).decode()
    (policy,) = re.findall(r'http-equiv="Content-Security-Policy" content="([^"]*)"', page)
    scripts = re.findall(r"<script>(.*?)</script>", page, re.DOTALL)
    hashes = [base64.b64encode(hashlib.sha256(each.encode()).digest()).decode() for each in scripts]
    assert re.search("script-src ([^;]*)", policy)[1] == " ".join(f"'sha256-{each}'" for each in hashes)
    assert policy.startswith("default-src 'none';")
    assert re.findall(r"(?:src|href)=(\S+?)[ >]", page.partition('id="data"')[0]) == ['"data:,"']


def test_no_text_of_a_run_is_markup():
    page = html.page([made_up_runs.hostile_run()]).decode()
    assert "<img" not in page
    assert page.count("<script") == page.count("</script") == 2
    assert made_up_runs.HOSTILE in data_of(made_up_runs.hostile_run())["runs"][0]["cases"][0]["id"]


def test_the_script_puts_text_into_the_page_as_text_only():
    script = html._file("page.js")
    for way in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "new Function"):
        assert way not in script


# --- samples --------------------------------------------------------------------------------------


def test_a_histogram_counts_every_sample_that_its_bins_hold():
    draw = random.Random(1)
    samples = [draw.lognormvariate(10, 0.01) for _ in range(500)]
    *ends, counts, _, _ = html.distribution(samples)
    assert (sum(counts), ends) == (500, [min(samples), max(samples)])


def test_a_sample_far_above_the_others_is_told_beside_the_bins():
    _, high, counts, note, humps = html.distribution([100.0 + i % 7 for i in range(60)] + [5_000.0])
    assert (sum(counts), high, note, humps) == (60, 106.0, "1 sample is above 106 ns, up to 5.00 µs", [])


def test_two_humps_are_told_by_their_share_and_their_median():
    times = [100.0 + i % 3 for i in range(30)] + [200.0 + i % 3 for i in range(60)]
    assert html.distribution(times, humps=True)[4] == [("33 %", 101.0), ("67 %", 201.0)]


def test_few_samples_have_no_distribution_and_equal_ones_have_one_bin():
    assert html.distribution([3.0] * 5) is html.distribution([]) is None
    assert html.distribution([7.0] * 30)[2] == (30,)


# --- where a call's time goes ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("whole_ns", "work", "kernel_ns", "told"),
    [
        (2e6, (COPY_IN, EXP_KERNEL), 48_600.0, "copies 50 %, host 48 %, kernel 2.4 %"),
        (5e5, (COPY_IN, EXP_KERNEL), 48_600.0, "copies 95 %, kernel 4.6 %"),  # which overlapped
        (1e5, (EXP_KERNEL,), None, "host 51 %, kernel 49 %"),
        (8e5, (), 2e5, "copies and host 75 %, kernel 25 %"),  # no timer saw the copies
        (8e5, (), None, ""),
        (None, (COPY_IN,), 2e5, ""),
    ],
)
def test_a_whole_call_says_on_what_it_spends_its_time(whole_ns, work, kernel_ns, told):
    whole = measured(8e5, "end_to_end", "host", work=work)
    whole = structs.replace(whole, summary=structs.replace(whole.summary, median_ns=whole_ns))
    kernel = (measured(kernel_ns),) if kernel_ns else ()
    case = result("cupy.exp", *kernel, whole)
    assert spent(case, whole) == told
    assert spent(structs.replace(case, simulated=True), whole) == ""
    assert not any(spent(case, time) for time in kernel)


# --- files ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("ns", [None, 0.0, -1.0, 5e-324, 1e300, 1.7976931348623157e308])
def test_no_number_that_a_plot_cannot_draw_crosses(ns):
    summary = Summary(ns, ns, ns, 10)
    verdict = structs.replace(made_up.verdict("SLOWER", 1.1), pairs=((ns, 5.0),), false_alarm=ns)
    samples = (ns, 5.0, -1.7976931348623157e308, 6.0)
    shown = made_up.measured(samples_ns=samples, summary=summary, traffic_bytes=1e9, flops=1e9)
    case = {"point": {"n": 10**300}, "ceilings": made_up.CEILINGS, "speedup_against": "cupy.base"}
    made = made_up.result("cupy.exp", shown, verdicts=[verdict], **case)
    base = made_up.result("cupy.base", made_up.measured(1e300), **case)
    time = recorded(recorded="0001-01-01T00:00:00+14:00", session="s", device="GPU-1")
    history = {made.nodeid: record_of({shown.key: (structs.replace(time, measurement=shown),)})}
    (run,) = data_of(RunResults([made, base], history=history))["runs"]
    numbers = re.findall(r"(?<=[:,\[])-?[0-9.]+(?:e[+-]?[0-9]+)?(?=[,}\]])", json.dumps(run).replace(" ", ""))
    assert max(abs(float(each)) for each in numbers) < 1e30
