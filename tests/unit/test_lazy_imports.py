"""What the package loads as it is imported; import-linter holds which rooms import GPU libraries at all."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

HEAVY = {"numba", "cupy", "cupyx", "pycuda", "skcuda", "torch", "triton", "dask", "cuda", "cupti", "pynvml"}
HEAVY |= {"numpy", "pytest_benchmark", "xdist", "threadpoolctl", "yaml", "hypothesis"}
COMPUTES = {"arrays", "backends", "check", "code", "gpu", "problems", "timers", "findings.fleet"}
"""Rooms, and a module, that may load NumPy as they are imported; `gpu.nvml` and its like do not."""

IMPORTS = """
import builtins, importlib, json, pkgutil
found, real = set(), builtins.__import__
def noting(name, scope=None, names=None, wanted=(), level=0):
    if scope and not level:
        found.add((scope.get("__name__", ""), name.partition(".")[0]))
    return real(name, scope, names, wanted, level)
builtins.__import__ = noting
import pytest_gpukern
for module in pkgutil.walk_packages(pytest_gpukern.__path__, "pytest_gpukern."):
    if not module.name.endswith("__main__"):
        importlib.import_module(module.name)
print(json.dumps([each for each in found if each[0].startswith("pytest_gpukern")]))
"""


def printed(script):
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def test_importing_a_module_needs_the_standard_library_pytest_msgspec_and_in_some_rooms_numpy():
    allowed = {*sys.stdlib_module_names, "pytest", "_pytest", "pytest_gpukern", "msgspec"}
    foreign = set()
    for importer, name in printed(IMPORTS):
        module = importer.removeprefix("pytest_gpukern.")
        computes = COMPUTES & {module, module.partition(".")[0]}
        if name not in allowed | ({"numpy"} if computes else set()):
            foreign.add((module, name))
    simulator = {("gpu.simulator.arithmetic", "greenlet"), ("gpu.simulator.threads", "greenlet")}
    assert foreign == simulator, "only the simulator loads that"


def loaded_by(*statements):
    """Names in sys.modules after each statement, in a process of its own."""
    script = "import sys, json\nseen = []\n"
    script += "".join(f"{statement}\nseen.append(sorted(sys.modules))\n" for statement in statements)
    script += "print(json.dumps(seen))"
    return [set(names) for names in printed(script)]


def test_importing_the_plugin_loads_its_light_modules_and_the_standard_library_only():
    before, after = loaded_by("import pytest", "import pytest_gpukern.plugin")
    new = after - before
    ours = {name for name in new if name.startswith("pytest_gpukern")}
    light = ("package", "plugin", "session", "session.item", "session.stash", "values.phases")
    light += ("values", "values.options")
    tables = {name for name in ours if name.endswith("_table")}
    assert ours - tables == {"pytest_gpukern", *(f"pytest_gpukern.{name}" for name in light)}
    tops = {name.partition(".")[0] for name in new} - {"pytest_gpukern"}
    assert tops <= {*sys.stdlib_module_names, "pytest", "_pytest"}
    assert HEAVY.isdisjoint({name.partition(".")[0] for name in after})


@pytest.mark.parametrize(
    ("modules", "heavy"),
    [
        ("cli.main cli.report cli.compare cli.baseline cli.doctor session.controller session.child", HEAVY),
        ("run.measured_test run.environment check.check_variant gpu.runtime", HEAVY - {"numpy"}),
    ],
    ids=["what reports", "what measures"],
)
def test_what_reports_loads_no_numpy_and_what_measures_no_gpu_library(modules, heavy):
    for loaded in loaded_by(*(f"import pytest_gpukern.{module}" for module in modules.split())):
        assert heavy.isdisjoint({name.partition(".")[0] for name in loaded})
