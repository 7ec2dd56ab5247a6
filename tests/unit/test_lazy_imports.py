"""What the package may import, where and when."""

from __future__ import annotations

import ast
import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(importlib.util.find_spec("pytest_gpukern").origin).parent

GPU_LIBRARIES = {
    "numba",
    "cupy",
    "cupyx",
    "pycuda",
    "skcuda",
    "torch",
    "triton",
    "dask",
    "cuda",
    "cupti",
    "pynvml",
}
MAY_IMPORT_THEM = {"backends", "timers", "gpu", "code", "sanitizer"}
"""The last one for kernels of its own."""
COMPUTES = {"arrays", "backends", "check", "code", "gpu", "problems", "timers", "findings.fleet"}
"""Rooms, and a module, that may load NumPy as they are imported; `gpu.nvml` and its like do not."""
HEAVY = {*GPU_LIBRARIES, "numpy", "pytest_benchmark", "xdist", "threadpoolctl", "yaml", "hypothesis"}


def modules():
    """Dotted name without the package's own → file; templates are no modules, but become a user's files."""
    found = {}
    for path in sorted(set(PACKAGE.rglob("*.py")) - set(PACKAGE.glob("cli/templates/*"))):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


MODULES = modules()


def room(module):
    return module.partition(".")[0]


def for_type_checkers(node):
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


def imports(source, module, *, is_folder=False):
    """(dotted name, whether inside a function) of everything that runs; relative names made absolute."""
    home = ["pytest_gpukern", *module.split(".")] if module else ["pytest_gpukern"]

    def walk(node, inside):
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.Import):
                yield from ((alias.name, inside) for alias in child.names)
            elif isinstance(child, ast.ImportFrom):
                up = home[: len(home) - child.level + is_folder] if child.level else []
                base = ".".join([*up, *([child.module] if child.module else [])])
                yield from ((f"{base}.{alias.name}", inside) for alias in child.names)
            elif for_type_checkers(child):
                for branch in child.orelse:
                    yield from walk(ast.Module([branch], []), inside)
            else:
                yield from walk(child, inside or isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef)))

    return list(walk(ast.parse(source), False))


def imports_of(module):
    path = MODULES[module]
    return imports(path.read_text(encoding="utf-8"), module, is_folder=path.name == "__init__.py")


def test_the_walk_sees_every_kind_of_import():
    source = """
import a.b, c as d
from e.f import g
from .h import i
from . import j
from pytest_gpukern.k import l
if TYPE_CHECKING:
    import hidden
else:
    import shown
try:
    import m
except ImportError:
    m = None
class C:
    import n
    def method(self):
        import o
        def inner():
            from p import q
"""
    assert imports(source, "gpu.model") == [
        ("a.b", False),
        ("c", False),
        ("e.f.g", False),
        ("pytest_gpukern.gpu.h.i", False),
        ("pytest_gpukern.gpu.j", False),
        ("pytest_gpukern.k.l", False),
        ("shown", False),
        ("m", False),
        ("n", False),
        ("o", True),
        ("p.q", True),
    ]
    assert imports("from .h import i", "gpu", is_folder=True) == [("pytest_gpukern.gpu.h.i", False)]


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module or "pytest_gpukern")
def test_gpu_libraries_are_imported_inside_functions_of_some_rooms_only(module):
    found = [(name, inside) for name, inside in imports_of(module) if name.partition(".")[0] in GPU_LIBRARIES]
    assert all(inside for _, inside in found), f"{module} imports a GPU library when it is imported"
    assert not found or room(module) in MAY_IMPORT_THEM


def test_the_rule_about_gpu_libraries_has_something_to_hold():
    users = {
        room(module)
        for module in MODULES
        if any(name.partition(".")[0] in GPU_LIBRARIES for name, _ in imports_of(module))
    }
    assert users == MAY_IMPORT_THEM


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module or "pytest_gpukern")
def test_importing_a_module_needs_the_standard_library_pytest_msgspec_and_in_some_rooms_numpy(module):
    allowed = {*sys.stdlib_module_names, "pytest", "_pytest", "pytest_gpukern", "msgspec"}
    allowed |= {"numpy"} if COMPUTES & {module, room(module)} else set()
    allowed |= {"greenlet"} if module == "gpu.simulator.threads" else set()  # only the simulator loads it
    foreign = {
        name for name, inside in imports_of(module) if not inside and name.partition(".")[0] not in allowed
    }
    assert foreign == set()


def loaded_by(*statements):
    """Names in sys.modules after each statement, in a process of its own."""
    script = "import sys, json\nseen = []\n"
    script += "".join(f"{statement}\nseen.append(sorted(sys.modules))\n" for statement in statements)
    script += "print(json.dumps(seen))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return [set(names) for names in json.loads(done.stdout)]


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
