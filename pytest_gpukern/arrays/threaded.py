"""Fills and computes large arrays in several threads: NumPy works without the GIL."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, TypeVar

import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from pytest_gpukern.values.garbage import gc_paused

Item = TypeVar("Item")
Made = TypeVar("Made")
_CHUNK = 1 << 22
"""Elements that a thread handles at once."""


def map_in_threads(function: Callable[[Item], Made], items: Sequence[Item]) -> list[Made]:
    """Returns `function` of each item, in order, computed by as many threads as there are processors.

    A single item needs no thread. No thread collects garbage: arrays of PyCUDA can be freed only in the
    thread that has their context.
    """
    if len(items) < 2:
        return [function(item) for item in items]
    with gc_paused(), ThreadPoolExecutor(min(len(items), os.cpu_count() or 1)) as pool:
        return list(pool.map(function, items))


def random_array(
    rng: np.random.Generator,
    shape: int | Iterable[int],
    dtype: DTypeLike = "float64",
    *,
    distribution: str = "uniform",
) -> np.ndarray[Any, Any]:
    """Draws an array of random values in several threads; the values do not depend on their number.

    Args:
        rng: the seeded generator that `make_inputs` is given.
        shape: shape of the array.
        dtype: float32, float64, complex, or float16, "bfloat16" or float8, which are rounded from float32.
            The last two need ml_dtypes.
        distribution: "uniform" on [0, 1) or "normal" (mean 0, variance 1); of complex numbers, each part.

    Raises:
        ValueError: `distribution` or `dtype` is none of these.
    """
    with suppress(ImportError):
        import ml_dtypes  # noqa: F401 - from now on NumPy knows the names
    if distribution not in ("uniform", "normal"):
        raise ValueError(f"distribution={distribution!r}: must be uniform or normal")
    dims = (int(shape),) if isinstance(shape, (int, np.integer)) else tuple(shape)
    try:
        array = np.empty(dims, dtype=dtype)
    except TypeError:
        remedy = "bfloat16 and float8 need ml_dtypes; pip install ml_dtypes"
        raise ValueError(f"NumPy has no dtype {dtype!r}: {remedy}") from None
    if not re.fullmatch(r"b?float(16|32|64|8_.+)|complex(64|128)", array.dtype.name):
        drawn = "float16, float32, float64, bfloat16, float8 or complex; for integers, rng.integers"
        raise ValueError(f"dtype={dtype!r}: must be {drawn}")
    flat = array.reshape(-1)
    flat = flat.view(flat.real.dtype) if flat.dtype.kind == "c" else flat
    children = rng.spawn(max(1, -(-flat.size // _CHUNK)))

    def fill(index: int) -> None:
        part = flat[index * _CHUNK : (index + 1) * _CHUNK]
        draw = children[index].random if distribution == "uniform" else children[index].standard_normal
        drawn = part.astype(np.float32) if part.itemsize <= 2 else part  # NumPy draws no float16
        draw(out=drawn, dtype=drawn.dtype)
        if drawn is not part:
            part[:] = drawn

    map_in_threads(fill, range(len(children)))
    return array


_DRAWS = (
    *("random", "uniform", "integers", "normal", "standard_normal", "lognormal", "exponential"),
    *("standard_exponential", "gamma", "standard_gamma", "beta", "chisquare", "poisson", "binomial"),
)
"""Methods of a generator that draw each element on its own."""
_CHANGED = 32
"""One element in so many is drawn anew, at least one: an answer remembered by a few others is then wrong."""


def few_changed(rng: np.random.Generator) -> np.random.Generator:
    """Returns a generator that draws what `rng` would, except for a few elements of each array.

    The first, the middle and the last element stay the same, and so do single numbers and shuffles.
    """

    class FewChanged(np.random.Generator):
        def __init__(self, bits: Any) -> None:
            super().__init__(bits)
            seeds = bits.seed_seq
            key = (*seeds.spawn_key, _CHANGED)
            self.others = np.random.default_rng(np.random.SeedSequence(seeds.entropy, spawn_key=key))

    def changing(name: str) -> Callable[..., Any]:
        draw = getattr(np.random.Generator, name)

        def drawn(self: FewChanged, *args: Any, **kwargs: Any) -> Any:
            array = draw(self, *args, **kwargs)
            size = np.size(array)
            if size < 4:  # the elements that stay are all there are
                return array
            if kwargs.get("out") is not None:
                kwargs = {**kwargs, "out": np.empty_like(array)}
            others = draw(self.others, *args, **kwargs)
            places = self.others.integers(1, size - 1, max(1, size // _CHANGED))
            places[places == size // 2] = 1
            array.flat[places] = others.flat[places]
            return array

        return drawn

    for name in _DRAWS:
        setattr(FewChanged, name, changing(name))
    return FewChanged(rng.bit_generator)


def elementwise(ufunc: np.ufunc, *operands: ArrayLike, dtype: DTypeLike = "float64") -> np.ndarray[Any, Any]:
    """Computes a ufunc in `dtype` with several threads, for the reference of large arrays.

    The operands are converted piece by piece, so no copy of them in the higher precision is made.

    Args:
        ufunc: a ufunc with one output, such as `numpy.exp`.
        operands: arrays and scalars that broadcast to one shape.
        dtype: dtype of the computation and of the result.

    Raises:
        ValueError: the operands do not broadcast.
    """
    arrays = [np.asarray(operand) for operand in operands]
    out = np.empty(np.broadcast_shapes(*(array.shape for array in arrays)), dtype)
    if not out.size:
        return out
    if all(array.flags.c_contiguous and array.shape in (out.shape, ()) for array in arrays):
        arrays = [array.reshape(-1) if array.shape else array for array in arrays]
    target = out.reshape(-1) if all(array.ndim < 2 for array in arrays) else out
    arrays = [np.broadcast_to(array, target.shape) if array.shape else array for array in arrays]
    rows = max(1, _CHUNK * len(target) // out.size)

    def fill(start: int) -> None:
        part = slice(start, start + rows)
        ufunc(*(array[part] if array.shape else array for array in arrays), out=target[part], dtype=dtype)

    map_in_threads(fill, range(0, len(target), rows))
    return out
