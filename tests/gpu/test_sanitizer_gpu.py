"""Tests compute-sanitizer itself, on kernels with known faults: its output, and how a run reports it.

With `GPUKERN_KEEP_SANITIZER=FOLDER` the XML and the log of each tool are kept there, as `TOOL-KERNEL.xml` and
`.log`: `tests/unit/data/sanitizer` has excerpts of them.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from pytest_gpukern.sanitizer.judge import judge_folder
from pytest_gpukern.sanitizer.tool import LOG, RECORDS, ToolMissingError, environment_under, find_tool

TOOLS = ("memcheck", "racecheck", "initcheck", "synccheck")
KERNELS = """
import numpy as np
from numba import cuda, float32

@cuda.jit
def clean(x, out):
    held = cuda.shared.array(64, float32)
    i = cuda.grid(1)
    t = cuda.threadIdx.x
    held[t] = x[i] if i < x.size else np.float32(0)
    cuda.syncthreads()
    if i < out.size:
        out[i] = held[t] + held[63 - t]

@cuda.jit
def stores_behind(x, out):
    i = cuda.grid(1)
    if i <= out.size:
        out[i] = np.float32(1)  # memcheck

@cuda.jit
def races(x, out):
    held = cuda.shared.array(64, float32)
    t = cuda.threadIdx.x
    held[t] = x[t]  # racecheck
    out[t] = held[63 - t]

@cuda.jit
def reads_unwritten(x, out):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = out[i] + x[i]  # initcheck

@cuda.jit
def divides_a_warp(x, out):
    t = cuda.threadIdx.x
    if x[t] < 16:
        cuda.syncthreads()  # synccheck
    out[t] = x[t]

def launch(kernel, size=127):
    x = cuda.to_device(np.arange(size, dtype=np.float32))
    out = cuda.device_array(size, np.float32)
    blocks = 1 if kernel in (races, divides_a_warp) else 2
    kernel[blocks, 64](x, out)
    cuda.synchronize()
"""
FAULTY = {
    "memcheck": "stores_behind",
    "racecheck": "races",
    "initcheck": "reads_unwritten",
    "synccheck": "divides_a_warp",
}


def line_of(tool):
    """The line of the fault, counted from 1, in a file that is `KERNELS` as pytester writes it."""
    return 1 + [line.endswith(f"# {tool}") for line in KERNELS.strip().splitlines()].index(True)


@pytest.fixture(scope="module")
def program():
    try:
        return find_tool()
    except ToolMissingError as error:
        pytest.skip(str(error))


@pytest.fixture
def judged(program, tmp_path):
    """Returns the judgement of a tool on a kernel that runs without pytest."""

    def run(tool, kernel):
        script = tmp_path / "script.py"
        script.write_text(
            "from numba import cuda\n"
            "from pytest_gpukern.sanitizer.child_setup import prepare_libraries\n"
            "prepare_libraries()\n"
            "import contextlib, kernels\n"
            f"with contextlib.suppress(Exception):\n    kernels.launch(kernels.{kernel})\n"
        )
        (tmp_path / "kernels.py").write_text(KERNELS.strip() + "\n")
        environ = {**os.environ, **environment_under(tool, os.environ)}
        done = subprocess.run(
            [*program.command(tool, tmp_path), sys.executable, str(script)],
            env=environ,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        keep(tool, kernel, tmp_path / RECORDS, tmp_path / LOG)
        return judge_folder(tmp_path, tool, done.returncode)

    return run


def keep(tool, kernel, xml, log):
    folder = os.environ.get("GPUKERN_KEEP_SANITIZER")
    for file, ending in ((xml, "xml"), (log, "log")):
        if folder and file.exists():
            Path(folder).mkdir(parents=True, exist_ok=True)
            (Path(folder) / f"{tool}-{kernel}.{ending}").write_bytes(file.read_bytes())


def test_memcheck_tells_block_and_thread_of_a_store_behind_the_end(judged):
    found = judged("memcheck", "stores_behind")
    assert [(finding.block, finding.thread) for finding in found.findings] == [((1, 0, 0), (63, 0, 0))]
    assert "write" in found.findings[0].text


def test_racecheck_tells_both_threads_and_both_lines_of_each_hazard(judged):
    line = line_of("racecheck")
    for finding in judged("racecheck", "races").findings:
        assert {access.what for access in finding.accesses} == {"Write", "Read"}
        assert {access.place.line for access in finding.accesses} == {line, line + 1}
        threads = {access.thread for access in finding.accesses}
        assert len(threads) == 2
        assert None not in threads


@pytest.fixture
def project(pytester, program, plugin_option, monkeypatch):
    """A project of a clean test and one with a fault for each tool, run under one of them."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(pytester.path / "cache"))  # each tool has to prove itself
    tests = "\n".join(
        f"def test_{kernel}(gpu_benchmark):\n    gpu_benchmark(launch, {kernel})\n"
        for kernel in ("clean", *FAULTY.values())
    )
    pytester.makepyfile(test_kernels=f"{KERNELS.strip()}\n\n{tests}")

    def run(tool, *options):
        return pytester.runpytest_subprocess(*plugin_option, f"--gpukern-sanitize={tool}", *options)

    return run


@pytest.mark.parametrize("tool", TOOLS)
def test_a_finding_fails_its_own_test_with_the_line_of_the_kernel_and_a_clean_one_passes(project, tool):
    """A run believes a tool only once that has found the fault that is planted for it."""
    kernel, line = FAULTY[tool], line_of(tool)
    result = project(tool, "-k", f"clean or {kernel}")
    result.assert_outcomes(passed=1, failed=1)
    if tool == "racecheck":  # the read is in the line behind the write
        hazard = f"racecheck: ??? hazard in {kernel}: * by thread (*), test_kernels.py:*; block (0, 0, 0)*"
        result.stdout.fnmatch_lines([hazard])
        for access, number in (("write", line), ("read", line + 1)):
            result.stdout.fnmatch_lines([f"racecheck: *{access} by thread (*), test_kernels.py:{number}; *"])
    else:
        result.stdout.fnmatch_lines([f"{tool}: * in {kernel}, *test_kernels.py:{line}*"])
    result.stdout.fnmatch_lines([f"FAILED *::test_{kernel}*"])
