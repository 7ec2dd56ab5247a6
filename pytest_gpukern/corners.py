"""Corner cases: what a variant is checked on beside its own point, and is never timed on."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_gpukern.check import IncorrectError, check

if TYPE_CHECKING:
    from pytest_gpukern.backends import Backend
    from pytest_gpukern.dataset import Datasets
    from pytest_gpukern.problem import Case, Point


@dataclass(frozen=True)
class Corner:
    """A point at which a variant is checked.

    Attributes:
        label: what is special about it, such as `n=257`; begins the diagnosis of what fails there.
        point: all axes.
    """

    label: str
    point: Point


@dataclass(frozen=True)
class Corners:
    """The corners of a case, and those that are left out here, with the reason of each."""

    checked: tuple[Corner, ...] = ()
    left_out: tuple[tuple[Corner, str], ...] = ()

    @property
    def labels(self) -> tuple[str, ...]:
        """What was checked, in words."""
        return tuple(corner.label for corner in self.checked)

    @property
    def notes(self) -> tuple[str, ...]:
        """What was left out and why, a note for each reason."""
        by_reason: dict[str, list[str]] = {}
        for corner, reason in self.left_out:
            by_reason.setdefault(reason, []).append(corner.label)
        return tuple(f"not checked at {', '.join(at)}: {reason}" for reason, at in by_reason.items())


def corners_of(case: Case, *, simulated: bool) -> Corners:
    """Where a case is checked besides its own point; nowhere unless it is the first of its variant.

    Args:
        case: problem, variant, point and parameters.
        simulated: whether its kernels run in the simulator, which is given small sizes only.
    """
    if not case.first:
        return Corners()
    checked, left_out = [], []
    for label, point in case.problem.boundary_points(case.parameters):
        corner = Corner(label, point)
        reason = case.variant.limit_exceeded(point)
        if reason is not None:
            reason = f"{reason.partition(':')[0]} for the variant"
        elif simulated and any(point[axis] > most for axis, most in case.problem.simulator_limits.items()):
            reason = "too large for the simulator"
        if reason is None:
            checked.append(corner)
        else:
            left_out.append((corner, reason))
    return Corners(tuple(checked), tuple(left_out))


def check_corners(
    case: Case, corners: Corners, backend: Backend, placing: Backend, datasets: Datasets
) -> None:
    """Checks the variant at each of the corners, by one launch on data of their own.

    Args:
        case: problem, variant and parameters.
        corners: where.
        backend: the variant's.
        placing: makes its arrays.
        datasets: holds data sets of many small points.

    Raises:
        IncorrectError: it is wrong at one of them, which its message names first.
    """
    for corner in corners.checked:
        sets = datasets.for_check(case.problem, corner.point, contents=1, available_bytes=float("inf"))
        workspace = placing.workspace(sets[0].inputs, sets[0].specs)
        try:
            check(case, corner.point, backend, workspace, sets).let_go()
        except IncorrectError as error:
            diagnosis = error.diagnosis
            message = f"{corner.label}: {diagnosis.message}"
            raise IncorrectError(dataclasses.replace(diagnosis, message=message), error.errors) from error
        finally:
            workspace.close()
