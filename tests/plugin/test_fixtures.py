"""Checks the fixtures: on a GPU that is faked, and without one."""

import csv
import json
import re

import pytest

from pytest_gpukern.baseline.codec import load

from .conftest import IN_A_WORKERS_PROCESS, results_in


@pytest.fixture
def plain(pytester, gpu):
    """Runs a user's plain tests on the fake GPU."""

    def run(tests, *options):
        pytester.makepyfile(test_doubling=f"import numpy as np\nimport pytest\n{tests}")
        return gpu(*options)

    return run


CALLS = """
def nothing():
    pass

def fails():
    raise ZeroDivisionError("out of numbers")

def test_called(gpu_benchmark):
    calls = []
    def launch(a, *, b):
        calls.append((a, b))
        return len(calls)
    assert gpu_benchmark(launch, 1, b=2) == len(calls), "what the last call returned"
    assert len(calls) > 1 and set(calls) == {(1, 2)}

@pytest.mark.parametrize("how", ["__call__", "pedantic"])
def test_raises(gpu_benchmark, how):
    with pytest.raises(ZeroDivisionError, match="out of numbers"):
        getattr(gpu_benchmark, how)(fails)

def test_fresh_arguments_for_every_call_and_a_check_of_the_first_and_one_after_timing(gpu_benchmark):
    checked = []
    def fresh():
        return ([0],), {"by": 1}
    def add(x, by):
        x[0] += by
        return x
    def check(returned, x, by):
        checked.append(x[0])
        assert returned is x
    assert gpu_benchmark.pedantic(add, setup=fresh, check=check) == [1]
    assert len(checked) > 1 and set(checked) == {1}, "an argument that was used twice holds a 2"

def test_arguments_without_setup(gpu_benchmark):
    assert gpu_benchmark.pedantic(lambda a, b: a - b, (3,), {"b": 2}) == 1

def test_wrong_after_timing(gpu_benchmark):
    calls = []
    def check(returned):
        assert len(calls) == 1, "only the first call was right"
    gpu_benchmark.pedantic(lambda: calls.append(1), check=check)

@pytest.mark.parametrize("how", [{}, {"rounds": 2}, {"setup": lambda: ((), {})}])
@pytest.mark.parametrize("answer", [False, "no", True, 1])
def test_answer(gpu_benchmark, how, answer):
    gpu_benchmark.pedantic(lambda: 1, check=lambda returned: answer, **how)

x = np.random.default_rng(0).random(100).astype("float32")

def test_right(gpu_benchmark):
    gpu_benchmark(nothing)
    gpu_benchmark.verify(x, x.astype("float64"), rtol=1e-6)

def test_wrong(gpu_benchmark):
    gpu_benchmark(nothing)
    gpu_benchmark.verify(x, x.astype("float64") * 1.5, rtol=1e-6)

def test_wrong_shape(gpu_benchmark):
    gpu_benchmark.verify(x, np.ones(5))

def test_loose_bounds(gpu_benchmark):
    gpu_benchmark(nothing)
    gpu_benchmark.verify(x, x.astype("float64"), rtol=1e-2)
"""


REFUSED = """
from pytest_gpukern.problems.cases import Case

def takes_two(x, out):
    raise ValueError("theirs")

def test_it(gpu_benchmark):
    out = np.zeros(4)
    def helper():
        LINE  # refused
    helper()
"""
LINES = {
    "[gpu_benchmark(out.fill, n) for n in (0, 1)]": "RuntimeError: *, and test_doubling.py:12 did: split *",
    "gpu_benchmark(out.fill, 1); gpu_benchmark.pedantic(id, (1,))": "RuntimeError: *doubling.py:23 did: *",
    "gpu_benchmark.pedantic(out.fill, (1,), rounds=0)": "ValueError: pedantic(rounds=0): *",
    "gpu_benchmark.verify(out, out)": "ValueError: actual and expected are the same object, *",
    "gpu_benchmark.verify([out], [out[::-1]])": "ValueError: actual and expected share memory, *",
    "gpu_benchmark.verify(np.array(['a']), out)": "TypeError: ndarray of dtype <U1: *",
    "gpu_benchmark.guarded('a')": "TypeError: gpu_benchmark.guarded: str *",
    "gpu_benchmark(takes_two, 1)": "TypeError: takes_two() missing 1 required *",
    "gpu_benchmark(takes_two, 1, 2)": "ValueError: theirs",
    "gpu_benchmark(out.fill(1))": "*gpu_benchmark was given NoneType to call: pass the kernel and its *",
    "gpu_benchmark(Case(None, None, {}, {}))": "*was given Case to call: call gpu_benchmark.run(case)",
    "gpu_benchmark(takes_two, 1, 2, outputs=1)": "*the call takes no outputs; *pytest.mark.gpu_benchmark(*",
    "gpu_benchmark.pedantic(out.fill, (1,), check=lambda: 1)": "TypeError: pedantic(check=*) is called as *",
    "gpu_benchmark.verify(gpu_benchmark(abs, out), out, rtol='1e-6')": "ValueError: rtol='1e-6': must be a *",
}
OF_UNITTEST = """
import unittest

class TestIt(unittest.TestCase):
    @pytest.fixture(autouse=True)
    def uses(self, gpu_benchmark):
        self.used = gpu_benchmark

    def test_it(self):
        self.used.guarded("a")  # of unittest
"""


def test_what_is_refused_is_told_at_the_users_line_and_without_our_frames(plain):
    tests = [REFUSED.replace("LINE", line).replace("_it", f"_{at}") for at, line in enumerate(LINES)]
    shown = plain("".join(tests) + OF_UNITTEST).stdout
    shown.fnmatch_lines_random([f"E  *{told}" for told in LINES.values()] + [">  *# of unittest"])
    ends = [line for line in shown.lines if re.fullmatch(r"test_doubling\.py:\d+: \w+Error", line)]
    assert len(ends) == len(LINES) + 1
    shown.no_fnmatch_line("*pytest_gpukern/*.py:*")
    plain(tests[0], "--full-trace").stdout.fnmatch_lines(["*pytest_gpukern*/measured_test.py:*"])


def test_a_mistake_of_ours_keeps_its_frames(plain, monkeypatch):
    monkeypatch.setattr("pytest_gpukern.check.check_call.checked_launch", None)
    shown = plain(REFUSED.replace("LINE", "gpu_benchmark(takes_two, 1, 2)")).stdout
    shown.fnmatch_lines(["*pytest_gpukern/check/check_call.py:*: TypeError"])


FAILS = """
def wrong(gpu_benchmark):
    gpu_benchmark.verify(np.ones(3), np.zeros(3))

def test_wrong(gpu_benchmark):
    gpu_benchmark(lambda: None)
    wrong(gpu_benchmark)

def test_raises(gpu_benchmark):
    raise ValueError("\\n\\n  said late\\nand more")

def test_says_nothing(gpu_benchmark):
    raise ValueError

def test_check(gpu_benchmark):
    def check(_):
        np.testing.assert_array_equal(1, 2, verbose=False)
    gpu_benchmark.pedantic(lambda: None, check=check)
"""


@pytest.mark.parametrize("options", [(), ("--tb=no",)])
def test_a_failure_is_told_whole_once_with_its_place_and_by_a_line_that_says_something(plain, options):
    shown = plain(FAILS, *options).stdout
    whats = [line.partition("what")[2].strip() for line in shown.lines if line.startswith("  what ")]
    assert set(whats) == {
        "output: wrong values: 3 of 3 elements outside rtol=1e-09, atol=1e-09",
        "check before timing: Arrays are not equal",
        "ValueError: said late",
        "ValueError in test_doubling.py:15",
    }
    assert shown.str().count("first mismatch at [0]: expected 0.0, actual 1.0") == 1
    if not options:
        shown.fnmatch_lines(["INCORRECT: output: *", "  first mismatch at *", "  at test_doubling.py:5"])


LAYOUTS = """
x, out = np.ones((8, 8)), np.ones(8)

@pytest.mark.gpu_benchmark(outputs="out")
@pytest.mark.parametrize("given", [(x.T, out), (x, np.ones(16)[::2]), (x[:1], out), (x[:, None], out)])
def test_it(gpu_benchmark, given):
    def call(x, out):
        out[:] = x[0, 0] if x.ndim == 2 else x[0, 0, 0]
    gpu_benchmark(call, *given)
"""


def test_a_measured_call_notes_which_arrays_are_not_contiguous(plain, pytester):
    plain(LAYOUTS, "--gpukern-report=run.json")
    notes = [[note["text"] for note in of["notes"]] for of in results_in(pytester.path / "run.json").values()]
    told = [text.partition(": ")[0] for texts in notes for text in texts or [""]]
    assert told == ["x is not contiguous, strides (1, 8)", "out is not contiguous, strides (2)", "", ""]


def test_calls_are_measured_checked_and_refused(plain, pytester):
    result = plain(CALLS, "--gpukern-report=run.json")
    result.assert_outcomes(passed=10, failed=12)
    result.stdout.fnmatch_lines_random(["INCORRECT: *wrong values*", "*wrong shape*"])
    found = results_in(pytester.path / "run.json")
    found = {name.removeprefix("test_doubling/test_"): each for name, each in found.items()}
    assert found["called"]["measurements"][0]["summary"]["median_ns"] == pytest.approx(1000)
    assert found["called"]["first_call_ns"] > 0
    assert found["wrong_after_timing"]["correctness"] == found["wrong"]["correctness"] == "INCORRECT"
    late = "check after timing: only the first call was right"
    assert found["wrong_after_timing"]["diagnosis"].startswith(late)
    (note,) = found["right"]["notes"]
    assert (found["right"]["correctness"], note["about"]) == ("PASSED", "unpoisoned")
    answers = {name: each["correctness"] for name, each in found.items() if name.startswith("answer")}
    assert {each for name, each in answers.items() if "[True" in name} == {"PASSED"}
    assert {each for name, each in answers.items() if "[False" in name or "[no" in name} == {"INCORRECT"}
    note, _ = found["loose_bounds"]["notes"]
    assert note["text"].startswith(
        "output: rtol=0.01, atol=0 would pass float16 too: its values are at most "
    )


SWALLOWING = """
one = np.ones(4)

def swallow(call, *args, **kwargs):
    try:
        call(*args, **kwargs)
    except:
        pass

def wrong(returned):
    raise AssertionError("not what it should be")

@pytest.mark.gpu_benchmark(outputs="out")
def test_call(gpu_benchmark):
    swallow(gpu_benchmark, lambda out: None, out=one.copy())

def test_check(gpu_benchmark):
    swallow(gpu_benchmark.pedantic, lambda: 1, check=wrong)

def test_right_in_the_end(gpu_benchmark):
    swallow(gpu_benchmark.verify, one, 2 * one)
    gpu_benchmark.verify(one, one.copy())

def test_expected(gpu_benchmark):
    gpu_benchmark(lambda: None)
    gpu_benchmark.verify(one, 2 * one, expect_failure=True)
    gpu_benchmark.verify(one, one.copy())

def test_right_though_expected_to_be_wrong(gpu_benchmark):
    gpu_benchmark.verify(one, one.copy(), expect_failure=True)

@pytest.mark.xfail(strict=True)
def test_marked(gpu_benchmark):
    swallow(gpu_benchmark.verify, one, 2 * one)
"""


def test_a_failure_that_the_test_swallows_fails_it_at_its_end_unless_it_is_expected(plain, pytester):
    result = plain(SWALLOWING, "--gpukern-report=run.json", "-rf")
    result.assert_outcomes(passed=1, failed=4, xfailed=1)
    went_on = "  the test caught this and went on; use verify(…, expect_failure=True) for"
    shown = ["INCORRECT: out: *still hold poison*", "INCORRECT: check before timing: not what it*"]
    result.stdout.fnmatch_lines(shown)
    assert sum(line.startswith(went_on) for line in result.outlines) == 3
    result.stdout.fnmatch_lines(["output is right, but verify(…, expect_failure=True) expects it to be *"])
    found = results_in(pytester.path / "run.json")["test_doubling/test_expected"]
    assert (found["correctness"], list(found["errors"])) == ("PASSED", ["output"])


MEASURED = """
import unittest
import numpy as np
import pytest

pytestmark = pytest.mark.gpu_benchmark(timer="host")

@pytest.fixture(autouse=True)
def gpu(gpu_benchmark, request):
    gpu_benchmark(lambda: 1)
    if request.instance is not None:
        request.instance.gpu = gpu_benchmark
    return gpu_benchmark

def hide(gpu, end):
    try:
        gpu.verify(np.ones(4), np.zeros(4))
    except BaseException:
        end("x")
"""
ANYWHERE = pytest.mark.parametrize("where", [(), IN_A_WORKERS_PROCESS])
HIDING = """
ENDS = [pytest.skip, pytest.xfail, unittest.TestCase().skipTest, print]

@pytest.mark.parametrize("end", ENDS)
def test_wrong(gpu, end):
    hide(gpu, end)

@pytest.fixture(params=ENDS)
def late(gpu, request):
    yield
    hide(gpu, request.param)

def test_wrong_late(late): pass

class TestUnit(unittest.TestCase):
    def test_wrong(self):
        hide(self.gpu, self.skipTest)

    @unittest.expectedFailure
    def test_expected(self):
        self.gpu.verify(np.ones(4), np.zeros(4))

def test_wrong_exit(gpu):
    hide(gpu, lambda why: pytest.exit(why, returncode=0))
"""


def test_a_run_that_a_test_ends_early_as_if_all_were_well_fails(pytester):
    exits = "import pytest\ndef test_exits(): pytest.exit('done', returncode=0)\n"
    pytester.makepyfile(test_it=f"def test_a(gpu_benchmark): gpu_benchmark(list)\n{exits}def test_b(): pass")
    result = pytester.runpytest_inprocess(
        "--gpu-benchmark", "--gpukern-simulator=never", "--gpukern-timer=host"
    )
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(
        ["*1 of 3 selected tests did not run: test_it.py::test_b; the run ended early*"]
    )


@ANYWHERE
def test_a_wrong_result_fails_its_test_whatever_comes_after_unless_a_mark_expects_it(pytester, where):
    pytester.makepyfile(test_it=MEASURED + HIDING)
    result = pytester.runpytest_inprocess("--gpukern-simulator=never", "--gpukern-report=run.json", *where)
    result.assert_outcomes(passed=4, failed=6, errors=4, xfailed=1)
    assert result.ret == pytest.ExitCode.INTERRUPTED
    found = results_in(pytester.path / "run.json")
    assert [("wrong" in name, of["correctness"]) for name, of in found.items()] == [(True, "INCORRECT")] * 10


SUBTESTS = """
def check(subtest):
    for n in range(3):
        with subtest(n=n):
            assert n != 1

def test_fixture(subtests):
    check(subtests.test)

class TestUnit(unittest.TestCase):
    def test_unit(self):
        check(self.subTest)

def test_right(subtests):
    for end in (pytest.skip, pytest.xfail, print):
        with subtests.test():
            end("x")
"""


@ANYWHERE
def test_a_test_with_a_failed_subtest_has_failed_and_is_not_recorded(pytester, where):
    pytester.makepyfile(test_it=MEASURED + SUBTESTS)
    options = ("--gpu-benchmark", "--gpukern-baseline=create", "--gpukern-report=r.csv", *where)
    result = pytester.runpytest_inprocess("--gpukern-simulator=never", "--gpukern-sessions=1", *options)
    result.stdout.fnmatch_lines(["FAILED: 2 failed tests*"])
    rows = csv.DictReader((pytester.path / "r.csv").read_text().splitlines())
    verdicts = {row["variant"]: row["verdict"] for row in rows}
    assert verdicts == {"test_fixture": "FAILED", "TestUnit::test_unit": "FAILED", "test_right": "NEW"}
    (baseline,) = (pytester.path / "baselines").iterdir()
    assert list(load(baseline).cases) == ["test_it/test_right"]


RUNS_TWICE = """
from _pytest.runner import runtestprotocol

def pytest_runtest_protocol(item, nextitem):  # as flaky does
    runtestprotocol(item, nextitem=nextitem, log=False)
    for report in runtestprotocol(item, nextitem=nextitem, log=False):
        item.ihook.pytest_runtest_logreport(report=report)
    return True
"""
RETRIES = """
import pytest

@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport(item, call):  # as pytest-retry does
    report = yield
    if call.when == "call" and report.failed:
        hook, report.outcome = item.ihook, "retried"
        hook.pytest_runtest_teardown(item=item, nextitem=None)
        hook.pytest_runtest_logreport(report=report)
        item._initrequest()
        hook.pytest_runtest_setup(item=item)
        again = pytest.CallInfo.from_call(lambda: hook.pytest_runtest_call(item=item), "call")
        report.outcome = "failed" if again.excinfo else "passed"
    return report
"""


@pytest.mark.parametrize("plugin", [RUNS_TWICE, RETRIES])
def test_a_rerun_that_passes_notes_that_an_earlier_attempt_was_incorrect(pytester, plain, plugin):
    pytester.makeconftest(plugin)
    result = plain(
        """
attempts = []

@pytest.mark.parametrize("error", [0, 1, 2])
def test_it(gpu_benchmark, error):
    attempts.append(error)
    out = np.ones(4) + (error == 2 or attempts.count(error) == 1) * error
    gpu_benchmark(lambda: None)
    gpu_benchmark.verify(out, np.ones(4))
"""
    )
    result.assert_outcomes(passed=2, failed=1)
    (told,) = [line for line in result.outlines if "earlier attempt" in line]
    assert re.match(
        r"note \S+test_it\[1\]: INCORRECT in an earlier attempt: output: wrong values: 4 of 4", told
    )
    result.stdout.fnmatch_lines(["gpukern: 2 passed, 1 incorrect*"])


UNVERIFIED = """
@pytest.mark.gpu_benchmark(outputs="out")
def test_unverified(gpu_benchmark):
    gpu_benchmark(lambda out: out.fill(12345), out=np.empty(3))

@pytest.mark.gpu_benchmark(outputs="out")
def test_verified(gpu_benchmark):
    out = np.empty(3)
    gpu_benchmark(lambda out: out.fill(2), out=out)
    gpu_benchmark.verify(out, np.full(3, 2.0))

def split(x, lo, hi):
    lo[:] = x - 1
    hi[:] = 7

@pytest.mark.gpu_benchmark(outputs=("lo", "hi"))
def test_verified_in_part(gpu_benchmark):
    x, lo, hi = np.arange(3.0), np.empty(3), np.empty(3)
    gpu_benchmark(split, x, lo, hi)
    gpu_benchmark.verify(lo, np.arange(3.0) - 1)
    gpu_benchmark.verify(x, np.arange(3.0))

@pytest.mark.gpu_benchmark(outputs=("lo", "hi"))
def test_checked(gpu_benchmark):
    arguments = np.arange(3.0), np.empty(3), np.empty(3)
    gpu_benchmark.pedantic(split, arguments, check=lambda returned, x, lo, hi: None)

def test_never_called(gpu_benchmark):
    pass

class TestMarked:
    pytestmark = pytest.mark.gpu_benchmark

    def test_without_fixture(self):
        pass

    def test_skipped(self):
        pytest.skip("for a reason")

    @pytest.mark.xfail(raises=ZeroDivisionError)
    def test_xfailed(self, gpu_benchmark):
        1 / 0

def test_only_verified(gpu_benchmark):
    gpu_benchmark.verify(np.arange(3), np.arange(3))

def test_only_asks_for_the_device(gpu_synchronize):
    pass
"""


@pytest.mark.parametrize(
    "options",
    [["--gpukern-baseline=update", "--gpukern-reason=x"], None],
    ids=["recording", "not measured"],
)
def test_an_unverified_result_is_unchecked_and_fails_where_asked_to(plain, pytester, options):
    def run(*more):
        if options is not None:
            return plain(UNVERIFIED, *options, *more)
        pytester.makepyfile(test_doubling=f"import numpy as np\nimport pytest\n{UNVERIFIED}")
        return pytester.runpytest_inprocess("--gpukern-simulator=never", *more)

    result = run()
    result.assert_outcomes(passed=8, skipped=1, xfailed=1)
    result.stdout.fnmatch_lines(["*test_unverified *unchecked: out*", "*_in_part *unchecked: hi*"])
    result.stdout.fnmatch_lines(["*test_never_called *unchecked*", "*test_without_fixture *unchecked*"])
    result.stdout.fnmatch_lines(["gpukern: 2 passed, 4 unchecked*"])
    strict = run("--gpukern-fail-on=unchecked")
    strict.assert_outcomes(passed=4, failed=4, skipped=1, xfailed=1)
    strict.stdout.fnmatch_lines(
        ["UNCHECKED: out: never compared with a reference: call gpu_benchmark.verify*"]
    )


def test_unchecked_tests_of_pytest_benchmarks_fixture_fail_only_where_they_declare_outputs(plain):
    result = plain(
        """
@pytest.mark.gpu_benchmark
def test_asserts(benchmark):
    assert benchmark(lambda: 2) == 2

@pytest.mark.gpu_benchmark(outputs="out")
def test_declares(benchmark):
    benchmark(lambda out: out.fill(12345), out=np.empty(3))
""",
        "--gpukern-fail-on=unchecked",
        "--gpukern-baseline=off",
    )
    result.assert_outcomes(passed=1, failed=1)
    told = (
        "UNCHECKED: out: never compared with a reference: call gpu_benchmark.verify(out, expected) with the "
        "output or a copy of it, or pass check= to its pedantic; a test of the fixture benchmark takes "
        "gpu_benchmark instead"
    )
    result.stdout.fnmatch_lines([told])


def test_gpu_device_describes_the_device(plain):
    plain(
        """
def test_device(gpu_device, gpu_synchronize, gpu_warmup):
    assert (gpu_device.name, gpu_device.uuid, gpu_device.index) == ("Fake GPU", "GPU-fa4e", 0)
    assert gpu_device.compute_capability == (9, 0) and gpu_device.memory_total_bytes == 2**34
    assert (gpu_device.multiprocessor_count, gpu_device.l2_bytes) == (4, 2**20)
    assert not gpu_device.is_simulated
    gpu_synchronize()
    calls = []
    warm = gpu_warmup(calls.append, 3)
    assert warm.calls == len(calls) and set(calls) == {3} and warm.first_ns > 0
"""
    ).assert_outcomes(passed=1)


def test_without_a_gpu_and_without_the_simulator_a_test_is_skipped_with_the_reason(pytester):
    pytester.makepyfile(
        test_it="""
def test_call(gpu_benchmark): gpu_benchmark(print)
def test_pedantic(gpu_benchmark): gpu_benchmark.pedantic(print)
def test_device(gpu_device): pass
def test_synchronize(gpu_synchronize): pass
def test_warmup(gpu_warmup): pass
"""
    )
    result = pytester.runpytest_inprocess("--gpukern-simulator=never", "-rs")
    result.assert_outcomes(skipped=5)
    result.stdout.fnmatch_lines([f"SKIPPED ?1? test_it.py:{line}: no GPU: *" for line in range(1, 6)])
    result.stdout.fnmatch_lines(
        ["2 skipped: no GPU: *", "*(test_it.py::test_call, test_it.py::test_pedantic)"]
    )


def test_a_test_that_is_run_again_has_one_entry_and_none_where_its_setup_fails_then(pytester, plain):
    pytester.makeconftest(RUNS_TWICE)
    result = plain(
        """
def test_it(gpu_benchmark):
    gpu_benchmark(lambda: None)

@pytest.mark.gpu_benchmark
def test_benchmark(benchmark):
    benchmark(int)

attempts = []

@pytest.fixture
def flaky():
    attempts.append(1)
    assert len(attempts) == 1

def test_flaky(flaky, gpu_benchmark):
    gpu_benchmark(lambda: None)
""",
        "--gpukern-report=run.json",
        "--benchmark-json=out.json",
    )
    result.assert_outcomes(passed=2, errors=1)
    entries = json.loads((pytester.path / "out.json").read_text())["benchmarks"]
    assert [entry["name"] for entry in entries] == ["test_it", "test_benchmark"]
    assert list(results_in(pytester.path / "run.json")) == [
        "test_doubling/test_it",
        "test_doubling/test_benchmark",
    ]
