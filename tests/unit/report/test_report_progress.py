"""The line about how far a run is: in place on a terminal, now and then in a log."""

import io
import math
import re

import pytest
from _pytest._io import TerminalWriter

from pytest_gpukern.report.progress import Progress, TimeLeft, telling_now_and_then


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
    progress.show("measuring test_exp[a]", 1, 100, left_s=None)
    assert screen.lines == ["test_exp.py ."], "a short run shows none"
    now[0] = 10.0
    progress.show("measuring test_exp[a_rather_long_name_of_a_variant/n=1000]", 10, 100, left_s=90.0)
    first, line = screen.lines
    assert first == "test_exp.py ."
    assert line.startswith("gpukern: 10 of 100 · measuring test")
    assert line.endswith("/n=1000] · 10 s, about 1 min 30 s left")
    progress.clear()
    reporter._tw.write(".")
    progress.redraw()
    now[0] = 50.0
    progress.show("measuring test_exp[b]", 50, 100, left_s=50.0)
    told = "gpukern: 50 of 100 · measuring test_exp[b] · 50 s, about 50 s left"
    assert screen.lines == ["test_exp.py ..", told]
    progress.end()
    progress.redraw()
    assert screen.lines == ["test_exp.py .."]


def test_in_a_log_a_line_is_written_every_thirty_seconds_and_no_more():
    log, now = io.StringIO(), [100.0]
    progress = Progress(Reporter(log), in_place=False, clock=lambda: now[0])
    for at, finished, due in ((129.9, 1, False), (130.0, 2, True), (159.0, 3, False), (160.0, 98, True)):
        now[0] = at
        assert progress.is_due is due
        progress.show("exp/cupy.exp/n=1000 48.6 µs", finished, 98, left_s=30.0 * (98 - finished))
        progress.redraw()
    progress.end()
    assert log.getvalue().splitlines() == [
        "gpukern: 2 of 98 · exp/cupy.exp/n=1000 48.6 µs · 30 s, about 48 min 0 s left",
        "gpukern: 98 of 98 · exp/cupy.exp/n=1000 48.6 µs · 1 min 0 s",
    ]


def test_without_a_terminal_reporter_nothing_is_shown():
    Progress(None, in_place=True, every_s=0.0).show("measuring", 1, 2, left_s=1.0)


@pytest.mark.parametrize("left_s", [None, 0.0, -1.0, math.inf, math.nan])
def test_a_time_left_that_is_none_is_not_shown(left_s):
    log = io.StringIO()
    Progress(Reporter(log), in_place=False, every_s=0.0).show("measuring", 1, 2, left_s=left_s)
    assert log.getvalue() == "gpukern: 1 of 2 · measuring · 0 s\n"


def test_without_recorded_durations_the_time_left_is_by_the_pace():
    left = TimeLeft({})
    assert left.left_s(9.0, 0, 10) is None
    left.end("a", 1.0, measured=True)  # of 5 s, the rest to start a process
    assert left.left_s(5.0, 1, 10) == pytest.approx(45.0)
    assert left.left_s(5.0, 1, 10, sessions=3) == pytest.approx(45.0 + 2 * 50.0)


def test_workers_share_what_is_left():
    left = TimeLeft({f"test_{number}": 10.0 for number in range(4)})
    for number in range(2):
        left.end(f"test_{number}", 20.0, measured=True)
    assert left.left_s(20.0, 2, 4, workers=2) == 20.0
    assert TimeLeft({}).left_s(20.0, 2, 4, workers=2) == 20.0


def test_with_recorded_durations_the_time_left_is_theirs_at_the_speed_of_this_machine():
    left = TimeLeft({"short": 1.0, "skipped": 50.0, "long": 100.0})
    left.end("skipped", 0.0, measured=False)
    assert left.left_s(3.0, 1, 3) == pytest.approx(101.0), "a skip says nothing about the machine"
    left.end("short", 2.0, measured=True)
    assert left.left_s(5.0, 2, 3) == pytest.approx(200.0)
    assert left.left_s(5.0, 2, 3, sessions=2) == pytest.approx(200.0 + 302.0)
    left.end("long", 200.0, measured=True)
    assert left.left_s(205.0, 3, 3) == 0.0


def test_a_test_without_a_recorded_duration_takes_the_mean_of_such_tests():
    left = TimeLeft({"short": 1.0, "long": 100.0})
    left.end("short", 1.0, measured=True)
    assert left.left_s(2.0, 1, 4) == pytest.approx(100.0 + 2 * 2.0), "or of all, before one has ended"
    left.end("new", 11.0, measured=True)
    assert left.left_s(12.0, 2, 4) == pytest.approx(100.0 + 11.0)
    left.end("short", 1.0, measured=True)  # again: some plugins run what failed once more
    assert left.left_s(13.0, 3, 4) == pytest.approx(100.0)


@pytest.mark.parametrize("said_s", [0.0, 5e-324, 1e308])
def test_a_forged_duration_ends_no_run(said_s):
    left = TimeLeft({"a": said_s, "b": said_s, "c": said_s})
    left.end("a", 1.0, measured=True)
    left_s = left.left_s(1.0, 1, 3, sessions=5)
    Progress(Reporter(io.StringIO()), in_place=False, every_s=0.0).show("b", 1, 3, left_s=left_s)


@pytest.mark.parametrize("every_s", [3600.0, 0.0])
def test_how_far_a_session_is_is_told_once_it_is_due(every_s):
    told = []
    progress = telling_now_and_then(told.append, "memcheck", every_s)
    progress(3, 120)
    progress(4, 120)
    assert told == ([] if every_s else ["memcheck: 3 of 120", "memcheck: 4 of 120"])
