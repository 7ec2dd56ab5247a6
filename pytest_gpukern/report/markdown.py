"""Writes a run as Markdown: what failed, then what changed, then counts, within a limit of length."""

from __future__ import annotations

import dataclasses
import itertools
import math
import re
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pytest_gpukern.report import units
from pytest_gpukern.report.layout import tied
from pytest_gpukern.report.rows import judged, scope_times
from pytest_gpukern.report.run import RunResults
from pytest_gpukern.report.summary import totals
from pytest_gpukern.values.result import Result, SessionRole
from pytest_gpukern.values.untrusted_json import bounded, printable
from pytest_gpukern.values.verdict_table import FAILED, STATES

MARKER = "<!-- gpukern -->"
"""The first line of a comment, by which a workflow finds the one that it wrote before."""
LONGEST_COMMENT = 65_536
"""Characters that GitHub takes in a comment."""

_LONGEST_NAME = 200
_LONGEST_TEXT = 500
_FOR_MORE = 200
_HEAD = "| case and reason | base | head | change | verdict |\n|---|---|---|---|---|"
"""The reason stands below the case's name: a column of its own would be narrow beside long names."""
_MARKUP = re.compile(r"[!\"#$&'*:<>?@\[\\\]^_`{|}~]|(?<=www)\.", re.IGNORECASE)
"""What may mean something to Markdown or to GitHub."""


@dataclass(frozen=True)
class _Row:
    """Holds what a table says of a verdict, a finding or a failure; texts are as found, not escaped."""

    case: str
    verdict: str
    reason: str
    base: str = ""
    head: str = ""
    change: str = ""
    ratio: float | None = None

    def __str__(self) -> str:
        case = _code(self.case) + (f"<br>{_text(self.reason)}" if self.reason else "")
        return f"| {' | '.join((case, *map(_text, (self.base, self.head, self.change, self.verdict))))} |"


def comment(run: RunResults) -> str:
    """Returns a comment for a pull request, of at most 65,536 characters; its first line is `MARKER`."""
    return f"{MARKER}\n{summary(run, most=LONGEST_COMMENT - len(MARKER) - 1)}"


def summary(run: RunResults, *, most: int) -> str:
    """Returns what failed, changes with the largest first, and counts, of at most `most` bytes in UTF-8."""
    failed, changed = list(_failed(run)), sorted(_changed(run), key=_by_size)
    count = len(run.failures)
    outcome = f"{count or 'no'} test{'s' * (count != 1)} failed" if run.ran else "nothing ran"
    title = f"### gpukern: {outcome}"
    devices = {f"{of.device_name}, driver {of.driver_version}" for of in run.on_gpus() if of.device_name}
    counts = [f"gpukern: {totals(run)}", "; ".join(sorted(devices)), *run.since_record, *run.problems]
    end = "\n\n".join(_fitting([_text(text) for text in counts if text], most // 4))
    room = most - len(f"{title}\n\n{end}\n".encode())
    parts = [title]
    for name, rows in (("Failed", failed), ("Changed", changed)):
        lines = [f"**{name}**\n\n{_HEAD}"]
        room -= len(lines[0].encode()) + _FOR_MORE
        for row in rows:
            line = str(row)
            room -= len(line.encode()) + 1
            if room < 0:
                break
            lines.append(line)
        left = len(rows) - (len(lines) - 1)
        if rows:
            parts.append("\n".join(lines) + (f"\n\n{left} more: `gpukern report` tells each" if left else ""))
    return "\n\n".join([*parts, end]) + "\n"


def _fitting(texts: Sequence[str], most: int) -> list[str]:
    """Returns the first texts, as many as have at most so many bytes; of escaped characters each has many."""
    sizes = itertools.accumulate(len(text.encode()) + 2 for text in texts)
    return [text for text, size in zip(texts, sizes, strict=True) if size <= most]


def _failed(run: RunResults) -> Iterator[_Row]:
    results = {result.nodeid: result for result in run.results}
    for nodeid, failure in run.failures.items():
        result = results.get(nodeid)
        if result is None:
            yield _Row(nodeid, FAILED, _first_line(failure.text))
            continue
        if not failure.by_the_gate:
            verdict, reason, _ = judged(result, None, failure.text)
            yield _Row(result.case_name, verdict, _first_line(reason))
        for why in failure.reasons:
            if why.key:
                yield _of_verdict(run, result, why.key, why.kind, why.text)
            else:
                yield _Row(result.case_name, why.kind.upper(), why.text)


def _changed(run: RunResults) -> Iterator[_Row]:
    """Yields rows for what changed in tests that did not fail: times, and what findings are about."""
    for result in run.results:
        if result.nodeid in run.failures:
            continue
        for time in scope_times(result):
            came_to = judged(result, time)
            if came_to.kind and (STATES[came_to.kind].changed or came_to.unsettled):
                yield _of_verdict(run, result, time.shown.key, came_to.kind, came_to.reason)
        for finding in result.findings:
            yield _Row(result.case_name, finding.kind, finding.text)


def _of_verdict(run: RunResults, result: Result, key: str, kind: str, reason: str) -> _Row:
    verdict = result.verdicts.get(key)
    row = _Row(f"{result.case_name} {key.partition('/')[0]}", kind, reason)
    ratio = verdict.ratio if verdict is not None and verdict.kind.value == kind else None
    if verdict is None or not units.is_number(ratio) or ratio <= 0:
        return row
    base, head = map(units.time, _sides(run, result, key, ratio, verdict.pairs))
    interval = units.change_range(verdict.ratio_low, verdict.ratio_high)
    change = units.change(ratio) + (f" ({interval})" if interval else "")
    return dataclasses.replace(row, base=base, head=head, change=change, ratio=ratio)


def _sides(
    run: RunResults, result: Result, key: str, ratio: float, pairs: Sequence[tuple[float, float]]
) -> tuple[float | None, float | None]:
    """Returns the times that a ratio is of: of the pairs, else of the record and the deciding sessions."""
    both = [pair for pair in pairs if all(units.is_number(ns) and ns > 0 for ns in pair)]
    if both:
        base, head = (statistics.geometric_mean(side) for side in zip(*both, strict=True))
        return base, head
    others = run.sessions_of(result)
    confirming = [session for session in others if session.role is SessionRole.CONFIRMING]
    times = [
        measurement.summary.median_ns
        for session in confirming or (result, *others)
        for measurement in session.measurements
        if measurement.key == key
    ]
    known = [time for time in times if units.is_number(time) and time > 0]
    now = statistics.geometric_mean(known) if known else None
    return now and now / ratio, now


def _by_size(row: _Row) -> tuple[bool, float]:
    return (row.ratio is None, -abs(math.log(row.ratio)) if row.ratio else 0.0)


def _first_line(text: str) -> str:
    return text.strip().partition("\n")[0]


def _code(name: str) -> str:
    """Returns a name as code: nothing in it is markup, and GitHub neither links nor notifies anybody.

    It may break behind its parts, or a long one would push the other columns out of sight.
    """
    return f"<code>{re.sub('(?<=[/,])', '<wbr>', _escaped(bounded(name, _LONGEST_NAME)))}</code>"


def _text(text: str) -> str:
    """Returns a text without markup, its numbers tied to their units.

    A joiner behind `@` and `#` keeps GitHub from notifying and linking.
    """
    return tied(re.sub("&#(64|35);", r"&#\1;&#8288;", _escaped(bounded(text, _LONGEST_TEXT))))


def _escaped(text: str) -> str:
    return _MARKUP.sub(lambda match: f"&#{ord(match[0])};", printable(text))
