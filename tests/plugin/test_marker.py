"""Checks that arguments of the `gpu_benchmark` marker are refused before their test runs."""

import pytest

from .conftest import results_in

WRONG = """
import pytest

@pytest.mark.gpu_benchmark(colour='red')
def test_keyword(gpu_benchmark):
    raise AssertionError("this test must not run")

@pytest.mark.gpu_benchmark(12)
def test_position(gpu_benchmark):
    raise AssertionError("this test must not run")

@pytest.mark.gpu_benchmark(colour="red")
class TestIt:
    def test_in_a_class(self, gpu_benchmark): pass

@pytest.mark.parametrize("n", [pytest.param(1, marks=pytest.mark.gpu_benchmark(colour="red"))])
def test_parameter(gpu_benchmark, n): pass

def test_other(): pass
"""


@pytest.mark.parametrize(
    "options", [(), ("--gpukern-simulator=never", "-n1")], ids=["never asked", "workers"]
)
def test_a_wrong_argument_fails_its_own_test_with_file_and_line_wherever_its_marker_stands(pytester, options):
    module = "import pytest\npytestmark = pytest.mark.gpu_benchmark(colour='red')\n"
    pytester.makepyfile(test_it=WRONG, test_module=f"{module}def test_it(gpu_benchmark): pass")
    result = pytester.runpytest_inprocess(*options)
    result.assert_outcomes(errors=5, passed=1)
    unknown = "gpu_benchmark has no argument 'colour'; it takes bytes, flops, threshold, *"
    result.stdout.fnmatch_lines_random(
        [
            f"test_it.py:3: test_keyword: {unknown}",
            "test_it.py:7: test_position: gpu_benchmark takes no positional arguments, found (12,); name *",
            f"test_it.py:13: TestIt.test_in_a_class: {unknown}",
            f"test_it.py:15: test_parameter[[]1[]]: {unknown}",
            f"test_module.py:3: test_it: {unknown}",
        ]
    )
    assert "Traceback" not in result.stdout.str()


def test_the_marker_is_registered(pytester):
    pytester.runpytest_inprocess("--markers").stdout.fnmatch_lines(["@pytest.mark.gpu_benchmark(bytes=, *"])


def test_what_may_use_the_gpu_is_thread_unsafe_by_the_marker_of_pytest_run_parallel(pytester):
    asks = 'print(item.name, item.get_closest_marker("thread_unsafe") is not None)'
    pytester.makeconftest(f"def pytest_itemcollected(item): {asks}")
    marked = "import pytest\n@pytest.mark.gpu_benchmark\ndef test_marked(): pass\n"
    pytester.makepyfile(f"{marked}def test_fixture(gpu_device): pass\ndef test_free(tmp_path): pass")
    result = pytester.runpytest_inprocess("--strict-markers", "-Werror", "--collect-only", "-qs")
    result.stdout.fnmatch_lines(["test_marked True", "test_fixture True", "test_free False"])


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
