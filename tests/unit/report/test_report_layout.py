"""Columns and lines that fit a terminal."""

from __future__ import annotations

from pytest_gpukern.report.layout import Column, shorten, table, wrapped


def test_shortening_keeps_the_beginning_and_the_end():
    assert shorten("numba.grid_stride", 17) == "numba.grid_stride"
    assert shorten("numba.grid_stride", 10) == "numba…ride"


def test_a_table_too_wide_shortens_text_and_never_numbers():
    times = ("48.62 µs", "3.02 s")
    names = Column("variant", ("a" * 30, "b" * 10), narrowest=8)
    texts, left_out = table([names, Column("time", times, numeric=True)], 20)
    assert (left_out, max(map(len, texts))) == ([], 20)
    assert all(row.endswith(f" {time}") for row, time in zip(texts[1:], times, strict=True))


def test_a_table_too_wide_even_then_leaves_columns_out_and_says_which():
    columns = [
        Column("variant", ("a" * 30,), narrowest=8),
        Column("rate", ("1.65 TB/s",), numeric=True, dispensable=2),
        Column("speed-up", ("253×",), numeric=True, dispensable=1),
        Column("time", ("48.62 µs",), numeric=True),
    ]
    texts, left_out = table(columns, 30)
    assert left_out == ["speed-up"]
    assert "1.65 TB/s" in texts[1]
    assert table(columns, 18)[1] == ["speed-up", "rate"]


def test_a_wrapped_sentence_keeps_numbers_and_units_on_one_line():
    for width in range(24, 60):
        told = "cupy.exp: +5.3 % of 48.6 µs at 1.65 TB/s and 3.02 s ± 0.25 % in all"
        lines = wrapped(told, width, indent="  ")
        text = "\n".join(line.text for line in lines)
        assert all(whole in text for whole in ("+5.3 %", "48.6 µs", "1.65 TB/s", "3.02 s ± 0.25 %"))
        assert max(len(line.text) for line in lines) <= width
        assert "\N{NO-BREAK SPACE}" not in text


def test_columns_are_left_out_before_names_become_unreadable():
    names = ("host.allocating_slower_way", "numba.grid_stride")
    columns = [
        Column("variant", names, narrowest=1),
        Column("rate", ("3.13 GB/s", "924 MB/s"), numeric=True, dispensable=0),
        Column("time", ("986 ns", "3.34 µs"), numeric=True),
    ]
    lines, left_out = table(columns, 24)
    assert left_out == ["rate"]
    assert "host.al" in lines[1]
