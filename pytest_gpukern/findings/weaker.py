"""Finds which checks of a test are weaker than on record, or than at the base, by what it declares."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from pytest_gpukern.values.result import Contents, Correctness, Determinism, Finding, OutputError, Result

WEAKER = "weaker"
_ROUNDING = {"float64": 1e-8, "complex128": 1e-8, "float32": 3e-4, "complex64": 3e-4}
"""By how much sums over equal references may differ: about the root of eps. Narrower floats differ more, and
integers not at all."""
_IN_SHORT = 2e-5
"""The same for a norm that was stored with six digits."""
_STEADY = 0.02
"""By this share the norms of an array may differ that is drawn anew each time. If they differ by ten times as
much, the test draws other values."""
_BOUNDS, _DRAWN = ("rtol", "atol"), 2
"""By this factor bounds and sizes may differ that follow from values drawn anew each time."""
_ONE_CALL_NS = 1e9
"""A call that takes longer is not repeated for its determinism."""
_DETERMINISM = (Determinism.TOLERANT, None, Determinism.RUN_TO_RUN, Determinism.BITWISE)
"""What a test may declare of it, the weakest first."""


class _Degree(NamedTuple):
    """Says how strict a check is in one respect, more being stricter, and how a report shows that."""

    value: float
    shown: str


def weaker(now: Result, past: Sequence[Result], threshold: float) -> Iterator[Finding]:
    """Yields a finding for each check that was stricter in sessions before, whatever the problem's version.

    What a session before does not tell, as in a record of an older release, is not held against the new one.
    In the simulator sizes are smaller: what ran there is compared with what ran there.

    Args:
        past: sessions of the record, or of the base.
        threshold: the run's, for tests that declare none.
    """
    past = [of for of in past if of.simulated == now.simulated]
    if now.correctness is Correctness.INCORRECT or not past:
        return
    texts, degrees = dict[tuple[str, str], str](), _degrees(now, threshold)
    named = [(before, _renamed(before, now)) for before in past]
    then: dict[tuple[str, str, str], list[_Degree]] = {}
    for before, names in named:
        for (name, of), was in _degrees(before, threshold).items():
            own_name = names.get(name, name)
            if of == _COMPARED and _is_none_of_the_calls(now, own_name, before.errors[name]):
                degrees[own_name, of] = _Degree(0, "0 of what the call left")
            then.setdefault((name, own_name, of), []).append(was)
    for (name, own_name, of), degrees_then in then.items():
        was = max(degrees_then)
        own = degrees.get((own_name, of), _Degree(0, "0") if of in (_COMPARED, _WRITTEN) else was)
        least = _least(of, [degree.value for degree in degrees_then])
        if own.value < least and not math.isclose(own.value, least):
            what = f"{name}: {of}" if name else of
            texts.setdefault((name.partition(_AT)[0], of), f"{what} {was.shown} → {own.shown}")
    yield from (Finding(WEAKER, text) for text in (*texts.values(), *_gone(now, past), *_others(now, named)))


def may_have_others(now: Result, before: Result) -> bool:
    """Returns whether values differ between two sessions; a third tells whether they are drawn each time."""
    return any(_others(now, [(before, _renamed(before, now))], fewest=1))


def _least(of: str, values: Sequence[float]) -> float:
    """Returns how strict a check has to be: as the strictest was, unless it follows from drawn values.

    Such bounds and sizes are a little other in each session. They may be half as strict as the loosest.
    """
    strictest, loosest = max(values), min(values)
    near = max(abs(strictest), abs(loosest)) <= _DRAWN * min(abs(strictest), abs(loosest))
    if strictest == loosest or not near or of not in (*_BOUNDS, _COMPARED, "elements"):
        return strictest
    return loosest * _DRAWN if loosest < 0 else loosest / _DRAWN


def _is_none_of_the_calls(now: Result, name: str, before: OutputError) -> bool:
    """Returns whether a comparison is no longer of what the calls left, whose determinism would be known."""
    error = now.errors.get(name)
    several = now.first_call_ns is not None and now.first_call_ns < _ONE_CALL_NS
    return before.determinism is not None and error is not None and error.determinism is None and several


_AT = " at "
"""Separates an array from its corner. Of an array that is weaker everywhere, we name one place."""


def _renamed(before: Result, now: Result) -> dict[str, str]:
    """Returns the new name of each output and input that has one, by their order: it may have had no name.

    Where more are gone than new, or fewer, nobody knows which is which, and what is gone is weaker.
    """
    names = dict[str, str]()
    for held in (_outputs, _inputs):
        was, own = held(before), held(now)
        gone, new = ([name for name in of if name not in other] for of, other in ((was, own), (own, was)))
        names |= zip(gone, new, strict=True) if len(gone) == len(new) else ()
    return names


def _outputs(of: Result) -> Mapping[str, object]:
    """Returns the outputs that are compared or declared, by name."""
    return {**of.errors, **(of.declared.outputs if of.declared is not None else {})}


_COMPARED, _WRITTEN = "elements compared with a reference", "elements that a launch must write"


def _degrees(of: Result, threshold: float) -> dict[tuple[str, str], _Degree]:
    found = dict[tuple[str, str], _Degree]()
    for name, error in of.errors.items():
        found |= _of_bounds(name, error)
        found[name, _COMPARED] = _of_size(error.size)
        if error.dtype is not None:
            found[name, "dtype"] = _of_dtype(error.dtype)
        if error.reference is not None:
            found[name, "dtype of the reference"] = _of_dtype(error.reference.dtype)
    declared = of.declared
    if declared is None:
        return found
    found |= {(name, _WRITTEN): _of_size(size) for name, size in declared.outputs.items()}
    for name, given in {**_inputs(of), **_at_corners(of)}.items():
        found |= _of_bounds(name, given)
        found |= {(name, "elements"): _of_size(given.size), (name, "dtype"): _of_dtype(given.dtype)}
    if declared.input_sets:
        found["", "different inputs timed in turn"] = _of_size(declared.input_sets)
    found |= {("", what): _Degree(count, f"{count:g}") for what, count in declared.work.items()}
    smallest, promised = declared.threshold or threshold, declared.determinism
    return found | {
        ("", "check="): _Degree(declared.has_check, "judged" if declared.has_check else "none"),
        ("", "comparisons that have to fail"): _of_size(declared.must_fail),
        ("", "guarded arrays"): _of_size(declared.guarded),
        ("", "outputs whose order is checked"): _of_size(declared.in_order),
        ("", "allow_lower_precision"): _Degree(-declared.lower_precision, str(declared.lower_precision)),
        ("", "threshold"): _Degree(-smallest, f"{100 * smallest:g} %"),
        ("", "determinism"): _Degree(_DETERMINISM.index(promised), promised or "not declared"),
    }


def _inputs(of: Result) -> dict[str, Contents]:
    return {f"input {name}": held for name, held in of.declared.inputs.items()} if of.declared else {}


def _at_corners(of: Result) -> dict[str, Contents]:
    return {
        f"{name}{_AT}{corner}": column.at(place)
        for name, column in of.held.items()
        for place, corner in enumerate(of.corners)
    }


def _of_bounds(name: str, of: OutputError | Contents) -> dict[tuple[str, str], _Degree]:
    bounds = zip(_BOUNDS, (of.rtol, of.atol), strict=True)
    return {(name, what): _Degree(-by, f"{by:g}") for what, by in bounds if by is not None}


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


def _others(now: Result, past: Sequence[tuple[Result, Mapping[str, str]]], fewest: int = 2) -> Iterator[str]:
    """Yields which inputs, or which references of the same inputs, have other values.

    Those of a call count if at least `fewest` sessions had the same values, or nearly the same norm.
    """
    made = any(of.norm for of in _inputs(now).values())  # by a problem, from the seed
    alike = [(of, names) for of, names in past if of.seed == now.seed]
    for values in (_inputs, _references, _at_corners):
        then = [{names.get(name, name): held for name, held in values(of).items()} for of, names in alike]
        texts = dict[str, str]()
        for name, held in values(now).items():
            before = [of[name] for of in then if name in of and of[name].size == held.size]
            if _is_another(held, before, 1 if made else fewest):
                what = "other values" if values is not _references else "other values of the reference"
                texts.setdefault(name.partition(_AT)[0], f"{name}: {what}")
        yield from texts.values()
        if texts:
            return


def _references(of: Result) -> dict[str, Contents]:
    return {name: error.reference for name, error in of.errors.items() if error.reference is not None}


def _is_another(held: Contents, before: Sequence[Contents], fewest: int) -> bool:
    """Returns whether an array holds other values than before, or another norm if it is drawn each time."""
    if len(before) >= fewest and not any(_differ(each, before[0]) for each in before):
        return _differ(before[0], held)
    norms = [of.norm for of in before]
    if not norms or None in (held.norm, *norms):
        return False
    largest, by_chance = max(norms), max(10 * _STEADY, 4 / math.sqrt(held.size or 1))
    steady = len(norms) > 1 and largest - min(norms) <= _STEADY * largest
    return abs(held.norm - largest) > by_chance * largest if steady else held.norm == 0 < min(norms)


def _differ(one: Contents, other: Contents) -> bool:
    """Returns whether arrays of one size hold other values, by more than rounding."""
    if one.size != other.size or None in (one.norm, other.norm):
        return False
    rounding = max(_ROUNDING.get(of.dtype, 0.03 if "float" in of.dtype else 1e-8) for of in (one, other))
    apart = abs(one.norm - other.norm)
    if None in (one.weighted, other.weighted):
        rounding = max(rounding, _IN_SHORT)
    else:
        apart = max(apart, abs(one.weighted - other.weighted))
    return apart > rounding * max(one.norm, other.norm) + min(one.atol or 0.0, other.atol or 0.0)
