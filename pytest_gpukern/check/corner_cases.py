"""Checks a variant in corner cases besides its own point; it is never timed there."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING
from warnings import catch_warnings

from pytest_gpukern.check.check_variant import check, giving_back
from pytest_gpukern.check.diagnosis import IncorrectError
from pytest_gpukern.values.options import sanitizing_tool

if TYPE_CHECKING:
    from pytest_gpukern.backends.backend import Backend
    from pytest_gpukern.problems.call_by_name import Point
    from pytest_gpukern.problems.cases import Case
    from pytest_gpukern.problems.dataset import Dataset, Datasets


_SLOW_UNDER_A_TOOL_NS = 2e9
"""After a launch that takes longer under compute-sanitizer we try no larger size: it runs the same
instructions. A tool can make launches a thousand times slower."""
_LABELS = {"special": "special values", "exact": "exact integers", "kept": "one input kept"}


@dataclass(frozen=True)
class Corner:
    """Describes a special point, contents or layout on which a variant is checked.

    Attributes:
        label: what is special about it, such as `n=257`; the diagnosis of a failure begins with it.
        point: all axes, and `dtype` if it differs from that of the case.
        contents: `random`, `special`, `exact` or `kept` inputs. `kept` is random inputs, then others with one
            array unchanged, each array in turn, since a variant may remember its result by one input alone.
        layout: one of `memory.LAYOUTS`; None for aligned arrays in C order.
    """

    label: str
    point: Point
    contents: str = "random"
    layout: str | None = None

    @property
    def is_a_size(self) -> bool:
        """Says whether only its size is special, so that no kernel is compiled for it."""
        return self.contents == "random" and self.layout is None and "dtype" not in self.point


@dataclass(frozen=True)
class Corners:
    """Holds the corners of a case, and those left out here with the reason for each."""

    checked: tuple[Corner, ...] = ()
    left_out: tuple[tuple[Corner, str], ...] = ()

    @property
    def labels(self) -> tuple[str, ...]:
        """Names what was checked."""
        return tuple(corner.label for corner in self.checked)

    @property
    def notes(self) -> tuple[str, ...]:
        """Says what was left out and why, a note for each reason."""
        by_reason: dict[str, list[str]] = {}
        for corner, reason in self.left_out:
            by_reason.setdefault(reason, []).append(corner.label)
        return tuple(f"not checked at {', '.join(at)}: {reason}" for reason, at in by_reason.items())


def corners_of(case: Case, *, simulated: bool) -> Corners:
    """Returns the corners of a case if it is its variant's first; in the simulator only small ones."""
    if not case.first:
        return Corners()
    problem, smoke = case.problem, case.problem.axes.smoke_point
    declared = [
        *(Corner(_LABELS[contents], smoke, contents) for contents in problem.contents),
        *(Corner(layout, smoke, layout=layout) for layout in case.variant.layouts),
        *(Corner(f"dtype={dtype}", {**smoke, "dtype": dtype}) for dtype in case.variant.dtypes),
        *(Corner(label, point) for label, point in problem.boundary_points(case.parameters)),
    ]
    checked, left_out = [], []
    for corner in declared:
        reason = case.variant.limit_exceeded(corner.point)
        if reason is not None:
            reason = f"{reason.partition(':')[0]} for the variant"
        elif (
            simulated
            and corner.contents == "random"
            and any(corner.point[axis] > most for axis, most in problem.simulator_limits.items())
        ):
            reason = "too large for the simulator"
        if reason is None:
            checked.append(corner)
        else:
            left_out.append((corner, reason))
    return Corners(tuple(checked), tuple(left_out))


def check_corners(
    case: Case, corners: Corners, backend: Backend, placing: Backend, datasets: Datasets
) -> Corners:
    """Checks the variant in each corner by one launch on the corner's data.

    Returns the corners as they were checked: under a tool of compute-sanitizer we leave out sizes above one
    whose launch was slow.

    Args:
        case: problem, variant and parameters.
        corners: the corners.
        backend: the backend of the variant.
        placing: the backend that makes the arrays.
        datasets: holds data sets of many small points.

    Raises:
        IncorrectError: the variant is wrong in a corner, which the message names first.
    """
    checked, left_out = [], list(corners.left_out)
    tool, slow, reason = sanitizing_tool(), None, ""
    for corner in corners.checked:
        if (
            slow is not None
            and corner.is_a_size
            and all(
                not isinstance(value, int) or value >= slow.point[axis]
                for axis, value in corner.point.items()
            )
        ):
            left_out.append((corner, reason))
            continue
        took_ns = _check_at(corner, case, backend, placing, datasets)
        checked.append(corner)
        if tool is not None and corner.is_a_size and took_ns > _SLOW_UNDER_A_TOOL_NS:
            slow, reason = corner, f"a launch took {took_ns / 1e9:.1f} s under {tool} at {corner.label}"
    return Corners(tuple(checked), tuple(left_out))


def _check_at(corner: Corner, case: Case, backend: Backend, placing: Backend, datasets: Datasets) -> float:
    """Checks the variant in one corner; returns the duration of its last launch in nanoseconds."""
    if corner.contents == "random":
        sets = datasets.for_check(case.problem, corner.point, contents=1, available_bytes=float("inf"))
    else:
        sets = datasets.other(case.problem, corner.point, corner.contents)
    laid_out = {} if corner.layout is None else case.problem.placements(corner.layout, sets[0].arrays)
    workspace = placing.workspace(sets[0].inputs, sets[0].specs, laid_out)
    with ExitStack() as given_back:
        given_back.push(giving_back(workspace.close))
        if corner.contents == "special":  # NumPy warns of them, as it should
            given_back.enter_context(catch_warnings(action="ignore", category=RuntimeWarning))
        try:
            prepared = check(case, corner.point, backend, workspace, sets)
        except IncorrectError as error:
            raise error.after(f"{corner.label}: ", _planted(sets[-1])) from error
        prepared.let_go()
        return prepared.last_call_ns or 0.0


def _planted(dataset: Dataset) -> str:
    """Says where special values are, one line for each input."""
    return "".join(
        f"\n  special values in {name}, by flat index: "
        + ", ".join(f"{value:g} at {place}" for place, value in places.items())
        for name, places in dataset.planted.items()
    )
