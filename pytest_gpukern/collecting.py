"""What happens before a test runs: early options, cases to items, refusals, the header."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pytest_gpukern.state import ENVIRONMENT, MARKER, environment_of, marker_of, settings_of, simulator_of

if TYPE_CHECKING:
    from pytest_gpukern.problem import Problem


def parametrize_cases(metafunc: pytest.Metafunc, problem: Problem, wrong: bool) -> None:
    """Makes one item a case of `problem`, at the sizes that this run asks for.

    Raises:
        pytest.UsageError: the problem has no variants, or an axis was given that it lacks.
    """
    from pytest_gpukern import backends
    from pytest_gpukern.discovery import load_variants
    from pytest_gpukern.environment import cannot_import
    from pytest_gpukern.problem import ProblemError

    environment = environment_of(metafunc.config)
    settings = environment.settings
    try:
        load_variants(problem, environment.unusable, backends.installed, cannot_import)
    except ProblemError as error:
        raise pytest.UsageError(str(error)) from error
    size = "smoke" if wrong else environment.size
    axes = {} if wrong else {name: values for name, values in settings.axes.items() if name in problem.axes}
    cases = list(problem.iter_cases(size, axes, wrong=wrong))
    metafunc.parametrize("case", cases, ids=[case.id for case in cases])


def skip_without_gpu(collector: pytest.Collector, report: pytest.CollectReport) -> None:
    """Turns a module's import error into a skip where it means that there is no GPU."""
    config = collector.config
    call = getattr(report, "call", None)
    if call is None or call.excinfo is None or not settings_of(config).asked:
        return
    if not isinstance(collector, pytest.Module):
        return
    from pytest_gpukern.concluding import simulator_lacks
    from pytest_gpukern.environment import cannot_import

    error = call.excinfo.value
    if simulator_of(config).active:
        reason = simulator_lacks(error.__cause__ or error)
    else:
        reason = cannot_import(error)
    if reason is None:
        return
    report.outcome = "skipped"
    report.longrepr = (str(collector.path), 1, f"Skipped: {reason}")
    report.result = []


def refuse_bad_items(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Raises pytest.UsageError for an unknown marker argument, axis or an unreadable baseline."""
    known_axes: set[str] = set()
    for item in items:
        if item.get_closest_marker(MARKER) is not None:
            marker_of(item)
        declared = getattr(getattr(item, "function", None), "_gpukern_problem", None)
        if declared is not None:
            known_axes.update(declared[0].axes)
    settings = settings_of(config)
    if known_axes:
        for name in settings.axes:
            if name not in known_axes:
                raise pytest.UsageError(
                    f"--gpukern-axis {name}=…: no selected problem has this axis; "
                    f"there is {', '.join(sorted(known_axes))}"
                )
    if settings.benchmark and settings.baseline != "off":
        _refuse_bad_baselines(config, items)


def _refuse_bad_baselines(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Reads every baseline that a selected case would be judged by, once, before anything is measured."""
    from pytest_gpukern.baseline import BaselineError
    from pytest_gpukern.runner import case_info

    environment = environment_of(config)
    for item in items:
        callspec = getattr(item, "callspec", None)
        case = callspec.params.get("case") if callspec is not None else None
        if case is None or not hasattr(case, "problem"):
            continue
        info = case_info(case, case.point, Path(item.path))
        try:
            on_gpu = environment.has_gpu and case.variant.backend != "host"
            environment.store.baseline(info, environment.model_key(on_gpu=on_gpu))
        except BaselineError as error:
            raise pytest.UsageError(str(error)) from error


def header(config: pytest.Config) -> list[str]:
    """The lines of the run's header; none where the run did not ask for the plugin."""
    if not settings_of(config).asked or ENVIRONMENT not in config.stash:
        return []
    from pytest_gpukern.device import header_lines

    environment = environment_of(config)
    reason = environment.simulated.reason if environment.simulated.active else environment.missing_gpu
    lines = header_lines(environment.device, environment.fingerprint, reason)
    return lines + [f"gpukern warning: {warning}" for warning in environment.warnings]
