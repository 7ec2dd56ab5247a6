"""One implementation of a problem, and one case of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pytest_gpukern.problem import Problem

SCOPES = ("kernel", "transfer", "end_to_end")
Point = dict[str, Any]
Names = Mapping[str, Any]
Prepare = Callable[..., Callable[[], Any]]


@dataclass(frozen=True)
class Variant:
    """One implementation of a problem on one backend.

    Attributes:
        name: unique within problem and backend.
        backend: `numba`, `cupy`, `pycuda`, `skcuda`, `torch`, `dask` or `host`.
        prepare: takes inputs, outputs, point and parameters by name, returns the callable that is timed;
            None where the variant's file could not be imported.
        parameters: the variant's own parameters, each with the values to try.
        limits: for an axis, the largest value at which the variant can finish.
        least: for an axis, the least value that the variant takes.
        allocates: the launch returns new arrays instead of writing those it was given.
        needs_gpu: what it needs that the simulator lacks, in words; None where the simulator can run it.
        scopes: scopes in which it is measured, or None for the problem's.
        determinism: `bitwise` or `run-to-run`: it is INCORRECT where two launches on the same inputs give
            other bits; `tolerant` or None: they may. See `determinism.Determinism`.
        host_data: it is given host arrays and moves the data itself, so it is timed end to end only.
        layouts: those of `layouts.LAYOUTS` that it takes arrays in; it is checked in them, and never timed.
        dtypes: those of the problem's, besides the first, that it takes; it is checked, never timed in them.
        at: for a deliberately broken variant, axis → value of the point at which alone it is rejected.
        loses_context: a deliberately broken variant whose launch takes the CUDA context along.
        rejected_for: for a deliberately broken variant, the diagnosis it must get.
        judged_by: for one whose values may be right by luck, the tool of compute-sanitizer that must find
            something in it instead.
        unavailable: why its file could not be imported, in words.
    """

    name: str
    backend: str
    prepare: Prepare | None
    parameters: dict[str, tuple[Any, ...]] = field(default_factory=dict)
    limits: dict[str, float] = field(default_factory=dict)
    least: dict[str, float] = field(default_factory=dict)
    allocates: bool = False
    needs_gpu: str | None = None
    scopes: tuple[str, ...] | None = None
    determinism: str | None = None
    host_data: bool = False
    layouts: tuple[str, ...] = ()
    dtypes: tuple[str, ...] = ()
    at: dict[str, Any] = field(default_factory=dict)
    loses_context: bool = False
    rejected_for: str | None = None
    judged_by: str | None = None
    unavailable: str | None = None

    @property
    def is_broken(self) -> bool:
        """Whether it is there to be rejected."""
        return self.rejected_for is not None or self.judged_by is not None

    @property
    def label(self) -> str:
        """`backend.name`, unique within the problem."""
        return f"{self.backend}.{self.name}"

    def limit_exceeded(self, point: Names) -> str | None:
        """Why the variant cannot run at `point`, in words, or None."""
        for axis, limit in self.limits.items():
            if point[axis] > limit:
                return f"too large: {axis}={point[axis]}, and the variant declares a limit of {limit:g}"
        for axis, least in self.least.items():
            if point[axis] < least:
                return f"too small: {axis}={point[axis]}, and the variant takes {least:g} or more"
        return None


@dataclass(frozen=True)
class Case:
    """A problem, a variant, a point on the axes and values of the variant's parameters.

    Attributes:
        awkward: whether the point is there to be checked more than to be measured.
        first: whether it is the first of its variant and parameters, which is checked in the corners too.
    """

    problem: Problem
    variant: Variant
    point: Point
    parameters: dict[str, Any]
    awkward: bool = False
    first: bool = False

    @property
    def id(self) -> str:
        """For example `vector_exp/numba.grid_stride/n=1000003,block=128`; the same in every process."""
        values = ",".join(f"{name}={value}" for name, value in {**self.point, **self.parameters}.items())
        return f"{self.problem.name}/{self.variant.label}/{values}"

    @property
    def scopes(self) -> tuple[str, ...]:
        """Scopes to measure. What starts and ends with host data by itself is timed end to end only."""
        if self.variant.backend == "host" or self.variant.host_data:
            return ("end_to_end",)
        scopes = self.variant.scopes or self.problem.scopes
        return scopes[:1] if self.awkward else scopes
