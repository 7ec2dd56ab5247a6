"""Any value of a model, for tests of what is written and read back."""

from __future__ import annotations

import collections.abc
import dataclasses
import enum
import functools
import types
import typing

from hypothesis import strategies as st

ANYTHING = st.none() | st.booleans() | st.integers(1 - 2**63, 2**63 - 1) | st.text(max_size=8)
SCALARS = {
    str: st.text(max_size=8),
    int: st.integers(1 - 2**63, 2**63 - 1),
    float: st.floats(allow_nan=False, allow_infinity=False),
    bool: st.booleans(),
    typing.Any: ANYTHING
    | st.lists(ANYTHING, max_size=2)
    | st.dictionaries(st.text(max_size=8), ANYTHING, max_size=2),
}

UNIONS = (types.UnionType, typing.Union)  # the second: of `Annotated` and None, before Python 3.14


@functools.cache
def values_of(kind):
    """Any value of a type that a model uses, so that a field that is added later is tried as well."""
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if dataclasses.is_dataclass(kind) or hasattr(kind, "__struct_fields__"):
        hints = typing.get_type_hints(kind, include_extras=True)
        return st.builds(kind, **{name: values_of(hint) for name, hint in hints.items()})
    if origin is typing.Annotated:
        return st.integers(0, 2**63 - 1)
    if origin in UNIONS and len(inner) > 2:
        return st.none() | st.booleans() | st.integers(1 - 2**63, 2**63 - 1) | st.text(max_size=8)
    if origin in UNIONS:
        return st.none() | values_of(inner[0])
    if origin in (dict, collections.abc.Mapping):
        return st.dictionaries(values_of(inner[0]), values_of(inner[1]), max_size=2)
    if origin is tuple and inner[-1] is ...:
        return st.lists(values_of(inner[0]), max_size=2).map(tuple)
    if origin is tuple:
        return st.tuples(*map(values_of, inner))
    return st.sampled_from(kind) if isinstance(kind, enum.EnumMeta) else SCALARS[kind]
