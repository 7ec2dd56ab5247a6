"""What the calls of a test left in each output: whether it repeats, and whether all of it is right."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pytest_gpukern.arrays.compare import Tolerance, compare
from pytest_gpukern.backends.foreign_array import users_array
from pytest_gpukern.backends.host import bits_of
from pytest_gpukern.check.diagnosis import Diagnosis, diagnose_values
from pytest_gpukern.values.determinism import Determinism, of_launches

if TYPE_CHECKING:
    import numpy as np

    from pytest_gpukern.backends.foreign_array import UsersArray


@dataclass
class SeenOutput:
    """What is known of one output, declared or returned.

    Attributes:
        value: the array, where it is the same in every call, or the first that was returned.
        array: where that lies.
        declared: whether it is an argument; else it was returned.
        bits: hash after each call on the inputs of the first.
        results: contents that differ bit by bit, by that hash; of what is returned without the first, which
            `value` holds.
        last: contents after the last call, with the poison before it; of what is declared only.
    """

    value: Any
    array: UsersArray
    declared: bool
    bits: list[str | None] = field(default_factory=list)
    results: dict[Any, np.ndarray[Any, Any]] = field(default_factory=dict)
    last: tuple[np.ndarray[Any, Any], int] | None = None


class SeenOutputs:
    """The outputs of one test's calls, by name.

    Args:
        determinism: what the test declares of all of them, or None.
        fixed: whether every call has the same arguments.

    Attributes:
        outputs: what is known of each.
    """

    def __init__(self, determinism: Determinism | None, *, fixed: bool) -> None:
        self._determinism = determinism
        self._fixed = fixed
        self._verified: set[str] = set()
        self.outputs: dict[str, SeenOutput] = {}

    def name_of(self, actual: Any, found: np.ndarray[Any, Any]) -> str | None:
        """Which output a test verifies, or a copy of which; None where it is none that is known.

        Args:
            actual: what the test verifies.
            found: the same on the host.
        """
        for name, output in self.outputs.items():
            if output.value is actual:
                return name
        array = users_array(actual)
        if not self._fixed or array is None:
            return None
        for name, output in self.outputs.items():
            if (array.span, array.shape) == (output.array.span, output.array.shape):
                return name
        alike = [
            (name, output)
            for name, output in self.outputs.items()
            if (output.array.shape, output.array.dtype) == (found.shape, found.dtype)
        ]
        bits = bits_of(found) if alike else None
        matching = (name for name, output in alike if bits and bits == bits_of(output.array.fetch()))
        return next(matching, None)

    def determinism(self, name: str) -> Determinism | None:
        """What the calls so far show of an output."""
        return of_launches(self.outputs[name].bits)

    def diagnose_others(
        self, name: str, reference: np.ndarray[Any, Any], tolerance: Tolerance
    ) -> Diagnosis | None:
        """Whether what other calls left in an output, as far as it differs, is right too."""
        self._verified.add(name)
        output = self.outputs[name]
        verified = output.bits[-1] if output.declared and self._fixed else None
        for bits, result in output.results.items():
            if bits == verified:  # the test has compared that itself
                continue
            found = compare(output.array.values(result), reference, tolerance, poison=None)
            diagnosis = diagnose_values(name, found, tolerance)
            if diagnosis is not None:
                told = f"in one of {len(output.bits)} calls on the same inputs, not in the one verified"
                return Diagnosis(diagnosis.fault, f"{diagnosis.message}\n  {told}")
        return None

    def unsettled(self) -> Diagnosis | None:
        """How calls with differently poisoned outputs differ, where the test never verified that output.

        None where they agree within the default tolerance of the dtype, or are declared to be `tolerant`.
        """
        if self._determinism is Determinism.TOLERANT:
            return None
        for name, output in self.outputs.items():
            if not output.declared or name in self._verified or len(output.results) < 2:
                continue
            first, *others = (output.array.values(result) for result in output.results.values())
            tolerance = Tolerance.for_dtype(first.dtype)
            for other in others:
                found = diagnose_values(name, compare(other, first, tolerance, poison=None), tolerance)
                if found is not None:
                    told = (
                        "  calls on the same inputs differ, whose outputs held different patterns before; "
                        'verify the output with its own tolerance, or declare determinism="tolerant"'
                    )
                    return Diagnosis(found.fault, f"{found.message}\n{told}")
        return None
