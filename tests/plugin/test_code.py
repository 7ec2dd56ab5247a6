"""Checks `--gpukern-code` in whole runs: Numba's kernels are really compiled, and nothing runs."""

from __future__ import annotations

import json
import os

import pytest
from made_up_runs import whole_run
from repositories import Repository

from pytest_gpukern.cli.report import report_files
from pytest_gpukern.values.backend_table import installed
from pytest_gpukern.values.untrusted_json import FileError

pytest.importorskip("cuda.pathfinder", reason="the extra `code` is not installed")

SUITE = """
import numpy as np
import pytest
from numba import cuda, float32, vectorize
from pytest_gpukern import Axis, Problem

scaling = Problem(
    "scaling",
    version=1,
    axes={"n": Axis(smoke=(8,), full=(1000, 2**20))},
    make_inputs=lambda rng, n: {"x": rng.random(n, dtype="float32")},
    outputs=lambda n: {"y": ((n,), "float32")},
    reference=lambda x: 1 / 0,  # nothing is checked
)

@cuda.jit
def scale(x, y):
    i = cuda.grid(1)
    if i < x.size:
        y[i] = x[i] * np.float32(3)

@scaling.variant("numba", block=(128, 256))
def plain(x, y, n, stream, block):
    return lambda: scale[-(-n // block), block, stream](x, y)

@scaling.variant("host")
def numpy(x, y):
    return lambda: np.multiply(x, 3, out=y)

@scaling.cases
def test_scaling(gpu_benchmark, case):
    gpu_benchmark.run(case)

def test_that_measures_nothing():
    assert False, "it is not selected"
"""

ONE_POINT = SUITE.replace(", 2**20)", ",)")
"""All its tests are of one point, so that one process compiles them."""

PLAIN = """
import numpy as np
import pytest
from numba import cuda

@cuda.jit
def scale(x, y, factor):
    i = cuda.grid(1)
    if i < x.size:
        y[i] = x[i] * factor

@cuda.jit
def broken(x, y):
    y[0] = sum([value for value in x])

def arrays():
    return cuda.to_device(np.ones(100, "float32")), cuda.device_array(100, "float32")

def test_a_call(gpu_benchmark):
    x, y = arrays()
    gpu_benchmark(scale[1, 128], x, y, np.float32(3))
    gpu_benchmark.verify(y.copy_to_host(), np.full(100, 3))

def test_what_does_not_compile(gpu_benchmark):
    gpu_benchmark(broken[1, 128], *arrays())

def test_what_needs_a_result(gpu_benchmark):
    x, y = arrays()
    scale[1, 128](x, y, 3)
    blocks = int(y.copy_to_host()[0])  # this line
    gpu_benchmark(scale[blocks, 128], x, y, 3)

def test_of_the_host(gpu_benchmark):
    gpu_benchmark(np.add, np.ones(3), np.ones(3))

@pytest.mark.gpu_benchmark
def test_pytest_benchmarks_call(benchmark):
    benchmark(scale[1, 256], *arrays(), np.float32(3))
    assert False, "the test has ended"

@pytest.mark.gpu_benchmark
def test_pedantic(benchmark):
    benchmark.pedantic(scale[1, 64], setup=lambda: ((*arrays(), 3.0), {}), rounds=7)
    assert False, "the test has ended"

@pytest.mark.gpu_benchmark
def test_that_calls_nothing(benchmark):
    scale[1, 128](*arrays(), 3)

def test_unmarked(benchmark):
    assert False, "it is not selected"
"""

DOUBLES = ("x[i] * np.float32(3)", "x[i] * 3.1")


@pytest.fixture
def suite(pytester, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(pytester.path / "cache"))
    pytester.makepyfile(test_scaling=SUITE)
    return pytester.path / "test_scaling.py"


@pytest.fixture
def on_one_processor():
    """Has runs start one process from now on, when it is called: each more imports Numba, too."""
    before = os.sched_getaffinity(0)
    yield lambda: os.sched_setaffinity(0, {max(before)})
    os.sched_setaffinity(0, before)


def run(pytester, *options, file="test_scaling.py", status=0):
    result = pytester.runpytest_subprocess("-p", "no:cacheprovider", file, *options)
    assert result.ret == status, "\n".join(result.outlines)
    return result


def line_of(words, text):
    """Returns the line in which words stand, in the file that pytester makes of a text."""
    return text.lstrip().partition(words)[0].count("\n") + 1


def change(file):
    file.write_text(file.read_text().replace(*DOUBLES))


def test_code_is_recorded_compared_and_told_when_it_grew(pytester, suite, on_one_processor):
    first = run(
        pytester, "--gpukern-code=sm_80,sm_90", "--gpukern-baseline=create", "--gpukern-report=a.json"
    )
    first.stdout.fnmatch_lines(
        ["*compiled for sm_80, sm_90; no kernel ran", "PASSED: 4 cases compiled: 4 new"]
    )
    on_one_processor()
    assert "1 deselected" in first.stdout.str()
    assert "not covered without a GPU: variants of the host" in first.stdout.str()
    stored = json.loads((pytester.path / "baselines" / "scaling.code.json").read_text())
    cases = stored["cases"]
    with pytest.raises(FileError, match="holds no baseline files"):  # nor times
        report_files(pytester.path / "baselines")
    assert cases["scaling/numba.plain/n=1048576,block=128"] == {
        "like": "scaling/numba.plain/n=1000,block=128"
    }
    (kernel,) = cases["scaling/numba.plain/n=1000,block=128"]["code"]["sm_90"]["kernels"]
    assert kernel["name"] == "scale"
    assert kernel["block"] == [128, 1, 1]
    assert kernel["spill_bytes"] == 0
    assert "fp64" not in dict(kernel["instructions"])

    asked = "--gpukern-fail-on=resources,missing"
    same = run(pytester, "--gpukern-code=recorded", asked, "--gpukern-report=b.json", "-v")
    same.stdout.fnmatch_lines(["*scaling/numba.plain/n=1000,block=128 · scale sm_90", "*registers*1 fp32*"])
    same.stdout.fnmatch_lines(["PASSED: 4 cases compiled: 4 same code"])
    same.stdout.no_fnmatch_line("*no longer*")
    results = whole_run(pytester.path / "b.json")["results"]
    assert {name for result in results for name in result["code"]} == {"sm_80", "sm_90"}

    change(suite)
    failed = run(pytester, "--gpukern-code=recorded", asked, "--gpukern-report=c.md", status=1)
    of_all = "pytest test_scaling.py -k scaling/numba.plain --gpukern-code=sm_80,sm_90"
    repeat = f"{of_all} --gpukern-fail-on=resources"
    failed.stdout.fnmatch_lines(["RESOURCES*scaling/numba.plain*", f"*repeat *{repeat}"])
    accept = f"{of_all} --gpukern-baseline=update --gpukern-reason=TEXT"
    comment = (pytester.path / "c.md").read_text()
    for title, command in (("To repeat", repeat), ("To accept what is meant", accept)):
        assert f"**{title}**\n\n```sh\n{command}\n```" in comment
    told = run(pytester, "--gpukern-code=sm_90", "--gpukern-baseline=update", "--gpukern-reason=meant")
    told.stdout.fnmatch_lines(["changed*numba.plain sm_90: registers * FP64 instructions 0 → 1*"])

    again = json.loads((pytester.path / "baselines" / "scaling.code.json").read_text())["cases"]
    code = again["scaling/numba.plain/n=1000,block=128"]["code"]
    assert "fp64" in dict(code["sm_90"]["kernels"][0]["instructions"])
    assert code["sm_80"] == cases["scaling/numba.plain/n=1000,block=128"]["code"]["sm_80"]


@pytest.mark.parametrize("library", ["numba", "numba_cuda_mlir"])
def test_tests_end_at_their_call_and_say_what_cannot_be_known(pytester, library):
    if not installed(library):
        pytest.skip("the extra `mlir` is not installed")
    pytester.makepyfile(test_plain=PLAIN.replace("from numba import", f"from {library} import"))
    options = ("--gpukern-code=sm_90", "-rs", "--gpukern-report=a.json")
    result = run(pytester, *options, file="test_plain.py", status=1)
    result.assert_outcomes(passed=3, failed=1, skipped=3, deselected=1)
    text = result.stdout.str()
    assert f"cannot be known without a GPU: test_plain.py:{line_of('# this line', PLAIN)}: " in text
    assert f"test_plain.py:{line_of('np.add', PLAIN)}: it launches no kernel of Numba or Triton; " in text
    line = line_of("@pytest.mark.gpu_benchmark\ndef test_that", PLAIN)
    result.stdout.fnmatch_lines([f"*_plain.py:{line}: its body measures no kernel *; hand one over: *"])
    assert "3 skipped (1 cannot be known without a GPU, 2 not covered without a GPU)" in text
    assert "does not compile for sm_90: test_plain.py:" in text
    assert "Traceback" not in text
    kernels = [found["code"]["sm_90"]["kernels"] for found in whole_run(pytester.path / "a.json")["results"]]
    (_,), (call,), (pedantic,) = kernels
    assert (call["block"], pedantic["block"]) == ([256, 1, 1], [64, 1, 1])
    assert "fp64" not in dict(call["instructions"])
    assert "fp64" in dict(pedantic["instructions"])


WITH_DEVICE = """
import numpy as np
import pytest
from numba import cuda

@cuda.jit
def double(x, out):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = 2 * x[i]

def arrays(n):
    return cuda.to_device(np.ones(n, np.float32)), cuda.device_array(n, np.float32)

@pytest.fixture(scope="session")
def tile(gpu_device):
    return 256 if gpu_device.compute_capability >= (9, 0) else 128

def test_size(gpu_benchmark, gpu_device, gpu_warmup, gpu_synchronize):
    n = 1000 if gpu_device.is_simulated else 10**6
    gpu_warmup(double[4, 128], *arrays(1000))
    gpu_synchronize()
    gpu_benchmark(double[-(-n // 512), 512], *arrays(n))

def test_tile(gpu_benchmark, tile):
    gpu_benchmark(double[4, tile], *arrays(1000))

def test_time(gpu_benchmark, gpu_warmup):
    assert gpu_warmup(double[4, 128], *arrays(1000)).first_ns > 0
    gpu_benchmark(double[4, 128], *arrays(1000))
"""


def test_a_test_that_asks_for_the_device_is_compiled_as_it_is_measured(pytester):
    pytester.makepyfile(test_device=WITH_DEVICE)
    result = run(pytester, "--gpukern-code=sm_90", "--gpukern-report=a.json", "-rs", file="test_device.py")
    result.assert_outcomes(passed=2, skipped=1)
    line = line_of("first_ns", WITH_DEVICE)
    result.stdout.fnmatch_lines([f"*cannot be known *: test_device.py:{line}: *first_ns*; do that behind *"])
    found = whole_run(pytester.path / "a.json")["results"]
    ((size,), (tile,)) = (of["code"]["sm_90"]["kernels"] for of in found)
    assert (size["grid"], size["block"], tile["block"]) == ([1954, 1, 1], [512, 1, 1], [256, 1, 1])
    two = run(pytester, "--gpukern-code=sm_80,sm_90", "-rs", file="test_device.py")
    line = line_of("else 128", WITH_DEVICE)
    two.stdout.fnmatch_lines([f"*not covered *: test_device.py:{line}: *; compile for one of them a run: *"])
    run(pytester, "--gpukern-simulator=always", file="test_device.py").assert_outcomes(passed=3)


def test_recorded_code_that_is_not_compiled_is_told_and_fails_a_run_that_asks_for_missing(pytester, suite):
    code, asked = "--gpukern-code=sm_90", "--gpukern-fail-on=missing"
    suite.write_text(ONE_POINT)
    run(pytester, code, "--gpukern-baseline=create")
    skipping = ONE_POINT.replace("    gpu_benchmark.run", "    pytest.skip('soon')\n    gpu_benchmark.run")
    suite.write_text(skipping)
    result = run(pytester, code, f"{asked},resources", status=1)
    for kind, problem in (("resources", "no kernel was compiled"), ("missing", "2 recorded * run: soon (*")):
        result.stdout.fnmatch_lines([f"gpukern: --gpukern-fail-on=*{kind}*: {problem}"])
    stale = "gpukern: 2 recorded cases no longer exist: *; to remove: * baselines/scaling.code.json --case *"
    suite.write_text(skipping.replace("def plain(", "def other("))
    result = run(pytester, code)
    result.assert_outcomes(skipped=3, deselected=1)
    result.stdout.fnmatch_lines([stale])
    suite.write_text(ONE_POINT.replace("def plain(", "def other("))
    run(pytester, code, asked, status=1).stdout.fnmatch_lines([stale, "*=missing: 2 recorded cases did *"])
    run(pytester, code, asked, "-k", "128")
    suite.rename(pytester.path / "test_renamed.py").write_text(PLAIN.partition("def test_what")[0])
    run(pytester, code, asked, file=".", status=1).stdout.fnmatch_lines([stale])


def test_another_revision_needs_no_record(pytester, suite):
    suite.write_text(ONE_POINT)
    Repository(pytester.path).commit()
    change(suite)
    options = ("--gpukern-code=sm_90", "--gpukern-against=HEAD", "--gpukern-fail-on=resources")
    result = run(pytester, *options, "--gpukern-report=c.md", status=1)
    comment = (pytester.path / "c.md").read_text()
    base = Repository(pytester.path).git("rev-parse", "HEAD")[:7]
    assert f"--gpukern-code=sm_90 --gpukern-against={base} --gpukern-fail-on=resources\n" in comment
    assert "`slower on purpose`" in comment
    result.stdout.fnmatch_lines(["*numba.plain*", "*FP64 instructions 0 → *"])
    assert not (pytester.path / "baselines").exists()


@pytest.mark.parametrize(
    ("of_cases", "option", "said"),
    [
        ("", "--gpukern-code=sm_91", "'sm_91' is none of sm_75, sm_80, *or recorded"),
        ("", "--gpukern-code=recorded", "no machine code of the selected tests is on record; name *"),
        ('"x": {"like": "y"}', "--gpukern-code=recorded", "*/scaling.code.json: *'y' has no code itself*"),
    ],
)
def test_what_cannot_be_is_refused_with_the_remedy(pytester, suite, of_cases, option, said):
    (pytester.mkdir("baselines") / "scaling.code.json").write_text(
        f'{{"schema": 1, "problem": "scaling", "cases": {{{of_cases}}}}}'
    )
    result = run(pytester, option, status=pytest.ExitCode.USAGE_ERROR)
    result.stderr.fnmatch_lines([f"ERROR: {option}: {said}"])
