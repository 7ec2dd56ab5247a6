"""Compares an output with a plain test's reference, and says what else would have passed."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pytest_gpukern.arrays.compare import BFLOAT16, Tolerance, compare, default_tolerance
from pytest_gpukern.backends.foreign_array import (
    narrow_dtype,
    refuse_what_proves_nothing,
    to_host,
    users_array,
)
from pytest_gpukern.backends.host import bits_of
from pytest_gpukern.check.call_arguments import leaves
from pytest_gpukern.check.diagnosis import Diagnosis, diagnose_form
from pytest_gpukern.check.engine import judge_output
from pytest_gpukern.check.launch import Compared
from pytest_gpukern.problems.problem import Output
from pytest_gpukern.problems.soundness import passes_lower_precision, passes_zeros
from pytest_gpukern.values.determinism import Determinism, of_launches

if TYPE_CHECKING:
    import numpy as np

    from pytest_gpukern.arrays.compare import Comparison
    from pytest_gpukern.backends.foreign_array import UsersArray
    from pytest_gpukern.values.result import OutputError


_FEWEST = 8
"""Elements by which we know a part of an output again; fewer may be equal by chance."""


@dataclass
class SeenOutput:
    """Holds what is known of one output, declared or returned.

    Attributes:
        value: the array if it is the same in every call, else the first that was returned.
        array: where `value` lies.
        declared: whether it is an argument; else it was returned.
        poisoned: whether it, or a part of it, held a poison before each call.
        bits: hash after each call on the inputs of the first.
        results: hash → contents, where they differ bit by bit; for a returned output without the first,
            which `value` holds.
        last: contents after the last call and the poison before it; for a declared output only.
    """

    value: Any
    array: UsersArray
    declared: bool
    poisoned: bool = False
    bits: list[str | None] = field(default_factory=list)
    results: dict[Any, np.ndarray[Any, Any]] = field(default_factory=dict)
    last: tuple[np.ndarray[Any, Any], int] | None = None


class SeenOutputs:
    """Holds the outputs of one test's calls, by name.

    Args:
        determinism: what the test declares for all of them, or None.
        fixed: whether every call has the same arguments.

    Attributes:
        outputs: what is known of each.
        given_empty: whether a call was given an empty array, so its outputs may be empty.
    """

    def __init__(self, determinism: Determinism | None, *, fixed: bool) -> None:
        self._determinism = determinism
        self._fixed = fixed
        self._verified: set[str] = set()
        self._compared: set[str] = set()
        self.outputs: dict[str, SeenOutput] = {}
        self.given_empty = False

    def name_of(self, actual: Any, found: np.ndarray[Any, Any]) -> str | None:
        """Returns the name of the output that a test verifies, or a copy of it; None if it is not known.

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
        alike.sort(key=lambda each: each[0] in self._compared)  # of equal outputs, each has a copy of its own
        matching = (
            name
            for name, output in alike
            if bits and bits == bits_of(output.array.values(output.array.fetch()))
        )
        return next(matching, None)

    @property
    def never_compared(self) -> tuple[str, ...]:
        """The declared outputs that no `verify` compared with a reference, though they hold numbers."""
        return tuple(
            name
            for name, output in self.outputs.items()
            if output.declared and output.array.holds_numbers and output.array.nbytes
            if name not in self._compared
        )

    def note_compared(self, name: str | None, actual: Any, found: np.ndarray[Any, Any]) -> None:
        """Notes which outputs a test has compared with a reference: those in whose memory `actual` lies.

        Elsewhere it is a copy: reshaped, converted without loss, a view of a copy, a part of one output, or
        several in one. `name` is what `name_of` says, and `found` is `actual` on the host.
        """
        arrays = {other: output.array for other, output in self.outputs.items() if output.declared}
        compared = {other for other in arrays if other == name}
        for _, value in () if compared else leaves("", actual):
            given, base = users_array(value), getattr(value, "base", None)
            near = {other for other in arrays if given is not None and given.overlaps(arrays[other])}
            compared |= near or self._copied(value if base is None else base)
            self._compared |= compared
        self._compared |= compared or self._copied(found, in_part=True)

    def _copied(self, copy: Any, *, in_part: bool = False) -> set[str]:
        """Returns the outputs, not compared so far, that a host array holds a copy of, or is a part of."""
        import numpy as np

        equal, held, holding = list[str](), set[str](), set[str]()
        for name in self.never_compared if isinstance(copy, np.ndarray) else ():
            output = self.outputs[name]
            last = output.array.fetch() if self._fixed or output.last is None else output.last[0]
            for contents in map(output.array.values, (last, *output.results.values())):
                if np.can_cast(contents.dtype, copy.dtype):
                    contents = contents.astype(copy.dtype)
                if not in_part and contents.nbytes != copy.nbytes:
                    continue
                whole, other = copy.tobytes(), contents.tobytes()
                if whole == other:
                    equal.append(name)
                elif in_part and min(copy.size, contents.size) >= _FEWEST:
                    held |= {name} if whole.count(other) == 1 else set()
                    holding |= {name} if other.count(whole) == 1 else set()
        # Equal outputs may be one mistake, and a part may be anybody's: neither speaks for several.
        return set(equal[:1]) or held or (holding if len(holding) == 1 else set())

    def determinism(self, name: str) -> Determinism | None:
        """Returns what the calls so far show about an output."""
        return of_launches(self.outputs[name].bits)

    def diagnose_others(
        self, name: str, reference: np.ndarray[Any, Any], tolerance: Tolerance
    ) -> Diagnosis | None:
        """Says what is wrong with the different results that other calls left in an output."""
        self._verified.add(name)
        output = self.outputs[name]
        verified = output.bits[-1] if output.declared and self._fixed else None
        for bits, result in output.results.items():
            if bits == verified:  # the test has compared it itself
                continue
            diagnosis = judged(name, output.array.values(result), reference, tolerance, output.poisoned)[1]
            if diagnosis is not None:
                told = f"in one of {len(output.bits)} calls on the same inputs, not in the one verified"
                return Diagnosis(diagnosis.fault, f"{diagnosis.message}\n  {told}")
        return None

    def unsettled(self) -> Diagnosis | None:
        """Says how the results of calls on the same inputs differ in an output that was never verified.

        None if they agree within the default tolerance of the dtype, or are declared `tolerant`.
        """
        if self._determinism is Determinism.TOLERANT:
            return None
        for name, output in self.outputs.items():
            if not output.declared or name in self._verified or len(output.results) < 2:
                continue
            if not output.array.holds_numbers:  # records, such as random states, have no tolerance
                continue
            first, *others = (output.array.values(result) for result in output.results.values())
            is_bfloat16 = BFLOAT16 in output.array.read_as
            tolerance = default_tolerance(first, BFLOAT16 if is_bfloat16 else first.dtype)
            for other in others:
                found = judged(name, other, first, tolerance)[1]
                if found is not None:
                    held = " when the output holds another pattern before" if output.poisoned else ""
                    return Diagnosis(
                        found.fault,
                        f"{found.message}\n  calls on the same inputs differ{held}; verify the output with "
                        "its own tolerance, or declare inout= if the call updates it, or "
                        'determinism="tolerant"',
                    )
        return None


@dataclass(frozen=True)
class ReferenceCheck:
    """Holds the result of comparing an output with its reference.

    Attributes:
        name: what the output is called.
        diagnosis: what is wrong, or None.
        error: distance from the reference; None if the shapes differ.
        loose: what else would pass within these bounds, in words, or None.
    """

    name: str
    diagnosis: Diagnosis | None
    error: OutputError | None = None
    loose: str | None = None


def check_against_reference(
    name: str,
    actual: Any,
    expected: Any,
    rtol: float | None,
    atol: float | None,
    *,
    seen: SeenOutputs | None,
    hashes: bool,
    asks_what_else: bool,
) -> ReferenceCheck:
    """Compares an output with its reference; the device must be idle.

    Args:
        name: what to call the output in messages if it is none that the marker declares.
        actual: array on the device or the host, of any shape.
        expected: reference of the same shape, in the same or a higher precision.
        rtol: relative bound, or None.
        atol: absolute bound, or None; if both are None, `default_tolerance` gives them.
        seen: what the test's calls left in their outputs; this may be one of them.
        hashes: whether the error includes the hash of the output.
        asks_what_else: whether to say if the bounds would also pass a lower precision or zeros.

    Raises:
        TypeError: `actual` is lazy, or an array is of a subclass of NumPy's or holds no numbers.
        ValueError: a bound is negative or not finite, the arrays share memory, or nothing is compared.
    """
    refuse_what_proves_nothing(actual, expected)
    found, reference = to_host(actual), to_host(expected)
    seen = seen or SeenOutputs(None, fixed=True)
    known = seen.name_of(actual, found)
    poisoned = known is not None and seen.outputs[known].poisoned
    if known is not None and seen.outputs[known].declared:
        name = known
    diagnosis = diagnose_form(name, found.shape, found.dtype, Output(reference.shape, found.dtype))
    if diagnosis is not None:
        return ReferenceCheck(name, diagnosis)
    _refuse_nothing(reference, may_be_empty=seen.given_empty)
    dtype = narrow_dtype(actual) or found.dtype
    if (rtol, atol) == (None, None):
        tolerance = default_tolerance(reference, dtype)
    else:
        tolerance = Tolerance(rtol=rtol or 0.0, atol=atol or 0.0)
    comparison, diagnosis = judged(name, found, reference, tolerance, poisoned)
    bits = bits_of(found) if hashes else None
    determinism = None
    if known is not None:
        determinism = seen.determinism(known)
        diagnosis = diagnosis or seen.diagnose_others(known, reference, tolerance)
    seen.note_compared(known, actual, found)
    error = dataclasses.replace(comparison.error, bits=bits, determinism=determinism)
    loose = None
    if asks_what_else and diagnosis is None:
        if dtype == found.dtype:
            loose = passes_lower_precision(name, reference, dtype, tolerance)
        if reference.any():
            loose = passes_zeros(name, reference, found.dtype, tolerance) or loose
    return ReferenceCheck(name, diagnosis, error, loose)


def judged(
    name: str,
    found: np.ndarray[Any, Any],
    expected: np.ndarray[Any, Any],
    tolerance: Tolerance,
    poisoned: bool = True,
) -> tuple[Comparison, Diagnosis | None]:
    """Returns how an output on the host compares with its reference, and what is wrong with it."""
    comparison = compare(found, expected, tolerance, poison=None)
    output = Compared(name, comparison, tolerance, lambda: found, expected, poisoned)
    return comparison, judge_output(output)


def _refuse_nothing(reference: np.ndarray[Any, Any], *, may_be_empty: bool) -> None:
    """Raises ValueError if a reference has no element to compare with, or only NaN."""
    import numpy as np

    if not reference.size and not may_be_empty:
        raise ValueError(
            f"actual and expected have shape {reference.shape}, so nothing is compared: verify what the "
            "call wrote or returned; where that must be empty, give the call an empty array"
        )
    if reference.size and np.isnan(reference).all():
        raise ValueError(
            f"expected is NaN in all of its {reference.size} elements, so an output of NaN would pass: "
            "compute a reference with numbers"
        )
