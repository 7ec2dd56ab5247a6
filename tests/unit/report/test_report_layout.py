"""Columns and lines that fit a terminal."""

from __future__ import annotations

from pytest_gpukern.report.layout import Column, table, wrapped

NAMES = Column("variant", ("numba.grid_stride_of_a_very_long_name", "b" * 10), shortens=True)


def test_a_table_too_wide_shortens_names_in_the_middle_and_never_numbers():
    times = ("48.62 µs", "3.02 s")
    texts, left_out = table([NAMES, Column("time", times, numeric=True)], 34)
    assert (left_out, max(map(len, texts))) == ([], 34)
    assert texts[1] == "numba.grid_…y_long_name   48.62 µs"
    assert all(row.endswith(f" {time}") for row, time in zip(texts[1:], times, strict=True))


def test_a_table_too_wide_even_then_leaves_columns_out_and_says_which():
    columns = [
        NAMES,
        Column("rate", ("1.65 TB/s", ""), numeric=True, dispensable=2),
        Column("speed-up", ("253×", ""), numeric=True, dispensable=1),
        Column("time", ("48.62 µs", "3.02 s"), numeric=True),
    ]
    texts, left_out = table(columns, 46)
    assert left_out == ["speed-up"]
    assert "1.65 TB/s" in texts[1]
    assert table(columns, 34)[1] == ["speed-up", "rate"]
    assert all(time in text for time, text in zip(columns[3].cells, table(columns, 20)[0][1:], strict=True))


def test_a_wrapped_sentence_keeps_numbers_and_units_on_one_line():
    for width in range(24, 60):
        told = "cupy.exp: +5.3 % of 48.6 µs at 1.65 TB/s and 3.02 s ± 0.25 % in all"
        lines = wrapped(told, width, indent="  ")
        text = "\n".join(line.text for line in lines)
        assert all(whole in text for whole in ("+5.3 %", "48.6 µs", "1.65 TB/s", "3.02 s ± 0.25 %"))
        assert max(len(line.text) for line in lines) <= width
        assert "\N{NO-BREAK SPACE}" not in text
