"""Defines `Problem`, with which users declare inputs, reference, outputs, tolerance, work and variants."""

from __future__ import annotations

import functools
import inspect
import math
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import DTypeLike

from pytest_gpukern.arrays.compare import Tolerance, dtype_missing, is_narrow, unknown_dtype
from pytest_gpukern.arrays.memory import LAYOUTS, Placement, placements
from pytest_gpukern.arrays.threaded import few_changed
from pytest_gpukern.problems.axes import Axes, Axis
from pytest_gpukern.problems.call_by_name import Names, Point, ProblemError, call_by_name, users_line
from pytest_gpukern.problems.variants import SCOPES, Registration, Variant, Variants, refuse_unknown
from pytest_gpukern.values.nearest import refusing_unknown
from pytest_gpukern.values.options import SANITIZERS

Expected = dict[str, np.ndarray[Any, Any]]
TestFunction = TypeVar("TestFunction", bound=Callable[..., Any])
DeclaredPoints = Sequence[Mapping[str, Any]] | Callable[..., Sequence[Mapping[str, Any]]]
SpecialValues = Mapping[str, Sequence[float]]
_SEED = 1


@dataclass(frozen=True)
class Output:
    """Declares shape, dtype and order of one output.

    Attributes:
        shape: shape of the array.
        dtype: dtype of the array.
        order: "C" if a returned array must be contiguous in C order; "any" if it may be strided, such as a
            transposed view.
        written: index or mask of the elements that a launch writes, such as `numpy.s_[1:-1, 1:-1]`; None for
            all of them. The other elements must not change. Before a launch the array holds random numbers
            instead of a poison.

    Raises:
        ProblemError: `order` is neither.
    """

    shape: tuple[int, ...]
    dtype: DTypeLike
    order: str = "C"
    written: Any = field(default=None, compare=False)

    def __post_init__(self) -> None:
        if self.order not in ("C", "any"):
            raise ProblemError(f"order={self.order!r}: the order of an output must be 'C' or 'any'")

    @property
    def nbytes(self) -> int:
        """Size of its elements."""
        return math.prod(self.shape) * int(np.dtype(self.dtype).itemsize)

    def of_written(self, values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Returns the elements of an array that a launch writes."""
        return values if self.written is None else values[self.written]


def size_of(shape: tuple[int, ...], written: Any) -> int:
    """Returns how many elements of an array an index or a mask selects; None selects all."""
    every = np.broadcast_to(False, shape)
    return int(every.size if written is None else every[written].size)


@dataclass(frozen=True)
class Run:
    """Holds one checked launch for a statistical check.

    `point` maps axes to values, `inputs` names to NumPy arrays or scalars, and `outputs` names to arrays.
    """

    point: Point
    inputs: dict[str, Any]
    outputs: dict[str, np.ndarray[Any, Any]]


class Declared(NamedTuple):
    """Says of a test function which problem's cases it runs, and whether these are the broken ones."""

    problem: Problem
    wrong: bool


_MOST_BYTES = 2**25
"""Of a larger input, we look at about so many bytes to see if the reference changes it."""


def _some_bytes(array: np.ndarray[Any, Any]) -> bytes:
    """Returns the bytes of an array, or of elements spread over a large one, 64 MiB at most."""
    return array.ravel(order="K")[:: max(1, array.nbytes // _MOST_BYTES)].tobytes()


class Problem:
    """Declares what is computed, once for all variants: inputs, reference, outputs, tolerance, bytes, flops.

    Each function below takes what it needs by name: axes of the point, and inputs where it says so.

    Args:
        name: an identifier that no other problem of a run has; it names the baseline file.
        version: raise it when inputs or work change, so that old times are not compared with new ones.
        axes: name → `Axis`; the points are the product of their values.
        make_inputs: takes `rng` (a seeded `numpy.random.Generator`) and axes; returns name → array or scalar.
            Variants get arrays in C order, whatever order these have.
        outputs: takes axes and inputs; returns name → `Output` or (shape, dtype).
        reference: takes inputs and axes; returns the expected output, or name → array for several. Compute
            it in a higher precision where there is one. Without a reference, `check` alone decides.
        inout: inputs that a launch updates in place, such as `("histogram",)`. Before every launch, also a
            timed one, we put back what `make_inputs` gave them. After it they are compared with what
            `reference` returns under their names. `outputs` need not list them.
        tolerance: a `Tolerance`, a dict of output → `Tolerance`, or a function of the axes that returns
            either; by default `Tolerance.for_dtype` of the output. At the points of `axes` we refuse one that
            would pass the next lower precision, or an output of zeros; elsewhere a note says so.
        allow_lower_precision: why the next lower precision may pass, in words; then it is not refused.
        traffic_bytes: takes axes; returns the fewest bytes that the work must move through device memory.
        flops: takes axes; returns the number of floating-point operations of the work.
        transfer_bytes: takes axes; returns the bytes copied to and from the device. By default the sizes of
            the arrays. If it is more than the host's free memory, the case is skipped before anything is
            made.
        check: checks eight runs with different seeds statistically: takes a list of `Run`, returns what is
            wrong in words, or None. It may also return whether they are right, as True or False. A timed host
            variant whose launch takes over 50 ms has three runs before timing, and four with the timed one.
        scopes: the scopes to measure by default.
        speedup_against: label of the variant that speed-ups are reported against, such as "host.numpy".
        check_points: more points at which every variant is checked and never timed, such as
            `[{"n": n} for n in boundaries()]`. Axes that a point leaves out keep their first smoke value.
            They may depend on the variant's parameters: `lambda block=256: …`. Each variant is checked there
            once for each set of its parameters, unless the run chooses values of an axis.
        special_values: input → values such as NaN, infinities, subnormals and -0.0, or a function of the axes
            that returns that. Every variant is checked once with all of them among random values, at the
            first smoke point. NaN is right only where the reference has it.
        exact_inputs: like `make_inputs`, for work that is linear in its inputs: integers so small that all
            sums and products are exact in the outputs' dtypes. Every variant is checked on them once, at the
            first smoke point. It must equal the reference, whatever the order of its sums.
        layouts: layout → input and output arrays that may come in it. With `{"misaligned": ("x", "y")}` they
            begin an odd number of elements after an aligned address. With `{"strided": ("x", "y")}` x is
            every second element along the last axis of a larger array, y every third, and so on. Variants
            that declare a layout are checked in it once, at the first smoke point.
        dtypes: names of dtypes that the work may have; every function may take one of them as `dtype`. All
            cases use the first, which their ids do not name. Variants that declare others are checked in each
            once, at the first smoke point, and never timed in it. To time several dtypes, declare an axis.
            Arrays of "bfloat16" and float8 come from ml_dtypes; without it no variant is checked in them.
        simulator_limits: axis → the largest value in `check_points` that the simulator runs.
        package: `__package__` of the folder that holds the variants' files, `on_*.py` and `wrong*.py`.

    Attributes:
        axes: name → axis, with the points on them.
        variants: the right ones, and the deliberately broken ones.
        declared_at: file and line.
        statement: file and line of the module's statement that declares it, perhaps by another's function.
        loaded: whether we looked at the files of `package`.

    Raises:
        ProblemError: the declaration contradicts itself.
    """

    @refusing_unknown
    def __init__(
        self,
        name: str,
        *,
        version: int,
        axes: Mapping[str, Axis],
        make_inputs: Callable[..., Mapping[str, Any]],
        outputs: Callable[..., Mapping[str, Any]],
        reference: Callable[..., Any] | None = None,
        inout: Sequence[str] = (),
        tolerance: Any = None,
        allow_lower_precision: str | None = None,
        traffic_bytes: Callable[..., float] | None = None,
        flops: Callable[..., float] | None = None,
        transfer_bytes: Callable[..., float] | None = None,
        check: Callable[[Sequence[Run]], object] | None = None,
        scopes: tuple[str, ...] = ("kernel",),
        speedup_against: str | None = None,
        check_points: DeclaredPoints = (),
        special_values: SpecialValues | Callable[..., SpecialValues] | None = None,
        exact_inputs: Callable[..., Mapping[str, Any]] | None = None,
        layouts: Mapping[str, Sequence[str]] | None = None,
        dtypes: Sequence[str] = (),
        simulator_limits: Mapping[str, float] | None = None,
        package: str | None = None,
    ) -> None:
        self.name, self.declared_at, self.statement = name, users_line(), users_line(in_module=True)
        if not name.isidentifier():
            raise ProblemError(f"problem name {name!r}: must be an identifier, since it names a file")
        axes = Axes.declared(axes, f"problem {name!r}")
        for argument, given, example in (
            ("make_inputs", make_inputs, "lambda rng, n: {'x': rng.random(n)}"),
            ("outputs", outputs, "lambda n: {'y': ((n,), 'float32')}"),
            ("reference", reference, "lambda x: 2 * x"),
            ("exact_inputs", exact_inputs, "lambda rng, n: {'x': rng.integers(0, 8, n)}"),
            ("traffic_bytes", traffic_bytes, "lambda n: 8 * n"),
            ("transfer_bytes", transfer_bytes, "lambda n: 8 * n"),
            ("flops", flops, "lambda n: 2 * n"),
            ("check", check, "lambda runs: None"),
        ):
            if given is not None and not callable(given):
                raise self.error(f"{argument}={given!r} is not a function; write {argument}={example}")
        if check is not None:
            try:
                inspect.signature(check).bind([])
            except TypeError as error:
                raise self.error(f"check must take one argument, a list of Run: {error}") from None
            except ValueError:  # no Python function, and no signature
                pass
        if reference is None:
            if check is None:
                raise self.error("neither reference nor check, so nothing could ever fail; give one")
            if special_values is not None or exact_inputs is not None:
                raise self.error("special_values and exact_inputs need a reference to compare with")
        if isinstance(inout, str):
            raise self.error(f"inout={inout!r} is not a tuple of names; write inout=({inout!r},)")
        self.simulator_limits = axes.limits(simulator_limits, f"problem {name!r}: simulator_limits")
        if dtypes and "dtype" in axes:
            raise self.error("it has dtypes= and an axis named dtype; drop one of them")
        for unknown in filter(None, map(unknown_dtype, dtypes)):
            raise self.error(f"dtypes: {unknown}")
        refuse_unknown(f"problem {name!r}", "layout", layouts or (), LAYOUTS)
        refuse_unknown(f"problem {name!r}", "scope", scopes, SCOPES)
        self.version, self.package, self.loaded = version, package, False
        self.axes, self.scopes, self.dtypes, self.inout = axes, scopes, tuple(dtypes), tuple(inout)
        self.layouts = {layout: tuple(arrays) for layout, arrays in (layouts or {}).items()}
        self.check, self.speedup_against = check, speedup_against
        self.allow_lower_precision = allow_lower_precision
        self.variants = Variants(name, axes, self.layouts, self.dtypes)
        self._make_inputs, self._exact_inputs = make_inputs, exact_inputs
        self._special_values, self._check_points = special_values, check_points
        self._outputs, self._reference, self._tolerance = outputs, reference, tolerance
        self._traffic_bytes, self._transfer_bytes, self._flops = traffic_bytes, transfer_bytes, flops
        for named in () if callable(check_points) else check_points:
            self._refuse_bad_point(named)

    def __repr__(self) -> str:
        return f"Problem({self.name!r}, version={self.version})"

    def error(self, message: str) -> ProblemError:
        """Returns an error about this declaration, with its name, file and line."""
        return ProblemError(f"problem {self.name!r}: {message}", self.declared_at)

    # declaring variants and tests

    def variant(
        self,
        backend: str,
        *,
        max_size: Mapping[str, float] | None = None,
        min_size: Mapping[str, float] | None = None,
        allocates: bool = False,
        needs_gpu: str | None = None,
        scopes: tuple[str, ...] | None = None,
        determinism: str | None = None,
        host_data: bool = False,
        layouts: Sequence[str] = (),
        dtypes: Sequence[str] = (),
        **parameters: Sequence[Any],
    ) -> Registration:
        """Registers the decorated function as a variant on `backend`.

        The function takes by name what it needs: inputs, outputs, axes, `stream`, and its parameters. Arrays
        and the stream are of the backend's own type. It may prepare, untimed. It returns the function that
        is timed.

        Args:
            backend: a backend, such as "numba".
            max_size: axis → the largest value at which the variant can finish.
            min_size: axis → the smallest value that the variant takes.
            allocates: the launch returns new arrays instead of writing the outputs that it was given.
            needs_gpu: what the variant needs that the simulator lacks, in words; None if the simulator can
                run it.
            scopes: the scopes to measure; by default the problem's.
            determinism: with `bitwise` or `run-to-run`, launches on the same inputs must give the same bits,
                or the variant is INCORRECT. With `tolerant` or None they may differ.
            host_data: the variant takes host arrays and moves the data itself; it is timed end to end only.
            layouts: layouts of the problem that the variant takes; it is checked in them, never timed.
            dtypes: dtypes of the problem, besides the first, that it takes; it is checked in them, never
                timed.
            parameters: each parameter of the function with the values to try, such as `block=(128, 256)`.
        """
        declared = Variant(
            backend=backend,
            max_size=self.axes.limits(max_size, "max_size"),
            min_size=self.axes.limits(min_size, "min_size"),
            allocates=allocates,
            needs_gpu=needs_gpu,
            scopes=scopes,
            determinism=determinism,
            host_data=host_data,
            layouts=tuple(layouts),
            dtypes=tuple(dtypes),
        )
        return Registration(Problem.variant, self.variants, declared, parameters)

    def wrong(
        self,
        backend: str,
        *,
        expected_fault: str | None = None,
        detected_by: str | None = None,
        allocates: bool = False,
        needs_gpu: str | None = None,
        determinism: str | None = None,
        layouts: Sequence[str] = (),
        dtypes: Sequence[str] = (),
        at: Mapping[str, Any] | None = None,
        **parameters: Sequence[Any],
    ) -> Registration:
        """Registers a deliberately broken variant, which must be rejected.

        Our checks reject it with `expected_fault`. If its values may be right by luck, the tool `detected_by`
        of compute-sanitizer must find something instead, in a run with `--gpukern-sanitize`.

        Args:
            backend: as of `variant`, which explains the arguments that are not listed here.
            expected_fault: the fault that it must be rejected for, in the report's words, such as
                "not written".
            detected_by: a tool of compute-sanitizer, such as "racecheck".
            at: the only point at which it must be rejected, such as `{"n": 2**31 + 11}` for an index that
                overflows. Axes left out keep their first smoke value. Huge values run with
                `--gpukern-size=huge` only.

        Raises:
            ProblemError: both or neither of `expected_fault` and `detected_by` are given, or there is no such
                tool.
        """
        if (expected_fault is None) == (detected_by is None):
            raise ProblemError("a broken variant needs either expected_fault= or detected_by=")
        if detected_by is not None and detected_by not in SANITIZERS:
            raise ProblemError(f"detected_by={detected_by!r} is none of {', '.join(SANITIZERS)}")
        declared = Variant(
            backend=backend,
            allocates=allocates,
            needs_gpu=needs_gpu,
            determinism=determinism,
            layouts=tuple(layouts),
            dtypes=tuple(dtypes),
            at=dict(at or {}),
            expected_fault=expected_fault,
            detected_by=detected_by,
        )
        return Registration(Problem.wrong, self.variants, declared, parameters)

    def cases(self, function: TestFunction) -> TestFunction:
        """Turns a test function with a `case` argument into one test for each case."""
        function._gpukern_problem = Declared(self, wrong=False)  # type: ignore[attr-defined]
        return function

    def wrong_cases(self, function: TestFunction) -> TestFunction:
        """Turns a test function with a `case` argument into one test for each broken variant.

        They run at the smoke sizes or their `at`, also in a run that measures.
        """
        function._gpukern_problem = Declared(self, wrong=True)  # type: ignore[attr-defined]
        return function

    # points

    def placements(self, layout: str, arrays: Sequence[str]) -> dict[str, Placement]:
        """Says where the elements of the arrays lie that come in a layout."""
        unknown = [name for name in self.layouts[layout] if name not in arrays]
        if unknown:
            raise self.error(f"layouts names {unknown[0]!r}, which is not an array: {sorted(arrays)}")
        return placements(layout, self.layouts[layout])

    def boundary_points(self, parameters: Names) -> list[tuple[str, Point]]:
        """Returns the points of `check_points` for these parameters, each with its label."""
        points = []
        declared = self._check_points
        for named in call_by_name(declared, parameters) if callable(declared) else declared:
            self._refuse_bad_point(named)
            label = " ".join(f"{name}={value}" for name, value in named.items())
            points.append((label, {**self.axes.smoke_point, **named}))
        return points

    def _refuse_bad_point(self, named: Any) -> None:
        if not isinstance(named, Mapping) or not named or not set(named) <= set(self.axes):
            raise self.error(
                f"check_points has {named!r}; write a dict of axis and value, such "
                f"as {{{next(iter(self.axes), 'n')!r}: 257}}; the axes are {sorted(self.axes)}"
            )

    def named(self, point: Point) -> Point:
        """Returns what functions may take by name at a point: its axes, and `dtype` if there are several."""
        return {"dtype": self.dtypes[0], **point} if self.dtypes else dict(point)

    def _call(self, function: Callable[..., Any], point: Point, more: Names | None = None) -> Any:
        return call_by_name(function, {**self.named(point), **(more or {})})

    def _mapping(
        self, argument: str, function: Callable[..., Any], point: Point, more: Names
    ) -> dict[str, Any]:
        made = self._call(function, point, more)
        if not isinstance(made, Mapping):
            raise self.error(f"{argument} returned {type(made).__name__}; it must return a dict by name")
        return dict(made)

    # inputs

    def _rng(self, point: Point, seed_offset: int, seed: int | None) -> np.random.Generator:
        """Returns the generator of one set of contents; without a seed, each recording run has the same."""
        # Not hash(), which is another one of a text in each process.
        where = zlib.crc32(repr((self.name, sorted(point.items()))).encode())
        entropy = [_SEED if seed is None else seed, seed_offset, where]
        return np.random.default_rng(np.random.SeedSequence(entropy))

    def inputs(
        self,
        point: Point,
        seed_offset: int = 0,
        seed: int | None = None,
        *,
        exact: bool = False,
        changes_few: bool = False,
    ) -> dict[str, Any]:
        """Draws inputs for `point`; the same offset and seed give the same inputs in every process.

        If `exact`, `exact_inputs` makes them. If it `changes_few`, they are the inputs of this offset with a
        few elements changed in each array that is drawn.
        """
        rng = self._rng(point, seed_offset, seed)
        argument, make = ("exact_inputs", self._exact_inputs) if exact else ("make_inputs", self._make_inputs)
        assert make is not None
        made = self._mapping(argument, make, point, {"rng": few_changed(rng) if changes_few else rng})
        for name, value in made.items():
            items = value.values() if isinstance(value, Mapping) else value
            if isinstance(value, (Mapping, list, tuple)) and any(isinstance(of, np.ndarray) for of in items):
                remedy = "give each array a name of its own, or return one array for all"
                raise self.error(
                    f"{argument} returned {name!r} as a {type(value).__name__} of arrays: {remedy}"
                )
        for name, spec in self.output_specs(point, made).items():
            if spec.written is not None:  # before a launch it holds small integers, which fit any dtype
                values = rng.integers(0 if np.dtype(spec.dtype).kind == "b" else 1, 100, spec.shape)
                made[name] = values.astype(spec.dtype)
        return made

    def specials(self, point: Point) -> SpecialValues:
        """Returns input → special values that are planted among its elements at a point."""
        declared = self._special_values
        return (self._call(declared, point) if callable(declared) else declared) or {}

    def with_special(
        self, point: Point, seed: int | None = None
    ) -> tuple[dict[str, Any], dict[str, dict[int, float]]]:
        """Draws inputs with special values among them; returns also input → flat index → value."""
        inputs, rng = self.inputs(point, 0, seed), self._rng(point, 1, seed)
        planted: dict[str, dict[int, float]] = {}
        for name, values in self.specials(point).items():
            changed = np.array(inputs.get(name))
            if not (changed.dtype.kind in "fc" or is_narrow(changed.dtype)) or len(values) > changed.size:
                raise self.error(
                    f"special_values has {len(values)} values for {name!r}, which must be an input array "
                    f"of at least as many floats; the inputs are {', '.join(sorted(inputs))}"
                )
            places = sorted(int(place) for place in rng.choice(changed.size, len(values), replace=False))
            planted[name] = dict(zip(places, map(float, values), strict=True))
            with np.errstate(all="ignore"):
                for place, value in planted[name].items():
                    changed.reshape(-1)[place] = value
            inputs[name] = changed
        return inputs, planted

    @functools.cached_property
    def contents(self) -> tuple[str, ...]:
        """Names the contents besides random ones that variants are checked on once: special, exact, kept."""
        offered = {"special": self._special_values is not None, "exact": self._exact_inputs is not None}
        inputs = {} if self._reference is None else self.inputs(self.axes.smoke_point)
        offered["kept"] = sum(bool(getattr(value, "ndim", 0)) for value in inputs.values()) > 1
        return tuple(name for name, is_offered in offered.items() if is_offered)

    # outputs

    def output_specs(self, point: Point, inputs: Names) -> dict[str, Output]:
        """Returns shape, dtype and order of each output at `point`."""
        specs: dict[str, Output] = {}
        for name, entry in self._mapping("outputs", self._outputs, point, inputs).items():
            if isinstance(entry, tuple) and len(entry) == 2:
                entry = Output(*entry)
            if not isinstance(entry, Output):
                raise self.error(f"output {name!r} is declared as {entry!r}; write (shape, dtype)")
            if (wrong := unknown_dtype(entry.dtype) or dtype_missing(entry.dtype)) is not None:
                raise self.error(f"output {name!r}: {wrong}")
            try:
                shape = np.broadcast_to(False, entry.shape).shape  # a size may be one of NumPy's integers
            except (TypeError, ValueError) as error:
                raise self.error(f"output {name!r} has shape {entry.shape!r}: {error}") from None
            specs[name] = replace(entry, shape=shape)
        for name in self.inout:
            given = inputs.get(name)
            if given is None or not getattr(given, "ndim", 0):
                raise self.error(f"inout names {name!r}, which is not an input array: {sorted(inputs)}")
            spec = specs.setdefault(name, Output(given.shape, given.dtype))
            if (spec.shape, np.dtype(spec.dtype)) != (given.shape, given.dtype) or spec.written is not None:
                raise self.error(
                    f"inout {name!r} is {given.dtype} of shape {given.shape}, but outputs has {spec}; "
                    "outputs need not list it"
                )
        if not specs:
            given = next((name for name, value in inputs.items() if getattr(value, "ndim", 0)), "x")
            raise self.error(f"no output is declared; updated in place? inout=({given!r},)")
        for name, spec in specs.items():
            if spec.written is not None:
                self._refuse_bad_region(name, spec)
            elif name in inputs and name not in self.inout:
                raise self.error(f"{name!r} is an input and an output; declare inout=({name!r},)")
        return specs

    def _refuse_bad_region(self, name: str, spec: Output) -> None:
        try:
            some = np.empty(spec.shape, bool)[spec.written].size > 0 or 0 in spec.shape
        except (IndexError, TypeError) as error:
            raise self.error(f"written={spec.written!r} of {name!r}: {error}") from None
        if not some:
            remedy = "leave such a size out of check_points, as boundaries(minimum=3) does"
            wrong = f"written={spec.written!r} of {name!r} selects no element of {spec.shape}"
            raise self.error(f"{wrong}: {remedy}")

    def reference(self, point: Point, inputs: Names) -> Expected | None:
        """Computes the expected outputs; None where only `check` decides."""
        if self._reference is None:
            return None
        specs = self.output_specs(point, inputs)
        # A reference may update in place as well, so it is given copies.
        private = {name: inputs[name].copy() for name in specs if name in inputs}
        kept = {name: of for name, of in inputs.items() if isinstance(of, np.ndarray) and name not in private}
        before = {name: _some_bytes(array) for name, array in kept.items()}
        made = self._call(self._reference, point, {**inputs, **private})
        for name, array in kept.items():
            if _some_bytes(array) != before[name]:
                raise self.error(
                    f"the reference changes its input {name!r}, which variants are to get: "
                    f"have it work on a copy, {name} = {name}.copy()"
                )
        if not isinstance(made, Mapping):
            if len(specs) > 1:
                raise self.error(f"the reference must return a dict of its outputs {list(specs)}")
            made = dict.fromkeys(specs, made)
        if set(made) != set(specs):
            raise self.error(f"the reference returned {sorted(made)}; the outputs are {sorted(specs)}")
        expected = {name: np.asarray(value) for name, value in made.items()}
        for name, spec in specs.items():
            if expected[name].shape != spec.shape:
                raise self.error(
                    f"the reference of {name!r} has shape {expected[name].shape}, declared is {spec.shape}"
                )
            if spec.written is not None:
                whole = inputs[name].astype(expected[name].dtype)
                whole[spec.written] = expected[name][spec.written]
                expected[name] = whole
        return expected

    def tolerances(self, specs: Mapping[str, Output], point: Point) -> dict[str, Tolerance]:
        """Returns the tolerance of each output at `point`."""
        declared = self._call(self._tolerance, point) if callable(self._tolerance) else self._tolerance
        given = declared if isinstance(declared, Mapping) else dict.fromkeys(specs, declared)
        for output, tolerance in given.items():
            if output not in specs:
                raise self.error(f"tolerance names {output!r}, which is not an output: {sorted(specs)}")
            if tolerance is not None and not isinstance(tolerance, Tolerance):
                raise self.error(f"{tolerance!r} is not a Tolerance; write Tolerance(rtol=1e-6)")
        return {name: given.get(name) or Tolerance.for_dtype(spec.dtype) for name, spec in specs.items()}

    # work

    def traffic_bytes(self, point: Point) -> float | None:
        """Counts the fewest bytes that the work moves through device memory; None where not declared."""
        return self._count(self._traffic_bytes, point)

    def transfer_bytes(self, point: Point) -> float | None:
        """Counts the bytes copied between host and device; None where not declared."""
        return self._count(self._transfer_bytes, point)

    def flops(self, point: Point) -> float | None:
        """Counts the floating-point operations of the work; None where not declared."""
        return self._count(self._flops, point)

    def _count(self, declared: Callable[..., float] | None, point: Point) -> float | None:
        return None if declared is None else float(self._call(declared, point))
