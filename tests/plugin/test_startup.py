"""What the plugin costs a run that never asks for it."""

import subprocess
import sys

import pytest

UNTOUCHED = """
import os
import sys
import pytest
before = dict(os.environ)
assert pytest.main(["-p", "no:cacheprovider", *sys.argv[1:]]) == 0
heavy = {"numpy", "numba", "numba_cuda", "llvmlite", "cupy", "cuda", "pynvml", "torch", "threadpoolctl"}
print("loaded", *sorted(heavy & set(sys.modules)))
changed = {name for name, value in set(os.environ.items()) ^ set(before.items())}
print("changed", *sorted(changed - {"PYTEST_CURRENT_TEST"}))
print(*sorted(name for name in sys.modules if name.startswith("pytest_gpukern")))
"""


@pytest.fixture
def untouched(pytester, monkeypatch):
    """Runs pytest in a fresh interpreter that keeps its byte code, as an installed package does."""
    monkeypatch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)
    monkeypatch.setenv("PYTHONPYCACHEPREFIX", str(pytester.path / "byte code"))
    monkeypatch.setenv("PYTHONPATH", "")
    pytester.makepyfile(test_nothing="def test_nothing(): pass")

    def run(ini, *options):
        pytester.makeini(f"[pytest]\n{ini}")
        script = [sys.executable, "-c", UNTOUCHED, *options]
        found = subprocess.run(script, capture_output=True, text=True, cwd=pytester.path)
        assert found.returncode == 0, found.stdout + found.stderr
        return found.stdout.splitlines()

    return run


def test_a_run_that_never_asks_loads_and_changes_and_shows_nothing(untouched):
    *shown, loaded, changed, ours = untouched("")
    assert (loaded, changed) == ("loaded", "changed")
    assert not any(line.startswith("gpukern") for line in shown)
    assert "pytest_gpukern.plugin" in ours.split()
    rooms = {name.split(".")[1] for name in ours.split() if "." in name}
    assert rooms <= {"package", "plugin", "session", "benchmark_interop", "processes", "report", "values"}
    assert not {"pytest_gpukern.run.environment", "pytest_gpukern.values.settings"} & set(ours.split())


def test_a_run_that_only_its_ini_line_asks_and_that_tests_no_kernel_looks_for_a_gpu_at_most(untouched):
    lines = untouched("gpukern_simulator = auto", "-q")  # else the header tells of NumPy's BLAS
    assert lines[-3:-1] == ["loaded pynvml", "changed"]


def test_a_test_module_can_import_scikit_cuda_in_a_run_that_asks_for_this_plugin(pytester):
    package = pytester.mkpydir("skcuda")
    (package / "version.py").write_text("import numpy, pkg_resources; numpy.typeDict; __version__ = '0.5.3'")
    pytester.makepyfile("import skcuda.version\ndef test_it(): pass")
    asked = pytester.runpytest_subprocess("--gpukern-simulator=auto")
    asked.assert_outcomes(passed=1)
    asked.stdout.fnmatch_lines(
        ["gpukern note: scikit-cuda 0.5.3: we supplied pkg_resources, numpy.typeDict*"]
    )
