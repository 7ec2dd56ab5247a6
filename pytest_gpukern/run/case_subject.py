"""Measures a case of a problem: checks its variant on several buffer sets, times it, and checks it again."""

from __future__ import annotations

import functools
import hashlib
import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import Any

from pytest_gpukern.backends.backend import Backend
from pytest_gpukern.check.check_variant import (
    AFTER_TIMING,
    NO_MISTAKES,
    Prepared,
    check,
    check_corners,
    check_nothing_is_late,
    declared_corners,
    frames_of_variant,
    giving_back,
    launches_cost_much,
    recheck,
    turn_to_others_if_slow,
    what_raised,
)
from pytest_gpukern.check.diagnosis import Diagnosis, Fault, IncorrectError
from pytest_gpukern.check.engine import check_left, checked_launch
from pytest_gpukern.gpu import runtime as cuda
from pytest_gpukern.gpu.libcuda import CudaError
from pytest_gpukern.measure.measure import Repeated, warm_up
from pytest_gpukern.measure.observers import with_notes
from pytest_gpukern.problems.cases import Case
from pytest_gpukern.problems.dataset import CONTENTS, Dataset
from pytest_gpukern.problems.problem import size_of
from pytest_gpukern.problems.variants import SCOPES
from pytest_gpukern.run.environment import Environment, available_host_bytes
from pytest_gpukern.run.only_changed import is_as_recorded
from pytest_gpukern.run.spine import Evidence, NotRunError, SubjectContext
from pytest_gpukern.run.timed_scope import TimedScope
from pytest_gpukern.timers.graph import sets_needed
from pytest_gpukern.timers.timer import Iteration
from pytest_gpukern.values.backend_table import cuda_packages
from pytest_gpukern.values.marker import MarkerOptions
from pytest_gpukern.values.note import NOT_SIMULATED, Note, NotRun
from pytest_gpukern.values.options import sanitizing_tool
from pytest_gpukern.values.result import CaseInfo, Declaration, Determinism, Measurement, Result, in_columns
from pytest_gpukern.values.timer_table import timer_row

MOST_SETS = 512  # a smaller problem may be warm in a cold graph, and then a note says so
_QUICKLY_MADE_BYTES = 2**24
"""Below this size we make every set of inputs and reference, even if the case is not timed on each."""


class CaseSubject:
    """Takes one case through the spine.

    Args:
        rejects: whether the case is broken on purpose, and only checked.

    Attributes:
        sets: its variant, prepared and checked on each buffer set; corners use the first.

    Raises:
        NotRunError: the case cannot run here, with the reason.
    """

    def __init__(self, case: Case, context: SubjectContext, *, rejects: bool = False) -> None:
        environment = context.environment
        reason = why_not_here(case, environment)
        if reason is not None:
            raise NotRunError(reason)
        self._case = case
        self._context = context
        self._environment = environment
        self._backend = environment.backend(case.variant.backend)
        self._placing = environment.backend("host") if case.variant.host_data else self._backend
        times = environment.settings.benchmark and not self._backend.simulated and not rejects
        only_kernels = environment.settings.only_changed
        self.is_timed = times and (not only_kernels or "kernel" in scopes_of(case, environment))
        # A statistical check judges several runs together, so it is always made in full.
        self._checked = context.checked and self.is_timed and case.problem.check is None
        self.sets: list[Prepared] = []

    def begin(self) -> Result:
        return self._context.new_result(
            case_info(self._case, self._context.test_file),
            simulated=self._backend.simulated,
            speedup_against=self._case.problem.speedup_against,
            seed=self._environment.settings.seed,
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
            self._case.point,
            available_bytes=available_host_bytes(),
        )
        datasets = sets_of(contents=CONTENTS if self.is_timed and self._backend.on_gpu else 2)
        if not launches_cost_much(self._backend) and datasets[0].host_bytes <= _QUICKLY_MADE_BYTES:
            datasets = sets_of(contents=CONTENTS)
        if not self._checked:
            self._environment.datasets.examined(self._case.problem, self._case.point, datasets)
        refuse_too_large(datasets[0], self._placing)
        with ExitStack() as self._held:
            self._held.push(giving_back(self._backend.release))
            self._datasets = datasets
            yield

    def check(self, evidence: Evidence) -> None:
        """Checks the variant on each buffer set and, unless an earlier session did, elsewhere."""
        gpu, on_gpu = self._environment.gpu, self._backend.on_gpu
        with gpu.loading_observed(on_gpu=on_gpu):
            first = self._prepared(self._datasets[0])
            check(first, checked_again=self.is_timed)
            if not self.is_timed:
                check_nothing_is_late(first)
        others = self._other_contents(first)
        with gpu.launches_observed() if others else nullcontext():
            for dataset in others:
                prepared = self._prepared(dataset)
                checked_launch(prepared)
                evidence.arrays += prepared.workspace.spans().items()
        evidence.add(
            errors=first.errors_with_bits(tells_determinism=not self._checked),
            first_call_ns=first.first_call_ns,
            inputs=hash_of_inputs(self.sets),
            declared=self._declared(first),
        )
        if not self._checked:
            case, datasets = self._case, self._environment.datasets
            with gpu.loading_observed(on_gpu=on_gpu):
                corners, notes = check_corners(
                    case, self._backend, self._placing, self._environment.corner_datasets
                )
            evidence.add(corners=tuple(corners), held=in_columns([*corners.values()]))
            evidence.add_note(*datasets.examined(case.problem, case.point, first.datasets), *notes)
        evidence.passes()
        evidence.add_note(*first.notes)

    def _declared(self, first: Prepared) -> Declaration:
        """Returns what the case declares of its checks; of buffer sets only what nothing else decides."""
        case, problem, dataset = self._case, self._case.problem, first.datasets[0]
        wanted = sets_wanted(dataset, self._context) if self._placing.on_gpu else 1
        all_fit = self.is_timed and len(self.sets) == wanted and not first.is_slow
        return Declaration(
            outputs={
                name: 0 if name in problem.inout else size_of(spec.shape, spec.written)
                for name, spec in dataset.specs.items()
            },
            inputs=dataset.contents,
            input_sets=len({hash_of_inputs([prepared]) for prepared in self.sets}) if all_fit else 0,
            corners=declared_corners(case),
            scopes=self._context.timed_as(case.scopes),
            work={"bytes": problem.traffic_bytes(case.point) or 0, "flops": problem.flops(case.point) or 0},
            in_order=sum(spec.order == "C" for spec in dataset.specs.values()),
            has_check=problem.check is not None,
            lower_precision=problem.allow_lower_precision is not None,
            threshold=self._context.marker.threshold,
            determinism=Determinism(promised) if (promised := case.variant.determinism) else None,
        )

    def measure(self, evidence: Evidence) -> None:
        first, backend = self.sets[0], self._backend
        turn_to_others_if_slow(first)
        try:
            with backend.current():
                timed, measurements = self._measure_scopes(evidence)
                if self._environment.settings.trace and backend.on_gpu:
                    traced = min(timed, key=lambda scope: _TRACED_FIRST.index(scope.scope))
                    evidence.add_trace(traced.trace)
        except IncorrectError as error:
            raise error.after(AFTER_TIMING) from error
        except Exception as error:
            if isinstance(error, NO_MISTAKES) or not _comes_from_the_launch(error, first):
                raise
            raised = what_raised(error, first.case, f"{Fault.LAUNCH_FAILED} during it")
            message = f"correct before timing, {raised}"
            raise IncorrectError(Diagnosis(Fault.LAUNCH_FAILED, message), first.errors) from error
        evidence.add(measurements=tuple(measurements))

    def recheck(self, evidence: Evidence) -> None:
        """Checks what the last timed launches left, and one more launch unless an earlier session did."""
        first, environment = self.sets[0], self._environment
        with environment.gpu.loading_observed(on_gpu=self._backend.on_gpu):
            recheck(self.sets, launches=not self._checked)
        compile_ns = None  # what the first launch took longer than others: compiling, loading, allocations
        if self._backend.on_gpu and first.first_call_ns is not None:
            compile_ns = max(0.0, first.first_call_ns - first.shortest_call_ns)
        # After few launches nothing is known of their determinism.
        evidence.add(
            errors=first.errors_with_bits(tells_determinism=not self._checked),
            dtype=first.dataset.output_dtype,
            compile_ns=compile_ns,
        )

    def _prepared(self, dataset: Dataset) -> Prepared:
        """Prepares the variant on one more buffer set, which is given back at the end."""
        workspace = self._placing.workspace(dataset.inputs, dataset.specs)
        self._held.push(giving_back(workspace.close))
        prepared = Prepared(self._case, self._case.point, self._backend, workspace, self._datasets, dataset)
        if self.sets:
            first = self.sets[0]
            prepared.errors, prepared.seen_bits = first.errors, first.seen_bits
            prepared.first_call_ns = first.first_call_ns
        self.sets.append(prepared)
        self._held.callback(prepared.let_go)
        return prepared

    def _other_contents(self, first: Prepared) -> list[Dataset]:
        """Returns data sets for the other buffer sets to time on, as many as fit.

        Contents that the first set does not hold come first. A slow call stays on one set: it is timed so few
        times, and does so much. So does a call that is not timed on the device.
        """
        if not self.is_timed or not self._placing.on_gpu or first.is_slow:
            return []
        datasets = self._datasets
        count = sets_wanted(datasets[0], self._context) - 1
        others = [dataset for dataset in datasets if dataset is not first.dataset][: CONTENTS - 1]
        in_turn = itertools.islice(itertools.cycle([*others, first.dataset]), count)
        needed = first.dataset.device_bytes
        fitting = int(free_device_bytes(2 * needed * count) / 2 // max(1, needed))
        return list(in_turn)[:fitting] if others else []

    # timing

    def _measure_scopes(self, evidence: Evidence) -> tuple[list[TimedScope], list[Measurement]]:
        """Measures it in each of its scopes, on each buffer set, on outputs that are poisoned first.

        Returns what was timed, and its times.

        Raises:
            IncorrectError: after one of the executions, chosen at random, an output was wrong.
        """
        first, backend = self.sets[0], self._backend
        scopes = scopes_of(self._case, self._environment, self._context.marker)
        if not self._placing.on_gpu and scopes != ("transfer",):
            first.workspace.poison()  # a transfer alone would not write them again
        timed: list[TimedScope] = []
        measurements: list[Measurement] = []
        for scope in scopes:
            calls = [self._call(scope, prepared) for prepared in self.sets]
            call_ns = first.shortest_call_ns
            launched = scope in ("kernel", "launch") or not backend.on_gpu  # as the check did
            compiled = not backend.on_gpu or call_ns != first.first_call_ns
            if not (launched and compiled and first.is_slow):
                by_host = scope != "kernel" or not backend.on_gpu
                warm = restoring(first, calls[0])
                call_ns = warm_up(warm, backend.synchronize, compiled=True, by_host=by_host).settled_ns
            timed.append(self._timed(scope, calls, call_ns))
            if not is_as_recorded(timed[-1], evidence):
                measurements.append(self._measure_scope(timed[-1]))
        if scopes[-1] == "transfer" and first.dataset.updated:  # it left inputs, but no result to check
            for prepared in self.sets:
                restoring(prepared, prepared.launch)()
        return timed, measurements

    def _timed(self, scope: str, calls: list[Callable[[], Any]], call_ns: float) -> TimedScope:
        """Says what is timed in a scope: executions on each buffer set; on the host, of one call."""
        first, backend, problem, point = self.sets[0], self._backend, self._case.problem, self._case.point
        # On the host it would cost more than a call to poison outputs before each.
        in_turn = first.dataset.updated or self._placing.on_gpu
        poisons = scope != "transfer" and bool(in_turn)
        rotation = Rotation(self.sets, calls, stream=backend.timed_stream, poisons=poisons)
        work_bytes = problem.traffic_bytes(point)
        if backend.on_gpu and scope != "kernel":
            work_bytes = problem.transfer_bytes(point) or first.dataset.device_bytes
        return TimedScope(
            scope,
            rotation if in_turn or backend.on_gpu else Repeated(calls[0]),
            self._context,
            backend.on_gpu,
            call_ns,
            work_bytes,
            None if scope == "transfer" else problem.flops(point),
            first.dataset.dtypes,
            inspect=(lambda: check_left(rotation.last)) if backend.on_gpu and scope != "transfer" else None,
            synchronize=backend.synchronize,
            stream=backend.timed_stream,
            any_stream=scope != "kernel" or not getattr(backend.timed_stream, "is_nonblocking", True),
        )

    def _measure_scope(self, timed: TimedScope) -> Measurement:
        """Measures it in one scope; a note says if a cold graph has too few buffer sets to be cold."""
        measured, count = timed.measured(), len(self.sets)
        if timed.on_gpu and timed.cache == "cold" and not timer_row(measured.timer).flushes:
            needed = sets_that_evict(self.sets[0].dataset)
            if count < needed:
                text = (
                    f"the L2 may be warm: nothing is flushed inside a graph, and its {count} buffer sets are "
                    f"fewer than the {needed} that evict each other"
                )
                return with_notes(measured, Note(text), first=True)
        return measured

    def _call(self, scope: str, prepared: Prepared) -> Callable[[], Any]:
        """Returns what a scope calls on a buffer set: the launch, the copies, or both.

        Host memory is pageable, as a user's.
        """
        workspace, dataset, allocates = prepared.workspace, prepared.dataset, self._case.variant.allocates
        launch = prepared.launch_and_keep if allocates else prepared.launch
        if scope in ("kernel", "launch") or not self._placing.on_gpu:
            return launch
        results = prepared.on_host

        def copy_out() -> None:
            for name, into in results.items():
                workspace.fetch(name, into)

        def transfer() -> None:
            workspace.load(dataset.inputs)
            copy_out()

        def end_to_end() -> None:
            workspace.load(dataset.inputs)
            launch()
            prepared.backend.synchronize()
            if allocates:
                prepared.adopt_last()
            copy_out()

        return transfer if scope == "transfer" else end_to_end


def restoring(prepared: Prepared, call: Callable[[], Any]) -> Callable[[], Any]:
    """Returns the call; if it updates arrays, a copy goes first that restores them."""
    if not prepared.dataset.updated:
        return call

    def restored() -> None:
        prepared.workspace.queue_poison(prepared.backend.timed_stream)
        call()

    return restored


def hash_of_inputs(sets: Sequence[Prepared]) -> str:
    """Returns a hash of the inputs that a checked variant is timed on: arrays and scalars.

    Shapes, dtypes and strides count, also of the outputs: the same bytes may be a wider matrix.
    """
    described = []
    for prepared in sets:
        dataset = prepared.dataset
        arrays = dataset.input_arrays.items()
        forms = {name: (array.dtype.str, array.shape, array.strides) for name, array in arrays}
        described.append((dataset.digests[type(prepared.workspace)], dataset.scalars, forms, dataset.specs))
    return hashlib.sha256(repr(described).encode()).hexdigest()


def sets_wanted(dataset: Dataset, context: SubjectContext) -> int:
    """Returns how many buffer sets a case is timed on, if they fit: usually three.

    Cold graphs flush nothing between calls. They need so many sets that each is evicted before its next turn.
    """
    if context.timer == "auto" or timer_row(context.timer).flushes or context.cache == "hot":
        return CONTENTS
    return max(CONTENTS, min(sets_that_evict(dataset), MOST_SETS))


def case_info(case: Case, test_file: Path) -> CaseInfo:
    return CaseInfo(
        id=case.id,
        problem=case.problem.name,
        problem_version=case.problem.version,
        variant=case.variant.name,
        backend=case.variant.backend,
        point=dict(case.point),
        parameters=dict(case.parameters),
        baseline_dir=str(test_file.parent / "baselines"),
        baseline_name=case.problem.name,
    )


def why_not_here(case: Case, environment: Environment) -> str | None:
    variant, settings = case.variant, environment.settings
    if variant.detected_by not in (None, sanitizing_tool()):
        return f"only {variant.detected_by} detects it: use --gpukern-sanitize={variant.detected_by}"
    cannot_run = variant.unavailable or environment.unusable(variant.backend)
    if (reason := cannot_run or variant.limit_exceeded(case.point)) is not None:
        return reason
    if variant.at and case.problem.axes.has_huge(case.point) and settings.size != "huge":
        at = ", ".join(f"{axis}={value}" for axis, value in variant.at.items())
        return f"runs only at {at}: use --gpukern-size=huge"
    not_simulated = "huge sizes" if settings.size == "huge" else variant.needs_gpu
    if environment.gpu.simulated.active and case.on_gpu and not_simulated:
        return NotRun(NOT_SIMULATED, not_simulated)
    if settings.benchmark and not (scopes_of(case, environment) or settings.only_changed):
        wanted = ",".join(settings.scopes)
        return NotRun("not selected", f"--gpukern-scope={wanted}, but it has {','.join(case.scopes)}")
    return _beyond_host_memory(case.problem.transfer_bytes(case.point) or 0.0)


def refuse_too_large(dataset: Dataset, backend: Backend) -> None:
    """Raises NotRunError if the arrays of a data set do not fit on the host or on the device."""
    reason = _beyond_host_memory(dataset.input_bytes + 2 * dataset.output_bytes)
    if reason is not None:
        raise NotRunError(reason)
    if not backend.on_gpu:
        return
    # If the check is statistical only, an array of zeros replaces the reference.
    reference = dataset.expected_bytes or dataset.output_bytes
    needed = dataset.device_bytes + reference  # compared on the device
    free = free_device_bytes(needed)
    if needed > free:
        device = f"{needed / 2**30:.1f} GiB of device memory, and {free / 2**30:.1f} are free"
        raise NotRunError(NotRun("too large", f"it needs {device}"))


def _beyond_host_memory(needed: float) -> str | None:
    """Says that so many bytes do not fit on the host; returns None if they do."""
    available = available_host_bytes()
    if needed <= available:
        return None
    host = f"{needed / 2**30:.1f} GiB of host memory, and {available / 2**30:.1f} are available"
    return NotRun("too large", f"it needs {host}")


def _comes_from_the_launch(error: BaseException, prepared: Prepared) -> bool:
    """Returns whether an error comes from the variant's file, or from CUDA, which may report it late."""
    if type(error).__module__.partition(".")[0] in cuda_packages() or isinstance(error, CudaError):
        return True
    return bool(frames_of_variant(error, prepared.case))


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


def scopes_of(case: Case, environment: Environment, marker: MarkerOptions | None = None) -> tuple[str, ...]:
    """Returns the scopes to measure a case in: the requested scopes that make sense for it."""
    possible = ("end_to_end",) if case.scopes == ("end_to_end",) else SCOPES
    if marker is not None and marker.scope is not None and marker.scope in possible:
        return (marker.scope,)
    wanted = environment.settings.scopes
    return tuple(scope for scope in wanted if scope in possible) if wanted else case.scopes


_TRACED_FIRST = ("end_to_end", "kernel", "transfer", "launch")


def sets_that_evict(dataset: Dataset) -> int:
    """Returns how many buffer sets evict each other from the L2."""
    return sets_needed(dataset.device_bytes, cuda.runtime().l2_bytes)


def free_device_bytes(needed: float) -> float:
    """Returns the free memory of the device; if less than needed, we first drop the copies that we keep."""
    free = cuda.runtime().free_bytes()
    if needed > free:
        cuda.runtime().forget_copies()
        free = cuda.runtime().free_bytes()
    return free


_STAY = 8
"""Hot executions on one set before the next set's turn."""
_LARGEST_BATCH = 256


class Rotation:
    """Executes on each buffer set in turn.

    With a cold cache, each execution goes to another set; first its outputs are poisoned and the L2 is
    flushed. With a hot cache, the turn changes every eight executions. First an untimed launch brings the set
    into the cache; then its outputs are poisoned, which leaves them there. What a call updates is restored
    before each execution.

    Args:
        calls: what is timed on each of the `sets`.
        stream: the timed stream, as a cuda.core stream; None on the host.
        poisons: whether a call writes the outputs, so that they may be poisoned before it.

    Attributes:
        last: the set of the last execution that was handed out.
    """

    def __init__(
        self, sets: list[Prepared], calls: list[Callable[[], Any]], *, stream: Any, poisons: bool
    ) -> None:
        self._sets = sets
        self._calls = calls
        self._stream = stream
        self._poisons = poisons
        self._updates = poisons and bool(sets[0].dataset.updated)
        self._taken = 0
        self.buffer_sets = len(sets)
        self.largest_batch = max(_LARGEST_BATCH, len(sets))

    def take(self, count: int, *, cold: bool, refilled: bool = False) -> list[Iteration]:
        """Returns executions with a poison ahead of each if the cache is cold, or if they are `refilled`."""
        refills = refilled and self._stream is not None
        return [self._next(cold=cold, first=not number, refills=refills) for number in range(count)]

    def _next(self, *, cold: bool, first: bool, refills: bool) -> Iteration:
        """Returns the next execution; the first hot one of a batch finds its set in the cache, whoever ran
        before."""
        stay = 1 if cold else _STAY
        warms = not cold and self._stream is not None and (first or self._taken % stay == 0)
        number = self._taken // stay % len(self._sets)
        self._taken += 1
        self.last, call = self._sets[number], self._calls[number]
        poison = functools.partial(self.last.workspace.queue_poison, self._stream)
        fills = cold or warms or self._updates or refills
        poisons = self._poisons and fills

        def before() -> None:
            if warms and self._updates:
                poison()
            if warms:
                call()
            if poisons:
                poison()

        launches = 2 + warms + len(self.last.dataset.specs) * fills
        if self._updates:
            return Iteration.restoring(call, before, launches)
        return Iteration(call, before if warms or poisons else None, launches=launches)
