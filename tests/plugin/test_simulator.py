"""Tests when a run switches Numba's CUDA simulator on, and what it cannot do."""

import os
import subprocess
import sys

import pytest
from doubling import CASES, of_size

from pytest_gpukern.baseline.codec import load

from .conftest import IN_A_WORKERS_PROCESS, refused, results_in

pytest.importorskip("numba_cuda")

KERNELS = """
import numpy as np
import pytest
from numba import cuda, vectorize

@cuda.jit
def double(x, y):
    i = cuda.grid(1)
    if i < x.size:
        y[i] = 2 * x[i]

@cuda.jit
def shuffle(x):
    x[0] = cuda.shfl_sync(0xFFFFFFFF, x[0], 0)

@vectorize(["float32(float32)"], target="cuda")
def square(x):
    return x * x

x = np.arange(8, dtype="float32")
"""

TESTS = (
    KERNELS
    + of_size(8, 10**9)
    + CASES
    + """
from concurrent.futures import ThreadPoolExecutor

@doubling.variant("numba")
def kernel(x, y, stream):
    return lambda: double[1, 32, stream](x, y)

@doubling.variant("numba", needs_gpu="tensor cores")
def tensor(x, y):
    raise AssertionError("not here")

@doubling.variant("numba")
def shuffled(x, y):
    return lambda: shuffle[1, 32](x)

@doubling.variant("numba")
def forgets_the_last(x, y):
    return lambda: double[1, 7](x, y)

@doubling.variant("numba", allocates=True)
def returned(x):
    def launch():
        y = cuda.device_array_like(x)
        double[1, 32](x, y)
        return y
    return launch

@doubling.variant("numba", allocates=True)
def of_the_host(x):
    return lambda: 2 * x.copy_to_host()

@doubling.variant("host")
def numpy(x, y):
    return lambda: np.multiply(x, 2, out=y)

def test_plain(gpu_benchmark, gpu_device, gpu_synchronize, gpu_warmup):
    assert gpu_device.is_simulated
    calls = []
    def launch(y):
        calls.append(1)
        double[1, 32](x, y)
        return y
    y = np.zeros_like(x)
    assert gpu_benchmark(launch, y) is y
    assert calls == [1], "the simulator's time says nothing, so it is not measured"
    gpu_benchmark.verify(y, 2 * x)
    gpu_synchronize()
    assert gpu_warmup(launch, y).first_ns > 0

def test_pedantic(gpu_benchmark):
    checked = []
    gpu_benchmark.pedantic(lambda y: double[1, 32](x, y), setup=lambda: (np.zeros_like(x),),
                           check=lambda returned, y: checked.append(float(y[1])))
    assert checked == [2.0]

def test_launches_nothing(gpu_benchmark):
    gpu_benchmark(print)

def count(total):
    cuda.atomic.add(total, 0, 1)

@pytest.mark.gpu_benchmark(inout="total")
@pytest.mark.parametrize("expected", [12, 3])
def test_pool(gpu_benchmark, expected):
    def launch(total):
        with ThreadPoolExecutor(3) as pool:
            list(pool.map(lambda _: cuda.jit(count)[2, 2](total), range(3)))
    total = cuda.managed_array(1)
    total[:] = 0
    gpu_benchmark(launch, total)
    gpu_benchmark.verify(total, np.full(1, expected))

def test_plain_shuffle(gpu_benchmark):
    gpu_benchmark(shuffle[1, 32], x.copy())

@pytest.fixture
def shuffled_already():
    shuffle[1, 32](x.copy())

def test_shuffle_in_a_fixture(shuffled_already):
    pass
"""
)

IMPORTS_NUMBA_FIRST = """
import os
from numba import cuda
from numba.core import config

assert config.ENABLE_CUDASIM == 1, "the simulator came too late"
assert os.environ["NUMBA_ENABLE_CUDASIM"] == "1"
"""


@pytest.fixture(scope="module")
def run(request, tmp_path_factory):
    """One run with everything in it, in a process that says how it left its environment."""
    folder = tmp_path_factory.mktemp("simulated")
    (folder / "conftest.py").write_text(IMPORTS_NUMBA_FIRST)
    (folder / "test_it.py").write_text(TESTS)
    options = ["--gpu-benchmark", "--gpukern-report=run.json", "-rA", "-v"]
    options += ["--gpukern-baseline=create", "--gpukern-sessions=1"]
    script = (
        "import os, pytest; before = dict(os.environ)\n"
        f"code = pytest.main({[*options, '-p', 'no:cacheprovider']!r})\n"
        "changed = {name for name, value in set(os.environ.items()) ^ set(before.items())}\n"
        "print('changed', *sorted(changed - {'PYTEST_CURRENT_TEST'}))\n"
        "raise SystemExit(code)"
    )
    ours = ("CI", "NUMBA_ENABLE_CUDASIM", "PYTEST_ADDOPTS")
    environ = {name: value for name, value in os.environ.items() if name not in ours}
    environ |= {"COLUMNS": "160", "CUDA_VISIBLE_DEVICES": ""}
    found = subprocess.run(
        [sys.executable, "-c", script], cwd=folder, capture_output=True, text=True, env=environ
    )
    found.folder = folder
    return found


def outcome(run, name):
    lines = [line for line in run.stdout.splitlines() if f"::{name} " in line]
    assert lines, run.stdout + run.stderr
    return lines[0].split("::", 1)[1].removeprefix(name).split()[0]


SHUFFLES = "not in the simulator: warp shuffles (cuda.shfl_sync)"
IN_THE_SIMULATOR = [
    ("test_doubling[doubling/numba.kernel/n=8]", "PASSED", "gpukern simulator: on (no GPU: "),
    ("test_doubling[doubling/numba.returned/n=8]", "PASSED", ""),
    ("test_doubling[doubling/numba.of_the_host/n=8]", "FAILED", "returned numpy.ndarray, but backend numba"),
    ("test_doubling[doubling/host.numpy/n=8]", "PASSED", "CUDA simulator: correctness only, never speed"),
    *[(f"test_{name}", "PASSED", "") for name in ("plain", "pedantic", "launches_nothing")],
    ("test_plain_shuffle", "SKIPPED", SHUFFLES),
    ("test_shuffle_in_a_fixture", "SKIPPED", SHUFFLES),
    ("test_pool[12]", "PASSED", ""),
    ("test_pool[3]", "FAILED", "expected 3, actual 12"),
    ("test_doubling[doubling/numba.shuffled/n=8]", "SKIPPED", SHUFFLES),
    ("test_doubling[doubling/numba.tensor/n=8]", "SKIPPED", "tensor cores (doubling/numba.tensor/n=8)"),
    ("test_doubling[doubling/numba.forgets_the_last/n=8]", "FAILED", "1 still hold poison"),
]


@pytest.mark.parametrize(("name", "expected", "said"), IN_THE_SIMULATOR)
def test_without_a_gpu_the_simulator_is_on_before_numba_is_imported_and_checks(run, name, expected, said):
    assert outcome(run, name) == expected, run.stdout
    assert said in run.stdout
    assert "test_end.py" not in run.stdout, "a skip has the place of its test"


OTHER_TESTS = """
import asyncio, unittest

def lacks(*given):
    shuffle[1, 32](x.copy())

def raises(make, explicit=True):
    try:
        lacks()
    except Exception as error:
        raise make(error) from (error if explicit else None)

async def in_a_task_group():
    async with asyncio.TaskGroup() as group:
        group.create_task(asyncio.to_thread(lacks))

class TestUnit(unittest.TestCase):
    @pytest.fixture(autouse=True)
    def take(self, gpu_benchmark):
        self.wrong = lambda: gpu_benchmark.pedantic(lambda: None, check=lambda _: "wrong")
    def test_skipped(self): lacks()
    def test_skipped_by_subtest(self):
        with self.subTest(): lacks()
    def test_failed(self):
        with self.assertRaises(BaseException): self.wrong()
        lacks()

def test_skipped_by_cause(): raises(ValueError)
def test_skipped_by_group(): asyncio.run(in_a_task_group())
def test_skipped_by_subtest(subtests):
    with subtests.test(): lacks()
def test_skipped_by_check(gpu_benchmark): gpu_benchmark.pedantic(lambda: None, check=lacks)
def test_passed():
    with pytest.raises(Exception): lacks()
def test_failed_by_another(): raises(ValueError, explicit=False)
def test_failed_by_group(): raises(lambda error: ExceptionGroup("two", [error, ValueError()]))
def test_failed_by_subtest(subtests):
    for end in (lacks, pytest.fail):
        with subtests.test(): end("x")
def skipped_by_doctest(): '>>> lacks()'
"""
NOTES_OUTCOMES = """
def pytest_runtest_logreport(report):
    if report.when == "call":  # a subtest's before its test's
        print(f"\\n{report.nodeid} ended {report.outcome}")
"""


def test_a_test_of_any_kind_that_needs_what_the_simulator_lacks_is_skipped(pytester):
    pytester.makeconftest(NOTES_OUTCOMES)
    pytester.makepyfile(test_it=KERNELS + OTHER_TESTS)
    options = ("--gpukern-simulator=always", "--doctest-modules", "-s", "-p", "no:cacheprovider")
    told = pytester.runpytest_subprocess(*options, *IN_A_WORKERS_PROCESS).outlines
    outcomes = dict(line.split(" ended ") for line in told if " ended " in line)
    assert len(outcomes) == 12
    assert all(outcome in name for name, outcome in outcomes.items()), outcomes


def test_simulated_results_are_marked_not_recorded_and_have_no_times_while_host_variants_do(run):
    found = results_in(run.folder / "run.json")
    simulated, on_host = found["doubling/numba.kernel/n=8"], found["doubling/host.numpy/n=8"]
    assert (simulated["simulated"], len(simulated["measurements"])) == (True, 0)
    assert (on_host["simulated"], len(on_host["measurements"])) == (False, 1)
    (path,) = (run.folder / "baselines").iterdir()
    assert load(path).cases.keys() == {"doubling/host.numpy/n=8"}
    nothing = found["test_it/test_launches_nothing"]
    assert not nothing["simulated"]
    (note,) = nothing["notes"]
    assert note["text"] == 'the first call launched no kernel; to time host code, mark the test timer="host"'
    last = run.stdout.splitlines()[-1]
    assert last in ("changed", "changed KMP_DUPLICATE_LIB_OK"), "the import of threadpoolctl sets that"


def test_a_run_that_ends_before_it_is_configured_puts_the_environment_back_too(pytester):
    pytester.makeconftest("import os\nassert os.environ['NUMBA_ENABLE_CUDASIM'] == '1'\nraise OSError('no')")
    script = pytester.makepyfile(
        run_it="""
import os, pytest
code = pytest.main(["--gpukern-simulator=always"])
assert "NUMBA_ENABLE_CUDASIM" not in os.environ
raise SystemExit(code)
"""
    )
    result = pytester.runpython(script)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*OSError: no"])


def test_a_module_that_decorates_for_cuda_is_skipped_with_the_reason_where_the_simulator_is_off(pytester):
    body = "def test_body(gpu_benchmark):\n    from numba import cuda\n    cuda.device_array(3)"
    pytester.makepyfile(test_cuda=KERNELS + "\ndef test_it(): pass\n", test_other="def test_other(): pass")
    pytester.makepyfile(test_plain=body, test_typo="from numba import no_such_name\n")
    never = ("--gpukern-simulator=never", "--continue-on-collection-errors")
    result = pytester.runpytest_subprocess(*never, "-rs")
    result.assert_outcomes(passed=1, skipped=2, errors=1)
    result.stdout.fnmatch_lines(
        [
            "*ERROR collecting test_typo.py*",  # which is no want of a GPU
            "SKIPPED * test_cuda.py:1: no GPU: *",
            "SKIPPED * test_plain.py:1: no GPU: *",
        ]
    )


def test_a_numba_that_is_loaded_already_without_the_simulator_is_refused(pytester):
    result = pytester.runpytest_subprocess("-p", "numba.cuda", "--gpu-benchmark")
    refused(
        result,
        "numba.cuda is already loaded with ENABLE_CUDASIM=0, but this run needs the CUDA simulator on *",
    )


NEEDS_A_GPU = """
import numpy as np
import pytest
from numba import cuda

@cuda.jit
def double(x, y):
    y[cuda.threadIdx.x] = 2 * x[cuda.threadIdx.x]

@pytest.fixture
def arrays():
    return cuda.to_device(np.ones(8)), cuda.device_array(8)

def test_made_in_a_fixture(gpu_benchmark, arrays):
    gpu_benchmark(double[1, 8], *arrays)

def test_made_in_the_test(gpu_benchmark):
    gpu_benchmark(double[1, 8], cuda.to_device(np.ones(8)), cuda.device_array(8))

def test_another_cause(gpu_benchmark):
    raise RuntimeError("no CUDA-capable device is detected")

def test_not_ours():
    cuda.to_device(np.ones(8))
"""


@pytest.mark.parametrize(
    ("ini", "line"),
    [
        (None, 'gpukern_simulator = "auto" to pytest\'s options in pyproject.toml'),
        ("tox.ini", "gpukern_simulator = auto to pytest's options in tox.ini"),
    ],
)
def test_plain_pytest_without_a_gpu_names_the_cause_and_what_helps_of_no_other_failure(pytester, ini, line):
    pytester.makepyfile(NEEDS_A_GPU)
    if ini:
        pytester.makefile(".ini", tox="[pytest]\n")
    result = pytester.runpytest_subprocess("-p", "no:cacheprovider")
    result.assert_outcomes(failed=3, errors=1)
    said = result.stdout.str()
    assert said.count("\nno GPU: ") == said.count(f"add {line}, or run pytest --gpukern-simulator=auto") == 2
    assert "cudadrv" not in said.partition("test_another_cause")[0]
    result.stdout.fnmatch_lines(
        ["E * RuntimeError: no CUDA-capable device is detected", "E *CudaSupportError: *"]
    )


CUPY_FAILS = """
class CUDARuntimeError(RuntimeError):
    __module__ = "cupy_backends.cuda.api.runtime"

def test_cupy(gpu_benchmark):
    raise CUDARuntimeError("cudaErrorInsufficientDriver: too old")

def test_torch(gpu_benchmark):
    raise AssertionError("Torch not compiled with CUDA enabled")
"""


def test_a_library_without_a_simulator_says_so_where_there_is_no_gpu(pytester):
    pytester.makepyfile(CUPY_FAILS)
    plain = pytester.runpytest_inprocess()
    plain.assert_outcomes(failed=2)
    plain.stdout.fnmatch_lines(["no GPU: *", "Only Numba kernels can be checked without one"])
    assert "E  " not in plain.stdout.str()
    asked = pytester.runpytest_subprocess("--gpukern-simulator=auto", "-rs")
    asked.assert_outcomes(skipped=2)
    asked.stdout.fnmatch_lines(["SKIPPED * no GPU: the simulator runs kernels of Numba and Triton only"])


def test_a_library_that_finds_no_gpu_where_there_is_one_fails_with_its_own_words(gpu, pytester):
    pytester.makepyfile(test_doubling=CUPY_FAILS)
    result = gpu()
    result.assert_outcomes(failed=2)
    result.stdout.fnmatch_lines(["E * cudaErrorInsufficientDriver: too old", "E * Torch not compiled *"])


BARRIERS = """
import numpy as np
import pytest
from numba import cuda, float32, int32

@cuda.jit
def reverse(x, y, waits):
    shared = cuda.shared.array(64, y.dtype)
    i = cuda.threadIdx.x
    shared[i] = x[i]
    if waits:
        cuda.syncthreads()
    y[i] = shared[63 - i]

@cuda.jit
def root(x, y):
    y[cuda.threadIdx.x] = x[cuda.threadIdx.x] ** 0.5

@pytest.mark.gpu_benchmark(outputs="y")
@pytest.mark.parametrize("dtype", ["float32", "int32"])
@pytest.mark.parametrize("waits", [True, False])
def test_reverse(gpu_benchmark, dtype, waits):
    x = np.arange(64, dtype=dtype)
    y = cuda.device_array(64, dtype)
    gpu_benchmark(reverse[1, 64], x, y, waits)
    gpu_benchmark.verify(y, x[::-1])

@pytest.mark.gpu_benchmark(outputs="y")
def test_root(gpu_benchmark):
    x = np.arange(64, dtype="float32") - 32
    y = cuda.device_array(64, "float32")
    gpu_benchmark(root[1, 64], x, y)
    gpu_benchmark.verify(y, np.abs(x) ** 0.5)
"""


def test_where_shared_memory_was_read_before_it_was_written_a_missing_barrier_is_named(pytester):
    pytester.makepyfile(test_barrier=BARRIERS)
    result = pytester.runpytest_subprocess("--gpukern-simulator=auto")
    result.assert_outcomes(passed=2, failed=3)
    told = [part.partition("_ test_")[2] for part in result.stdout.str().split("\n___")[1:]]
    assert {name.split()[0] for name in told if "a barrier is missing in between" in name} == {
        "reverse[False-float32]",
        "reverse[False-int32]",
    }


KERNELS_OF_MLIR = KERNELS.replace(
    "from numba import cuda, vectorize", "from numba_cuda_mlir import cuda"
).split("@vectorize")[0]
ON_MLIR = (
    KERNELS_OF_MLIR
    + of_size(8, 10**9)
    + CASES
    + """
x = np.arange(8, dtype="float32")

@doubling.variant("numba")
def kernel(x, y, stream):
    return lambda: double[1, 32, stream](x, y)

@doubling.variant("numba")
def forgets_the_last(x, y):
    return lambda: double[1, 7](x, y)

@pytest.mark.gpu_benchmark(outputs="y")
@pytest.mark.parametrize("blocks", [1, 0.5])
def test_plain(gpu_benchmark, blocks):
    y = cuda.to_device(np.zeros_like(x))
    gpu_benchmark(double[1, int(8 * blocks)], cuda.to_device(x), y)
    gpu_benchmark.verify(y, 2 * x)
"""
)
REFUSES = """
import os
if os.environ.get("NUMBA_ENABLE_CUDASIM"):
    raise RuntimeError("unset NUMBA_ENABLE_CUDASIM: there is no simulator for this")
"""
NOT_TO_BE_LOADED = "raise AssertionError('the wheel, which needs a GPU')"


@pytest.mark.parametrize("wheel", [None, NOT_TO_BE_LOADED])
def test_a_suite_of_numba_cuda_mlir_is_checked_in_the_simulator_with_and_without_its_wheel(pytester, wheel):
    if wheel is not None:
        (pytester.mkpydir("numba_cuda_mlir") / "__init__.py").write_text(wheel)
    pytester.makepyfile(
        test_it=ON_MLIR,
        test_compiler="from numba_cuda_mlir.extending import lower\n\ndef test_it(): pass\n",
        refuses=REFUSES,
        test_refuses="import refuses\n\ndef test_it(): pass\n",
        test_group="raise ExceptionGroup('parts', [RuntimeError('unset NUMBA_ENABLE_CUDASIM')])\n",
        test_cause="raise KeyError('x') from RuntimeError('unset NUMBA_ENABLE_CUDASIM')\n",
        test_other=REFUSES.replace("unset NUMBA_ENABLE_CUDASIM", "wrong"),
    )
    options = ("--gpukern-simulator=always", "--continue-on-collection-errors")
    result = pytester.runpytest_subprocess(*options, "-rA", "-p", "no:cacheprovider")
    result.assert_outcomes(passed=2, failed=2, skipped=4, errors=1)
    result.stdout.fnmatch_lines_random(
        [
            "PASSED *numba.kernel/n=8]*",
            "*1 still hold poison, the first at [[]7]*",
            "PASSED *test_plain[[]1]*",
            "INCORRECT: y: 4 of 8 elements still hold poison*",
            "SKIPPED * not in the simulator: a part of the compiler (numba_cuda_mlir.extending)",
            "SKIPPED *refuses.py:3 refuses to start while NUMBA_ENABLE_CUDASIM is set (*): have it ask *",
            *(f"SKIPPED *test_{name}.py:1 refuses to start while *" for name in ("group", "cause")),
        ]
    )
