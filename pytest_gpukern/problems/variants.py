"""The variants of a problem: what they may declare, and that none is there twice."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pytest_gpukern.arrays.memory import LAYOUTS
from pytest_gpukern.values.call_by_name import ProblemError
from pytest_gpukern.values.determinism import Determinism
from pytest_gpukern.values.options import SANITIZERS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from pytest_gpukern.problems.axes import Axes
    from pytest_gpukern.values.call_by_name import Names


class VariantRegistry:
    """Holds variants by label: those that are right, and those that are deliberately broken.

    Attributes:
        name: of the problem.
        axes: of the problem.
        scopes: those to measure by default.
        layouts: layout → arrays of the problem that may come in it.
        dtypes: of the problem; variants are checked in those behind the first.
        registered: label → variant.
        registered_wrong: label → variant that must be rejected.

    Raises:
        ProblemError: there are dtypes and an axis dtype, or no such layout or scope.
    """

    def __init__(
        self,
        name: str,
        axes: Axes,
        scopes: tuple[str, ...],
        layouts: Mapping[str, Sequence[str]],
        dtypes: tuple[str, ...],
    ) -> None:
        if dtypes and "dtype" in axes:
            raise ProblemError(f"problem {name!r}: it has dtypes and an axis dtype; declare one of them")
        for layout in layouts:
            if layout not in LAYOUTS:
                raise ProblemError(f"problem {name!r}: layout {layout!r} is none of {', '.join(LAYOUTS)}")
        _refuse_unknown_scopes(scopes, f"problem {name!r}")
        self.name = name
        self.axes = axes
        self.scopes = scopes
        self.layouts = {layout: tuple(arrays) for layout, arrays in layouts.items()}
        self.dtypes = dtypes
        self.registered: dict[str, Variant] = {}
        self.registered_wrong: dict[str, Variant] = {}

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
    ) -> Callable[[Prepare], Prepare]:
        """Registers the decorated function as a variant on `backend`; see `Variant` for the arguments.

        The function takes by name what it needs (arrays of the backend's own type for inputs and outputs,
        scalars as they are, axes, `stream` in the backend's own type, parameters), may prepare untimed, and
        returns the callable that is timed.
        """
        return self._decorator(
            backend,
            parameters,
            max_size=dict(max_size or {}),
            min_size=dict(min_size or {}),
            allocates=allocates,
            needs_gpu=needs_gpu,
            scopes=scopes,
            determinism=determinism,
            host_data=host_data,
            layouts=tuple(layouts),
            dtypes=tuple(dtypes),
        )

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
        loses_context: bool = False,
        **parameters: Sequence[Any],
    ) -> Callable[[Prepare], Prepare]:
        """Registers a deliberately broken variant, which must be rejected.

        Either the checker does so for `expected_fault`, a value of `verify.Fault` such as "not written"; or,
        where its values may be right by luck, the tool `detected_by` of compute-sanitizer, such as
        "racecheck", in a run with `--gpukern-sanitize`.

        What is wrong at one point only, such as an index that overflows above 2³¹ elements, names that:
        `at={"n": 2**31 + 11}`, values of the axes, of which those left out keep their first smoke value. It
        has to be rejected there and nowhere else, at a huge value in runs with `--gpukern-size=huge` only.

        Of one whose launch takes the CUDA context along, such as a misaligned address, `loses_context` has it
        run only in a process that another replaces, as when measuring: once, behind all others.

        Raises:
            ProblemError: both are given or neither, or there is no such tool.
        """
        if (expected_fault is None) == (detected_by is None):
            raise ProblemError(
                f"problem {self.name!r}: a broken variant has expected_fault= or detected_by=, not both"
            )
        if detected_by is not None and detected_by not in SANITIZERS:
            raise ProblemError(
                f"problem {self.name!r}: detected_by={detected_by!r} is none of {', '.join(SANITIZERS)}"
            )
        return self._decorator(
            backend,
            parameters,
            allocates=allocates,
            needs_gpu=needs_gpu,
            determinism=determinism,
            layouts=tuple(layouts),
            dtypes=tuple(dtypes),
            at=dict(at or {}),
            loses_context=loses_context,
            expected_fault=expected_fault,
            detected_by=detected_by,
        )

    def _decorator(
        self, backend: str, parameters: Mapping[str, Sequence[Any]], **attributes: Any
    ) -> Callable[[Prepare], Prepare]:
        values = {name: tuple(entries) for name, entries in parameters.items()}

        def register(prepare: Prepare) -> Prepare:
            self.add(Variant(prepare.__name__, backend, prepare, values, **attributes))
            return prepare

        return register

    def add(self, variant: Variant) -> None:
        """Adds a variant.

        Raises:
            ProblemError: there is another one of its label, or it declares what the problem does not have.
        """
        home = self.registered_wrong if variant.is_broken else self.registered
        self._refuse_namesake(variant, home.get(variant.label))
        self._refuse_unknown_axes(variant)
        self._refuse_unknown_values(variant)
        home[variant.label] = variant

    def _refuse_namesake(self, variant: Variant, present: Variant | None) -> None:
        # What could not be imported replaces what its file had registered before its import failed.
        if present is None or present.prepare is None or variant.prepare is None:
            return
        old, new = present.prepare.__code__, variant.prepare.__code__
        same_code = (new.co_filename, new.co_firstlineno) == (old.co_filename, old.co_firstlineno)
        if not same_code:  # the same file imported twice, under two names, is no clash
            raise ProblemError(f"problem {self.name!r} has two variants named {variant.label!r}")

    def _refuse_unknown_axes(self, variant: Variant) -> None:
        unknown = [axis for axis in (*variant.max_size, *variant.min_size) if axis not in self.axes]
        if unknown:
            raise ProblemError(
                f"variant {variant.label!r} limits {unknown[0]!r}, none of the axes {sorted(self.axes)}"
            )
        taken = [
            name
            for name in variant.parameters
            if name in self.axes or name == "stream" or (name == "dtype" and self.dtypes)
        ]
        if taken:
            raise ProblemError(
                f"variant {variant.label!r}: the parameter {taken[0]!r} is an axis, the stream or the dtype; "
                "rename it"
            )

    def _refuse_unknown_values(self, variant: Variant) -> None:
        if variant.determinism not in (None, *Determinism):
            raise ProblemError(
                f"variant {variant.label!r}: determinism={variant.determinism!r} is none of "
                f"{', '.join(Determinism)}"
            )
        for dtype in variant.dtypes:
            if dtype not in self.dtypes[1:]:
                raise ProblemError(
                    f"variant {variant.label!r}: dtype {dtype!r} is none that the problem is checked in "
                    f"besides the first; it has dtypes={self.dtypes!r}"
                )
        for layout in variant.layouts:
            if layout not in self.layouts:
                raise ProblemError(
                    f"variant {variant.label!r}: the problem declares no arrays that come {layout!r}; it has "
                    f"layouts={self.layouts!r}"
                )
        unknown = [axis for axis in variant.at if axis not in self.axes]
        if unknown or (variant.at and not self.axes.declare({**self.axes.smoke_point, **variant.at})):
            raise ProblemError(
                f"variant {variant.label!r}: at={variant.at!r} are no values of the axes: {self.axes}"
            )
        _refuse_unknown_scopes(variant.scopes or (), f"variant {variant.label!r}")


def _refuse_unknown_scopes(scopes: Iterable[str], whose: str) -> None:
    for scope in scopes:
        if scope not in SCOPES:
            raise ProblemError(f"{whose}: scope {scope!r} is none of {', '.join(SCOPES)}")


SCOPES = ("kernel", "transfer", "end_to_end")
Prepare = Callable[..., Callable[[], Any]]


@dataclass(frozen=True)
class Variant:
    """One implementation of a problem on one backend.

    Attributes:
        name: unique within problem and backend.
        backend: one of `values.backend_table.BACKENDS`.
        prepare: takes inputs, outputs, point and parameters by name, returns the callable that is timed;
            None where the variant's file could not be imported.
        parameters: the variant's own parameters, each with the values to try.
        max_size: for an axis, the largest value at which the variant can finish.
        min_size: for an axis, the smallest value that the variant takes.
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
        expected_fault: for a deliberately broken variant, the diagnosis it must get.
        detected_by: for one whose values may be right by luck, the tool of compute-sanitizer that must find
            something in it instead.
        unavailable: why its file could not be imported, in words.
    """

    name: str
    backend: str
    prepare: Prepare | None
    parameters: dict[str, tuple[Any, ...]] = field(default_factory=dict)
    max_size: dict[str, float] = field(default_factory=dict)
    min_size: dict[str, float] = field(default_factory=dict)
    allocates: bool = False
    needs_gpu: str | None = None
    scopes: tuple[str, ...] | None = None
    determinism: str | None = None
    host_data: bool = False
    layouts: tuple[str, ...] = ()
    dtypes: tuple[str, ...] = ()
    at: dict[str, Any] = field(default_factory=dict)
    loses_context: bool = False
    expected_fault: str | None = None
    detected_by: str | None = None
    unavailable: str | None = None

    @property
    def is_broken(self) -> bool:
        """Whether it is there to be rejected."""
        return self.expected_fault is not None or self.detected_by is not None

    @property
    def label(self) -> str:
        """`backend.name`, unique within the problem."""
        return f"{self.backend}.{self.name}"

    def limit_exceeded(self, point: Names) -> str | None:
        """Why the variant cannot run at `point`, in words, or None."""
        for axis, largest in self.max_size.items():
            if point[axis] > largest:
                return f"too large: {axis}={point[axis]}, and the variant declares a limit of {largest:g}"
        for axis, smallest in self.min_size.items():
            if point[axis] < smallest:
                return f"too small: {axis}={point[axis]}, and the variant takes {smallest:g} or more"
        return None
