"""Publishes what a run measured as entries of pytest-benchmark's list."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest

from pytest_gpukern.benchmark_interop import pytest_benchmark as interop
from pytest_gpukern.report import units
from pytest_gpukern.report.csv_table import facts_of
from pytest_gpukern.report.rows import ResultRow
from pytest_gpukern.report.run import RunResults
from pytest_gpukern.values.result import Correctness, JsonDict, Measurement, Result
from pytest_gpukern.values.stored import plain

SCHEMA = 1
"""Version of what `extra_info` holds."""

_FACTS = ("case", "problem_version", "scope", "timer", "cache", "correctness", "verdict", "device", "driver")
"""Fields of `extra_info` that our CSV has under the same names."""

_IDENTITY = ("gpukern_schema", "scope", "timer", "cache", "problem_version", "device")
"""Fields of `extra_info` that must agree before pytest-benchmark may compare two times."""

_ASK_FOR_ALL = tuple(
    f"--benchmark-{name}"
    for name in ("columns", "sort", "group-by", "name", "verbose", "compare", "histogram", "cprofile")
)
"""Beginnings of the options by which somebody asks for pytest-benchmark's table, or what comes with it."""


def write(report: RunResults, config: pytest.Config) -> None:
    """Appends every valid measurement to pytest-benchmark's session, if that saves, compares or shows them.

    To be called on the controller before that plugin's `pytest_sessionfinish`. It has no way to mark what is
    simulated, invalid, incorrect or without samples: all that is left out. A saved time with another timer,
    cache policy, scope, problem version, size or device is taken out of its comparison, which it says.
    Names, parameters and `extra_info` of tests that used that plugin's fixture stay as they are without us.
    """
    session = interop.session_of(config)
    if session is None or interop.switched_off(config):
        return
    used = any((session.json, session.save, session.autosave, session.compare, session.compare_fail))
    if not (used or _shows_all(config)):
        return
    published = [
        metadata
        for result in report.results
        if result.correctness is not Correctness.INCORRECT and not result.simulated
        for metadata in _of_result(result, report.entries[result.nodeid], report.listed.get(result.nodeid))
    ]
    session.benchmarks.extend(published)
    _refuse_comparisons(session, published)


def _shows_all(config: pytest.Config) -> bool:
    given = [*config.invocation_params.args, *config.getini("addopts")]
    given += os.environ.get("PYTEST_ADDOPTS", "").split()
    return any(str(argument).startswith(_ASK_FOR_ALL) for argument in given)


def _of_result(result: Result, entry: JsonDict, listed: JsonDict | None) -> Iterator[Any]:
    for measurement in result.measurements:
        suffix = _suffix(result, measurement)
        if measurement.invalid is not None or not interop.samples_s(measurement):
            continue  # an entry without samples would crash pytest-benchmark
        fixture = _own_entry(result, entry) if listed is None else interop.ListedFixture(**listed)
        fixture.name += suffix
        fixture.fullname += suffix
        fixture.group = entry["group"] or fixture.group
        ours = _extra_info(result, measurement)
        # What a test noted stays as it is, under whatever names, so ours goes under one.
        fixture.extra_info = ours if listed is None else {**fixture.extra_info, interop.OURS: ours}
        yield interop.metadata_of(fixture, measurement)


def _own_entry(result: Result, entry: JsonDict) -> interop.ListedFixture:
    # Parameters may hold `::`, too.
    test, bracket, parameters = result.nodeid.partition("::")[2].partition("[")
    return interop.ListedFixture(
        name=test.rpartition("::")[2] + bracket + parameters,
        fullname=result.nodeid,
        group=result.case.problem,
        param=parameters.removesuffix("]") if bracket else None,
        params=entry["params"],
    )


def _suffix(result: Result, measurement: Measurement) -> str:
    """Returns nothing for the primary scope, else the scope: a name means the same whatever a run selects.

    The primary scope is the kernel's, but for host variants, which have one scope only, and plain tests. A
    launch is never it.
    """
    case = result.case
    one_scope = case.backend is None or not case.on_gpu
    primary = result.measurements[0].scope if one_scope else "kernel"
    return "" if measurement.scope == primary != "launch" else f"[{measurement.scope}]"


def _extra_info(result: Result, measurement: Measurement) -> JsonDict:
    """Returns what a number means, its rates and its verdict; all are finite. A run's file has the rest."""
    row, median_ns = ResultRow(result, measurement), measurement.summary.median_ns
    known = units.is_number(median_ns) and median_ns > 0
    traffic, flops, facts = measurement.traffic_bytes, measurement.flops, facts_of(row, measurement)
    info = {
        "gpukern_schema": SCHEMA,
        **{name: facts[name] for name in _FACTS},
        "gb_per_s": traffic / median_ns if traffic and known else None,
        "gflop_per_s": flops / median_ns if flops and known else None,
        "verdict_reason": row.judged.reason or None,
        "verdict_ratio": facts["ratio"],
        "warnings": [note.text for note in (*measurement.summary.notes, *result.notes)],
    }
    return plain(info)  # type: ignore[no-any-return]


def _refuse_comparisons(session: Any, published: list[Any]) -> None:
    differences: dict[str, list[str]] = {}
    for saved in (getattr(session, "compared_mapping", None) or {}).values():
        for metadata in published:
            if metadata.fullname not in saved:
                continue
            then, now = _ours(saved[metadata.fullname].get("extra_info") or {}), _ours(metadata.extra_info)
            first = next((name for name in _IDENTITY if then.get(name) != now[name]), None)
            if first is not None:
                del saved[metadata.fullname]
                difference = f"{first} was {then.get(first)!r}, is {now[first]!r}"
                differences.setdefault(difference, []).append(metadata.name)
    for difference, names in differences.items():
        more = f" and {len(names) - 1} more" if len(names) > 1 else ""
        # Not its `warning`, which would end the run under `-W error`.
        session.logger.info(f"gpukern: {names[0]}{more}: not compared: {difference}")


def _ours(extra_info: JsonDict) -> JsonDict:
    """Returns our part of an entry's `extra_info`: all of it, but where a test has its own."""
    ours = extra_info.get(interop.OURS)
    return ours if isinstance(ours, dict) else extra_info
