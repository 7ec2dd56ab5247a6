"""Corner cases: what a variant is checked on beside its own point, and is never timed on."""

from __future__ import annotations

import dataclasses
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING
from warnings import catch_warnings

from pytest_gpukern.check.check_variant import check
from pytest_gpukern.check.diagnosis import IncorrectError
from pytest_gpukern.check.launch import giving_back
from pytest_gpukern.values.options import sanitizing_tool

if TYPE_CHECKING:
    from pytest_gpukern.backends.backend import Backend
    from pytest_gpukern.problems.call_by_name import Point
    from pytest_gpukern.problems.cases import Case
    from pytest_gpukern.problems.dataset import Dataset, Datasets


_SLOW_UNDER_A_TOOL_NS = 2e9
"""A launch this long under a tool of compute-sanitizer, which makes some a thousand times slower, is not
followed by larger ones: they run the same instructions."""
_LABELS = {"special": "special values", "exact": "exact integers", "kept": "one input kept"}


@dataclass(frozen=True)
class Corner:
    """A point at which a variant is checked, contents, or a layout.

    Attributes:
        label: what is special about it, such as `n=257`; begins the diagnosis of what fails there.
        point: all axes, and `dtype` where it is not that of the case.
        contents: of its inputs: `random`, `special`, `exact`, or `kept`: random ones, then others of which in
            turn one array is as before, since a result may be remembered by one of the inputs alone.
        layout: of its arrays, one of `layouts.LAYOUTS`; None for aligned ones in C order.
    """

    label: str
    point: Point
    contents: str = "random"
    layout: str | None = None

    @property
    def is_a_size(self) -> bool:
        """Says whether nothing but its size is special about it, so that no kernel is compiled for it."""
        return self.contents == "random" and self.layout is None and "dtype" not in self.point


@dataclass(frozen=True)
class Corners:
    """The corners of a case, and those that are left out here, with the reason of each."""

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
    """Returns where a case is checked besides its own point: nowhere unless it is its variant's first.

    In the simulator only small sizes are checked.
    """
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
    """Checks the variant at each of the corners, by one launch on data of their own.

    Returns the corners as they were checked: under a tool of compute-sanitizer, sizes above one whose launch
    was slow are left out.

    Args:
        case: problem, variant and parameters.
        corners: where.
        backend: the variant's.
        placing: makes its arrays.
        datasets: holds data sets of many small points.

    Raises:
        IncorrectError: it is wrong at one of them, which its message names first.
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
    """Checks the variant at one corner, and returns how long its last launch took, in nanoseconds."""
    if corner.contents == "random":
        sets = datasets.for_check(case.problem, corner.point, contents=1, available_bytes=float("inf"))
    else:
        sets = datasets.other(case.problem, corner.point, corner.contents)
    laid_out = {} if corner.layout is None else case.problem.placements(corner.layout, sets[0].arrays)
    workspace = placing.workspace(sets[0].inputs, sets[0].specs, laid_out)
    with ExitStack() as given_back:
        given_back.push(giving_back(workspace.close))
        if corner.contents == "special":  # what NumPy warns of on them is what they are there for
            given_back.enter_context(catch_warnings(action="ignore", category=RuntimeWarning))
        try:
            prepared = check(case, corner.point, backend, workspace, sets)
        except IncorrectError as error:
            message = f"{corner.label}: {error.diagnosis.message}{_planted(sets[-1])}"
            diagnosis = dataclasses.replace(error.diagnosis, message=message)
            raise IncorrectError(diagnosis, error.errors) from error
        prepared.let_go()
        return prepared.last_call_ns or 0.0


def _planted(dataset: Dataset) -> str:
    """Says where special values are, a line an input."""
    return "".join(
        f"\n  special values in {name}, by flat index: "
        + ", ".join(f"{value:g} at {place}" for place, value in places.items())
        for name, places in dataset.planted.items()
    )
