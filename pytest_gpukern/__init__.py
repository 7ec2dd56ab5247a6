"""Tells whether a GPU kernel is still right and still fast: a pytest plugin and benchmark suites.

The names in `__all__` are public; everything else may change without notice. Each is loaded when it is
first used, so that importing the package loads nothing else.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from pytest_gpukern.package import __version__

if TYPE_CHECKING:
    from pytest_gpukern.arrays.compare import Tolerance
    from pytest_gpukern.arrays.threaded import elementwise, random_array
    from pytest_gpukern.problems.axes import Axis, boundaries
    from pytest_gpukern.problems.call_by_name import ProblemError
    from pytest_gpukern.problems.cases import Case
    from pytest_gpukern.problems.problem import Output, Problem, Run
    from pytest_gpukern.run.measured_test import GpuBenchmark

_HOMES = {
    "Axis": "problems.axes",
    "Case": "problems.cases",
    "GpuBenchmark": "run.measured_test",
    "Output": "problems.problem",
    "Problem": "problems.problem",
    "ProblemError": "problems.call_by_name",
    "Run": "problems.problem",
    "Tolerance": "arrays.compare",
    "boundaries": "problems.axes",
    "elementwise": "arrays.threaded",
    "random_array": "arrays.threaded",
}

__all__ = [
    "Axis",
    "Case",
    "GpuBenchmark",
    "Output",
    "Problem",
    "ProblemError",
    "Run",
    "Tolerance",
    "__version__",
    "boundaries",
    "elementwise",
    "random_array",
]


def __getattr__(name: str) -> object:
    """Loads a public name from the module that defines it."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}; it has {', '.join(__all__)}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
