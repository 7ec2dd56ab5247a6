"""A suite written for pytest-benchmark: what is marked is measured on the GPU, and the rest is left alone."""

import json
import re
import sys

import pytest

from pytest_gpukern.baseline.codec import load

from . import fake_gpu
from .conftest import HOST_PROBLEM, IN_A_WORKERS_PROCESS, results_in

SUITE = """
import numpy as np
import pytest

def launch(a, b=1):
    return np.add(a, b)
launch.takes_ns = 2000.0

@pytest.mark.gpu_benchmark(bytes=100, cache="hot", group="marked")
def test_marked(benchmark):
    benchmark.group = "the fixture's"
    assert benchmark(launch, np.ones(3), b=2).tolist() == [3, 3, 3]

@pytest.fixture
def watched(benchmark):
    yield benchmark
    benchmark.extra_info["seen"] = "afterwards"

@pytest.mark.benchmark(group="axpy")
@pytest.mark.gpu_benchmark
@pytest.mark.parametrize(("n", "dtype"), [(n, np.dtype("float32")) for n in (3, 4)], ids=["3", "4"])
def test_grouped(watched, n, dtype):
    watched.extra_info["bytes"] = 8 * n
    assert watched.pedantic(launch, (np.ones(n, dtype),), {"b": 3}, rounds=20).sum() == 4 * n
    watched.extra_info.update(n=np.int64(3), shape=(1, 2), device=object, share=np.float32(0.5))

class TestOverridden:
    @pytest.fixture
    def benchmark(self, benchmark):
        benchmark.group = "overridden"
        return benchmark

    @pytest.mark.gpu_benchmark
    def test_by_name(self, request):
        assert request.getfixturevalue("benchmark")(launch, 1) == 2

def test_numpy(benchmark):
    assert "_raw" not in vars(benchmark) and "pedantic" not in vars(benchmark)
    assert benchmark(np.add, np.ones(3), 1).tolist() == [2, 2, 2]

def test_no_benchmark():
    pass
"""
"""Marked tests beside one of NumPy that nobody marked."""

CONFTEST = """
import pytest

@pytest.hookimpl(optionalhook=True)
def pytest_benchmark_generate_machine_info():
    return {"node": "made up"}  # the real one takes a second

@pytest.hookimpl(optionalhook=True)
def pytest_benchmark_generate_commit_info():
    return {"id": None}
"""

MARKED = """
import pytest
@pytest.mark.gpu_benchmark
def test_it(benchmark):
"""

NO_COMPLAINTS = ("-W", "ignore::pytest_benchmark.logger.PytestBenchmarkWarning")
"""Of pytest-benchmark's, such as that there is nothing to save."""

FAST = ("--benchmark-max-time=0.001", "--benchmark-min-rounds=2")
"""For what pytest-benchmark measures itself."""


@pytest.fixture(autouse=True)
def _of_a_made_up_machine(pytester):
    pytester.makeconftest(CONFTEST)


@pytest.fixture
def suite(pytester, monkeypatch):
    """Runs a suite on the fake GPU, which is a worker's in a run with one."""
    fake_gpu.install(monkeypatch)

    def run(tests, *options, measuring=("--gpu-benchmark",)):
        pytester.makepyfile(test_it=tests)
        fast = () if "no:benchmark" in options else FAST
        options = ("-p", "no:cacheprovider", "-W", "default", *fast, *measuring, *options)
        if "-n1" in options:
            return pytester.runpytest_subprocess("-p", "fake_gpu", *options)
        return pytester.runpytest_inprocess(*options)

    return run


def passes(suite, test, *options, **kwargs):
    """Runs one marked test of this body."""
    body = test.strip().replace("\n", "\n    ")
    result = suite(f"import numpy as np\n{MARKED}    {body}", *options, **kwargs)
    result.assert_outcomes(passed=1)
    return result


def benchmarks_of(pytester, name="out.json"):
    """The entries of pytest-benchmark's JSON by full name, each of which is there once."""
    found = json.loads((pytester.path / name).read_text())["benchmarks"]
    by_name = {each["fullname"]: each for each in found}
    assert len(by_name) == len(found), "no benchmark is there twice"
    return by_name


def measurement_of(pytester, name="test_it", path="run.json"):
    (measurement,) = results_in(pytester.path / path)[f"test_it/{name}"]["measurements"]
    return measurement


# what is measured by whom


@pytest.mark.parametrize("workers", ["-n0", "-n1"])
def test_marked_tests_are_measured_on_the_gpu_and_listed_by_pytest_benchmark(suite, pytester, workers):
    result = suite(SUITE, workers, "--benchmark-json=out.json", "--gpukern-report=run.json")
    result.assert_outcomes(passed=6)
    found = {name.partition("::")[2]: entry for name, entry in benchmarks_of(pytester).items()}
    marked = ("test_marked", "test_grouped[3]", "test_grouped[4]", "TestOverridden::test_by_name")
    by_itself = ("test_numpy",) if workers == "-n0" else ()  # under xdist it disables itself
    assert set(found) == {*marked, *by_itself}
    for name in marked:
        assert found[name]["stats"]["median"] == pytest.approx(2e-6)
        assert found[name]["extra_info"]["gpukern"]["device"] == "Fake GPU"
    for name in by_itself:
        assert "gpukern" not in found[name]["extra_info"]
    recorded = results_in(pytester.path / "run.json")
    assert set(recorded) == {f"test_it/{name.replace('::', '.')}" for name in marked}
    names = {name.rpartition(":")[2] for name in (*marked, "test_numpy")}
    listed = [line.partition(" ")[0] for line in result.outlines if line.partition(" ")[0] in names]
    assert sorted(listed) == sorted(entry["name"] for entry in found.values()), "ours begins with spaces"
    # names, groups, parameters and extra_info stay the suite's own, as JSON or text
    assert found["TestOverridden::test_by_name"]["group"] == "overridden"
    marked, grouped = found["test_marked"], found["test_grouped[3]"]
    assert (marked["group"], marked["param"], marked["params"]) == ("marked", None, None)
    assert (grouped["name"], grouped["group"]) == ("test_grouped[3]", "axpy")
    assert (grouped["param"], grouped["params"]) == ("3", {"n": 3, "dtype": "float32"})
    del grouped["extra_info"]["gpukern"]
    assert grouped["extra_info"] == {
        "bytes": 24,
        "n": 3,
        "shape": [1, 2],
        "device": "<class 'object'>",
        "share": 0.5,
        "seen": "afterwards",
    }
    # and the marker's arguments hold as for our own fixture
    measurement = measurement_of(pytester, "test_marked")
    assert (measurement["traffic_bytes"], measurement["cache"]) == (100, "hot")
    assert measurement_of(pytester, "test_grouped[3]")["cache"] == "cold"


def test_without_measuring_pytest_benchmark_is_alone(suite, pytester):
    test = """
assert "_raw" not in vars(benchmark)
benchmark(int)
assert benchmark.stats["rounds"]
"""
    result = passes(suite, test, "--benchmark-json=out.json", measuring=())
    result.stdout.no_fnmatch_line("*gpukern*: *")
    (found,) = benchmarks_of(pytester).values()
    assert found["extra_info"] == {}
    passes(suite, test, "-ogpukern_all=true", measuring=())


def test_a_test_with_both_fixtures_has_both_as_they_are(suite, pytester):
    test = """
import pytest
@pytest.mark.gpu_benchmark
def test_it(benchmark, gpu_benchmark):
    assert "_raw" not in vars(benchmark)
    benchmark(int)
    gpu_benchmark(float)
"""
    result = suite(test, "--gpukern-report=run.json")
    result.assert_outcomes(passed=1, warnings=1)
    result.stdout.fnmatch_lines(["*not measured on the GPU: its `benchmark` is timed by pytest-benchmark*"])
    assert measurement_of(pytester)["summary"]["median_ns"] == pytest.approx(1000)


# what the test sees of its fixture


SEEN = """
import numpy as np
import pytest
pytestmark = pytest.mark.gpu_benchmark

def test_stats(benchmark):
    assert benchmark.stats is None and benchmark.enabled and not benchmark.disabled
    benchmark(int)
    assert benchmark.stats["mean"] == benchmark.stats.stats.mean == pytest.approx(1e-6, rel=1e-4)
    assert benchmark.stats.get("median") == pytest.approx(1e-6)
    assert benchmark.stats.stats.rounds == len(benchmark.stats.stats.data) >= 10
    assert benchmark.stats.name == "test_stats" and benchmark.stats.iterations == 1

def test_returns_what_a_call_after_measuring_returned(benchmark):
    calls = []
    def launch():
        calls.append(1)
        return len(calls)
    assert benchmark(launch) == len(calls) > 1

def test_raises(benchmark):
    with pytest.raises(ZeroDivisionError):
        benchmark(lambda: 1 / 0)
    assert benchmark.has_error and benchmark.stats is None

@pytest.mark.parametrize("use", ["__call__", "pedantic"])
def test_disables_its_fixture(benchmark, use):
    calls = []
    benchmark.disabled = True
    getattr(benchmark, use)(calls.append, (1,))
    assert len(calls) == 1

def test_setup_call_and_teardown_take_turns(benchmark):
    log = []
    def setup():
        log.append("setup")
        return ([len(log)],), {"by": 1}
    def launch(x, by):
        log.append(x)
        x[0] += by
        return x
    def teardown(x, by):
        assert x is log[-1] and by == 1
        log.append("teardown")
    returned = benchmark.pedantic(launch, setup=setup, teardown=teardown, rounds=5, warmup_rounds=2)
    assert returned is log[-2], "of the last call"
    assert (log[::3], len(log[1::3]), log[2::3]) == (["setup"] * 7, 7, ["teardown"] * 7)
    assert benchmark.stats["rounds"] == 5

def test_first_round(benchmark):
    benchmark.pedantic(int, rounds=4)
    assert benchmark.stats["rounds"] == 3

def test_only_round(benchmark):
    assert benchmark.pedantic(int, rounds=1) == 0

def test_iterations(benchmark):
    benchmark.pedantic(int, rounds=6, iterations=4, warmup_rounds=1)
    assert benchmark.stats["rounds"] == 6 and benchmark.stats.iterations == 4
    assert 0.24e-6 < benchmark.stats["median"] < 0.26e-6, "a sample takes 1 µs"

def test_refused_as_ever(benchmark):
    with pytest.raises(ValueError, match="Must have positive int for `rounds`"):
        benchmark.pedantic(print, rounds=0)

def test_second_use(benchmark):
    benchmark(int)
    benchmark.pedantic(int)

@pytest.mark.gpu_benchmark(outputs=1)
def test_last_round_writes_nothing(benchmark):
    made = []
    def launch(made, out):
        made.append(1)
        if len(made) == 1:
            out[:] = 7
    benchmark.pedantic(launch, (made, np.zeros(3)), rounds=3)

def leaves_one(x, out):
    out[1:] = x[1:]

@pytest.mark.gpu_benchmark(outputs="out")
def test_leaves_one_of_fresh_arguments(benchmark):
    benchmark.pedantic(leaves_one, setup=lambda: ((np.ones(9), np.ones(9)), {}), rounds=3)
"""
NO_ENTRY = ("raises", "disables", "refused_as_ever", "second_use", "last_round_writes_nothing", "leaves_one")


def test_a_test_sees_of_its_fixture_what_pytest_benchmark_offers(suite, pytester):
    result = suite(SEEN, "--benchmark-json=out.json", "--gpukern-report=run.json", *NO_COMPLAINTS)
    result.assert_outcomes(passed=10, failed=3)
    result.stdout.fnmatch_lines_random(
        [
            "*test_first_round: 3 of 4 rounds are timed: the first call compiles and*",
            "*not measured on the GPU: the first call compiles *; it is left to pytest-benchmark",
            "E *FixtureAlreadyUsed: *",
            "*INCORRECT: out: 3 of 3 elements still hold poison*, in the last round*",
            "FAILED *test_leaves_one_of_* - *INCORRECT: out: 1 of 9 elements *, in the last round",
        ]
    )
    found = benchmarks_of(pytester)
    assert not [name for name in found if name.partition("::test_")[2].startswith(NO_ENTRY)]
    assert len(found) == 6
    assert measurement_of(pytester, "test_iterations")["cache"] == "hot"


# pedantic


AS_OFTEN = """
import numpy as np
import pytest

MARKED = pytest.param("marked", marks=pytest.mark.gpu_benchmark(outputs=1))

@pytest.mark.parametrize("_", ["unmarked", MARKED])
@pytest.mark.parametrize(
    ("given", "calls"), [({"rounds": 4, "iterations": 3}, 13), ({"warmup_rounds": 2}, 3), ({}, 1)]
)
def test_it(benchmark, _, given, calls):
    made, out = [], np.zeros(1)
    def launch(made, out):
        made.append(1)
        out[:] = 7
        return out
    assert benchmark.pedantic(launch, (made, out), **given) is out
    assert len(made) == calls and benchmark.stats.stats.rounds >= 1
"""


def test_a_pedantic_target_is_called_as_often_as_without_us(with_cupti):
    with_cupti(AS_OFTEN, "--gpukern-all", "-W", "ignore").assert_outcomes(passed=6)


# what pytest-benchmark's options mean


def test_benchmark_disable_runs_once_and_the_report_says_why(suite):
    test = """
calls = []
assert benchmark.disabled
benchmark(calls.append, 1)
assert calls == [1] and benchmark.stats is None
"""
    result = passes(suite, test, "--benchmark-disable", "-W", "error::UserWarning")
    result.stdout.fnmatch_lines(["*not measured on the GPU: --benchmark-disable runs it once; *"])
    passes(suite, "benchmark(int)\nassert benchmark.stats", "--benchmark-disable", "--benchmark-enable")


def test_a_time_that_pytest_benchmark_took_itself_is_not_compared_with_the_gpus(suite):
    suite(SUITE, "-k", "marked", "--benchmark-save=host", measuring=())
    result = suite(SUITE, "-k", "marked", "--benchmark-compare", *NO_COMPLAINTS)
    assert "test_marked (0001_host)" not in result.stdout.str()
    result.stderr.fnmatch_lines(["gpukern: test_marked: not compared: gpukern_schema was None, is 1"])


def test_what_has_no_meaning_on_the_gpu_is_named(suite):
    test = """
import pytest
@pytest.mark.benchmark(min_rounds=50, warmup=True, group="mine")
@pytest.mark.gpu_benchmark
def test_it(benchmark):
    benchmark(int)
"""
    result = suite(test, "--benchmark-cprofile=tottime")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(
        [
            "*: pytest.mark.benchmark(min_rounds, warmup) has no effect: *",
            "*: --benchmark-cprofile: tests measured on the GPU are not profiled",
        ]
    )


# with CUPTI


@pytest.fixture
def with_cupti(suite, monkeypatch):
    """The same, with CUPTI, which sees that a launch marked `on_host` puts nothing on the GPU."""
    fake_gpu.install(monkeypatch, cupti=True)
    from pytest_gpukern.timers.timer import NothingLaunched

    module = sys.modules["pytest_gpukern.timers.cupti.timer"]

    class SeeingTimer(module.CuptiTimer):
        def collect(self, iterations, *, cold):
            batch = super().collect(iterations, cold=cold)
            if fake_gpu.said_by(iterations[0].run, "on_host", False):
                raise NothingLaunched("the call puts nothing on the device")
            return batch

        def suspicion(self, iteration):
            iteration = iteration.again()
            self.collect([iteration], cold=False)
            return super().suspicion(iteration)

    monkeypatch.setattr(module, "CuptiTimer", SeeingTimer)
    return suite


ON_THE_HOST = """
import pytest
marked = pytest.mark.gpu_benchmark
def launch(log, *args):
    log.append("call")
    return 42
launch.on_host = True
"""


def test_a_marked_call_that_launches_nothing_is_invalid_unless_the_hosts_clock_times_it(with_cupti, pytester):
    test = """
@marked
def test_theirs(benchmark): benchmark.pedantic(launch, ([],), rounds=3)

@marked
def test_ours(gpu_benchmark): gpu_benchmark(launch, [])

@marked(timer="host")
def test_by_the_host(benchmark): benchmark(launch, [])
"""
    result = with_cupti(ON_THE_HOST + test, "--benchmark-json=out.json")
    result.assert_outcomes(passed=1, failed=2)
    why = "INVALID*: the call puts nothing on the device; --gpukern-timer=host *"
    result.stdout.fnmatch_lines([f"FAILED *{name} - *{why}" for name in ("theirs", "ours")])
    assert list(benchmarks_of(pytester)) == ["test_it.py::test_by_the_host"]


def test_under_all_a_call_that_launches_nothing_is_left_to_pytest_benchmark(with_cupti, pytester):
    test = """
def test_lazy(benchmark):
    def nothing():
        yield launch([])
    assert list(benchmark.pedantic(nothing, rounds=3)) == [42]
    assert benchmark.stats["rounds"] == 3

def test_host(benchmark):
    assert benchmark(launch, []) == 42
    assert benchmark.enabled and "_raw" not in vars(benchmark)
    assert benchmark.stats["rounds"] >= 2

def test_gpu(benchmark):
    benchmark(int)
"""
    options = ("--gpukern-all", "--gpukern-report=run.json", "--benchmark-json=out.json")
    result = with_cupti(ON_THE_HOST + test, *options, "-W", "error::UserWarning")
    result.assert_outcomes(passed=3, warnings=2)
    result.stdout.fnmatch_lines(
        [
            "*not measured on the GPU: the call returned the generator of *; it is left to pytest-benchmark",
            "*not measured on the GPU: the call puts nothing on the device*; it is left to pytest-benchmark",
        ]
    )
    assert list(results_in(pytester.path / "run.json")) == ["test_it/test_gpu"]
    found = benchmarks_of(pytester)
    assert set(found) == {"test_it.py::test_lazy", "test_it.py::test_host", "test_it.py::test_gpu"}
    assert found["test_it.py::test_host"]["extra_info"] == {}


# where it cannot be measured


MIXED = """
import numpy as np
import pytest
from numba import cuda, vectorize

@cuda.jit
def double(x, y):
    i = cuda.grid(1)
    if i < x.size:
        y[i] = 2 * x[i]

@vectorize(["float64(float64)"], target="cuda")
def cube(x):
    return x * x * x

def test_kernel(benchmark):
    x, y = np.arange(4.0), np.zeros(4)
    benchmark(double[1, 32], x, y)
    assert y[3] == 6

def test_ufunc(benchmark):
    assert benchmark(cube, np.full(2, 2.0))[0] == 8

def test_sort(benchmark):
    assert benchmark(sorted, [2, 1]) == [1, 2]

def test_pedantic(benchmark):
    assert benchmark.pedantic(sorted, ([2, 1],), rounds=3) == [1, 2]

@pytest.mark.gpu_benchmark(timer="host", bytes=16)
def test_marked(benchmark):
    assert benchmark(sorted, [2, 1]) == [1, 2]
    assert benchmark.stats["mean"] > 0

@pytest.mark.gpu_benchmark(timer="host")
def test_ours(gpu_benchmark):
    gpu_benchmark.verify(gpu_benchmark(lambda: np.arange(3.0)), np.arange(3.0))

@pytest.mark.gpu_benchmark(timer="host")
def test_simulated(gpu_benchmark):
    y = np.zeros(4)
    gpu_benchmark(double[1, 32], np.arange(4.0), y)
    gpu_benchmark.verify(y, 2 * np.arange(4.0))

@pytest.mark.gpu_benchmark
def test_marked_kernel(benchmark):
    x, y, calls = np.arange(4.0), np.zeros(4), []
    assert benchmark.disabled
    def launch():
        calls.append(1)
        double[1, 32](x, y)
        return y
    assert benchmark(launch)[3] == 6
    assert calls == [1]
    assert benchmark.stats["mean"] > 0 and benchmark.stats.stats.rounds == 1, "of the call that was made"

@pytest.mark.gpu_benchmark
def test_marked_rounds(benchmark):
    log = []
    benchmark.pedantic(log.append, setup=lambda: ((1,), {}), teardown=lambda _: log.append(2), rounds=9)
    assert log == [1, 2] * 9
"""


def test_without_a_gpu_what_is_not_ours_stays_pytest_benchmarks_and_the_hosts_clock_measures(pytester):
    pytest.importorskip("numba_cuda")
    pytester.makepyfile(test_it=MIXED)
    run = ("--gpu-benchmark", "--gpukern-all", "--gpukern-simulator=always", "--gpukern-report=run.json")
    result = pytester.runpytest_subprocess(*run, "--benchmark-json=out.json", *FAST)
    result.assert_outcomes(passed=9, warnings=2)
    result.stdout.fnmatch_lines(["*test_marked_kernel * simulated * unchecked", "gpukern: * 5 unchecked*"])
    measured = {"test_sort", "test_pedantic", "test_marked", "test_ours"}
    assert {name.partition("::")[2] for name in benchmarks_of(pytester)} == measured
    found = results_in(pytester.path / "run.json")
    assert {name.partition("/")[2]: bool(each["measurements"]) for name, each in found.items()} == {
        "test_kernel": False,
        "test_ufunc": False,
        "test_marked": True,
        "test_ours": True,
        "test_simulated": False,
        "test_marked_kernel": False,
        "test_marked_rounds": False,
    }
    (times,) = found["test_it/test_marked"]["measurements"]
    assert (times["scope"], times["timer"], times["cache"]) == ("end_to_end", "host", "hot")
    simulated = [name.partition("/")[2] for name, each in found.items() if each["simulated"]]
    assert simulated == ["test_kernel", "test_ufunc", "test_simulated", "test_marked_kernel"]


def test_a_benchmark_that_nobody_took_over_lists_times_of_the_host_and_none_of_the_simulator(pytester):
    pytest.importorskip("numba_cuda")
    pytester.makepyfile(test_it=MIXED)
    run = ("--gpukern-simulator=always", "--benchmark-json=out.json", *FAST)
    pytester.runpytest_subprocess("-k", "not ours and not simulated and not marked", *run).assert_outcomes(
        passed=4, deselected=5
    )
    assert {name.partition("::")[2] for name in benchmarks_of(pytester)} == {"test_sort", "test_pedantic"}


def test_with_neither_a_gpu_nor_the_simulator_the_hosts_clock_measures_records_and_judges(pytester):
    pytester.makepyfile(
        test_it="""
import pytest

@pytest.mark.gpu_benchmark(timer="host")
def test_ours(gpu_benchmark):
    assert gpu_benchmark(sorted, [2, 1]) == [1, 2]

def test_theirs(benchmark):
    assert not benchmark.disabled
    benchmark(sorted, [2, 1])

@pytest.mark.gpu_benchmark
def test_marked(benchmark):
    benchmark(sorted, [2, 1])
"""
    )
    run = ("--gpu-benchmark", "--gpukern-all", "--gpukern-simulator=never", *FAST)
    result = pytester.runpytest_inprocess(*run, "--gpukern-baseline=create", "--benchmark-json=out.json")
    result.assert_outcomes(passed=2, skipped=1)
    result.stdout.fnmatch_lines(["1 skipped: no GPU: *"])
    assert len(benchmarks_of(pytester)) == 2
    (record,) = (pytester.path / "baselines").iterdir()
    (stored,) = load(record).cases.values()
    assert stored.keys == {"end_to_end/host/hot"}
    pytester.runpytest_inprocess(*run).assert_outcomes(passed=2, skipped=1)


VALUES = [3, 0.5, "3.0", (4, 4), {"a": 1}, 1j, sum, None]
IN_JSON = [3, 0.5, "3.0", [4, 4], {"a": 1}, "1j", "<built-in function sum>", None]
PARAMETRIZED = f"""
import pytest
each = pytest.mark.parametrize("n", {VALUES}, ids=range({len(VALUES)}))
@pytest.mark.gpu_benchmark(timer="host")
@each
def test_ours(gpu_benchmark, n): gpu_benchmark(abs, -1)
@each
def test_theirs(benchmark, n): benchmark(abs, -1)
""".replace("<built-in function sum>", "sum")


@pytest.mark.parametrize("where", [(), IN_A_WORKERS_PROCESS])
def test_pytest_benchmark_groups_our_tests_by_their_parameters_as_its_own(pytester, where):
    pytester.makepyfile(test_it=PARAMETRIZED, test_problem=HOST_PROBLEM)
    group = ("--benchmark-group-by=param:n", "--benchmark-columns=min", "--benchmark-json=out.json")
    ran = pytester.runpytest_subprocess("--gpu-benchmark", "--gpukern-simulator=never", *where, *group, *FAST)
    own = {f"n={value}": 1 + (not where) for value in VALUES}  # under xdist it disables itself
    titles = re.findall(r"^-* benchmark (['\"])(.*)\1: (\d+) tests", ran.stdout.str(), re.MULTILINE)
    assert {title: int(count) for _, title, count in titles} == own | {"n=8": 2, "n=9": 2}
    found = benchmarks_of(pytester)
    ours = [found[f"test_it.py::test_ours[{number}]"] for number in range(len(VALUES))]
    assert [entry["params"]["n"] for entry in ours] == IN_JSON
    added = found["test_problem.py::test_doubling[doubling/host.add/n=9]"]
    assert added["params"] == {"n": 9, "backend": "host", "variant": "add"}


def test_a_plugin_in_the_place_of_pytest_benchmark_is_named(suite, pytester):
    pytester.makeconftest(
        """
import pytest
from pytest_benchmark.fixture import BenchmarkFixture

class Replacement:
    @property
    def __class__(self):  # as CodSpeed's, since pytest-benchmark checks it
        return BenchmarkFixture

    def __call__(self, function, *args):
        return function(*args)

@pytest.fixture
def benchmark():
    return Replacement()

@pytest.hookimpl(tryfirst=True)
def pytest_configure(config):
    config.option.benchmark_disable = True
    config.pluginmanager.set_blocked("pytest-benchmark")
"""
    )
    result = suite(f"{MARKED}    assert benchmark(abs, -1) == 1")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["*not measured on the GPU: its `benchmark` is a conftest.Replacement, *"])


def test_a_plan_of_fixtures_that_are_not_made_is_no_complaint(suite):
    result = suite(SUITE, "--setup-plan")
    assert result.ret == pytest.ExitCode.OK
    result.stdout.no_fnmatch_line("*not measured*")
