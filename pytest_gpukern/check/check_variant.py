"""Checks a variant by launches on each data set, and again on the same inputs."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from pytest_gpukern.arrays.compare import POISONS
from pytest_gpukern.check.diagnosis import Diagnosis, Fault, IncorrectError, diagnose_launches
from pytest_gpukern.check.launch import (
    SLOW_ON_DEVICE_NS,
    Prepared,
    adopt,
    check_guards,
    check_outputs,
    checked_launch,
    is_slow,
    launched,
    load_other_contents,
    prepare,
    turn_to,
)
from pytest_gpukern.problems.problem import Run
from pytest_gpukern.values.options import sanitizing_tool

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pytest_gpukern.backends.backend import Backend, Workspace
    from pytest_gpukern.problems.call_by_name import Point
    from pytest_gpukern.problems.cases import Case
    from pytest_gpukern.problems.dataset import Dataset
    from pytest_gpukern.values.result import OutputError


_LAUNCHES = 3
"""Launches on the same inputs by which we judge a declared determinism; two if they are slow."""
_VERY_SLOW_NS = 1e9
"""A launch that takes longer is not repeated for that."""
_HOLD_NS = 1e6
"""Time to make a warm call and to queue a few copies."""
_MOST_REPEATED = 200
_REPEATED_NS = 1.5e7
"""The most launches that we compare by hash alone, and about how long they take."""
_RUNS_OF_SLOW = 3
"""Runs before timing; the timed launch is one more, with a seed of its own."""


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

    The first two launches find outputs filled with different poisons, the third finds the answer of the
    second. So a variant that leaves an element unwritten can be right at most once.

    Returns the variant prepared on one of these sets, correct so far.

    Args:
        case: problem, variant and point as asked for.
        point: the point as it runs here.
        backend: the backend of the variant.
        workspace: holds the first of `datasets`.
        datasets: different contents.
        checked_again: whether a check on other contents follows after timing. Then a slow launch on the
            device is checked on two sets. A slow launch on the host is checked on the first set only, or on
            three if the check is statistical.

    Raises:
        IncorrectError: a check failed; it holds the first fault.
    """
    prepared = prepare(case, point, backend, workspace, datasets[0])
    prepared.datasets = datasets
    for number, dataset in enumerate(datasets):
        if number >= _enough(prepared, dataset, checked_again=checked_again):
            break
        if number:
            turn_to(prepared, point, dataset)
        poisoned = number != len(POISONS) or dataset.expected is None
        checked_launch(prepared, earlier=datasets[:number], poisoned=poisoned)
        if not number and (checked_again or case.variant.determinism is not None):
            prepared.note_bits()
            repeat_where_declared(prepared)
        if case.problem.check is not None:
            prepared.runs[dataset.seed_offset] = observed(prepared, point)
    check_runs(prepared)
    _check_under_the_rest(prepared, checked_again=checked_again)
    return prepared


def check_nothing_is_late(prepared: Prepared) -> None:
    """Launches a variant that is not timed once more, to find work that outlives the given stream.

    Timers look for such work too. It cannot be seen on a stream that waits for others by itself, such as
    PyCUDA's, or in a call on host data.

    Raises:
        IncorrectError: outputs were written after the given stream was done.
    """
    backend, variant = prepared.backend, prepared.case.variant
    waits_for_others = not getattr(backend.timed_stream, "is_nonblocking", True)
    call_ns = prepared.last_call_ns or 0.0
    if not backend.on_gpu or variant.host_data or waits_for_others or call_ns > _VERY_SLOW_NS:
        return
    if sanitizing_tool() is not None:
        return

    def launch() -> None:
        with backend.current():
            returned = prepared.launch()
        if variant.allocates:
            adopt(prepared, returned)

    late = prepared.workspace.written_late(launch, hold_ns=_HOLD_NS + min(call_ns, SLOW_ON_DEVICE_NS))
    if late:
        message = (
            f"{', '.join(late)}: {Fault.STILL_RUNNING}: written after the given stream was done; "
            "launch on that stream, or make it or the host wait for the others"
        )
        raise IncorrectError(Diagnosis(Fault.STILL_RUNNING, message), prepared.errors)


def _check_under_the_rest(prepared: Prepared, *, checked_again: bool) -> None:
    """Launches once more if there were too few sets to meet both poisons and an old answer.

    An old answer is tried only if launches are quick. In the simulator a single set is that of a corner, and
    its variant has met both poisons at its own point. Under a tool of compute-sanitizer no launch is
    repeated: the tool would see the same, slowly.
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
            if checked_again:
                prepared.note_bits()


def repeat_where_declared(prepared: Prepared) -> None:
    """Launches a variant that declares its determinism again on the same inputs, checked each time.

    For other variants the usual launches on the first data set show it.
    """
    if prepared.case.variant.determinism is None:
        return
    for repeats in range(_LAUNCHES - 1):
        # A first launch may have compiled, so all but the slowest are repeated once.
        if is_slow(prepared) and (repeats or (prepared.last_call_ns or 0.0) > _VERY_SLOW_NS):
            break
        checked_launch(prepared)
        prepared.note_bits()
    check_determinism(prepared)


def repeat_while_bitwise(prepared: Prepared, point: Point) -> None:
    """Launches many times on the first data set if all launches on it gave the same bits so far.

    We poison the outputs before each launch and compare them by a hash, taken where they live. A launch that
    differs is compared in full. A fault in one of N launches is found with a chance of
    1 − (1 − 1/N) ** launches.

    Raises:
        IncorrectError: a launch was wrong, or differs though the variant declares that none does.
    """
    bits = prepared.seen_bits
    steady = [name for name, seen in bits.items() if None not in seen and len(set(seen)) == 1]
    count = int(min(_MOST_REPEATED, _REPEATED_NS / max(1.0, prepared.last_call_ns or 0.0)))
    if not (steady and count):
        return
    turn_to(prepared, point, prepared.datasets[0])
    for _ in range(count):
        prepared.workspace.poison()
        returned = launched(prepared)
        if prepared.case.variant.allocates:
            adopt(prepared, returned)
        prepared.note_bits()
        if any(bits[name][-1] != bits[name][0] for name in steady):
            check_outputs(prepared)
            break
    check_guards(prepared)


def check_determinism(prepared: Prepared) -> None:
    """Raises IncorrectError if launches on the same inputs differ and the variant declares otherwise."""
    for name, bits in prepared.seen_bits.items():
        diagnosis = diagnose_launches(name, bits, prepared.case.variant.determinism)
        if diagnosis is not None:
            raise IncorrectError(diagnosis, prepared.errors)


def check_runs(prepared: Prepared) -> None:
    """Raises IncorrectError if the problem's statistical check rejects the runs so far."""
    statistical = prepared.case.problem.check
    if statistical is not None:
        _judge_runs(statistical, list(prepared.runs.values()), prepared.errors)


def _judge_runs(
    statistical: Callable[[Sequence[Run]], str | None], runs: Sequence[Run], errors: Mapping[str, OutputError]
) -> None:
    complaint = statistical(runs)
    if complaint:
        raise IncorrectError(Diagnosis(Fault.STATISTICS, f"{Fault.STATISTICS}: {complaint}"), errors)


def _enough(prepared: Prepared, dataset: Dataset, *, checked_again: bool) -> float:
    """Returns on how many sets to launch a variant; `dataset` is the next one."""
    statistical = prepared.case.problem.check is not None
    if not is_slow(prepared) or (statistical and not checked_again):
        return math.inf
    if not checked_again:
        return len(POISONS)
    if statistical:
        return math.inf if prepared.backend.on_gpu else _RUNS_OF_SLOW
    if dataset.scalars != prepared.dataset.scalars:
        return math.inf
    return 2 if prepared.backend.on_gpu else 1


def checked_copy(prepared: Prepared, point: Point, workspace: Workspace, dataset: Dataset) -> Prepared:
    """Returns the variant on another buffer set, which holds `dataset`, checked there by one launch."""
    copy = prepare(prepared.case, point, prepared.backend, workspace, dataset)
    copy.datasets, copy.errors, copy.seen_bits = prepared.datasets, prepared.errors, prepared.seen_bits
    copy.first_call_ns = prepared.first_call_ns
    checked_launch(copy)
    copy.note_bits()
    return copy


def observed(prepared: Prepared, point: Point) -> Run:
    """Returns the last launch for a statistical check."""
    outputs = {name: prepared.workspace.fetch(name) for name in prepared.dataset.specs}
    return Run(point, prepared.dataset.inputs, outputs)
