"""Launches a variant on known data and checks what it did: outputs, inputs, statistics."""

from __future__ import annotations

import dataclasses
import math
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pytest_gpukern.comparison import POISONS
from pytest_gpukern.determinism import Determinism, of_launches
from pytest_gpukern.problem import Run, call_by_name
from pytest_gpukern.returned import adopt_returned
from pytest_gpukern.under_sanitizer import sanitizing_tool
from pytest_gpukern.validity import running_threads, thread_left_working
from pytest_gpukern.verify import (
    Diagnosis,
    Fault,
    IncorrectError,
    diagnose_aliasing,
    diagnose_damage,
    diagnose_values,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from pytest_gpukern.backends import Backend, Workspace
    from pytest_gpukern.dataset import Dataset
    from pytest_gpukern.problem import Case, Point
    from pytest_gpukern.result import OutputError
    from pytest_gpukern.strides import Span


SLOW_ON_HOST_NS = 5e7
SLOW_ON_DEVICE_NS = 1e8
"""A call this long has warmed up everything while it was checked, and is repeated as seldom as possible."""
_LAUNCHES = 3
"""On the same inputs, from which an output's determinism is told; of what is slow two."""
_VERY_SLOW_NS = 1e9
"""A launch this long is not repeated for that."""
_RUNS_OF_SLOW = 3
"""Before timing; the timed launch is one more, with a seed of its own."""


@dataclass
class Prepared:
    """A variant ready to be launched on a data set in its workspace.

    Attributes:
        launch: exactly what is timed.
        dataset: what the buffers hold now.
        datasets: all sets that it is checked on, in that order.
        errors: worst error of each output so far.
        bits: hash of each output for the first data set, where it is to be timed.
        determinism: of each output, where that was looked at.
        first_call_ns: wall time of the first launch, compiling and loading included.
        last_call_ns: wall time of the last checked launch.
        last_returned: what the last launch of an allocating variant returned, held as a caller would.
        returned_spans: addresses of what was adopted of it.
        runs: what a statistical check is shown of each set, by its `seed_offset`.
    """

    case: Case
    backend: Backend
    workspace: Workspace
    launch: Callable[[], Any]
    dataset: Dataset
    datasets: list[Dataset] = field(default_factory=list)
    errors: dict[str, OutputError] = field(default_factory=dict)
    bits: dict[str, str | None] = field(default_factory=dict)
    determinism: dict[str, Determinism | None] = field(default_factory=dict)
    first_call_ns: float | None = None
    last_call_ns: float | None = None
    last_returned: Any = None
    returned_spans: dict[str, Span] = field(default_factory=dict)
    runs: dict[int, Run] = field(default_factory=dict)

    @property
    def errors_with_bits(self) -> dict[str, OutputError]:
        """The worst errors, each with the hash of its output for the first data set, and its determinism."""
        return {
            name: dataclasses.replace(error, bits=self.bits.get(name), determinism=self.determinism.get(name))
            for name, error in self.errors.items()
        }

    def let_go(self) -> None:
        """Lets go of what the launch returned or holds on to, which could not be given back otherwise."""
        self.launch, self.last_returned = _given_back, None


def _given_back() -> None:
    """Takes the place of a launch whose arrays are gone."""
    raise RuntimeError("the arrays of this case were given back")


def prepare(case: Case, point: Point, backend: Backend, workspace: Workspace, dataset: Dataset) -> Prepared:
    """Calls the variant's untimed part.

    Raises:
        IncorrectError: it raised.
    """
    variant = case.variant
    assert variant.prepare is not None
    available = {**case.problem.named(point), **case.parameters, **workspace.arrays, "stream": backend.stream}
    try:
        with backend.preparing():
            launch = call_by_name(variant.prepare, available)
    except Exception as error:
        raise _launch_failed(case, "preparing", error) from error
    if not callable(launch):
        raise IncorrectError(
            Diagnosis(
                Fault.WRONG_TYPE,
                f"{variant.label} returned {type(launch).__name__}; a variant returns what is to be timed",
            )
        )
    return Prepared(case, backend, workspace, launch, dataset)


def check(
    case: Case,
    point: Point,
    backend: Backend,
    workspace: Workspace,
    datasets: list[Dataset],
    *,
    checked_again: bool = False,
) -> Prepared:
    """Launches the variant on every data set, in the same buffers, and checks each launch.

    The first two find outputs filled with different poisons, the third the answer of the one before: what
    leaves some of what it finds is right under one of them at most.

    Returns the variant prepared on one of these sets, correct so far.

    Args:
        case: problem, variant and point as asked for.
        point: the point as it runs here.
        backend: the variant's.
        workspace: holds the first of `datasets`.
        datasets: different contents.
        checked_again: whether another check on other contents follows, after timing. Then a slow launch on
            the host is checked on the first set only, or on three where the check is statistical, and one on
            the device on two.

    Raises:
        IncorrectError: with the first fault found.
    """
    prepared = prepare(case, point, backend, workspace, datasets[0])
    prepared.datasets = datasets
    for number, dataset in enumerate(datasets):
        if checked_again and number >= _enough(prepared, dataset):
            break
        if number:
            turn_to(prepared, point, dataset)
        poisoned = number != len(POISONS) or dataset.expected is None
        checked_launch(prepared, earlier=datasets[:number], poisoned=poisoned)
        if checked_again and not number and dataset.expected is not None and dataset.seed is None:
            prepared.bits = {name: workspace.bits(name) for name in dataset.specs}
        if not number and (checked_again or case.variant.determinism is not None):
            check_determinism(prepared)
        if case.problem.check is not None:
            prepared.runs[dataset.seed_offset] = observed(prepared, point)
    check_runs(prepared)
    _check_under_the_rest(prepared, checked_again=checked_again)
    return prepared


def _check_under_the_rest(prepared: Prepared, *, checked_again: bool) -> None:
    """Launches once more where too few sets were there for both poisons, or for an answer to be found.

    The latter only where a launch takes no time to speak of, as it does in the simulator, where a single set
    is that of a corner: at its own point the variant has met both poisons.

    Under a tool of compute-sanitizer no launch is repeated: what it looks at is the same, and it is slow.

    Raises:
        IncorrectError: that launch was wrong.
    """
    if sanitizing_tool() is not None:
        return
    simulated = prepared.backend.simulated
    quick = not (is_slow(prepared) or simulated)
    if len(prepared.datasets) == 1 and not checked_again:
        if not simulated:
            checked_launch(prepared)
    elif len(prepared.datasets) == len(POISONS) and prepared.dataset.expected and quick:
        before = load_other_contents(prepared)
        if before:
            checked_launch(prepared, earlier=before, poisoned=False)


def check_determinism(prepared: Prepared) -> None:
    """Launches again on the same inputs, checks each launch, and keeps whether the bits were the same.

    Raises:
        IncorrectError: a launch was wrong, or the bits differ where the variant declares that they do not.
    """
    workspace, names = prepared.workspace, list(prepared.dataset.specs)
    found = {name: [workspace.bits(name)] for name in names}
    for repeats in range(_LAUNCHES - 1):
        if not _worth_another(prepared, repeats):
            break
        checked_launch(prepared)
        for name in names:
            found[name].append(workspace.bits(name))
    prepared.determinism = {name: of_launches(bits) for name, bits in found.items()}
    declared = prepared.case.variant.determinism
    if declared in (None, Determinism.TOLERANT):
        return
    for name, kind in prepared.determinism.items():
        if kind is Determinism.TOLERANT:
            counts = f"{len(set(found[name]))} results from {len(found[name])} launches on the same inputs"
            raise IncorrectError(
                Diagnosis(
                    Fault.NOT_DETERMINISTIC,
                    f"{name}: {Fault.NOT_DETERMINISTIC}: {counts}, all within the tolerance, "
                    f"and the variant declares determinism={declared!r}",
                ),
                prepared.errors,
            )


def _worth_another(prepared: Prepared, repeats: int) -> bool:
    """Whether a variant is launched once more on the same inputs, after so many repeats.

    On the device one repeat is for all but the slowest, since a first launch may have compiled; a slow one on
    the host is repeated only for what it declares.
    """
    if not is_slow(prepared):
        return True
    wanted = prepared.backend.on_gpu or prepared.case.variant.determinism is not None
    return wanted and not repeats and (prepared.last_call_ns or 0.0) <= _VERY_SLOW_NS


def check_seeds(prepared: Prepared, point: Point, datasets: Iterable[Dataset]) -> None:
    """Launches a checked variant on further contents, and puts back those that the buffers held.

    A statistical check judges as many runs together as it always does.

    Args:
        prepared: the variant.
        point: where.
        datasets: one at a time, since they may be large.

    Raises:
        IncorrectError: a launch was wrong; the message says on which contents.
    """
    before, statistical, errors = prepared.dataset, prepared.case.problem.check, prepared.errors
    runs: list[Run] = []
    for dataset in datasets:
        earlier = prepared.dataset
        try:
            turn_to(prepared, point, dataset)
            checked_launch(prepared, earlier=[earlier])
            if statistical is not None:
                runs.append(observed(prepared, point))
                if len(runs) == prepared.case.problem.check_seeds:
                    _judge_runs(statistical, runs, errors)
                    runs.clear()
        except IncorrectError as error:
            diagnosis = error.diagnosis
            message = f"contents {dataset.seed_offset} of the seed: {diagnosis.message}"
            raise IncorrectError(dataclasses.replace(diagnosis, message=message), error.errors) from error
    turn_to(prepared, point, before)


def turn_to(prepared: Prepared, point: Point, dataset: Dataset) -> None:
    """Puts other contents into the buffers, and prepares the variant anew where they have other scalars."""
    workspace = prepared.workspace
    if dataset.scalars != prepared.dataset.scalars:
        # Before the arrays are loaded: what is computed while preparing is wrong for them.
        workspace.arrays.update(dataset.scalars)
        prepared.launch = prepare(prepared.case, point, prepared.backend, workspace, dataset).launch
    workspace.fill(dataset.inputs)
    prepared.dataset = dataset


def check_runs(prepared: Prepared) -> None:
    """Has the statistical check, where the problem has one, judge the runs so far together.

    Raises:
        IncorrectError: it complains.
    """
    statistical = prepared.case.problem.check
    if statistical is not None:
        _judge_runs(statistical, list(prepared.runs.values()), prepared.errors)


def _judge_runs(
    statistical: Callable[[Sequence[Run]], str | None], runs: Sequence[Run], errors: Mapping[str, OutputError]
) -> None:
    complaint = statistical(runs)
    if complaint:
        raise IncorrectError(Diagnosis(Fault.STATISTICS, f"{Fault.STATISTICS}: {complaint}"), errors)


def is_slow(prepared: Prepared) -> bool:
    """Whether its last launch was slow, for where it runs."""
    limit_ns = SLOW_ON_DEVICE_NS if prepared.backend.on_gpu else SLOW_ON_HOST_NS
    return (prepared.last_call_ns or 0.0) > limit_ns


def _enough(prepared: Prepared, dataset: Dataset) -> float:
    """How many sets a variant that is checked again need be launched on, before `dataset` comes next."""
    if not is_slow(prepared):
        return math.inf
    if prepared.case.problem.check is not None:
        return math.inf if prepared.backend.on_gpu else _RUNS_OF_SLOW
    if dataset.scalars != prepared.dataset.scalars:
        return math.inf
    return 2 if prepared.backend.on_gpu else 1


def checked_copy(prepared: Prepared, point: Point, workspace: Workspace, dataset: Dataset) -> Prepared:
    """The same variant on a buffer set of its own, checked there by one launch.

    Args:
        prepared: the variant on its first set.
        point: where.
        workspace: holds `dataset`.
        dataset: one of those that the variant was checked on.

    Raises:
        IncorrectError: the launch was wrong.
    """
    copy = prepare(prepared.case, point, prepared.backend, workspace, dataset)
    copy.datasets, copy.errors, copy.first_call_ns = (
        prepared.datasets,
        prepared.errors,
        prepared.first_call_ns,
    )
    checked_launch(copy)
    return copy


def observed(prepared: Prepared, point: Point) -> Run:
    """What a statistical check is shown of the last launch."""
    outputs = {name: prepared.workspace.fetch(name) for name in prepared.dataset.specs}
    return Run(point, prepared.dataset.inputs, outputs)


def load_other_contents(prepared: Prepared) -> list[Dataset]:
    """Puts other contents into the buffers, where a set has the scalars that the variant was prepared with.

    Returns the set that the buffers held before, or nothing where they still hold it.
    """
    before = prepared.dataset
    for other in prepared.datasets:
        if other is not before and other.scalars == before.scalars:
            prepared.workspace.fill(other.inputs)
            prepared.dataset = other
            return [before]
    return []


def giving_back(step: Callable[[], None]) -> Callable[..., None]:
    """The step as the end of a `with` block, which after an error of the block adds its own to that.

    A launch that destroyed the context leaves nothing that could be given back, and is itself what to report.
    """

    def end(kind: type[BaseException] | None, error: BaseException | None, trace: Any) -> None:  # noqa: ARG001
        try:
            step()
        except Exception as another:
            if error is None:
                raise
            error.add_note(f"then giving its memory back failed: {type(another).__name__}: {another}")

    return end


def checked_launch(
    prepared: Prepared, earlier: list[Dataset] | None = None, *, poisoned: bool = True
) -> None:
    """Poisons the outputs, launches once and checks outputs, inputs and what lies around them.

    Args:
        prepared: the variant.
        earlier: sets that the same buffers held before; a result that fits one of those is stale.
        poisoned: whether outputs are poisoned, or still hold what was right for other contents.

    Raises:
        IncorrectError: something is wrong; the message says what, where and by how much.
    """
    workspace, backend = prepared.workspace, prepared.backend
    if poisoned:
        workspace.poison()
    before = _digest_of_contents(prepared)
    backend.synchronize()
    threads, first = running_threads(), prepared.first_call_ns is None
    start = time.perf_counter_ns()
    try:
        with backend.current():
            returned = prepared.launch()
        backend.synchronize()
    except Exception as error:
        raise _launch_failed(prepared.case, "launching", error) from error
    prepared.last_call_ns = float(time.perf_counter_ns() - start)
    if first:
        prepared.first_call_ns = prepared.last_call_ns
    left = thread_left_working(threads, running_threads(), first=first)
    if left is not None:
        raise IncorrectError(Diagnosis(Fault.STILL_RUNNING, left))
    check_guards(prepared)
    earlier_spans = prepared.returned_spans
    if prepared.case.variant.allocates:
        adopt(prepared, returned)
    changed = [name for name, digest in workspace.digest().items() if digest != before[name]]
    check_outputs(prepared, earlier or [])
    if changed:
        raise IncorrectError(
            Diagnosis(
                Fault.INPUT_MODIFIED, f"{Fault.INPUT_MODIFIED}: the launch changed {', '.join(changed)}"
            ),
            prepared.errors,
        )
    if prepared.case.variant.allocates:
        # Last: what is stale has this for its cause more often than the other way round.
        diagnosis = diagnose_aliasing(prepared.returned_spans, workspace.input_spans(), earlier_spans)
        if diagnosis is not None:
            raise IncorrectError(diagnosis, prepared.errors)


def check_guards(prepared: Prepared) -> None:
    """Looks around inputs and outputs for what was written out of bounds, once the device is idle.

    Raises:
        IncorrectError: something was; the values may be right all the same.
    """
    diagnosis = diagnose_damage(prepared.workspace.damage())
    if diagnosis is not None:
        raise IncorrectError(diagnosis, prepared.errors)


def _digest_of_contents(prepared: Prepared) -> dict[str, int]:
    """The digest of what was put into the inputs, computed once for all variants that are given it.

    So what preparing or a launch before has changed is found too, unless other contents were loaded since.
    """
    workspace, dataset = prepared.workspace, prepared.dataset
    known = dataset.digests.get(type(workspace))
    if known is None:
        known = dataset.digests[type(workspace)] = workspace.digest_of(dataset.inputs)
    return known


def check_outputs(prepared: Prepared, earlier: list[Dataset] | None = None) -> None:
    """Compares what the outputs hold now with the reference of the data set in the buffers.

    Raises:
        IncorrectError: an output is outside its tolerance.
    """
    dataset = prepared.dataset
    if dataset.expected is None:
        _check_written(prepared)
        return
    for name, expected in dataset.expected.items():
        tolerance = dataset.tolerances[name]
        comparison = prepared.workspace.compare(name, expected, tolerance)
        worst = prepared.errors.get(name)
        if worst is None or (comparison.absolute.value > (worst.max_abs or 0)):
            prepared.errors[name] = comparison.error
        diagnosis = diagnose_values(name, comparison, tolerance)
        if diagnosis is None:
            continue
        for old in earlier or []:
            if (
                old.expected is not None
                and not prepared.workspace.compare(name, old.expected[name], tolerance).mismatches
            ):
                diagnosis = Diagnosis(
                    Fault.STALE_RESULT,
                    f"{name}: {Fault.STALE_RESULT}: right for the inputs that the buffers held before, "
                    f"not for those they hold now\n{diagnosis.message}",
                )
        raise IncorrectError(diagnosis, prepared.errors)


def _check_written(prepared: Prepared) -> None:
    """Without a reference, at least nothing may still be poison."""
    import numpy as np

    from pytest_gpukern.problem import Tolerance

    for name, spec in prepared.dataset.specs.items():
        other = np.zeros(spec.shape, spec.dtype)
        comparison = prepared.workspace.compare(name, other, Tolerance())
        if comparison.unwritten:
            raise IncorrectError(
                Diagnosis(
                    Fault.NOT_WRITTEN,
                    f"{name}: {Fault.NOT_WRITTEN}: {comparison.unwritten} of {comparison.size} elements",
                )
            )


def adopt(prepared: Prepared, returned: Any) -> None:
    """Takes the arrays that an allocating variant returned, after checking type, form and memory.

    They are held until the next launch has ended, as by a caller who compares two results.

    Raises:
        IncorrectError: they are not what the problem declares, or have no memory of their own.
    """
    prepared.last_returned = returned
    workspace, specs = prepared.workspace, prepared.dataset.specs
    prepared.returned_spans = adopt_returned(workspace, specs, returned, backend=prepared.backend.name)


def _launch_failed(case: Case, doing: str, error: Exception) -> Exception:
    """The failure to report for an exception of a variant; a feature the simulator lacks stays what it is."""
    from pytest_gpukern.simulator import SimulatorUnsupported

    if isinstance(error, SimulatorUnsupported):
        return error
    message = f"{Fault.LAUNCH_FAILED}: {doing} {case.variant.label}: {type(error).__name__}: {error}"
    return IncorrectError(Diagnosis(Fault.LAUNCH_FAILED, message))
