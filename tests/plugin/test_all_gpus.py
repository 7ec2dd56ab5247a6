"""Tests `gpukern validate --all-gpus` with fake GPUs: by real rounds once, and by made-up ones."""

import json
import signal
import socket
import sys
from pathlib import Path
from types import SimpleNamespace

import made_up_results as made_up
import pytest
from fake_nvml import UUIDS, FakeNvml, gpu, split_gpu
from made_up_runs import write_run_file

from pytest_gpukern.cli import all_gpus, suites
from pytest_gpukern.cli import main as cli
from pytest_gpukern.gpu.errors import NvmlUnavailable
from pytest_gpukern.report.fleet_files import read_figures
from pytest_gpukern.report.run import Failure, RunResults
from pytest_gpukern.values.fingerprint import Fingerprint
from pytest_gpukern.values.result import Correctness

SUITE = """
import json, os
import pytest

SLOWER = json.loads(os.environ["SLOWER"])

@pytest.mark.parametrize("number", range(5))
def test_work(gpu_benchmark, number):
    def launch():
        pass
    launch.takes_ns = 2_000 * SLOWER.get(os.environ["CUDA_VISIBLE_DEVICES"], 1.0)
    gpu_benchmark(launch)
"""

THREE, TWO = (gpu(0), gpu(1), gpu(2)), (gpu(0), gpu(1))
SHORT = {card: uuid[:12] for card, uuid in enumerate(UUIDS)}


@pytest.fixture
def host(monkeypatch, tmp_path, capfd):
    """Validates a host of three GPUs of one model, or of `records`; returns status, output and complaints."""
    folder = tmp_path / "suites"
    folder.mkdir()
    folder.joinpath("test_it.py").write_text(SUITE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(suites, "suites_folder", lambda: folder)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    monkeypatch.setenv("PYTEST_ADDOPTS", "-p no:hypothesispytest -p fake_gpu")

    def run(*options, slower=None, records=THREE, **nvml):
        fake = FakeNvml(records=records, **nvml)
        monkeypatch.setattr(all_gpus, "open_nvml", lambda: fake)
        monkeypatch.setenv("FAKE_GPUS", ",".join(record.uuid for record in records))
        monkeypatch.setenv("SLOWER", json.dumps(slower or {}))
        status = cli.main(["validate", "--all-gpus", *options])
        return status, *capfd.readouterr()

    before = signal.getsignal(signal.SIGTERM)
    yield run
    signal.signal(signal.SIGTERM, before)


def test_each_gpu_is_recorded_and_then_compared_with_its_record_and_the_others(host, monkeypatch):
    monkeypatch.setattr(all_gpus.cards, "ROUNDS", 1)
    monkeypatch.setattr(all_gpus.cards, "FRESH_ROUNDS", 1)
    folder = "--gpukern-baseline-dir=before"
    recording = ("--gpukern-baseline=append", "--gpukern-sessions=1", "--gpukern-report=run.json")
    status, out, _ = host(folder, *recording, records=TWO)
    assert status == 0, out
    (baseline,) = Path("before").iterdir()
    content = json.loads(baseline.read_text())
    assert {each["fingerprint"]["device_uuid"] for each in content["processes"].values()} == set(UUIDS[:2])
    assert Path(f"run-{SHORT[0]}.json").exists()
    assert f"GPU 1 {SHORT[1]}: pytest ended with status 0" in out

    status, out, _ = host(folder, "--gpukern-report=after.json", records=TWO, slower={UUIDS[1]: 1.05})
    assert status == 0, out
    assert f"GPU 1 {SHORT[1]}: short kernels 5.0 % slower than its peers, but in one class" in out
    assert f"\n  GPU 1 {SHORT[1]}  noted, slower in one class  +5.0 %             0\n" in out
    for card in (0, 1):
        assert len(json.loads(Path(f"after-{SHORT[card]}.json").read_text())["results"]) == 5
    assert out.count("test session starts") == 2, "only the first round is shown"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_what_was_started(host, monkeypatch, number):
    waited, ended = suites.subprocess.Popen.wait, []

    def killed(process, timeout=None):
        if SLEEP in process.args and not ended:
            ended.append(process)
            signal.raise_signal(number)
        return waited(process, timeout)

    monkeypatch.setattr(suites.subprocess.Popen, "wait", killed)
    monkeypatch.setattr(suites, "command", lambda *_: [sys.executable, "-c", SLEEP])
    if number == signal.SIGINT:
        assert host()[0] == 128 + number
    else:
        with pytest.raises(SystemExit, match=f"{128 + number}"):
            host()
    assert ended[0].returncode in (-number, 1), "1 of a Python that was still starting"


SLEEP = "import time; time.sleep(60)"


USUAL = {"ecc": True, "corrected_errors": 0, "uncorrected_errors": 0, "remapped_rows": 0}
USUAL |= {"pcie.generation": 5, "pcie.width": 16, "pcie.max_generation": 5, "pcie.max_width": 16}


class Rounds:
    """Stands for the processes of all rounds, one a GPU: writes what they would have measured.

    Args:
        slower: (round, card, kernel) → by what its time is multiplied.
        status: (round, card) → that of pytest.
        failed: card → names of tests that fail in the first round.
        wrong: (card, kernel) whose outputs are wrong.
        kernels: how many there are, of each kind in turn.
        writes: whether they write the file of their run.
        seen_of: card → what the observer of cards saw of it, where that is not what is usual.

    Attributes:
        commands: card → those of its rounds.
        turns: card → the folder of each round, by which processes take turns on the host.
    """

    def __init__(
        self,
        slower=lambda number, card, kernel: 1.0,
        status=lambda number, card: 0,
        failed=None,
        wrong=(),
        kernels=30,
        writes=True,
        seen_of=None,
    ):
        self.slower, self.status, self.failed, self.wrong = slower, status, failed or {}, wrong
        self.kernels, self.writes, self.seen_of = kernels, writes, seen_of or {}
        self.commands, self.turns = {}, {}

    def __call__(self, arguments, env, output):
        card = UUIDS.index(env["CUDA_VISIBLE_DEVICES"])
        self.commands.setdefault(card, []).append(arguments)
        self.turns.setdefault(card, []).append(env["GPUKERN_RUN_FOLDER"])
        status = self.status(len(self.commands[card]), card)
        file = next(each.partition("=")[2] for each in reversed(arguments) if "--gpukern-report=" in each)
        tests = [int(each.rpartition("[")[2].rstrip("]")) for each in arguments if "test_work[" in each]
        results = [self._result(card, kernel) for kernel in tests or range(self.kernels)]
        failures = dict.fromkeys(self.failed.get(card, ()), Failure("x")) if not tests else {}
        if self.writes:
            write_run_file(Path(file), RunResults(results, failures=failures))
        return SimpleNamespace(wait=lambda: status, returncode=status)

    def _result(self, card, kernel):
        number = len(self.commands[card])
        ns = (5_000, 50_000, 1_000_000)[kernel % 3] * self.slower(number, card, kernel)
        measurement = made_up.measured(
            ns,
            timer="cupti",
            traffic_bytes=3e12 * 1e-9 * ns if kernel % 3 == 2 else None,
            observations={"clocks": {"sm_mhz": 1980.0, "temperature_c": 50 + card}},
        )
        return made_up.result(
            f"numba.k{kernel}",
            measurement,
            fingerprint=Fingerprint(device_uuid=UUIDS[card]),
            nodeid=f"suites/test_it.py::test_work[{kernel}]",
            ceilings={"device_copy_bytes_per_s": 4e12},
            observations={"card": {**USUAL, **self.seen_of.get(card, {})}},
            correctness=Correctness.INCORRECT if (card, kernel) in self.wrong else Correctness.PASSED,
        )


@pytest.fixture
def rounds(monkeypatch):
    """Makes rounds up; see `Rounds`."""

    def made_up_rounds(*args, **kwargs):
        made = Rounds(*args, **kwargs)
        monkeypatch.setattr(suites, "started_with_us", made)
        monkeypatch.setattr(suites, "end_group", lambda process: None)
        return made

    return made_up_rounds


def slow(card, percent, kinds=(0, 1, 2), until=99):
    """A card whose kernels of some kinds are slower, until some round: short, compute, memory."""
    return lambda number, which, kernel: (
        1 + percent / 100 if which == card and kernel % 3 in kinds and number <= until else 1.0
    )


def test_healthy_gpus_take_three_rounds_and_further_ones_only_measure(host, rounds):
    made = rounds()
    given = ("-k", "vector_exp", "--gpukern-fail-on=resources", "--gpukern-timer=cupti")
    status, out, _ = host(*given, "--gpukern-report=runs/")
    assert status == 0
    assert out.endswith("gpukern validate --all-gpus: 3 cards of 1 host: nothing stands out\n")
    assert {card: len(of) for card, of in made.commands.items()} == {0: 3, 1: 3, 2: 3}
    first, *others = made.turns.values()
    assert others == [first, first], "a time of the host waits for the processes of the other GPUs"
    for first, *further in made.commands.values():
        assert {"-k", "--gpukern-fail-on=resources", "--gpukern-scope=kernel"} <= set(first)
        for command in further:
            assert {"--gpukern-baseline=off", "--gpukern-timer=cupti"} <= set(command)
            assert [each for each in command if "fail-on" in each] == ["--gpukern-fail-on=none"]
            assert sum("::test_work[" in each for each in command) == 30
    names = [f"{socket.gethostname()}-{card}{session}.json" for card in "012" for session in ("", ".2", ".3")]
    assert sorted(path.name for path in Path("runs").iterdir()) == sorted(names)
    figures, unreadable = read_figures(Path("runs").iterdir())
    assert (len({of.card for of in figures}), len(figures), unreadable) == (3, 9, [])


def test_a_slow_gpu_is_named_with_what_to_do_once_fresh_sessions_of_its_slow_classes_confirm_it(host, rounds):
    made = rounds(slow(1, 3, kinds=(0, 2)))
    status, out, _ = host()
    assert status == 1
    assert sorted(map(len, made.commands.values())) == [3, 6, 6]
    counts = [sum("::test_work[" in each for each in command) for command in made.commands[1]]
    assert counts == [0, 30, 30, 20, 20, 20]
    assert f"SLOW GPU 1 {SHORT[1]}: memory and short kernels 3.0 % slower than its peers" in out
    assert "→ nothing that NVML tells explains it" in out
    assert "3 cards of 1 host: 1 SLOW" in out
    rounds(slow(1, 5, until=3))
    status, out, _ = host()
    assert (status, f"\n  GPU 1 {SHORT[1]}  not confirmed  +" in out) == (0, True)


@pytest.mark.parametrize(
    ("made_up", "status", "further", "said"),
    [
        ({"writes": False}, 1, 0, "its pytest ended with status 0, and wrote no file"),
        ({"status": lambda number, card: 2}, 2, 0, "its pytest ended with status 2"),
        ({"status": lambda number, card: 4}, 4, 0, "its pytest ended with status 4"),
        ({"status": lambda number, card: 5}, 5, 0, "its pytest ended with status 5"),
        ({"status": lambda number, card: 4 * (number > 1)}, 1, 1, "status 4, so the GPUs were not compared"),
    ],
)
def test_a_round_without_a_file_ends_the_validation_whatever_file_is_there(
    host, rounds, made_up, status, further, said
):
    for gpu_name in SHORT.values():
        Path(f"run-{gpu_name}.json").touch()
    made = rounds(**made_up)
    ended, _, err = host("--gpukern-report=run.json")
    assert (ended, {len(of) for of in made.commands.values()}) == (status, {1 + further})
    assert said in err


def test_what_nvml_refuses_is_unknown(host, rounds):
    rounds(seen_of=dict.fromkeys(range(2), dict.fromkeys(USUAL)))
    _, out, _ = host()
    (line,) = [each for each in out.splitlines() if each.startswith(f"  GPU 1 {SHORT[1]}") and "MHz" in each]
    assert line.split()[3:5] == ["1980", "MHz"]
    assert line.split()[-4:] == ["unknown"] * 4, "errors, rows and link"
    rounds(seen_of=dict.fromkeys(range(3), dict.fromkeys(USUAL)))
    assert "unknown" not in host()[1], "a column in which nothing is known"


def test_failed_tests_fail_the_host_and_wrong_outputs_are_not_compared(host, rounds):
    failed = {1: ["suites/test_it.py::test_work[4]"]}
    made = rounds(status=lambda number, card: int((number, card) == (1, 1)), failed=failed, wrong=[(1, 4)])
    status, out, _ = host()
    assert status == 1
    assert "3 cards of 1 host: 1 WRONG" in out
    assert "1 failed test on 1 card" in out
    assert not any("test_work[4]" in each for each in made.commands[1][1])


def test_a_suspicion_that_no_right_kernel_can_confirm_stays_one(host, rounds):
    made = rounds(slow(1, 5, kinds=(2,)), kernels=15, wrong=[(0, 2)])
    _, out, _ = host()
    assert {len(of) for of in made.commands.values()} == {3}
    assert f"suspected GPU 1 {SHORT[1]}: memory kernels 5.0 % slower than its peers, not confirmed yet" in out


def test_a_gpu_whose_pytest_does_not_end_is_silent_and_the_others_are_compared(host, rounds):
    rounds(slow(1, 3), status=lambda number, card: 3 * (card == 2))
    status, out, _ = host()
    out = " ".join(out.split())
    assert status == 1
    assert f"SLOW GPU 1 {SHORT[1]}: " in out
    assert f"SILENT GPU 2 {SHORT[2]}: nothing valid was measured, its pytest ended with status 3" in out


def test_gpus_of_another_model_and_instances_of_mig_are_left_out_by_name(host, rounds):
    made = rounds()
    other = gpu(2, name="NVIDIA L4")
    status, out, _ = host(records=(split_gpu(0), gpu(1), other))
    assert (status, [*made.commands]) == (0, [1])
    assert "left out: 2 instances of MIG: they share a GPU" in out
    assert f"CUDA_VISIBLE_DEVICES={UUIDS[2]} gpukern validate --all-gpus" in " ".join(out.split())
    assert "there is no other of this model, so only its own record says whether" in " ".join(out.split())


@pytest.mark.parametrize(
    ("option", "said"),
    [
        ("--gpukern-device=0", "--gpukern-device=0 leaves one GPU; drop it"),
        ("--gpukern-baseline=create", "--gpukern-baseline=append records every GPU"),
        ("--junitxml=j.xml", "each GPU has a pytest of its own, and all would write this file"),
    ],
)
def test_what_cannot_be_done_on_all_gpus_is_refused(host, rounds, option, said):
    made = rounds()
    status, _, err = host(option)
    assert (status, made.commands) == (4, {})
    assert said in err


def test_a_host_without_a_gpu_fails(host, rounds, monkeypatch):
    rounds()
    status, _, err = host(records=(split_gpu(0),))
    assert (status, "no whole GPU is visible: instances of MIG share one" in err) == (1, True)

    def missing():
        raise NvmlUnavailable("no NVIDIA driver library")

    monkeypatch.setattr(all_gpus, "open_nvml", missing)
    assert cli.main(["validate", "--all-gpus"]) == 1
