"""What the work of a problem costs: bytes moved, floating-point operations, memory of the host."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_gpukern.values.call_by_name import CallAt, ProblemError

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytest_gpukern.problems.axes import Axes
    from pytest_gpukern.values.call_by_name import Point

    Count = Callable[..., float] | None


@dataclass(frozen=True)
class Work:
    """Counts of a problem, each by a callable that takes axes, and the axis that gives way to them.

    Attributes:
        problem: its name.
        call_at: calls them at a point.
        axes: of the problem.
        traffic_bytes: the fewest bytes that device memory must move.
        flops: floating-point operations.
        transfer_bytes: bytes copied to and from the device.
        shrink: axis that is halved until `host_bytes` fits the machine.
        host_bytes: memory of the host that inputs, outputs and reference need.

    Raises:
        ProblemError: only one of `shrink` and `host_bytes` is declared, or `shrink` is no axis.
    """

    problem: str
    call_at: CallAt
    axes: Axes
    traffic_bytes: Count = None
    flops: Count = None
    transfer_bytes: Count = None
    shrink: str | None = None
    host_bytes: Count = None

    def __post_init__(self) -> None:
        if (self.shrink is None) != (self.host_bytes is None):
            raise ProblemError(
                f"problem {self.problem!r}: shrink and host_bytes are given together or not at all"
            )
        if self.shrink is not None and self.shrink not in self.axes:
            raise ProblemError(
                f"problem {self.problem!r}: shrink={self.shrink!r} is none of its axes {sorted(self.axes)}"
            )

    def count(self, declared: Count, point: Point) -> float | None:
        """One of the counts at a point, or None where it is not declared."""
        return None if declared is None else float(self.call_at(point, declared))

    def fit(self, point: Point, budget_bytes: float) -> Point:
        """The point with the `shrink` axis halved until `host_bytes` fits `budget_bytes`."""
        if self.shrink is None or self.host_bytes is None:
            return point
        fitted = dict(point)
        while self.call_at(fitted, self.host_bytes) > budget_bytes and fitted[self.shrink] > 1:
            fitted[self.shrink] //= 2
        return fitted
