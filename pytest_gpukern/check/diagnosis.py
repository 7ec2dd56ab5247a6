"""Says what a launch is to a check, of a variant or of a test's own call, and what may be wrong with it.

The functions turn what is found into a diagnosis in words, or None if nothing is wrong.
"""

from __future__ import annotations

import enum
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from threading import Thread
from typing import Any, NamedTuple, Protocol

import numpy as np

from pytest_gpukern.arrays.compare import Comparison, Tolerance
from pytest_gpukern.arrays.memory import Damage, c_strides
from pytest_gpukern.backends.foreign_array import UsersArray, why_lazy
from pytest_gpukern.gpu.simulator.launch import SimulatedLaunches
from pytest_gpukern.problems.problem import Output
from pytest_gpukern.values.note import Note
from pytest_gpukern.values.result import Determinism, OutputError, of_launches


class Memory(Protocol):
    """Describes memory that may overlap other memory: an array, or the span of one."""

    def overlaps(self, other: Any, /) -> bool:
        """Returns whether both share memory."""


class Fault(enum.StrEnum):
    """Names what is wrong with an output."""

    LAUNCH_FAILED = "launch failed"
    OUT_OF_BOUNDS = "out of bounds"
    NOT_WRITTEN = "not written"
    WRONG_VALUES = "wrong values"
    UNEXPECTED_NAN = "unexpected NaN"
    STALE_RESULT = "stale result"
    WRONG_TYPE = "wrong type"
    WRONG_SHAPE = "wrong shape"
    WRONG_DTYPE = "wrong dtype"
    WRONG_STRIDES = "wrong strides"
    ALIASED = "aliased"
    INPUT_MODIFIED = "input modified"
    STILL_RUNNING = "still running"
    STATISTICS = "statistics"
    NOT_DETERMINISTIC = "not deterministic"


@dataclass(frozen=True)
class Diagnosis:
    """Says why an output is incorrect, in words for a test's failure message."""

    fault: Fault
    message: str

    @classmethod
    def of(cls, fault: Fault, text: str, output: str = "") -> Diagnosis:
        """Returns one whose message begins with the output, if it concerns a single one, and the fault."""
        return cls(fault, f"{output}: {fault}: {text}" if output else f"{fault}: {text}")


class IncorrectError(Exception):
    """Says that an output is wrong; `diagnosis` says how."""

    def __init__(self, diagnosis: Diagnosis, errors: Mapping[str, OutputError] | None = None) -> None:
        super().__init__(diagnosis.message)
        self.diagnosis = diagnosis
        self.errors = dict(errors or {})

    def after(self, where: str, more: str = "") -> IncorrectError:
        """Returns the same error with words before its message, and perhaps more behind."""
        diagnosis = Diagnosis(self.diagnosis.fault, f"{where}{self.diagnosis.message}{more}")
        return IncorrectError(diagnosis, self.errors)


@dataclass(frozen=True)
class Made:
    """Holds what is seen of one launch as it returns; it is empty for a timed launch.

    Attributes:
        threads: Python's threads that it started and that still work.
        bits: a hash of each output, taken only if threads still work.
        digests: a hash of each input that must stay as it is, from before the launch.
    """

    returned: Any
    threads: tuple[Thread, ...] = ()
    bits: Mapping[str, str | None] = field(default_factory=dict)
    digests: Mapping[str, Any] = field(default_factory=dict)


class Written(NamedTuple):
    """Says what a launch left of an output that has no reference: elements unwritten, or changed elsewhere.

    Attributes:
        unwritten: number of elements that still hold the poison.
        first: flat index of the first of them, or -1.
        changed: for each element, whether it changed outside the declared region; None without a region.
    """

    name: str
    shape: tuple[int, ...]
    unwritten: int
    first: int
    changed: np.ndarray[Any, Any] | None = None


class Launch(ABC):
    """Describes what is launched, its arrays, and what is declared about them.

    `engine.checked_launch` calls `digests_before`, `fill`, `run` and `take` in this order. Checks look at all
    else.

    Attributes:
        by: what to call it in messages.
        place: which launch of several it is, in words; often empty.
        synchronize: waits for all work on the device.
        damage: returns what was written into guard zones; the device must be idle.
        determinism: what is declared for its outputs, or None.
        returns_apart: whether the arrays that it returns must not overlap each other.
        sharing_remedy: what to do about a result that shares memory with an input or an earlier result.
        modified_remedy: what to do about an input that is written, if it is written on purpose.
        why_lazy: says why a returned value stands for work that the launch has not done, or None.
        errors: worst error of each output so far.
        notes: what is doubtful but not wrong, each once.
        seen_bits: a hash of each output after each launch on the same inputs.
        first_call_ns: wall time of the first launch, compiling and loading included.
        shortest_call_ns: wall time of the shortest so far, since anything may hold up one; 0 before any.
        inputs: the arrays that it must not write, by name.
        results: the arrays that its last launch returned as outputs, by name.
        held: what earlier launches returned and somebody still holds, by words.
    """

    by = "the launch"
    place = ""
    returns_apart = True
    sharing_remedy = "each launch must return new memory"
    modified_remedy = ""
    why_lazy: Callable[[Any], str | None] = staticmethod(why_lazy)

    def __init__(
        self, synchronize: Callable[[], None], damage: Callable[[], list[Damage]], determinism: str | None
    ) -> None:
        self.synchronize, self.damage, self.determinism = synchronize, damage, determinism
        self.errors: dict[str, OutputError] = {}
        self.notes: dict[Note, None] = {}
        self.seen_bits: dict[str, list[str | None]] = {}
        self.first_call_ns: float | None = None
        self.shortest_call_ns = 0.0
        self.inputs: Mapping[str, Memory] = {}
        self.results: Mapping[str, Memory] = {}
        self.held: Mapping[str, Memory] = {}

    @property
    def steady(self) -> list[str]:
        """Names the outputs that had the same bits after every launch so far."""
        return [name for name, bits in self.seen_bits.items() if None not in bits and len(set(bits)) == 1]

    @abstractmethod
    def fill(self, *, poisoned: bool) -> None:
        """Puts into the outputs what they hold before a launch: a poison, or what is updated."""

    @abstractmethod
    def run(self) -> Any:
        """Launches once, waits, and returns what was returned."""

    @abstractmethod
    def take(self, returned: Any) -> None:
        """Makes what a launch returned its outputs, and looks at what it left in them."""

    @abstractmethod
    def take_timed(self) -> None:
        """Makes what the last timed launch returned its outputs, and looks at what it left in them."""

    def written(self) -> Iterable[Written]:
        """Returns what the launch left of each output that has no reference."""
        return ()

    def compared(self) -> Iterable[Diagnosis]:
        """Compares each output that has a reference with it, and returns what is wrong."""
        return ()

    @abstractmethod
    def digests_before(self) -> Mapping[str, Any]:
        """Returns a hash of each input that must stay as it is, from before the launch."""

    @abstractmethod
    def digests(self) -> Mapping[str, Any]:
        """Returns a hash of each input now."""

    @abstractmethod
    def outputs(self) -> Mapping[str, UsersArray]:
        """Returns where each output lies: what was written in place, or returned."""

    @abstractmethod
    def bits(self) -> dict[str, str | None]:
        """Returns a hash of each output now."""


def complaint(answer: object, refuse: Callable[[str], Exception]) -> str | None:
    """Returns what is wrong by the answer of a user's `check`: a text, or False of any library; else None.

    Raises what `refuse` makes of a text if the answer is no text, no truth value and not None.
    """
    if answer is None or isinstance(answer, str):
        return str(answer or "") or None
    kind, dtype = type(answer), str(getattr(answer, "dtype", ""))
    if kind is bool or (dtype.removeprefix("torch.") == "bool" and getattr(answer, "shape", None) == ()):
        # By its exceptions alone, a check that returns np.allclose(…) would pass whatever it finds.
        return None if answer else "check returned False: to say what is wrong, assert or return a text"
    raise refuse(
        f"check returned {answer!r:.60}, of type {kind.__qualname__}: it must return None, True, False, or "
        "what is wrong in words; reduce an array with .all(), or assert"
    )


_STILL_POISON = "never written, or added to before being set"
"""What is added to a NaN keeps the NaN's bits on most hosts, and adding zero keeps any bits."""
_BARRIER = (
    "shared memory holds a poison (NaN) until a thread writes it: if another thread read it before that, "
    "a barrier is missing in between: cuda.syncthreads()"
)
_SET_IT = "zero it first, or declare inout=, or written= for what is left on purpose"


def diagnose_values(
    name: str, comparison: Comparison, tolerance: Tolerance, *, poisoned: bool
) -> Diagnosis | None:
    """Says what a comparison found in an output; None if every element passed.

    One that was `poisoned` held a poison before, which may explain what it holds now.
    """
    if not comparison.mismatches:
        return None
    if comparison.unwritten:
        fault = Fault.NOT_WRITTEN
    elif comparison.unexpected_nan == comparison.mismatches:
        fault = Fault.UNEXPECTED_NAN
    else:
        fault = Fault.WRONG_VALUES
    counts = f"{comparison.mismatches} of {comparison.size} elements"
    lines = [f"{counts} outside rtol={tolerance.rtol:g}, atol={tolerance.atol:g}"]
    if comparison.unwritten:
        where = f"the first at {_at(comparison.first_unwritten, comparison.shape)}"
        what = f"still hold poison, {where}: {_STILL_POISON}" if poisoned else f"were never written, {where}"
        lines.append(f"  {comparison.unwritten} {what}")
    if comparison.unexpected_nan:
        lines.append(f"  {comparison.unexpected_nan} are NaN where the reference is not")
    for label, extreme in (
        ("first mismatch", comparison.first_mismatch),
        (f"worst absolute error {comparison.absolute.value:.6g}", comparison.absolute),
        (f"worst relative error {comparison.relative.value:.6g}", comparison.relative),
        (f"worst error in ULP {comparison.ulp.value:.6g}", comparison.ulp),
    ):
        if extreme.value > 0:
            where = _at(extreme.index, comparison.shape)
            lines.append(f"  {label} at {where}: expected {extreme.expected!r}, actual {extreme.actual!r}")
    far_off = isinstance(comparison.first_mismatch.actual, int) and comparison.absolute.value > _ORDINARY
    held = "NaN" if comparison.unexpected_nan else "a pattern" if far_off else ""
    if SimulatedLaunches.shares and (held or comparison.unwritten):
        lines.append(f"  {_BARRIER}")
    if poisoned and comparison.unwritten:
        lines.append(f"  {_SET_IT}")
        return Diagnosis(fault, f"{name}: " + "\n".join(lines))
    if poisoned and held:
        lines.append(
            f"  the output held {held} before the launch: if the kernel adds to it, zero it first, or "
            "declare inout="
        )
    return Diagnosis.of(fault, "\n".join(lines), name)


_ORDINARY = 2**11
"""An integer that is off by less is an ordinary mistake, though some poisons are integers of -64 to -1."""


def diagnose_damage(damage: Sequence[Damage], place: str = "") -> Diagnosis | None:
    """Says what was written out of bounds, and `place` by which launch; None if nothing was."""
    if not damage:
        return None
    lines = [f"{damage[0].array}: {Fault.OUT_OF_BOUNDS}"]
    for zone in damage:
        if zone.between:
            lines.append(
                f"  {_count(zone.changed_bytes, 'byte')} written between the elements of {zone.array}, "
                f"the first after flat index {zone.index} of {zone.size}: it is strided, not in C order"
            )
            continue
        side = "after the end" if zone.behind else "before the beginning"
        distance = zone.index - zone.size + 1 if zone.behind else -zone.index
        lines.append(
            f"  {_count(zone.changed_bytes, 'byte')} written {side} of {zone.array}, the nearest "
            f"{_count(distance, 'element')} away: flat index {zone.index} of {zone.size}"
        )
    lines += [f"  seen {place}"] if place else []
    return Diagnosis(Fault.OUT_OF_BOUNDS, "\n".join(lines))


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def diagnose_shape(name: str, shape: tuple[int, ...], expected: tuple[int, ...]) -> Diagnosis | None:
    """Says that an output has another shape than its reference, or than is declared; None if it has not."""
    if shape == expected:
        return None
    return Diagnosis.of(Fault.WRONG_SHAPE, f"expected {expected}, actual {shape}", name)


def diagnose_form(name: str, actual: UsersArray, declared: Output) -> Diagnosis | None:
    """Says how the shape, dtype or order of an output differs from what is declared; None if it does not."""
    if (other := diagnose_shape(name, actual.shape, tuple(declared.shape))) is not None:
        return other
    if actual.dtype != np.dtype(declared.dtype):
        text = f"expected {np.dtype(declared.dtype)}, actual {actual.dtype}"
        return Diagnosis.of(Fault.WRONG_DTYPE, text, name)
    if actual.strides is not None and declared.order == "C":
        text = (
            f"expected {c_strides(actual.shape, actual.dtype.itemsize)} bytes (C order), actual "
            f"{actual.strides}; return a contiguous array, and the copy is timed too, or declare "
            'Output(shape, dtype, order="any")'
        )
        return Diagnosis.of(Fault.WRONG_STRIDES, text, name)
    return None


def diagnose_aliasing(
    outputs: Mapping[str, Memory],
    inputs: Mapping[str, Memory],
    others: Mapping[str, Memory],
    remedy: str,
    *,
    apart: bool = True,
) -> Diagnosis | None:
    """Says which memory outputs share with inputs, with others, and if `apart` with each other, or None.

    Messages call the `others` by their keys.
    """
    near = {**{f"the input {name}": memory for name, memory in inputs.items()}, **others}
    for name, memory in outputs.items():
        shared = ", ".join(other for other, theirs in near.items() if memory.overlaps(theirs))
        if shared:
            return Diagnosis.of(Fault.ALIASED, f"it shares memory with {shared}; {remedy}", name)
        if apart:
            near[f"the output {name}"] = memory
    return None


def diagnose_written(written: Written, at: str) -> Diagnosis | None:
    """Says what a launch left unwritten or changed elsewhere, and `at` which launch; None if nothing."""
    name, shape, count, first, changed = written
    outside = 0 if changed is None else int(changed.sum())
    if changed is not None and outside:
        elements, where = _count(outside, "element"), _at(int(changed.argmax()), shape)
        text = f"{elements} changed outside written=, the first at {where}{at}"
        return Diagnosis.of(Fault.WRONG_VALUES, text, name)
    if count:
        text = f"{count} of {math.prod(shape)} elements still hold poison, the first at {_at(first, shape)}"
        return Diagnosis(Fault.NOT_WRITTEN, f"{name}: {text}{at}\n  {_STILL_POISON}: {_SET_IT}")
    return None


def diagnose_launches(name: str, bits: Sequence[str | None], declared: str | None) -> Diagnosis | None:
    """Says how launches on the same inputs differ, by an output's hashes, if that is a fault."""
    if declared in (None, Determinism.TOLERANT) or of_launches(bits) is not Determinism.TOLERANT:
        return None
    counts = f"{len(set(bits))} results from {len(bits)} launches on the same inputs"
    text = f"{counts}, but determinism={str(declared)!r} is declared"
    return Diagnosis.of(Fault.NOT_DETERMINISTIC, text, name)


def _at(index: int, shape: tuple[int, ...]) -> str:
    """Writes a flat index as Python code would, such as `[2, 1]`."""
    if index < 0 or not shape:
        return "[()]"
    return "[" + ", ".join(str(int(axis)) for axis in np.unravel_index(index, shape)) + "]"
