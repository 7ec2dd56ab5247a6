"""Compares what a test verifies with its reference, and knows the outputs of its calls again.

A test may verify an output, a copy of it, or a part. It is compared in each content that calls on the same
inputs left in it, and green means that each declared output was compared.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from msgspec import structs

from pytest_gpukern.arrays.compare import Tolerance, compare, contents_of, default_tolerance, float_bits
from pytest_gpukern.backends.foreign_array import (
    UsersArray,
    bits_of,
    leaves,
    narrow_dtype,
    refuse_what_proves_nothing,
    to_host,
    users_array,
)
from pytest_gpukern.check.diagnosis import Diagnosis, diagnose_shape, diagnose_values
from pytest_gpukern.problems.soundness import passes_lower_precision, passes_zeros
from pytest_gpukern.values.result import Determinism, OutputError, of_launches

_FEWEST = 8
"""Elements by which we know a part of an output again; fewer may be equal by chance."""


@dataclass
class SeenOutput:
    """Holds what is known of one output, declared or returned.

    Attributes:
        value: the array, or the one that was returned last.
        array: where `value` lies.
        declared: whether it is an argument; else it was returned.
        poisoned: whether it, or a part of it, held a poison before each call.
        bits: hash after each call whose inputs equal the first call's.
        results: hash → contents, where they differ bit by bit.
        last: contents after the last call and the word before it, if it was one; for a declared output only.
        left: hash of what the last call left in `value`; None if that is not known.
    """

    value: Any
    array: UsersArray
    declared: bool
    poisoned: bool = False
    bits: list[str | None] = field(default_factory=list)
    results: dict[Any, np.ndarray[Any, Any]] = field(default_factory=dict)
    last: tuple[np.ndarray[Any, Any], int | None] | None = None
    left: str | None = None

    @property
    def changed(self) -> bool:
        """Whether it holds something else than the last call left in it."""
        return self.left is not None and self.array.bits() != self.left

    def contents(self) -> np.ndarray[Any, Any]:
        """Returns what the last call left in it."""
        return self.last[0] if self.last is not None and self.changed else self.array.fetch()


class SeenOutputs:
    """Holds the outputs of one test's calls, by name.

    Attributes:
        given_empty: whether a call was given an empty array, so its outputs may be empty.
        given_floats: dtypes of the float and complex arrays that calls read.
        unpoisoned: whether the test verified an array, though its calls declared none and returned none.
    """

    def __init__(self, determinism: Determinism | None, *, fixed: bool) -> None:
        self._determinism = determinism
        self._fixed = fixed
        self._verified: set[str] = set()
        self._compared: set[str] = set()
        self.outputs: dict[str, SeenOutput] = {}
        self.given_empty = False
        self.given_floats: set[Any] = set()
        self.unpoisoned = False

    def name_of(self, actual: Any, on_host: np.ndarray[Any, Any]) -> str | None:
        """Returns the name of the output that a test verifies, or a copy of it; None if it is not known.

        A copy may be reshaped, or converted without loss.
        """
        for name, output in self.outputs.items():
            if output.value is actual:
                return name
        array = users_array(actual)
        if not self._fixed:
            return None
        for name, output in self.outputs.items():
            if array is not None and (array.span, array.shape) == (output.array.span, output.array.shape):
                return name
        bits = None
        # Of equal outputs, each has a copy.
        for name in sorted(self.outputs, key=self._compared.__contains__):
            of = self.outputs[name].array
            # What NumPy lacks, as bfloat16, comes to the host as float32.
            held = of.dtype if of.read_dtype is of.dtype else np.dtype("f4")
            if math.prod(of.shape) != on_host.size or not np.can_cast(held, on_host.dtype):
                continue
            bits = bits or bits_of(on_host)
            contents = of.values(self.outputs[name].contents())
            if bits and bits == bits_of(contents.astype(on_host.dtype, copy=False)):
                return name
        return None

    def overwritten(self, name: str | None, actual: Any) -> str | None:
        """Says that `actual` is what the test has made of an output since the last call, or returns None."""
        array = users_array(actual)
        for other, output in self.outputs.items():
            copied = other == name and output.last is None
            if (copied or (array is not None and array.overlaps(output.array))) and output.changed:
                remedy = f"verify {other}, or a copy of it, before the test changes it"
                return f"{other} was changed after the last call, so this is not what the call left: {remedy}"
        return None

    @property
    def never_compared(self) -> tuple[str, ...]:
        """The declared outputs that no `verify` compared with a reference, though they hold numbers."""
        return self._uncompared(declared=True)

    def _uncompared(self, *, declared: bool) -> tuple[str, ...]:
        return tuple(
            name
            for name, output in self.outputs.items()
            if output.declared is declared and output.array.holds_numbers and output.array.nbytes
            if name not in self._compared
        )

    def note_compared(self, name: str | None, actual: Any, on_host: np.ndarray[Any, Any]) -> None:
        """Notes which outputs a test has compared with a reference: those in whose memory `actual` lies.

        Elsewhere it is a copy: reshaped, converted without loss, a view of a copy, a part of one output, or
        several in one. `name` is what `name_of` says. One array may be a copy of a declared output and of a
        returned one.
        """
        unchanged = [(other, output) for other, output in self.outputs.items() if not output.changed]
        for declared in (True, False):
            arrays = {other: output.array for other, output in unchanged if output.declared is declared}
            compared = {other for other in arrays if other == name}
            for _, value in () if compared else leaves("", actual):
                given, base = users_array(value), getattr(value, "base", None)
                near = {other for other in arrays if given is not None and given.overlaps(arrays[other])}
                compared |= near or self._copied(value if base is None else base, declared)
                self._compared |= compared
            self._compared |= compared or self._copied(on_host, declared, in_part=True)

    def _copied(self, copy: Any, declared: bool, *, in_part: bool = False) -> set[str]:
        """Returns the outputs, not compared so far, that a host array holds a copy of, or is a part of."""
        equal, held, holding = list[str](), set[str](), set[str]()
        for name in self._uncompared(declared=declared) if isinstance(copy, np.ndarray) else ():
            output = self.outputs[name]
            last = output.contents() if self._fixed or output.last is None else output.last[0]
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
        return of_launches(self.outputs[name].bits)

    def diagnose_others(
        self, name: str, reference: np.ndarray[Any, Any], tolerance: Tolerance
    ) -> Diagnosis | None:
        """Says what is wrong with the different results that other calls left in an output."""
        self._verified.add(name)
        output = self.outputs[name]
        verified = output.bits[-1] if self._fixed else None
        for bits, result in output.results.items():
            if bits == verified:  # the test has compared it itself
                continue
            values = output.array.values(result).reshape(reference.shape)
            comparison = compare(values, reference, tolerance, poison=None)
            diagnosis = diagnose_values(name, comparison, tolerance, poisoned=output.poisoned)
            if diagnosis is not None:
                where = f"in one of {len(output.bits)} calls on the same inputs, not in the one verified"
                return Diagnosis(diagnosis.fault, f"{diagnosis.message}\n  {where}")
        return None

    def unsettled(self) -> Diagnosis | None:
        """Says how the results of calls on the same inputs differ in an output that was never verified.

        What a call returned counts if it was verified in another form, as in two halves. None if they agree
        within the default tolerance of the dtype, or are declared `tolerant`.
        """
        if self._determinism is Determinism.TOLERANT:
            return None
        for name, output in self.outputs.items():
            looked_at = output.declared or name in self._compared
            if not looked_at or name in self._verified or len(output.results) < 2:
                continue
            if not output.array.holds_numbers:  # records, such as random states, have no tolerance
                continue
            first, *others = (output.array.values(result) for result in output.results.values())
            tolerance = default_tolerance(first, output.array.read_dtype)
            for other in others:
                comparison = compare(other, first, tolerance, poison=None)
                diagnosis = diagnose_values(name, comparison, tolerance, poisoned=False)
                if diagnosis is not None:
                    held = " when the output holds something else before" if output.poisoned else ""
                    remedy = (
                        f"calls on the same inputs differ{held}; verify the output with its own tolerance, "
                        'zero it first or declare inout= if the call adds to it, or determinism="tolerant"'
                    )
                    return Diagnosis(diagnosis.fault, f"{diagnosis.message}\n  {remedy}")
        return None


@dataclass(frozen=True)
class ReferenceCheck:
    """Holds the result of comparing an output with its reference.

    Attributes:
        error: distance from the reference; None if the shapes differ.
        doubts: why this proves less than it seems, in words: what else would pass within these bounds, that
            the output is narrower than what the call read, or that the test has changed it.
        counts: whether it says something of what a call left.
    """

    name: str
    diagnosis: Diagnosis | None
    error: OutputError | None = None
    doubts: tuple[str, ...] = ()
    counts: bool = True


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
    counts: bool = True,
) -> ReferenceCheck:
    """Compares an output with its reference; the device must be idle.

    Args:
        name: what to call the output in messages if it is none that the marker declares.
        actual: array on the device or the host, of any shape.
        expected: reference of the same shape, in the same or a higher precision.
        rtol: relative bound.
        atol: absolute bound; if both are None, `default_tolerance` gives them.
        seen: what the test's calls left in their outputs; this may be one of them.
        hashes: whether the error includes the hash of the output.
        asks_what_else: whether to say if the bounds would also pass a lower precision or zeros.
        counts: whether the output is compared by this; it is not where it must be wrong.

    Raises:
        TypeError: `actual` is lazy, or an array is of a subclass of NumPy's or holds no numbers.
        ValueError: a bound is negative or not finite, the arrays share memory, or nothing is compared.
    """
    refuse_what_proves_nothing(actual, expected)
    on_host, reference = to_host(actual), to_host(expected)
    seen = seen or SeenOutputs(None, fixed=True)
    known = seen.name_of(actual, on_host)
    overwritten = seen.overwritten(known, actual)
    known, counts = (known, counts) if overwritten is None else (None, False)
    poisoned = known is not None and seen.outputs[known].poisoned
    if known is not None and seen.outputs[known].declared:
        name = known
    diagnosis = diagnose_shape(name, on_host.shape, reference.shape)
    if diagnosis is not None:
        return ReferenceCheck(name, diagnosis)
    _refuse_nothing(reference, may_be_empty=seen.given_empty)
    dtype = narrow_dtype(actual) or (on_host.dtype if known is None else seen.outputs[known].array.read_dtype)
    if (rtol, atol) == (None, None):
        tolerance = default_tolerance(reference, dtype)
    else:
        tolerance = Tolerance(rtol=0.0 if rtol is None else rtol, atol=0.0 if atol is None else atol)
    comparison = compare(on_host, reference, tolerance, poison=None)
    diagnosis = diagnose_values(name, comparison, tolerance, poisoned=poisoned)
    bits = bits_of(on_host) if hashes else None
    determinism = None
    if known is not None:
        determinism = seen.determinism(known)
        diagnosis = diagnosis or seen.diagnose_others(known, reference, tolerance)
    if counts:
        seen.note_compared(known, actual, on_host)
        arrays = [output for output in seen.outputs.values() if output.array.shape]
        seen.unpoisoned |= not arrays and on_host.size > 1 and users_array(actual) is not None
    error = structs.replace(
        comparison.error(tolerance),
        bits=bits,
        determinism=determinism,
        dtype=str(dtype),
        reference=contents_of(reference),
    )
    loose = narrower = None
    if asks_what_else and diagnosis is None:
        narrower = _narrower(name, dtype, seen.given_floats)
        if dtype == on_host.dtype:
            loose = passes_lower_precision(name, reference, dtype, tolerance)
        if reference.any():
            loose = passes_zeros(name, reference, on_host.dtype, tolerance) or loose
    doubts = tuple(filter(None, (overwritten, loose, narrower)))
    return ReferenceCheck(name, diagnosis, error, doubts, counts)


def _narrower(name: str, dtype: object, given: set[Any]) -> str | None:
    """Says that a float output is narrower than all floats that the call read, or None."""
    if not given or not 0 < float_bits(dtype) < min(map(float_bits, given)):
        return None
    read = f"all floats that the call read ({', '.join(sorted(map(str, given)))})"
    remedy = f"if that is not meant, return {min(given, key=float_bits)}"
    return f"{name}: it is right as {dtype}, which is narrower than {read}: {remedy}"


def _refuse_nothing(reference: np.ndarray[Any, Any], *, may_be_empty: bool) -> None:
    """Raises ValueError if a reference has no element to compare with, or only NaN."""
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
