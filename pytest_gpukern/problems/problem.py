"""What is computed: inputs, reference, outputs, tolerance, bytes and flops, stated once for all variants."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from pytest_gpukern.arrays.memory import Placement, placements
from pytest_gpukern.problems.axes import Axes, Axis, DeclaredPoints
from pytest_gpukern.problems.inputs import Contents, SpecialValues
from pytest_gpukern.problems.outputs import Output, Outputs
from pytest_gpukern.problems.variants import VariantRegistry
from pytest_gpukern.problems.work import Work
from pytest_gpukern.values.call_by_name import CallAt, Names, Point, ProblemError

if TYPE_CHECKING:
    import numpy as np

    from pytest_gpukern.arrays.compare import Tolerance


TestFunction = TypeVar("TestFunction", bound=Callable[..., Any])


class Problem(VariantRegistry):
    """What is computed: inputs, reference, outputs, tolerance, bytes and flops.

    Each callable is given by name whatever it names among the point's axes, the inputs and (for a variant)
    the outputs, `stream` and its own parameters, so it lists only what it needs.

    Args:
        name: an identifier; names the baseline file.
        version: raise it when inputs or work change, so that old times are not compared with new ones.
        axes: name → `Axis`; the points are their product.
        make_inputs: takes `rng` (a seeded `numpy.random.Generator`) and axes; returns name → array or scalar.
        outputs: takes axes and inputs; returns name → `Output` or (shape, dtype).
        reference: takes inputs and axes; returns one array or name → array, in higher precision where that
            exists. Without one, `check` decides alone.
        rearrange: takes `rng`, inputs, the reference under the outputs' names, and axes; returns both again,
            name → array or scalar, for other contents whose reference follows exactly, as the rows of a
            product follow those of its left operand. Every element of every output has to change, or a
            result kept from the contents before would pass. Used where a set takes over a gigabyte, of which
            a second reference would take seconds.
        tolerance: a `Tolerance`, a dict of them by output, or a callable that takes axes and returns either;
            by default `Tolerance.for_dtype` of the output. One that the next lower precision would meet too,
            or an output of zeros, is refused at the points of `axes`; elsewhere a note says so.
        allow_lower_precision: why the next lower precision may pass, in words; then it is not refused.
        traffic_bytes: takes axes; the fewest bytes that device memory must move.
        flops: takes axes; floating-point operations of the work.
        transfer_bytes: takes axes; bytes copied to and from the device. By default the sizes of the arrays.
        check: statistical check of several runs with different seeds: takes a list of `Run`, returns a
            diagnosis in words or None.
        check_seeds: how many runs `check` is given; of a timed variant whose launch takes over 50 ms on the
            host at most three before timing, and then four with the timed one.
        scopes: the scopes to measure by default.
        speedup_against: label of the variant that speed-up is reported against.
        shrink: axis that is halved until `host_bytes` fits the machine; the result shows what ran.
        host_bytes: takes axes; host memory that inputs, outputs and reference need.
        check_points: further points at which every variant is checked and never timed, such as
            `[{"n": n} for n in boundaries()]`; axes that one does not name keep their first smoke value. Or
            what returns them, given the case's parameters by name, as `lambda block=256: …`. They are checked
            once a variant and set of parameters, at the first point of a run that chooses no axis.
        special_values: input → values such as NaN, infinities, subnormals and -0.0, or a callable that takes
            axes and returns that. Every variant is checked once with all of them among random values, at the
            first smoke point: NaN is right where the reference has it, and only there.
        exact_inputs: as `make_inputs`, of integers so small that every sum and product of them is exact in
            the outputs' dtypes, for work that is linear in its inputs. Every variant is checked on them once,
            at the first smoke point, and must equal the reference, whatever the order of its sums.
        layouts: layout → input and output arrays that may come in it: `{"misaligned": ("x", "y")}` for arrays
            that begin an odd number of elements behind a boundary, `{"strided": ("x", "y")}` for every second
            element along the last axis of a larger array (the second array every third, and so on). Variants
            that declare a layout are checked in it once, at the first smoke point.
        dtypes: names of the dtypes in which the work is declared; every callable gets one of them as `dtype`.
            The first is that of all cases, which do not name it. Variants that declare others are checked in
            each once, at the first smoke point, and never timed in it. Dtypes to be timed are an axis.
        simulator_limits: axis → largest value that the simulator is given in `check_points`.
        seed: recorded seed of the inputs.
        package: `__package__` of the folder that holds the variants' files, `on_*.py` and `wrong*.py`.

    Raises:
        ProblemError: the declaration contradicts itself.
    """

    def __init__(
        self,
        name: str,
        *,
        version: int,
        axes: Mapping[str, Axis],
        make_inputs: Callable[..., Mapping[str, Any]],
        outputs: Callable[..., Mapping[str, Any]],
        reference: Callable[..., Any] | None = None,
        rearrange: Callable[..., Mapping[str, Any]] | None = None,
        tolerance: Any = None,
        allow_lower_precision: str | None = None,
        traffic_bytes: Callable[..., float] | None = None,
        flops: Callable[..., float] | None = None,
        transfer_bytes: Callable[..., float] | None = None,
        check: Callable[[Sequence[Run]], str | None] | None = None,
        check_seeds: int = 8,
        scopes: tuple[str, ...] = ("kernel",),
        speedup_against: str | None = None,
        shrink: str | None = None,
        host_bytes: Callable[..., float] | None = None,
        check_points: DeclaredPoints = (),
        special_values: SpecialValues | Callable[..., SpecialValues] | None = None,
        exact_inputs: Callable[..., Mapping[str, Any]] | None = None,
        layouts: Mapping[str, Sequence[str]] | None = None,
        dtypes: Sequence[str] = (),
        simulator_limits: Mapping[str, float] | None = None,
        seed: int = 1,
        package: str | None = None,
    ) -> None:
        if not name.isidentifier():
            raise ProblemError(f"problem name {name!r}: it names a file, so it must be an identifier")
        if reference is None and check is None:
            raise ProblemError(f"problem {name!r} has neither reference nor check: nothing could ever fail")
        self.version, self.package = version, package
        self.speedup_against, self.allow_lower_precision = speedup_against, allow_lower_precision
        self.check, self.check_seeds, self.seed = check, check_seeds, seed
        self.shrink, self.simulator_limits = shrink, dict(simulator_limits or {})
        self._checked_at = check_points
        its_axes, call_at = Axes(axes), CallAt(tuple(dtypes))
        self._call_at = call_at
        self._outputs = Outputs(name, call_at, outputs, reference, rearrange, tolerance)
        self._work = Work(name, call_at, its_axes, traffic_bytes, flops, transfer_bytes, shrink, host_bytes)
        self._contents = Contents(
            name,
            call_at,
            seed,
            make_inputs,
            special_values,
            exact_inputs,
            has_reference=reference is not None,
        )
        its_axes.refuse_unknown(self.simulator_limits, f"problem {name!r}: simulator_limits")
        super().__init__(name, its_axes, scopes, layouts or {}, call_at.dtypes)
        self.loaded = False  # whether the variants' files were looked at

    def __repr__(self) -> str:
        return f"Problem({self.name!r}, version={self.version})"

    # declaring tests

    def cases(self, function: TestFunction) -> TestFunction:
        """Turns a test function with a `case` argument into one test item a case."""
        function._gpukern_problem = (self, False)  # type: ignore[attr-defined]
        return function

    def wrong_cases(self, function: TestFunction) -> TestFunction:
        """Turns a test function with a `case` argument into one test item a broken variant."""
        function._gpukern_problem = (self, True)  # type: ignore[attr-defined]
        return function

    # points and cases

    def points(self, size: str, axes: Mapping[str, Sequence[Any]] | None = None) -> list[Point]:
        """The product of the axes at `size`, with the values in `axes` taking precedence."""
        return self.axes.points(size, axes)

    def declares(self, point: Point) -> bool:
        """Whether every value of a point is one of its axis, rather than asked for or shrunk by a run."""
        return self.axes.declare(point)

    def is_huge(self, point: Point) -> bool:
        """Whether a value of a point is one that 32 bits cannot count, and that has to be asked for."""
        return self.axes.has_huge(point)

    def placements(self, layout: str, arrays: Sequence[str]) -> dict[str, Placement]:
        """Where those of the inputs and outputs lie that come in a layout.

        Raises:
            ProblemError: one that is declared is no input or output array.
        """
        unknown = [name for name in self.layouts[layout] if name not in arrays]
        if unknown:
            raise ProblemError(
                f"problem {self.name!r}: layouts has {unknown[0]!r}, and its arrays are {sorted(arrays)}"
            )
        return placements(layout, self.layouts[layout])

    @property
    def smoke_point(self) -> Point:
        """The first of the smoke points."""
        return self.axes.smoke_point

    def boundary_points(self, parameters: Names) -> list[tuple[str, Point]]:
        """The points of `check_points` for a variant with these parameters, each with what it names, as text.

        Raises:
            ProblemError: one is no mapping of axes to values.
        """
        return self.axes.points_at(self._checked_at, parameters, self.name)

    # the problem at one point

    def named(self, point: Point) -> Point:
        """What the problem's callables are given by name at a point: `dtype` too, where there are several."""
        return self._call_at.named(point)

    def inputs(self, point: Point, seed_offset: int = 0, seed: int | None = None) -> dict[str, Any]:
        """Fresh inputs for `point`: the same for the same offset and seed, in every process.

        Args:
            point: where.
            seed_offset: which contents.
            seed: instead of the problem's own.
        """
        return self._contents.random(point, seed_offset, seed)

    @functools.cached_property
    def contents(self) -> tuple[str, ...]:
        """The contents that variants are checked on once besides random ones; see `corners.Corner`."""
        return self._contents.kinds(self.smoke_point)

    def exact(self, point: Point, seed: int | None = None) -> dict[str, Any]:
        """The inputs of integers."""
        return self._contents.exact(point, seed)

    def with_special(
        self, point: Point, seed: int | None = None
    ) -> tuple[dict[str, Any], dict[str, dict[int, float]]]:
        """Random inputs with the special values among them, and where they are: input → flat index → value.

        Raises:
            ProblemError: values are declared for what is no array of floats, or more than it has elements.
        """
        return self._contents.with_special(point, seed)

    @property
    def rearranges(self) -> bool:
        """Whether other contents can be made of a set, and their reference of its reference."""
        return self._outputs.rearrange is not None

    def rearranged(
        self, point: Point, inputs: Names, expected: Names, seed_offset: int, seed: int | None = None
    ) -> tuple[dict[str, Any], dict[str, np.ndarray[Any, Any]]]:
        """Inputs and expected outputs of another set, made of these.

        Raises:
            ProblemError: names or shapes do not fit the inputs and outputs, or an output stays the same.
        """
        rng = self._contents.rng(point, seed_offset, seed)
        return self._outputs.rearranged(point, inputs, expected, rng)

    def output_specs(self, point: Point, inputs: Names) -> dict[str, Output]:
        """Shape and dtype of each output at `point`."""
        return self._outputs.specs(point, inputs)

    def reference(self, point: Point, inputs: Names) -> dict[str, np.ndarray[Any, Any]] | None:
        """Expected outputs, or None where only `check` decides.

        Raises:
            ProblemError: names or shapes are not those of the declared outputs.
        """
        return self._outputs.expected(point, inputs)

    def tolerance(self, output: str, spec: Output, point: Point) -> Tolerance:
        """The tolerance of one output at `point`.

        Raises:
            ProblemError: what is declared is no `Tolerance`.
        """
        return self._outputs.tolerance(output, spec, point)

    def traffic_bytes(self, point: Point) -> float | None:
        """Fewest bytes that the work moves through device memory, or None where not declared."""
        return self._work.count(self._work.traffic_bytes, point)

    def transfer_bytes(self, point: Point) -> float | None:
        """Bytes copied between host and device, or None where not declared."""
        return self._work.count(self._work.transfer_bytes, point)

    def flops(self, point: Point) -> float | None:
        """Floating-point operations of the work, or None where not declared."""
        return self._work.count(self._work.flops, point)

    def fit(self, point: Point, budget_bytes: float) -> Point:
        """The point with the `shrink` axis halved until `host_bytes` fits `budget_bytes`."""
        return self._work.fit(point, budget_bytes)


@dataclass(frozen=True)
class Run:
    """One checked launch, as a statistical check sees it: host values of inputs, outputs and point."""

    point: Point
    inputs: dict[str, Any]
    outputs: dict[str, np.ndarray[Any, Any]]
