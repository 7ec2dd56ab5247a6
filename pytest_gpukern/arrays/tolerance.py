"""How far an output may be from its reference."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from numpy.typing import DTypeLike


@dataclass(frozen=True)
class Tolerance:
    """An element passes where |actual − expected| ≤ atol + rtol · |expected|; expected is the reference.

    Raises:
        ValueError: a bound is negative or not finite.
    """

    rtol: float = 0.0
    atol: float = 0.0

    def __post_init__(self) -> None:
        for name, value in (("rtol", self.rtol), ("atol", self.atol)):
            if not 0 <= value < float("inf"):
                raise ValueError(f"{name}={value!r}: a tolerance is a finite number ≥ 0, such as 1e-6")

    def flushing(self, dtype: DTypeLike) -> Tolerance:
        """The same where subnormal results of `dtype` may come out as zero, as with nvcc's `-ftz=true`.

        The absolute bound becomes the smallest normal number at least, which matters for no other result.
        """
        import numpy as np

        return Tolerance(self.rtol, max(self.atol, float(np.finfo(np.dtype(dtype)).tiny)))

    @classmethod
    def for_dtype(cls, dtype: DTypeLike) -> Tolerance:
        """The default for an element-wise result of `dtype`, as rtol/atol.

        float16 1e-3/1e-5 and float32 1.3e-6/1e-5, the bounds of `torch.testing.assert_close`; float64
        1e-9/1e-9, since theirs, 1e-7, would pass a result of float32. What is no float must be equal.
        """
        import numpy as np

        known = {"float16": (1e-3, 1e-5), "float32": (1.3e-6, 1e-5), "float64": (1e-9, 1e-9)}
        name = np.dtype(dtype).name
        name = {"complex64": "float32", "complex128": "float64"}.get(name, name)
        return cls(*known.get(name, (0.0, 0.0)))

    @classmethod
    def for_sum(cls, terms: int, dtype: DTypeLike, magnitude: float = 1.0) -> Tolerance:
        """For a sum of `terms` products of size `magnitude`: rounding grows as √terms · eps.

        The factor 8 leaves room for the order of summation. N. J. Higham, Accuracy and Stability of Numerical
        Algorithms (2002), section 2.8: the statistical error of a sum behaves as the square root of terms.
        """
        import numpy as np

        eps = float(np.finfo(np.dtype(dtype)).eps)
        return cls(rtol=8 * eps, atol=8 * eps * magnitude * float(terms) ** 0.5)
