"""What is computed and who computes it: `Problem`, `Variant`, `Case`, `Tolerance`.

A problem states inputs, reference, outputs, tolerance, bytes and flops once. A variant is one implementation
on one backend. A case is a problem, a variant and a point on the problem's axes; its id is the pytest id, the
baseline key and the report row.
"""

from __future__ import annotations

import inspect
import itertools
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import DTypeLike

SCOPES = ("kernel", "transfer", "end_to_end")
SIZES = ("smoke", "full")
Point = dict[str, Any]
Names = Mapping[str, Any]
TestFunction = TypeVar("TestFunction", bound=Callable[..., Any])
Prepare = Callable[..., Callable[[], Any]]


class ProblemError(Exception):
    """A problem, variant or axis was declared or selected in a way that cannot work."""


@dataclass(frozen=True)
class Axis:
    """The values of one axis of a problem, at the size that CI can run and at full size.

    Either may hold one awkward value (a prime, not a multiple of any block) and should.
    """

    smoke: tuple[Any, ...]
    full: tuple[Any, ...]

    def values(self, size: str) -> tuple[Any, ...]:
        """The values at `size`, which is "smoke" or "full"."""
        return self.smoke if size == "smoke" else self.full


@dataclass(frozen=True)
class Output:
    """Shape and dtype of one declared output."""

    shape: tuple[int, ...]
    dtype: DTypeLike


@dataclass(frozen=True)
class Tolerance:
    """An element passes where |actual − expected| ≤ atol + rtol · |expected|; expected is the reference.

    Raises:
        ValueError: a bound is negative or not finite.
    """

    rtol: float = 0.0
    atol: float = 0.0

    def __post_init__(self) -> None:
        for name, value in (("rtol", self.rtol), ("atol", self.atol)):
            if not 0 <= value < float("inf"):
                raise ValueError(f"{name}={value!r}: a tolerance is a finite number ≥ 0, such as 1e-6")

    @classmethod
    def for_dtype(cls, dtype: DTypeLike) -> Tolerance:
        """The default for an element-wise result of `dtype`: the bounds of `torch.testing.assert_close`.

        float16 1e-3/1e-5, float32 1.3e-6/1e-5, float64 1e-7/1e-7; anything that is not a float must be equal.
        """
        import numpy as np

        known = {"float16": (1e-3, 1e-5), "float32": (1.3e-6, 1e-5), "float64": (1e-7, 1e-7)}
        name = np.dtype(dtype).name
        name = {"complex64": "float32", "complex128": "float64"}.get(name, name)
        return cls(*known.get(name, (0.0, 0.0)))

    @classmethod
    def for_sum(cls, terms: int, dtype: DTypeLike, magnitude: float = 1.0) -> Tolerance:
        """For a sum of `terms` products of size `magnitude`: rounding grows as √terms · eps.

        The factor 8 leaves room for the order of summation. N. J. Higham, Accuracy and Stability of Numerical
        Algorithms (2002), section 2.8: the statistical error of a sum behaves as the square root of terms.
        """
        import numpy as np

        eps = float(np.finfo(np.dtype(dtype)).eps)
        return cls(rtol=8 * eps, atol=8 * eps * magnitude * float(terms) ** 0.5)


@dataclass(frozen=True)
class Variant:
    """One implementation of a problem on one backend.

    Attributes:
        name: unique within problem and backend.
        backend: `numba`, `cupy`, `pycuda`, `skcuda`, `torch` or `host`.
        prepare: takes inputs, outputs, point and parameters by name, returns the callable that is timed;
            None where the variant's file could not be imported.
        parameters: the variant's own parameters, each with the values to try.
        limits: for an axis, the largest value at which the variant can finish.
        allocates: the launch returns new arrays instead of writing those it was given.
        needs_gpu: what it needs that the simulator lacks, in words; None where the simulator can run it.
        scopes: scopes in which it is measured, or None for the problem's.
        host_data: it is given host arrays and moves the data itself, so it is timed end to end only.
        rejected_for: for a deliberately broken variant, the diagnosis it must get.
        unavailable: why its file could not be imported, in words.
    """

    name: str
    backend: str
    prepare: Prepare | None
    parameters: dict[str, tuple[Any, ...]] = field(default_factory=dict)
    limits: dict[str, float] = field(default_factory=dict)
    allocates: bool = False
    needs_gpu: str | None = None
    scopes: tuple[str, ...] | None = None
    host_data: bool = False
    rejected_for: str | None = None
    unavailable: str | None = None

    @property
    def label(self) -> str:
        """`backend.name`, unique within the problem."""
        return f"{self.backend}.{self.name}"

    def limit_exceeded(self, point: Names) -> str | None:
        """Why the variant cannot finish at `point`, in words, or None."""
        for axis, limit in self.limits.items():
            if point[axis] > limit:
                return f"too large: {axis}={point[axis]}, and the variant declares a limit of {limit:g}"
        return None


@dataclass(frozen=True)
class Case:
    """A problem, a variant, a point on the axes and values of the variant's parameters."""

    problem: Problem
    variant: Variant
    point: Point
    parameters: dict[str, Any]

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
        return self.variant.scopes or self.problem.scopes


class Problem:
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
        tolerance: a `Tolerance`, a dict of them by output, or a callable that takes axes and returns either;
            by default `Tolerance.for_dtype` of the output.
        traffic_bytes: takes axes; the fewest bytes that device memory must move.
        flops: takes axes; floating-point operations of the work.
        transfer_bytes: takes axes; bytes copied to and from the device. By default the sizes of the arrays.
        check: statistical check of several runs with different seeds: takes a list of `Run`, returns a
            diagnosis in words or None.
        check_seeds: how many runs `check` is given.
        scopes: the scopes to measure by default.
        speedup_against: label of the variant that speed-up is reported against.
        shrink: axis that is halved until `host_bytes` fits the machine; the result shows what ran.
        host_bytes: takes axes; host memory that inputs, outputs and reference need.
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
        tolerance: Any = None,
        traffic_bytes: Callable[..., float] | None = None,
        flops: Callable[..., float] | None = None,
        transfer_bytes: Callable[..., float] | None = None,
        check: Callable[[Sequence[Run]], str | None] | None = None,
        check_seeds: int = 8,
        scopes: tuple[str, ...] = ("kernel",),
        speedup_against: str | None = None,
        shrink: str | None = None,
        host_bytes: Callable[..., float] | None = None,
        seed: int = 1,
        package: str | None = None,
    ) -> None:
        if not name.isidentifier():
            raise ProblemError(f"problem name {name!r}: it names a file, so it must be an identifier")
        if reference is None and check is None:
            raise ProblemError(f"problem {name!r} has neither reference nor check: nothing could ever fail")
        if (shrink is None) != (host_bytes is None):
            raise ProblemError(f"problem {name!r}: shrink and host_bytes are given together or not at all")
        if shrink is not None and shrink not in axes:
            raise ProblemError(f"problem {name!r}: shrink={shrink!r} is none of its axes {sorted(axes)}")
        for scope in scopes:
            if scope not in SCOPES:
                raise ProblemError(f"problem {name!r}: scope {scope!r} is none of {', '.join(SCOPES)}")
        self.name = name
        self.version = version
        self.axes = dict(axes)
        self.scopes = scopes
        self.speedup_against = speedup_against
        self.check = check
        self.check_seeds = check_seeds
        self.seed = seed
        self.shrink = shrink
        self.package = package
        self._make_inputs = make_inputs
        self._outputs = outputs
        self._reference = reference
        self._tolerance = tolerance
        self._traffic_bytes = traffic_bytes
        self._flops = flops
        self._transfer_bytes = transfer_bytes
        self._host_bytes = host_bytes
        self.registered: dict[str, Variant] = {}
        self.registered_wrong: dict[str, Variant] = {}
        self.loaded = False  # whether the variants' files were looked at

    def __repr__(self) -> str:
        return f"Problem({self.name!r}, version={self.version})"

    # declaring variants and tests

    def variant(
        self,
        backend: str,
        *,
        limits: Mapping[str, float] | None = None,
        allocates: bool = False,
        needs_gpu: str | None = None,
        scopes: tuple[str, ...] | None = None,
        host_data: bool = False,
        **parameters: Sequence[Any],
    ) -> Callable[[Prepare], Prepare]:
        """Registers the decorated function as a variant on `backend`; see `Variant` for the arguments.

        The function takes by name what it needs (arrays of the backend's own type for inputs and outputs,
        scalars as they are, axes, `stream` in the backend's own type, parameters), may prepare untimed, and
        returns the callable that is timed.
        """

        return self._register(
            backend,
            parameters,
            limits=dict(limits or {}),
            allocates=allocates,
            needs_gpu=needs_gpu,
            scopes=scopes,
            host_data=host_data,
        )

    def wrong(
        self,
        backend: str,
        *,
        rejected_for: str,
        allocates: bool = False,
        needs_gpu: str | None = None,
        **parameters: Sequence[Any],
    ) -> Callable[[Prepare], Prepare]:
        """Registers a deliberately broken variant, which the checker must reject for `rejected_for`.

        `rejected_for` is a value of `verify.Fault`, such as "not written".
        """

        return self._register(
            backend, parameters, allocates=allocates, needs_gpu=needs_gpu, rejected_for=rejected_for
        )

    def _register(
        self, backend: str, parameters: Mapping[str, Sequence[Any]], **attributes: Any
    ) -> Callable[[Prepare], Prepare]:
        values = {name: tuple(entries) for name, entries in parameters.items()}

        def register(prepare: Prepare) -> Prepare:
            self.add(Variant(prepare.__name__, backend, prepare, values, **attributes))
            return prepare

        return register

    def add(self, variant: Variant) -> None:
        """Adds a variant, refusing a second one of the same label and a limit on an unknown axis."""
        home = self.registered if variant.rejected_for is None else self.registered_wrong
        present = home.get(variant.label)
        if present is not None and present.prepare is not None and variant.prepare is not present.prepare:
            same_code = (
                variant.prepare is not None
                and variant.prepare.__code__.co_filename == present.prepare.__code__.co_filename
                and variant.prepare.__code__.co_firstlineno == present.prepare.__code__.co_firstlineno
            )
            if not same_code:  # the same file imported twice, under two names, is no clash
                raise ProblemError(f"problem {self.name!r} has two variants named {variant.label!r}")
        unknown = [axis for axis in variant.limits if axis not in self.axes]
        if unknown:
            raise ProblemError(
                f"variant {variant.label!r} limits {unknown[0]!r}, none of the axes {sorted(self.axes)}"
            )
        home[variant.label] = variant

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
        chosen = {name: (axes or {}).get(name) or axis.values(size) for name, axis in self.axes.items()}
        return [dict(zip(chosen, values, strict=True)) for values in itertools.product(*chosen.values())]

    def iter_cases(
        self, size: str, axes: Mapping[str, Sequence[Any]] | None = None, *, wrong: bool = False
    ) -> Iterator[Case]:
        """All cases, point by point: inputs and reference are made once for all variants of a point."""
        variants = self.registered_wrong if wrong else self.registered
        for point in self.points(size, axes):
            for variant in variants.values():
                for values in itertools.product(*variant.parameters.values()):
                    yield Case(self, variant, point, dict(zip(variant.parameters, values, strict=True)))

    # the problem at one point

    def inputs(self, point: Point, seed_offset: int = 0) -> dict[str, Any]:
        """Fresh inputs for `point`: the same for the same offset, in every process."""
        import numpy as np

        entropy = [self.seed, seed_offset, zlib.crc32(repr((self.name, sorted(point.items()))).encode())]
        rng = np.random.default_rng(np.random.SeedSequence(entropy))
        return dict(call_by_name(self._make_inputs, {**point, "rng": rng}))

    def output_specs(self, point: Point, inputs: Names) -> dict[str, Output]:
        """Shape and dtype of each output at `point`."""
        made = call_by_name(self._outputs, {**point, **inputs})
        return {
            name: entry if isinstance(entry, Output) else Output(tuple(entry[0]), entry[1])
            for name, entry in made.items()
        }

    def reference(self, point: Point, inputs: Names) -> dict[str, np.ndarray[Any, Any]] | None:
        """Expected outputs, or None where only `check` decides."""
        import numpy as np

        if self._reference is None:
            return None
        made = call_by_name(self._reference, {**point, **inputs})
        if isinstance(made, Mapping):
            return {name: np.asarray(value) for name, value in made.items()}
        names = list(self.output_specs(point, inputs))
        if len(names) != 1:
            raise ProblemError(f"problem {self.name!r}: with outputs {names} the reference returns a dict")
        return {names[0]: np.asarray(made)}

    def tolerance(self, output: str, spec: Output, point: Point) -> Tolerance:
        """The tolerance of one output at `point`."""
        given = self._tolerance
        if callable(given):
            given = call_by_name(given, dict(point))
        if isinstance(given, Mapping):
            given = given.get(output)
        return given if isinstance(given, Tolerance) else Tolerance.for_dtype(spec.dtype)

    def traffic_bytes(self, point: Point) -> float | None:
        """Fewest bytes that the work moves through device memory, or None where not declared."""
        return None if self._traffic_bytes is None else float(call_by_name(self._traffic_bytes, dict(point)))

    def transfer_bytes(self, point: Point) -> float | None:
        """Bytes copied between host and device, or None where not declared."""
        if self._transfer_bytes is None:
            return None
        return float(call_by_name(self._transfer_bytes, dict(point)))

    def flops(self, point: Point) -> float | None:
        """Floating-point operations of the work, or None where not declared."""
        return None if self._flops is None else float(call_by_name(self._flops, dict(point)))

    def fit(self, point: Point, budget_bytes: float) -> Point:
        """The point with the `shrink` axis halved until `host_bytes` fits `budget_bytes`."""
        if self.shrink is None or self._host_bytes is None:
            return point
        fitted = dict(point)
        while call_by_name(self._host_bytes, fitted) > budget_bytes and fitted[self.shrink] > 1:
            fitted[self.shrink] //= 2
        return fitted


@dataclass(frozen=True)
class Run:
    """One checked launch, as a statistical check sees it: host values of inputs, outputs and point."""

    point: Point
    inputs: dict[str, Any]
    outputs: dict[str, np.ndarray[Any, Any]]


def call_by_name(function: Callable[..., Any], available: Names) -> Any:
    """Calls `function` with those of `available` that it names.

    Raises:
        ProblemError: it names something that is not there; the message lists what is.
    """
    parameters = inspect.signature(function).parameters.values()
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return function(**available)
    arguments = {}
    for parameter in parameters:
        if parameter.name in available:
            arguments[parameter.name] = available[parameter.name]
        elif parameter.default is parameter.empty:
            raise ProblemError(
                f"{getattr(function, '__name__', function)} names {parameter.name!r}; "
                f"there is {', '.join(sorted(available))}"
            )
    return function(**arguments)


def random_array(
    rng: np.random.Generator,
    shape: int | Iterable[int],
    dtype: DTypeLike = "float64",
    *,
    distribution: str = "uniform",
) -> np.ndarray[Any, Any]:
    """Random values of `dtype`, filled by several threads; the values do not depend on their number.

    Args:
        rng: the problem's seeded generator.
        shape: of the array.
        dtype: float32 or float64.
        distribution: "uniform" on [0, 1) or "normal" (mean 0, variance 1).
    """
    import os
    from concurrent.futures import ThreadPoolExecutor

    import numpy as np

    dims = (shape,) if isinstance(shape, int) else tuple(shape)
    array = np.empty(dims, dtype=dtype)
    flat = array.reshape(-1)
    chunk = 1 << 22
    children = rng.spawn(max(1, -(-flat.size // chunk)))

    def fill(index: int) -> None:
        part = flat[index * chunk : (index + 1) * chunk]
        draw = children[index].random if distribution == "uniform" else children[index].standard_normal
        draw(out=part, dtype=part.dtype)

    with ThreadPoolExecutor(min(len(children), os.cpu_count() or 1)) as pool:
        list(pool.map(fill, range(len(children))))
    return array
