"""What the plugin costs a run that never asks for it."""

import subprocess
import sys

import pytest

LOADED = """
import sys
import pytest
before = set(sys.modules)
import pytest_gpukern.plugin
print(*sorted({name.partition(".")[0] for name in set(sys.modules) - before}))
"""

RAN = """
import sys
import pytest
assert pytest.main(["-q", "-p", "no:cacheprovider"]) == 0
print(*sorted(name for name in sys.modules if name.startswith("pytest_gpukern")))
"""

UNTOUCHED = """
import os
import sys
import pytest
before = dict(os.environ)
assert pytest.main(["-q", "-p", "no:cacheprovider"]) == 0
heavy = {"numpy", "numba", "numba_cuda", "llvmlite", "cupy", "cuda", "pynvml", "torch", "threadpoolctl"}
print("loaded", *sorted(heavy & set(sys.modules)))
changed = {name for name, value in set(os.environ.items()) ^ set(before.items())}
print("changed", *sorted(changed - {"PYTEST_CURRENT_TEST"}))
"""


@pytest.fixture
def fresh(pytester, monkeypatch):
    """Runs a script in a fresh interpreter that keeps its byte code, as an installed package does."""
    monkeypatch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)
    monkeypatch.setenv("PYTHONPYCACHEPREFIX", str(pytester.path / "byte code"))
    monkeypatch.setenv("PYTHONPATH", "")
    pytester.makepyfile(test_nothing="def test_nothing(): pass")

    def run(script):
        found = subprocess.run(
            [sys.executable, "-c", script], capture_output=True, text=True, cwd=pytester.path
        )
        assert found.returncode == 0, found.stdout + found.stderr
        return found.stdout.splitlines()

    return run


def test_importing_the_plugin_loads_the_standard_library_and_nothing_else(fresh):
    (line,) = fresh(LOADED)
    assert set(line.split()) - sys.stdlib_module_names == {"pytest_gpukern"}


@pytest.mark.parametrize(
    ("ini", "loaded"),
    [("", "loaded"), ("gpukern_simulator = auto", "loaded pynvml")],  # by which it looks for a GPU
    ids=["never asked", "only its ini line asks"],
)
def test_a_run_that_tests_no_kernel_loads_no_gpu_library_and_changes_no_variable(
    fresh, pytester, ini, loaded
):
    pytester.makeini(f"[pytest]\n{ini}")
    lines = fresh(UNTOUCHED)
    assert lines[-2:] == [loaded, "changed"]


def test_a_run_that_never_asks_loads_nothing_that_describes_problems_or_measures(fresh):
    loaded = fresh(RAN)[-1].split()
    assert "pytest_gpukern.plugin" in loaded
    rooms = {name.split(".")[1] for name in loaded if "." in name}
    assert rooms <= {"package", "plugin", "run", "benchmark_interop", "processes", "report", "values"}
    assert not {"pytest_gpukern.run.environment", "pytest_gpukern.values.settings"} & set(loaded)


def test_a_run_that_never_asks_shows_nothing_of_the_plugin(pytester):
    pytester.makepyfile(test_nothing="def test_nothing(): pass")
    result = pytester.runpytest_inprocess()
    result.stdout.no_fnmatch_line("gpukern*:*")


def test_a_test_module_can_import_scikit_cuda_in_a_run_that_asks_for_this_plugin(pytester):
    package = pytester.mkpydir("skcuda")
    (package / "version.py").write_text("import numpy, pkg_resources; numpy.typeDict; __version__ = '0.5.3'")
    pytester.makepyfile("import skcuda.version\ndef test_it(): pass")
    asked = pytester.runpytest_subprocess("--gpukern-simulator=auto")
    asked.assert_outcomes(passed=1)
    asked.stdout.fnmatch_lines(
        ["gpukern note: scikit-cuda 0.5.3: pkg_resources is replaced; numpy.typeDict is supplied"]
    )
    pytester.runpytest_subprocess().assert_outcomes(errors=1)
