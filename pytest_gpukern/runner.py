"""The spine: one case, from its problem to its verdict."""

from __future__ import annotations

import dataclasses
import traceback
from contextlib import contextmanager
from typing import TYPE_CHECKING

from pytest_gpukern.check import (
    IncorrectError,
    Prepared,
    check,
    check_outputs,
    checked_launch,
    load_other_contents,
    observed,
)
from pytest_gpukern.environment import available_host_bytes
from pytest_gpukern.gate import Conditions, judge
from pytest_gpukern.result import CaseInfo, Correctness, Result, Verdict, VerdictKind
from pytest_gpukern.scopes import NEEDS_NO_WARM_UP_NS, adopt_last, measure_scopes, scopes_of
from pytest_gpukern.verify import Diagnosis, Fault

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pytest_gpukern.backends import Backend
    from pytest_gpukern.dataset import Dataset
    from pytest_gpukern.environment import Environment
    from pytest_gpukern.marker import MarkerOptions
    from pytest_gpukern.problem import Case, Point
    from pytest_gpukern.result import Measurement


_CUDA_LIBRARIES = ("cuda", "numba", "cupy", "cupy_backends", "pycuda", "torch")


class NotRunError(Exception):
    """A case cannot run here; the message says why, and the test is skipped with it."""


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
    )
    with environment.exclusive():
        try:
            with prepared_case(case, point, backend, environment) as prepared:
                result = dataclasses.replace(
                    result,
                    correctness=Correctness.PASSED,
                    errors=prepared.errors,
                    first_call_ns=prepared.first_call_ns,
                )
                if environment.settings.benchmark and not backend.simulated:
                    measurements = timed(prepared, point, environment, marker)
                    recheck(prepared, point)
                    result = dataclasses.replace(result, measurements=measurements, errors=prepared.errors)
        except IncorrectError as error:
            return dataclasses.replace(
                result,
                correctness=Correctness.INCORRECT,
                diagnosis=error.diagnosis.message,
                errors=error.errors,
            )
    return judged(result, environment, marker)


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
            prepared_case(case, case.point, backend, environment),
        ):
            return None
    except IncorrectError as error:
        return error.diagnosis


def refuse_what_cannot_run(case: Case, environment: Environment) -> None:
    """Raises NotRunError, with the reason in words, for a case that cannot run here."""
    variant = case.variant
    chosen = environment.settings.backends
    if chosen and variant.backend not in chosen:
        raise NotRunError(f"not selected: --gpukern-backend={','.join(chosen)}")
    reason = variant.unavailable or environment.unusable(variant.backend)
    if reason is None:
        reason = variant.limit_exceeded(case.point)
    if reason is None and variant.needs_gpu and variant.backend != "host" and environment.simulated.active:
        reason = f"not in the simulator: {variant.needs_gpu}"
    if reason is not None:
        raise NotRunError(reason)
    if environment.settings.benchmark and not scopes_of(case, environment):
        wanted = ",".join(environment.settings.scopes)
        raise NotRunError(f"not selected: --gpukern-scope={wanted}, and it has {','.join(case.scopes)}")


@contextmanager
def prepared_case(case: Case, point: Point, backend: Backend, environment: Environment) -> Iterator[Prepared]:
    """A case whose variant was checked on its data sets, in a workspace that is given back afterwards.

    Raises:
        IncorrectError: the check found a fault.
        NotRunError: the arrays do not fit.
    """
    datasets = environment.datasets.for_check(case.problem, point)
    placing = backend
    if case.variant.host_data:
        placing = environment.backend("host")
    _refuse_too_large(datasets[0], placing)
    workspace = placing.workspace(datasets[0].inputs, datasets[0].specs)
    prepared = None
    try:
        prepared = check(case, point, backend, workspace, datasets)
        yield prepared
    finally:
        if prepared is not None:  # what a launch returned or holds on to could not be released
            prepared.launch, prepared.last_returned = _given_back, None
        try:
            workspace.close()
        finally:
            backend.release()


def _given_back() -> None:
    """Takes the place of a launch whose arrays are gone."""
    raise RuntimeError("the arrays of this case were given back")


def _refuse_too_large(dataset: Dataset, backend: Backend) -> None:
    on_host = dataset.input_bytes + 2 * dataset.output_bytes
    available = available_host_bytes()
    if on_host > available:
        raise NotRunError(
            f"too large: it needs {on_host / 2**30:.1f} GiB of host memory, "
            f"and {available / 2**30:.1f} are available"
        )
    if not backend.on_gpu:
        return
    from pytest_gpukern.backends.cuda import runtime

    # Where a check is statistical only, an array of zeros stands in for the reference.
    reference = dataset.expected_bytes or dataset.output_bytes
    needed = dataset.input_bytes + dataset.output_bytes + reference  # which is compared on the device
    if needed > runtime().free_bytes():
        runtime().forget_references()
    free = runtime().free_bytes()
    if needed > free:
        raise NotRunError(
            f"too large: it needs {needed / 2**30:.1f} GiB of device memory, and {free / 2**30:.1f} are free"
        )


def timed(
    prepared: Prepared, point: Point, environment: Environment, marker: MarkerOptions
) -> tuple[Measurement, ...]:
    """Measures a checked case in its scopes.

    Raises:
        IncorrectError: a launch that was right before failed while it was timed.
    """
    try:
        return measure_scopes(prepared, point, environment, marker)
    except Exception as error:
        if not _comes_from_the_launch(error, prepared):
            raise
        message = f"right before timing, {Fault.LAUNCH_FAILED} in it: {type(error).__name__}: {error}"
        raise IncorrectError(Diagnosis(Fault.LAUNCH_FAILED, message), prepared.errors) from error


def _comes_from_the_launch(error: BaseException, prepared: Prepared) -> bool:
    """Whether an error was raised in the variant's file, or is CUDA's, which a launch may cause later."""
    if type(error).__module__.partition(".")[0] in _CUDA_LIBRARIES or type(error).__name__ == "CudaError":
        return True
    prepare = prepared.case.variant.prepare
    source = prepare.__code__.co_filename if prepare is not None else None
    return any(frame.f_code.co_filename == source for frame, _ in traceback.walk_tb(error.__traceback__))


def recheck(prepared: Prepared, point: Point) -> None:
    """Checks what the last timed launch left behind, then one launch more, on other inputs where there are.

    A launch that has stopped writing leaves the right answer of an earlier one behind, which the poison
    shows; one that has come to replay an answer is right only for the inputs that it was timed on. What takes
    seconds was timed so few times, on outputs poisoned before, that the first check is enough.

    Raises:
        IncorrectError: it is no longer right; the message says that it was before timing.
    """
    prepared.backend.synchronize()
    try:
        adopt_last(prepared)
        check_outputs(prepared)
        statistical = prepared.case.problem.check
        if statistical is not None:
            complaint = statistical([observed(prepared, point)])
            if complaint:
                raise IncorrectError(Diagnosis(Fault.STATISTICS, complaint), prepared.errors)
        if (prepared.last_call_ns or 0) < NEEDS_NO_WARM_UP_NS:
            checked_launch(prepared, earlier=load_other_contents(prepared))
    except IncorrectError as error:
        message = f"right before timing, wrong after it\n{error.diagnosis.message}"
        raise IncorrectError(Diagnosis(error.diagnosis.fault, message), error.errors) from error


def judged(result: Result, environment: Environment, marker: MarkerOptions) -> Result:
    """The result with a verdict for each of its measurements; without baselines, only what is INVALID."""
    compares, on_gpu = environment.settings.baseline != "off", result.case.on_gpu
    conditions = Conditions.of(
        result.case, device_model=environment.model_key(on_gpu=on_gpu), simulated=result.simulated
    )
    verdicts: dict[str, Verdict] = {}
    for measurement in result.measurements:
        verdict = judge(
            measurement,
            environment.recorded(result.case, measurement.key, on_gpu=on_gpu) if compares else (),
            conditions=conditions,
            threshold=marker.threshold or environment.settings.threshold,
            jitter_ns=measurement.jitter_ns,
            device=result.fingerprint.get("device_uuid") if on_gpu else None,
        )
        if verdict.kind is VerdictKind.SLOWER and not on_gpu:
            verdict = dataclasses.replace(verdict, reason=f"{verdict.reason}; a host's time fails no test")
        if compares or verdict.kind is VerdictKind.INVALID:
            verdicts[measurement.key] = verdict
    return dataclasses.replace(result, verdicts=verdicts)


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
