"""A checked case while it is timed, and what is checked of it afterwards."""

from __future__ import annotations

import traceback
from typing import TYPE_CHECKING

from pytest_gpukern.check.check_variant import check_determinism, check_runs, observed
from pytest_gpukern.check.diagnosis import Diagnosis, Fault, IncorrectError
from pytest_gpukern.check.launch import (
    Prepared,
    check_guards,
    check_outputs,
    checked_launch,
    is_slow,
    load_other_contents,
    turn_to,
)
from pytest_gpukern.problems.dataset import CONTENTS
from pytest_gpukern.run.scopes import adopt_last, measure_scopes
from pytest_gpukern.values.backend_table import cuda_packages

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_gpukern.problems.call_by_name import Point
    from pytest_gpukern.problems.dataset import Dataset
    from pytest_gpukern.run.environment import Environment
    from pytest_gpukern.values.marker import MarkerOptions
    from pytest_gpukern.values.result import Measurement


_VERY_SLOW_NS = 5e9


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
    if type(error).__module__.partition(".")[0] in cuda_packages() or type(error).__name__ == "CudaError":
        return True
    prepare = prepared.case.variant.prepare
    source = prepare.__code__.co_filename if prepare is not None else None
    return any(frame.f_code.co_filename == source for frame, _ in traceback.walk_tb(error.__traceback__))


def other_contents_of_slow(prepared: Prepared, point: Point) -> list[Dataset]:
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
            prepared.note_bits()
        if first.case.problem.check is not None:
            first.runs[first.dataset.seed_offset] = observed(first, point)
            check_runs(first)
        others_unseen = len(first.datasets) > 1 and first.dataset is first.datasets[0]
        slow = is_slow(first) and (not first.backend.on_gpu or (first.last_call_ns or 0.0) > _VERY_SLOW_NS)
        if others_unseen or not slow:
            for prepared in sets[:CONTENTS]:
                before = load_other_contents(prepared)
                # A slow one has met both poisons before timing, and the answer of other contents never.
                over_an_answer = before and is_slow(prepared) and prepared.dataset.expected is not None
                checked_launch(prepared, earlier=before, poisoned=not over_an_answer)
                prepared.note_bits()
        check_determinism(first)
    except IncorrectError as error:
        raise _after_timing(error) from error


def _after_timing(error: IncorrectError) -> IncorrectError:
    message = f"right before timing, wrong after it\n{error.diagnosis.message}"
    return IncorrectError(Diagnosis(error.diagnosis.fault, message), error.errors)
