"""A self-test's processes and its command, with a child that makes its readings up."""

from __future__ import annotations

import json
import sys
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest
from made_up_selftest import recording, session

from pytest_gpukern.cli import main as cli
from pytest_gpukern.selftest import processes
from pytest_gpukern.selftest.recording import read_recording, write_recording

CHILD = Path(__file__).parents[1].joinpath("made_up_selftest.py")
PACKAGE = str(Path(cli.__file__).parents[2])


class FakeMachine:
    """An environment with one GPU, and without one where `missing_gpu` says why."""

    def __init__(self):
        self.missing_gpu = None
        self.device = "0: NVIDIA H200"
        self.fingerprint = SimpleNamespace(driver_version="580.159", to_json=lambda: recording().fingerprint)
        self.warnings = ["another process computes on it"]
        self.locked = self.closed = False
        self.asked_for = []

    def __call__(self, device):
        self.asked_for.append(device)
        return self

    @contextmanager
    def exclusive(self):
        self.locked = True
        yield
        self.locked = False

    def close(self):
        assert not self.locked
        self.closed = True


@pytest.fixture
def machine(monkeypatch):
    """A GPU whose children are played by `made_up_selftest`, and suites that pass at once."""
    fake = FakeMachine()
    monkeypatch.setattr(processes, "session_environment", fake)
    monkeypatch.setenv("PYTHONPATH", PACKAGE)

    def child(into, *, rivals):
        assert fake.locked, "the parent holds the device for its children"
        return [sys.executable, str(CHILD), str(into), *(["rivals"] if rivals else [])]

    monkeypatch.setattr(processes, "child_command", child)
    monkeypatch.setattr(processes, "suites_command", lambda: [sys.executable, "-c", "pass"])
    return fake


def test_a_whole_test_prints_its_table_and_writes_a_file_that_replays_alike(machine, tmp_path, capsys):
    file = tmp_path / "run.json"
    assert cli.main(["selftest", "--sessions", "2", "--output", str(file)]) == 0
    measured = capsys.readouterr()
    assert "NVIDIA H200 · driver 580.159" in measured.out
    assert "20 of 20 targets reached" in measured.out
    assert "another process computes on it" in measured.out
    assert "gpukern selftest: session 2 of 2: " in measured.err
    assert machine.closed
    assert cli.main(["selftest", "--replay", str(file)]) == 0
    assert capsys.readouterr().out == measured.out


def test_the_raw_readings_are_the_childrens(machine, tmp_path):
    file = tmp_path / "run.json"
    cli.main(["selftest", "--sessions", "2", "--output", str(file)])
    found = read_recording(file)
    assert found.sessions == (session(), session())
    assert found.asked_sessions == 2
    assert found.suites.exit_status == 0
    assert json.loads(file.read_text())["conclusions"]["reached"] is True


def test_parts_can_be_left_out(machine, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(processes, "suites_command", lambda: pytest.fail("they were to be left out"))
    assert cli.main(["selftest", "--sessions=2", "--without=rivals,suites", "--device", "1"]) == 0
    assert "other tools" not in capsys.readouterr().out
    assert machine.asked_for == ["1"]


def test_a_missed_target_is_status_one(machine, monkeypatch, capsys):
    monkeypatch.setattr(processes, "suites_command", lambda: [sys.executable, "-c", "raise SystemExit(1)"])
    assert cli.main(["selftest", "--sessions=2"]) == 1
    assert "failed with status 1" in capsys.readouterr().out


def test_without_a_gpu_it_says_why_and_is_status_two(machine, capsys):
    machine.missing_gpu = "no NVIDIA driver library"
    assert cli.main(["selftest"]) == 2
    shown = capsys.readouterr()
    assert shown.err == "gpukern selftest: no GPU: no NVIDIA driver library\n"
    assert shown.out == ""
    assert machine.closed


def test_a_child_that_dies_is_a_session_that_found_nothing_and_the_test_goes_on(machine, monkeypatch, capsys):
    crash = "import sys; sys.exit('CUDA_ERROR_LAUNCH_FAILED')"
    monkeypatch.setattr(processes, "child_command", lambda into, *, rivals: [sys.executable, "-c", crash])
    assert cli.main(["selftest", "--sessions=2", "--without=suites"]) == 1
    out = " ".join(capsys.readouterr().out.split())
    assert "MISSED: session 2 found nothing: it ended with status 1: CUDA_ERROR_LAUNCH_FAILED" in out


def test_a_child_that_writes_nonsense_is_told_from_one_that_dies(machine, monkeypatch, tmp_path):
    command = [sys.executable, "-c", "import sys; open(sys.argv[1], 'w').write('{')"]
    monkeypatch.setattr(processes, "child_command", lambda into, *, rivals: [*command, str(into)])
    machine.locked = True
    found = processes.run_child(tmp_path / "1.json", rivals=False)
    assert "is no complete JSON" in found.problem
    assert "status 0" in found.problem


def test_a_child_that_hangs_is_ended(machine, monkeypatch, tmp_path):
    command = [sys.executable, "-c", "import time; time.sleep(60)"]
    monkeypatch.setattr(processes, "child_command", lambda into, *, rivals: command)
    found = processes.run_child(tmp_path / "1.json", rivals=False, timeout_s=0.5)
    assert found.problem == "it was ended after 0.5 s"


def test_a_child_that_ends_badly_after_it_wrote_counts(machine, tmp_path):
    machine.locked = True
    assert processes.run_child(tmp_path / "1.json", rivals=True) == session()


def test_the_real_child_is_a_module_of_this_python():
    command = processes.__dict__["child_command"](Path("x.json"), rivals=True)
    assert command == [sys.executable, "-m", "pytest_gpukern.selftest.child", "x.json", "rivals"]


def test_a_recorded_run_is_judged_without_a_gpu(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(processes, "session_environment", lambda device: pytest.fail("no device is needed"))
    file = tmp_path / "run.json"
    write_recording(file, recording(), {})
    assert cli.main(["selftest", "--replay", str(file), "--output", str(tmp_path / "again.json")]) == 0
    assert read_recording(tmp_path / "again.json") == recording()
    assert capsys.readouterr().out.endswith("20 of 20 targets reached\n")


def test_a_damaged_recording_is_status_two_with_file_and_field(tmp_path, capsys):
    file = tmp_path / "run.json"
    write_recording(file, recording(), {})
    file.write_text(file.read_text().replace('"elapsed_s": 70.0', '"elapsed_s": "long"'))
    assert cli.main(["selftest", "--replay", str(file)]) == 2
    assert f"{file}: elapsed_s: is 'long' instead of a number" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--sessions=1"], "2 at least"),
        (["--sessions=many"], "no number of sessions"),
        (["--without=tables"], "'tables' is none of rivals, suites"),
        (["--replay=x.json", "--sessions=3"], "--replay measures nothing"),
        (["--replay=x.json", "--without=suites"], "--replay measures nothing"),
        (["-k", "exp"], "unrecognized arguments: -k exp"),
    ],
)
def test_impossible_options_are_refused(arguments, words, capsys):
    with pytest.raises(SystemExit) as end:
        cli.main(["selftest", *arguments])
    assert end.value.code == 2
    assert words in capsys.readouterr().err
