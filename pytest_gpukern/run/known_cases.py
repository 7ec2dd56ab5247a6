"""Which cases there are: what a baseline holds beyond them is stale. Known in a run of everything only."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pytest_gpukern.problems.cases import cases_of
from pytest_gpukern.run.collection import measured_case
from pytest_gpukern.run.stash import KNOWN_CASES, KNOWN_CASES_OF_A_WORKER, settings_of

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from pytest_gpukern.baseline.store import KnownCases


def note_known_cases(session: pytest.Session, items: Sequence[pytest.Item], *, deselected: int) -> None:
    """Notes the cases of all selected files, for the controller, where all of their tests were selected.

    Args:
        session: of pytest.
        items: what was selected.
        deselected: tests of these files that were not.

    Raises:
        pytest.UsageError: the run is to prune, and something was left out.
    """
    config = session.config
    settings = settings_of(config)
    if settings.baseline == "off":
        return
    left_out = _left_out(session, deselected)
    if left_out is not None:
        if settings.prune:
            raise pytest.UsageError(f"--gpukern-prune: it needs a run of everything, and {left_out}")
        return
    known = _known_cases(config, items)
    if hasattr(config, "workeroutput"):
        config.workeroutput[KNOWN_CASES_OF_A_WORKER] = [
            [each.folder, each.name, sorted(each.ids)] for each in known
        ]
    else:
        config.stash[KNOWN_CASES] = known


def _left_out(session: pytest.Session, deselected: int) -> str | None:
    """Why not everything was selected of the files that were, in words, or None."""
    config = session.config
    settings = settings_of(config)
    for name, chosen in (
        ("backend", settings.backends),
        ("axis", settings.axes),
        ("scope", settings.scopes),
        ("size", settings.size),
    ):
        if chosen:
            return f"--gpukern-{name} chooses a part"
    single = [argument for argument in config.args if "::" in argument]
    if single:
        return f"{single[0]} names single tests"
    if deselected:
        return f"{deselected} tests were deselected"
    if config.getoption("lf", False):
        return "--lf leaves out what passed"
    if session.testsfailed:
        return "not all files could be collected"
    return None


def _known_cases(config: pytest.Config, items: Sequence[pytest.Item]) -> tuple[KnownCases, ...]:
    """The cases of all selected files by baseline: of problems at all sizes, not only those selected."""
    from pytest_gpukern.baseline.store import KnownCases

    shared = settings_of(config).baseline_dir
    found: dict[tuple[str, str], set[str]] = {}
    problems: set[tuple[int, Path]] = set()
    for item in items:
        declared = getattr(getattr(item, "function", None), "_gpukern_problem", None)
        info = None if declared is not None and declared[1] else measured_case(config, item)
        if info is None:
            continue
        ids = found.setdefault((str(shared or info.baseline_dir), info.baseline_name), set())
        ids.add(info.id)
        if declared is not None and (id(declared[0]), item.path) not in problems:
            problems.add((id(declared[0]), item.path))
            for size in ("smoke", "full"):
                ids.update(case.id for case in cases_of(declared[0], size, {}))
    return tuple(KnownCases(folder, name, frozenset(ids)) for (folder, name), ids in found.items())
