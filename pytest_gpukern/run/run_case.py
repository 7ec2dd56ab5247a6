"""The spine: one case, from its problem to its verdict."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from pytest_gpukern.check.check_variant import check_seeds
from pytest_gpukern.check.corner_cases import check_corners, corners_of
from pytest_gpukern.check.diagnosis import Diagnosis, IncorrectError
from pytest_gpukern.gpu.kernel_facts import kernel_facts, without_hash
from pytest_gpukern.run.prepare import placing_of, prepared_case, refuse_what_cannot_run, sets_wanted
from pytest_gpukern.run.time_case import other_contents_of_slow, recheck, timed
from pytest_gpukern.run.verdicts import judged
from pytest_gpukern.values.result import CaseInfo, Correctness, Result

if TYPE_CHECKING:
    from pathlib import Path

    from pytest_gpukern.check.corner_cases import Corners
    from pytest_gpukern.check.launch import Prepared
    from pytest_gpukern.problems.call_by_name import Point
    from pytest_gpukern.problems.cases import Case
    from pytest_gpukern.run.environment import Environment
    from pytest_gpukern.values.marker import MarkerOptions


def run_case(
    case: Case, environment: Environment, marker: MarkerOptions, nodeid: str, test_file: Path
) -> Result:
    """Checks one case, measures it where measuring is on, checks it again and judges it.

    Raises:
        NotRunError: it cannot run here, with the reason.
    """
    refuse_what_cannot_run(case, environment)
    point = case.problem.fit(case.point, environment.memory_budget_bytes)
    backend = environment.backend(case.variant.backend)
    info = case_info(case, point, test_file)
    result = Result(
        case=info,
        nodeid=nodeid,
        fingerprint=environment.fingerprint.to_json(),
        simulated=backend.simulated,
        speedup_against=case.problem.speedup_against,
        session=environment.session,
        seed=environment.settings.seed,
    )
    with environment.exclusive():
        try:
            timing = environment.settings.benchmark and not backend.simulated
            wanted = sets_wanted(environment, marker) if timing else None
            with prepared_case(case, point, backend, environment, wanted) as sets:
                first = sets[0]
                environment.look_at_memory()
                result = dataclasses.replace(
                    result, errors=first.errors_with_bits, first_call_ns=first.first_call_ns
                )
                result = _with_corners(result, first, point, environment)
                if timing:
                    result = _with_times(result, sets, point, environment, marker)
        except IncorrectError as error:
            return dataclasses.replace(
                result,
                correctness=Correctness.INCORRECT,
                diagnosis=error.diagnosis.message,
                errors=error.errors,
            )
    return judged(result, environment, marker)


def _with_corners(result: Result, prepared: Prepared, point: Point, environment: Environment) -> Result:
    """The result of a variant that is right in its corners too.

    Raises:
        IncorrectError: it is not.
    """
    corners = checked_further(prepared, point, environment)
    examined = environment.datasets.examined(prepared.case.problem, point, prepared.datasets)
    return dataclasses.replace(
        result,
        correctness=Correctness.PASSED,
        corners=corners.labels,
        notes=(*result.notes, *examined, *corners.notes),
    )


def _with_times(
    result: Result, sets: list[Prepared], point: Point, environment: Environment, marker: MarkerOptions
) -> Result:
    """The result of a checked case with its measurements, after which it was checked again.

    Raises:
        IncorrectError: it was no longer right.
    """
    first = sets[0]
    checked_on = other_contents_of_slow(first, point)
    measurements = timed(sets, point, environment, marker)
    with environment.loading_observed(own=False, on_gpu=first.backend.on_gpu):
        recheck(sets, point, checked_on)
    environment.look_at_memory()
    result = dataclasses.replace(
        result,
        measurements=measurements,
        errors=first.errors_with_bits,
        dtype=first.dataset.output_dtype,
        compile_ns=compile_time_ns(first) if first.backend.on_gpu else None,
    )
    return with_facts(result, environment)


def diagnose_case(case: Case, environment: Environment) -> Diagnosis | None:
    """Checks one case without measuring it: what is wrong with it, or None.

    Raises:
        NotRunError: it cannot run here, with the reason.
    """
    refuse_what_cannot_run(case, environment)
    backend = environment.backend(case.variant.backend)
    try:
        with (
            environment.exclusive(),
            prepared_case(case, case.point, backend, environment) as sets,
        ):
            checked_further(sets[0], case.point, environment)
            return None
    except IncorrectError as error:
        return error.diagnosis


def checked_further(prepared: Prepared, point: Point, environment: Environment) -> Corners:
    """Checks a variant that was right at its own point in its corners, and on the seeds that were asked for.

    Returns the corners. For a statistical check, seeds come in whole groups of those that it judges together.

    Raises:
        IncorrectError: it is wrong there.
    """
    case = prepared.case
    seeds, known = environment.settings.seeds or 0, len(prepared.datasets)
    if case.problem.check is not None:
        seeds = -(-seeds // case.problem.check_seeds) * case.problem.check_seeds
    with environment.loading_observed(own=False, on_gpu=prepared.backend.on_gpu):
        corners = corners_of(case, simulated=prepared.backend.simulated)
        placing = placing_of(case, environment)
        corners = check_corners(case, corners, prepared.backend, placing, environment.corner_datasets)
        if seeds > known:
            further = environment.datasets.further(case.problem, point, range(known, seeds))
            check_seeds(prepared, point, further)
    return corners


def with_facts(result: Result, environment: Environment) -> Result:
    """A measured result with what is known of its kernels, and of what the device does at best."""
    device = environment.device
    if not result.case.on_gpu or device is None or not environment.has_gpu:
        return result
    from pytest_gpukern.timers.cupti.machine_code import machine_code

    seen = [measurement for measurement in result.measurements if measurement.work]
    of_kernels = [measurement for measurement in seen if measurement.scope == "kernel"] or seen
    code, ceilings, canaries = machine_code(), environment.ceilings, environment.canaries
    kernels = kernel_facts(
        of_kernels[0].work if of_kernels else (),
        device.compute_capability,
        code.sha256 if code is not None else None,
        code.spills if code is not None else None,
    )
    unhashed = without_hash(kernels, code.refused if code is not None else "CUPTI cannot be used")
    return dataclasses.replace(
        result,
        notes=(*result.notes, *environment.take_late_warnings(), *unhashed),
        findings=(*result.findings, *(environment.memory.leaks() if environment.memory is not None else ())),
        kernels=kernels,
        ceilings=ceilings.to_json() if ceilings is not None else {},
        canaries=dict(canaries),
    )


def compile_time_ns(prepared: Prepared) -> float | None:
    """How much longer the first launch took than the last: compiling, loading and first allocations."""
    if prepared.first_call_ns is None or prepared.last_call_ns is None:
        return None
    return max(0.0, prepared.first_call_ns - prepared.last_call_ns)


def case_info(case: Case, measured_point: Point, test_file: Path) -> CaseInfo:
    """The part of a case that travels."""
    return CaseInfo(
        id=case.id,
        problem=case.problem.name,
        problem_version=case.problem.version,
        variant=case.variant.name,
        backend=case.variant.backend,
        point=dict(case.point),
        measured_point=dict(measured_point),
        parameters=dict(case.parameters),
        baseline_dir=str(test_file.parent / "baselines"),
        baseline_name=case.problem.name,
    )
