"""Constants out of source text, without executing anything."""

from __future__ import annotations

import ast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_gpukern.values.literals import constant


def read(text):
    return constant(ast.parse(text, mode="eval").body)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("10**8", 10**8),
        ("2**-3", 0.125),
        ("3 * 256 - 1", 767),
        ("1e6 + 1", 1_000_001.0),
        ("(128, 2 * 128)", (128, 256)),
        ("[1, 'a']", (1, "a")),
        ("{'n': 10**8, 'm': (1, 2)}", {"n": 10**8, "m": (1, 2)}),
        ("None", None),
        ("'text'", "text"),
        ("-5", -5),
    ],
)
def test_literals_and_arithmetic_on_them_have_a_value(text, expected):
    assert read(text) == expected


scalars = (
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
)


@given(st.recursive(scalars, lambda inner: st.tuples(inner, inner) | st.dictionaries(st.text(), inner)))
def test_whatever_repr_writes_is_read_back(value):
    assert read(repr(value)) == value


@pytest.mark.parametrize(
    "text",
    [
        *("name", "f(1)", "obj.attribute", "(1, name)", "{'n': name}", "{**{'n': 1}}", "[i for i in (1, 2)]"),
        *("f'{1}'", "1 if True else 2", "lambda: 1", "'a' * 3", "'a' + 'b'", "(1,) + (2,)"),
        *("7 // 2", "1 << 3"),
    ],
)
def test_anything_else_is_a_value_error(text):
    with pytest.raises(ValueError):
        read(text)


@pytest.mark.parametrize(
    ("texts", "why"),
    [
        (("10**10**10", "10**65", "(2**33)**2", "2**-65", "9**9**9"), "too large"),
        (("0**-1", "1e9**64", "0.0**-1"), "without a result"),
    ],
)
def test_a_power_too_large_to_be_meant_or_without_a_result_is_not_computed(texts, why):
    for text in texts:
        with pytest.raises(ValueError, match=why):
            read(text)
