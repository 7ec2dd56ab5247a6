"""The line about how far a run is: in place on a terminal, now and then in a log."""

import io
import re

import pytest
from _pytest._io import TerminalWriter

from pytest_gpukern.report.progress import Progress, telling_now_and_then


class Screen(io.StringIO):
    """What a terminal shows of what is written: the few escape sequences that we use."""

    def __init__(self, width):
        super().__init__()
        self.lines, self.row, self.column, self.width = [""], 0, 0, width

    def write(self, text):
        for code in re.findall(r"\x1b\[\d*[AGJ]|.", text, re.DOTALL):
            if code == "\n":
                self.row, self.column = self.row + 1, 0
                self.lines += [""] * (self.row + 1 - len(self.lines))
            elif code == "\x1b[A":
                self.row -= 1
            elif code.endswith("G") and code[0] == "\x1b":
                self.column = int(code[2:-1]) - 1
            elif code == "\x1b[J":
                self.lines[self.row :] = [self.lines[self.row][: self.column]]
            else:
                line = self.lines[self.row].ljust(self.column)
                self.lines[self.row] = line[: self.column] + code + line[self.column + 1 :]
                self.column += 1
                assert self.column < self.width, "a line that wraps cannot be rewritten"

    def isatty(self):
        return False


class Reporter:
    """As pytest's, on a file."""

    def __init__(self, file, width=80):
        self._tw = TerminalWriter(file)
        self._tw.fullwidth = width
        self.write_line = self._tw.line
        self.flush = self._tw.flush

    def ensure_newline(self):
        pass


def test_on_a_terminal_one_line_is_rewritten_below_the_dots_and_gone_at_the_end():
    screen, now = Screen(80), [0.0]
    reporter = Reporter(screen)
    progress = Progress(reporter, in_place=True, clock=lambda: now[0])
    reporter._tw.write("test_exp.py .")
    progress.show("measuring test_exp[a]", 1, 100, share=0.01)
    assert screen.lines == ["test_exp.py ."], "a short run shows none"
    now[0] = 10.0
    progress.show("measuring test_exp[a_rather_long_name_of_a_variant/n=1000]", 10, 100, share=0.1)
    first, line = screen.lines
    assert first == "test_exp.py ."
    assert line.startswith("gpukern: 10 of 100 · measuring test")
    assert line.endswith("/n=1000] · 10 s, about 1 min 30 s left")
    progress.clear()
    reporter._tw.write(".")
    progress.redraw()
    now[0] = 50.0
    progress.show("measuring test_exp[b]", 50, 100, share=0.5)
    told = "gpukern: 50 of 100 · measuring test_exp[b] · 50 s, about 50 s left"
    assert screen.lines == ["test_exp.py ..", told]
    progress.end()
    progress.redraw()
    assert screen.lines == ["test_exp.py .."]


def test_in_a_log_a_line_is_written_every_thirty_seconds_and_no_more():
    log, now = io.StringIO(), [100.0]
    progress = Progress(Reporter(log), in_place=False, clock=lambda: now[0])
    for at, finished in ((129.9, 1), (130.0, 2), (159.0, 3), (160.0, 98)):
        now[0] = at
        progress.show("exp/cupy.exp/n=1000 48.6 µs", finished, 98, share=finished / 98)
        progress.redraw()
    progress.end()
    assert log.getvalue().splitlines() == [
        "gpukern: 2 of 98 · exp/cupy.exp/n=1000 48.6 µs · 30 s, about 24 min 0 s left",
        "gpukern: 98 of 98 · exp/cupy.exp/n=1000 48.6 µs · 1 min 0 s",
    ]


def test_without_a_terminal_reporter_nothing_is_shown():
    Progress(None, in_place=True, every_s=0.0).show("measuring", 1, 2, share=0.5)


@pytest.mark.parametrize("every_s", [3600.0, 0.0])
def test_how_far_a_session_is_is_told_once_it_is_due(every_s):
    told = []
    progress = telling_now_and_then(told.append, "memcheck", every_s)
    progress(3, 120)
    progress(4, 120)
    assert told == ([] if every_s else ["memcheck: 3 of 120", "memcheck: 4 of 120"])
