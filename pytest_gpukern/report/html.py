"""Writes the HTML report: one file that loads nothing, made of one or several runs.

The page's data is JSON in a script element of its own, and `page/page.js` shows it. Words and figures come
from the modules that the terminal's report takes them from.

A run's file may come from anybody, so nothing of it becomes markup: `<` is escaped in the data, the script
makes text nodes of it, and the page's Content-Security-Policy lets only our script run, by its hash.
"""

from __future__ import annotations

import base64
import bisect
import functools
import hashlib
import itertools
import math
import operator
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from importlib import resources
from typing import Any

import msgspec

from pytest_gpukern.baseline.record import NO_RECORD
from pytest_gpukern.findings.common_shift import MachineVerdict
from pytest_gpukern.findings.trend import FEWEST_SESSIONS, SeriesKey, Trend, date_of, moment_of, since_when
from pytest_gpukern.gate.change import percent
from pytest_gpukern.measure.ceilings import rate_of
from pytest_gpukern.measure.statistics import at_widest_gap
from pytest_gpukern.package import __version__
from pytest_gpukern.report import conclusion, details, units
from pytest_gpukern.report.recorded import trends
from pytest_gpukern.report.records import repeat
from pytest_gpukern.report.rows import COLUMNS, COPY, FMA, ResultRow, chosen_text, nearest_ceiling, own_size
from pytest_gpukern.report.run import BASELINE, NextStep, RunResults
from pytest_gpukern.report.summary import (
    false_alarms,
    problems_of,
    remarks_on,
    skip_texts,
    time_spent,
    totals,
)
from pytest_gpukern.values.garbage import gc_paused
from pytest_gpukern.values.grouping import grouped
from pytest_gpukern.values.note import About
from pytest_gpukern.values.result import JsonDict, Measurement, OutputError, Result, sizes_text
from pytest_gpukern.values.untrusted_json import printable_lines
from pytest_gpukern.values.verdict_table import STATES, VerdictKind, severity

_MOST_BINS, _FEWEST_BINS = 40, 8
_FEWEST_BINNED = 20
"""Of fewer samples bins say nothing."""
_LARGEST = 1e30
"""Numbers from here on, which only a damaged file has, are left out: the axes of a plot would have no end."""
_TIMES = operator.attrgetter("summary.median_ns", "summary.low_ns", "summary.high_ns")
_COLUMNS = ("time", "uncertainty", "rate", "speedup", "error")
"""Of the terminal's table; the page has the others in its own way."""
_CHANGED = [kind.value for kind in VerdictKind if kind.row.changed]
_TAIL = 5.0
"""Times the distance from the median to the 90th percentile, beyond which samples are left out of bins."""


@gc_paused()  # what is made here has no cycles, and the collector would look at all results again and again
def page(runs: Sequence[RunResults], **more: object) -> bytes:
    """Returns the page of runs, or of what else the script shows: the cards of a fleet."""
    script, style = _file("page.js"), _file("page.css")
    policy = (
        f"default-src 'none'; script-src {_hash(script)}; style-src {_hash(style)}; "
        "img-src data:; base-uri 'none'; form-action 'none'; require-trusted-types-for 'script'"
    )
    before = f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>gpukern</title>
<link rel="icon" href="data:,">
<style>{style}</style>
</head>
<body>
<header><b>pytest-gpukern {__version__}</b></header>
<main><noscript>This report needs JavaScript. It loads nothing from elsewhere.</noscript></main>
<script type="application/json" id="data">"""
    behind = f"""</script>
<script>{script}</script>
</body>
</html>
"""
    data = _escaped(_plain(_data(runs) | more))
    return b"".join([before.encode(), data, behind.encode()])  # text takes twice the memory


def _data(runs: Sequence[RunResults]) -> JsonDict:
    # A run comes before the records that it is shown with, which know no duration.
    newest_first = sorted(runs, key=lambda run: (run.duration_s is not None, run.created), reverse=True)
    shown = [_RunData(run, trends([run])) for run in newest_first]
    return {
        "units": {"time": units.TIMES, "rate": [(scale, f"{name}FLOP/s") for scale, name in units.RATES]},
        "titles": {name: column.title for name, column in COLUMNS.items()},
        "tones": {state: row.tone for state, row in STATES.items()},
        "barred": [state for state, row in STATES.items() if row.always_fails],
        "columns": _columns(),
        "trends": _trends(shown[0].series if len(shown) == 1 else trends(newest_first)),
        "runs": [run.json() for run in shown],
    }


def _file(name: str) -> str:
    return resources.files("pytest_gpukern.report").joinpath("page", name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    """Returns the text's hash as a Content-Security-Policy has it."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _escaped(data: object) -> bytes:
    """Returns JSON in which no text ends the script element or begins another."""
    text = msgspec.json.encode(data)
    for character in "<>&\u2028\u2029":
        text = text.replace(character.encode(), f"\\u{ord(character):04x}".encode())
    return text


def _plain(value: Any) -> Any:
    """Returns JSON values: figures of five digits, none that is not finite, and printable text."""
    kind = type(value)
    if value is None or kind is int:  # most of a page
        return value
    if kind is float:
        return _rounded(value) if abs(value) < _LARGEST else None
    if isinstance(value, str):
        return value if value.isprintable() else printable_lines(value)
    if isinstance(value, (list, tuple)):
        return [*map(_plain, value)]
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    return value


def _rounded(value: float) -> float | int:
    rounded = float(f"{value:.5g}") if abs(value) * _LARGEST > 1 else 0.0
    return int(rounded) if rounded.is_integer() and abs(rounded) < 1e15 else rounded


def _table(entries: Iterable[JsonDict]) -> JsonDict:
    """Returns dicts with the same keys as their names, once, and a list of values for each."""
    rows = list(entries)
    return {"names": list(rows[0]) if rows else [], "rows": [list(row.values()) for row in rows]}


def _columns() -> list[tuple[str, str]]:
    """Returns each heading of a column with what it means, as the documentation has them."""
    lines = _file("columns.md").splitlines()
    named = [[cell.strip() for cell in line.strip("| ").split(" | ")] for line in lines]
    return [(title, meaning.replace("`", "")) for titles, meaning in named for title in titles.split(", ")]


def _trends(series: Mapping[SeriesKey, Trend]) -> JsonDict:
    """Returns each series that is long enough for steps."""
    return _table(
        {
            "case": case_id,
            "scope": key.partition("/")[0],
            "moments": tuple(_moment(date_of(at)) for at in trend.points),
            "ns": trend.times_ns,
            "levels": trend.levels,
            "change": trend.change,
        }
        for (case_id, key), trend in series.items()
        if len(trend.points) >= FEWEST_SESSIONS
    )


# --- a run ----------------------------------------------------------------------------------------


class _RunData:
    def __init__(self, run: RunResults, series: Mapping[SeriesKey, Trend]) -> None:
        self.run, self.series = run, series
        problems = problems_of(run)
        self.rows = [row for problem in problems for row in problem.rows]
        self.results = [result for problem in problems for result in problem.results]
        self.shared = {problem.name: problem.shared for problem in problems}
        self.named = Counter(result.case.id for result in self.results)
        self.places = {id(result): place for place, result in enumerate(self.results)}
        # What was launched crosses once; a line has its number, in the order in which things come.
        self.launched = defaultdict[tuple[str, ...], int](itertools.count().__next__)

    def json(self) -> JsonDict:
        run = self.run
        by_result = grouped((id(row.result), row) for row in self.rows)
        remarks = remarks_on(self.rows)
        since = *map(str.strip, run.heading), *run.since_record, false_alarms(run.results), time_spent(run)
        failed = conclusion.cards(run, self.series)
        return {
            "cases": _table(self._case(result, by_result[id(result)]) for result in self.results),
            "scopes": _table(self._scope(row, row.timed) for row in self.rows if row.timed),
            "rows": _table(map(self._row, self.rows)),
            "name": run.record_of or f"{_moment(run.created)}, {_device(run)}",
            "headline": conclusion.headline(run, failed),
            "context": conclusion.context(run),
            "verdict": totals(run),
            "failures": [self._card_of(card) for card in failed],
            "others": [(of.kind, of.cases, of.change, of.cause) for of in conclusion.others(run)],
            "facts": _facts(run),
            "problems": run.problems,
            "machine": run.machine * (run.compared_with == BASELINE),
            "since": [text for text in since if text],
            "canaries": _canaries(run),
            "notes": [
                (note.footnote.text, [*zip(self._places(note.results), note.labels, strict=True)])
                for note in remarks.get("", ())
            ],
            "nothing_recorded": run.nothing_recorded,
            "closing": [line if isinstance(line, NextStep) else (line, "") for line in run.closing],
            "skips": skip_texts(run.skips),
            "shared": [(problem, sizes_text(sizes)) for problem, sizes in self.shared.items()],
            "ceilings": _ceilings(run),
            "launched": list(self.launched),
            "error_titles": _ERROR_TITLES,
            "kernel_titles": ["Name", *details.LAUNCH_TITLES],
            "work_titles": _WORK_TITLES,
        }

    def _places(self, results: Iterable[Result | None]) -> list[int]:
        return [self.places[id(result)] for result in results if result is not None]

    def _card_of(self, card: conclusion.FailureCard) -> JsonDict:
        """Returns a failure with what it is called here, and with the places of its cases."""
        texts = ("kind", "name", "sizes", "scope", "what", "since", "why", "repeat", "accept", "advice")
        change = card.change
        figures = ("times", "percent", "interval", "limit", "share_before", "share_now")
        return {
            **{name: getattr(card, name) for name in texts},
            **({name: getattr(change, name) for name in figures} if change else {}),
            "cases": self._places(card.results),
        }

    def _row(self, row: ResultRow) -> JsonDict:
        """Returns a row of the table: its texts, and the numbers by which it is sorted and drawn."""
        result, time, measurement = row.result, row.measurement, row.timed
        verdict = row.judged.verdict if measurement else None
        ns = measurement.summary.median_ns if measurement else None
        traffic, flops = (getattr(measurement, name, None) for name in ("traffic_bytes", "flops"))
        reached, limit = nearest_ceiling(row.shares) or ("", "")
        on_roof = measurement is not None and measurement.scope == "kernel" and result.case.on_gpu
        key = measurement.key if measurement and verdict else ""
        sides = conclusion.times_before_and_now(self.run, result, key)
        return {
            "case": self.places[id(result)],
            "scope": time.scope if time else "",
            **{name: COLUMNS[name].text(row) for name in _COLUMNS},
            "state": row.state,
            "rank": severity(row.state),
            "ns": ns,
            "reached": reached,
            "of_limit": limit,
            "share": max(row.shares.values(), default=None),
            "factor": row.factor,
            "error_n": max((error.max_rel or 0.0 for error in result.errors.values()), default=None),
            "ratio": verdict.ratio if verdict else None,
            "change": units.change(verdict.ratio) if verdict and verdict.ratio else "",
            "way": units.way(*sides) if sides else "",
            "sides": sides,
            "spent": details.spent(result, measurement) if measurement else "",
            "interval": units.change_interval(verdict.ratio_low, verdict.ratio_high) if verdict else "",
            "intensity": flops / traffic if on_roof and flops and traffic else None,
            "flop_s": units.per_second(flops, ns) if on_roof and traffic else None,
        }

    def _case(self, result: Result, rows: Sequence[ResultRow]) -> JsonDict:
        case = result.case
        footnotes = dict.fromkeys(
            (footnote.kind, footnote.text, footnote.key) for row in rows for footnote in row.footnotes
        )
        epochs = self.run.history.get(result.nodeid, NO_RECORD).epochs
        seen = any(measurement.work for measurement in result.measurements)
        shared = self.shared[case.problem]
        return {
            # Tests of two modules may share an id, and links need one for each.
            "id": case.id if self.named[case.id] == 1 else result.nodeid,
            "nodeid": result.nodeid,
            "problem": case.problem,
            "backend": case.backend or "",
            "variant": case.label,
            "point": own_size(case.point, shared),
            "with": f"{own_size(case.parameters, shared)} {chosen_text(result)}".strip(),
            "against": result.speedup_against or "",
            "command": repeat(self.run, [result.nodeid], [result]),
            "facts": _facts_of(result),
            "told": tuple(footnotes),
            "errors": tuple(_error(name, error) for name, error in result.errors.items()),
            "kernels": tuple(
                (name, *details.launch_cells(kernel))
                for name, kernel in (*((of.name, of) for of in result.kernels), *details.compiled(result))
                if not seen
            ),
            "observed": tuple(details.observed(result)),
            "epochs": tuple((_moment(epoch.opened), epoch.reason or "") for epoch in epochs),
        }

    def _scope(self, row: ResultRow, measurement: Measurement) -> JsonDict:
        """Returns what a row's measurement has beside the row: its histogram, sessions and device work."""
        result, summary, half = row.result, measurement.summary, measurement.summary.half_width
        verdict = result.verdicts.get(measurement.key)
        samples = [ns for ns in measurement.samples_ns if ns is not None and abs(ns) < _LARGEST]
        humps = any(note.about is About.MODES for note in summary.notes)
        trend, changed = self.series.get((result.case.id, measurement.key)), row.judged.kind in _CHANGED
        step = trend.change if trend else ""
        return {
            "case": self.places[id(result)],
            "timing": (measurement.scope, measurement.timer, measurement.cache),
            "range": units.time_range(summary.low_ns, summary.high_ns, half) if half is not None else "",
            **{name: getattr(summary, name) for name in ("low_ns", "high_ns", "n")},
            "told": _sampling(measurement),
            "reason": row.judged.reason,
            "threshold": units.change(1 + verdict.threshold) if verdict and verdict.threshold else "",
            "limit_at": verdict.threshold if verdict else None,
            "since": since_when(result, self.run.history.get(result.nodeid), trend) if changed else step,
            "distribution": distribution(samples, humps=humps),
            "sessions": self._sessions(result, measurement),
            "work": self._work(details.breakdown(result, measurement)),
        }

    def _sessions(self, result: Result, measurement: Measurement) -> tuple[tuple[Any, ...], ...]:
        """Returns the recorded sessions, oldest first, then the run's.

        Each has moment, card, its epoch or what it was measured for, the median and the ends of its interval.
        """
        run, key = self.run, measurement.key
        sessions: list[tuple[datetime | str, str | None, int | str, Measurement]] = [
            (time.session.recorded, time.device, time.epoch, time.measurement)
            for time in run.history.get(result.nodeid, NO_RECORD).times(key)
        ]
        for session in (result, *run.sessions_of(result)):
            time = session.time(key)
            if time is not None and time.invalid is None:
                sessions.append((run.created, session.device, session.role.value, time))
        return tuple(
            (_moment(moment), card.removeprefix("GPU-")[:8] if card else None, of, *_TIMES(time))
            for moment, card, of, time in sessions
            if (ns := time.summary.median_ns) is not None and abs(ns) < _LARGEST
        )

    def _work(self, work: details.Breakdown | None) -> tuple[str, tuple[object, ...], tuple[str, ...]] | None:
        """Returns title, rows and notes; a row ends with the number of what was launched."""
        if work is None:
            return None
        launched = [(line.name, *details.launch_cells(line.kernel)) for line in work.lines]
        rows = ((*line.cells, self.launched[of]) for line, of in zip(work.lines, launched, strict=True))
        return work.title, tuple(rows), work.notes


# --- samples --------------------------------------------------------------------------------------


def distribution(samples_ns: Sequence[float], *, humps: bool = False) -> tuple[Any, ...] | None:
    """Returns the ends of a histogram, counts of its bins, a note and its humps; None of few samples.

    Where few samples are far above the others, the bins leave them out, and the note says so. Each hump has
    its share of the samples, in words, and its median.
    """
    if len(samples_ns) < _FEWEST_BINNED:
        return None
    ordered = sorted(samples_ns)
    median, tenth = statistics.median(ordered), ordered[(9 * len(ordered)) // 10]
    count = bisect.bisect_right(ordered, max(tenth, median + _TAIL * (tenth - median)))
    low, high, far = ordered[0], ordered[count - 1], len(ordered) - count
    bins = min(_MOST_BINS, max(_FEWEST_BINS, 2 * math.isqrt(count))) if high > low else 1
    ends = [bisect.bisect_left(ordered, low + (high - low) * place / bins) for place in range(1, bins)]
    counts = tuple(end - start for start, end in itertools.pairwise((0, *ends, count)))
    samples = "1 sample is" if far == 1 else f"{far} samples are"
    note = f"{samples} above {units.time(high)}, up to {units.time(ordered[-1])}" if far else ""
    parts = at_widest_gap(ordered) if humps else ()
    told = [(units.share(len(part) / len(ordered)), statistics.median(part)) for part in parts]
    return low, high, counts, note, told


# --- in words -------------------------------------------------------------------------------------


@functools.lru_cache(1024)
def _moment(moment: datetime | str) -> str:
    """Returns a moment, or the ISO 8601 time of a record, in UTC to the minute; other text as it is."""
    known = moment_of(str(moment))
    return f"{known:%Y-%m-%d %H:%M} UTC" if known else str(moment)


def _sampling(measurement: Measurement) -> str:
    calls = f", each the mean of {measurement.iterations} calls" if measurement.iterations > 1 else ""
    stopped = f"; stopped: {measurement.stopped}" if measurement.stopped else ""
    contains = f"{measurement.measures}; " if measurement.measures else ""
    return f"{contains}{measurement.summary.n} samples{calls}{stopped}"


def _device(run: RunResults) -> str:
    return " and ".join(dict.fromkeys(of.device_name for of in run.on_gpus() if of.device_name)) or "no GPU"


def _facts(run: RunResults) -> list[tuple[str, str]]:
    """Returns what the results were measured on; where sessions differ, what each has."""
    texts_of: dict[str, dict[str, None]] = {"driver": {}, "libraries": {}, "host": {}}
    for of in {id(result.fingerprint): result.fingerprint for result in run.results}.values():
        driver = f"{of.driver_version}, CUDA {of.cuda_driver_version or 'unknown'}"
        texts_of["driver"][driver if of.driver_version else ""] = None
        texts_of["libraries"][", ".join(f"{name} {version}" for name, version in of.libraries.items())] = None
        texts_of["host"][of.cpu_model or ""] = None
    facts = [
        ("device", _device(run)),
        *((label, "; ".join(filter(None, texts))) for label, texts in texts_of.items()),
        ("compared with", run.compared_with),
        ("written by", f"pytest-gpukern {run.version}"),
    ]
    return [(label, text) for label, text in facts if text]


def _facts_of(result: Result) -> tuple[tuple[str, str], ...]:
    facts = [
        ("correctness", result.correctness.value + (" in the simulator" if result.simulated else "")),
        ("work declared in", result.dtype or ""),
        ("first call", units.time(result.first_call_ns) if result.first_call_ns else ""),
        ("compiling", units.time(result.compile_ns) if result.compile_ns else ""),
        ("checked at", ", ".join(result.corners)),
    ]
    return tuple((label, text) for label, text in facts if text)


def _canaries(run: RunResults) -> list[tuple[str, str, str, str]]:
    """Returns the canaries' times, by how much they moved since the record, and what that comes to."""
    times: dict[str, dict[str, float]] = {}
    for result in run.results:
        for name, ns in result.canaries.items():
            if units.is_number(ns):
                times.setdefault(name, {})[result.session] = ns
    changes = run.shift.canaries if run.shift else {}
    rows = []
    for name, by_session in times.items():
        moved, time = changes.get(name), units.time(statistics.median(by_session.values()))
        known = moved is not None and moved.ratio > 0
        change = percent(math.log(moved.ratio)) if moved and known else ""
        rows.append((name, time, change, str(moved if known else MachineVerdict.NOT_KNOWN)))
    return rows


def _ceilings(run: RunResults) -> list[tuple[str, str, float, str]]:
    """Returns name, kind, rate and text of each measured ceiling that a kernel of the run may meet."""
    rates = next((result.ceilings for result in run.results if result.ceilings and not result.simulated), {})
    copy = rates.get("device_copy_bytes_per_s")
    ceilings = [(COPY, "memory", copy, units.bandwidth(copy, 1e9))] if copy else []
    for name in dict.fromkeys(filter(None, (rate_of(result.dtype) for result in run.results))):
        if rate := rates.get(name):
            label = f"{FMA} {name.partition('_')[0]}"  # of a field such as `float32_flop_per_s`
            ceilings.append((label, "compute", rate, units.throughput(rate, 1e9)))
    return ceilings


_FIGURES = ("elements", "mismatches", "ULP", "relative", "absolute")
_ERROR_TITLES = ("output", *((title, True) for title in _FIGURES), "repeated launches")


def _error(name: str, error: OutputError) -> tuple[str, ...]:
    sizes = units.relative_error(error.max_rel), units.relative_error(error.max_abs)
    counts = str(error.size), str(error.mismatches), units.ulps(error.max_ulp)
    return (name, *counts, *sizes, error.determinism or "")


_WORK_TITLES = (*((title, True) for title in details.WORK_TITLES), "Name", *details.LAUNCH_TITLES)
"""Columns of figures stand to the right."""
