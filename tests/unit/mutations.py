"""Files as somebody may have damaged or forged them: a good one with a few bytes or values changed."""

from __future__ import annotations

import copy
import json

from hypothesis import strategies as st

BIG = 10**400
DEEP = 60

VALUES = (
    *(None, True, False, 0, 1, -1, -0.0, 0.5, -2.5, 7, float("nan"), float("-inf")),
    *(2**31, 2**53 + 1, 2**63, 2**64, -(2**70), 10**22, 10**300, BIG, -BIG, 10**4299),
    *(5e-324, 1e-300, 1e-9, 1e15, 1e16, 1e100, 1e300, 1.7e308, -1.7e308),
    *("", " ", "\0", "a\nb", "x y " * 800, "x" * 3000),
    *("x", "0", "null", "..", "../../x", "/etc/passwd", "a/b/c", "{}", "%s%n", "__class__", "nvidia-h200"),
    *("kernel/event/cold", "kernel/host/hot", "end_to_end/host/cold"),
    *("2026-11-20T10:00:00Z", "9999-12-31T23:59:59+00:00", "2026-11-20", "0001-01-01T00:00:00+14:00"),
    *("\x1b[31mred\x1b[0m", "\x1b]0;title\x07", "\x9b2J", "\u202egnp.exe", "\u2028", "\ud800", "\udcff"),
    *("é", "中", "e\u0301", "𝔘"),
    *([], {}, [[]], [None], {"": None}, {"a": {"b": {}}}, [0, 1, 2], ["x"], [1, 1, 1], [BIG] * 3, {"x": BIG}),
    *(list(range(300)), {str(i): i for i in range(300)}, {"\x1b[2J": "\x1b[2J"}, {"../x": 1}),
    json.loads("[" * DEEP + "]" * DEEP),
)
"""What any value of a file may be replaced by."""


def _value_of(values):
    return st.sampled_from(values).map(copy.deepcopy)  # the next change may be one inside it


_ANY_VALUE = _value_of(VALUES)
_NAMES = [value for value in VALUES if isinstance(value, str)]
_BYTES = (
    *(b"\xff", b"\xfe", b"\xc3\x28", b"\xed\xa0\x80", b"\x80", b"\0", b"\xef\xbb\xbf", b"\x1b[2J", b"\n"),
    *(b" ", b"9" * 40, *b'" \\ { } [ ] , : - e 0 . +1 0x10 1e999 Infinity \\ud800 null'.split()),
    b"[" * 200_000,
)
"""What may be inserted anywhere."""


class Twice(dict):
    """A dict that a file has with each of its keys twice."""

    def items(self):
        return [*super().items()] * 2


def _containers(value):
    """Each list and dict inside a value that holds something, itself included."""
    if value and isinstance(value, (dict, list)):
        yield value
        for inner in value.values() if isinstance(value, dict) else value:
            yield from _containers(inner)


@st.composite
def damaged(draw, contents):
    """One of these good files, with values or bytes changed."""
    content = draw(st.sampled_from(contents))
    if draw(st.integers(0, 3)) == 0:
        return _with_other_bytes(draw, content)
    value = json.loads(content)
    for _ in range(draw(st.integers(1, 2))):
        _change(draw, draw(st.sampled_from([*_containers(value)] or [[None]])))
    return json.dumps(value).encode()


def _change(draw, place):
    """Changes something in a list or dict."""
    keys = [*place] if isinstance(place, dict) else range(len(place))
    key = draw(st.sampled_from(keys))
    match draw(st.sampled_from(["drop", "replace", "replace", "nudge", "nest", "copy", "twice", "add"])):
        case "drop":
            del place[key]
        case "replace":
            place[key] = draw(_ANY_VALUE)
        case "nudge":
            alike = [value for value in VALUES if type(value) is type(place[key])]
            place[key] = draw(_value_of(alike or VALUES))
        case "nest":
            place[key] = draw(st.sampled_from([[place[key]], {"a": place[key]}, str(place[key])]))
        case "copy":
            place[key] = json.loads(json.dumps(place[draw(st.sampled_from(keys))]))
        case "twice" if isinstance(place[key], dict):
            place[key] = Twice(place[key])
        case _ if isinstance(place, dict):
            place[draw(st.sampled_from(_NAMES))] = draw(_value_of([place.pop(key), *VALUES]))
        case _:
            place.insert(key, draw(_ANY_VALUE))


def _with_other_bytes(draw, content):
    at, to = sorted(draw(st.integers(0, len(content))) for _ in range(2))
    return draw(
        st.sampled_from(
            [
                content[:at],
                content[:at] + content[at + 1 :],
                content[:at] + content[to:],
                content[:to] + content[at:to] + content[to:],
                content[:at] + draw(st.sampled_from(_BYTES)) + content[at:],
                content[:at] + bytes([draw(st.integers(0, 255))]) + content[at + 1 :],
                content.decode().encode(draw(st.sampled_from(["utf-16", "utf-32", "utf-8-sig"]))),
            ]
        )
    )
