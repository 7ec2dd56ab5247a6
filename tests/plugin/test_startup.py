"""What the plugin costs a run that never asks for it."""

import json
import subprocess
import sys

import pytest

LIMIT_MS = 5.0
NOISE = 3.0
"""What a busy machine may add to the best of a few runs."""

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

COSTS = """
import functools
import inspect
import time
import pytest

spent_ns = 0

def charged(function):
    def timed(*args):
        global spent_ns
        start = time.process_time_ns()
        try:
            return function(*args)
        finally:
            spent_ns += time.process_time_ns() - start
    return timed

class Charged:
    \"\"\"A hook that wraps: what it does before and after the others is charged, the others are not.\"\"\"

    def __init__(self, inner):
        self.send, self.throw, self.close = charged(inner.send), charged(inner.throw), inner.close

    def __iter__(self):
        return self

    def __next__(self):
        return self.send(None)

def hook(function):
    run = charged(function)
    def called(*args):
        found = run(*args)
        return Charged(found) if inspect.isgenerator(found) else found
    return called

class Watch:
    def pytest_plugin_registered(self, plugin, plugin_name, manager):
        if plugin_name in ("gpukern", "gpukern-controller"):
            for caller in manager.get_hookcallers(plugin):
                for impl in caller.get_hookimpls():
                    if impl.plugin is plugin:
                        impl.function = hook(impl.function)

def load():
    import pytest_gpukern.plugin
    pytest_gpukern.plugin.add_options = charged(pytest_gpukern.plugin.add_options)

charged(load)()
assert pytest.main(["-q", "-p", "no:cacheprovider"], plugins=[Watch()]) == 0
print("milliseconds", spent_ns / 1e6)
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


def test_a_run_that_never_asks_loads_no_gpu_library_and_changes_no_variable(fresh):
    lines = fresh(UNTOUCHED)
    assert lines[-2:] == ["loaded", "changed"]


def test_a_run_that_never_asks_loads_nothing_that_describes_problems_or_measures(fresh):
    loaded = fresh(RAN)[-1].split()
    assert "pytest_gpukern.plugin" in loaded
    assert {"problem", "variant", "runner", "environment", "settings"}.isdisjoint(
        name.partition(".")[2] for name in loaded
    )


def test_a_run_that_never_asks_pays_next_to_nothing(fresh, record_property):
    fresh(COSTS)  # compiles
    costs_ms = [float(fresh(COSTS)[-1].split()[1]) for _ in range(4)]
    record_property("plugin_ms", json.dumps(costs_ms))
    assert min(costs_ms) < LIMIT_MS * NOISE


def test_a_run_that_never_asks_shows_nothing_of_the_plugin(pytester):
    pytester.makepyfile(test_nothing="def test_nothing(): pass")
    result = pytester.runpytest_inprocess()
    result.stdout.no_fnmatch_line("gpukern*:*")
