"""Checks child sessions in whole runs: recording several, confirming a suspicion. Only the GPU is fake."""

import os
import re
import signal
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from unittest.mock import Mock, patch

import pytest
from made_up_runs import whole_run
from waiting import until

from pytest_gpukern.baseline.codec import load
from pytest_gpukern.cli import main as cli
from pytest_gpukern.gpu.processes import is_alive
from pytest_gpukern.processes.sessions import ChildRun, ChildSessions, Waiting
from pytest_gpukern.run.device_session import DeviceSession

from .conftest import FIRST, GPU_PROBLEM, PREPARE, SECOND, repeat_sessions, results_in

CONFTEST = """
import os
import signal
import time
import pytest

def pytest_addoption(parser):
    parser.addoption("--database", default=None)

def pytest_configure(config):
    assert config.getoption("--database") == "a b"
    config.in_child = __import__("fake_gpu").in_session(config)
    patch = pytest.MonkeyPatch()
    config.add_cleanup(patch.undo)
    if config.in_child:
        time.sleep(float(os.environ.get("CHILD_SLEEPS", 0)))
    with open("sessions.log", "a") as log:
        print(os.getpid(), config.in_child, config.pluginmanager.has_plugin("dsession"), file=log)
    for name, value in [entry.split("=") for entry in os.environ.get("PARENT_ONLY", "").split()]:
        patch.delenv(name, raising=False) if config.in_child else patch.setenv(name, value)

class Late:
    def __del__(self):
        __import__("fake_gpu").FAULTS.append("CUDA_ERROR_ILLEGAL_ADDRESS")

@pytest.fixture(autouse=True)
def _fault(request):
    name = os.environ.get("FAULT") if request.config.in_child and "first" in request.node.name else None
    if name and len(open("sessions.log").readlines()) != int(os.environ["FAULT_IN"]):
        name = None
    if name == "lose":
        Late()
    yield Late() if name == "late" else None
    {"exit": lambda: os._exit(3), "hang": lambda: time.sleep(60)}.get(name, str)()
"""
"""Has an option of its own, notes each session, and makes faults where asked to."""


@pytest.fixture
def project(pytester, on_fake_gpu):
    """Makes a project with an option of its own, whose ini file reports and selects; it isolates nothing."""
    pytester.makepyfile(test_doubling=GPU_PROBLEM)
    pytester.makeconftest(CONFTEST)
    pytester.makeini(
        """
        [pytest]
        addopts = -v --junitxml=junit.xml --database="a b" -k "not nothing"
        gpukern_report = run.json
        """
    )

    def run(*options):
        return on_fake_gpu("--gpu-benchmark", "--gpukern-isolate=off", *options)

    def records(folder, *chosen):
        run(*chosen, "--gpukern-baseline=create", "--gpukern-sessions=1").assert_outcomes(
            passed=2, deselected=1 if chosen else 0
        )
        repeat_sessions(folder, 3)

    run.records = records
    return run


def sessions_of(pytester):
    """Returns pid, whether it was a child, and whether xdist distributed, of every pytest that began."""
    return [line.split() for line in (pytester.path / "sessions.log").read_text().splitlines()]


def recorded_sessions(pytester, case_id):
    (path,) = (pytester.path / "baselines").iterdir()
    return [each.session for each in load(path).of(case_id).sessions]


def test_a_record_is_measured_by_five_processes_one_after_the_other(project, pytester):
    result = project("-n1", "--gpukern-baseline=create")
    result.assert_outcomes(passed=2)
    result.stdout.fnmatch_lines(["gpukern: 2 passed · of 2 times: 2 new"])
    for case in (FIRST, SECOND):
        ids = recorded_sessions(pytester, case)
        assert len(set(ids)) == len(ids) == 5
        assert all(re.fullmatch("[0-9a-f]{8}", session) for session in ids)
    children = [distributed for _, child, distributed in sessions_of(pytester) if child == "True"]
    assert children == ["False"] * 4
    # What the run itself reports is its own.
    assert len(list(ElementTree.parse(pytester.path / "junit.xml").iter("testcase"))) == 2
    run = whole_run(pytester.path / "run.json")
    assert [each["role"] for each in run["results"]] == ["measured", "measured"]
    assert [each["role"] for each in run["sessions"]] == 8 * ["further"]
    assert results_in(pytester.path / "run.json")[FIRST]["verdicts"]["kernel/event/cold"]["kind"] == "NEW"


def test_a_suspicion_fails_where_fresh_sessions_confirm_it_and_passes_where_they_do_not(
    project, pytester, monkeypatch
):
    project.records(pytester.path)
    monkeypatch.setenv("FIRST_TAKES_NS", "1100")
    monkeypatch.setenv("PARENT_ONLY", "SECOND_TAKES_NS=1100")
    monkeypatch.setenv("CHILD_SLEEPS", "0.6")
    (pytester.path / "sessions.log").unlink()
    result = project("--gpukern-isolate=on", "--gpukern-timeout=2")  # two sessions alone take longer
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["SLOWER (kernel/event/cold): +10.0 % *", f"FAILED *{FIRST}*"])
    # This run, the process that measures for it, two that confirm both suspicions, and one more of what was
    # confirmed, for whoever accepts it.
    assert [child for _, child, _ in sessions_of(pytester)] == 2 * ["False"] + 3 * ["True"]
    verdicts = {
        case: found["verdicts"]["kernel/event/cold"]
        for case, found in results_in(pytester.path / "run.json").items()
    }
    assert (verdicts[FIRST]["kind"], verdicts[SECOND]["kind"]) == ("SLOWER", "SAME")
    assert not any(verdict["suspected"] for verdict in verdicts.values())
    assert all(verdict["sessions"] == 2 for verdict in verdicts.values())
    # The measured time stays that of the run.
    assert results_in(pytester.path / "run.json")[SECOND]["measurements"][0]["summary"]["median_ns"] > 1090
    spent_s = whole_run(pytester.path / "run.json")["spent_s"]
    assert spent_s["confirming sessions"] > 3 * 0.6, "each sleeps"
    result.stderr.fnmatch_lines(["*2 tests left: further sessions decide their times"])


def test_sessions_that_confirm_import_variants_of_their_backend_only(project, pytester, monkeypatch):
    problem, _, rest = GPU_PROBLEM.partition("@doubling.variant")
    variants, _, test = rest.partition("@doubling.cases")
    noted = """
import os
from .problem import doubling, launch_of

with open(os.environ["IMPORTED"], "a") as file:
    print(os.getpid(), __name__, file=file)

@doubling.variant"""
    folder = pytester.mkpydir("doubled")
    (folder / "problem.py").write_text(problem.replace("version=1,", "version=1, package=__package__,"))
    (folder / "on_numba.py").write_text(noted + variants)
    (folder / "on_host.py").write_text(f'{noted}("host")\ndef third(x, y):\n    return launch_of("", x, y)\n')
    (folder / "test_doubled.py").write_text(f"from .problem import doubling\n\n@doubling.cases{test}")
    imported = pytester.path / "imported"
    monkeypatch.setenv("IMPORTED", str(imported))
    chosen = ("doubled", f"--deselect=doubled/test_doubled.py::test_doubling[{SECOND}]")
    project.records(folder, *chosen)
    imported.unlink()
    monkeypatch.setenv("FIRST_TAKES_NS", "1100")
    project(*chosen).assert_outcomes(passed=1, failed=1, deselected=1)
    processes = {}
    for line in imported.read_text().splitlines():
        pid, name = line.split()
        processes.setdefault(pid, set()).add(name)
    # Two that confirm, and one more of what was confirmed.
    assert sum(names == {"doubled.on_numba"} for names in processes.values()) == 3


def test_sessions_of_a_host_variant_may_be_given_a_timer_of_gpus(project, pytester, monkeypatch):
    slept = GPU_PROBLEM.replace("import os", "import os, time", 1).replace(
        "np.multiply(", "time.sleep(float(os.environ.get('SLEEP_S', 0)))\n        np.multiply(", 1
    )
    pytester.makepyfile(test_doubling=slept.replace('"numba"', '"host"'))
    project.records(pytester.path)
    monkeypatch.setenv("SLEEP_S", "0.02")
    result = project("--gpukern-fail-on=host", "--gpukern-timer=event", "-k", "first")
    result.assert_outcomes(failed=1, deselected=1)
    result.stdout.fnmatch_lines(["*SLOWER (end_to_end/host/*): * confirmed at least *"])


def test_a_suspicion_that_no_session_can_decide_is_invalid_and_not_appended(recorded, monkeypatch, pytester):
    def died(self, request, progress, started):
        problem = f"it ended by SIGSEGV while running {request.nodeids[0]}"
        return ChildRun(problem=problem, during=request.nodeids[0], ended_early=True, status=-11)

    monkeypatch.setattr(ChildSessions, "run", died)
    monkeypatch.setenv("FIRST_TAKES_NS", "1100")
    result = recorded("--gpukern-baseline=append", "--gpukern-sessions=1")
    result.assert_outcomes(passed=1, failed=1)
    failed = "suspected +10.0 %, but the sessions to confirm it failed"
    result.stdout.fnmatch_lines(
        [
            f"INVALID (kernel/event/cold): {failed}: session 1: it ended by SIGSEGV while running *",
            f"gpukern: not recorded: *INVALID: suspected +10.0 %*({FIRST})",
        ]
    )
    assert [len(recorded_sessions(pytester, case)) for case in (FIRST, SECOND)] == [3, 4]


def test_a_session_that_records_or_confirms_imports_its_backend_beside_the_one_before(gpu, monkeypatch):
    waiting = []

    def start(self, request):
        waiting.append(Mock(has_ended=False))
        return waiting[-1]

    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    monkeypatch.setattr(ChildSessions, "start", start)
    monkeypatch.setattr(Waiting, "prepare", PREPARE)
    gpu("--gpukern-baseline=create", "--gpukern-sessions=3").assert_outcomes(passed=2)
    monkeypatch.setenv("FIRST_TAKES_NS", "1100")
    gpu().assert_outcomes(passed=1, failed=1)
    assert [each.imports.call_args.args[0] for each in waiting] == ["numba.cuda"] * 2


OTHER_TESTS = """
def slow(): pass
slow.takes_ns = float(os.environ.get("FIRST_TAKES_NS", 1000))

def test_plain(gpu_benchmark):
    gpu_benchmark(slow)

@pytest.mark.gpu_benchmark
def test_taken_over(benchmark):
    benchmark(slow)
"""


def test_the_device_is_not_held_while_child_sessions_run(gpu, pytester, monkeypatch):
    class Lock:
        held = taken = 0

        def acquire(self, on_wait):
            self.held += 1
            self.taken += 1

        def release(self):
            self.held -= 1

    lock, replayed, asked = Lock(), ChildSessions.run, []

    def run(self, request, *others):
        assert lock.held == 0
        asked.extend(nodeid.partition("::")[2].partition("[")[0] for nodeid in request.nodeids)
        return replayed(self, request, *others)

    path = pytester.path / "test_doubling.py"
    path.write_text(path.read_text() + OTHER_TESTS)
    gpu("--gpukern-baseline=create").assert_outcomes(passed=4)
    repeat_sessions(pytester.path, 3)
    monkeypatch.setattr(DeviceSession, "_lock", lock)
    monkeypatch.setattr(ChildSessions, "run", run)
    monkeypatch.setenv("FIRST_TAKES_NS", "1100")
    gpu().assert_outcomes(passed=1, failed=3)
    assert lock.taken >= 4
    assert asked == 2 * ["test_doubling"] + 2 * ["test_plain"] + 2 * ["test_taken_over"]


def test_a_run_that_stops_early_records_nothing_of_fewer_sessions_than_were_asked_for(gpu, pytester):
    path = pytester.path / "test_doubling.py"
    path.write_text(path.read_text() + "\n    assert 'second' not in case.id\n")
    result = gpu("-x", "--gpukern-baseline=create", "--gpukern-sessions=3")
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines([f"*not recorded: the run ended before 3 sessions had measured it ({FIRST})"])
    assert not (pytester.path / "baselines").exists()


@pytest.mark.parametrize(
    ("fault", "why"),
    [
        ("exit", "failed: it ended with status 3 while running *"),
        ("lose", "failed: INCORRECT: launch failed: CUDA_ERROR_ILLEGAL_ADDRESS*"),
        ("late", "failed: INCORRECT: launch failed: CUDA_ERROR_ILLEGAL_ADDRESS, found once the test's *"),
    ],
)
def test_a_child_that_dies_or_loses_its_context_costs_its_test_the_record_and_the_others_nothing(
    project, pytester, monkeypatch, fault, why
):
    monkeypatch.setenv("FAULT", fault)
    monkeypatch.setenv("FAULT_IN", "3")
    result = project("--gpukern-baseline=create", "--gpukern-sessions=3")
    result.assert_outcomes(passed=2)
    assert [len(recorded_sessions(pytester, case)) for case in (FIRST, SECOND)] == [0, 3]
    result.stdout.fnmatch_lines([f"gpukern: not recorded: session 3: {why} ({FIRST})"])


def test_an_interrupt_while_sessions_are_recorded_writes_nothing_and_leaves_no_process(
    project, pytester, monkeypatch
):
    monkeypatch.setenv("FAULT", "hang")
    monkeypatch.setenv("FAULT_IN", "3")
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # children find our plugin as this run does
    options = ["-p", "pytest_gpukern.plugin", "-p", "fake_gpu", "--gpu-benchmark", "--gpukern-isolate=off"]
    command = [sys.executable, "-m", "pytest", *options, "--gpukern-baseline=create"]
    output = pytester.path / "output"
    with output.open("wb") as into, subprocess.Popen(command, stdout=into, cwd=pytester.path) as run:
        log = pytester.path / "sessions.log"
        until(lambda: log.exists() and len(log.read_text().splitlines()) == 3, 60.0)
        os.kill(run.pid, signal.SIGINT)
    assert run.returncode == pytest.ExitCode.INTERRUPTED
    assert not [pid for pid, *_ in sessions_of(pytester) if is_alive(int(pid))]
    assert not (pytester.path / "baselines").exists()
    assert (
        "not recorded: the run ended before 5 sessions had measured it (doubling/numba.first/n=8, "
        in output.read_text()
    )


def test_a_confirmed_slowdown_is_accepted_from_the_run_file_with_sessions_enough_to_gate_at_once(
    project, pytester, monkeypatch
):
    project.records(pytester.path)
    monkeypatch.setenv("FIRST_TAKES_NS", "1100")
    project().assert_outcomes(passed=1, failed=1)
    path = pytester.path / "run.json"
    reported, sessions = results_in(path)[FIRST]["session"], whole_run(path)["sessions"]
    assert [each["case"]["id"] for each in sessions] == 3 * [FIRST]
    assert [each["role"] for each in sessions] == ["confirming", "confirming", "further"]
    assert cli.main(["baseline", "merge", str(path), "--accept", FIRST, "--reason", "more exact"]) == 0
    accepted = recorded_sessions(pytester, FIRST)[3:]
    assert accepted == [each["session"] for each in sessions]
    assert reported not in accepted
    project("-k", "first").assert_outcomes(passed=1, deselected=1)
    monkeypatch.setenv("FIRST_TAKES_NS", "1210")
    project("-k", "first").assert_outcomes(failed=1, deselected=1)


def test_without_a_file_to_accept_it_from_no_session_more_is_measured(recorded, monkeypatch):
    monkeypatch.setenv("FIRST_TAKES_NS", "1100")
    with patch.object(ChildSessions, "run", autospec=True, side_effect=ChildSessions.run) as run:
        recorded().assert_outcomes(passed=1, failed=1)
        assert run.call_count == 2
        recorded("--gpukern-report=run.json").assert_outcomes(passed=1, failed=1)
        assert run.call_count == 5
