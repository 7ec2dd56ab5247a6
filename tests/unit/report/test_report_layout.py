"""Lines that fit a terminal; tables are in `tests/plugin/test_golden.py`."""

from __future__ import annotations

from pytest_gpukern.report.layout import wrapped


def test_a_wrapped_sentence_keeps_numbers_and_units_on_one_line():
    for width in range(24, 60):
        told = "cupy.exp: +5.3 % of 48.6 µs at 1.65 TB/s and 3.02 s ± 0.25 % in all"
        lines = wrapped(told, width, indent="  ")
        text = "\n".join(line.text for line in lines)
        assert all(whole in text for whole in ("+5.3 %", "48.6 µs", "1.65 TB/s", "3.02 s ± 0.25 %"))
        assert max(len(line.text) for line in lines) <= width
        assert "\N{NO-BREAK SPACE}" not in text
