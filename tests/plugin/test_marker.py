"""Checks that arguments of the `gpu_benchmark` marker are refused before their test runs."""

import pytest

from .conftest import results_in

MARKED = """
import pytest

@pytest.mark.gpu_benchmark({arguments})
def test_marked(gpu_benchmark):
    raise AssertionError("this test must not run")
"""
NEVER = ("--gpukern-simulator=never", "-p", "no:cacheprovider")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("colour='red'", "gpu_benchmark has no argument 'colour'; it takes bytes, flops, threshold, *"),
        ("12", "gpu_benchmark takes no positional arguments, found (12,); name them: bytes, *"),
    ],
)
@pytest.mark.parametrize("options", [NEVER, (), (*NEVER, "-n1")], ids=["asked", "never asked", "workers"])
def test_a_wrong_argument_fails_its_own_test_with_file_and_line(pytester, arguments, message, options):
    pytester.makepyfile(test_it=MARKED.format(arguments=arguments) + "\ndef test_other(): pass\n")
    result = pytester.runpytest_inprocess(*options)
    result.assert_outcomes(errors=1, passed=1)
    result.stdout.fnmatch_lines([f"test_it.py:3: test_marked: {message}"])
    assert "Traceback" not in result.stdout.str()


ON_A_PARAMETER = """
@pytest.mark.parametrize("n", [pytest.param(1, marks=pytest.mark.gpu_benchmark(colour="red"))])
def test_it(gpu_benchmark, n): pass
"""


@pytest.mark.parametrize(
    "test",
    [
        "pytestmark = pytest.mark.gpu_benchmark(colour='red')\ndef test_it(gpu_benchmark): pass",
        "@pytest.mark.gpu_benchmark(colour='red')\nclass TestIt:\n    def test_it(self, gpu_benchmark): pass",
        ON_A_PARAMETER,
    ],
    ids=["module", "class", "parameter"],
)
def test_a_wrong_argument_is_found_wherever_the_marker_stands(pytester, test):
    pytester.makepyfile(f"import pytest\n{test}")
    result = pytester.runpytest_inprocess(*NEVER)
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*: gpu_benchmark has no argument 'colour'; *"])


def test_the_marker_is_registered(pytester):
    pytester.makepyfile("import pytest\n@pytest.mark.gpu_benchmark\ndef test_it(): pass")
    pytester.runpytest_inprocess("--strict-markers").assert_outcomes(passed=1)
    pytester.runpytest_inprocess("--markers").stdout.fnmatch_lines(["@pytest.mark.gpu_benchmark(bytes=, *"])


def test_the_closest_marker_wins_argument_by_argument(pytester, gpu):
    pytester.makepyfile(
        test_doubling="""
import pytest
pytestmark = pytest.mark.gpu_benchmark(bytes=100, flops=7, cache="hot")

@pytest.mark.gpu_benchmark(bytes=200)
def test_it(gpu_benchmark):
    gpu_benchmark(lambda: None)
"""
    )
    gpu("--gpukern-report=run.json").assert_outcomes(passed=1)
    (result,) = results_in(pytester.path / "run.json").values()
    (measurement,) = result["measurements"]
    assert (measurement["traffic_bytes"], measurement["flops"], measurement["cache"]) == (200, 7, "hot")
