"""Checks plain tests with `outputs=` and `determinism=` on a fake GPU, measured and not."""

import fnmatch

import pytest
from broken_calls import BROKEN, SOURCE, judged, module

from .conftest import IN_A_WORKERS_PROCESS, results_in

PLAIN = """
import itertools
import numpy as np
import pytest

N = 9
x = np.linspace(1, 2, N)

def double(x, out):
    out[...] = 2 * x

declared = pytest.mark.gpu_benchmark(outputs=("out",))
"""


@pytest.fixture(params=["measured", "checked once"])
def plain(request, pytester, gpu):
    """Runs a user's plain tests on the fake GPU, with and without measuring."""

    def run(tests, *options):
        pytester.makepyfile(test_doubling=PLAIN + tests)
        wants = ("--gpukern-report=run.json", *options)
        return gpu(*wants) if request.param == "measured" else pytester.runpytest_inprocess(*wants)

    return run


def found_in(pytester):
    return {name.partition("/")[2]: found for name, found in results_in(pytester.path / "run.json").items()}


def test_right_calls_pass_and_verify_compares_what_the_last_of_them_left(plain, pytester):
    ran = plain(
        """
@declared
def test_by_keyword_and_a_copy(gpu_benchmark):
    out = np.empty(N)
    gpu_benchmark(double, x, out=out)
    gpu_benchmark.verify(out.copy(), 2 * x)

def test_returned(gpu_benchmark):
    gpu_benchmark.verify(gpu_benchmark(lambda x: 2 * x, x), 2 * x)

@declared
def test_pedantic(gpu_benchmark):
    def check(returned, x, out):
        np.testing.assert_array_equal(out, 2 * x)
    gpu_benchmark.pedantic(double, setup=lambda: (x.copy(), np.zeros(N)), check=check)

def test_in_place_without_outputs(gpu_benchmark):
    def check(returned, y):
        np.testing.assert_array_equal(y, x + 1)
    gpu_benchmark.pedantic(lambda y: y.__iadd__(1), setup=lambda: (x.copy(),), check=check)

@pytest.mark.gpu_benchmark(outputs="0[1]", written={"0[1]": np.s_[1:-1]})
def test_in_part(gpu_benchmark):
    out = np.full(N, 7.0)
    gpu_benchmark(lambda arrays: double(arrays[0][1:-1], arrays[1][1:-1]), (x, out))
    gpu_benchmark.verify(out, np.concatenate([[7], 2 * x[1:-1], [7]]))

def test_scalar(gpu_benchmark):
    gpu_benchmark.verify(gpu_benchmark(np.sum, x), x.sum())
"""
    )
    ran.assert_outcomes(passed=6)
    ran.stdout.no_fnmatch_line("*never poisoned*")
    found = found_in(pytester)
    assert {result["correctness"] for result in found.values()} == {"PASSED"}
    determinism = {
        name: error["determinism"] for name, result in found.items() for error in result["errors"].values()
    }
    bitwise = ("test_by_keyword_and_a_copy", "test_returned", "test_in_part", "test_scalar")
    assert determinism == dict.fromkeys(bitwise, "bitwise")


UNDECLARED = """
def into(gpu_benchmark):
    out = np.empty(N)
    gpu_benchmark(double, x, out)
    return out

@pytest.mark.parametrize("last", [1, 2])
def test_into(gpu_benchmark, last):
    gpu_benchmark.verify(into(gpu_benchmark), 2 * x)

def test_only_wrong(gpu_benchmark):
    gpu_benchmark.verify(into(gpu_benchmark), x, expect_failure=True)

@declared
def test_one_is_wrong(gpu_benchmark):
    out = np.empty(N)
    gpu_benchmark(double, x, out=out)
    gpu_benchmark.verify(out, x, expect_failure=True)
"""


@pytest.mark.parametrize("workers", [(), ("-n2",)])
def test_outputs_that_nobody_poisoned_are_one_note_and_an_expected_failure_checks_nothing(workers, pytester):
    pytester.makepyfile(test_doubling=PLAIN + UNDECLARED)
    options = ("--gpukern-report=run.json", "--gpukern-timer=host", "--gpukern-simulator=never")
    ran = pytester.runpytest_inprocess(*options, *workers)
    ran.assert_outcomes(passed=4)
    (said,) = [line for line in ran.outlines if "never poisoned" in line]
    assert "old memory may pass: test_doubling/test_into[1], test_doubling/" in said
    found = {name: (of["correctness"], of["unchecked"]) for name, of in found_in(pytester).items()}
    assert found == {
        "test_into[1]": ("PASSED", []),
        "test_into[2]": ("PASSED", []),
        "test_only_wrong": ("UNCHECKED", []),
        "test_one_is_wrong": ("UNCHECKED", ["out"]),
    }


def test_an_output_that_the_test_changes_before_it_verifies_it_is_unchecked(plain, pytester):
    plain(
        """
@pytest.mark.parametrize("how", ["in it", "view", "copy behind"])
@declared
def test_changed(gpu_benchmark, how):
    out = np.empty(N)
    gpu_benchmark(lambda x, out: out.fill(3), x, out)
    np.multiply(x, 2, out=out)
    actual = {"in it": out, "view": out[:], "copy behind": out.copy()}[how]
    gpu_benchmark.verify(actual, 2 * x)

@pytest.mark.parametrize("how", ["copy", "in it"])
@declared
def test_right(gpu_benchmark, how):
    out = np.empty(N)
    gpu_benchmark(double, x, out)
    gpu_benchmark.verify(out.copy() if how == "copy" else out, 2 * x)
    before = out.copy()
    out /= 2
    if how == "copy":
        gpu_benchmark.verify(before, 2 * x)
    else:
        gpu_benchmark.verify(out, x)

def test_returned(gpu_benchmark):
    out = gpu_benchmark(lambda x: 0 * x, x)
    out[:] = x
    gpu_benchmark.verify(out, x)
"""
    )
    found = found_in(pytester)
    correctness = {name: of["correctness"] for name, of in found.items()}
    assert correctness == {
        "test_changed[in it]": "UNCHECKED",
        "test_changed[view]": "UNCHECKED",
        "test_changed[copy behind]": "UNCHECKED",
        "test_right[copy]": "PASSED",
        "test_right[in it]": "PASSED",
        "test_returned": "UNCHECKED",
    }
    changed = ["test_changed[in it]", "test_changed[view]", "test_returned"]
    assert all("was changed after the last call" in str(found[name]["notes"]) for name in changed)
    assert "was changed" not in str(found["test_right[copy]"]["notes"])


SURE = [row for row in BROKEN if row.fault]
"""A slow call does not meet the contents that show the others, and a loaded machine is slow."""


def test_right_calls_pass_and_broken_ones_are_incorrect_in_the_words_of_their_fault(plain, pytester, request):
    of_numpy = "def of_numpy(array): return array"
    plain(module("on_host", 9, ["of_numpy"], of_numpy))
    results, timed = results_in(pytester.path / "run.json").values(), "[measured]" in request.node.name
    judged(results, 9, ["of_numpy"], timed=timed, rows=SURE)


def test_the_simulator_says_the_same_of_kernels(pytester):
    pytest.importorskip("numba_cuda")
    of_numba = "from numba import cuda\ndef of_numba(array): return cuda.to_device(array)"
    pytester.makepyfile(test_it=module("on_device", 9, ["of_numba"], of_numba), broken_calls=SOURCE)
    pytester.runpytest_subprocess("--gpukern-simulator=always", "--gpukern-report=run.json")
    judged(results_in(pytester.path / "run.json").values(), 9, ["of_numba"], timed=False, rows=SURE)


OTHERWISE = """
import threading

def around(array):
    start = array.__array_interface__["data"][0] - array.itemsize
    memory = dict(data=(start, False), shape=(array.size + 2,), typestr=array.dtype.str, version=3)
    return np.asarray(type("Memory", (), {"__array_interface__": memory})())

def one_too_many(x, out):
    out[...] = 2 * x
    around(out)[-1] = 1

def until(last, then):
    calls = itertools.count(1)
    def call(x, out):
        (double if next(calls) <= last else then)(x, out)
    return call

def add(x, out):
    out += x

@declared
def test_integers(gpu_benchmark):
    out = np.zeros(9, "int64")
    gpu_benchmark(add, np.arange(1, 10), out=out)
    gpu_benchmark.verify(out, np.arange(1, 10))

@declared
def test_fresh(gpu_benchmark):
    gpu_benchmark.pedantic(until(5, lambda x, out: None), setup=lambda: (x, np.zeros(N)))

def test_returned(gpu_benchmark):
    calls = itertools.count(1)
    returned = gpu_benchmark(lambda x: 2 * x if next(calls) < 9 else 3 * x, x)
    gpu_benchmark.verify(returned, 2 * x)

@declared
def test_drawn(gpu_benchmark):
    def draw(x, out, rng=np.random.default_rng(0)):
        rng.random(out=out)
    gpu_benchmark.pedantic(draw, (x, np.empty(N)), check=lambda returned, x, out: out.max() < 1)

@pytest.mark.parametrize("number", [float, np.int64, bool])
def test_number(gpu_benchmark, number):
    calls = itertools.count(1)
    returned = gpu_benchmark(lambda x: {"sum": number(x.sum() if next(calls) < 3 else 0)}, x)
    gpu_benchmark.verify(returned["sum"], number(x.sum()))

@declared
def test_guarded(gpu_benchmark):
    gpu_benchmark(one_too_many, x, out=gpu_benchmark.guarded_like(x, "out"))

def test_guarded_undeclared(gpu_benchmark):
    gpu_benchmark.pedantic(one_too_many, (x, gpu_benchmark.guarded_like(x, name="out")))

def test_guarded_later(gpu_benchmark):
    gpu_benchmark(until(19, one_too_many), x, gpu_benchmark.guarded_like(x, "out"))

def test_guarded_by_the_test(gpu_benchmark):
    out = gpu_benchmark.guarded(np.empty(N), "out")
    gpu_benchmark(double, x, out)
    one_too_many(x, out)

@declared
def test_guarded_right(gpu_benchmark):
    given, out = gpu_benchmark.guarded(x), gpu_benchmark.guarded_like(x, "out")
    gpu_benchmark(double, given, out=out)
    gpu_benchmark.verify(out, 2 * x)

@declared
def test_thread(gpu_benchmark):
    def call(x, out):
        double(x, out)
        threading.Timer(0.02, double, (-x, out)).start()
    gpu_benchmark(call, x, out=np.empty(N))
"""
BEYOND = (
    "out: out of bounds\n  8 bytes written after the end of out, the nearest 1 element away: "
    "flat index 9 of 9\n  seen "
)
DIAGNOSES = {
    "integers": "out: wrong values: *  the output held a pattern before the launch: *, zero it first, or *",
    "guarded": f"{BEYOND}in the first call",
    "guarded_undeclared": f"{BEYOND}in the first call",
    "guarded_by_the_test": f"{BEYOND}at the end of the test",
    "number[float]": "output: wrong values: *",
    "number[int64]": "output: wrong values: *",
    "number[bool]": "output: wrong values: *",
    "thread": "*started by the call * still running: *Thread-*\nout changed after the call had *",
}
ONCE_TIMED = {
    "fresh": "out: 9 of 9 elements still hold poison, *, in our untimed call after *",
    "returned": "output: wrong values: *",
    "guarded_later": f"{BEYOND}in a timed call",
}


def test_other_calls_are_incorrect_too_also_those_that_are_wrong_only_once_they_are_timed(
    plain, pytester, request
):
    result = plain(OTHERWISE)
    found = {name: of["diagnosis"] for name, of in found_in(pytester).items() if of["diagnosis"]}
    expected = DIAGNOSES | (ONCE_TIMED if "[measured]" in request.node.name else {})
    assert found.keys() == {f"test_{name}" for name in expected}
    for name, words in expected.items():
        told = found[f"test_{name}"]
        assert fnmatch.fnmatchcase(told, words)
        assert f"\nINCORRECT: {told}\n" in result.stdout.str()
    result.stdout.no_fnmatch_line("During handling*")


def test_slips_in_a_call_are_named_with_the_remedy(plain, pytester):
    result = plain(
        """
@declared
def test_never_called(gpu_benchmark):
    pass

def test_gets_it_by_name(request):
    request.getfixturevalue("gpu_benchmark")

@pytest.mark.gpu_benchmark(outputs="a")
def test_no_array(gpu_benchmark):
    gpu_benchmark(lambda x, out, *, a: double(a * x, out), x, np.empty(N), a=2.0)

@pytest.mark.gpu_benchmark(outputs="result")
def test_ufunc(gpu_benchmark):
    gpu_benchmark(np.add, x, x)

def test_verified_too_early(gpu_benchmark):
    gpu_benchmark.verify(np.full(N, 1e33), x)

@pytest.mark.parametrize("takes_it", [lambda x, *, outputs: 2 * x, lambda x, **options: 2 * x])
def test_a_keyword_of_that_name(gpu_benchmark, takes_it):
    gpu_benchmark.verify(gpu_benchmark(takes_it, x, outputs=1), 2 * x)
""",
        "-W",
        "default",
    )
    result.assert_outcomes(passed=4, failed=3)
    result.stdout.fnmatch_lines_random(
        [
            "test_doubling.py::test_no_array: gpu_benchmark(outputs=…): a is float 2.0, not*",
            "*(outputs='result'): the call has no such argument; it has *: give one, *, such as outputs='x2'",
            "  nothing was called before this verify; call gpu_benchmark(kernel, …) first",
        ]
    )
    result.stdout.no_fnmatch_line("*call_subject.py*")
    result.stdout.no_fnmatch_line("*check_call.py*")
    notes = {name: found["notes"][-1]["text"] for name, found in found_in(pytester).items() if found["notes"]}
    assert notes["test_never_called"].startswith("the test made no call by ")


RECORDS = """
import numpy as np
import pytest
record = np.dtype([("pos", "f4", (3,)), ("inner", [("mass", "f8")])], align=True)
dtypes = pytest.mark.parametrize("dtype", [record, "M8[s]", "U3", "V7", "O"], ids=range(5))
updates = pytest.mark.gpu_benchmark(timer="host", inout="dst")
def copy(src, dst): dst[...] = src
@pytest.mark.gpu_benchmark(timer="host", outputs="dst")
@dtypes
def test_output(gpu_benchmark, dtype): gpu_benchmark(copy, *np.zeros((2, 4), dtype))
@updates
@dtypes
def test_inout(gpu_benchmark, dtype): gpu_benchmark(copy, *np.zeros((2, 4), dtype))
@updates
@pytest.mark.parametrize("wrong", [0, 1])
@pytest.mark.parametrize("dtype", [record, "M8[s]"], ids=range(2))
def test_in_parts(gpu_benchmark, dtype, wrong):
    def part(array): return array.view("int64") if dtype == "M8[s]" else array["inner"]["mass"]
    src, dst = np.zeros((2, 4), dtype)
    part(src)[:] = 3
    gpu_benchmark(copy, src, dst)
    gpu_benchmark.verify(part(dst), part(src) + wrong)
"""


def test_what_holds_no_numbers_is_refused_on_one_line_which_names_a_way_that_works(pytester):
    pytester.makepyfile(test_it=RECORDS)
    result = pytester.runpytest("--gpukern-simulator=never")
    result.assert_outcomes(passed=4 + 2, failed=5 + 1 + 2)
    inout = "test_it.py*outputs=…): dst is ndarray of dtype {}, which *: declare *inout=, and verify {}"
    record = inout.format("[{]*'mass'*}", "its fields one by one, such as dst[[]'pos']")
    times = inout.format("datetime64[[]s]", "dst.view('int64')")
    objects = "test_it.py*inout=…): dst is ndarray of dtype object, not an array of numbers: *"
    result.stdout.fnmatch_lines_random([record, times, objects, *["INCORRECT: * 4 of 4 elements *"] * 2])


PROPERTIES = """
import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings, strategies
few = settings(max_examples=9, deadline=None, database=None, suppress_health_check=list(HealthCheck))
pytestmark = pytest.mark.gpu_benchmark(timer="host")
def double(x, last): return np.where(np.arange(x.size) < last, 2 * x, 0)
@pytest.mark.parametrize("called", [0, 1])
@pytest.mark.parametrize("last", [40, 32])
@few
@example(n=33)
@given(n=strategies.integers(1, 32))
def test_all(gpu_benchmark, called, last, n):
    x = np.arange(1.0, n + 1)
    gpu_benchmark.verify(gpu_benchmark(double, x, last) if called else double(x, last), 2 * x)
@few
@given(n=strategies.integers(1, 32))
def test_twice(gpu_benchmark, n): gpu_benchmark(gpu_benchmark, abs, n)
"""


@pytest.mark.parametrize("where", [(), IN_A_WORKERS_PROCESS])
def test_each_example_of_hypothesis_is_checked_and_a_failing_one_is_told(pytester, monkeypatch, where):
    monkeypatch.delenv("PYTEST_ADDOPTS")  # which leaves Hypothesis out
    pytester.makepyfile(test_it=PROPERTIES)
    options = ("--gpukern-simulator=never", "--gpukern-report=run.json", *where)
    result = pytester.runpytest_subprocess(*options)
    result.assert_outcomes(passed=2, failed=3)
    result.stdout.fnmatch_lines_random(["INCORRECT: output: wrong values: 1 of 33 *", "    n=33,*"] * 2)
    assert "n=33" in results_in(pytester.path / "run.json")["test_it/test_all[32-1]"]["diagnosis"]
    if not where:
        measured = pytester.runpytest_subprocess(*options, "--gpu-benchmark", "-kall and 40-1")
        measured.stdout.fnmatch_lines(["E *Hypothesis * example: omit --gpu-benchmark, or measure without *"])


def test_arrays_are_let_go_of_once_the_test_has_ended(plain):
    plain(
        """
import gc
import weakref

kept = []

@declared
def test_first(gpu_benchmark):
    out = np.empty(N)
    kept.append(weakref.ref(out))
    kept.append(weakref.ref(gpu_benchmark.guarded(x)))
    kept.append(weakref.ref(gpu_benchmark(lambda x, out: double(x, out) or 2 * x, x, out=out)))

def test_second(gpu_benchmark):
    gc.collect()
    assert [each() for each in kept] == [None, None, None]
"""
    ).assert_outcomes(passed=2)


def test_a_thread_that_leaves_what_the_call_has_written_alone_is_a_note(plain, pytester):
    ran = plain(
        """
import threading
stop = threading.Event()

def rearmed():
    if not stop.is_set():
        threading.Timer(0.002, rearmed).start()

@pytest.fixture(scope="module", autouse=True)
def _stopped():
    yield
    stop.set()

@declared
def test_leaves_its_heartbeat(gpu_benchmark):
    def call(x, out):
        double(x, out)
        if not any(thread.name == "heartbeat" for thread in threading.enumerate()):
            threading.Thread(target=stop.wait, name="heartbeat").start()
    out = np.empty(N)
    gpu_benchmark(call, x, out=out)
    gpu_benchmark.verify(out, 2 * x)

@declared
def test_beside_a_timer_that_is_armed_again(gpu_benchmark):
    rearmed()
    out = np.empty(N)
    gpu_benchmark(double, x, out=out)
    gpu_benchmark.verify(out, 2 * x)

"""
    )
    ran.assert_outcomes(passed=2)
    found = found_in(pytester)
    (note,) = found["test_leaves_its_heartbeat"]["notes"]
    assert note["text"] == "a thread started by the call is still running: heartbeat"
    assert not any(each["invalid"] for result in found.values() for each in result["measurements"])
