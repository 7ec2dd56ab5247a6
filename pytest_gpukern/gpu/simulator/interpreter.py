"""Makes Triton's interpreter find faults where it would crash, and refuse what it computes wrongly."""

from __future__ import annotations

import itertools
import re
from typing import Any

import numpy as np

from pytest_gpukern.arrays.memory import Damage
from pytest_gpukern.gpu.simulator.errors import SimulatorUnsupported, WroteOutside
from pytest_gpukern.gpu.simulator.launch import SimulatedLaunches, unwritten

_ADDRESS = (1 << 48) - 1
"""Bits of an address in user space. Above them our pointers carry the number of the memory they belong to."""


def mend_interpreter() -> None:
    """Counts what Triton's interpreter launches, and tells what it cannot do from what is wrong.

    In about half of a kernel's launches the last program runs first.
    No pointer reaches beside the allocation of its tensor, even where another lies: a write there is a fault
    and no crash, and a read finds a poison. A pointer made from an address in an array is not checked.
    """
    from triton.runtime import interpreter

    launch, convert = interpreter.GridExecutor.__call__, interpreter._implicit_cvt
    memory, spans = interpreter._interpreter, dict[tuple[int, int], str]()  # of the launch: where → whose
    load, store, update, exchange = memory.load, memory.store, memory.atomic_rmw, memory.atomic_cas

    def call(self: Any, *args: Any, **kwargs: Any) -> None:
        given = (*zip(self.arg_names, args, strict=False), *kwargs.items())
        try:
            # A GPU does not warn of 0/0 either.
            with SimulatedLaunches.turn, np.errstate(all="ignore"):
                SimulatedLaunches.count(self.fn)
                spans.clear()
                spans.update({(0, _ADDRESS + 1): "memory", (0, 0): "an empty tensor"})
                spans.update((span_of(value), name) for name, value in given if hasattr(value, "data_ptr"))
                launch(self, *args, **kwargs)
        except interpreter.InterpreterError as error:
            cause: BaseException | None = error
            while isinstance(cause, interpreter.InterpreterError):  # one for each function on the way
                cause = cause.__cause__
            if isinstance(cause, WroteOutside):
                raise cause from None
            if isinstance(cause, NotImplementedError):
                raise SimulatorUnsupported(str(cause).partition(" not supported")[0]) from error
            raise

    def span_of(tensor: Any) -> tuple[int, int]:
        storage = getattr(tensor, "base", tensor).untyped_storage()  # `base` if it is read as another dtype
        return storage.data_ptr(), storage.data_ptr() + storage.nbytes()

    def with_number(argument: Any) -> Any:
        made = convert(argument)
        if hasattr(argument, "data_ptr"):
            spans.setdefault(span_of(argument), "a tensor")
            made.handle.data = made.handle.data | np.uint64(list(spans).index(span_of(argument)) << 48)
        return made

    def reached(pointers: Any, mask: Any, size: int, *, writes: bool = True) -> tuple[Any, Any]:
        """Returns addresses, and which of the mask are inside; raises WroteOutside."""
        addresses = np.asarray(pointers & np.uint64(_ADDRESS))
        numbers = (pointers >> np.uint64(48)).astype(int)
        numbers = np.where(numbers < len(spans), numbers, 0)
        bounds = np.array(list(spans), np.uint64)[numbers]
        offsets = (addresses - bounds[..., 0]).view(np.int64)
        inside = (offsets >= 0) & (addresses + np.uint64(size) <= bounds[..., 1])
        stray = mask & ~inside
        if writes and stray.any():  # such a write corrupts the heap and ends the run, or passes unseen
            stray &= numbers == numbers[stray][0]
            (start, stop), name = list(spans.items())[numbers[stray][0]]
            elements, count = np.unique(offsets[stray] // size).tolist(), (stop - start) // size
            nearest = min(elements, key=lambda index: max(index - count, -index))
            raise WroteOutside(Damage(name, nearest >= 0, len(elements) * size, nearest, count))
        return addresses, mask & inside

    def checked_load(pointers: Any, mask: Any, other: Any, dtype: Any) -> Any:
        addresses, inside = reached(pointers, mask, dtype.itemsize, writes=False)
        return load(addresses, inside, np.where(mask & ~inside, unwritten(1, dtype), other), dtype)

    def checked_store(pointers: Any, values: Any, mask: Any) -> None:
        store(reached(pointers, mask, values.itemsize)[0], values, mask)

    def checked_update(operation: Any, pointers: Any, values: Any, mask: Any, order: Any) -> Any:
        return update(operation, reached(pointers, mask, values.itemsize)[0], values, mask, order)

    def checked_exchange(pointers: Any, expected: Any, values: Any, order: Any) -> Any:
        return exchange(reached(pointers, np.True_, values.itemsize)[0], expected, values, order)

    interpreter.GridExecutor.__call__, interpreter._implicit_cvt = call, with_number
    memory.load, memory.store = checked_load, checked_store
    memory.atomic_rmw, memory.atomic_cas = checked_update, checked_exchange
    builder = interpreter.InterpreterBuilder
    to_int, set_place = builder.create_ptr_to_int, builder.set_grid_idx

    def set_grid_idx(self: Any, *place: int) -> None:
        if SimulatedLaunches.backwards:
            place = tuple(size - 1 - index for size, index in zip(self.grid_dim, place, strict=True))
        set_place(self, *place)

    def create_ptr_to_int(self: Any, value: Any, kind: Any) -> Any:
        made = to_int(self, value, kind)
        made.data = made.data & made.data.dtype.type(_ADDRESS)  # a kernel may store it for another
        return made

    builder.create_ptr_to_int, builder.set_grid_idx = create_ptr_to_int, set_grid_idx
    computing = r"create_(f(?!p_)\w+|\w+divf|m\w+mf|clampf|dot|ceil|fp_to_[su]i|[su]i_to_fp|atomic_\w+)"
    for owner, name in [(builder, name) for name in dir(builder) if re.fullmatch(computing, name)] + [
        (operations, "apply_impl") for operations in (interpreter.ReduceOps, interpreter.ScanOps)
    ]:
        setattr(owner, name, _refusing_bfloat16(getattr(owner, name)))


def _refusing_bfloat16(compute: Any) -> Any:
    """Refuses bfloat16: Triton's interpreter adds and multiplies its bits, which fails a right `tl.dot`."""

    def computed(self: Any, *operands: Any, **options: Any) -> Any:
        for each in itertools.chain.from_iterable(
            one if isinstance(one, tuple) else (one,) for one in operands
        ):
            handle = getattr(each, "handle", each)
            held = getattr(getattr(handle, "data", None), "dtype", "uint16")  # else it is the type of a cast
            if "bf16" in str(getattr(handle, "dtype", handle)) and held == "uint16":
                raise NotImplementedError(
                    "arithmetic of bfloat16 (convert it to float32 first) not supported"
                )
        return compute(self, *operands, **options)

    return computed
