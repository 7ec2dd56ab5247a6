"""Makes and checks each untimed call of a plain test: what it wrote, returned and touched.

Declared outputs are filled with a poison before the first call, and with other contents before each later
one: large numbers, the old answer with noise, zeros. A returned array must be of a type that does not
compute when it is read. We copy what it holds, since the next call may overwrite it.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import itertools
import math
import numbers
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from pytest_gpukern.arrays.compare import POISONS, disturbed, float_bits, poison_bytes, still_poisoned
from pytest_gpukern.arrays.memory import Damage
from pytest_gpukern.backends.backend import Backend, Workspace
from pytest_gpukern.backends.foreign_array import (
    UsersArray,
    backend_of,
    how_to_verify,
    input_array,
    is_number,
    leaves,
    may_be_array,
    type_name,
    users_array,
    why_lazy,
    why_no_address,
    why_untrusted,
)
from pytest_gpukern.check.call_arguments import (
    DeclarationError,
    arguments_of,
    captured_by,
    declared_arguments,
    held_by,
    returned_by,
)
from pytest_gpukern.check.diagnosis import IncorrectError, Launch, Made, Written, diagnose_aliasing
from pytest_gpukern.check.engine import REPEATED_NS, check_left, checked_launch, repeat_while_steady
from pytest_gpukern.check.verify import SeenOutput, SeenOutputs
from pytest_gpukern.gpu import memory_accounts
from pytest_gpukern.gpu import runtime as cuda
from pytest_gpukern.gpu.libcuda import CudaError
from pytest_gpukern.measure.rounds import Rounds
from pytest_gpukern.problems.problem import Output, size_of
from pytest_gpukern.timers.timer import Executions, Iteration, NothingLaunched
from pytest_gpukern.values.marker import MarkerOptions
from pytest_gpukern.values.note import Note
from pytest_gpukern.values.result import Contents

_QUICK_NS = 1e8
"""A call that takes longer is not made a third time."""
_VERY_SLOW_NS = 1e9
"""A call that takes longer is not made a second time, unless outputs are declared."""
_CALLS = 3
_CALLS_FOR_OUTPUTS = 5
"""Quick calls before timing; with declared outputs there are two more. So these meet zeros, and a large
number of either sign. With one sign alone a maximum passed that never initialises its few elements."""
_IN_PLACE = "declare arrays that the call updates in place with inout="


class Turn(NamedTuple):
    """Holds a call to make, with its arguments."""

    call: Callable[[], Any]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]


@dataclass
class _Declared:
    """Holds an output that a marker declares.

    Attributes:
        value: the array as it was given.
        array: where it lies.
        updates: whether the call updates it in place.
        region: index or mask of the part that is written, and poisoned; None for all of it.
        original: what it held before the first call; None if all of it is poisoned.
    """

    value: Any
    array: UsersArray
    updates: bool
    region: Any = None
    original: np.ndarray[Any, Any] | None = None

    def fill(self, contents: int | np.ndarray[Any, Any]) -> None:
        """Puts into it what it holds before a call: a word again and again, or an array like it."""
        if self.original is None and isinstance(contents, int):
            self.array.poison(contents)
            return
        if isinstance(contents, int):
            words = poison_bytes(contents, self.array.nbytes)
            contents = words.view(self.array.dtype).reshape(self.array.shape)
        if self.original is not None:
            part, contents = contents, self.original.copy()
            if self.region is not None:
                contents[self.region] = part[self.region]
        self.array.put(contents)

    def split(self, left: np.ndarray[Any, Any]) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any] | None]:
        """Returns what a call left, with zeros outside the region, and which elements it changed there."""
        if self.region is None or self.original is None:
            return left, None
        raw, looked = f"V{left.dtype.itemsize}", np.zeros_like(left)
        looked[self.region] = left[self.region]
        differ: np.ndarray[Any, Any] = left.view(raw) != self.original.view(raw)
        differ[self.region] = False
        return looked, differ


class CheckedCalls(Launch):
    """Makes and checks the untimed calls of one test.

    Args:
        function: what is called; its signature may name arguments.
        where: the test, as messages name it.
        fixed: whether every call has the same arguments.
        repeats: whether to repeat a call with nothing declared if it returns new arrays.
        looks: whether to look at arguments and results. Else a lazy result means that nothing was launched.
        poisons: words that outputs are filled with in turn. The third call finds the old answer with noise
            instead, and the fourth zeros.

    Attributes:
        seen: what the calls left in each output.
        last: what the last of them returned.
    """

    by = "the call"
    returns_apart = False
    sharing_remedy = "declare what the call writes with outputs="
    modified_remedy = f"; declare arrays that it writes with outputs=, or {_IN_PLACE}"

    def __init__(
        self,
        function: Callable[..., Any],
        marker: MarkerOptions,
        where: str,
        synchronize: Callable[[], None],
        guarded: GuardedArrays,
        *,
        fixed: bool = True,
        repeats: bool = True,
        looks: bool = True,
        poisons: tuple[int, ...] = POISONS,
    ) -> None:
        super().__init__(synchronize, guarded.damage, marker.determinism)
        self._function, self._marker, self._where, self._guarded = function, marker, where, guarded
        self._fixed, self._repeats, self._looks = fixed, repeats, looks
        self._declares = bool(marker.outputs or marker.inout) and looks
        # NaN, then a large number: a kernel may work only where it finds NaN (AgentKernelArena #112).
        words = tuple(filter(None, (*poisons[1:], poisons[0])))
        self._words = itertools.chain(words[:2], (None, 0), itertools.cycle((*words[2:], *words[:2])))
        self._word: int | None = None
        self._poison, self._not_poisoned = poisons[0], list[Note]()
        self._outputs: dict[str, _Declared] = {}
        self._left: list[Written] = []
        self._returned: dict[str, UsersArray] = {}
        self._digests: dict[str, str | None] = {}
        self.inputs: Mapping[str, UsersArray] = {}
        self._captured: dict[str, UsersArray] = {}
        self._first_inputs: tuple[Any, ...] | None = None
        self._returns_new = False
        self.seen = SeenOutputs(marker.determinism, fixed=fixed)
        self.last: Any = None

    def make(self, turn: Turn, place: str, *, repeats: bool = False) -> Made:
        """Makes a call and checks it; `place` says in words which, `repeats` if it is one of many alike.

        Raises:
            DeclarationError: the call has no such argument, a declared output is not an array that can be
                written, or a region does not fit its output.
            IncorrectError: a check failed; it holds the first fault.
            NothingLaunched: it returned something lazy, and is not looked at.
        """
        self._turn, self.place = turn, place
        if self._looks:
            self._bind(repeats=repeats)
        if not repeats:
            self._poison_free()
        made = checked_launch(self)
        self.last = made.returned
        return made

    def _bind(self, *, repeats: bool) -> None:
        """Finds the declared outputs, and every other array among the arguments and, once, behind them."""
        self.synchronize()
        marker, (_, args, kwargs) = self._marker, self._turn
        named = functools.partial(
            declared_arguments, function=self._function, args=args, kwargs=kwargs, where=self._where
        )
        outputs: dict[str, _Declared] = {}
        for option, updates in (("outputs", False), ("inout", True)):
            for name, value in named(option, getattr(marker, option)):
                if name in outputs:
                    raise DeclarationError(
                        f"{self._where}: gpu_benchmark: {name} is in outputs= and in inout="
                    )
                outputs[name] = _Declared(value, self._writable(name, value, updates=updates), updates)
        for key, region in marker.written.items():
            for name, _ in named("written", [key]):
                self._declare_region(name, region, outputs.get(name))
        given = arguments_of(self._function, args, kwargs)
        rest = [leaf for name, value in given for leaf in leaves(name, value)]
        arrays = {name: (value, input_array(value)) for name, value in rest if name not in outputs}
        in_place = {f"the output {name}": output.array for name, output in outputs.items() if output.updates}
        self.inputs = {
            name: array
            for name, (_, array) in arrays.items()
            if array is not None and not any(array.overlaps(other) for other in in_place.values())
        }
        passed = [*(output.array for output in outputs.values()), *self.inputs.values()]
        if self._declares and not repeats:
            self._captured = self._captured_inputs(dict(given), passed)
        self._given = [output.value for output in outputs.values()]
        self._given += [value for value, array in arrays.values() if array]
        self._scalars = tuple(_comparable(value) for value, array in arrays.values() if array is None)
        self.seen.given_empty |= not all(array.nbytes for array in passed)
        read = (*in_place.values(), *self.inputs.values())
        self.seen.given_floats |= set(filter(float_bits, (array.read_dtype for array in read)))
        poisoned = {name: output.array for name, output in outputs.items() if not output.updates}
        shared = diagnose_aliasing(poisoned, self.inputs, in_place, _IN_PLACE)
        if shared is not None:
            raise IncorrectError(shared)
        for name, output in outputs.items():
            if self._fixed and name in self._outputs:
                output.original = self._outputs[name].original
            elif output.updates or output.region is not None:
                output.original = output.array.fetch()
        self._outputs = outputs
        # If nothing is declared, a call may write its inputs, and their hashes only tell calls apart.
        self._digests = self.digests() if self._declares or self._returns_new else {}

    def _captured_inputs(self, held: Mapping[str, Any], passed: list[UsersArray]) -> dict[str, UsersArray]:
        """Returns the arrays, other than arguments, that the call reaches by itself or what it is given."""
        captured: dict[str, UsersArray] = {}
        own = "" if inspect.isfunction(self._function) else "self"
        reached = (captured_by(value, name) for name, value in {own: self._function, **held}.items())
        for name, value in itertools.chain.from_iterable(reached):
            array = input_array(value) if may_be_array(value) else None
            known = (*passed, *captured.values())
            if array is not None and array.nbytes and not any(map(array.overlaps, known)):
                named = name.startswith("self.")
                captured[name if named else f"{name}, which is no argument: pass it as one"] = array
        return captured

    def _poison_free(self) -> None:
        """Poisons free memory of an earlier result's size, or an argument's: one may come to lie there."""
        arrays = (*self.inputs.values(), *self._returned.values())
        sizes = {array.nbytes for array in arrays if array.on_device and array.nbytes}
        if sizes:
            word = self._word or self._poison  # of the call before
            self._not_poisoned = [Note(why) for why in memory_accounts.poison_free(sizes, word)]

    # what the engine asks for

    def fill(self, *, poisoned: bool = True) -> None:  # noqa: ARG002
        """Fills the declared outputs with the next contents, or with what they held before the first call."""
        self._word = next(self._words)
        for name, output in self._outputs.items():
            seen = self.seen.outputs.get(name)
            old = None if seen is None or seen.last is None or self._word is not None else seen.last[0]
            fits = old is not None and (old.shape, old.dtype) == (output.array.shape, output.array.dtype)
            fits = fits and output.array.holds_numbers  # a record has no bit that stands for an eighth
            output.fill(disturbed(old) if old is not None and fits else self._word or 0)

    def run(self) -> Any:
        __tracebackhide__ = True  # it calls what users wrote, perhaps with too few arguments
        returned = self._turn.call()
        self.synchronize()
        return returned

    def why_lazy(self, value: Any) -> str | None:
        """Says why a returned value may compute when it is read, or None.

        Raises:
            NothingLaunched: it is lazy, and we are not to look.
        """
        undone = (why_untrusted if self._looks else why_lazy)(value)
        if undone is not None and not self._looks:
            raise NothingLaunched(f"the call returned {undone}")
        return undone

    def take(self, returned: Any) -> None:
        if not self._looks:
            return
        inputs, first = (self._digests, self._scalars), self._first_inputs is None
        same_inputs = first or inputs == self._first_inputs
        self._look_at_outputs(same_inputs=same_inputs)
        self._look_at_returned(returned, same_inputs=same_inputs)
        if first:
            after = self.digests() if self._returns_new else {}
            self._first_inputs = inputs if self._declares else (after, self._scalars)

    def take_timed(self) -> None:
        self.place = "in a timed call"
        self.results = {}
        if self._declares and self._fixed:
            self._look_at_outputs(same_inputs=True)

    def written(self) -> list[Written]:
        return self._left

    @property
    def must_write(self) -> dict[str, int]:
        """Returns how many elements of each declared output a call has to write; 0 where it updates them."""
        outputs = {name: (output, output.array.shape) for name, output in self._outputs.items()}
        return {name: 0 if of.updates else size_of(shape, of.region) for name, (of, shape) in outputs.items()}

    @property
    def guarded(self) -> int:
        """Returns how many arrays lie between guard zones, as the test asked."""
        return len(self._guarded.held)

    @property
    def forms(self) -> dict[str, Contents]:
        """Returns dtype and size of each input."""
        arrays = self.inputs.items()
        return {name: Contents(str(of.read_dtype), math.prod(of.shape), 0, 0) for name, of in arrays}

    def digests_before(self) -> Mapping[str, str | None]:
        """Returns the hash of each input, if outputs are declared: then all else must stay as it is."""
        return self._digests if self._outputs else {}

    def digests(self) -> dict[str, str | None]:
        return {name: array.bits() for name, array in {**self.inputs, **self._captured}.items()}

    def outputs(self) -> dict[str, UsersArray]:
        return {**{name: output.array for name, output in self._outputs.items()}, **self._returned}

    def bits(self) -> dict[str, str | None]:
        """Returns a hash of each array that the call was given or has returned."""
        return {name: array.bits() for name, array in {**self.inputs, **self.outputs()}.items()}

    def _declare_region(self, name: str, region: Any, output: _Declared | None) -> None:
        """Notes which part of an output is written; raises DeclarationError if it does not fit."""
        label = f"{self._where}: gpu_benchmark(written={{…: {region!r}}}): {name}"
        if output is None or output.updates:
            raise DeclarationError(f"{label} is not in outputs=")
        try:
            some = np.empty(output.array.shape, bool)[region].size
        except (IndexError, TypeError) as error:
            raise DeclarationError(f"{label}: {error}") from None
        if not some and output.array.nbytes:
            raise DeclarationError(f"{label}: selects no element of shape {output.array.shape}")
        output.region = region

    def _writable(self, name: str, value: Any, *, updates: bool) -> UsersArray:
        array, dtype, kind = users_array(value), getattr(value, "dtype", None), type(value).__name__
        label = f"{self._where}: gpu_benchmark({'inout' if updates else 'outputs'}=…): {name} is {kind} "
        label += " ".join(f"{value!r:.60}".split()) if dtype is None else f"of dtype {dtype!s:.200}"
        if array is None:
            remedy = "name an array of NumPy, CuPy and so on, or its place in a tuple or dict, such as '2[1]'"
            why = why_no_address(value) or f"not an array of numbers: {remedy}"
            raise DeclarationError(f"{label}, {why}")
        if array.read_only:
            remedy = "pass an array that can be written, or leave it out and verify what the call returns"
            raise DeclarationError(f"{label}, which is read-only: {remedy}")
        if not (array.holds_numbers or updates):
            remedy = f"declare it with inout=, and {how_to_verify(dtype, name)}"
            raise DeclarationError(f"{label}, which cannot hold our poison: {remedy}")
        return array

    def _look_at_outputs(self, *, same_inputs: bool) -> None:
        self._left = []
        for name, declared in self._outputs.items():
            array, poisoned = declared.array, not declared.updates
            output = self._seen(name, declared.value, array, declared=True, poisoned=poisoned)
            bits = array.bits()
            left = output.results.get(bits)
            if left is None:
                left = array.fetch()
            looked, changed = declared.split(left)
            last, output.last = output.last, (looked, self._word)
            output.left = bits if declared.value is output.value else None
            unwritten = (0, -1)
            alike = last is not None and (last[0].shape, last[0].dtype) == (left.shape, left.dtype)
            if poisoned and last is not None and alike and last[0] is not left and self._word:
                unwritten = still_poisoned(looked, self._word, last[0], last[1] or self._word)
            self._left.append(Written(name, left.shape, *unwritten, changed))
            if same_inputs:
                output.results[len(output.bits) if bits is None else bits] = left
                output.bits.append(bits)

    def _seen(
        self, name: str, value: Any, array: UsersArray, *, declared: bool, poisoned: bool = False
    ) -> SeenOutput:
        made = SeenOutput(value, array, declared, poisoned, self.seen_bits.setdefault(name, []))
        return self.seen.outputs.setdefault(name, made)

    def _look_at_returned(self, returned: Any, *, same_inputs: bool) -> None:
        """Finds the new arrays and the numbers among what a call returned, and copies what they hold.

        Until now we held what the call before returned. So only a call that keeps its memory, as the replay
        of a graph does, returns that again.
        """
        earlier = {name: output for name, output in self.seen.outputs.items() if not output.declared}
        results: dict[str, UsersArray] = {}
        self.results, self._returned, renewed = results, {}, False
        for name, value in returned_by(returned):
            alone = is_number(value)
            array = users_array(np.asarray(value) if alone else value)
            if array is None:
                continue
            self._returned[name] = array
            given = any(value is argument for argument in self._given)
            if given or any(array.overlaps(output.array) for output in self._outputs.values()):
                continue
            shared = [other for other, theirs in self.inputs.items() if array.overlaps(theirs)]
            if shared and (self._declares or any(array.span != self.inputs[other].span for other in shared)):
                results[name] = array
            elif shared and array != self.inputs[shared[0]]:  # the call wrote it, or computed nothing
                remedy = "declare what the call writes with outputs=, so that we check it"
                view = f"{name} is a view of all of {shared[0]}, not a new result: {remedy}"
                self.notes[Note(view)] = None
            if shared or _captured(self._function, value, array):
                continue
            results[name] = array
            output = self._seen(name, value, array, declared=False)
            first = name not in earlier
            same = value is output.value and not (first or alone)
            if not (same or first):
                renewed = True
                if array.overlaps(output.array):
                    always = f"{name} lies in the same memory after each call, so the next one overwrites it"
                    self.notes[Note(always)] = None
            bits = array.bits() if same_inputs or first else None
            output.value, output.array = value, array
            output.left = None if same else bits  # a timed call writes the same array again
            if same_inputs:
                if not same and bits not in output.bits:
                    output.results[bits] = array.fetch()
                output.bits.append(bits)
        self._returns_new = renewed or any(name not in earlier for name in results)
        if self._returns_new:
            self.notes.update(dict.fromkeys(self._not_poisoned))

    # how often, and timed calls

    def wants_another(self, calls: int) -> bool:
        """Says whether to make another call before timing, after so many.

        Raises:
            DeclarationError: determinism is declared, but the call has no outputs and returns no array.
        """
        if self._looks and not self.seen.outputs and self.determinism is not None:
            raise DeclarationError(
                f"{self._where}: gpu_benchmark(determinism={str(self.determinism)!r}): the call returns no "
                "array; declare the ones that it writes, such as outputs=2 or outputs=('out',)"
            )
        declared, call_ns = self._declares or self.determinism is not None, self.shortest_call_ns
        most = _CALLS_FOR_OUTPUTS if self._declares else _CALLS
        if not (declared or (self._returns_new and self._repeats)) or calls >= most or not self._looks:
            return False
        if calls > 1:
            return call_ns <= _QUICK_NS
        return declared or call_ns <= _VERY_SLOW_NS

    def strided(self) -> Iterator[Note]:
        """Yields a note on each given array with gaps or in another order than C, which may cost time."""
        declared = {name: output.array for name, output in self._outputs.items()}
        for name, array in {**self.inputs, **declared}.items():
            if array.strides is not None:
                steps = ", ".join(f"{stride / array.dtype.itemsize:g}" for stride in array.strides)
                remedy = "give the call a contiguous copy, unless this layout is meant"
                yield Note(f"{name} is not contiguous, strides ({steps}): {remedy}")

    @property
    def wanted_after_timing(self) -> bool:
        return self._declares or self._returns_new

    def restored(self, executions: Executions) -> Executions:
        """Returns the executions; if all have the same arguments, we put back what each updates.

        Raises:
            DeclarationError: they are rounds, or an updated device array is not in C order.
        """
        if not (self._marker.inout and self._fixed and self._looks):
            return executions
        if isinstance(executions, Rounds):
            raise DeclarationError(
                f"{self._where}: gpu_benchmark(inout=…) restores arrays before each call, which rounds "
                "cannot: call gpu_benchmark(f, …), or pedantic(f, setup=…)"
            )
        updated = {name: output for name, output in self._outputs.items() if output.updates}
        for name, output in updated.items():
            if output.array.on_device and output.array.strides is not None:
                raise DeclarationError(f"{self._where}: gpu_benchmark(inout=…): {name} is not in C order")

        def putting_back() -> list[Callable[[], Any]]:
            return [
                output.array.queueing(output.original)
                for output in updated.values()
                if output.original is not None and output.original.nbytes
            ]

        return _Filled(executions, steps=putting_back)

    def timed(self, executions: Executions) -> Executions:
        """Returns the executions; if all have the same outputs, we fill them before each batch."""
        if not (self._declares and self._fixed):
            return executions
        return _Filled(executions, batch=self.fill, refill=self._queue_fill)

    def _queue_fill(self) -> None:
        """Queues on the default stream what fills the outputs that lie on the device."""
        for output in self._outputs.values():
            if output.original is None:
                output.array.queue_poison(self._word or self._poison)

    def repeat(self, next_turn: Callable[[], Turn], place: str) -> None:
        """Repeats quick calls while they leave the same bits: a wrong one may be rare."""
        repeat_while_steady(self, lambda: self.make(next_turn(), place, repeats=True), for_ns=REPEATED_NS)

    @property
    def inspect(self) -> Callable[[], None] | None:
        """Checks what timed calls left; None if each call has other outputs, and nothing is guarded."""
        looks = self._guarded.held or (self._declares and self._fixed)
        return functools.partial(check_left, self) if looks else None


class _Filled:
    """Fills arrays of a call while the device is idle before each batch, or in turn before each execution."""

    def __init__(
        self,
        executions: Executions,
        batch: Callable[[], None] = lambda: None,
        steps: Callable[[], Iterable[Callable[[], Any]]] = tuple,
        refill: Callable[[], Any] = lambda: None,
    ) -> None:
        self._executions, self._batch, self._steps, self._refill = executions, batch, steps, refill
        self.largest_batch, self.buffer_sets = executions.largest_batch, executions.buffer_sets

    def take(self, count: int, *, cold: bool, refilled: bool = False) -> list[Iteration]:
        """Returns executions; if `refilled`, with the outputs filled ahead of each, too."""

        def behind(before: Callable[[], Any] | None) -> Callable[[], Any]:
            return self._refill if before is None else lambda: (before(), self._refill())

        def put_back() -> None:
            for step in steps:
                step()

        self._batch()
        steps = self._steps()
        iterations = self._executions.take(count, cold=cold)
        if steps:
            iterations = [Iteration.restoring(each.run, put_back) for each in iterations]
        if not refilled:
            return iterations
        return [dataclasses.replace(each, before=behind(each.before), launches=None) for each in iterations]


def _captured(function: Any, value: Any, array: UsersArray) -> bool:
    """Says whether a returned array is a view of one that the callable can reach and write each time."""
    captured = [held.value for held in held_by("", function)]
    if any(value is other for other in captured):
        return False  # the same in every call, so we can compare its contents
    return any(other is not None and array.overlaps(other) for other in map(users_array, captured))


def _comparable(value: Any) -> Any:
    """Returns a value by which scalars of two calls can be compared; of other objects, their identity."""
    return repr(value) if isinstance(value, (numbers.Number, str, bytes)) else id(value)


@dataclass
class GuardedArrays:
    """Holds the guarded arrays of one test; `backend` opens a backend by its name."""

    backend: Callable[[str], Backend]
    held: list[tuple[Backend, Workspace]] = field(default_factory=list)

    def make(self, array: Any, name: str | None, *, copied: bool) -> Any:
        """Returns an array in guarded memory, of the same library, shape and dtype, in C order.

        It is `copied`, or poisoned for a call to write.

        Raises:
            TypeError: it is not an array that can be guarded; the message says which can.
        """
        library, memory = _known(array)
        backend, name = self.backend(library), name or f"guarded array {len(self.held) + 1}"
        if copied:
            workspace = backend.workspace({name: memory.fetch()}, {})
        else:
            workspace = backend.workspace({}, {name: Output(memory.shape, memory.dtype)})
        self.held.append((backend, workspace))
        if copied and backend.on_gpu:
            cuda.runtime().forget_dead_copies()  # the contents came through one
        return workspace.arrays[name]

    def damage(self) -> list[Damage]:
        """Returns what was written into guard zones; waits for the device."""
        damage = []
        for backend, workspace in self.held:
            backend.synchronize()
            damage += workspace.damage()
        return damage

    def close(self) -> None:
        """Frees the arrays; a lost CUDA context leaves nothing to free."""
        held, self.held = self.held, []
        for _, workspace in held:
            with suppress(CudaError):
                workspace.close()


def _known(array: Any) -> tuple[str, UsersArray]:
    """Returns the backend of an array's library and where the array lies; raises TypeError for others."""
    library, memory = backend_of(type(array)), users_array(array)
    if library == "torch" and memory is not None and not memory.on_device:  # which the interpreter takes
        library = "triton" if "triton.runtime.interpreter" in sys.modules else None
    fits = memory is not None and memory.holds_numbers and "bfloat16" not in memory.read_as and memory.shape
    if library is None or memory is None or not fits:
        raise TypeError(
            f"gpu_benchmark.guarded: {type_name(array)} of this dtype, shape or place cannot be guarded: "
            "give numbers in an array of NumPy, or on the device of Numba, CuPy, PyCUDA or PyTorch, of one "
            "dimension or more, and not of bfloat16"
        )
    return library, memory
