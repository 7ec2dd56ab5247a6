"""Files as somebody may have damaged or forged them: a good one with a few bytes or values changed."""

from __future__ import annotations

import json
import random

BIG = 10**400
_DEEP = 100_000


class Raw(str):
    """A text that stands in the file as it is, not as JSON writes texts."""

    __slots__ = ()


VALUES = (
    *(None, True, False, 0, 1, -1, -0.0, 0.5, -2.5, 7),
    *(2**31, 2**53 + 1, 2**63, 2**64, -(2**70), 10**22, 10**300, BIG, -BIG),
    *(5e-324, 1e-300, 1e-9, 1e15, 1e16, 1e100, 1e300, 1.7e308, -1.7e308),
    *("", " ", "\0", "a\nb", "x y " * 800, "x" * 3000),
    *("x", "0", "null", "..", "../../x", "/etc/passwd", "a/b/c", "{}", "%s%n", "__class__", "nvidia-h200"),
    *("kernel/event/cold", "kernel/host/hot", "end_to_end/host/cold"),
    *("2026-11-20T10:00:00Z", "9999-12-31T23:59:59+00:00", "2026-11-20", "0001-01-01T00:00:00+14:00"),
    *("\x1b[31mred\x1b[0m", "\x1b]0;title\x07", "\x9b2J", "\u202egnp.exe", "\u2028", "\ud800", "\udcff"),
    *("é", "中", "e\u0301", "𝔘"),
    *([], {}, [[]], [None], {"": None}, {"a": {"b": {}}}, [0, 1, 2], ["x"], [1, 1, 1], [BIG] * 3, {"x": BIG}),
    *(list(range(300)), {str(i): i for i in range(300)}, {"\x1b[2J": "\x1b[2J"}, {"../x": 1}),
)
"""What any value of a file may be replaced by."""

TOKENS = (
    *("NaN", "Infinity", "-Infinity", "1e999", "-1e999", "1e-999", "1.", "+1", "0x10", "1_000"),
    *("'x'", "undefined", "True", "None", "/*x*/1"),
    *("9" * 5000, "-" + "9" * 5000, "0" * 50),
    *('"\\ud800"', '"\\udc00\\ud800"', '"\\u0000"', '"\\x41"', '"\\u00"'),
    *('{"a": 1, "a": 2}', "[" * 60 + "]" * 60, '{"a":' * 60 + "1" + "}" * 60),
    *("[" * _DEEP + "]" * _DEEP, "[" * _DEEP, '{"a":' * _DEEP),
    *("__import__('os').system('true')", "!!python/object/apply:os.system ['true']"),
)
"""What may stand in the place of a value without being one."""

BYTES = (
    *(b"\xff", b"\xfe", b"\xc3\x28", b"\xed\xa0\x80", b"\x80", b"\0", b"\xef\xbb\xbf"),
    *(b"\x1b[2J", b"\n", b"\r"),
    *(b" ", b"9" * 40, *b'" \\ { } [ ] , : - e 0 . NaN \\ud800 null'.split()),
)
"""What may be inserted anywhere."""


def ways(value, way=()):
    """The way to each value inside a value, itself included."""
    yield way
    steps = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for step, inner in steps:
        yield from ways(inner, (*way, step))


def written(value) -> bytes:
    """JSON, in which `Raw` stands as it is and half a surrogate pair is escaped."""
    raws: list[str] = []

    def marked(item):
        if isinstance(item, Raw):
            raws.append(str(item))
            return f"@raw{len(raws) - 1}@"
        if isinstance(item, dict):
            return {key: marked(inner) for key, inner in item.items()}
        return [marked(inner) for inner in item] if isinstance(item, list) else item

    text = json.dumps(marked(value), ensure_ascii=False)
    for number, raw in enumerate(raws):
        text = text.replace(f'"@raw{number}@"', raw)
    return text.encode("utf-8", "backslashreplace")


def copied(value):
    """A deep copy of JSON, quicker than that of `copy`."""
    if isinstance(value, dict):
        return {key: copied(inner) for key, inner in value.items()}
    return [copied(inner) for inner in value] if isinstance(value, list) else value


class Mutations:
    """Damaged files made of good ones, always the same for the same number.

    Args:
        sources: contents of good files.
        seed: for other files than usual.
    """

    def __init__(self, *sources: bytes, seed: str = "") -> None:
        self._sources = sources
        self._values = [json.loads(source) for source in sources]
        self._ways = [list(ways(value)) for value in self._values]
        self._seed = seed

    def file(self, number: int) -> bytes:
        """The content of one file: two thirds have other values, the rest other bytes."""
        chosen = random.Random(f"{self._seed}{number}")
        which = number % len(self._sources)
        if chosen.random() < 0.33:
            return self._bytes(chosen, self._sources[which])
        value = copied(self._values[which])
        for _ in range(chosen.choice((1, 1, 1, 2, 3))):
            value = self._value(chosen, value, self._ways[which])
        content = written(value)
        return self._bytes(chosen, content) if chosen.random() < 0.03 else content

    def _value(self, chosen: random.Random, value, known):
        way = chosen.choice(known)
        if not way:
            way = known[min(1, len(known) - 1)] if chosen.random() < 0.9 else way
        if not way:
            return chosen.choice(VALUES)
        place = value
        for step in way[:-1]:
            inside = isinstance(place, dict) or (isinstance(place, list) and isinstance(step, int))
            if not inside or not (step in place if isinstance(place, dict) else step < len(place)):
                return value  # an earlier change took it away
            place = place[step]
        last = way[-1]
        if not (isinstance(place, dict) and last in place) and not (
            isinstance(place, list) and isinstance(last, int) and last < len(place)
        ):
            return value
        match chosen.randrange(8):
            case 0:
                del place[last]
            case 1 if isinstance(place, dict):
                place[chosen.choice([each for each in VALUES if isinstance(each, str)])] = place.pop(last)
            case 1:
                place.insert(last, copied(chosen.choice(VALUES)))
            case 2:
                place[last] = Raw(chosen.choice(TOKENS))
            case 3:
                place[last] = _nudged(chosen, place[last])
            case 4 if isinstance(place, dict):
                name = chosen.choice([each for each in VALUES if isinstance(each, str)])
                place[name] = copied(chosen.choice(VALUES))
            case 5:
                other = chosen.choice(known)
                place[last] = copied(_at(value, other))
            case _:
                place[last] = copied(chosen.choice(VALUES))
        return value

    def _bytes(self, chosen: random.Random, content: bytes) -> bytes:
        at, to = sorted(chosen.randrange(len(content) + 1) for _ in range(2))
        match chosen.randrange(9):
            case 0:
                changed = bytearray(content)
                for _ in range(chosen.choice((1, 1, 2, 4))):
                    changed[chosen.randrange(len(changed))] ^= 1 << chosen.randrange(8)
                return bytes(changed)
            case 1:
                return content[:at] + content[at + chosen.choice((1, 1, 2, 10, 100)) :]
            case 2:
                return content[:at] + chosen.choice(BYTES) + content[at:]
            case 3:
                return content[:at]
            case 4:
                return content[:to] + content[at:to] + content[to:]
            case 5:
                other = chosen.choice(self._sources)
                return content[:at] + other[chosen.randrange(len(other)) :]
            case 6:
                return chosen.choice((b"\xef\xbb\xbf", b"\xff\xfe", b" ", b"\0", content)) + content
            case 7:
                encoding = chosen.choice(("utf-16", "utf-32", "utf-16-le", "latin-1"))
                return content.decode("utf-8", "replace").encode(encoding, "replace")
            case _:
                return content[:at] + bytes([chosen.randrange(256)]) + content[at + 1 :]


def _nudged(chosen: random.Random, value):
    """A value that nearly is what it was."""
    if isinstance(value, bool) or value is None:
        return chosen.choice((not value, 0, 1))
    if isinstance(value, (int, float)):
        factor = chosen.choice((-1, 0, 1e-300, 1e300, 0.5, 2, 1e9, 1 + 1e-12))
        changed = value * factor if abs(value) < 1e300 else -value
        return chosen.choice((changed, str(value), [value], -value, value + 1))
    if isinstance(value, str):
        part = chosen.choice([each for each in VALUES if isinstance(each, str)])
        return chosen.choice((value + part, part + value, value.upper(), value[:-1], [value], {value: value}))
    if isinstance(value, list):
        return chosen.choice(
            (value * 2, value[:-1], value[::-1], {str(i): each for i, each in enumerate(value)})
        )
    return chosen.choice((list(value.values()), list(value), {}, {**value, "extra": value}))


def _at(value, way):
    for step in way:
        try:
            value = value[step]
        except (KeyError, IndexError, TypeError):
            return None
    return value
