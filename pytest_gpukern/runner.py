"""The spine: one case, from its problem to its verdict."""

from __future__ import annotations

import dataclasses
import itertools
import traceback
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

from pytest_gpukern.check import (
    Prepared,
    check,
    check_guards,
    check_outputs,
    check_runs,
    check_seeds,
    checked_copy,
    checked_launch,
    giving_back,
    is_slow,
    load_other_contents,
    observed,
    turn_to,
)
from pytest_gpukern.corners import check_corners, corners_of
from pytest_gpukern.dataset import CONTENTS
from pytest_gpukern.environment import available_host_bytes
from pytest_gpukern.gate import Conditions, judge
from pytest_gpukern.kernel_facts import kernel_facts, without_hash
from pytest_gpukern.result import CaseInfo, Correctness, Result, Verdict, VerdictKind
from pytest_gpukern.scopes import adopt_last, measure_scopes, scopes_of
from pytest_gpukern.verify import Diagnosis, Fault, IncorrectError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from pytest_gpukern.backends import Backend
    from pytest_gpukern.corners import Corners
    from pytest_gpukern.dataset import Dataset
    from pytest_gpukern.environment import Environment
    from pytest_gpukern.gate import SessionTime
    from pytest_gpukern.marker import MarkerOptions
    from pytest_gpukern.problem import Case, Point
    from pytest_gpukern.result import Measurement


MOST_SETS = 512
_VERY_SLOW_NS = 5e9
_CUDA_LIBRARIES = ("cuda", "numba", "cupy", "cupy_backends", "pycuda", "skcuda", "torch", "dask")


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
                corners = checked_further(first, point, environment)
                result = dataclasses.replace(
                    result,
                    correctness=Correctness.PASSED,
                    corners=corners.labels,
                    notes=(
                        *result.notes,
                        *environment.datasets.examined(case.problem, point, first.datasets),
                        *corners.notes,
                    ),
                )
                if timing:
                    checked_on = _other_contents_of_slow(first, point)
                    measurements = timed(sets, point, environment, marker)
                    recheck(sets, point, checked_on)
                    environment.look_at_memory()
                    result = dataclasses.replace(
                        result,
                        measurements=measurements,
                        errors=first.errors_with_bits,
                        dtype=first.dataset.output_dtype,
                        compile_ns=compile_time_ns(first) if backend.on_gpu else None,
                    )
                    result = with_facts(result, environment)
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
            prepared_case(case, case.point, backend, environment) as sets,
        ):
            checked_further(sets[0], case.point, environment)
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
    if (
        reason is None
        and variant.at
        and case.problem.is_huge(case.point)
        and environment.settings.size != "huge"
    ):
        at = ", ".join(f"{axis}={value}" for axis, value in variant.at.items())
        reason = f"only at {at}: --gpukern-size=huge"
    if reason is None and environment.simulated.active and environment.settings.size == "huge":
        reason = "not in the simulator: huge sizes" if variant.backend != "host" else None
    if reason is None and variant.needs_gpu and variant.backend != "host" and environment.simulated.active:
        reason = f"not in the simulator: {variant.needs_gpu}"
    if reason is not None:
        raise NotRunError(reason)
    if environment.settings.benchmark and not scopes_of(case, environment):
        wanted = ",".join(environment.settings.scopes)
        raise NotRunError(f"not selected: --gpukern-scope={wanted}, and it has {','.join(case.scopes)}")


def placing_of(case: Case, environment: Environment) -> Backend:
    """The backend that makes a variant's arrays: its own, or the host's where it moves the data itself."""
    return environment.backend("host" if case.variant.host_data else case.variant.backend)


def checked_further(prepared: Prepared, point: Point, environment: Environment) -> Corners:
    """Checks a variant that was right at its own point in its corners, and on the seeds that were asked for.

    Returns the corners. For a statistical check, seeds come in whole groups of those that it judges together.

    Raises:
        IncorrectError: it is wrong there.
    """
    case = prepared.case
    corners = corners_of(case, simulated=prepared.backend.simulated)
    placing = placing_of(case, environment)
    corners = check_corners(case, corners, prepared.backend, placing, environment.corner_datasets)
    seeds, known = environment.settings.seeds or 0, len(prepared.datasets)
    if case.problem.check is not None:
        seeds = -(-seeds // case.problem.check_seeds) * case.problem.check_seeds
    if seeds > known:
        further = environment.datasets.further(case.problem, point, range(known, seeds))
        check_seeds(prepared, point, further)
    return corners


@contextmanager
def prepared_case(
    case: Case,
    point: Point,
    backend: Backend,
    environment: Environment,
    sets_for: Callable[[Dataset], int] | None = None,
) -> Iterator[list[Prepared]]:
    """A case whose variant was checked on its data sets, in workspaces that are given back afterwards.

    Args:
        case: problem, variant and point as asked for.
        point: the point as it runs here.
        backend: the variant's.
        environment: data sets and the other backends.
        sets_for: how many buffer sets with different contents it is to be timed on, given one of its data
            sets; None where it will not be timed. There are as many as fit, and one on the host.

    Raises:
        IncorrectError: the check found a fault.
        NotRunError: the arrays do not fit.
        ProblemError: with these data, what is wrong would pass.
    """
    datasets = environment.datasets.for_check(
        case.problem,
        point,
        contents=CONTENTS if sets_for and backend.on_gpu else 2,
        available_bytes=available_host_bytes(),
    )
    environment.datasets.examined(case.problem, point, datasets)
    placing = placing_of(case, environment)
    _refuse_too_large(datasets[0], placing)
    sets: list[Prepared] = []
    with ExitStack() as given_back:
        given_back.push(giving_back(backend.release))
        workspace = placing.workspace(datasets[0].inputs, datasets[0].specs)
        given_back.push(giving_back(workspace.close))
        with _code_observed() if sets_for and backend.on_gpu else nullcontext():
            sets.append(check(case, point, backend, workspace, datasets, checked_again=sets_for is not None))
        given_back.callback(sets[0].let_go)
        if sets_for and placing.on_gpu:
            for dataset in _other_contents(sets[0], datasets, sets_for(datasets[0]) - 1):
                workspace = placing.workspace(dataset.inputs, dataset.specs)
                given_back.push(giving_back(workspace.close))
                sets.append(checked_copy(sets[0], point, workspace, dataset))
                given_back.callback(sets[-1].let_go)
        yield sets


def sets_wanted(environment: Environment, marker: MarkerOptions) -> Callable[[Dataset], int]:
    """How many buffer sets a case is timed on: three, or for cold graphs, in which nothing is flushed between
    the calls, so many that each set is evicted before its next turn."""
    graph = (marker.timer or environment.settings.timer) == "graph"
    if not graph or (marker.cache or environment.settings.cache) == "hot":
        return lambda dataset: CONTENTS  # noqa: ARG005

    def enough(dataset: Dataset) -> int:
        from pytest_gpukern.backends.cuda import runtime
        from pytest_gpukern.timers.graph import sets_needed

        needed = sets_needed(dataset.input_bytes + dataset.output_bytes, runtime().l2_bytes)
        return max(CONTENTS, min(needed, MOST_SETS))

    return enough


def with_facts(result: Result, environment: Environment) -> Result:
    """A measured result with what is known of its kernels, and of what the device does at best."""
    device = environment.device
    if not result.case.on_gpu or device is None or not environment.has_gpu:
        return result
    from pytest_gpukern.timers.machine_code import machine_code

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


def _code_observed() -> AbstractContextManager[None]:
    from pytest_gpukern.timers.machine_code import loading_observed

    return loading_observed()


def compile_time_ns(prepared: Prepared) -> float | None:
    """How much longer the first launch took than the last: compiling, loading and first allocations."""
    if prepared.first_call_ns is None or prepared.last_call_ns is None:
        return None
    return max(0.0, prepared.first_call_ns - prepared.last_call_ns)


def _other_contents(prepared: Prepared, datasets: list[Dataset], count: int) -> list[Dataset]:
    """The data sets of up to `count` further buffer sets, as many as fit; first those not in the first set.

    A call of a tenth of a second is timed so few times, and does so much, that it stays on one set.
    """
    from pytest_gpukern.backends.cuda import runtime

    if is_slow(prepared):
        return []
    others = [dataset for dataset in datasets if dataset is not prepared.dataset][: CONTENTS - 1]
    in_turn = itertools.islice(itertools.cycle([*others, prepared.dataset]), count)
    needed = prepared.dataset.input_bytes + prepared.dataset.output_bytes
    if needed * count > runtime().free_bytes() / 2:
        runtime().forget_copies()
    fitting = int(runtime().free_bytes() / 2 // max(1, needed))
    return list(in_turn)[:fitting] if others else []


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
        runtime().forget_copies()
    free = runtime().free_bytes()
    if needed > free:
        raise NotRunError(
            f"too large: it needs {needed / 2**30:.1f} GiB of device memory, and {free / 2**30:.1f} are free"
        )


def timed(
    sets: list[Prepared], point: Point, environment: Environment, marker: MarkerOptions
) -> tuple[Measurement, ...]:
    """Measures a checked case in its scopes.

    Raises:
        IncorrectError: a launch that was right before failed while it was timed.
    """
    try:
        return measure_scopes(sets, point, environment, marker)
    except IncorrectError as error:
        raise _after_timing(error) from error
    except Exception as error:
        if not _comes_from_the_launch(error, sets[0]):
            raise
        message = f"right before timing, {Fault.LAUNCH_FAILED} in it: {type(error).__name__}: {error}"
        raise IncorrectError(Diagnosis(Fault.LAUNCH_FAILED, message), sets[0].errors) from error


def _comes_from_the_launch(error: BaseException, prepared: Prepared) -> bool:
    """Whether an error was raised in the variant's file, or is CUDA's, which a launch may cause later."""
    if type(error).__module__.partition(".")[0] in _CUDA_LIBRARIES or type(error).__name__ == "CudaError":
        return True
    prepare = prepared.case.variant.prepare
    source = prepare.__code__.co_filename if prepare is not None else None
    return any(frame.f_code.co_filename == source for frame, _ in traceback.walk_tb(error.__traceback__))


def _other_contents_of_slow(prepared: Prepared, point: Point) -> list[Dataset]:
    """Has a slow launch on the host timed on other contents than it was checked on, which spares a launch.

    Returns the set that it was checked on last, or nothing where the buffers still hold it.
    """
    if prepared.backend.on_gpu or not is_slow(prepared):
        return []
    before = prepared.dataset
    if prepared.case.problem.check is not None:
        unseen = [dataset for dataset in prepared.datasets if dataset.seed_offset not in prepared.runs]
        if not unseen:
            return []
        turn_to(prepared, point, unseen[0])
        return [before]
    return load_other_contents(prepared) if before is prepared.datasets[0] else []


def recheck(sets: list[Prepared], point: Point, earlier: Sequence[Dataset] = ()) -> None:
    """Checks what the last timed launches left behind, then one launch more, on other inputs where there are.

    A launch that has stopped writing leaves the right answer of an earlier one behind, which the poison
    shows; one that has come to replay an answer is right only for the inputs that it was timed on. What takes
    seconds, or is slow on the host, was timed so few times, on outputs poisoned before, that no other launch
    is needed where more than one set was seen.

    Args:
        sets: the variant on each buffer set.
        point: where.
        earlier: sets that the first buffers held before they were timed on.

    Raises:
        IncorrectError: it is no longer right; the message says that it was before timing.
    """
    first = sets[0]
    first.backend.synchronize()
    try:
        for prepared in sets:
            check_guards(prepared)
            adopt_last(prepared)
            check_outputs(prepared, list(earlier))
        if first.case.problem.check is not None:
            first.runs[first.dataset.seed_offset] = observed(first, point)
            check_runs(first)
        others_unseen = len(first.datasets) > 1 and first.dataset is first.datasets[0]
        slow = is_slow(first) and (not first.backend.on_gpu or (first.last_call_ns or 0.0) > _VERY_SLOW_NS)
        if others_unseen or not slow:
            for prepared in sets[:CONTENTS]:
                checked_launch(prepared, earlier=load_other_contents(prepared))
    except IncorrectError as error:
        raise _after_timing(error) from error


def _after_timing(error: IncorrectError) -> IncorrectError:
    message = f"right before timing, wrong after it\n{error.diagnosis.message}"
    return IncorrectError(Diagnosis(error.diagnosis.fault, message), error.errors)


def judged(
    result: Result, environment: Environment, marker: MarkerOptions, further: Sequence[Result] = ()
) -> Result:
    """The result with a verdict for each of its measurements; without baselines, only what is INVALID.

    A number that was taken beside a main timer's is judged where the record has that one only, as after CUPTI
    became usable on a machine; then it stands for both.

    Args:
        result: of this process.
        environment: baselines and the run's threshold.
        marker: the test's own threshold.
        further: what the same test found in further sessions, which are judged together with this one.
    """
    compares, on_gpu = environment.settings.baseline != "off", result.case.on_gpu
    recorded = {
        measurement.key: environment.recorded(result.case, measurement.key, on_gpu=on_gpu) if compares else ()
        for measurement in result.measurements
    }
    chosen = {measurement.key for measurement in _to_judge(result.measurements, recorded)}
    verdicts: dict[str, Verdict] = {}
    for measurement in result.measurements:
        if measurement.key not in chosen and measurement.invalid is None:
            continue
        verdict = judge(
            [measurement, *under(measurement.key, further)],
            recorded[measurement.key],
            **how_judged(result, measurement, environment, marker),
        )
        if compares:
            verdict = naming_its_epoch(verdict, result, measurement.key, environment)
        if not on_gpu and "host" not in environment.settings.gate_on:
            verdict = of_host(verdict)
        if compares or verdict.kind is VerdictKind.INVALID:
            verdicts[measurement.key] = verdict
    return dataclasses.replace(result, verdicts=verdicts)


def under(key: str, results: Iterable[Result]) -> list[Measurement]:
    """What results hold under one `scope/timer/cache`."""
    return [
        measurement for result in results for measurement in result.measurements if measurement.key == key
    ]


def how_judged(
    result: Result, measurement: Measurement, environment: Environment, marker: MarkerOptions
) -> dict[str, Any]:
    """What a measurement is judged under, by name, beside the sessions of its record."""
    compares, on_gpu, key = environment.settings.baseline != "off", result.case.on_gpu, measurement.key
    return {
        "conditions": Conditions.of(
            result.case, device_model=environment.model_key(on_gpu=on_gpu), simulated=result.simulated
        ),
        "threshold": marker.threshold or environment.settings.threshold,
        "jitter_ns": measurement.jitter_ns,
        "device": result.fingerprint.get("device_uuid") if on_gpu else None,
        "shared": environment.shared_spread(key, on_gpu=on_gpu) if compares else None,
        "anchor": environment.anchor(result.case, key, on_gpu=on_gpu) if compares else (),
    }


def naming_its_epoch(verdict: Verdict, result: Result, key: str, environment: Environment) -> Verdict:
    """The verdict, saying where it rests on an older epoch because the newest has no time under its key."""
    opened = environment.newer_epoch(result.case, key) if verdict.ratio is not None else None
    if opened is None:
        return verdict
    reason = f"{verdict.reason}; by an older epoch, since that of {opened[:10]} has no {key}"
    return dataclasses.replace(verdict, reason=reason)


def of_host(verdict: Verdict) -> Verdict:
    """A verdict about the host's time: it fails no test, so there is nothing to confirm."""
    slower = verdict.kind is VerdictKind.SLOWER
    reason = f"{verdict.reason}; a host's time fails no test" if slower else verdict.reason
    return dataclasses.replace(verdict, reason=reason, suspected=False, false_alarm=0.0)


def _to_judge(
    measurements: Sequence[Measurement], recorded: Mapping[str, Sequence[SessionTime]]
) -> list[Measurement]:
    """The measurements that a verdict is given for: one for each scope."""
    chosen = []
    for main in (measurement for measurement in measurements if not measurement.beside):
        others = [other for other in measurements if other.beside and other.scope == main.scope]
        known = [] if _holds(recorded, main.key) else [o for o in others if _holds(recorded, o.key)]
        chosen.append(known[0] if known else main)
    return chosen


def _holds(recorded: Mapping[str, Sequence[SessionTime]], key: str) -> bool:
    """Whether a record has times under this key; the sessions given for it may be of another timer."""
    return any(session.key == key for session in recorded[key])


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
