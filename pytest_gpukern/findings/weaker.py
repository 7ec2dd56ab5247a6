"""Finds which checks of a test are weaker than on record, or than at the base, by what it declares."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from pytest_gpukern.values.result import Contents, Correctness, Determinism, Finding, Result

WEAKER = "weaker"
_ROUNDING = {"float64": 1e-8, "complex128": 1e-8, "float32": 3e-4, "complex64": 3e-4}
"""By how much sums over equal references may differ: about the root of eps. Narrower floats differ more, and
integers not at all."""
_DETERMINISM = (Determinism.TOLERANT, None, Determinism.RUN_TO_RUN, Determinism.BITWISE)
"""What a test may declare of it, the weakest first."""


class _Degree(NamedTuple):
    """Says how strict a check is in one respect, more being stricter, and how a report shows that."""

    value: float
    shown: str


def weaker(now: Result, past: Sequence[Result], threshold: float) -> Iterator[Finding]:
    """Yields a finding for each check that was stricter in a session before, whatever the problem's version.

    What a session before does not tell, as in a record of an older release, is not held against the new one.

    Args:
        past: sessions of the record, or of the base.
        threshold: the run's, for tests that declare none.
    """
    if now.simulated or now.correctness is Correctness.INCORRECT:
        return
    degrees, texts = _degrees(now, threshold), list[str]()
    for before in past:
        known = before.declared.outputs if before.declared is not None else {}
        for what, was in _degrees(before, threshold).items():
            name, _, of = what.rpartition(": ")
            # With outputs= a test gives a name to what had none, and compares as many.
            renamed = name not in known and len(now.errors) >= len(before.errors)
            own = degrees.get(what, was if renamed or of not in (_COMPARED, _WRITTEN) else _Degree(0, "0"))
            if own.value < was.value and not math.isclose(own.value, was.value):
                texts.append(f"{what} {was.shown} → {own.shown}")
    texts += (*_gone(now, past), *_of_references(now, past))
    yield from (Finding(WEAKER, text) for text in dict.fromkeys(texts))


_COMPARED, _WRITTEN = "elements compared with a reference", "elements that a launch must write"


def _degrees(of: Result, threshold: float) -> dict[str, _Degree]:
    found = dict[str, _Degree]()
    for name, error in of.errors.items():
        bounds = (("rtol", error.rtol), ("atol", error.atol))
        found |= {f"{name}: {what}": _Degree(-by, f"{by:g}") for what, by in bounds if by is not None}
        found[f"{name}: {_COMPARED}"] = _of_size(error.size)
        if error.dtype is not None:
            found[f"{name}: dtype"] = _of_dtype(error.dtype)
        if error.reference is not None:
            found[f"{name}: dtype of the reference"] = _of_dtype(error.reference.dtype)
    declared = of.declared
    if declared is None:
        return found
    found |= {f"{name}: {_WRITTEN}": _of_size(size) for name, size in declared.outputs.items()}
    for name, given in declared.inputs.items():
        found[f"input {name}: elements"] = _of_size(given.size)
        found[f"input {name}: dtype"] = _of_dtype(given.dtype)
    if declared.input_sets:
        found["different inputs timed in turn"] = _of_size(declared.input_sets)
    found |= {what: _Degree(count, f"{count:g}") for what, count in declared.work.items()}
    smallest, promised = declared.threshold or threshold, declared.determinism
    return found | {
        "check=": _Degree(declared.has_check, "judged" if declared.has_check else "none"),
        "allow_lower_precision": _Degree(-declared.lower_precision, str(declared.lower_precision)),
        "threshold": _Degree(-smallest, f"{100 * smallest:g} %"),
        "determinism": _Degree(_DETERMINISM.index(promised), promised or "not declared"),
    }


def _of_size(size: int) -> _Degree:
    return _Degree(size, f"{size:,}")


def _of_dtype(dtype: str) -> _Degree:
    bits = re.search(r"\d+", dtype)
    fewer_digits = 0.5 * dtype.startswith(("bfloat16", "float8_e5m2"))  # than others of that size
    return _Degree((int(bits[0]) if bits else 8) - fewer_digits, dtype)  # bool


def _gone(now: Result, past: Sequence[Result]) -> list[str]:
    """Says where a variant is no longer checked, and how it is no longer timed."""
    if now.declared is None:
        return []
    told = [of.declared for of in past if of.declared is not None]
    checked = {at for places in (past, told) for of in places for at in of.corners}
    corners = checked.difference(now.declared.corners)
    scopes = {scope for of in told for scope in of.scopes}.difference(now.declared.scopes)
    gone = (("checked at", corners), ("timed as", scopes))
    return [f"no longer {what} {', '.join(sorted(names))}" for what, names in gone if names]


def _of_references(now: Result, past: Sequence[Result]) -> Iterator[str]:
    """Yields which inputs, or which references of the same inputs, have other values.

    The inputs of a call are not known. Its reference counts if two sessions or more had the same.
    """
    inputs = now.declared.inputs if now.declared is not None else {}
    alike = [of for of in past if of.seed == now.seed and (of.declared is not None or not inputs)]
    then = [item for of in alike if of.declared is not None for item in of.declared.inputs.items()]
    others = {name for name, held in then if name in inputs and _differ(held, inputs[name])}
    yield from (f"input {name}: other values" for name in sorted(others))
    for name, error in now.errors.items() if not others else ():
        before = [known for of in alike if name in of.errors and (known := of.errors[name].reference)]
        agree = len(before) > (not inputs) and not any(_differ(each, before[0]) for each in before)
        if agree and error.reference is not None and _differ(before[0], error.reference):
            yield f"{name}: other values of the reference"


def _differ(one: Contents, other: Contents) -> bool:
    """Returns whether arrays of one size hold other values, by more than rounding."""
    if one.size != other.size or None in (one.weighted, one.norm, other.weighted, other.norm):
        return False
    rounding = max(_ROUNDING.get(of.dtype, 0.03 if "float" in of.dtype else 1e-8) for of in (one, other))
    apart = max(abs(one.weighted - other.weighted), abs(one.norm - other.norm))
    return apart > rounding * max(one.norm, other.norm)
