"""Checks each untimed call of a plain test: what it wrote, what it returned, what it must not touch.

Declared outputs are filled with one poison before the first call, with the other before the second, and so
on in turn. A returned array must be new memory, and of a type that does not compute when it is read.
"""

from __future__ import annotations

import functools
import itertools
import numbers
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pytest_gpukern.arrays.compare import (
    BFLOAT16,
    POISONS,
    compare,
    default_tolerance,
    poison_bytes,
    still_poisoned,
)
from pytest_gpukern.backends.foreign_array import users_array, why_untrusted
from pytest_gpukern.backends.host import bits_of
from pytest_gpukern.check.call_arguments import (
    DeclarationError,
    arguments_of,
    captured_by,
    declared_arguments,
    leaves,
)
from pytest_gpukern.check.diagnosis import (
    UNWRITTEN_ON_PURPOSE,
    Diagnosis,
    Fault,
    IncorrectError,
    diagnose_changed,
    diagnose_launches,
    diagnose_shared,
    diagnose_unwritten,
    diagnose_values,
)
from pytest_gpukern.measure.rounds import Rounds
from pytest_gpukern.timers.timer import Iteration
from pytest_gpukern.values.determinism import Determinism, of_launches

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    import numpy as np

    from pytest_gpukern.arrays.compare import Tolerance
    from pytest_gpukern.backends.foreign_array import UsersArray
    from pytest_gpukern.check.call_arguments import Argument
    from pytest_gpukern.timers.timer import Executions


_QUICK_NS = 1e8
"""A call that takes longer is not made a third time."""
_VERY_SLOW_NS = 1e9
"""A call that takes longer is not made a second time, unless outputs are declared."""
_CALLS = 3
_FEWEST = 8
"""Elements by which we know a part of an output again; fewer may be equal by chance."""
_IN_PLACE = "declare arrays that the call updates in place with inout="


@dataclass(frozen=True)
class Before:
    """Holds the contents before each call of an output that is not poisoned, or only partly.

    Attributes:
        original: what it held before the first call.
        region: index or mask of the poisoned part; None if the call updates the output in place.
    """

    original: np.ndarray[Any, Any]
    region: Any = None

    def contents(self, poison: int) -> np.ndarray[Any, Any]:
        """Returns what the output holds before a call."""
        if self.region is None:
            return self.original
        filled = self.original.copy()
        pattern = poison_bytes(poison, filled.nbytes).view(filled.dtype).reshape(filled.shape)
        filled[self.region] = pattern[self.region]
        return filled

    def in_region(self, found: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Returns what a call left, with zeros outside the region."""
        import numpy as np

        looked = np.zeros_like(found)
        looked[self.region] = found[self.region]
        return looked

    def changed(self, found: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Says for each element whether a call changed it though it lies outside the region."""
        raw = f"V{found.dtype.itemsize}"
        differ: np.ndarray[Any, Any] = found.view(raw) != self.original.view(raw)
        differ[self.region] = False
        return differ


@dataclass
class Call:
    """Describes a call that is about to be made.

    Attributes:
        place: which call it is, in words.
        outputs: declared outputs by name, poisoned or put back.
        before: contents of the outputs that are not completely poisoned.
        inputs: every other array among the arguments, by name.
        given: each argument that is an array, as it was passed.
        digests: hash of each input before the call; empty if nothing is declared and no call has returned a
            new array yet.
        scalars: all other arguments, in a form that can be compared.
        poison: what the outputs were filled with.
    """

    function: Callable[..., Any]
    place: str
    outputs: dict[str, UsersArray]
    before: dict[str, Before]
    inputs: dict[str, UsersArray]
    given: list[Any]
    digests: dict[str, str | None]
    scalars: tuple[Any, ...]
    poison: int

    def bits(self, returned: Any) -> dict[str, str | None]:
        """Returns a hash of each array that the call was given or returned, as it is now."""
        arrays = {name: users_array(value) for name, value in leaves("returned", returned)}
        known = {name: array for name, array in arrays.items() if array is not None}
        return _digests({**self.inputs, **self.outputs, **known})


class CheckedCalls:
    """Checks the calls of one test.

    Args:
        outputs: positions and names of the arguments that the call writes, from the test's marker.
        determinism: what the marker declares for all outputs, or None.
        where: the test.
        synchronize: waits for the device.
        fixed: whether every call has the same arguments.
        repeats: whether to repeat a call with nothing declared if it returns new arrays.
        poisons: what outputs are filled with in turn.
        inout: positions and names of the arguments that the call updates in place.
        written: output → index or mask of the elements that the call writes.

    Attributes:
        seen: what the calls left in each output.
        notes: what is doubtful but not wrong, in words.
    """

    def __init__(
        self,
        outputs: Sequence[int | str],
        determinism: Determinism | None,
        where: str,
        synchronize: Callable[[], None],
        *,
        fixed: bool = True,
        repeats: bool = True,
        poisons: tuple[int, int] = POISONS,
        inout: Sequence[int | str] = (),
        written: Mapping[int | str, Any] | None = None,
    ) -> None:
        self._outputs, self._inout, self._written = outputs, inout, dict(written or {})
        self._declares = bool(outputs or inout)
        self._before: dict[str, Before] = {}
        self._determinism = determinism
        self._where = where
        self._synchronize = synchronize
        self._fixed = fixed
        self._repeats = repeats
        self._poisons = itertools.cycle(poisons)
        self.seen = SeenOutputs(determinism, fixed=fixed)
        self._first_inputs: tuple[Any, ...] | None = None
        self._returns_new = False
        self.notes: tuple[str, ...] = ()
        self._timed_poison = poisons[0]

    def begin(
        self, function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], place: str
    ) -> Call:
        """Poisons the declared outputs, puts updated ones back and hashes every other array.

        Raises:
            DeclarationError: the call has no such argument, a declared output is not an array that can be
                written, or a region does not fit its output.
            IncorrectError: outputs share memory with inputs, or with each other.
        """
        self._synchronize()

        def named(option: str, names: Sequence[int | str]) -> list[Argument]:
            return declared_arguments(option, names, function, args, kwargs, self._where)

        poisoned, put_back = named("outputs", self._outputs), named("inout", self._inout)
        updated = {name for name, _ in put_back}
        for name, _ in poisoned:
            if name in updated:
                raise DeclarationError(f"{self._where}: gpu_benchmark: {name} is in outputs= and in inout=")
        declared = [*poisoned, *put_back]
        outputs = {name: self._writable(name, value, updated) for name, value in declared}
        regions = {}
        for key, region in self._written.items():
            for name, _ in named("written", [key]):
                regions[name] = self._region(name, region, outputs, updated)
        rest = [leaf for name, value in arguments_of(function, args, kwargs) for leaf in leaves(name, value)]
        arrays = {name: (value, users_array(value)) for name, value in rest if name not in outputs}
        inputs = {
            name: array
            for name, (_, array) in arrays.items()
            if array is not None and not any(array.overlaps(outputs[other]) for other in updated)
        }
        given = [value for _, value in declared] + [value for value, array in arrays.values() if array]
        others = tuple(_comparable(value) for value, array in arrays.values() if array is None)
        self.seen.given_empty |= not all(array.nbytes for array in (*outputs.values(), *inputs.values()))
        _refuse_shared(outputs, inputs, updated)
        if not (self._fixed and self._before):
            self._before = {
                name: Before(array.fetch(), regions.get(name))
                for name, array in outputs.items()
                if name in updated or name in regions
            }
        poison = next(self._poisons)
        for name, array in outputs.items():
            _fill(array, self._before.get(name), poison)
        # If nothing is declared, a call may write its inputs, and their hashes only tell calls apart.
        digests = _digests(inputs) if self._declares or self._returns_new else {}
        return Call(function, place, outputs, self._before, inputs, given, digests, others, poison)

    def _region(
        self, name: str, region: Any, outputs: Mapping[str, UsersArray], updated: Collection[str]
    ) -> Any:
        """Returns the index or mask of the written part of an output; DeclarationError if it does not fit."""
        import numpy as np

        label = f"{self._where}: gpu_benchmark(written={{…: {region!r}}}): {name}"
        if name not in outputs or name in updated:
            raise DeclarationError(f"{label} is not in outputs=")
        try:
            some = np.empty(outputs[name].shape, bool)[region].size
        except (IndexError, TypeError) as error:
            raise DeclarationError(f"{label}: {error}") from None
        if not some and outputs[name].nbytes:
            raise DeclarationError(f"{label}: selects no element of shape {outputs[name].shape}")
        return region

    def end(self, call: Call, returned: Any) -> None:
        """Checks what a call did after it has returned.

        Raises:
            IncorrectError: a check failed; it holds the first fault.
        """
        self._synchronize()
        inputs, first = (call.digests, call.scalars), self._first_inputs is None
        same_inputs = first or inputs == self._first_inputs
        values = dict(zip(call.outputs, call.given, strict=False))
        for name, array in call.outputs.items():
            before = call.before.get(name)
            poisoned = before is None or before.region is not None
            made = SeenOutput(values[name], array, declared=True, poisoned=poisoned)
            output = self.seen.outputs.setdefault(name, made)
            self._look_at(name, output, array, call.place, call.poison, before, same_inputs=same_inputs)
        if call.outputs:
            digests = _digests(call.inputs)
            changed = [name for name, digest in digests.items() if digest != call.digests[name]]
            if changed:
                told = f"{Fault.INPUT_MODIFIED}: the call changed {', '.join(changed)}"
                remedy = "declare arrays that it writes with outputs=, or"
                raise IncorrectError(Diagnosis(Fault.INPUT_MODIFIED, f"{told}; {remedy} {_IN_PLACE}"))
        self._look_at_returned(call, returned, same_inputs=same_inputs)
        if first:
            after = _digests(call.inputs) if self._returns_new else {}
            self._first_inputs = inputs if self._declares else (after, call.scalars)
        for name, output in self.seen.outputs.items():
            _raise(diagnose_launches(name, output.bits, self._determinism))

    def wants_another(self, calls: int, last_ns: float) -> bool:
        """Says whether to make another call before timing, after `calls` of which the last took `last_ns`.

        Raises:
            DeclarationError: determinism is declared, but the call has no outputs and returns no array.
        """
        if not self.seen.outputs and self._determinism is not None:
            raise DeclarationError(
                f"{self._where}: gpu_benchmark(determinism={str(self._determinism)!r}): the call returns no "
                "array; declare the ones that it writes, such as outputs=2 or outputs=('out',)"
            )
        declared = self._declares or self._determinism is not None
        if not (declared or (self._returns_new and self._repeats)) or calls >= _CALLS:
            return False
        if calls > 1:
            return last_ns <= _QUICK_NS
        return declared or last_ns <= _VERY_SLOW_NS

    @property
    def are_bitwise(self) -> bool:
        """Says whether every call so far, all on the same arguments, gave the same bits in each output."""
        found = [self.seen.determinism(name) for name in self.seen.outputs]
        return self._fixed and bool(found) and set(found) == {Determinism.BITWISE}

    @property
    def wanted_after_timing(self) -> bool:
        """Says whether a call after timing has something to check."""
        return self._declares or self._returns_new

    def restored(self, executions: Executions) -> Executions:
        """Returns the executions; if all have the same arguments, we put back what each updates.

        Raises:
            DeclarationError: they are rounds, or an updated device array is not in C order.
        """
        if not (self._inout and self._fixed):
            return executions
        if isinstance(executions, Rounds):
            raise DeclarationError(
                f"{self._where}: gpu_benchmark(inout=…) restores arrays before each call, which rounds "
                "cannot: call gpu_benchmark(f, …), or pedantic(f, setup=…)"
            )
        for name, output in self.seen.outputs.items():
            if name in self._before and output.array.on_device and output.array.strides is not None:
                raise DeclarationError(f"{self._where}: gpu_benchmark(inout=…): {name} is not in C order")
        return _Restored(executions, self)

    def timed(self, executions: Executions) -> Executions:
        """Returns the executions; if all have the same outputs, we poison them before each batch."""
        return _Poisoned(executions, self) if self._declares and self._fixed else executions

    @property
    def inspect(self) -> Callable[[], None] | None:
        """Looks at what a timed call left in the outputs; None if each call has others."""
        return self._look_at_timed if self._declares and self._fixed else None

    def poison(self) -> None:
        """Fills the outputs of the last call with the next poison."""
        self._timed_poison = next(self._poisons)
        for name, output in self.seen.outputs.items():
            if output.declared:
                _fill(output.array, self._before.get(name), self._timed_poison)

    def putting_back(self) -> list[Callable[[], Any]]:
        """Returns functions that queue copies of the original contents into updated arrays."""
        return [
            self.seen.outputs[name].array.queueing(before.original)
            for name, before in self._before.items()
            if before.region is None and before.original.nbytes
        ]

    def _look_at_timed(self) -> None:
        """Raises IncorrectError if an element was not written since the batch began."""
        self._synchronize()
        for name, output in self.seen.outputs.items():
            if output.declared:
                poison = self._timed_poison
                before = self._before.get(name)
                self._look_at(name, output, output.array, "in a timed call", poison, before, same_inputs=True)
                _raise(diagnose_launches(name, output.bits, self._determinism))

    def _writable(self, name: str, value: Any, updated: Collection[str]) -> UsersArray:
        array = users_array(value)
        label = f"{self._where}: gpu_benchmark(outputs=…): {name} is {type(value).__name__}"
        if array is None or not (array.holds_numbers or name in updated):
            shown = f"{value!r}"[:60]
            raise DeclarationError(
                f"{label} {shown}, not an array of numbers: name an array of NumPy, CuPy and so on, or its "
                "place in a tuple or dict, such as '2[1]'"
            )
        if array.read_only:
            raise DeclarationError(f"{label}, which is read-only: pass an array that can be written")
        return array

    def _look_at(
        self,
        name: str,
        output: SeenOutput,
        array: UsersArray,
        place: str,
        poison: int,
        before: Before | None,
        *,
        same_inputs: bool,
    ) -> None:
        """Records what a declared output holds after a call; raises IncorrectError if it was not written."""
        bits = array.bits()
        known = output.results.get(bits) if bits is not None else None
        found = array.fetch() if known is None else known
        looked = found
        if before is not None and before.region is not None:
            looked = before.in_region(found)
            _raise(diagnose_changed(name, before.changed(found)), f", {place}")
        last, output.last = output.last, (looked, poison)
        if (
            output.poisoned
            and last is not None
            and last[0] is not found
            and last[0].shape == found.shape
            and last[0].dtype == found.dtype
        ):
            diagnosis = diagnose_unwritten(name, found.shape, *still_poisoned(looked, poison, *last))
            _raise(diagnosis, f", {place}; {UNWRITTEN_ON_PURPOSE}")
        if not same_inputs:
            return
        output.results[len(output.bits) if bits is None else bits] = found
        output.bits.append(bits)

    def _look_at_returned(self, call: Call, returned: Any, *, same_inputs: bool) -> None:
        """Raises IncorrectError if a returned array computes late, or has no memory of its own."""
        earlier = {name: output for name, output in self.seen.outputs.items() if not output.declared}
        self._returns_new = False
        for name, value in leaves("returned", returned):
            untrusted = why_untrusted(value)
            if untrusted is not None:
                told = f"{name}: {Fault.WRONG_TYPE}: the call returned {untrusted}"
                raise IncorrectError(Diagnosis(Fault.WRONG_TYPE, told))
            array = users_array(value)
            if array is None or any(value is each for each in call.given):
                continue
            if any(array.overlaps(output) for output in call.outputs.values()):
                continue
            shared = [other for other, theirs in call.inputs.items() if array.overlaps(theirs)]
            part = [other for other in shared if self._declares or array.span != call.inputs[other].span]
            _raise(diagnose_shared(name, part, "declare what the call writes with outputs="))
            if shared:
                self._note_view(name, array, shared[0], call)
                continue
            if _captured(call.function, value, array):
                continue
            before = earlier.get(name)
            if before is None:
                self.seen.outputs[name] = before = SeenOutput(value, array, declared=False)
                self._returns_new = True
            elif value is not before.value:
                again = [held for held, output in earlier.items() if array.overlaps(output.array)]
                held_still = [f"{held} of an earlier call, which is still held" for held in again]
                remedy = "a call must return new memory, or always the same array"
                _raise(diagnose_shared(name, held_still, remedy))
                self._returns_new = True
            if same_inputs:
                self._note(before, value, array)

    def _note_view(self, name: str, array: UsersArray, argument: str, call: Call) -> None:
        """Notes a returned view of a whole argument: the call wrote it, or computed nothing."""
        if self._first_inputs is None and not array.lies_as(call.inputs[argument]):
            told = f"{name} is a view of all of {argument}, not a new result"
            self.notes += (f"{told}: declare what the call writes with outputs=, so that we check it",)

    @staticmethod
    def _note(output: SeenOutput, value: Any, array: UsersArray) -> None:
        """Records what a returned array holds."""
        bits = array.bits()
        if output.bits and bits not in output.bits and value is not output.value:
            output.results[bits] = array.fetch()
        output.bits.append(bits)


class _Checked:
    """Wraps executions of a call whose arrays we prepare first."""

    def __init__(self, executions: Executions, checks: CheckedCalls) -> None:
        self._executions = executions
        self._checks = checks
        self.largest_batch = executions.largest_batch
        self.buffer_sets = executions.buffer_sets


class _Poisoned(_Checked):
    """Poisons the outputs before each batch, while the device is idle."""

    def take(self, count: int, *, cold: bool) -> list[Iteration]:
        """Returns the next `count` executions."""
        self._checks.poison()
        return self._executions.take(count, cold=cold)


class _Restored(_Checked):
    """Puts back what the call updates before each execution."""

    def take(self, count: int, *, cold: bool) -> list[Iteration]:
        """Returns the next `count` executions."""
        putting_back = self._checks.putting_back()

        def before() -> None:
            for put_back in putting_back:
                put_back()

        return [_behind(before, each) for each in self._executions.take(count, cold=cold)]


def _behind(before: Callable[[], None], iteration: Iteration) -> Iteration:
    """Returns an execution that is preceded by `before` each time."""
    return Iteration(iteration.run, before, functools.partial(_behind, before, iteration))


def _fill(array: UsersArray, before: Before | None, poison: int) -> None:
    """Fills an output with what it must hold before a call."""
    if before is None:
        array.poison(poison)
    else:
        array.put(before.contents(poison))


def _refuse_shared(
    outputs: Mapping[str, UsersArray], inputs: Mapping[str, UsersArray], updated: Collection[str]
) -> None:
    """Raises IncorrectError if an output shares memory with an input or another output."""
    others = {**inputs, **{name: outputs[name] for name in updated}}
    for name, array in outputs.items():
        if name in updated:
            continue
        shared = (other for other, theirs in others.items() if array.overlaps(theirs))
        _raise(diagnose_shared(name, shared, _IN_PLACE))
        others[name] = array


def _raise(diagnosis: Diagnosis | None, more: str = "") -> None:
    if diagnosis is not None:
        raise IncorrectError(Diagnosis(diagnosis.fault, diagnosis.message + more))


def _digests(arrays: Mapping[str, UsersArray]) -> dict[str, str | None]:
    return {name: array.bits() for name, array in arrays.items()}


def _captured(function: Any, value: Any, array: UsersArray) -> bool:
    """Says whether a returned array is a view of one that the callable can reach and write each time."""
    if any(value is each for each in captured_by(function)):
        return False  # the same in every call, so we can compare its contents
    others = (users_array(each) for each in captured_by(function))
    return any(other is not None and array.overlaps(other) for other in others)


def _comparable(value: Any) -> Any:
    """Returns a value by which scalars of two calls can be compared; of other objects, their identity."""
    return repr(value) if isinstance(value, (numbers.Number, str, bytes)) else id(value)


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
            found = compare(output.array.values(result), reference, tolerance, poison=None)
            diagnosis = diagnose_values(name, found, tolerance, poisoned=output.poisoned)
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
                found = diagnose_values(name, compare(other, first, tolerance, poison=None), tolerance)
                if found is not None:
                    held = " when the output holds another pattern before" if output.poisoned else ""
                    return Diagnosis(
                        found.fault,
                        f"{found.message}\n  calls on the same inputs differ{held}; verify the output with "
                        "its own tolerance, or declare inout= if the call updates it, or "
                        'determinism="tolerant"',
                    )
        return None
