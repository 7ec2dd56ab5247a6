"""Measures a case of a problem: checks its variant on several buffer sets, times it, and checks it again."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import itertools
import traceback
from contextlib import ExitStack, contextmanager, nullcontext
from typing import TYPE_CHECKING

from pytest_gpukern.check.check_variant import (
    check,
    check_determinism,
    check_nothing_is_late,
    check_runs,
    check_seeds,
    checked_copy,
    observed,
    repeat_while_bitwise,
)
from pytest_gpukern.check.corner_cases import check_corners, corners_of
from pytest_gpukern.check.diagnosis import Diagnosis, Fault, IncorrectError
from pytest_gpukern.check.launch import (
    Prepared,
    check_guards,
    check_outputs,
    checked_launch,
    giving_back,
    is_slow,
    load_other_contents,
    turn_to,
    what_raised,
)
from pytest_gpukern.problems.dataset import CONTENTS
from pytest_gpukern.run.environment import available_host_bytes
from pytest_gpukern.run.scopes import adopt_last, measure_scopes, scopes_of, trace_case
from pytest_gpukern.run.spine import NotRunError
from pytest_gpukern.values.backend_table import cuda_packages
from pytest_gpukern.values.options import sanitizing_tool
from pytest_gpukern.values.phases import phase
from pytest_gpukern.values.result import CaseInfo, Result
from pytest_gpukern.values.timer_table import timer_row

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from pytest_gpukern.backends.backend import Backend, Workspace
    from pytest_gpukern.problems.call_by_name import Point
    from pytest_gpukern.problems.cases import Case
    from pytest_gpukern.problems.dataset import Dataset
    from pytest_gpukern.run.environment import Environment
    from pytest_gpukern.run.spine import Found, SubjectContext
    from pytest_gpukern.values.marker import MarkerOptions
    from pytest_gpukern.values.result import OutputError

MOST_SETS = 512
_QUICKLY_MADE_BYTES = 2**24
"""Below this size we make every set of inputs and reference, even if the case is not timed on each."""
_VERY_SLOW_NS = 5e9


class CaseSubject:
    """Takes one case through the spine.

    Args:
        case: problem, variant and the requested point.
        context: the test and its run.
        rejects: whether the case is broken on purpose, and only checked, at the requested point.

    Attributes:
        is_timed: whether it is measured in this run.
        sets: its variant, prepared and checked on each buffer set; corners use the first.

    Raises:
        NotRunError: the case cannot run here, with the reason.
    """

    def __init__(self, case: Case, context: SubjectContext, *, rejects: bool = False) -> None:
        environment = context.environment
        refuse_what_cannot_run(case, environment)
        self._case = case
        self._context = context
        self._environment = environment
        self._backend = environment.libraries.backend(case.variant.backend)
        self._placing = environment.libraries.backend("host") if case.variant.host_data else self._backend
        self._point = case.point if rejects else case.problem.fit(case.point, environment.memory_budget_bytes)
        self.is_timed = environment.settings.benchmark and not self._backend.simulated and not rejects
        # A statistical check judges several runs together, so it is always made in full.
        self._checked = context.checked and self.is_timed and case.problem.check is None
        self.sets: list[Prepared] = []

    def begin(self) -> Result:
        """Returns the result before anything ran."""
        case, environment = self._case, self._environment
        return Result(
            case=case_info(case, self._point, self._context.test_file),
            nodeid=self._context.nodeid,
            fingerprint=environment.gpu.fingerprint,
            provenance=environment.provenance,
            simulated=self._backend.simulated,
            speedup_against=case.problem.speedup_against,
            session=environment.session,
            seed=environment.settings.seed,
        )

    @contextmanager
    def prepare(self) -> Iterator[None]:
        """Makes inputs and references, and arrays for the first buffer set.

        Raises:
            NotRunError: the arrays do not fit.
            ProblemError: a wrong variant would pass with these data.
        """
        self._environment.datasets.test = self._context.nodeid.removesuffix(f"[{self._case.id}]")
        sets_of = functools.partial(
            self._environment.datasets.for_check,
            self._case.problem,
            self._point,
            available_bytes=available_host_bytes(),
        )
        in_turn = self.is_timed and self._backend.on_gpu
        datasets = sets_of(contents=CONTENTS if in_turn else 2)
        costs_time = self._backend.simulated or sanitizing_tool() is not None
        if not costs_time and datasets[0].host_bytes <= _QUICKLY_MADE_BYTES:
            datasets = sets_of(contents=CONTENTS)
        if not self._checked:
            with phase("checking"):
                self._environment.datasets.examined(self._case.problem, self._point, datasets)
        self._environment.host_results.forget_others(datasets[0])
        refuse_too_large(datasets[0], self._placing)
        with ExitStack() as self._held:
            self._held.push(giving_back(self._backend.release))
            self._datasets = datasets
            yield

    def check(self, found: Found) -> None:
        """Checks the variant on each buffer set and, unless an earlier session did, elsewhere."""
        gpu, on_gpu = self._environment.gpu, self._backend.on_gpu
        with gpu.loading_observed(on_gpu=on_gpu):
            first = self._checked_on_the_first_set()
            if not self.is_timed:
                check_nothing_is_late(first)
        others = self._other_contents(first)
        with gpu.launches_observed() if others else nullcontext():
            for dataset in others:
                workspace = self._workspace(dataset)
                self.sets.append(checked_copy(first, self._point, workspace, dataset))
                self._held.callback(self.sets[-1].let_go)
        found.result = dataclasses.replace(
            found.result, errors=self._errors_of(first), first_call_ns=first.first_call_ns
        )
        if self._environment.datasets.folder is not None:
            found.result = dataclasses.replace(found.result, inputs=hash_of_inputs(self.sets))
        if not self._checked:
            self._check_elsewhere(found, first)
        found.passes()
        found.add_note(*first.notes)

    def _check_elsewhere(self, found: Found, first: Prepared) -> None:
        """Checks the variant in its corners and on the requested seeds."""
        environment, problem, on_gpu = self._environment, self._case.problem, self._backend.on_gpu
        seeds, known = environment.settings.seeds or 0, len(first.datasets)
        if problem.check is not None:  # it judges several runs together
            seeds = -(-seeds // problem.check_seeds) * problem.check_seeds
        with environment.gpu.loading_observed(on_gpu=on_gpu):
            corners = corners_of(self._case, simulated=self._backend.simulated)
            with phase("corner cases"):
                corners = check_corners(
                    self._case, corners, self._backend, self._placing, environment.corner_datasets
                )
            if seeds > known:
                more = environment.datasets.more(problem, self._point, range(known, seeds))
                check_seeds(first, self._point, more)
        found.result = dataclasses.replace(found.result, corners=corners.labels)
        found.add_note(*environment.datasets.examined(problem, self._point, first.datasets), *corners.notes)

    def measure(self, found: Found) -> None:
        """Times the case in its scopes."""
        first, environment = self.sets[0], self._environment
        self._checked_on = other_contents_of_slow(first, self._point)
        try:
            measurements = measure_scopes(self.sets, self._point, environment, self._context.marker)
            if environment.settings.trace and self._backend.on_gpu:
                found.add_trace(lambda: trace_case(self.sets, measurements, environment.host_results))
        except IncorrectError as error:
            raise _after_timing(error) from error
        except Exception as error:
            if not _comes_from_the_launch(error, first):
                raise
            told = what_raised(error, first.case, f"{Fault.LAUNCH_FAILED} during it")
            message = f"correct before timing, {told}"
            raise IncorrectError(Diagnosis(Fault.LAUNCH_FAILED, message), first.errors) from error
        found.add_measurements(measurements)

    def recheck(self, found: Found) -> None:
        """Checks what the last timed launches left, and one more launch unless an earlier session did."""
        first, environment = self.sets[0], self._environment
        with environment.gpu.loading_observed(on_gpu=self._backend.on_gpu):
            recheck(self.sets, self._point, self._checked_on, launches=not self._checked)
        found.result = dataclasses.replace(
            found.result,
            errors=self._errors_of(first),
            dtype=first.dataset.output_dtype,
            compile_ns=_compile_time_ns(first) if self._backend.on_gpu else None,
        )

    def _errors_of(self, first: Prepared) -> dict[str, OutputError]:
        """Returns what is known of the outputs; too few launches tell nothing of their determinism."""
        errors = first.errors_with_bits
        if not self._checked:
            return errors
        return {name: dataclasses.replace(error, determinism=None) for name, error in errors.items()}

    def _checked_on_the_first_set(self) -> Prepared:
        datasets = self._datasets
        workspace = self._workspace(datasets[0])
        first = check(
            self._case, self._point, self._backend, workspace, datasets, checked_again=self.is_timed
        )
        self.sets.append(first)
        self._held.callback(first.let_go)
        return first

    def _workspace(self, dataset: Dataset) -> Workspace:
        """Returns arrays for a data set; they are given back at the end."""
        workspace = self._placing.workspace(dataset.inputs, dataset.specs)
        self._held.push(giving_back(workspace.close))
        return workspace

    def _other_contents(self, first: Prepared) -> list[Dataset]:
        """Returns data sets for the other buffer sets to time on, as many as fit.

        Those that the first set does not hold come first. A slow call stays on one set: it is timed so few
        times, and does so much. So does a call that is not timed on the device.
        """
        if not self.is_timed or not self._placing.on_gpu or is_slow(first):
            return []
        from pytest_gpukern.gpu.runtime import runtime

        datasets = self._datasets
        count = sets_wanted(datasets[0], self._environment, self._context.marker) - 1
        others = [dataset for dataset in datasets if dataset is not first.dataset][: CONTENTS - 1]
        in_turn = itertools.islice(itertools.cycle([*others, first.dataset]), count)
        needed = first.dataset.input_bytes + first.dataset.output_bytes
        if needed * count > runtime().free_bytes() / 2:
            runtime().forget_copies()
        fitting = int(runtime().free_bytes() / 2 // max(1, needed))
        return list(in_turn)[:fitting] if others else []


def hash_of_inputs(sets: Sequence[Prepared]) -> str:
    """Returns a hash of the inputs that a checked variant is timed on: arrays and scalars.

    Shapes, dtypes and strides count, also those of the outputs: the same bytes may be a wider matrix.
    """
    told = []
    for prepared in sets:
        dataset = prepared.dataset
        arrays = {name: value for name, value in dataset.inputs.items() if name not in dataset.scalars}
        forms = {name: (value.dtype.str, value.shape, value.strides) for name, value in arrays.items()}
        told.append((dataset.digests[type(prepared.workspace)], dataset.scalars, forms, dataset.specs))
    return hashlib.sha256(repr(told).encode()).hexdigest()


def sets_wanted(dataset: Dataset, environment: Environment, marker: MarkerOptions) -> int:
    """Returns how many buffer sets a case is timed on, if they fit: usually three.

    Cold graphs flush nothing between calls. They need so many sets that each is evicted before its next turn.
    """
    timer, cache = marker.timer or environment.settings.timer, marker.cache or environment.settings.cache
    if timer == "auto" or timer_row(timer).flushes or cache == "hot":
        return CONTENTS
    from pytest_gpukern.gpu.runtime import runtime
    from pytest_gpukern.timers.graph import sets_needed

    needed = sets_needed(dataset.input_bytes + dataset.output_bytes, runtime().l2_bytes)
    return max(CONTENTS, min(needed, MOST_SETS))


def case_info(case: Case, measured_point: Point, test_file: Path) -> CaseInfo:
    """Returns the part of a case that travels."""
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


def refuse_what_cannot_run(case: Case, environment: Environment) -> None:
    """Raises NotRunError, with the reason in words, if a case cannot run here."""
    variant = case.variant
    chosen = environment.settings.backends
    if chosen and variant.backend not in chosen:
        raise NotRunError(f"not selected: --gpukern-backend={','.join(chosen)}")
    reason = variant.unavailable or environment.libraries.unusable(variant.backend)
    if reason is None:
        reason = variant.limit_exceeded(case.point)
    if (
        reason is None
        and variant.at
        and case.problem.axes.has_huge(case.point)
        and environment.settings.size != "huge"
    ):
        at = ", ".join(f"{axis}={value}" for axis, value in variant.at.items())
        reason = f"runs only at {at}: use --gpukern-size=huge"
    if reason is None and environment.gpu.simulated.active and environment.settings.size == "huge":
        reason = "not in the simulator: huge sizes" if variant.backend != "host" else None
    in_simulator = environment.gpu.simulated.active and variant.backend != "host"
    if reason is None and variant.needs_gpu and in_simulator:
        reason = f"not in the simulator: {variant.needs_gpu}"
    if reason is not None:
        raise NotRunError(reason)
    if environment.settings.benchmark and not scopes_of(case, environment):
        wanted = ",".join(environment.settings.scopes)
        raise NotRunError(f"not selected: --gpukern-scope={wanted}, but it has {','.join(case.scopes)}")


def refuse_too_large(dataset: Dataset, backend: Backend) -> None:
    """Raises NotRunError if the arrays of a data set do not fit on the host or on the device."""
    on_host = dataset.input_bytes + 2 * dataset.output_bytes
    available = available_host_bytes()
    if on_host > available:
        raise NotRunError(
            f"too large: it needs {on_host / 2**30:.1f} GiB of host memory, "
            f"and {available / 2**30:.1f} are available"
        )
    if not backend.on_gpu:
        return
    from pytest_gpukern.gpu.runtime import runtime

    # If the check is statistical only, an array of zeros replaces the reference.
    reference = dataset.expected_bytes or dataset.output_bytes
    needed = dataset.input_bytes + dataset.output_bytes + reference  # compared on the device
    if needed > runtime().free_bytes():
        runtime().forget_copies()
    free = runtime().free_bytes()
    if needed > free:
        raise NotRunError(
            f"too large: it needs {needed / 2**30:.1f} GiB of device memory, and {free / 2**30:.1f} are free"
        )


def other_contents_of_slow(prepared: Prepared, point: Point) -> list[Dataset]:
    """Loads contents for timing a slow launch on the host that it was not checked on; this saves a launch.

    Returns the set that it was checked on last, or nothing if the buffers still hold it.
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


def recheck(
    sets: list[Prepared], point: Point, earlier: Sequence[Dataset] = (), *, launches: bool = True
) -> None:
    """Checks what the last timed launches left, then one more launch, on other inputs if there are any.

    A launch that has stopped writing leaves the right answer of an earlier one; the poison shows that. A
    launch that replays an answer is right only for the inputs that it was timed on. We skip the last launch
    if the call takes seconds, or is slow on the host, and more than one set was seen. Such a call was timed
    few times, on poisoned outputs.

    Args:
        sets: the variant on each buffer set.
        point: the point that they were made for.
        earlier: sets that the first buffers held before they were timed on.
        launches: whether to launch again.

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
            prepared.note_bits()
        if first.case.problem.check is not None:
            first.runs[first.dataset.seed_offset] = observed(first, point)
            check_runs(first)
        if not launches:
            return
        others_unseen = len(first.datasets) > 1 and first.dataset is first.datasets[0]
        slow = is_slow(first) and (not first.backend.on_gpu or (first.last_call_ns or 0.0) > _VERY_SLOW_NS)
        if others_unseen or not slow:
            for prepared in sets[:CONTENTS]:
                before = load_other_contents(prepared)
                # A slow one saw both poisons before timing, but never the answer of other contents.
                over_an_answer = before and is_slow(prepared) and prepared.dataset.expected is not None
                checked_launch(prepared, earlier=before, poisoned=not over_an_answer)
                prepared.note_bits()
            repeat_while_bitwise(first, point)
        check_determinism(first)
    except IncorrectError as error:
        raise _after_timing(error) from error


def _after_timing(error: IncorrectError) -> IncorrectError:
    message = f"correct before timing, wrong after it\n{error.diagnosis.message}"
    return IncorrectError(Diagnosis(error.diagnosis.fault, message), error.errors)


def _comes_from_the_launch(error: BaseException, prepared: Prepared) -> bool:
    """Returns whether an error comes from the variant's file, or from CUDA, which may report it late."""
    if type(error).__module__.partition(".")[0] in cuda_packages() or type(error).__name__ == "CudaError":
        return True
    prepare = prepared.case.variant.prepare
    source = prepare.__code__.co_filename if prepare is not None else None
    return any(frame.f_code.co_filename == source for frame, _ in traceback.walk_tb(error.__traceback__))


def _compile_time_ns(prepared: Prepared) -> float | None:
    """Returns how much longer the first launch took than the last: compiling, loading, first allocations."""
    if prepared.first_call_ns is None or prepared.last_call_ns is None:
        return None
    return max(0.0, prepared.first_call_ns - prepared.last_call_ns)


def refuse_to_reject(case: Case, *, replaceable: bool) -> None:
    """Raises NotRunError if a broken case cannot be checked in this process, or not without a tool."""
    tool = case.variant.detected_by
    if tool is not None and tool != sanitizing_tool():
        raise NotRunError(f"only {tool} detects it: use --gpukern-sanitize={tool}")
    if case.variant.loses_context and not replaceable:
        raise NotRunError("it destroys the CUDA context: use --gpukern-isolate=on")


def why_not_rejected(case: Case, diagnosis: Diagnosis | None) -> str | None:
    """Says why a broken case was not rejected as it declares; returns None if it was.

    Also returns None if a tool of compute-sanitizer judges it: its values may be right or wrong.
    """
    declared = case.variant.expected_fault
    if case.variant.detected_by is not None:
        return None
    if diagnosis is None:
        return f"{case.id} is broken on purpose ({declared}), but the checker passed it"
    if diagnosis.fault != declared:
        return f"{case.id} was rejected for {diagnosis.fault!s}, not for {declared}\n{diagnosis.message}"
    return None
