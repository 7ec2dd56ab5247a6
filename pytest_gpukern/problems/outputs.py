"""The outputs of a problem: their form, what is expected in them, and how far they may be from that."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from pytest_gpukern.arrays.compare import Tolerance
from pytest_gpukern.values.call_by_name import CallAt, ProblemError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import DTypeLike

    from pytest_gpukern.values.call_by_name import Names, Point

    Expected = dict[str, np.ndarray[Any, Any]]

_LOOKED_AT = 1000
"""Elements of a rearranged output that have to differ from those before, but for chance."""


@dataclass(frozen=True)
class Output:
    """Shape, dtype and order of one declared output.

    Attributes:
        shape: of the array.
        dtype: of the array.
        order: "C" where the elements of what a launch returns have to lie in C order without gaps; "any"
            where they need not, as in a transposed view.

    Raises:
        ProblemError: the order is neither.
    """

    shape: tuple[int, ...]
    dtype: DTypeLike
    order: str = "C"

    def __post_init__(self) -> None:
        if self.order not in ("C", "any"):
            raise ProblemError(f"order={self.order!r}: an output is declared in order 'C' or 'any'")


@dataclass(frozen=True)
class Outputs:
    """Declares and expects the outputs of a problem at a point.

    Attributes:
        problem: its name.
        call_at: calls what is declared at a point.
        outputs: takes axes and inputs; returns name → `Output` or (shape, dtype).
        reference: takes inputs and axes; returns one array or name → array; None where a check decides alone.
        rearrange: takes `rng`, inputs, reference and axes; returns other inputs and their reference.
        accepted: a `Tolerance`, a dict of them by output, or a callable that takes axes and returns either.

    Raises:
        ProblemError: there is something to rearrange, and no reference.
    """

    problem: str
    call_at: CallAt
    outputs: Callable[..., Mapping[str, Any]]
    reference: Callable[..., Any] | None
    rearrange: Callable[..., Mapping[str, Any]] | None
    accepted: Any

    def __post_init__(self) -> None:
        if self.rearrange is not None and self.reference is None:
            raise ProblemError(f"problem {self.problem!r}: rearrange has no reference to start from")

    def specs(self, point: Point, inputs: Names) -> dict[str, Output]:
        """Shape and dtype of each output.

        Raises:
            ProblemError: one is declared as something else.
        """
        made = self.call_at(point, self.outputs, inputs)
        return {name: self._spec(name, entry) for name, entry in made.items()}

    def _spec(self, name: str, entry: Any) -> Output:
        """An output as declared: an `Output`, or shape and dtype, where a number is the shape of a vector."""
        if isinstance(entry, Output):
            shape = (entry.shape,) if isinstance(entry.shape, int) else tuple(entry.shape)
            return replace(entry, shape=shape)
        if not isinstance(entry, tuple) or len(entry) != 2:
            raise ProblemError(
                f"problem {self.problem!r}: output {name!r} is declared as {entry!r}; write (shape, dtype)"
            )
        shape, dtype = entry
        return Output((shape,) if isinstance(shape, int) else tuple(shape), dtype)

    def expected(self, point: Point, inputs: Names) -> Expected | None:
        """The reference of each output, or None where there is none.

        Raises:
            ProblemError: names or shapes are not those of the declared outputs.
        """
        if self.reference is None:
            return None
        made = self.call_at(point, self.reference, inputs)
        specs = self.specs(point, inputs)
        if not isinstance(made, Mapping):
            if len(specs) != 1:
                raise ProblemError(
                    f"problem {self.problem!r}: with outputs {list(specs)} the reference returns a dict"
                )
            made = dict.fromkeys(specs, made)
        return self._as_declared(made, specs, "the reference")

    def rearranged(
        self, point: Point, inputs: Names, expected: Names, rng: np.random.Generator
    ) -> tuple[dict[str, Any], Expected]:
        """Inputs and expected outputs of another set, made of these.

        Raises:
            ProblemError: names or shapes do not fit the inputs and outputs, or an output stays the same.
        """
        assert self.rearrange is not None
        made = dict(self.call_at(point, self.rearrange, {**inputs, **expected, "rng": rng}))
        outputs = {name: made.pop(name) for name in expected if name in made}
        if set(made) != set(inputs):
            raise ProblemError(
                f"problem {self.problem!r}: rearrange returns {sorted({**made, **outputs})}, "
                f"its inputs and outputs are {sorted({**inputs, **expected})}"
            )
        found = self._as_declared(outputs, self.specs(point, made), "rearrange")
        for name, before in expected.items():
            step = max(1, before.size // _LOOKED_AT)
            kept = before.reshape(-1)[::step] == found[name].reshape(-1)[::step]
            if 2 * int(kept.sum()) > kept.size:
                raise ProblemError(
                    f"problem {self.problem!r}: rearrange leaves most of {name!r} as it was, so that a "
                    "result kept from the contents before would pass"
                )
        return made, found

    def _as_declared(self, made: Names, specs: Mapping[str, Output], maker: str) -> Expected:
        """What was made as arrays, of the declared names and shapes."""
        import numpy as np

        if set(made) != set(specs):
            raise ProblemError(
                f"problem {self.problem!r}: {maker} returns {sorted(made)}, its outputs are {sorted(specs)}"
            )
        expected = {name: np.asarray(value) for name, value in made.items()}
        for name, spec in specs.items():
            if expected[name].shape != tuple(spec.shape):
                raise ProblemError(
                    f"problem {self.problem!r}: {maker} of {name!r} has shape {expected[name].shape}, "
                    f"declared is {tuple(spec.shape)}"
                )
        return expected

    def tolerance(self, output: str, spec: Output, point: Point) -> Tolerance:
        """The tolerance of one output.

        Raises:
            ProblemError: what is declared is no `Tolerance`.
        """
        given = self.accepted
        if callable(given):
            given = self.call_at(point, given)
        if isinstance(given, Mapping):
            given = given.get(output)
        if given is not None and not isinstance(given, Tolerance):
            raise ProblemError(
                f"problem {self.problem!r}: {given!r} is no tolerance; write Tolerance(rtol=1e-6)"
            )
        return Tolerance.for_dtype(spec.dtype) if given is None else given
