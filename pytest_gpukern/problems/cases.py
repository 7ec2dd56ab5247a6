"""Lists the cases of a problem in order: each is a variant at a point with parameters."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pytest_gpukern.problems.call_by_name import Point
from pytest_gpukern.problems.problem import Problem
from pytest_gpukern.problems.variants import Variant
from pytest_gpukern.values.backend_table import runs_on_gpu


@dataclass(frozen=True)
class Case:
    """Names one thing to check and measure: a variant of a problem at a point, with its parameters.

    Attributes:
        point: axis → value.
        parameters: parameter of the variant → value.
        awkward: whether the point is there for checking more than for speed.
        first: whether it is the first with its variant and parameters; only that one is checked in corners.
    """

    problem: Problem
    variant: Variant
    point: Point
    parameters: dict[str, Any]
    awkward: bool = False
    first: bool = False

    @property
    def id(self) -> str:
        """The pytest id, baseline key and report row, such as `exp/numba.fast/n=1000003,block=128`."""
        values = ",".join(f"{name}={value}" for name, value in {**self.point, **self.parameters}.items())
        return f"{self.problem.name}/{self.variant.label}/{values}"

    @property
    def on_gpu(self) -> bool:
        """Whether its backend runs on the GPU, or in its simulator."""
        return runs_on_gpu(self.variant.backend)

    @property
    def scopes(self) -> tuple[str, ...]:
        """The scopes to measure. A variant that takes host data is timed end to end only."""
        if self.variant.host_data or not self.on_gpu:
            return ("end_to_end",)
        scopes = self.variant.scopes or self.problem.scopes
        return scopes[:1] if self.awkward else scopes


def cases_of(
    problem: Problem, size: str, axes: Mapping[str, Sequence[Any]] | None = None, *, wrong: bool = False
) -> Iterator[Case]:
    """Yields all cases point by point, so that inputs and reference of a point are made once.

    Variants that run at one point come last. A broken one may do so since it breaks its CUDA context: where
    nothing follows, no process has to import and collect everything again, 8 s on an H200's host.

    Args:
        size: "smoke", "full" or "huge".
        axes: axis → values that the run chose instead of the axis's values at `size`.
        wrong: whether to yield the deliberately broken variants instead.
    """
    variants = list((problem.variants.broken if wrong else problem.variants.right).values())
    begun: set[tuple[str, str]] = set()  # variants and parameters that have had their first point
    for point in problem.axes.points(size, axes):
        awkward = size == "huge" or (size == "full" and problem.axes.has_awkward(point, axes))
        for variant in (variant for variant in variants if not variant.at):
            for parameters in itertools.islice(_parameters(variant), 1 if awkward else None):
                run = (variant.label, repr(tuple(parameters.values())))
                runs = variant.limit_exceeded(point) is None
                first = runs and (wrong or run not in begun) and not axes and size != "huge"
                if runs:
                    begun.add(run)
                yield Case(problem, variant, point, parameters, awkward, first)
    for variant in variants:  # one point; with huge sizes only if that is huge
        point = {**problem.axes.smoke_point, **variant.at}
        huge = problem.axes.has_huge(point)
        if variant.at and (size != "huge" or huge):
            for parameters in _parameters(variant):
                yield Case(problem, variant, point, parameters, first=not huge)


def _parameters(variant: Variant) -> Iterator[dict[str, Any]]:
    for values in itertools.product(*variant.parameters.values()):
        yield dict(zip(variant.parameters, values, strict=True))
