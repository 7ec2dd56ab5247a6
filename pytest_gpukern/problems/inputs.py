"""What the inputs of a problem are filled with: random numbers, special values or exact integers."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pytest_gpukern.values.call_by_name import CallAt, ProblemError

if TYPE_CHECKING:
    import numpy as np

    from pytest_gpukern.values.call_by_name import Point

SpecialValues = Mapping[str, Sequence[float]]
Make = Callable[..., Mapping[str, Any]]


@dataclass(frozen=True)
class Contents:
    """Makes inputs at a point, the same in every process for the same seed.

    Attributes:
        problem: its name.
        call_at: calls what is declared at a point.
        seed: recorded one of the problem.
        make_inputs: takes `rng` and axes; returns name → array or scalar.
        special_values: input → values such as NaN, or a callable that takes axes and returns that.
        exact_inputs: as `make_inputs`, of small integers.
        has_reference: whether there is something to compare with.

    Raises:
        ProblemError: there are special values or integers, and no reference.
    """

    problem: str
    call_at: CallAt
    seed: int
    make_inputs: Make
    special_values: SpecialValues | Callable[..., SpecialValues] | None
    exact_inputs: Make | None
    has_reference: bool

    def __post_init__(self) -> None:
        if not self.has_reference and (self.special_values is not None or self.exact_inputs is not None):
            raise ProblemError(
                f"problem {self.problem!r}: special_values and exact_inputs need a reference to compare with"
            )

    def rng(self, point: Point, seed_offset: int, seed: int | None) -> np.random.Generator:
        """The generator of one set's contents; `seed`, if any, instead of the problem's own."""
        import numpy as np

        own = self.seed if seed is None else seed
        entropy = [own, seed_offset, zlib.crc32(repr((self.problem, sorted(point.items()))).encode())]
        return np.random.default_rng(np.random.SeedSequence(entropy))

    def random(self, point: Point, seed_offset: int, seed: int | None) -> dict[str, Any]:
        """The inputs of a set: name → array or scalar."""
        return dict(self.call_at(point, self.make_inputs, {"rng": self.rng(point, seed_offset, seed)}))

    def exact(self, point: Point, seed: int | None) -> dict[str, Any]:
        """The inputs of integers."""
        assert self.exact_inputs is not None
        return dict(self.call_at(point, self.exact_inputs, {"rng": self.rng(point, 0, seed)}))

    def with_special(
        self, point: Point, seed: int | None
    ) -> tuple[dict[str, Any], dict[str, dict[int, float]]]:
        """Random inputs with the special values among them, and where they are: input → flat index → value.

        Raises:
            ProblemError: values are declared for what is no array of floats, or more than it has elements.
        """
        import numpy as np

        declared = self.special_values
        if callable(declared):
            declared = self.call_at(point, declared)
        inputs, rng = self.random(point, 0, seed), self.rng(point, 1, seed)
        planted: dict[str, dict[int, float]] = {}
        for name, values in (declared or {}).items():
            changed = np.array(inputs.get(name))
            if changed.dtype.kind not in "fc" or len(values) > changed.size:
                raise ProblemError(
                    f"problem {self.problem!r}: special_values has {len(values)} values for {name!r}, which "
                    f"takes an input that is an array of as many floats; there is {', '.join(sorted(inputs))}"
                )
            places = sorted(int(place) for place in rng.choice(changed.size, len(values), replace=False))
            planted[name] = dict(zip(places, map(float, values), strict=True))
            with np.errstate(all="ignore"):
                for place, value in planted[name].items():
                    changed.reshape(-1)[place] = value
            inputs[name] = changed
        return inputs, planted

    def kinds(self, point: Point) -> tuple[str, ...]:
        """The contents that variants are checked on once besides random ones; see `corners.Corner`."""
        found = {"special": self.special_values is not None, "exact": self.exact_inputs is not None}
        inputs = self.random(point, 0, None) if self.has_reference else {}
        found["kept"] = sum(bool(getattr(value, "ndim", 0)) for value in inputs.values()) > 1
        return tuple(name for name, there in found.items() if there)
