"""Checks that what results share stands once in a file, and that each is whole when it is read."""

from __future__ import annotations

import collections.abc
import dataclasses
import enum
import types
import typing

import msgspec
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from made_up_results import FINGERPRINT, measured, result
from msgspec import structs

from pytest_gpukern.baseline.codec import Processes, unfolded, unfolded_sessions
from pytest_gpukern.values.result import Result

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
values = {
    str: texts,
    int: st.integers(0, 10**9),
    float: st.floats(1e-9, 1e15),
    bool: st.booleans(),
    type(None): st.none(),
}


def made(kind):
    """Any value of a type that the model has, so that a field that is added later is tried as well."""
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin is typing.Annotated:
        return made(inner[0])
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return st.sampled_from(kind)
    if hasattr(kind, "__struct_fields__") or dataclasses.is_dataclass(kind):
        hints = typing.get_type_hints(kind, include_extras=True)
        names = kind.__struct_fields__ if hasattr(kind, "__struct_fields__") else kind.__dataclass_fields__
        return st.builds(kind, **{name: made(hints[name]) for name in names})
    if origin in (types.UnionType, typing.Union):
        return st.none() | st.booleans() | texts if len(inner) > 2 else made(inner[0]) | made(inner[1])
    if origin in (dict, collections.abc.Mapping):
        return st.dictionaries(made(inner[0]), made(inner[1]), max_size=2)
    if origin is tuple and inner[-1] is ...:
        return st.lists(made(inner[0]), max_size=2).map(tuple)
    return st.tuples(*map(made, inner)) if origin is tuple else values[kind]


sessions = made(Result).map(lambda each: structs.replace(each, nodeid="n"))
"""Results of one test, which mostly come from other processes."""


def through_json(value):
    return msgspec.json.decode(msgspec.json.encode(value))


@settings(max_examples=40, suppress_health_check=list(HealthCheck), deadline=None)
@given(st.lists(sessions, min_size=1, max_size=3), st.data())
def test_every_result_is_whole_again_whatever_it_shares(results, data):
    like = data.draw(st.lists(st.sampled_from(results), min_size=1, max_size=4))
    processes = Processes()
    alone = [processes.folded(each) for each in like]
    together = processes.folded_sessions(like, {"nodeid": "n"})
    table = through_json(processes.table())
    assert [msgspec.convert(unfolded(each, table), Result) for each in through_json(alone)] == like
    whole = unfolded_sessions(through_json(together), table, {"nodeid": "n"})["sessions"]
    assert [msgspec.convert(each, Result) for each in whole] == like


def test_what_is_shared_or_as_by_default_is_not_written_again():
    first = result("cupy.exp", measured(), session="a", fingerprint=FINGERPRINT)
    second = structs.replace(first, session="b", errors={})
    processes = Processes()
    folded = processes.folded_sessions([first, second], {"nodeid": first.nodeid})
    assert folded["shared"].keys() >= {"case", "errors"}
    assert [each.keys() for each in folded["sessions"]] == [
        {"measurements", "session"},
        {"measurements", "session", "errors"},
    ]
    assert all(each.keys() == {"fingerprint"} for each in processes.table().values())
