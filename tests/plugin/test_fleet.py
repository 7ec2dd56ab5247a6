"""Tests `gpukern fleet` on run files that vary the recorded run of an H200."""

import csv
import json
import math
import os
import random
import re
import shlex
import socket
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from fake_nvml import UUIDS, FakeNvml, gpu

from pytest_gpukern.cli import main as cli
from pytest_gpukern.cli import validate
from pytest_gpukern.findings.fleet import judged
from pytest_gpukern.gpu import nvml
from pytest_gpukern.gpu.model import SIMULATED_UUID
from pytest_gpukern.report.fleet import FleetReport, terminal
from pytest_gpukern.report.fleet_files import figures_of, host_and_index, write_run
from pytest_gpukern.report.run_file import read_run, run_text
from pytest_gpukern.values.stored import plain
from pytest_gpukern.values.untrusted_json import FileError

from .test_golden import agrees

_RUN = read_run(Path(__file__).parents[1] / "data" / "run-h200.json.gz")
RUN = {**json.loads(run_text(_RUN)), "results": [plain(result) for result in _RUN.results]}


def _results():
    """Results of the recorded run with times of kernels, as small as they stay whole."""
    right = (each for each in RUN["results"] if each["correctness"] == "PASSED")
    for result in [each for each in right if each["measurements"][0]["scope"] == "kernel"][::4]:
        first = {**result["measurements"][0], "samples_ns": [], "work": []}
        yield {**result, "measurements": [first], "kernels": [], "verdicts": {}}


RESULTS = [*_results()]
CASES = len(RESULTS)


def run_of(card, session=0, *, slow=0.0, change=None, **fields):
    """Returns a run's file of a card: each has its own speed, to 0.3 %, and each session to 0.1 %."""
    own, noise = random.Random(f"{card}"), random.Random(f"{card} {session}")
    shift, results = own.gauss(0, 0.003), []
    for result in RESULTS:
        measurement = result["measurements"][0]
        ns = measurement["summary"]["median_ns"] * math.exp(shift + slow + noise.gauss(0, 0.001))
        measurement = {**measurement, "summary": {**measurement["summary"], "median_ns": ns}}
        fingerprint = {**result["fingerprint"], "device_uuid": f"GPU-{card}", **fields}
        changes = {"measurements": [measurement], "fingerprint": fingerprint, "session": f"{session}"}
        results.append({**result, **changes})
    empty = {"sessions": [], "failures": {}, "history": {}, "skips": []}
    run = {**RUN, **empty, "created": f"2026-11-2{session}T00:00:00Z", "results": results}
    if change is not None:
        change(run := json.loads(json.dumps(run)))
    return json.dumps(run).encode()


@pytest.fixture
def fleet(tmp_path, capsys, monkeypatch):
    """Writes the files of a fleet, and judges them; returns status and output.

    Args:
        of_card: (host, index) → keyword arguments of `run_of`, for cards that are not as the others.
    """
    monkeypatch.chdir(tmp_path)

    def run(*options, hosts=12, cards=2, sessions=3, of_card=None, folder="runs", judge=True, first=0):
        for host in range(first, first + hosts):
            for index in range(cards):
                given = (of_card or {}).get((host, index), {})
                for session in range(sessions) if given is not None else ():
                    fields = given(session) if callable(given) else given
                    write_run(
                        Path(folder), f"node{host}", f"{index}", run_of(f"{host}-{index}", session, **fields)
                    )
        if judge:
            status = cli.main(["fleet", folder, *options])
            return status, capsys.readouterr().out
        return None

    return run


def first_lines(out, kind):
    return [line.removeprefix(f"{kind} ") for line in out.splitlines() if line.startswith(f"{kind} ")]


def other_bits(run, number=7):
    for error in run["results"][number]["errors"].values():
        error["bits"] = f"{error['bits'].partition(':')[0]}:0123456789abcdef"


def wrong(run):
    run["results"][3] |= {"correctness": "INCORRECT", "measurements": []}


def lacking(run):
    del run["results"][5]
    run["skips"] = [[RESULTS[5]["case"]["id"], "cupy is not installed", ""]]


def empty(run):
    run["results"] = []


def silent(run):
    empty(run)
    run["problems"] = ["nothing was measured on a GPU"]


def of_two(run):
    run["results"] = run["results"][:2]


def seen(limited_s, rows):
    def change(run):
        for result in run["results"]:
            values = {"limited_s.hw_thermal_slowdown": limited_s / CASES, "remapped_rows": rows}
            result["observations"]["card"] = values

    return {"change": change}


def in_sessions(change, *sessions):
    return lambda session: {"change": change if session in sessions else None}


CARDS = [(host, index) for host in range(12) for index in range(2)]
USUAL = dict.fromkeys(CARDS, seen(0.0, 0))
NEW_DRIVER = {(host, 0): {"slow": 0.04, "driver_version": "590.1"} for host in range(12)}
UPGRADED = {card: {"slow": 0.08 if card == (8, 1) else 0.02, "driver_version": "590.1"} for card in CARDS}
SIMULATED = {card: {"device_uuid": SIMULATED_UUID, "is_simulated": True} for card in CARDS}
OF_TWO_MODELS = {(host, index): None if index else {"device_name": "A100"} for host, index in CARDS[:8]}
SLOW_HOST = {(7, index): {"slow": 0.05} for index in range(2)}
SILENT = {(4, 1): None, (5, 0): {"change": lacking}, (6, 1): {"change": silent}}
HOSTS = "node0\nnode1\n# spares\nnode77  # new\n"
FEW = {"hosts": 3, "sessions": 1}
FLEETS = {
    "": (1, "node3 node7", {(3, 1): {"slow": 0.06}, (7, 0): {"change": lambda run: other_bits(run, 0)}}, {}),
    "healthy": (0, "", {}, {}),
    "suspicion": (0, "", {(3, 1): {"slow": 0.06}}, {"sessions": 2}),
    "cause": (1, "node3", {**USUAL, (3, 1): {"slow": 0.06, **seen(23.0, 3)}}, {}),
    "failing_memory": (0, "", {**USUAL, (3, 1): seen(0.0, 3)}, {}),
    "driver": (1, "", NEW_DRIVER, {"hosts": 24}),
    "slow_host": (1, "node7", SLOW_HOST, {"hosts": 22}),
    "other_bits_once": (0, "", {(2, 0): in_sessions(other_bits, 0)}, {"hosts": 3}),
    "other_bits": (1, "node2", {(2, 0): in_sessions(other_bits, 0, 2)}, {"hosts": 3}),
    "wrong": (1, "node1", {(1, 1): {"change": wrong}}, FEW),
    "wrong_everywhere": (1, "", {card: {"change": wrong} for card in CARDS}, FEW),
    "silent": (1, "", SILENT, {"sessions": 1, "expect": HOSTS}),
    "without_gpus": (0, "", SIMULATED, {"hosts": 3, "cards": 1}),
    "two_models": (0, "", OF_TWO_MODELS, {}),
    "few_times": (1, "", {(1, 0): {"change": of_two}}, FEW),
    "empty_run": (0, "", {(1, 0): in_sessions(empty, 0)}, {"hosts": 3}),
    "upgraded": (1, "node8", UPGRADED, {"before": True}),
}
"""Name of a golden text → exit status, hosts to drain, cards that are not as the others, and the fleet."""


@pytest.mark.parametrize("name", FLEETS)
def test_a_fleet_is_told_as_it_was(fleet, name):
    status, drained, of_card, given = FLEETS[name]
    given, options = {**given}, []
    if given.pop("before", False):
        fleet(folder="before", judge=False, sessions=1)
        options = ["--before=before"]
    if hosts := given.pop("expect", ""):
        Path("hosts.txt").write_text(hosts)
        options = ["--expect=hosts.txt"]
    found, out = fleet(*options, "-o", "fleet.csv", of_card=of_card, **given)
    assert found == status
    agrees(out + Path("fleet.csv").read_text(), f"fleet_{name}".rstrip("_"))
    if status:
        assert fleet(*options, "--drain", hosts=0)[1].split() == drained.split()


def test_the_order_of_files_changes_no_word_and_a_file_counts_once(fleet, capsys):
    _, out = fleet(hosts=3)
    cli.main(["fleet", *map(str, sorted(Path("runs").iterdir(), reverse=True)), "runs"])
    assert capsys.readouterr().out == out


def test_files_that_cannot_be_read_are_named_and_the_others_judged(fleet, monkeypatch):
    fleet(judge=False)
    scandir = os.scandir

    def listed(folder):
        if str(folder) == "runs/no":
            raise PermissionError(13, "Permission denied", folder)
        return scandir(folder)

    monkeypatch.setattr(os, "scandir", listed)
    Path("runs", "no").mkdir()
    for name, content in (("node3-1.json", b'{"schema": 6'), ("node4-0.json", b"")):
        Path("runs", name).write_bytes(content)
    status, out = fleet(hosts=0)
    assert status == 3
    names = [line.partition(":")[0] for line in first_lines(out, "UNREADABLE")]
    assert names == ["runs/node3-1.json", "runs/node4-0.json", "runs/no"]
    assert cli.main(["fleet", "nowhere"]) == 3
    assert [cli.main(["fleet", "runs", "-o", f"fleet.{form}"]) for form in ("xml", "json")] == [2, 2]


def test_no_text_of_a_file_is_markup_or_a_formula(fleet):
    Path("runs").mkdir()
    hostile = run_of("x", device_name="=cmd|<b>", driver_version="<script>")
    write_run(Path("runs"), "=<script>", "0", hostile)
    fleet("-o", "fleet.html", hosts=0)
    assert "=<script>" not in Path("fleet.html").read_text()
    fleet("-o", "fleet.csv", hosts=0)
    (row,) = csv.DictReader(Path("fleet.csv").read_text().splitlines())
    assert (row["host"], row["model"]) == ("'=<script>", "'=cmd|<b>")


def figures_in(folder, content, host=""):
    file = folder / "a-run.json"
    file.write_bytes(content)
    return figures_of(read_run(file), host)


def test_a_screen_is_enough_for_a_thousand_cards(tmp_path):
    (of,) = figures_in(tmp_path, run_of("x", change=of_two))
    cards = (replace(of.card, uuid=f"GPU-{card}", host=f"node{card}") for card in range(1000))
    figures = [replace(of, card=card) for card in cards]
    found = judged(figures, expected=[f"other{number}" for number in range(500)])
    lines = terminal(FleetReport(found), 100)
    assert len(lines) <= 30
    assert any("more SILENT: -o fleet.html" in line for line in lines)


def test_whose_file_it_is():
    assert host_and_index(Path("runs/gpu-host.example.org-3.2.json")) == ("gpu-host.example.org", "3")
    assert host_and_index(Path("host0017/run.json.gz")) == ("host0017", "")
    assert host_and_index(Path("host0017/run-last.json")) == ("host0017", "")


def test_files_are_never_replaced(tmp_path):
    names = [write_run(tmp_path / "new", "node1", "", b"").name for _ in range(2)]
    assert names == ["node1-0.json", "node1-0.2.json"]
    with pytest.raises(FileError, match="cannot be written into"):
        write_run(tmp_path / "new" / names[0], "node1", "0", b"")


def test_a_file_holds_several_sessions_and_confirming_ones_have_no_times(tmp_path):
    def further(run):
        again = {**run["results"][0], "session": "later", "role": "further"}
        chosen = {**again, "session": "chosen", "role": "confirming"}
        run["sessions"] = [again, {**again, "session": "third"}, chosen]

    found = [(of.id, len(of.times_ns)) for of in figures_in(tmp_path, run_of("a", change=further))]
    assert found == [("0", CASES), ("later", 1), ("third", 1)]


@pytest.mark.parametrize(
    ("test", "case"), [("test_it[x[1]-y]", "x[1]-y"), ("test_alone", "test_alone"), ("test_it[", "test_it[")]
)
def test_a_failed_test_says_why_its_case_did_not_run(tmp_path, test, case):
    failing = run_of("a", change=lambda run: run.update(failures={test: {"text": "it hung"}}))
    (figures,) = figures_in(tmp_path, failing)
    assert (figures.failed, figures.not_run) == (1, {case: "it hung"})


def test_texts_for_numbers_and_times_that_are_none_are_unknown(tmp_path):
    def odd(run):
        for result in run["results"]:
            result["observations"]["card"] = {"remapped_rows": "many", "power_limit_w": "high"}
        run["results"][0]["measurements"][0]["summary"]["median_ns"] = None
        run["results"][1]["measurements"][0]["invalid"] = "too hot"
        run["results"][2]["simulated"] = True

    (figures,) = figures_in(tmp_path, run_of("a", change=odd))
    assert len(figures.times_ns) == CASES - 3
    assert "remapped_rows" not in figures.facts
    assert figures.facts["power_limit_w"] == 700.0, "of the fingerprint"


# --- validate names the files ---------------------------------------------------------------------

COPIES_A_RUN = """
import shutil, sys
given = [each.partition("=")[2] for each in sys.argv if each.startswith("--gpukern-report=")]
shutil.copy("run.json", given[0])
sys.exit(1)
"""


@pytest.mark.parametrize("option", [["--gpukern-report=runs/"], ["--gpukern-report", "there"]])
def test_validate_names_a_run_by_its_host_and_card_and_ends_as_pytest_does(monkeypatch, tmp_path, option):
    monkeypatch.chdir(tmp_path)
    Path("there").mkdir()
    Path("run.json").write_bytes(run_of("x").replace(b"GPU-x", UUIDS[1].encode()))
    monkeypatch.setattr(validate, "command", lambda given: [sys.executable, "-c", COPIES_A_RUN, *given])
    monkeypatch.setattr(nvml, "open_nvml", lambda: FakeNvml(records=(gpu(0), gpu(1))))
    for name in ("{}-1.json", "{}-1.2.json"):
        assert cli.main(["validate", *option]) == 1
        written = Path(option[-1].partition("=")[2] or option[-1], name.format(socket.gethostname()))
        assert {result.fingerprint.device_uuid for result in read_run(written).results} == {UUIDS[1]}


def test_hosts_are_listed_as_people_write_them(fleet):
    fleet(hosts=3, judge=False)
    listed = "\ufeffNODE0.example.org  # long\r\nnode1\nnode7\n"
    Path("hosts.txt").write_text(listed, encoding="utf-8")
    status, out = fleet("--expect=hosts.txt", hosts=0)
    assert (status, first_lines(out, "SILENT")) == (1, ["node7: reported nothing"])
    assert "not in hosts.txt: node2" in out
    Path("runs", "node0-0.json").write_bytes(run_of("0-0", change=wrong))
    assert fleet("--expect=hosts.txt", "--drain", hosts=0)[1] == "NODE0.example.org\n"


@pytest.mark.parametrize(
    ("text", "problem"), [("\n# none\n", "names no host"), ("n7 slots=8\n", "is no name of a")]
)
def test_a_list_of_no_hosts_is_refused(fleet, capsys, text, problem):
    fleet(hosts=1, judge=False)
    Path("hosts.txt").write_text(text)
    assert cli.main(["fleet", "runs", "--expect=hosts.txt"]) == 3
    assert problem in capsys.readouterr().err


def test_a_command_that_is_shown_runs_nothing_that_a_file_says(fleet):
    def hostile(run):
        wrong(run)
        run["results"][3]["case"]["id"] = "a'$(touch X)"

    _, out = fleet(of_card={(1, 1): {"change": hostile}}, hosts=3, sessions=1)
    assert shlex.quote("a'$(touch X)") in "".join(out.split("\n"))


@pytest.mark.parametrize(
    ("slow", "why"),
    [(0.0, "nothing stands out"), (-0.06, "no card is confirmed to be slow or wrong by itself")],
)
def test_a_drain_of_no_host_says_why(fleet, capsys, slow, why):
    fleet(of_card={(3, 1): {"slow": slow}}, judge=False)
    assert cli.main(["fleet", "runs", "--drain"]) == 0
    out, err = capsys.readouterr()
    counts = "1 noted" if slow else why
    assert (out, err) == ("", f"gpukern fleet: Drain no host: {why}; 24 cards of 12 hosts: {counts}\n")


def test_a_card_that_is_too_fast_and_two_cards_at_one_index_are_noted(fleet):
    Path("runs").mkdir()
    Path("runs", "node4-0.9.json").write_bytes(run_of("new", 3))
    status, out = fleet(of_card={(3, 1): {"slow": -0.06}})
    both, fast = first_lines(out, "noted")
    assert (status, both) == (0, "node4 GPU 0: GPU-4-0, GPU-new were both there")
    assert re.fullmatch("node3 GPU 1: all kernels 5.. % faster than its peers", fast)


def test_a_card_that_became_slower_than_the_others_is_drained(fleet, capsys):
    fleet(of_card={(4, 0): {"slow": -0.06}}, judge=False, folder="before")
    assert fleet("--before=before", "--drain") == (1, "node4\n")
    (line,) = first_lines(fleet("--before=before", hosts=0)[1], "SLOW")
    assert line == "node4 GPU 0: all kernels 6.2 % slower than before, beside its peers"
    fleet(folder="others", judge=False, hosts=1, first=40)
    status, out = fleet("--before=others", hosts=0)
    assert status == 3
    assert first_lines(out, "UNREADABLE")[0].startswith("others: holds none of the cards measured later")
    Path("none").mkdir()
    assert cli.main(["fleet", "runs", "--before=none"]) == 3
    assert "none" in capsys.readouterr().err
