"""Has processes that wait for their turn import what this process imports, at the same time."""

from __future__ import annotations

import sys
from collections.abc import Iterable

from pytest_gpukern.processes.process import Process
from pytest_gpukern.values.backend_table import BACKENDS

_OURS = ("pytest_gpukern.session.collection", "pytest_gpukern.run.measured_test")
MODULES = tuple(name for row in BACKENDS.values() for name in row.imports)
"""Modules of libraries that leave CUDA alone."""


class Beside:
    """A finder of `sys.meta_path` that finds nothing, and tells processes what this one begins to import.

    They import the parts of this plugin that a session needs, too.

    Args:
        modules: names of modules that leave CUDA alone.
    """

    def __init__(self, modules: Iterable[str] = MODULES) -> None:
        self._modules = frozenset(modules)
        self._imported = [*_OURS, *(name for name in modules if name in sys.modules)]
        self._processes: list[Process] = []
        sys.meta_path.insert(0, self)

    def add(self, process: Process) -> None:
        self._processes.append(process)
        for name in self._imported:
            process.imports(name)

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:  # noqa: ARG002
        if name in self._modules and name not in self._imported:
            self._imported.append(name)
            for process in self._processes:
                process.imports(name)

    def remove(self, process: Process) -> None:
        self._processes.remove(process)

    def close(self) -> None:
        if self in sys.meta_path:
            sys.meta_path.remove(self)
