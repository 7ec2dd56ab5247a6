"""Large random inputs, the same on every machine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pytest_gpukern.threads import map_in_threads

if TYPE_CHECKING:
    from collections.abc import Iterable

    import numpy as np
    from numpy.typing import DTypeLike


def random_array(
    rng: np.random.Generator,
    shape: int | Iterable[int],
    dtype: DTypeLike = "float64",
    *,
    distribution: str = "uniform",
) -> np.ndarray[Any, Any]:
    """Random values of `dtype`, filled by several threads; the values do not depend on their number.

    Args:
        rng: the problem's seeded generator.
        shape: of the array.
        dtype: float32 or float64.
        distribution: "uniform" on [0, 1) or "normal" (mean 0, variance 1).

    Raises:
        ValueError: the distribution is neither.
    """
    import numpy as np

    if distribution not in ("uniform", "normal"):
        raise ValueError(f"distribution={distribution!r}: one of uniform, normal")
    dims = (shape,) if isinstance(shape, int) else tuple(shape)
    array = np.empty(dims, dtype=dtype)
    flat = array.reshape(-1)
    chunk = 1 << 22
    children = rng.spawn(max(1, -(-flat.size // chunk)))

    def fill(index: int) -> None:
        part = flat[index * chunk : (index + 1) * chunk]
        draw = children[index].random if distribution == "uniform" else children[index].standard_normal
        draw(out=part, dtype=part.dtype)

    map_in_threads(fill, range(len(children)))
    return array
