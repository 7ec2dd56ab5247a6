"""Tests runs whose workers each have a GPU of their own. Only the GPUs are fake."""

import pytest

from pytest_gpukern.report.run_file import read_run

from .conftest import FIRST, GPU_PROBLEM, properties_in, refused, repeat_sessions

NOTED = """
import os
import pytest

SEEN_AT_IMPORT = os.environ.get("CUDA_VISIBLE_DEVICES")

@pytest.fixture(autouse=True)
def _noted(request):
    yield
    if "PYTEST_XDIST_WORKER" in os.environ:
        with open("ran.log", "a") as log:
            print(os.environ["PYTEST_XDIST_WORKER"], SEEN_AT_IMPORT, request.node.nodeid, file=log)
"""


@pytest.fixture
def several(pytester, monkeypatch, on_fake_gpu):
    """Runs a project where three GPUs are visible, A, B and C, or those that `there` names."""
    monkeypatch.setenv("PYTEST_XDIST_AUTO_NUM_WORKERS", "7")  # which has to count for nothing
    pytester.makeconftest(NOTED)
    pytester.makeini("[pytest]\ngpukern_report = run.json")
    pytester.makepyfile(test_it=MANY)

    def run(*options, there="GPU-A,GPU-B,GPU-C"):
        monkeypatch.setenv("FAKE_GPUS", there)
        (pytester.path / "ran.log").unlink(missing_ok=True)
        return on_fake_gpu("--gpu-benchmark", *options)

    return run


def ran(pytester):
    """Returns of each test that ran its worker, the GPU that was visible to the conftest, and its name."""
    return [line.split(" ", 2) for line in (pytester.path / "ran.log").read_text().splitlines()]


def gpus(pytester):
    """Returns test → UUID of the GPU in its result."""
    run = read_run(pytester.path / "run.json")
    return {result.nodeid.partition("::")[2]: result.fingerprint.device_uuid for result in run.results}


def test_auto_starts_a_worker_for_each_visible_gpu_which_sees_no_other_from_its_first_import(
    several, pytester, monkeypatch
):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-C,GPU-A")
    result = several("-n", "auto")
    result.assert_outcomes(passed=12)
    result.stdout.fnmatch_lines(["gpukern workers: one on each of GPU-C, GPU-A", "*[[]100%[]]"])
    assert {(worker, gpu) for worker, gpu, _ in ran(pytester)} == {("gw0", "GPU-C"), ("gw1", "GPU-A")}
    assert set(gpus(pytester).values()) == {"GPU-A", "GPU-C"}
    assert list(gpus(pytester)) == [f"test_work[{number}]" for number in range(12)]


@pytest.mark.parametrize(
    ("options", "used"), [("-n2", {"GPU-A", "GPU-B"}), ("-n auto --maxprocesses=1", {"GPU-A"})]
)
def test_fewer_workers_use_the_first_gpus(several, pytester, options, used):
    several(*options.split()).assert_outcomes(passed=12)
    assert set(gpus(pytester).values()) == used


def test_the_header_names_gpus_of_another_model_which_no_worker_uses(several, pytester):
    result = several("-n", "auto", there="GPU-A,GPU-old")
    result.assert_outcomes(passed=12)
    result.stdout.fnmatch_lines(
        ["gpukern workers: one on each of GPU-A; not used, being of another model: Old GPU, GPU-old"]
    )


def test_more_workers_than_gpus_and_every_test_on_each_gpu_are_refused(several):
    refused(
        several("-n4"),
        "-n 4: 4 workers cannot measure on 3 visible GPUs of the model Fake GPU. Workers that share a GPU "
        "take turns, and are slower than one. Use -n auto, which starts one worker for each GPU, or -n 3",
    )
    refused(
        several("-n", "auto", "--dist=each"),
        "--dist=each: each GPU would measure every case, but a run holds a case once. "
        "Run pytest for one GPU after the other, with --gpukern-device=UUID",
    )


def test_a_run_that_does_not_measure_may_have_any_number_of_workers(several, pytester, on_fake_gpu):
    result = on_fake_gpu("-n2")
    result.assert_outcomes(passed=12)
    assert {gpu for _, gpu, _ in ran(pytester)} == {""}


def test_a_case_is_measured_on_the_gpu_that_it_was_recorded_on_and_others_where_there_is_time(
    several, pytester
):
    create = ("--gpukern-baseline=create", "--gpukern-sessions=1", "-k", "not 11")
    several(*create, there="GPU-B").assert_outcomes(passed=11, deselected=1)
    several("-n", "auto", there="GPU-A,GPU-B").assert_outcomes(passed=12)
    found = gpus(pytester)
    assert [found.pop(test) for test in ("test_work[11]",)] == ["GPU-A"]
    assert set(found.values()) == {"GPU-B"}
    several("-n", "auto", there="GPU-A,GPU-C").assert_outcomes(passed=12)
    assert set(gpus(pytester).values()) == {"GPU-A", "GPU-C"}


def on_gpus(pytester):
    """Returns UUID of the GPU of a result → those of its test's sessions."""
    run = read_run(pytester.path / "run.json")
    return {
        result.fingerprint.device_uuid: [each.fingerprint.device_uuid for each in run.sessions[result.nodeid]]
        for result in run.results
    }


def test_sessions_that_record_and_that_confirm_are_measured_on_the_gpu_of_the_first(
    several, pytester, monkeypatch
):
    """And what they confirm is told as in a run without workers."""
    pytester.makepyfile(test_it=GPU_PROBLEM)
    several("-n", "auto", "--gpukern-baseline=create", "--gpukern-sessions=2", there=TWO)
    assert on_gpus(pytester) == {"GPU-A": ["GPU-A"], "GPU-B": ["GPU-B"]}
    repeat_sessions(pytester.path, 3)
    summary = pytester.path / "summary.md"
    github = {"GITHUB_ACTIONS": "true", "GITHUB_STEP_SUMMARY": summary, "GITHUB_WORKSPACE": pytester.path}
    for name, value in {"FIRST_TAKES_NS": "1100", "SECOND_TAKES_NS": "1100", **github}.items():
        monkeypatch.setenv(name, str(value))
    result = several("-n", "auto", "-rf", "--junitxml=junit.xml", there=TWO)
    result.assert_outcomes(failed=2)
    assert on_gpus(pytester) == {"GPU-A": ["GPU-A"] * 3, "GPU-B": ["GPU-B"] * 3}
    line = GPU_PROBLEM.strip().splitlines().index("def first(x, y):")  # its decorator's, counted from 1
    told = [
        "SLOWER (kernel*",
        f"FAILED *{FIRST}*SLOWER*",
        f"::error file=test_it.py,line={line},title=SLOWER {FIRST}::kernel 1.00 → 1.10 µs*",
    ]
    result.stdout.fnmatch_lines_random(told)
    found = properties_in(pytester.path / "junit.xml")
    assert [each["verdict"] for each in found.values()] == ["SLOWER"] * 2
    assert summary.read_text().count("### gpukern") == 1, "once a run, and not by its child sessions"


def test_a_worker_that_dies_is_replaced_on_its_gpu(several, pytester):
    pytester.makepyfile(test_it=dying(KILLS_ITS_WORKER))
    result = several("-n", "auto", there=TWO)
    result.assert_outcomes(passed=11, failed=1)
    result.stdout.fnmatch_lines(["FAILED test_it.py::test_work[[]3[]]*"])
    workers = {(worker, gpu) for worker, gpu, _ in ran(pytester)}
    assert {gpu for worker, gpu in workers if worker in ("gw0", "gw1")} == {"GPU-A", "GPU-B"}
    (died,) = [line.split() for line in (pytester.path / "died.log").read_text().splitlines()]
    assert [gpu for worker, gpu in workers if worker == "gw2"] in ([], [died[1]])


def test_a_worker_whose_gpu_is_gone_goes_on_with_another_which_takes_its_cases(several, pytester):
    create = ("--gpukern-baseline=create", "--gpukern-sessions=1")
    several(*create, there="GPU-B").assert_outcomes(passed=12)
    pytester.makepyfile(test_it=dying('open("GPU-B", "w").close(); os._exit(3)'))
    result = several("-n", "auto", "--gpukern-report=run.json", there=TWO)
    result.assert_outcomes(passed=11, failed=1)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["*GPU-B failed, and its worker went on with GPU-A: *CUDA_VISIBLE_DEVICES=*"])
    found = gpus(pytester)
    assert len(found) == 12
    assert {found[f"test_work[{number}]"] for number in range(5, 12)} == {"GPU-A"}


def test_workers_that_are_pinned_already_keep_their_gpu_and_others_get_the_rest(several, pytester):
    pinned, free = "--tx=popen//env:CUDA_VISIBLE_DEVICES=GPU-A", "--tx=popen"
    several("--dist=load", pinned, pinned.replace("GPU-A", "GPU-B"), there=TWO).assert_outcomes(passed=12)
    several("--dist=worksteal", pinned, free, there=TWO).assert_outcomes(passed=12)
    assert set(gpus(pytester).values()) == {"GPU-A", "GPU-B"}
    refused(several("--dist=load", pinned, free, there="GPU-A"), "-n 2: 2 workers cannot measure on 1 *")


def test_tests_fail_where_no_other_gpu_is_left_for_their_worker(several, pytester):
    pytester.makepyfile(test_it=dying('open("GPU-A", "w").close(); os._exit(3)'))
    result = several("-n1", there="GPU-A")
    result.assert_outcomes(passed=3, failed=1, errors=8)
    result.stdout.fnmatch_lines(
        ["ERROR *could not start: it ended with status 4: *'GPU-A' starts no GPU's UUID.*"]
    )


@pytest.mark.parametrize(
    ("scopes", "seen"), [("kernel", {"busy", "free"}), ("kernel,launch", {"busy", "free", "alone"})]
)
def test_checks_and_times_of_the_host_take_turns_and_kernels_do_not(
    several, pytester, monkeypatch, scopes, seen
):
    monkeypatch.setenv("TMPDIR", str(pytester.path))
    monkeypatch.setattr("tempfile.tempdir", None)  # where Python has noted the old folder
    pytester.makepyfile(test_it=GPU_PROBLEM.replace("    def launch():\n", STATE, 1))
    several("-n1", f"--gpukern-scope={scopes}", "--gpukern-timer=event").assert_outcomes(passed=2)
    assert set((pytester.path / "states.log").read_text().split()) == seen


TWO = "GPU-A,GPU-B"


KILLS_ITS_WORKER = "os.kill(os.getppid(), 9); time.sleep(60)"


def dying(ends):
    """Returns `MANY`, of which the fourth test ends its process by this code."""
    return MANY.replace("lambda: None", "ends(number)").replace(
        "@pytest", ENDS.replace("os._exit(3)", ends), 1
    )


ENDS = """import os
import time

def ends(number):
    if number == 3:
        with open("died.log", "a") as log:
            print(os.environ["PYTEST_XDIST_WORKER"], os.environ["CUDA_VISIBLE_DEVICES"], file=log)
        os._exit(3)
    return lambda: None

@pytest"""
STATE = """    def launch():
        from pathlib import Path
        from fake_gpu import lock_state
        with open("states.log", "a") as log:
            print(lock_state(next(Path(os.environ["TMPDIR"]).glob("gpukern-run-*/host"))), file=log)
"""
MANY = """
import pytest

@pytest.mark.parametrize("number", range(12))
def test_work(gpu_benchmark, number):
    gpu_benchmark(lambda: None)
"""
