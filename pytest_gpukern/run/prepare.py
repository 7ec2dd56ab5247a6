"""A case made ready: whether it can run here, its buffer sets, and its variant checked on each."""

from __future__ import annotations

import itertools
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

from pytest_gpukern.check.check_variant import check, checked_copy
from pytest_gpukern.check.launch import Prepared, giving_back, is_slow
from pytest_gpukern.problems.dataset import CONTENTS
from pytest_gpukern.run.environment import available_host_bytes
from pytest_gpukern.run.scopes import scopes_of
from pytest_gpukern.values.timer_table import timer_row

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pytest_gpukern.backends.backend import Backend
    from pytest_gpukern.problems.call_by_name import Point
    from pytest_gpukern.problems.cases import Case
    from pytest_gpukern.problems.dataset import Dataset
    from pytest_gpukern.run.environment import Environment
    from pytest_gpukern.values.marker import MarkerOptions


MOST_SETS = 512


class NotRunError(Exception):
    """A case cannot run here; the message says why, and the test is skipped with it."""


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
        and case.problem.axes.has_huge(case.point)
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
        timed = sets_for is not None
        with environment.loading_observed(own=timed, on_gpu=backend.on_gpu):
            workspace = placing.workspace(datasets[0].inputs, datasets[0].specs)
            given_back.push(giving_back(workspace.close))
            sets.append(check(case, point, backend, workspace, datasets, checked_again=timed))
            given_back.callback(sets[0].let_go)
            copies = sets_for(datasets[0]) - 1 if sets_for and placing.on_gpu else 0
            for dataset in _other_contents(sets[0], datasets, copies) if copies else ():
                workspace = placing.workspace(dataset.inputs, dataset.specs)
                given_back.push(giving_back(workspace.close))
                sets.append(checked_copy(sets[0], point, workspace, dataset))
                given_back.callback(sets[-1].let_go)
        yield sets


def sets_wanted(environment: Environment, marker: MarkerOptions) -> Callable[[Dataset], int]:
    """How many buffer sets a case is timed on: three, or for cold graphs, in which nothing is flushed between
    the calls, so many that each set is evicted before its next turn."""
    timer = marker.timer or environment.settings.timer
    if timer == "auto" or timer_row(timer).flushes or (marker.cache or environment.settings.cache) == "hot":
        return lambda dataset: CONTENTS  # noqa: ARG005

    def enough(dataset: Dataset) -> int:
        from pytest_gpukern.gpu.runtime import runtime
        from pytest_gpukern.timers.graph import sets_needed

        needed = sets_needed(dataset.input_bytes + dataset.output_bytes, runtime().l2_bytes)
        return max(CONTENTS, min(needed, MOST_SETS))

    return enough


def _other_contents(prepared: Prepared, datasets: list[Dataset], count: int) -> list[Dataset]:
    """The data sets of up to `count` further buffer sets, as many as fit; first those not in the first set.

    A slow call is timed so few times, and does so much, that it stays on one set.
    """
    from pytest_gpukern.gpu.runtime import runtime

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
    from pytest_gpukern.gpu.runtime import runtime

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
