"""Finds a problem's variants in its folder, without importing files that cannot be imported here.

Case ids must be the same in every process and on every machine. So if a library or a GPU is missing, we read
the names of a file's variants from its source, and each reports why it did not run.
"""

from __future__ import annotations

import ast
import importlib
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pytest_gpukern.gpu.simulator.errors import missing_gpu_in_error
from pytest_gpukern.problems.call_by_name import ProblemError, place_of
from pytest_gpukern.problems.problem import Problem
from pytest_gpukern.values.backend_table import installed
from pytest_gpukern.values.literals import constant

_PATTERNS = ("on_*.py", "wrong*.py")


@dataclass(frozen=True)
class Declared:
    """Holds a variant as its decorator states it in the source."""

    function: str
    backend: str
    wrong: bool
    arguments: dict[str, Any]
    takes: tuple[str, ...] | None
    place: str


def load_variants(problem: Problem, unusable: Callable[[str], str | None]) -> None:
    """Registers every variant in the folder of `problem.package`; a second call does nothing.

    Args:
        unusable: returns why a backend cannot run here, in words, or None.

    Raises:
        ProblemError: the folder or a decorator cannot be read.
    """
    if problem.package is None or problem.loaded:
        return
    problem.loaded = True
    package = sys.modules.get(problem.package)
    if package is None or not hasattr(package, "__path__"):
        raise problem.error(
            f"package={problem.package!r} is not an imported package; pass __package__, and put an "
            "__init__.py into the problem's folder"
        )
    folder = Path(next(iter(package.__path__)))
    for path in sorted({path for pattern in _PATTERNS for path in folder.glob(pattern)}):
        tree = ast.parse(path.read_text(encoding="utf-8"), str(path))
        declared = list(declared_variants(tree, path))
        reason = _why_not(tree, declared, unusable)
        if reason is None:
            try:
                importlib.import_module(f"{problem.package}.{path.stem}")
            except BaseException as error:
                reason = missing_gpu_in_error(error)
                if reason is None:
                    raise
        if reason is not None:
            for entry in declared:
                register = problem.wrong if entry.wrong else problem.variant
                try:
                    registration = register(entry.backend, **entry.arguments)
                    registration.unavailable(entry.function, entry.takes, reason, entry.place)
                except ProblemError as error:
                    raise ProblemError(str(error), entry.place) from None


def declared_variants(tree: ast.Module, path: Path) -> Iterator[Declared]:
    """Yields the functions decorated with `@….variant("backend", …)` or `@….wrong("backend", …)`.

    Raises:
        ProblemError: an argument is more than a literal or arithmetic on literals.
    """
    for node in tree.body:
        if not isinstance(node, ast.FunctionDef):
            continue
        for call in node.decorator_list:
            match call:
                case ast.Call(func=ast.Attribute(attr="variant" | "wrong" as kind), args=[first, *_]):
                    place = place_of(str(path), call.lineno)
                    try:
                        backend = constant(first)
                        arguments = {named.arg: constant(named.value) for named in call.keywords if named.arg}
                    except ValueError as error:
                        raise ProblemError(
                            f"the decorator of {node.name} takes literals only, because we read it even "
                            "where the file cannot be imported",
                            place,
                        ) from error
                    every = (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)
                    takes = None if node.args.kwarg else tuple(argument.arg for argument in every)
                    yield Declared(node.name, backend, kind == "wrong", arguments, takes, place)


def _why_not(tree: ast.Module, declared: list[Declared], unusable: Callable[[str], str | None]) -> str | None:
    """Says why a variants file cannot be imported: a module is missing, or no backend of it can run."""
    reasons = [unusable(backend) for backend in dict.fromkeys(entry.backend for entry in declared)]
    if reasons and all(reasons):
        return reasons[0]
    for node in tree.body:
        modules = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom) and not node.level and node.module:
            modules = [node.module]
        for library in (module.partition(".")[0] for module in modules):
            if not installed(library):
                return f"{library} is not installed"
    return None
