"""Compares an output with its reference element by element, within a tolerance."""

from __future__ import annotations

import math
import numbers
import random
import re
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from pytest_gpukern.arrays.memory import INPUT_GUARD, OUTPUT_GUARD
from pytest_gpukern.arrays.threaded import map_in_threads
from pytest_gpukern.values.nearest import did_you_mean, refusing_unknown
from pytest_gpukern.values.result import Contents, OutputError

POISON = 0x7FF9_7FFB
POISONS = (POISON, 0xFFFA_FFC5)
"""Words of four bytes with which we fill an output before a checked launch, in turn. They are NaN as float16,
bfloat16, float32 and float64, and unlikely integers. They differ in every byte, so an unwritten element is
wrong under one of them. A run draws its own; these are for tests."""

_NARROW = re.compile(r"bfloat16|float[468]_\w+")


def is_narrow(dtype: object) -> bool:
    """Says whether NumPy lacks a dtype, such as `bfloat16` or `float8_e5m2`; we compare it as float32."""
    return _NARROW.fullmatch(str(dtype)) is not None


def float_bits(dtype: Any) -> int:
    """Returns the bits of a float, or of a part of a complex number; 0 for other dtypes."""
    if is_narrow(dtype):
        return int(re.findall(r"\d+", str(dtype))[0])
    return int(np.finfo(dtype).bits) if dtype.kind in "fc" else 0


def dtype_missing(dtype: object) -> str | None:
    """Says what NumPy needs to hold a dtype that it lacks, or None; loads it if it is installed."""
    if is_narrow(dtype):
        try:
            import ml_dtypes  # noqa: F401 - from now on NumPy knows the names
        except ImportError:
            return f"arrays of {dtype} need ml_dtypes, which is not installed; pip install ml_dtypes"
    return None


def _is_float(dtype: np.dtype[Any]) -> bool:
    """Says whether a dtype is of floats or of complex numbers, also if it is one that NumPy lacks."""
    return dtype.kind in "fc" or is_narrow(dtype)


def _finfo(dtype: DTypeLike) -> Any:
    if (missing := dtype_missing(dtype)) is not None:
        raise ValueError(missing)
    dtype = np.dtype(dtype)
    if is_narrow(dtype):
        import ml_dtypes

        return ml_dtypes.finfo(dtype)  # type: ignore[no-untyped-call]
    return np.finfo(dtype)


def unknown_dtype(dtype: object) -> str | None:
    """Says that there is no such dtype, and names the nearest; returns None where there is."""
    try:
        np.dtype("float32" if is_narrow(dtype) else dtype)  # type: ignore[call-overload]
        return None
    except TypeError:
        return f"NumPy has no dtype {dtype!r}{did_you_mean(dtype, filter(str.isidentifier, np.sctypeDict))}"


_CHUNK = 1 << 17
"""Elements of a piece; a multiple of four, so each piece begins with the first byte of the poison."""


def draw_poisons(seed: int | str) -> tuple[int, ...]:
    """Draws the words that outputs hold before checked launches, in turn; no kernel can know them beforehand.

    The first two are like `POISONS`. A kernel may work only where an output is NaN: so the others are a large
    number, which float16 can hold, zero, and a large number of the other sign.
    """
    draw = random.Random(f"poisons {seed}")
    while True:
        highs, lows = draw.sample(range(8), 2), draw.sample(range(64), 2)
        one = (0x7FF8 + highs[0]) << 16 | 0x7FC0 + lows[0]
        other = (0xFFF8 + highs[1]) << 16 | 0xFFC0 + lows[1]
        large = (0x7B00 + draw.randrange(256)) << 16 | 0x7B00 + draw.randrange(256)
        nans, numbers = [one, other], [large, large | 0x8000_8000]
        if not {*nans, *numbers} & {INPUT_GUARD, OUTPUT_GUARD}:
            draw.shuffle(nans)
            draw.shuffle(numbers)
            return *nans, numbers[0], 0, numbers[1]


def disturbed(answer: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Returns an old answer with noise: one bit of each element is flipped, of floats by an eighth or so."""
    bits = np.atleast_1d(answer)  # else a complex number alone has no view of its parts
    bits = bits.view(bits.real.dtype) if bits.dtype.kind == "c" else bits
    size = bits.dtype.itemsize
    if size > 8:  # of the host's long double
        return answer * 0.875
    mask = {1: 1 << 2, 2: 1 << 7, 4: 1 << 20, 8: 1 << 49}[size]
    flipped: np.ndarray[Any, Any] = (bits.view(f"u{size}") ^ mask).view(answer.dtype)
    return flipped.reshape(answer.shape)


@dataclass(frozen=True)
class Extreme:
    """Holds the largest error of one kind and its place; `value` is -1 if no element had one."""

    value: float = -1.0
    index: int = -1
    expected: Any = None
    actual: Any = None


@dataclass(frozen=True)
class Comparison:
    """Describes how an output compares with its reference, element by element.

    Attributes:
        shape: shape of the output.
        mismatches: elements outside the tolerance.
        unwritten: mismatches that still hold the poison bit by bit, even if the reference is NaN.
        unexpected_nan: mismatches that are NaN, written, and not NaN in the reference.
        first_unwritten: flat index of the first unwritten element, or -1.
        first_mismatch: the first mismatch; its `value` is 1, or -1 if there is none.
        absolute: largest |actual − expected| with its flat index.
        relative: largest |actual − expected| / |expected| over expected ≠ 0.
        ulp: largest |actual − expected| in units in the last place of the output's dtype at `expected`
            (J.-M. Muller, On the definition of ulp(x), 2005: the distance between the two floating-point
            numbers that enclose the expected value); -1 for integers. For complex numbers that is the dtype
            of their parts, at |expected|.
    """

    shape: tuple[int, ...]
    mismatches: int = 0
    unwritten: int = 0
    unexpected_nan: int = 0
    first_unwritten: int = -1
    first_mismatch: Extreme = Extreme()
    absolute: Extreme = Extreme()
    relative: Extreme = Extreme()
    ulp: Extreme = Extreme()

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    def error(self, tolerance: Tolerance) -> OutputError:
        """Returns it as a result holds it, with the tolerance that judged it."""
        return OutputError(
            size=self.size,
            mismatches=self.mismatches,
            max_abs=_recordable(self.absolute.value),
            max_rel=_recordable(self.relative.value),
            max_ulp=_recordable(self.ulp.value),
            rtol=tolerance.rtol,
            atol=tolerance.atol,
        )


def compare(
    actual: np.ndarray[Any, Any],
    expected: np.ndarray[Any, Any],
    tolerance: Tolerance,
    *,
    poison: int | None = POISON,
) -> Comparison:
    """Compares two host arrays of one shape, piecewise and in threads, so that memory stays bounded.

    An element passes if ``|actual − expected| ≤ atol + rtol · |expected|``. It also passes if both are NaN
    and `actual` is not the poison, or if a float `actual` equals `expected` rounded to its dtype, also where
    that is infinity. An infinite reference needs the same infinity. Differences of integers are exact, also
    beside floats, and bool is compared by byte. A complex number whose parts are not both finite in
    the output's dtype is compared part by part.

    The reference `expected` has the same or a higher precision; ULPs are of the output's dtype.
    `poison` is what the output was filled with before the launch; None if it was not.
    """
    shape = actual.shape
    if _is_float(actual.dtype) and "c" in (actual.dtype.kind, expected.dtype.kind):  # real: imaginary 0
        actual = actual.astype(np.result_type(actual.dtype, np.complex64), copy=False)
    flat_actual = np.ascontiguousarray(actual).reshape(-1)
    flat_expected = np.ascontiguousarray(expected).reshape(-1)

    def compared(start: int) -> Comparison | None:
        part = slice(start, start + _CHUNK)
        return _compare_piece(_Piece(flat_actual[part], flat_expected[part], start), tolerance, poison)

    pieces = map_in_threads(compared, range(0, flat_actual.size, _CHUNK))
    return _merge(shape, _is_float(actual.dtype), pieces)


@dataclass(frozen=True)
class _Piece:
    """Holds a part of an output and of its reference, both flat, from the index `start` on."""

    actual: np.ndarray[Any, Any]
    expected: np.ndarray[Any, Any]
    start: int

    def extreme(self, values: np.ndarray[Any, Any]) -> Extreme:
        """Returns the largest of these errors of the elements; the first one if several are equal.

        An error of 0 names no element: those that were never written have it, too.
        """
        at = int(values.argmax())
        if values[at] == 0:
            return Extreme(0.0)
        return Extreme(float(values[at]), self.start + at, self.expected[at].item(), self.actual[at].item())


def _compare_piece(piece: _Piece, tolerance: Tolerance, poison: int | None) -> Comparison | None:
    """Returns the comparison of a piece; None if all elements are equal."""
    actual, expected = piece.actual, piece.expected
    if actual.dtype.kind == "b":  # True may be any byte but 0, and the poison is one
        actual = actual.view(np.uint8)
        expected = expected.view(np.uint8) if expected.dtype.kind == "b" else expected
        piece = _Piece(actual, expected, piece.start)
    if actual.dtype == expected.dtype and (actual == expected).all():
        return None
    floats = actual.dtype.kind == expected.dtype.kind == "f"
    if floats and max(actual.itemsize, expected.itemsize) <= 8:
        within = _within(piece, tolerance)
        if within is not None:
            return within
    return _closely(piece, tolerance, poison)


def _closely(piece: _Piece, tolerance: Tolerance, poison: int | None) -> Comparison | None:
    """Returns the comparison of a piece that may hold wrong, unwritten or non-finite elements."""
    actual, expected = piece.actual, piece.expected
    is_float = _is_float(actual.dtype)
    with np.errstate(all="ignore"):
        rounded = expected.astype(actual.dtype, copy=False) if is_float else expected
        wide: Any = np.result_type((actual if is_float else expected).dtype, np.float64)
        (a, a_low), (e, e_low) = _halves(actual, wide), _halves(expected, wide)
        error, size = np.abs((a - e) + (a_low - e_low)), np.abs(e + e_low)
        equal = actual == rounded if is_float else error == 0
        if equal.all() and not is_float:
            return None
        actual_nan, expected_nan = np.isnan(a), np.isnan(e)
        both_nan = actual_nan & expected_nan
        alike = equal | both_nan  # whatever their distance is
        met = alike | (np.isfinite(size) & (error <= tolerance.atol + tolerance.rtol * size))
        if actual.dtype.kind == "c" and not (finite := np.isfinite(rounded)).all():
            parts_meet = _parts_meet(a[~finite], rounded[~finite], e[~finite], tolerance)
            met[~finite] = alike[~finite] = parts_meet
        bad = ~met
        unwritten = np.zeros_like(bad)
        if poison is not None:  # it is a NaN itself, but a computed NaN has other bits
            unwritten = (bad | both_nan) & _holds_poison(actual, poison)
            bad |= unwritten
        error[alike & ~np.isfinite(error)] = 0
        error[np.isnan(error)] = np.inf  # one infinite part more or less
        error[actual_nan | expected_nan | unwritten] = 0  # counted separately: no distance describes them
        relative = np.where((size > 0) & np.isfinite(size), error / size, 0)
        ulp = error / _ulp_size(size, _finfo(actual.dtype).dtype) if is_float else None
    first = np.flatnonzero(unwritten)[:1]
    return Comparison(
        shape=(),
        mismatches=int(bad.sum()),
        unwritten=int(unwritten.sum()),
        unexpected_nan=int((bad & actual_nan & ~unwritten).sum()),
        first_unwritten=piece.start + int(first[0]) if first.size else -1,
        first_mismatch=piece.extreme(bad) if bad.any() else Extreme(),
        absolute=piece.extreme(error),
        relative=piece.extreme(relative),
        ulp=piece.extreme(ulp) if ulp is not None else Extreme(),
    )


def _parts_meet(
    actual: np.ndarray[Any, Any],
    rounded: np.ndarray[Any, Any],
    expected: np.ndarray[Any, Any],
    tolerance: Tolerance,
) -> np.ndarray[Any, Any]:
    """Says which complex numbers meet a non-finite reference, part by part."""
    met = np.ones(actual.shape, bool)
    for a, r, e in ((actual.real, rounded.real, expected.real), (actual.imag, rounded.imag, expected.imag)):
        near = np.isfinite(e) & (np.abs(a - e) <= tolerance.atol + tolerance.rtol * np.abs(e))
        met &= (a == r) | near | (np.isnan(a) & np.isnan(e))
    return met


def _within(piece: _Piece, tolerance: Tolerance) -> Comparison | None:
    """Returns the comparison of a piece if all its numbers are finite and within the tolerance, as most are.

    Returns None for any other piece, which we then compare closely.
    """
    dtype = piece.actual.dtype
    with np.errstate(all="ignore"):
        error, size = piece.actual.astype(np.float64), piece.expected.astype(np.float64)
        np.abs(np.subtract(error, size, out=error), out=error)
        np.abs(size, out=size)
        if not (math.isfinite(error.max()) and size.max() <= float(_finfo(dtype).max)):
            return None  # the reference may round to infinity there
        bound = size * tolerance.rtol
        bound += tolerance.atol
        if not (error <= bound).all():
            return None
        absolute = piece.extreme(error)
        np.divide(error, size, out=bound)
        bound[size == 0] = 0
        relative = piece.extreme(bound)
        np.divide(error, _ulp_size(size, dtype), out=bound)
        return Comparison((), absolute=absolute, relative=relative, ulp=piece.extreme(bound))


def _halves(values: np.ndarray[Any, Any], wide: Any) -> tuple[np.ndarray[Any, Any], Any]:
    """Returns two arrays of `wide`, or one and 0, whose sum is the values: float64 rounds 2**53 + 1 to 2**53.

    Both halves of an integer have its sign, so (a − e) + (a_low − e_low) is exact where it cancels.
    """
    if values.dtype.kind not in "iu" or values.dtype.itemsize < 8:
        return values.astype(wide), 0.0
    low = np.fmod(values, 2**32)
    return (values - low).astype(wide), low.astype(wide)


def _holds_poison(actual: np.ndarray[Any, Any], poison: int) -> np.ndarray[Any, Any]:
    """Says for each element whether it, or a part of it, still holds the poison."""
    parts = 2 if actual.dtype.kind == "c" else 1
    rows = actual.view(np.uint8).reshape(-1, actual.dtype.itemsize // parts)
    held = (rows == poison_bytes(poison, rows.size).reshape(rows.shape)).all(axis=1)
    of_elements: np.ndarray[Any, Any] = held.reshape(-1, parts).any(axis=1)
    return of_elements


def poison_bytes(poison: int, nbytes: int) -> np.ndarray[Any, Any]:
    return np.full(-(-nbytes // 4), poison, np.uint32).view(np.uint8)[:nbytes]


def still_poisoned(
    held: np.ndarray[Any, Any], poison: int, other: np.ndarray[Any, Any], other_poison: int
) -> tuple[int, int]:
    """Returns the number of elements that were not written, and the flat index of the first, or -1.

    These elements hold the poison. After another call they also held the other poison, or at least something
    else than now. For elements of one or two bytes the latter is not enough, since a computed number may
    equal the poison by chance.

    Args:
        held: what the output holds after a call, in C order.
        poison: what it was filled with before that call.
        other: what it held after another call, of the same shape and dtype.
        other_poison: what it was filled with before that other call.
    """
    raw = f"V{held.dtype.itemsize}"
    flat, beside = held.reshape(-1), other.reshape(-1)
    wide = held.dtype.kind in "fc" or held.dtype.itemsize >= 4
    count, first = 0, -1
    for start in range(0, flat.size, _CHUNK):
        now = flat[start : start + _CHUNK]
        left = _holds_poison(now, poison)
        if left.any():
            before = beside[start : start + _CHUNK]
            left_there = _holds_poison(before, other_poison)
            differ = (now.view(raw) != before.view(raw)) if wide else False
            left &= (left_there & (poison != other_poison)) | differ
        if first < 0 and left.any():
            first = start + int(left.argmax())
        count += int(left.sum())
    return count, first


def _ulp_size(size: np.ndarray[Any, Any], dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    """Returns the distance of neighbouring numbers of `dtype` at magnitude `size`."""
    info = _finfo(dtype)
    if size.dtype == np.float64 and dtype.itemsize < 8:
        # float64's exponent can hold the powers of two of narrower dtypes, so we build them from it.
        bias, bits = 1023, 52
        exponents = size.view(np.int64) >> bits
        np.clip(exponents, int(info.minexp) + bias, int(info.maxexp) - 1 + bias, out=exponents)
        exponents -= int(info.nmant)
        powers: np.ndarray[Any, Any] = np.left_shift(exponents, bits, out=exponents).view(np.float64)
        return powers
    _, exponent = np.frexp(np.fmin(size, info.max))  # a reference may exceed the dtype's range
    lowest = int(info.minexp) + 1
    exponent = np.where(size > 0, exponent, lowest)  # frexp gives 0 the exponent of 0.5
    result: np.ndarray[Any, Any] = np.ldexp(1.0, np.maximum(exponent, lowest) - 1 - int(info.nmant))
    return result


def _merge(shape: tuple[int, ...], is_float: bool, pieces: list[Comparison | None]) -> Comparison:
    """Merges the comparisons of pieces; a piece without differences counts as zero error."""
    unequal = [piece for piece in pieces if piece is not None]
    if not unequal:
        ulp = Extreme(0.0) if is_float else Extreme()
        return Comparison(shape, absolute=Extreme(0.0), relative=Extreme(0.0), ulp=ulp)
    firsts = [piece.first_unwritten for piece in unequal if piece.first_unwritten >= 0]
    return Comparison(
        shape=shape,
        mismatches=sum(piece.mismatches for piece in unequal),
        unwritten=sum(piece.unwritten for piece in unequal),
        unexpected_nan=sum(piece.unexpected_nan for piece in unequal),
        first_unwritten=min(firsts, default=-1),
        first_mismatch=next((p.first_mismatch for p in unequal if p.first_mismatch.index >= 0), Extreme()),
        absolute=max((piece.absolute for piece in unequal), key=lambda extreme: extreme.value),
        relative=max((piece.relative for piece in unequal), key=lambda extreme: extreme.value),
        ulp=max((piece.ulp for piece in unequal), key=lambda extreme: extreme.value),
    )


def contents_of(array: np.ndarray[Any, Any]) -> Contents:
    """Returns what an array holds, by about `_LOOKED_AT` elements at equal distances, and by its ends.

    Sums tell whether arrays differ by more than rounding, which another processor or BLAS changes. Of what is
    no number, such as records, they are 0.
    """
    if array.dtype.fields is not None or array.dtype.kind in "OSUmM":
        return Contents(str(array.dtype), array.size, 0.0, 0.0)
    some = array.flat[:: -(-array.size // _LOOKED_AT) or 1]
    if some.size < array.size:  # indices go wrong at the ends most
        some = np.concatenate([array.flat[:_AT_AN_END], some, array.flat[-_AT_AN_END:]])
    parts = some.astype(np.complex128 if array.dtype.kind == "c" else np.float64).view(np.float64)
    with np.errstate(all="ignore"):
        parts = np.nan_to_num(parts, nan=-1.0, posinf=2.0, neginf=-2.0)
        weighted = (np.sin(np.arange(1.0, parts.size + 1)) * parts).sum()  # by no BLAS: its threads may wait
        return Contents(str(array.dtype), array.size, float(weighted), float(np.sqrt((parts * parts).sum())))


_LOOKED_AT, _AT_AN_END = 2**14, 64
"""They take a few milliseconds where each lies in a page of its own; 1e8 take as long as to compare them."""


def _recordable(value: float) -> float | None:
    return value if value >= 0 and math.isfinite(value) else None


@dataclass(frozen=True, init=False)  # so that a wrong bound is shown in the user's line, and none of ours
class Tolerance:
    """Accepts an element if ``|actual − expected| ≤ atol + rtol · |expected|``; expected is the reference.

    The reference rounded to the dtype of the output is accepted by any bounds: nothing there is nearer.

    Raises:
        ValueError: a bound is negative, not finite or a bool.
    """

    rtol: float = 0.0
    atol: float = 0.0

    @refusing_unknown
    def __init__(self, rtol: float = 0.0, atol: float = 0.0) -> None:
        __tracebackhide__ = True
        for name, value in (("rtol", rtol), ("atol", atol)):
            if isinstance(value, bool) or not (isinstance(value, numbers.Real) and 0 <= value < math.inf):
                raise ValueError(f"{name}={value!r}: must be a finite number ≥ 0, such as 1e-6")
            object.__setattr__(self, name, value)

    def flushing(self, dtype: DTypeLike) -> Tolerance:
        """Returns a tolerance that also accepts zero for a subnormal result, as nvcc's `-ftz=true` gives.

        `atol` becomes at least the smallest normal number of `dtype`, which hardly affects other results.
        """
        return Tolerance(self.rtol, max(self.atol, float(_finfo(dtype).tiny)))

    @classmethod
    def for_dtype(cls, dtype: DTypeLike) -> Tolerance:
        """Returns the default tolerance of an element-wise result of `dtype`.

        As rtol/atol: float16 1e-3/1e-5, "bfloat16" 1.6e-2/1e-5, float32 1.3e-6/1e-5, float64 1e-9/1e-9. These
        are the bounds of `torch.testing.assert_close`, except for float64, where its 1e-7 would pass a result
        of float32. Floats of 8 bits may be a step off: "float8_e4m3fn" 0.125/2e-3, "float8_e5m2" 0.25/1.5e-5.
        Integers and booleans must be equal.
        """
        name = str(dtype) if is_narrow(dtype) else np.dtype(dtype).name
        if (bits := re.match(r"float\d_e(\d)m([1-9])", name)) is not None:
            exponent, mantissa = map(int, bits.groups())
            return cls(2.0**-mantissa, 2.0 ** (2 - 2 ** (exponent - 1) - mantissa))  # the smallest number
        known = {"float16": (1e-3, 1e-5), "float32": (1.3e-6, 1e-5), "float64": (1e-9, 1e-9)}
        known["bfloat16"] = (1.6e-2, 1e-5)
        name = {"complex64": "float32", "complex128": "float64"}.get(name, name)
        return cls(*known.get(name, (0.0, 0.0)))

    @classmethod
    def for_ulps(cls, count: float, dtype: DTypeLike) -> Tolerance:
        """Returns the tolerance of `count` units in the last place: count · eps relative, also of "bfloat16".

        The eps of a dtype is the step from 1 to its next number.
        """
        return cls(rtol=count * float(_finfo(dtype).eps))

    @classmethod
    def for_sum(cls, terms: int, dtype: DTypeLike, magnitude: float | None = None) -> Tolerance:
        """Returns the tolerance for a sum of `terms` terms or products, added in any order.

        The error of a sum grows as the square root of its additions (N. J. Higham and T. Mary, SIAM J. Sci.
        Comput. 41, A2815, 2019). Each rounds a partial sum, whose size is `magnitude`: the absolute bound is
        8 · eps · magnitude · √terms, and 8 · eps relative.

        Without a `magnitude` the terms are of size one, or below. If their signs differ, partial sums are of
        size √terms. If they have one sign, no partial sum exceeds the result: then the relative bound counts,
        which is 2 · eps · √terms, or 8 · eps if that is more. Equal terms round alike. So a sum of them, one
        by one, errs in proportion to `terms`: give a bound of your own, up to eps · terms / 2.
        """
        eps, root = float(_finfo(dtype).eps), float(terms) ** 0.5
        if magnitude is not None:
            return cls(rtol=8 * eps, atol=8 * eps * magnitude * root)
        return cls(rtol=eps * max(8, 2 * root), atol=8 * eps * terms)


_MOST_OF_REFERENCE = 0.01
"""A default absolute bound is at most this share of the largest reference value, so zeros never pass."""
_ROUNDING = 32
"""Where terms of order one cancel, so many units of rounding of 1 in the output's dtype may remain."""
_LEAST_OF_USUAL = 0.001
"""A default absolute bound keeps at least this share of the usual one: float64's is far above rounding."""


def default_tolerance(expected: np.ndarray[Any, Any], dtype: DTypeLike) -> Tolerance:
    """Returns the tolerance for an output without bounds: the default of its dtype, scaled to its reference.

    The absolute bound is at most a hundredth of the largest reference value. But it is at least the rounding
    of terms of order one that cancel, as in a residual, since a right result may be as far off. If the
    reference is nothing but such rounding, we do not scale. The output's `dtype` may be a name that NumPy
    lacks.
    """
    usual = Tolerance.for_dtype(dtype)
    if not usual.atol or is_narrow(dtype):  # its rounding is far above the bound anyway
        return usual
    sizes = np.abs(expected[np.isfinite(expected)])
    largest = float(sizes.max(initial=0))
    rounding = max(_ROUNDING * float(np.finfo(dtype).eps), _LEAST_OF_USUAL * usual.atol)
    if largest <= rounding:
        return usual
    return Tolerance(usual.rtol, min(usual.atol, max(_MOST_OF_REFERENCE * largest, rounding)))
