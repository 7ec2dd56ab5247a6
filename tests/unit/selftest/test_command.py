"""Checks `gpukern selftest`, of the timers and of the gate, with child processes that make readings up."""

from __future__ import annotations

import dataclasses
import json
import sys
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import made_up_selftest
import pytest
from made_up_selftest import FINGERPRINT, gate_recording, timer_recording, timer_session

from pytest_gpukern.cli import main as cli
from pytest_gpukern.selftest import command, processes
from pytest_gpukern.selftest.recording import (
    GateRecording,
    GateSession,
    TimerRecording,
    TimerSession,
    read_recording,
    write_recording,
)

PACKAGE = str(Path(cli.__file__).parents[2])
DATA = Path(__file__).parents[2] / "data"
REAL_COMMAND = processes.child_command


class FakeMachine:
    """Plays an environment with one GPU, or none if `missing_gpu` says why; its children are made up.

    `asked` has what each child was asked for.
    """

    def __init__(self):
        self.gpu = self
        self.missing_gpu = None
        self.device = "0: NVIDIA H200"
        self.fingerprint = SimpleNamespace(driver_version="580.159", to_json=lambda: FINGERPRINT)
        self.warnings = ["another process computes on it"]
        self.locked = self.closed = False
        self.asked = []

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

    def child(self, kind, into, number, *, rivals):
        assert self.locked, "the parent holds the device for its children"
        real = REAL_COMMAND(kind, into, number, rivals=rivals)
        assert real[:3] == [sys.executable, "-m", "pytest_gpukern.selftest.processes"]
        self.asked.append([real[3], *real[5:]])
        return [sys.executable, made_up_selftest.__file__, *real[3:]]


@pytest.fixture
def machine(monkeypatch):
    """Sets up a machine, suites that pass at once, few draws and few simulated runs."""
    made = FakeMachine()
    monkeypatch.setenv("PYTHONPATH", PACKAGE)
    monkeypatch.setattr(processes, "session_environment", made)
    monkeypatch.setattr(processes, "child_command", made.child)
    monkeypatch.setattr(processes, "suites_command", lambda: [sys.executable, "-c", "pass"])
    monkeypatch.setattr(command, "SIMULATED_RUNS", 1)
    monkeypatch.setattr(command, "DRAWN_TRIALS", 10)
    return made


def selftest(*options):
    return cli.main(["selftest", *options])


def gate(*options):
    return selftest("--gate", *options)


# the timers


def test_a_whole_test_prints_its_table_and_writes_a_file_that_replays_alike(machine, tmp_path, capsys):
    file = tmp_path / "run.json"
    assert selftest("--sessions", "2", "--output", str(file)) == 0
    measured = capsys.readouterr()
    assert "21 of 21 targets reached" in measured.out
    assert "another process computes on it" in measured.out
    assert "gpukern selftest: session 2 of 2: " in measured.err
    assert machine.closed
    assert machine.asked == [["timers", "0", "rivals", "nvbench"], ["timers", "1", "rivals", "nvbench"]]
    found = read_recording(file, TimerRecording)
    assert found.sessions == (timer_session(), timer_session())
    assert (found.asked_sessions, found.suites.exit_status) == (2, 0)
    assert json.loads(file.read_text())["conclusions"]["reached"] is True
    assert selftest("--replay", str(file)) == 0
    assert capsys.readouterr().out == measured.out


def test_parts_can_be_left_out(machine, capsys, monkeypatch):
    monkeypatch.setattr(processes, "suites_command", lambda: pytest.fail("they were to be left out"))
    assert selftest("--sessions=2", "--without=rivals,suites", "--device", "1") == 0
    gate("--sessions", "2", "--without", "rivals,simulation")
    shown = capsys.readouterr().out
    assert "other tools" not in shown
    assert "too few for a trial" in " ".join(shown.split())
    assert machine.asked == [[kind, number] for kind in ("timers", "gate") for number in "01"]


def test_a_missed_target_is_status_one(machine, monkeypatch, capsys):
    monkeypatch.setattr(processes, "suites_command", lambda: [sys.executable, "-c", "raise SystemExit(1)"])
    assert selftest("--sessions=2") == 1
    assert "failed with status 1" in capsys.readouterr().out


def test_without_a_gpu_it_says_why_and_is_status_two(machine, capsys):
    machine.missing_gpu = "no NVIDIA driver library"
    assert selftest() == 2
    shown = capsys.readouterr()
    assert shown.err == "gpukern selftest: no GPU: no NVIDIA driver library\n"
    assert shown.out == ""
    assert machine.closed


def test_a_recorded_run_is_judged_without_a_gpu(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(processes, "session_environment", lambda device: pytest.fail("no device is needed"))
    file = tmp_path / "run.json"
    write_recording(file, timer_recording())
    assert selftest("--replay", str(file), "--output", str(tmp_path / "again.json")) == 0
    assert read_recording(tmp_path / "again.json", TimerRecording) == timer_recording()
    assert capsys.readouterr().out.endswith("21 of 21 targets reached\n")


def test_a_run_that_was_recorded_on_an_h200_reaches_all_targets(capsys):
    assert selftest("--replay", str(DATA / "selftest-h200.json")) == 0
    text = capsys.readouterr().out
    assert "38 of 38 targets reached" in text
    assert "MISSED" not in text
    for tool in ("cupyx.profiler.benchmark", "triton.testing.do_bench", "cuda-bench (NVBench)"):
        assert tool in text


# children


def run(script, tmp_path, monkeypatch, **options):
    """Returns the session of a child that runs this script with the file's name as its argument."""
    into = tmp_path / "1.json"
    monkeypatch.setattr(
        processes, "child_command", lambda *_, **__: [sys.executable, "-c", script, str(into)]
    )
    return processes.run_child(TimerSession, into, 0, rivals=False, **options)


def test_a_child_that_dies_hangs_or_writes_nonsense_is_a_session_that_failed(tmp_path, monkeypatch):
    died = run("import sys; sys.exit('out of memory')", tmp_path, monkeypatch)
    assert died == TimerSession(problem="it ended with status 1: out of memory")
    hung = run("import time; time.sleep(60)", tmp_path, monkeypatch, timeout_s=0.5)
    assert hung.problem == "it was stopped after 0.5 s"
    wrote = run("import sys; open(sys.argv[1], 'w').write('{')", tmp_path, monkeypatch)
    assert "is not complete JSON" in wrote.problem
    assert "status 0" in wrote.problem


def test_a_child_that_ends_badly_after_it_wrote_counts(machine, tmp_path):
    machine.locked = True
    assert processes.run_child(TimerSession, tmp_path / "1.json", 0, rivals=True) == timer_session()


@pytest.mark.parametrize("options", [[], ["--gate"]], ids=["timers", "gate"])
def test_children_that_find_nothing_are_not_started_for_ever(machine, monkeypatch, capsys, options):
    crash = [sys.executable, "-c", "import sys; sys.exit('out of memory')"]
    monkeypatch.setattr(processes, "child_command", lambda *_, **__: crash)
    without = "simulation" if options else "suites"
    assert selftest(*options, "--sessions", "40", "--without", without) == 1
    shown = capsys.readouterr()
    assert "session 3 of 40: failed: it ended with status 1: out of memory" in shown.err
    assert "session 4" not in shown.err
    assert "MISSED: session 2 failed: it ended with status 1: out of memory" in shown.out
    assert "MISSED: 3 of 40 sessions were run" in shown.out


@pytest.mark.parametrize("kind", [TimerRecording, GateRecording])
def test_every_session_is_on_disk_before_the_next_begins(machine, tmp_path, monkeypatch, kind):
    into, run_child = tmp_path / "run.json", processes.run_child

    def killed_at_the_third(session_kind, file, number, *, rivals):
        if number == 2:
            raise KeyboardInterrupt
        return run_child(session_kind, file, number, rivals=rivals)

    monkeypatch.setattr(processes, "run_child", killed_at_the_third)
    with pytest.raises(KeyboardInterrupt):
        selftest(*(["--gate"] if kind is GateRecording else []), "--output", str(into))
    stored = read_recording(into, kind)
    assert len(stored.sessions) == 2
    assert stored.asked_sessions == (40 if kind is GateRecording else 8)


# the gate


def test_sessions_are_numbered_processes_and_every_fourth_runs_nvbench(machine, tmp_path, capsys):
    into = tmp_path / "new" / "gate.json"
    options = ["--without", "simulation"]
    status = gate("--sessions", "9", "--output", str(into), "--device", "1", *options)
    shown = capsys.readouterr()
    assert status == 0, shown.out + shown.err
    assert [words[:2] for words in machine.asked] == [["gate", str(number)] for number in range(9)]
    assert [words[1] for words in machine.asked if "nvbench" in words] == ["0", "4", "8"]
    assert all("rivals" in words for words in machine.asked)
    assert machine.asked_for == "1"
    assert machine.closed
    stored = read_recording(into, GateRecording)
    assert [session.problem for session in stored.sessions] == [None] * 9
    assert stored.warnings == ("another process computes on it",)
    assert json.loads(into.read_text())["conclusions"]["reached"] is True
    assert gate("--replay", str(into), *options) == 0
    assert capsys.readouterr().out == shown.out


def test_without_a_gpu_the_simulation_is_shown_and_says_so(machine, capsys):
    machine.missing_gpu = "no NVIDIA driver"
    status = gate()
    shown = capsys.readouterr()
    assert "no GPU: no NVIDIA driver; only the simulation is shown" in shown.out
    assert "like NVBench's compare" in shown.out
    assert "of 120 cases with 5 recorded sessions" in shown.out
    assert status == (0 if "1 of 1 targets reached" in shown.out else 1)


@pytest.mark.parametrize("options", [["--without", "simulation"], ["--device", "1"]])
def test_without_a_gpu_there_may_be_nothing_to_show(machine, capsys, options):
    machine.missing_gpu = "no NVIDIA driver"
    assert gate(*options) == 2
    assert "no GPU: no NVIDIA driver" in capsys.readouterr().err


def test_a_false_alarm_is_named_and_the_status_is_one(machine, tmp_path, capsys):
    slow = {number: {"slower": {"copy 16 MiB, cold": 1.05}} for number in (20, 21, 22)}
    into = tmp_path / "gate.json"
    write_recording(into, gate_recording(40, changed=slow))
    assert gate("--replay", str(into), "--without", "simulation") == 1
    shown = capsys.readouterr().out
    assert "SLOWER at 2 %: copy 16 MiB, cold 1×" in shown
    assert "MISSED" in shown


# what is refused


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--sessions=1"], "'1' is not a number of sessions: give at least 2"),
        (["--sessions=many"], "not a number of sessions"),
        (["--without=tables"], "'tables' is none of rivals, suites, simulation"),
        (["--without", "simulation"], "without --gate, it takes rivals and suites"),
        (["--gate", "--without", "suites"], "--without=suites: with --gate, it takes rivals and simulation"),
        (["--replay=x.json", "--sessions=3"], "--sessions: --replay measures nothing"),
        (["--gate", "--replay", "x.json", "--without", "rivals"], "--without: --replay measures nothing"),
        (["-k", "exp"], "unrecognized arguments: -k exp"),
    ],
)
def test_impossible_options_are_refused(options, said, capsys):
    with pytest.raises(SystemExit) as end:
        selftest(*options)
    assert end.value.code == 2
    assert said in capsys.readouterr().err


def test_a_file_that_cannot_be_used_is_status_two_with_file_and_field(tmp_path, capsys):
    assert gate("--replay", str(tmp_path / "none.json")) == 2
    assert "none.json: cannot be read" in capsys.readouterr().err
    file = tmp_path / "run.json"
    write_recording(file, dataclasses.replace(timer_recording(), elapsed_s="long"))
    assert selftest("--replay", str(file)) == 2
    assert f"{file}: elapsed_s: expected a number, found 'long'" in capsys.readouterr().err


def test_the_real_children_run_a_session_of_their_kind(monkeypatch, tmp_path):
    ran = {}
    monkeypatch.setattr(processes, "run_timer_session", lambda **asked: ran.update(timers=asked))
    monkeypatch.setattr(processes, "run_gate_session", lambda number, **asked: ran.update(gate=number))
    for kind in (TimerSession, GateSession):
        processes.main(REAL_COMMAND(kind, tmp_path / "x.json", 7, rivals=True)[3:])
    assert ran["gate"] == 7
    ran["timers"]["save"](timer_session())
    assert (ran["timers"]["rivals"], ran["timers"]["nvbench"]) == (True, True)
    assert processes.read_session(tmp_path / "x.json", TimerSession) == timer_session()
