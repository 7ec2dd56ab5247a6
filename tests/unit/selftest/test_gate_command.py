"""`gpukern selftest --gate`: its processes, with a child that makes readings up, its table, its status."""

from __future__ import annotations

import json
import sys
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest
from made_up_gate import recording

from pytest_gpukern.cli import main as cli
from pytest_gpukern.selftest import command as gate_command
from pytest_gpukern.selftest import gate_processes, gate_targets
from pytest_gpukern.selftest.gate_recording import read_gate_recording, write_gate_recording

CHILD = Path(__file__).parents[1].joinpath("made_up_gate.py")
PACKAGE = str(Path(cli.__file__).parents[2])


class FakeMachine:
    """An environment with one GPU, and without one where `missing_gpu` says why."""

    def __init__(self):
        self.missing_gpu = None
        self.device = "0: NVIDIA H200"
        self.fingerprint = SimpleNamespace(driver_version="580.159", to_json=lambda: recording(0).fingerprint)
        self.warnings = ["another process computes on it"]
        self.locked = self.closed = False

    def __call__(self, device):
        self.asked_for = device
        return self

    @contextmanager
    def exclusive(self):
        self.locked = True
        try:
            yield
        finally:
            self.locked = False

    def close(self):
        assert not self.locked
        self.closed = True


@pytest.fixture
def machine(monkeypatch):
    """A machine, few draws and few simulated runs."""
    made = FakeMachine()
    monkeypatch.setattr(gate_processes, "session_environment", made)
    monkeypatch.setattr(gate_command, "SIMULATED_RUNS", 1)
    monkeypatch.setattr(gate_command, "DRAWN_TRIALS", 10)
    return made


@pytest.fixture
def child(machine, monkeypatch):
    """Children that make their readings up; the numbers that they were given, with what else was asked."""
    monkeypatch.setenv("PYTHONPATH", f"{PACKAGE}:{CHILD.parent}")
    asked = []
    command = gate_processes.gate_child_command

    def made_up(into, number, *, rivals):
        assert machine.locked, "nobody else measures meanwhile"
        real = command(into, number, rivals=rivals)
        assert real[:3] == [sys.executable, "-m", "pytest_gpukern.selftest.gate_child"]
        asked.append(real[4:])
        return [sys.executable, str(CHILD), *real[3:]]

    monkeypatch.setattr(gate_processes, "gate_child_command", made_up)
    return asked


def gate(*options):
    return cli.main(["selftest", "--gate", *options])


def test_sessions_are_numbered_processes_and_every_fourth_runs_nvbench(child, machine, tmp_path, capsys):
    into = tmp_path / "new" / "gate.json"
    status = gate("--sessions", "9", "--without", "simulation", "--output", str(into), "--device", "1")
    shown = capsys.readouterr()
    assert status == 0, shown.out + shown.err
    assert [words[0] for words in child] == [str(number) for number in range(9)]
    assert [words[0] for words in child if "nvbench" in words] == ["0", "4", "8"]
    assert all("walls" in words for words in child)
    assert machine.asked_for == "1"
    assert machine.closed
    stored = read_gate_recording(into)
    assert [session.problem for session in stored.sessions] == [None] * 9
    assert stored.warnings == ("another process computes on it",)
    assert json.loads(into.read_text())["conclusions"]["reached"] is True
    assert "session 9 of 9: " in shown.err


def test_a_recording_replays_to_the_same_table(child, tmp_path, capsys):
    into = tmp_path / "gate.json"
    options = ["--without", "simulation"]
    gate("--sessions", "8", "--output", str(into), *options)
    first = capsys.readouterr().out
    assert gate("--replay", str(into), *options) == 0
    assert capsys.readouterr().out == first


def test_without_other_tools_children_are_asked_for_none(child, capsys):
    gate("--sessions", "2", "--without", "rivals,simulation")
    assert [words[1:] for words in child] == [[], []]
    assert "too few for a trial" in " ".join(capsys.readouterr().out.split())


def test_children_that_find_nothing_are_not_started_for_ever(machine, monkeypatch, capsys):
    monkeypatch.setattr(
        gate_processes,
        "gate_child_command",
        lambda *_, **__: [sys.executable, "-c", "import sys; sys.exit('out of memory')"],
    )
    assert gate("--sessions", "40", "--without", "simulation") == 1
    shown = capsys.readouterr()
    assert "session 3 of 40: it ended with status 1: out of memory" in shown.err
    assert "session 4" not in shown.err
    assert "MISSED: 3 of 40 sessions are there" in shown.out


def test_every_session_is_on_disk_before_the_next_begins(child, machine, tmp_path, monkeypatch):
    into = tmp_path / "gate.json"
    run = gate_processes.run_gate_child

    def killed_at_the_third(file, number, *, rivals):
        if number == 2:
            raise KeyboardInterrupt
        return run(file, number, rivals=rivals)

    monkeypatch.setattr(gate_processes, "run_gate_child", killed_at_the_third)
    with pytest.raises(KeyboardInterrupt):
        gate("--sessions", "40", "--without", "simulation", "--output", str(into))
    stored = read_gate_recording(into)
    assert (len(stored.sessions), stored.asked_sessions) == (2, 40)


def test_the_recording_is_on_disk_before_anything_is_concluded(child, tmp_path, monkeypatch):
    into = tmp_path / "gate.json"

    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(gate_targets, "conclude", interrupted)
    with pytest.raises(KeyboardInterrupt):
        gate("--sessions", "2", "--without", "simulation", "--output", str(into))
    assert len(read_gate_recording(into).sessions) == 2


def test_without_a_gpu_the_simulation_is_shown_and_says_so(machine, capsys):
    machine.missing_gpu = "no NVIDIA driver"
    status = gate()
    shown = capsys.readouterr()
    assert "no GPU: no NVIDIA driver; only the simulation is shown" in shown.out
    assert "like NVBench's compare" in shown.out
    assert "of 120 cases with 5 recorded sessions" in shown.out
    assert status == (0 if "1 of 1 targets reached" in shown.out else 1)


def test_without_a_gpu_and_the_simulation_there_is_nothing_to_show(machine, capsys):
    machine.missing_gpu = "no NVIDIA driver"
    assert gate("--without", "simulation") == 2
    assert "no GPU: no NVIDIA driver; without the simulation nothing is left" in capsys.readouterr().err


@pytest.fixture
def stored(tmp_path):
    into = tmp_path / "gate.json"
    write_gate_recording(into, recording(40), {})
    return into


def test_the_table_shows_verdicts_shares_intervals_and_other_tools(machine, stored, capsys):
    gate("--replay", str(stored), "--without", "simulation")
    lines = capsys.readouterr().out.splitlines()
    text = "\n".join(lines)
    assert lines[0].startswith(
        "gpukern selftest --gate: NVIDIA H200 · driver 580.159, CUDA 13.0 · 2026-11-20"
    )
    same = next(line for line in lines if line.startswith("  in order        2 %"))
    assert same.split()[4:] == [
        "210",
        "0",
        "0",
        "1.74",
        "%",
        "0",
        "210",
        "0",
        "0",
        "too",
        "few",
        "to",
        "tell",
    ]
    planted = next(line for line in lines if line.startswith("  fma 9600 trips  +0.5 %"))
    assert "35/35  11/11: 72 … 100 %  10/10" in planted
    assert planted.endswith("≥ 95 %  reached")
    clock = next(line for line in lines if line.startswith("  fma 9600 trips   −1 %"))
    assert clock.split()[-3:] == ["10/10", "0/10", "reached"]
    for tool in ("gpukern", "pytest-benchmark", "NVBench"):
        assert any(line.split()[:1] == [tool] and " of " in line for line in lines), tool
    assert "4 of 4 targets reached" in text


def test_a_false_alarm_is_named_and_the_status_is_one(machine, tmp_path, capsys):
    slow = {number: {"slower": {"copy 16 MiB, cold": 1.05}} for number in (20, 21, 22)}
    into = tmp_path / "gate.json"
    write_gate_recording(into, recording(40, changed=slow), {})
    assert gate("--replay", str(into), "--without", "simulation") == 1
    shown = capsys.readouterr().out
    assert "in order, 2 %, SLOWER: copy 16 MiB, cold 1×" in shown
    assert "MISSED" in shown


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--replay", "x.json", "--sessions", "9"], "--sessions: --replay measures nothing"),
        (["--replay", "x.json", "--without", "rivals"], "--without: --replay measures nothing"),
        (["--without", "suites"], "--without=suites: with --gate there are rivals and simulation"),
        (["--without", "speed"], "'speed' is none of rivals, suites, simulation"),
        (["--sessions", "1"], "'1' is no number of sessions"),
    ],
)
def test_options_that_cannot_be_are_refused(options, said, capsys):
    with pytest.raises(SystemExit) as end:
        gate(*options)
    assert end.value.code == 2
    assert said in capsys.readouterr().err


def test_the_simulation_is_no_part_of_the_timers_self_test(capsys):
    with pytest.raises(SystemExit):
        cli.main(["selftest", "--without", "simulation"])
    assert "without --gate there are rivals and suites" in capsys.readouterr().err


def test_a_file_that_cannot_be_used_is_status_two_with_its_name(tmp_path, capsys):
    assert gate("--replay", str(tmp_path / "none.json")) == 2
    assert "none.json: cannot be read" in capsys.readouterr().err
