"""What users import, and that suites and README need nothing else."""

from __future__ import annotations

import ast
import re
import types
from pathlib import Path

import pytest

import pytest_gpukern

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("name", [name for name in pytest_gpukern.__all__ if name != "__version__"])
def test_a_public_name_loads_and_is_documented(name):
    found = getattr(pytest_gpukern, name)
    assert (found.__name__, found.__module__.partition(".")[0]) == (name, "pytest_gpukern")
    methods = {method: member for method, member in vars(found).items() if not method.startswith("_")}
    functions = (types.FunctionType, classmethod, staticmethod, property)
    documented = {
        method: member.__doc__ for method, member in methods.items() if isinstance(member, functions)
    }
    assert found.__doc__
    assert all(documented.values()), documented


def test_a_name_that_is_not_there_is_refused_with_those_that_are():
    with pytest.raises(AttributeError, match="no attribute 'Problems'; it has Axis, Case"):
        pytest_gpukern.Problems  # noqa: B018


def imported(source):
    """(module, name) of what is imported from this package, also by a relative import of it."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and not node.level and node.module.startswith("pytest_gpukern"):
            yield from ((node.module, alias.name) for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from ((alias.name, None) for alias in node.names if alias.name.startswith("pytest_gpukern"))


def test_what_users_copy_imports_public_names_only():
    sources = [path.read_text(encoding="utf-8") for path in sorted((ROOT / "suites").glob("*/*.py"))]
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    sources += re.findall(r"```python\n(.*?)```", readme, re.DOTALL)
    found = {each for source in sources for each in imported(source)}
    assert ("pytest_gpukern", "Problem") in found
    assert found <= {("pytest_gpukern", name) for name in pytest_gpukern.__all__}
