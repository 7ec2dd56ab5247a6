"""Prepares a run's tests: makes items of cases, refuses bad ones, shows the header."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from pytest_gpukern.session.item import case_of, declared_of, marker_of, may_use_gpu, simulator_lacks
from pytest_gpukern.session.stash import (
    CHILD,
    KNOWN_CASES,
    Assignment,
    environment_of,
    isolates,
    judges,
    refusing,
    settings_of,
    simulator_of,
    workers_of,
)
from pytest_gpukern.values.atomic_file import replace
from pytest_gpukern.values.options import plugin_requested, try_the_simulator
from pytest_gpukern.values.timer_table import times_host
from pytest_gpukern.values.untrusted_json import FileError, printable_lines

if TYPE_CHECKING:
    from pytest_gpukern.baseline.store import KnownCases
    from pytest_gpukern.problems.problem import Problem
    from pytest_gpukern.values.result import CaseInfo


USAGE_ERROR = "gpukern_usage_error"
"""Key under which an xdist worker tells the controller what is wrong with options or tests."""
KNOWN_CASES_OF_A_WORKER = "gpukern_known_cases"
"""Key under which it tells the cases of the selected files."""
_OF_ITS_OWN = (".git", "pyvenv.cfg", "conda-meta")
"""What is in a folder of a repository, worktree or virtual environment."""
_QUIET_CLEANUP = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
"""For cases whose launch fails on purpose: if it loses the CUDA context, libraries cannot give back what they
held in it."""


def parametrize_cases(metafunc: pytest.Metafunc, problem: Problem, wrong: bool) -> None:
    """Makes one item per case of `problem`, at the sizes that this run asks for.

    Beside a measuring process no backend can be used here: variants are read from their source.

    Raises:
        pytest.Collector.CollectError: its folder or a decorator in it cannot be read, it has no variants, or
            it names something that does not exist.
    """
    from pytest_gpukern.check.diagnosis import Fault
    from pytest_gpukern.problems.call_by_name import ProblemError
    from pytest_gpukern.problems.cases import cases_of
    from pytest_gpukern.problems.discovery import load_variants

    try:
        environment = environment_of(metafunc.config)
        load_variants(problem, environment.unusable)
        _refuse_unknown_names(problem, wrong)
    except ProblemError as error:
        raise pytest.Collector.CollectError(error.located) from error
    except pytest.UsageError as error:  # pytest would show its traceback here
        raise pytest.Collector.CollectError(str(error)) from error
    settings = environment.settings
    size = "smoke" if wrong else environment.size
    axes = {name: values for name, values in settings.axes.items() if name in problem.axes and not wrong}
    cases = [
        pytest.param(
            case,
            id=case.id,
            marks=_QUIET_CLEANUP if case.variant.expected_fault == Fault.LAUNCH_FAILED else (),
        )
        for case in cases_of(problem, size, axes, wrong=wrong)
    ]
    metafunc.parametrize("case", cases)


def _refuse_unknown_names(problem: Problem, wrong: bool) -> None:
    """Raises ProblemError for names that we can check only once all variants of a problem are known."""
    from pytest_gpukern.check.diagnosis import Fault
    from pytest_gpukern.problems.call_by_name import ProblemError

    variants, against = problem.variants, problem.speedup_against
    if not (variants.broken if wrong else variants.right):
        kind, decorator = ("broken ", "wrong") if wrong else ("", "variant")
        raise problem.error(
            f'it has no {kind}variants: decorate functions with @….{decorator}("numba") in the test module, '
            "or give the problem package=__package__ and put them in on_*.py or wrong*.py beside it"
        )
    if against is not None and against not in variants.right and not wrong:
        raise problem.error(
            f"speedup_against={against!r} is none of its variants {', '.join(variants.right)}"
        )
    for variant in variants.broken.values() if wrong else ():
        if variant.expected_fault not in (None, *Fault):
            raise ProblemError(
                f"variant {variant.label!r}: expected_fault={variant.expected_fault!r} is none of "
                f"{', '.join(Fault)}",
                variant.declared_at,
            )


def explain_failure(collector: pytest.Collector, report: pytest.CollectReport) -> None:
    """Shows one sentence, and no traceback, if a module declares something that cannot work.

    A module whose import error means that there is no GPU, or that it wants no simulator, is skipped. In a
    run that did not ask for this plugin, we say below the error what would run it.
    """
    from pytest_gpukern.gpu.simulator.errors import missing_gpu_in_error, refuses_simulator
    from pytest_gpukern.problems.call_by_name import ProblemError

    call, config = getattr(report, "call", None), collector.config
    error = call.excinfo.value if call is not None and call.excinfo is not None else None
    if isinstance(error, ProblemError):
        report.longrepr = error.located
    if error is None or not isinstance(collector, pytest.Module):
        return
    if not plugin_requested(config):
        if missing_gpu_in_error(error) is not None:
            report.sections.append(("gpukern", try_the_simulator(config)))
        return
    lacks = simulator_lacks(error) or refuses_simulator(error)
    reason = lacks if simulator_of(config).active else missing_gpu_in_error(error)
    if reason is not None:
        report.outcome = "skipped"
        report.longrepr = (str(collector.path), 1, f"Skipped: {reason}")
        report.result = []


def counted_as_benchmarks(config: pytest.Config, items: list[pytest.Item]) -> AbstractContextManager[None]:
    """Calls the function of `benchmark_interop`, which we load only if a test uses the fixture."""
    if not any("gpu_benchmark" in getattr(item, "fixturenames", ()) for item in items):
        return nullcontext()
    from pytest_gpukern.benchmark_interop.pytest_benchmark import counted_as_benchmarks as counted

    return counted(config, items)


def prepare_tests(session: pytest.Session, items: list[pytest.Item], *, deselected: int) -> None:
    """Gets ready to run selected tests; pytest.UsageError for equal names, unknown axes or a bad baseline."""
    config = session.config
    settings = settings_of(config)
    if judges(config):  # a base may have what the working tree has mended
        _refuse_equal_names(config, items)
    if settings.axes:
        _refuse_bad_axes(settings.axes, items)
    if settings.benchmark and settings.baseline != "off":
        for _, info, model in _measured_here(config, items):
            with refusing(FileError):
                environment_of(config).store.sessions_for(info, model, "")  # read before anything is measured
    _load_what_tests_need(config, items)
    if (settings.benchmark or settings.code) and CHILD not in config.stash:  # its parent does so
        _note_known_cases(session, items, deselected=deselected)
        _tell_what_is_recorded(config, items)


def _load_what_tests_need(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Imports what measures, and asks git, if tests here use it: the first test's time has neither."""
    # Nothing looks for a GPU where no test needs one.
    if any(map(may_use_gpu, items)) and not isolates(config):
        from pytest_gpukern.measure.observers import OBSERVERS
        from pytest_gpukern.report import progress  # noqa: F401
        from pytest_gpukern.run import measured_test  # noqa: F401
        from pytest_gpukern.values import marker  # noqa: F401

        for row in OBSERVERS.values():
            resolve_name(row.observer_class)
        environment_of(config).provenance  # noqa: B018 - git is asked now


def _refuse_equal_names(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Refuses a second problem of a name: case ids begin with it, in records, run files and reports.

    In one folder for all baselines, it also refuses modules of equal paths, each in a repository of its own.
    """
    settings = settings_of(config)
    places: dict[tuple[str, str], str] = {}
    made: dict[tuple[Any, str], Problem] = {}
    for item in items:
        declared = declared_of(item)
        if declared is not None:
            kind, name, place = "problem", declared.problem.name, declared.problem.statement
        elif settings.benchmark and settings.baseline_dir and (info := info_of(config, item)):
            kind, name, place = "test module", info.problem, str(item.path)
        else:
            continue
        first = places.setdefault((kind, name), place)
        # A statement makes a problem again where a module is imported again, but not for one module of tests.
        once = declared is None or made.setdefault((item.path, name), declared[0]) is declared[0]
        if first != place or not once:
            raise pytest.UsageError(
                f"two {kind}s are called {name!r}, in {first} and in {place}: one would be judged by the "
                "other's record; rename one"
            )


def _refuse_bad_axes(axes: Mapping[str, tuple[Any, ...]], items: list[pytest.Item]) -> None:
    """Refuses an axis that no selected problem has, and values of another kind than the axis has."""
    known: dict[str, list[Any]] = {}
    for item in items:
        declared = declared_of(item)
        for name, axis in declared.problem.axes.items() if declared is not None else ():
            known.setdefault(name, []).extend((*axis.smoke, *axis.values("full")))
    for name, values in axes.items() if known else ():
        if name not in known:
            raise pytest.UsageError(
                f"--gpukern-axis {name}=…: no selected problem has this axis; "
                f"the axes are {', '.join(sorted(known))}"
            )
        for value in values:
            if not any(_alike(value, own) for own in known[name]):
                raise pytest.UsageError(
                    f"--gpukern-axis {name}={value}: a problem with this axis takes values such as "
                    f"{', '.join(map(str, dict.fromkeys(known[name])))}"
                )


def _alike(value: Any, own: Any) -> bool:
    if isinstance(value, str) or isinstance(own, str):
        return isinstance(value, str) and isinstance(own, str)
    return isinstance(own, float) or (not isinstance(value, float) and (value >= 0 or own < 0))


def _measured_here(
    config: pytest.Config, items: Iterable[pytest.Item]
) -> Iterator[tuple[pytest.Item, CaseInfo, str]]:
    """Yields the tests that can be measured here, with their cases and the key of their hardware."""
    gpu = environment_of(config).gpu
    for item in items:
        info = info_of(config, item)
        if info is not None and (gpu.has_gpu or not info.on_gpu):
            yield item, info, gpu.model_key(on_gpu=info.on_gpu)


def _tell_what_is_recorded(config: pytest.Config, items: Sequence[pytest.Item]) -> None:
    """Has a worker write what helps to distribute the tests; all of them write the same."""
    given = Assignment.of(config)
    if given is None or given.run_folder is None:
        return
    from pytest_gpukern.session.workers import RECORDED, OnRecord

    environment = environment_of(config)
    cases = {item.nodeid: case for item in items if (case := case_of(item))}
    recorded = OnRecord(data={test: f"{case.problem.name} {case.point}" for test, case in cases.items()})
    for item, info, _ in _measured_here(config, items) if settings_of(config).baseline != "off" else ():
        past = environment.record_of(info).past() if info.on_gpu else ()
        uuids = {time.session.fingerprint.device_uuid for time in past}
        recorded.cards[item.nodeid] = tuple(sorted(filter(None, uuids)))
    # The controller may look at any time.
    replace(Path(given.run_folder) / RECORDED, msgspec.json.encode(recorded))


def info_of(config: pytest.Config, item: pytest.Item) -> CaseInfo | None:
    from pytest_gpukern.run.call_subject import info_of_test
    from pytest_gpukern.run.case_subject import case_info
    from pytest_gpukern.session.take_over_benchmark import is_taken_over

    if "gpu_benchmark" not in getattr(item, "fixturenames", ()) and not is_taken_over(item):
        return None
    case, path = case_of(item), Path(item.path)
    if case:
        return case_info(case, path)
    settings = settings_of(config)
    by_host = times_host(marker_of(item).timer or settings.timer)
    on_host = by_host and not environment_of(config).gpu.has_gpu
    return info_of_test(item.nodeid, path, config.rootpath, on_host=on_host)


def header(config: pytest.Config) -> list[str]:
    from pytest_gpukern.gpu.fingerprint import header_lines
    from pytest_gpukern.gpu.model import short_uuid

    environment = environment_of(config)
    gpu = environment.gpu
    reason = gpu.simulated.reason if gpu.simulated.active else gpu.missing_gpu
    lines = header_lines(gpu.device, gpu.fingerprint, reason)
    plugin = workers_of(config)
    if plugin is not None and plugin.cards:
        given = plugin.cards[: plugin.count]
        workers = f"one on each of {', '.join(short_uuid(uuid, given) for uuid in given)}"
        others = "; ".join(
            f"{card.name}, {short_uuid(card.uuid, [card.uuid])}" for card in gpu.of_other_models
        )
        workers += f"; not used, being of another model: {others}" if others else ""
        lines.append(f"gpukern workers: {workers}")
    seed = environment.settings.seed
    if seed is not None:
        lines.append(f"gpukern seed: {seed} for all inputs; --gpukern-seed={seed} repeats it")
    return [*map(printable_lines, [*lines, *(f"gpukern warning: {warning}" for warning in gpu.warnings)])]


def _note_known_cases(session: pytest.Session, items: Sequence[pytest.Item], *, deselected: int) -> None:
    """Notes the cases of all selected files for the controller; in a run of everything all that exist."""
    config, settings = session.config, settings_of(session.config)
    if settings.baseline == "off":
        return
    is_a_part = (
        *(settings.backends, settings.axes, settings.scopes, settings.size, deselected),
        any("::" in argument for argument in config.args),
        config.getoption("lf", False),
        session.testsfailed,  # not all files could be collected
    )
    whole = not any(is_a_part)
    known = _known_cases(config, items, whole=whole)
    if hasattr(config, "workeroutput"):
        config.workeroutput[KNOWN_CASES_OF_A_WORKER] = [vars(cases) for cases in known], whole
    else:
        config.stash[KNOWN_CASES] = known, whole


def _known_cases(
    config: pytest.Config, items: Sequence[pytest.Item], *, whole: bool
) -> tuple[KnownCases, ...]:
    """Returns the cases of all selected files by baseline; problems count at all sizes."""
    from pytest_gpukern.baseline.store import KnownCases
    from pytest_gpukern.problems.cases import cases_of
    from pytest_gpukern.run.call_subject import info_of_test
    from pytest_gpukern.run.case_subject import scopes_of

    settings, environment = settings_of(config), environment_of(config)
    by_baseline: dict[tuple[str, str], tuple[set[str], dict[str, str]]] = {}
    problems: set[tuple[int, Path]] = set()
    for item in items:
        declared = declared_of(item)
        info = None if declared is not None and declared.wrong else info_of(config, item)
        if info is None and declared is None and not whole:  # it may have measured something once
            info = info_of_test(item.nodeid, Path(item.path), config.rootpath)
        if info is None:
            continue
        folder, case = str(settings.baseline_dir or info.baseline_dir), case_of(item)
        ids, tests = by_baseline.setdefault((folder, environment.store.name_of(info)), (set(), {}))
        ids.add(info.id)
        other = settings.backends and info.backend not in (None, *settings.backends)
        if not other and (case is None or scopes_of(case, environment)):
            tests[item.nodeid] = info.id
        if declared is not None and (id(declared[0]), item.path) not in problems:
            problems.add((id(declared[0]), item.path))
            for size in ("smoke", "full"):
                ids.update(case.id for case in cases_of(declared[0], size, {}))
    return tuple(
        KnownCases(*baseline, frozenset(ids) if whole else None, tests)
        for baseline, (ids, tests) in by_baseline.items()
    )


def left_by_files(
    config: pytest.Config, known: Sequence[KnownCases], skipped: Mapping[str, str], model_keys: Iterable[str]
) -> Iterator[KnownCases]:
    """Yields the baselines that no collected test of a run of everything has, beside those that are known.

    They are of files that `skipped` themselves when they were collected, for the reasons given, and of tests
    that are gone from below a folder that the run was given; of one folder for all baselines, those of
    modules below the root folder, if the run was given that.
    """
    from pytest_gpukern.baseline.store import KnownCases
    from pytest_gpukern.run.call_subject import info_of_test

    shared, store = settings_of(config).baseline_dir, environment_of(config).store
    root, here = config.rootpath, config.invocation_params.dir
    seen = {(cases.folder, cases.name) for cases in known}
    for nodeid, reason in skipped.items():
        info = info_of_test(nodeid, root / nodeid, root)
        baseline = (str(shared or info.baseline_dir), store.name_of(info))
        seen.add(baseline)
        yield KnownCases(*baseline, why_gone=reason)
    if config.getoption("ignore") or config.getoption("ignore_glob"):
        return
    given = [os.path.abspath(here / path) for path in config.args]  # noqa: PTH100 - keeps links, as pytest does
    below = store.name_of(info_of_test("", root / "x", root))[:-1] if shared else ""
    folders = {folder for folder, _ in seen}
    if shared is not None:
        folders = {str(shared)}
    elif not any(map(config.getoption, ("keyword", "markexpr", "deselect"))):  # else a part was meant
        folders.update(_baseline_folders(given, config.getini("norecursedirs")))
    for folder, key in itertools.product(folders, model_keys):
        names = {path.name.removesuffix(f".{key}.json") for path in Path(folder).glob(f"{below}*.{key}.json")}
        top = root if shared is not None else Path(folder).parent
        why = f"{KnownCases.why_gone}, in {os.path.relpath(folder, here)}"
        if any(top.is_relative_to(path) for path in given):
            yield from (KnownCases(folder, x, why_gone=why) for x in names if (folder, x) not in seen)


def _baseline_folders(given: Iterable[str], pruned: Sequence[str]) -> Iterator[str]:
    """Yields those below the folders `given`, where pytest looks for tests; not of a repository inside."""
    for at, folders, _ in itertools.chain.from_iterable(map(os.walk, given)):
        if "baselines" in folders:
            yield str(Path(at, "baselines"))
        inside = (Path(at, name) for name in folders if not any(map(Path(at, name).match, pruned)))
        folders[:] = [path.name for path in inside if not any((path / own).exists() for own in _OF_ITS_OWN)]
