"""Checks that GPU tests run in a measuring process, and what a broken one costs. Only the GPU is fake."""

import json
import re
import signal
import subprocess
import sys
import xml.etree.ElementTree as ElementTree

import pytest
from waiting import until

from pytest_gpukern.gpu.processes import is_alive

from .conftest import HOST_PROBLEM, properties_in, results_in, without_pytests_plugins

CONFTEST = """
import os
import pytest

@pytest.fixture(autouse=True)
def _noted(request):
    with open("ran.log", "a") as log:
        print(request.node.name, os.getpid(), file=log)
"""
TESTS = """
import os
import signal
import sys
import time
import warnings
import pytest
import fake_gpu

def work():
    pass

def lose_context():
    fake_gpu.FAULTS.append("CUDA_ERROR_ILLEGAL_ADDRESS")

def test_here_before():
    pass

def test_first(gpu_benchmark):
    gpu_benchmark(work)

def test_broken(gpu_benchmark, request):
    gpu_benchmark(work)
    BROKEN

def test_here_between():
    pass

def test_second(gpu_benchmark):
    gpu_benchmark(work)

@pytest.mark.parametrize("number", [1, 2])
def test_third(gpu_benchmark, number):
    gpu_benchmark(work)
"""
"""Seven tests, two of them without our fixtures, and one that does what its last line says."""


@pytest.fixture
def project(pytester, on_fake_gpu):
    """Runs `TESTS`, with some code in place of BROKEN."""
    pytester.makeconftest(CONFTEST)
    pytester.makeini("[pytest]\naddopts = --junitxml=junit.xml\ngpukern_report = run.json")

    def run(broken, *options, tests=TESTS):
        pytester.makepyfile(test_it=tests.replace("BROKEN", broken))
        return on_fake_gpu("--gpu-benchmark", "-v", *options)

    return run


def pids(pytester):
    """Returns test → pid of the process in which it ran last."""
    lines = (pytester.path / "ran.log").read_text().splitlines()
    return dict(line.rsplit(" ", 1) for line in lines)


MODULE = """
@pytest.fixture(scope="module", autouse=True)
def _module():
    note("up")
    yield
    note("down")

def note(text):
    with open("module.log", "a") as log:
        print(text, os.getpid(), file=log)

def work()"""


def test_gpu_tests_run_in_one_other_process_in_their_order_and_the_rest_where_they_were(project, pytester):
    """Fixtures of a module are set up once in each process, and torn down."""
    project("pass", tests=TESTS.replace("def work()", MODULE, 1)).assert_outcomes(passed=7)
    noted = [line.split() for line in (pytester.path / "module.log").read_text().splitlines()]
    ran = pids(pytester)
    assert sorted(noted) == sorted([kind, pid] for kind in ("down", "up") for pid in set(ran.values()))
    here = {ran["test_here_before"], ran["test_here_between"]}
    there = {pid for name, pid in ran.items() if "here" not in name}
    assert len(here) == len(there) == 1
    assert here.isdisjoint(there)
    assert list(ran) == [
        *("test_here_before", "test_first", "test_broken", "test_here_between", "test_second"),
        *("test_third[1]", "test_third[2]"),
    ]
    assert len(results_in(pytester.path / "run.json")) == 5
    assert len(list(ElementTree.parse(pytester.path / "junit.xml").iter("testcase"))) == 7
    assert not any(is_alive(int(pid)) for pid in there)


THREAD = "__import__('threading').Thread(target=time.sleep, args=(600,), name='heartbeat').start()"
BREAKS_ITS_PROCESS = {
    "segfault": ("os.kill(os.getpid(), signal.SIGSEGV)", "FAILED its measuring process ended by SIGSEGV"),
    # The child of a fork keeps the connection open: of one by C nobody hears.
    "exit": (
        "import ctypes; ctypes.CDLL(None).fork() or time.sleep(600); os._exit(3)",
        "FAILED its measuring process ended with status 3",
    ),
    "slow": ("time.sleep(600)", "FAILED its measuring process took longer than 3 s (--gpukern-timeout)"),
    # As an asynchronous launch does, of which the test notices nothing.
    "lost": ("lose_context()", "FAILED Failed: INCORRECT: launch failed: CUDA_ERROR_ILLEGAL_ADDRESS"),
    "lost_and_raised": ("lose_context(); raise ValueError('its own')", "FAILED ValueError: its own"),
    "closed": ("fake_gpu.CHANGES.append('the primary context was closed')", None),
    "left_over": ("fake_gpu.CONTEXTS.append(9)", None),
    "launching": (
        f"fake_gpu.LAUNCHING.append('a thread (heartbeat)'); {THREAD}",
        "ERROR Failed: a thread (heartbeat) left running by this test kept launching on the GPU; join it",
    ),
    "message": (
        (
            "from pytest_gpukern.session.stash import CHILD; "
            "request.config.stash[CHILD]._connection.send_bytes(b'{')"
        ),
        "FAILED its measuring process sent a message that cannot be read",
    ),
    "unsendable": (
        "request.node.user_properties.append(('odd', type('Odd', (), {'__str__': None})()))",
        "FAILED its measuring process ended with status 3",
    ),
    "subtest": (
        "with subtests.test(msg='one'):\n        pass\n    os.abort()",
        "FAILED its measuring process ended by SIGABRT",
    ),
    "set_up": ("pass", "ERROR its measuring process ended by SIGABRT"),
    "tear_down": ("pass", "ERROR its measuring process ended by SIGABRT"),
    "late": (None, "ERROR INCORRECT: launch failed: CUDA_ERROR_I"),
    "at_its_end": (None, "ERROR INCORRECT: launch failed: CUDA_ERROR_I"),
}
"""Name → what the test does once it has measured, and the outcome and text in the summary, if it fails.

With None it measures nothing."""
USES = {"subtest": "subtests"} | {name: name for name in ("set_up", "tear_down", "late", "at_its_end")}


def breaking_tests():
    """Returns a test for each of `BREAKS_ITS_PROCESS`, each followed by one that only measures."""
    tests = TESTS.partition("def test_here_before")[0] + BREAKING_FIXTURES
    for name, (code, _) in BREAKS_ITS_PROCESS.items():
        ours, body = ("gpu_device", "pass") if code is None else ("gpu_benchmark", "gpu_benchmark(work)")
        mark = "@pytest.mark.gpu_benchmark(timeout=3)\n" if name == "slow" else ""
        tests += f"{mark}def test_{name}({ours}, {USES.get(name, 'request')}):\n    {body}\n    {code}\n\n"
        tests += f"def test_after_{name}(gpu_benchmark):\n    gpu_benchmark(work)\n\n"
    return tests


BREAKING_FIXTURES = """
class Late:
    def __del__(self):
        lose_context()

@pytest.fixture
def late():
    return Late()

@pytest.fixture
def at_its_end():
    yield
    lose_context()

@pytest.fixture
def set_up():
    os.abort()

@pytest.fixture
def tear_down():
    yield
    os.abort()

"""


def test_a_test_that_breaks_its_process_is_named_and_the_next_has_a_new_process(project, pytester):
    result = project("", tests=breaking_tests())
    expected = {name: text for name, (_, text) in BREAKS_ITS_PROCESS.items() if text is not None}
    summary = re.findall(
        r"^(FAILED|ERROR) test_it\.py::test_(\w+) - (.*)$", result.stdout.str(), re.MULTILINE
    )
    told = {name: f"{outcome} {text}"[: len(expected.get(name, ""))] for outcome, name, text in summary}
    assert told == expected

    ran = pids(pytester)
    process = ran["test_segfault"]
    for name in BREAKS_ITS_PROCESS:
        assert ran[f"test_{name}"] == process, name
        process = ran[f"test_after_{name}"]
        assert process != ran[f"test_{name}"], name
    assert not any(is_alive(int(pid)) for pid in ran.values())

    found = results_in(pytester.path / "run.json")
    found = {case_id.removeprefix("test_it/test_"): each for case_id, each in found.items()}
    measuring = {name for name, (code, _) in BREAKS_ITS_PROCESS.items() if code is not None}
    assert found.keys() == measuring | {f"after_{name}" for name in BREAKS_ITS_PROCESS}
    measured = {name for name, each in found.items() if each["measurements"]}
    assert measured >= {"tear_down", "closed", "left_over", *(f"after_{name}" for name in BREAKS_ITS_PROCESS)}
    assert found["segfault"]["diagnosis"] == "its measuring process ended by SIGSEGV"
    assert found["lost"]["correctness"] == found["subtest"]["correctness"] == "INCORRECT"
    result.stdout.fnmatch_lines(["*measuring process*", "Fatal Python error: *", "*in test_segfault"])
    result.stdout.fnmatch_lines(["*measuring process*", "*(most recent call first):", "*in test_slow"])

    cases = list(ElementTree.parse(pytester.path / "junit.xml").iter("testcase"))
    assert {case.get("name") for case in cases} == {f"test_{name}" for name in {*found, *expected}}
    broken = {case.get("name") for case in cases if case.findall("failure") or case.findall("error")}
    assert broken == {f"test_{name}" for name in expected}
    assert {f"test_{name}" for name in found} == properties_in(pytester.path / "junit.xml").keys()


def test_what_breaks_nothing_costs_no_process(project, pytester):
    """A failing child of a fork, a wait for something else, an idle thread and a context of a fixture."""
    harmless = f"""if os.fork() == 0:
        raise ValueError("in the child")
    os.wait()
    {THREAD}
    from pytest_gpukern.session.stash import environment_of
    with environment_of(request.config).gpu.clock_stopped():
        time.sleep(2.5)"""
    own = "@pytest.fixture(scope='module', autouse=True)\ndef _own():\n    fake_gpu.CONTEXTS.append(9)\n"
    tests = TESTS.replace("def work()", f"{own}    yield\n    fake_gpu.CONTEXTS.pop()\n\ndef work()", 1)
    project(harmless, "--gpukern-timeout=2", tests=tests).assert_outcomes(passed=7)
    (there,) = {pid for name, pid in pids(pytester).items() if "here" not in name}
    assert not is_alive(int(there))


REJECTED = """
import fake_gpu

class Module:
    def __del__(self):
        if fake_gpu.FAULTS:
            raise RuntimeError("cuModuleUnload: CUDA_ERROR_MISALIGNED_ADDRESS")

@doubling.wrong("host", expected_fault="REASON")
def misaligned_address(x, y):
    def launch(module=Module()):
        fake_gpu.FAULTS.append("CUDA_ERROR_MISALIGNED_ADDRESS")
        raise RuntimeError("CUDA_ERROR_MISALIGNED_ADDRESS")
    return launch

@doubling.wrong_cases
def test_rejected(gpu_benchmark, case):
    gpu_benchmark.reject(case)

def test_work(gpu_benchmark):
    gpu_benchmark(lambda: None)
"""


@pytest.mark.parametrize(("reason", "rejected"), [("launch failed", 2), ("wrong values", 0)])
def test_a_launch_that_fails_as_declared_may_lose_the_context_and_each_next_test_has_a_new_process(
    project, pytester, reason, rejected
):
    tests = HOST_PROBLEM + REJECTED.replace("REASON", reason)
    result = project("", "-k", "rejected or work", "-Werror", tests=tests)
    wrong = 2 - rejected  # whose libraries complain, too, when they cannot give back what they held
    result.assert_outcomes(passed=rejected + 1, failed=wrong, errors=wrong, deselected=2)
    ran = pids(pytester)
    assert len(ran) == len(set(ran.values())) == 3


@pytest.mark.parametrize(
    ("broken", "outcomes", "why"),
    [
        (
            "lose_context()",
            {"passed": 3, "failed": 1},
            "Failed: not run: this process lost its CUDA context in *::test_broken *",
        ),
        (
            "fake_gpu.CHANGES.append('the primary context was closed')",
            {"passed": 4},
            "*test_broken (the primary context was closed); *",
        ),
    ],
    ids=["lost", "closed"],
)
def test_in_this_process_tests_after_a_lost_context_say_which_test_lost_it(
    project, pytester, broken, outcomes, why
):
    result = project(broken, "--gpukern-isolate=off")
    result.assert_outcomes(**outcomes, errors=3)
    result.stdout.fnmatch_lines([f"ERROR *test_second - {why}"])
    assert len(set(pids(pytester).values())) == 1


@pytest.mark.parametrize("how", ["load", "loadfile"])
def test_a_broken_test_costs_the_process_of_its_worker_and_never_the_worker(project, pytester, how):
    tests = TESTS.replace("def test_first(gpu_benchmark)", "def test_first(gpu_benchmark, worker_id)")
    tests = tests.replace(
        "    gpu_benchmark(work)\n",
        "    assert worker_id == os.environ['PYTEST_XDIST_WORKER'] == 'gw0'\n    gpu_benchmark(work)\n",
        1,
    )
    tests += "\ndef test_aborts(gpu_benchmark):\n    os.abort()\n\ndef test_last(gpu_benchmark):\n    pass\n"
    result = project("lose_context()", "-n1", f"--dist={how}", tests=tests)
    result.assert_outcomes(passed=7, failed=2)
    result.stdout.no_fnmatch_line("*node down*")
    result.stdout.fnmatch_lines_random(
        [
            "FAILED *test_broken - Failed: INCORRECT: launch failed*",
            "FAILED *test_aborts - its measuring process ended by SIGABRT*",
        ]
    )
    ran = pids(pytester)
    apart = ("test_here_before", "test_broken", "test_second", "test_last")
    assert len({ran[name] for name in apart}) == 4
    assert ran["test_second"] == ran["test_aborts"]
    assert len(results_in(pytester.path / "run.json")) == 7


WIDER = """
import warnings

@pytest.fixture(scope="module")
def leaking():
    yield
    open("down", "a").write("x")
    raise AssertionError("LEAKED 5 buffers")

def test_leaks(gpu_benchmark, leaking):
    gpu_benchmark(work)
    BROKEN

def test_here():
    assert not STOPS

def test_after(gpu_benchmark, leaking):
    gpu_benchmark(work)
"""


@pytest.mark.parametrize(
    ("broken", "stops", "counts"),
    [
        ("pass", True, {"passed": 1, "failed": 1, "errors": 1}),
        ("fake_gpu.CHANGES.append('the primary context was closed')", False, {"passed": 3, "errors": 2}),
        ("request.session.shouldstop = 'ENOUGH'", False, {"passed": 1, "errors": 1}),
    ],
    ids=["-x", "replaced", "shouldstop"],
)
def test_wider_fixtures_are_torn_down_and_errors_told_however_the_process_ends(
    project, pytester, broken, stops, counts
):
    tests = TESTS.partition("def test_here_before")[0] + WIDER.replace("STOPS", str(stops))
    tests = tests.replace("gpu_benchmark, leaking", "gpu_benchmark, leaking, request")
    result = project(broken, *(["-x"] if stops else []), tests=tests)
    result.assert_outcomes(**counts)
    assert len((pytester.path / "down").read_text()) == counts["errors"]
    result.stdout.fnmatch_lines(["ERROR test_it.py::test_leaks - AssertionError: LEAKED 5 buffers"])


SKIPS_UNASKED = """
def pytest_collection_modifyitems(config, items):
    for item in items if not config.getoption("-m") else ():
        item.add_marker(pytest.mark.skip(reason="use -m slow"))

@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item):
    with open("entered.log", "a") as log:
        print(item.name, file=log)
    return (yield)
"""


def test_conftests_see_what_was_selected_and_wrap_each_test_once(project, pytester):
    pytester.makeconftest(CONFTEST + SKIPS_UNASKED)
    tests = TESTS.replace("def test", "@pytest.mark.slow\ndef test")
    project("pass", "-m", "slow", "-o", "markers=slow", tests=tests).assert_outcomes(passed=7)
    entered = (pytester.path / "entered.log").read_text().split()
    assert entered.count("test_here_before") == entered.count("test_here_between") == 1


@pytest.mark.parametrize(
    ("options", "processes"),
    [
        (without_pytests_plugins("terminal", "junitxml", "reports"), 2),
        (("-pno:reports",), 1),  # which sends reports
        (("--setup-show",), 1),
    ],
)
def test_tests_are_isolated_without_pytests_plugins_unless_an_option_needs_them_here(
    project, pytester, options, processes
):
    project("pass", *options).assert_outcomes(passed=7)
    assert len(set(pids(pytester).values())) == processes


def test_wider_fixtures_of_a_worker_stay_while_a_test_runs_elsewhere_and_go_before_one_that_lacks_them(
    on_fake_gpu, pytester
):
    pytester.makeconftest(
        """
import os
import pytest

@pytest.fixture(scope="session", autouse=True)
def _session():
    with open("ups.log", "a") as log:
        print(os.getpid(), file=log)

@pytest.fixture(scope="module", autouse=True)
def _module(request):
    yield
    assert "test_a" not in request.node.nodeid, "LEAKED"
"""
    )
    gpu, here = "def test_gpu(gpu_benchmark): gpu_benchmark(lambda: None)\n", "def test_here{}(): pass\n"
    pytester.makepyfile(test_a=gpu, test_b=here.format(1) + gpu + here.format(2), test_c=gpu)
    result = on_fake_gpu("--gpu-benchmark", "-n1")
    result.assert_outcomes(passed=5, errors=1)
    result.stdout.fnmatch_lines(["ERROR test_b.py::test_gpu - AssertionError: LEAKED*"])
    ups = (pytester.path / "ups.log").read_text().split()
    assert len(ups) == len(set(ups)) == 2


def test_skips_errors_expected_failures_warnings_output_and_properties_arrive_as_they_are(project, pytester):
    """A test that only one process knows is an error, too."""
    tests = TESTS.replace("[1, 2]", "[os.getpid()]").replace(
        "def test_here_between",
        """
def test_skipped(gpu_benchmark):
    pytest.skip("not today")

@pytest.mark.xfail(reason="known")
def test_known(gpu_benchmark):
    assert False

def test_warns(gpu_benchmark, record_property):
    record_property("size", 3)
    class Odd(UserWarning):
        pass
    warnings.warn(Odd("look out"))
    print("said something")
    gpu_benchmark(work)
    raise LookupError("nothing there")

@pytest.fixture
def too_much():
    raise MemoryError("CUDA_ERROR_OUT_OF_MEMORY")

def test_needs_it(too_much, gpu_benchmark):
    gpu_benchmark(work)

def test_here_between""",
    )
    result = project("pass", "-rsE", tests=tests)
    result.assert_outcomes(passed=5, skipped=1, xfailed=1, failed=1, errors=2)
    result.stdout.fnmatch_lines(
        [
            "*def test_warns(gpu_benchmark, record_property):",
            "*LookupError: nothing there",
            "said something",
            "*Odd: look out*",
            "SKIPPED * not today",
            "ERROR *test_needs_it - MemoryError: CUDA_ERROR_OUT_OF_MEMORY*",
            "ERROR *has no test of this name: parameters and their ids must be the same*",
        ]
    )
    found = properties_in(pytester.path / "junit.xml")["test_warns"]
    assert (found["size"], found["time_ns"]) == ("3", "1000.0")


def test_a_test_can_end_the_run(project, pytester):
    result = project("pytest.exit('enough', returncode=7)")
    assert result.ret == 7
    result.stdout.fnmatch_lines(["!* _pytest.outcomes.Exit: enough !*"])
    ran = pids(pytester)
    assert "test_second" not in ran
    assert not is_alive(int(ran["test_broken"]))


ENDS = {"os.kill(os.getpid(), 15)": 143, "pytest.exit('enough', returncode=7)": 7, "raise RuntimeError": 1}


@pytest.mark.parametrize("place", ["launch", "check"])
@pytest.mark.parametrize(("ends", "status"), ENDS.items())
def test_what_ends_the_run_within_code_that_we_call_is_no_mistake_of_it(pytester, place, ends, status):
    pytester.makepyfile(f"""
        import os, pytest
        from pytest_gpukern import Problem

        problem = Problem("p", version=1, axes={{}}, make_inputs=lambda rng: {{"x": rng.random(8)}},
                          outputs=lambda: {{"out": (8, "float64")}}, reference=lambda x: x)

        def ends(*given):
            {ends}

        problem.variant("host")(lambda x, out: ends)

        @problem.cases
        def test_launch(gpu_benchmark, case):
            gpu_benchmark.run(case)

        def test_check(gpu_benchmark):
            gpu_benchmark.pedantic(lambda: None, check=ends)
        """)
    result = pytester.runpytest_subprocess("--gpu-benchmark", "-p", "no:cacheprovider", "-k", place)
    assert (result.ret, "1 wrong result" in result.stdout.str()) == (status, status == 1)


@pytest.mark.parametrize(
    ("number", "status", "why"),
    [
        (signal.SIGINT, pytest.ExitCode.INTERRUPTED, "KeyboardInterrupt"),
        (signal.SIGTERM, 128 + signal.SIGTERM, "SIGTERM"),
    ],
)
def test_ctrl_c_and_sigterm_end_the_other_process_and_keep_what_was_measured(
    number, status, why, project, pytester, monkeypatch
):
    temporary = pytester.mkdir("temporary")
    monkeypatch.setenv("TMPDIR", str(temporary))
    (pytester.path / "test_it.py").write_text(TESTS.replace("BROKEN", "time.sleep(600)"))
    options = ("-p", "fake_gpu", "--gpu-benchmark", "--gpukern-report=run.json")
    command = [sys.executable, "-m", "pytest", *options]
    with subprocess.Popen(command, cwd=pytester.path, stdout=subprocess.PIPE, text=True) as process:
        log = pytester.path / "ran.log"
        until(lambda: log.exists() and "test_broken" in log.read_text(), 60.0)
        process.send_signal(number)
        output, _ = process.communicate(timeout=60)
    assert process.returncode == status
    assert why in output
    assert [path.name for path in temporary.iterdir() if path.name.startswith("gpukern")] == []
    assert not is_alive(int(pids(pytester)["test_broken"]))
    assert list(results_in(pytester.path / "run.json")) == ["test_it/test_first"]


PATCHES = """
    from unittest import mock
    for name in ("dumps", "loads", "JSONEncoder.iterencode", "JSONDecoder.decode"):
        patched = mock.patch(f"json.{name}")
        patched.start()
        request.addfinalizer(patched.stop)
"""


@pytest.mark.parametrize("option", ["--gpukern-isolate=on", "--gpukern-isolate=off"])
def test_patches_of_a_test_do_not_stop_its_messages(project, option):
    result = project(PATCHES, option, "--gpukern-baseline=create", "--gpukern-sessions=2")
    result.assert_outcomes(passed=7)
    result.stdout.fnmatch_lines(["gpukern: *of 5 times: 5 new"])


def test_a_device_that_is_gone_fails_what_was_to_run_on_it_and_says_so(project, pytester):
    """As after Xid 79: the measuring process dies, and no other can be started."""
    pytester.makeconftest(
        CONFTEST
        + """
def pytest_sessionstart(session):
    if os.path.exists("gone"):
        pytest.exit("GPU-fa4e has fallen off the bus", returncode=9)
"""
    )
    result = project("open('gone', 'w').close(); os.abort()")
    result.assert_outcomes(passed=3, failed=1, errors=3)
    result.stdout.fnmatch_lines(
        ["ERROR *test_second - the measuring process could not start: it ended with status 9: *bus*"]
    )
    assert results_in(pytester.path / "run.json")["test_it/test_first"]["measurements"]


def test_output_is_shown_at_once_where_nothing_is_captured(pytester):
    pytester.makepyfile(test_it=TESTS.replace("BROKEN", "print('hello from the test')"))
    result = pytester.runpytest_subprocess("-p", "fake_gpu", "--gpu-benchmark", "-s")
    result.assert_outcomes(passed=7)
    result.stdout.fnmatch_lines(["*hello from the test*"])
    assert result.stdout.str().count("test session starts") == 1


BOTH = """
import json
import pytest

@pytest.mark.parametrize("factor", [2, complex(3)])
def test_there(gpu_benchmark, benchmark, factor):
    benchmark.extra_info["noted"] = [1, 2]
    gpu_benchmark(lambda: None)
    assert benchmark.pedantic(json.dumps, ([1],), rounds=7, iterations=3) == "[1]"
    assert benchmark.stats["rounds"] == 7

def test_here(benchmark):
    benchmark.pedantic(json.dumps, ([1],), rounds=5)

@pytest.mark.benchmark(group="last")
def test_there_too(gpu_device, benchmark):
    benchmark.pedantic(json.dumps, ([1],), rounds=2)
"""


def test_what_pytest_benchmark_measures_in_the_other_process_is_listed_and_saved_here(project, pytester):
    result = project("", "--benchmark-json=out.json", "--benchmark-cprofile=tottime", tests=BOTH)
    result.assert_outcomes(passed=4)
    found = json.loads((pytester.path / "out.json").read_text())["benchmarks"]
    own = [entry for entry in found if "gpukern_schema" not in entry["extra_info"]]
    assert [(entry["name"], entry["stats"]["rounds"], entry["stats"]["iterations"]) for entry in own] == [
        *(("test_there[2]", 7, 3), ("test_there[(3+0j)]", 7, 3), ("test_here", 5, 1)),
        ("test_there_too", 2, 1),
    ]
    assert len(found) == len(own) + 2  # those of `gpu_benchmark`
    first, last = own[0], own[-1]
    assert first["params"] == {"factor": 2}
    assert first["extra_info"] == {"noted": [1, 2]}
    assert first["options"]["timer"] == own[2]["options"]["timer"] == "perf_counter"
    assert len(first["stats"]["data"]) == 7
    assert min(first["stats"]["data"]) > 0
    assert last["group"] == "last"
    assert [entry["name"] for entry in own if "cprofile" in entry] == ["test_here"]
    result.stdout.fnmatch_lines(["*benchmark 'last': 1 tests*"])


IN_THE_SIMULATOR = """
import ctypes
import os
import time
import numpy as np
import pytest
from numba import cuda

@cuda.jit
def double(x, out):
    i = cuda.grid(1)
    if i < x.size:
        out[i] = 2 * x[i]

@cuda.jit
def spin_for_ever(x, out):
    while out[0] == 0:
        time.sleep(0.1)  # in the simulator this is Python, and other tests want the processor

KERNELS = {
    "first": double,
    "hangs": spin_for_ever,
    "between": double,
    "crashes": cuda.jit(lambda x, out: ctypes.string_at(0)),
    "last": double,
}

@pytest.mark.parametrize("name", KERNELS)
def test_it(gpu_benchmark, name):
    x, out = np.arange(8.0), np.zeros(8)
    gpu_benchmark(KERNELS[name][1, 8], x, out)
    gpu_benchmark.verify(out, 2 * x)
"""


def test_without_a_gpu_a_kernel_that_hangs_or_crashes_costs_its_own_test_where_somebody_bounds_tests(
    pytester,
):
    pytest.importorskip("numba_cuda")
    pytester.makepyfile(test_it=IN_THE_SIMULATOR)
    options = ("--gpukern-simulator=always", "--gpukern-timeout=3", "--gpukern-report=run.json")
    result = pytester.runpytest_subprocess(*options)
    result.assert_outcomes(passed=3, failed=2)
    result.stdout.fnmatch_lines(
        [
            "FAILED *[[]hangs[]] - its measuring process took longer than 3 s*",
            "FAILED *[[]crashes[]] - its measuring process ended by SIGSEGV*",
        ]
    )
    found = results_in(pytester.path / "run.json")["test_it/test_it[crashes]"]
    assert (found["simulated"], found["correctness"]) == (True, "INCORRECT")
