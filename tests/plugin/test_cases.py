"""Checks that cases of a problem become test items, with the same ids in every process."""

import pytest
from doubling import CASES, of_size

from pytest_gpukern.cli import main as cli

from .conftest import HOST_PROBLEM, refused, results_in

IDS = [f"doubling/host.{variant}/n={n}" for n in (8, 9) for variant in ("multiply", "add")]


def collected(result):
    return [line.partition("[")[2].rstrip("]") for line in result.outlines if "::" in line]


def test_there_is_one_item_a_variant_and_a_point_the_same_in_every_run(host, pytester):
    assert collected(host("--collect-only", "-q")) == IDS
    assert collected(host("--collect-only", "-q", "--gpu-benchmark")) == IDS
    assert collected(pytester.runpytest_inprocess("--collect-only", "-q")) == IDS


def test_without_measuring_each_case_is_checked_once_at_small_sizes(host, pytester):
    host("--gpukern-report=run.json").assert_outcomes(passed=4)
    results = results_in(pytester.path / "run.json").values()
    assert {result["case"]["point"]["n"] for result in results} == {8, 9}
    for result in results:
        assert result["correctness"] == "PASSED"
        assert result["measurements"] == []
        assert result["errors"]["y"]["mismatches"] == 0


def test_a_problem_that_would_pass_half_precision_fails_its_tests_and_says_why(host, pytester):
    test_file = pytester.path / "test_doubling.py"
    declared = test_file.read_text(encoding="utf-8")
    test_file.write_text(declared.replace("Tolerance()", "Tolerance(rtol=1e-6)"), encoding="utf-8")
    result = host("-k", "add")
    result.assert_outcomes(failed=2)
    result.stdout.fnmatch_lines(
        [
            "test_doubling.py:*: problem 'doubling': its tolerance or data accepts wrong results at n=8",
            "  y: rtol=1e-06, atol=0 would pass float32 too: *; write rtol=1e-09, atol=1e-??, or say in *",
        ]
    )
    result.stdout.no_fnmatch_line("*Traceback*")
    result.stdout.no_fnmatch_line("During handling of *")


BROKEN_ON_PURPOSE = """
@doubling.wrong("host", expected_fault="not written")
def idle(x, y):
    return lambda: None

@doubling.wrong("host", expected_fault="wrong values")
def idle_for_another_reason(x, y):
    return lambda: None

@doubling.wrong("host", expected_fault="wrong values")
def right_after_all(x, y):
    return lambda: np.multiply(x, 2, out=y)

@doubling.wrong_cases
def test_rejected(gpu_benchmark, case):
    gpu_benchmark.reject(case)
"""


def test_a_broken_variant_must_be_rejected_and_for_the_reason_that_it_declares(host, pytester, capsys):
    pytester.makepyfile(test_doubling=HOST_PROBLEM + BROKEN_ON_PURPOSE)
    result = host("-k", "rejected and 8", "-rA")
    result.assert_outcomes(passed=1, failed=2, deselected=7)
    result.stdout.fnmatch_lines(
        [
            "*idle_for_another_reason/n=8 was rejected for not written, not for wrong values",
            "*right_after_all/n=8 is broken on purpose (wrong values), but the checker passed it",
            "gpukern: 1 broken case rejected, 2 failed otherwise",
            "PASSED *host.idle/n=8?",
            "FAILED *idle_for_another_reason/n=8? - *",
            "FAILED *right_after_all/n=8? - *",
        ]
    )
    one = host("-k", "rejected and 8 and not another and not after", "--gpukern-report=run.json")
    one.stdout.fnmatch_lines(["gpukern: 1 broken case rejected"])
    capsys.readouterr()
    assert cli.main(["report", "run.json"]) == 0
    assert "gpukern: 1 broken case rejected\n" in capsys.readouterr().out
    swallowed = "    try:\n        gpu_benchmark.reject(case)\n    except:\n        pass\n"
    swallowing = BROKEN_ON_PURPOSE.replace("    gpu_benchmark.reject(case)\n", swallowed)
    pytester.makepyfile(test_doubling=HOST_PROBLEM + swallowing)
    host("-k", "rejected and 8").assert_outcomes(passed=1, failed=2, deselected=7)


PROBLEM_FILE = HOST_PROBLEM.replace("    version=1,", "    version=1,\n    package=__package__,").partition(
    "@doubling.cases"
)[0]


@pytest.fixture
def package(pytester):
    """Makes a problem in a folder of its own, with one file of variants a backend."""
    folder = pytester.mkpydir("doubling_suite")
    (folder / "problem.py").write_text(PROBLEM_FILE)
    (folder / "test_doubling.py").write_text(
        "from .problem import doubling\n"
        "@doubling.cases\n"
        "def test_doubling(gpu_benchmark, case):\n    gpu_benchmark.run(case)\n"
    )
    return folder


def test_a_variants_file_whose_library_is_missing_is_named_from_its_source_and_skipped(host, package):
    (package / "on_cupy.py").write_text(
        "import no_such_library_of_anybody\n"
        "from .problem import doubling\n"
        '@doubling.variant("host", factor=(2, 3))\n'
        "def absent(x, y, factor): ...\n"
    )
    result = host("-k", "absent and 8", "-rA", "--collect-only", "-q")
    result.stdout.fnmatch_lines(["*host.absent/n=8,factor=2?", "*host.absent/n=8,factor=3?"])
    result = host("-k", "absent", "-rs", package)
    result.assert_outcomes(skipped=4, deselected=4)
    result.stdout.fnmatch_lines(["*4 skipped: no_such_library_of_anybody is not installed (doubling/*"])


@pytest.mark.parametrize("workers", [[], ["-n1"]], ids=["here", "workers"])
def test_a_decorator_that_cannot_be_read_is_an_error_of_its_module_without_a_traceback(
    host, package, workers
):
    (package / "on_host.py").write_text(
        "from .problem import doubling\n"
        "BLOCKS = (1, 2)\n"
        '@doubling.variant("host", block=BLOCKS)\n'
        "def other(x, y, block): ...\n"
    )
    result = host(package, *workers)
    assert result.ret in (pytest.ExitCode.INTERRUPTED, pytest.ExitCode.TESTS_FAILED)
    result.stdout.fnmatch_lines(
        ["doubling_suite/on_host.py:3: the decorator of other takes literals only, *"]
    )
    assert "Traceback" not in result.stdout.str() + result.stderr.str()
    assert "INTERNALERROR" not in result.stdout.str()


WRONG = """
@doubling.wrong("host", expected_fault="not writen")
def idle(x, y): ...

@doubling.wrong_cases"""


@pytest.mark.parametrize(
    ("right", "typo", "message"),
    [
        (
            'variant("host")',
            'variant("hots")',
            "17: variant 'hots.multiply': backend 'hots' is none of host, *",
        ),
        ("version=1,", "version=1, speedup_against='ad',", "6: *: speedup_against='ad' is none of its *"),
        ("@doubling.variant", "@(lambda name: lambda f: f) or ", "6: *: it has no variants: decorate *"),
        ("@doubling.cases", WRONG, "*: variant 'host.idle': expected_fault='not writen' is none of launch *"),
        ("@doubling.cases", "@doubling.wrong_cases", "6: *: it has no broken variants: decorate functions *"),
        ('t("host")', 't("host", max_size=9)', "17: max_size=9: must map axes to limits; write {'n': 9}"),
        ('t("host")', 't("host", yy=(1,))', "17: variant 'multiply': yy=(1,) is neither an argument of *"),
        ("version=1", 'version=1, dtypes=("flaot32",)', "6: *: dtypes: NumPy has no dtype 'flaot32'; did *"),
    ],
)
def test_a_typo_is_one_sentence_with_file_and_line(host, pytester, right, typo, message):
    assert right in HOST_PROBLEM
    pytester.makepyfile(test_doubling=HOST_PROBLEM.replace(right, typo))
    result = host()
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines([f"test_doubling.py:{message}"])
    shown = result.stdout.str().partition("ERROR collecting")[2].partition("short test summary")[0]
    assert len(shown.strip().splitlines()) <= 3


TAKES_Z = WRONG.replace("not writen", "launch failed").replace("y)", "z)")
REJECTED = "def test_rejected(gpu_benchmark, case): gpu_benchmark.reject(case)\n\n@doubling.cases"


@pytest.mark.parametrize(
    ("right", "mistake", "message"),
    [
        ("tolerance=", "tolerances=", "E   *has no argument 'tolerances'; did you mean 'tolerance'?"),
        ("Tolerance()", "Tolerance('1e-6')", "E   *rtol='1e-6': must be a finite number ≥ 0, such as 1e-6"),
        ('{"y": ((n,), "float64")}', "{}", "*: no output is declared; updated in place? inout=('x',)"),
        ('"float64"', '"flaot64"', "*: output 'y': NumPy has no dtype 'flaot64'; did you mean 'float64'?"),
        (
            "def add(x, y)",
            "def add(x, z)",
            "*.py:21: add takes 'z', which is not available; it may take n, *",
        ),
        ("@doubling.cases", f"{TAKES_Z}\n{REJECTED}", "*: idle takes 'z', which is not available; it may *"),
    ],
)
def test_a_mistake_in_a_declaration_is_none_of_a_kernel(host, pytester, right, mistake, message):
    pytester.makepyfile(test_doubling=HOST_PROBLEM.replace(right, mistake))
    result = host()
    assert result.ret != pytest.ExitCode.OK
    result.stdout.fnmatch_lines([message])
    for wrong in ("pytest_gpukern/", "INCORRECT", "launch failed"):
        result.stdout.no_fnmatch_line(f"*{wrong}*")


def test_an_axis_is_refused_only_if_no_problem_has_it(host, pytester):
    pytester.makepyfile(
        test_other=HOST_PROBLEM.replace('"doubling"', '"tripling"')
        .replace('"n"', '"m"')
        .replace("lambda rng, n:", "lambda rng, m:")
        .replace("rng.random(n)", "rng.random(m)")
        .replace("lambda n:", "lambda m:")
        .replace("(n,)", "(m,)")
        .replace("16 * n", "16 * m")
    )
    host("--gpukern-axis=m=3", "-q").assert_outcomes(passed=6)
    refused(
        host("--gpukern-axis=k=3"), "--gpukern-axis k=…: no selected problem has this axis; the axes are m, n"
    )


def test_two_problems_of_one_name_are_refused_and_one_that_is_imported_twice_is_not(pytester, host):
    pytester.makefile(".py", **{"tests/test_a": HOST_PROBLEM})
    imports = "import test_a\nfrom tests.test_a import doubling\nassert doubling is not test_a.doubling\n"
    test = "@doubling.cases\ndef test_it(gpu_benchmark, case): gpu_benchmark.run(case)\n"
    pytester.makefile(".py", **{"tests/test_b": imports + test})
    ini = ("-opythonpath=.", "--gpukern-backend=host")
    host("tests", *ini).assert_outcomes(passed=8)
    declaring = HOST_PROBLEM.partition("doubling = ")[2].replace("\n", "\n    ")
    shared = f"import numpy as np\nfrom pytest_gpukern import *\ndef declare():\n    doubling = {declaring}"
    pytester.makepyfile(shared=f"{shared}\n    return doubling")
    pytester.makepyfile(
        **{f"test_{name}": f"import shared\ndoubling = shared.declare()\n{test}" for name in "cd"}
    )
    refused(
        host("test_c.py", "test_d.py", *ini), "two problems *'doubling'*test_c.py:2 and in test_d.py:2: *"
    )
    both = "import shared\na, b = (shared.declare() for _ in range(2))\n"
    tests = [test.replace("doubling", name).replace("_it", f"_{name}") for name in "ab"]
    pytester.makepyfile(test_c=both + tests[0] + tests[0].replace("_a", "_b"), test_d=both + "".join(tests))
    host("test_c.py", *ini).assert_outcomes(passed=8)
    refused(host("test_d.py", *ini), "two problems *'doubling'*test_d.py:2*")


def test_a_test_that_never_runs_its_case_fails_and_says_how(host, pytester):
    forgetful = HOST_PROBLEM.replace("gpu_benchmark.run(case)", "pass")
    assert forgetful != HOST_PROBLEM
    pytester.makepyfile(test_doubling=forgetful)
    result = host("--gpukern-axis=n=8")
    result.assert_outcomes(failed=2)
    result.stdout.fnmatch_lines(["the test never ran its case: call gpu_benchmark.run(case)"])


def test_huge_sizes_are_run_by_name_only_and_a_problem_without_any_is_skipped(host, pytester):
    host("--gpukern-size=huge").assert_outcomes(skipped=1)
    test_file = pytester.path / "test_doubling.py"
    declared = test_file.read_text(encoding="utf-8")
    assert declared.count("full=(100,)") == 1
    test_file.write_text(declared.replace("full=(100,)", "full=(100,), huge=(1000,)"), encoding="utf-8")
    host("--gpukern-size=huge", "--gpukern-report=run.json").assert_outcomes(passed=2)
    assert {r["case"]["point"]["n"] for r in results_in(pytester.path / "run.json").values()} == {1000}


@pytest.mark.parametrize("option", ["-n1", "--gpukern-isolate=on"])
def test_a_random_seed_is_printed_recorded_and_that_of_other_processes_too(host, pytester, option):
    result = host("--gpukern-seed=random", "--gpukern-report=run.json", option)
    result.assert_outcomes(passed=4)
    seeds = {each["seed"] for each in results_in(pytester.path / "run.json").values()}
    assert len(seeds) == 1
    result.stdout.fnmatch_lines([f"gpukern seed: {seeds.pop()} for all inputs; *"])


FAILING = (
    of_size(8)
    + """
from numba import cuda

@cuda.jit
def neighbours(x, y):
    i = cuda.grid(1)
    if i < x.size:
        y[i] = x[i + 1]  # the fault

@cuda.jit
def right(x, y):
    i = cuda.grid(1)
    if i < x.size:
        y[i] = 2 * x[i]

@doubling.variant("numba")
def reads_on(x, y):
    return lambda: neighbours[1, 32](x, y)

@doubling.variant("numba")
def doubles(x, y):
    return lambda: right[1, 32](x, y)

"""
    + CASES
    + """
    assert case.variant.name == "reads_on", "a failure of the test's own"

def test_plain(gpu_benchmark):
    gpu_benchmark(neighbours[1, 32], np.zeros(8), np.zeros(8))
"""
)


def test_a_launch_that_fails_names_the_kernels_line_and_the_table_shows_each_failure(pytester):
    pytest.importorskip("numba_cuda")
    pytester.makepyfile(test_it=FAILING)
    result = pytester.runpytest_subprocess("--gpukern-simulator=always")
    result.assert_outcomes(failed=3)
    line = FAILING.strip().splitlines().index("        y[i] = x[i + 1]  # the fault") + 1
    told = f"launch failed: launching numba.reads_on, test_it.py:{line} in neighbours: IndexError: *"
    result.stdout.fnmatch_lines([f"INCORRECT: {told}", "    y[[]i[]] = x[[]i + 1[]]  # the fault"])
    table = result.outlines[result.outlines.index("doubling · n=8") :]
    shown = [" ".join(each.split()) for each in table]
    assert "numba.reads_on – INCORRECT" in shown
    assert "numba.doubles – exact FAILED" in shown
    assert "test_plain – unchecked FAILED" in shown
    assert not any("IndexError: " in each or "failure of the test's own" in each for each in shown[:9])
    assert not any("simulated" in each for each in shown)
