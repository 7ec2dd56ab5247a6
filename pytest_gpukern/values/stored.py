"""Defines what the values in our files have in common, and turns them into plain JSON."""

from __future__ import annotations

import enum
import functools
import math
from collections.abc import Mapping
from typing import Any

from msgspec import NODEFAULT, Struct, structs


class Stored(Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """Is the base of what files hold. A field as by default is left out, and an unknown one is refused."""


def plain(value: Any) -> Any:
    """Returns a value as JSON has it: a Struct without its defaults, a list for a tuple, text for an enum.

    A number that is not finite becomes None.
    """
    if value is None or type(value) in (bool, str, int):  # most values of a result
        return value
    if isinstance(value, float):  # np.float64 is one, and execnet takes exact types only
        return float(value) if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, Struct):
        return beyond(defaults(type(value)), fields(value))
    if hasattr(value, "tolist"):  # a NumPy scalar or array in a point or a parameter
        return plain(value.tolist())
    return str(value)


def fields(value: Struct) -> dict[str, Any]:
    return {name: getattr(value, name) for name in value.__struct_fields__}


def beyond(known: Mapping[str, Any], fields: Mapping[str, Any]) -> dict[str, Any]:
    """Returns as plain JSON the fields that are not as known."""
    return {name: plain(of) for name, of in fields.items() if name not in known or of != known[name]}


@functools.cache
def defaults(kind: type[Struct]) -> dict[str, Any]:
    """Returns the fields of a Struct that have a default, each with it."""
    return {
        field.name: field.default if field.default_factory is NODEFAULT else field.default_factory()
        for field in structs.fields(kind)
        if not field.required
    }
