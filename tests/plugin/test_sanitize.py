"""Checks `--gpukern-sanitize` in whole runs: real child sessions; a fake GPU and compute-sanitizer."""

import json
import re
import sys
from pathlib import Path

import pytest

from pytest_gpukern.values.options import SANITIZERS

from .conftest import FIRST, GPU_PROBLEM, SECOND, refused

INVALID = "memcheck: invalid __global__ write of 4 bytes, out of bounds,"
FAKE = Path(__file__).parent / "fake_sanitizer.py"
MORE = """
@doubling.variant("host")
def on_host(x, y):
    return lambda: np.multiply(x, 2, out=y)

@doubling.wrong("numba", detected_by="racecheck")
def racing(x, y):
    return launch_of("RACING", x, y)

@doubling.wrong("numba", expected_fault="not written")
def idle(x, y):
    return lambda: None

@doubling.wrong_cases
def test_broken(gpu_benchmark, case):
    gpu_benchmark.reject(case)

def test_plain(gpu_benchmark):
    assert gpu_benchmark(lambda: 7) == 7

def test_other():
    assert os.environ.get("GPUKERN_UNDER_SANITIZER") is None
"""


@pytest.fixture
def tool(pytester, monkeypatch):
    """Puts a compute-sanitizer on PATH that says what it is told to say."""
    program = pytester.path / "bin" / "compute-sanitizer"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -S {FAKE} "$@"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")
    for name in ("CUDA_HOME", "CUDA_PATH"):
        monkeypatch.delenv(name, raising=False)
    return program


@pytest.fixture
def sanitized(pytester, tool, on_fake_gpu):
    """Runs a project of two correct variants under tools, with faults: tool, part of a test's name, how."""
    pytester.makepyfile(test_doubling=GPU_PROBLEM)

    def run(tools, *options, faults=()):
        (pytester.path / "faults").write_text("".join(f"{fault}\n" for fault in faults))
        return on_fake_gpu(f"--gpukern-sanitize={tools}", *options)

    return run


def sessions_of(pytester):
    return [json.loads(line) for line in (pytester.path / "sanitized.log").read_text().splitlines()]


def test_tests_that_are_clean_under_each_tool_pass_after_one_session_a_tool(sanitized, pytester):
    result = sanitized(",".join(SANITIZERS))
    result.assert_outcomes(passed=2)
    assert result.ret == 0
    result.stdout.fnmatch_lines(
        [
            f"gpukern: {name}: 2 checked (2 clean) in * s, by compute-sanitizer 2025.3.1.0"
            for name in SANITIZERS
        ]
    )
    sessions = sessions_of(pytester)
    assert [session["options"]["--tool"] for session in sessions] == list(SANITIZERS)
    assert sessions[0]["options"]["--padding"] == "512"
    assert all(session["options"]["--error-exitcode"] == "86" for session in sessions)
    assert all(session["command"][:2] == [sys.executable, "-P"] for session in sessions)


def test_a_finding_fails_the_test_that_it_belongs_to_whatever_the_exit_status(sanitized, pytester):
    result = sanitized("memcheck,racecheck", faults=["memcheck second quiet"])
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(
        [
            f"{INVALID} in add_flat, block (1, 0, 0), thread (63, 0, 0), variant at test_doubling.py:*",
            "gpukern: memcheck: 2 checked (1 clean, 1 with findings) in * s, *",
            "gpukern: racecheck: 2 checked (2 clean) in * s, *",
            f"FAILED *{SECOND}* - Failed: memcheck: invalid *",
        ]
    )
    # Both together, then each by itself; the other tool is done at once.
    sessions = [session["options"]["--tool"] for session in sessions_of(pytester)]
    assert sessions == [*["memcheck"] * 3, "racecheck"]


@pytest.mark.parametrize(
    ("fault", "reason", "ran"),
    [
        ("first mute", "memcheck ended with status 0 without its summary: COMPUTE-SANITIZER", True),
        ("planted none", "memcheck missed the fault that we planted to test it: it reports no error", False),
    ],
)
def test_a_tool_that_vouches_for_nothing_fails_every_test_and_the_run(
    sanitized, pytester, fault, reason, ran
):
    result = sanitized("memcheck,racecheck", faults=[f"memcheck {fault}"])
    result.assert_outcomes(failed=2)
    result.stdout.fnmatch_lines(
        [
            f"not checked by memcheck: {reason}",
            f"gpukern: --gpukern-sanitize=memcheck,racecheck: memcheck checked nothing: {reason}",
            "gpukern: memcheck: 0 checked, 2 not checked in * s, *",
            "gpukern: racecheck: 2 checked (2 clean) *",
        ]
    )
    assert result.ret == 1
    sessions = [session["options"]["--tool"] for session in sessions_of(pytester)]
    assert sessions == [*["memcheck"] * ran, "racecheck"]


def test_a_test_that_ends_its_process_is_named_and_the_others_are_still_checked(sanitized, pytester):
    pytester.makeconftest(
        """
        import os, pytest
        @pytest.fixture(autouse=True)
        def _fault(request):
            if "first" in request.node.name and __import__("fake_gpu").in_session(request.config):
                os.kill(os.getpid(), 9)
        """
    )
    result = sanitized("memcheck")
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(
        [
            "not checked by memcheck: memcheck says: Error: made up: what ran came to no good end",
            "gpukern: memcheck: 1 checked (1 clean), 1 not checked in * s, *",
            f"FAILED *{FIRST}*",
        ]
    )


def test_only_what_uses_the_gpu_is_looked_at_and_a_broken_variant_must_be_found_by_its_tool(
    sanitized, pytester
):
    pytester.makepyfile(test_doubling=GPU_PROBLEM + MORE)
    result = sanitized("memcheck,racecheck", "-rs", faults=["racecheck racing finding"])
    result.assert_outcomes(passed=7)
    result.stdout.fnmatch_lines(
        [
            "gpukern: memcheck: 3 checked (3 clean)*",
            "gpukern: racecheck: 4 checked (3 clean, 1 with findings)*",
        ]
    )
    result = sanitized("racecheck")
    result.assert_outcomes(passed=6, failed=1)
    result.stdout.fnmatch_lines(["broken on purpose for racecheck to reject, but racecheck found nothing"])
    result = sanitized("memcheck", "-rs")
    result.assert_outcomes(passed=6, skipped=1)
    result.stdout.fnmatch_lines(["SKIPPED *only racecheck detects it: use --gpukern-sanitize=racecheck"])


INTERRUPTED = """
from pytest_gpukern.sanitizer.sanitized_run import Sanitizer

session = Sanitizer._session

def interrupted(self, tool, nodeids):
    if "racing" in nodeids[0]:
        raise KeyboardInterrupt
    return session(self, tool, nodeids)

Sanitizer._session = interrupted
"""


def test_an_interrupted_run_tells_of_the_tools_that_came_to_their_end(tool, pytester):
    pytester.makeconftest(INTERRUPTED)
    pytester.makepyfile(test_doubling=GPU_PROBLEM + MORE)
    result = pytester.runpytest_subprocess("-p", "fake_gpu", "--gpukern-sanitize=memcheck,racecheck")
    assert result.ret == pytest.ExitCode.INTERRUPTED
    result.stdout.fnmatch_lines(["gpukern: memcheck: 3 checked (3 clean)*", "*KeyboardInterrupt*"])
    result.stdout.no_fnmatch_line("gpukern: racecheck: * checked*")
    assert "Traceback" not in result.stderr.str()


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (("-k", "other or on_host"), "no test that uses this plugin's fixtures on a GPU is selected"),
        (("test_a.py",), "all 1 were skipped"),
    ],
)
def test_a_run_that_checks_nothing_fails_and_keeps_reasons(sanitized, pytester, options, why):
    skips = "import pytest\n\ndef test_a(gpu_benchmark):\n    pytest.skip('not today')\n"
    pytester.makepyfile(test_doubling=GPU_PROBLEM + MORE, test_a=skips)
    result = sanitized("memcheck", "-rs", *options)
    assert result.ret == 1
    result.stdout.fnmatch_lines([f"gpukern: *memcheck: memcheck checked nothing: {why}"])
    if "test_a.py" in options:
        result.assert_outcomes(skipped=1)
        result.stdout.fnmatch_lines(["SKIPPED *not today"])


def test_tests_end_as_under_the_tool_and_a_mark_may_expect_a_finding(sanitized, pytester):
    """Tests of pytest-benchmark are called once, and memory has no pools."""
    pytester.makepyfile(
        test_a="""
        import os
        import pytest

        @pytest.mark.gpu_benchmark
        def test_marked(benchmark):
            calls = []
            benchmark(calls.append, 1)
            assert calls == [1]

        @pytest.mark.xfail(reason="known", strict=True)
        @pytest.mark.parametrize("state", ["faulty", "mended"])
        def test_expected(gpu_device, state):
            pass

        def test_wrong(gpu_device):
            pytest.fail("said there")

        def test_environment(gpu_device):
            found = {name: os.environ[name] for name in (
                "PYTORCH_NO_CUDA_MEMORY_CACHING", "NUMBA_CUDA_MAX_PENDING_DEALLOCS_COUNT",
                "NUMBA_CUDA_MEMORY_MANAGER", "PYCUDA_DEFAULT_NVCC_FLAGS")}
            assert list(found.values()) == ["1", "0", "default", "-O1 -lineinfo"]
            assert os.environ["GPUKERN_UNDER_SANITIZER"] == "memcheck"
        """
    )
    pytester.makeconftest("import os\nos.environ.setdefault('PYCUDA_DEFAULT_NVCC_FLAGS', '-O1')")
    result = sanitized("memcheck", "test_a.py", faults=["memcheck faulty finding"])
    result.assert_outcomes(passed=2, xfailed=1, failed=2)
    result.stdout.fnmatch_lines(
        [
            "[[]XPASS(strict)[]] known",
            "said there",
            "gpukern: memcheck: 5 checked (4 clean, 1 with findings)*",
        ]
    )


def test_what_cannot_be_is_refused_with_the_way_out(pytester, tool, on_fake_gpu):
    pytester.makepyfile(test_doubling=GPU_PROBLEM)

    def run(*options, runs=on_fake_gpu):
        return runs("--gpukern-sanitize=memcheck", *options)

    refused(run("--gpukern-backend=host"), "--gpukern-sanitize=memcheck: only host variants are selected*")
    refused(
        run("--gpukern-sanitize=valgrind"), "--gpukern-sanitize=valgrind: 'valgrind' is none of memcheck*"
    )
    refused(run("-n2"), "--gpukern-sanitize=memcheck: *tests cannot be distributed; drop -n, or add -n 0")
    without = run(runs=pytester.runpytest_subprocess)  # Numba may be loaded here
    refused(without, "--gpukern-sanitize=memcheck: compute-sanitizer needs a GPU: no GPU*")
    tool.write_text("#!/bin/sh\nexit 3\n")
    refused(
        run(), "--gpukern-sanitize=memcheck: *compute-sanitizer --version ended with status 3*pip install*"
    )
    tool.unlink()
    refused(
        run(), "--gpukern-sanitize=memcheck: compute-sanitizer is not installed; pip install nvidia-cuda-*"
    )


def test_tests_of_other_plugins_keep_their_fixtures_between_those_that_ran_under_the_tool(
    sanitized, pytester
):
    for name in ("a", "b"):
        pytester.makepyfile(
            **{
                f"test_{name}": """
                import pytest

                @pytest.fixture(scope="module")
                def opened():
                    print("opened", __name__)
                    yield
                    print("closed", __name__)

                def test_first(opened): pass
                def test_under_the_tool(gpu_device): pass
                def test_last(opened): pass
                """
            }
        )
    result = sanitized("memcheck", "-s", "-p", "no:randomly")
    result.assert_outcomes(passed=8)
    held = re.findall(r"(opened|closed) (test_\w)$", result.stdout.str(), re.MULTILINE)
    assert held == [("opened", "test_a"), ("closed", "test_a"), ("opened", "test_b"), ("closed", "test_b")]
