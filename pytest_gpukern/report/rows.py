"""Turns results into rows of text: one a scope, or one for a result without any measurement."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from pytest_gpukern.findings.regressions import TELLING_ULP
from pytest_gpukern.measure.ceilings import Ceilings
from pytest_gpukern.report import units
from pytest_gpukern.values.note import About, Note
from pytest_gpukern.values.result import Correctness, Measurement, OutputError, Result, Verdict, sizes_text
from pytest_gpukern.values.untrusted_json import first_line
from pytest_gpukern.values.verdict_table import FAILED, INCORRECT, STATES, Tone, VerdictKind

_COMPUTE_BOUND = 10.0
"""Operations a byte from which a rate is given in GFLOP/s: about where an H200's float32 units saturate."""

_USUAL = {"num_ctas": "1", "num_stages": "3"}
"""Settings that Triton gives a configuration that names none; as they are they say nothing."""

Timing = tuple[str, str, str]
"""Scope, timer and cache policy of a measurement."""

_LEAST_COPYING = 0.01
"""Share of a call's time that copies from and to the host take at least where these bound it."""

_COLOURS = {
    Tone.BAD: {"white": True, "Red": True, "bold": True},
    Tone.GOOD: {"black": True, "Green": True},
    Tone.DOUBTFUL: {"black": True, "Yellow": True},
}
"""Text and its ground, so that both are seen on black and on white."""

COPY, FMA, HOST_COPY = "copy", "FMA", "host copy"
"""Ceilings: the device's copy bandwidth, its rate of multiply-adds, and copies to and from the host."""


class Doubt(NamedTuple):
    """Says what leaves a time UNDECIDED, in a table's cell and in a sentence."""

    short: str
    sentence: str


OTHER_CARD = Doubt("other card", "another card than recorded")
SPREAD = Doubt("spread", "sessions spread too far")


def doubt_about(verdict: Verdict) -> Doubt:
    if verdict.others_share is not None:
        return Doubt("busy host", f"other programs used {units.share(verdict.others_share)} of the CPUs")
    return OTHER_CARD if verdict.other_card else SPREAD


def markup_of(state: str) -> dict[str, bool]:
    """Returns how a terminal colours a verdict or what stands in its place; nothing for other words."""
    return _COLOURS.get(STATES[state].tone, {}) if state in STATES else {}


@dataclass(frozen=True, slots=True)
class Footnote:
    """Holds something to say about a row.

    Attributes:
        kind: of a verdict or a finding; empty for a note.
        key: `scope/timer/cache` of the measurement that a verdict is about.
        ratio: new time ÷ recorded time, for a verdict that has it.
        quiet: whether it is told at length only.
    """

    kind: str
    text: str
    key: str = ""
    ratio: float | None = None
    quiet: bool = False


class Judged(NamedTuple):
    """Says what a time came to.

    Attributes:
        kind: of its verdict, or what stands in its place; empty where nothing was compared.
        reason: why, with what else changed.
        verdict: how it compares with the record; None where it is INVALID or not compared.
    """

    kind: str = ""
    reason: str = ""
    verdict: Verdict | None = None

    @property
    def line(self) -> str:
        """Its reason in one line; a diagnosis has several."""
        return first_line(self.reason)

    @property
    def doubt(self) -> Doubt | None:
        """What leaves it UNDECIDED; None where it is not."""
        undecided = self.verdict if self.kind == VerdictKind.UNDECIDED else None
        return doubt_about(undecided) if undecided else None


def _by_code(result: Result) -> Judged:
    """Returns the worst that became of its machine code, with what is to be said of each architecture."""
    verdicts = result.verdicts.values()
    if result.measurements or not verdicts:
        return Judged()
    worst = min((verdict.kind for verdict in verdicts), key=lambda kind: kind.row.severity)
    reasons = dict.fromkeys(verdict.reason for verdict in verdicts if verdict.kind is worst)
    return Judged(worst.value, "; ".join(reasons))


@dataclass(frozen=True)
class ResultRow:
    """Holds one line of a table: a time of a result, or a result without one.

    Its properties are what any form says of the line, each made where a form first asks for it.

    Attributes:
        measurement: whose time it tells, or None.
        failure: the first line of why the test failed by itself, or None.
        first: whether it is the first of its result, and so names the case and its error.
        peers: results at its point, of which its speed-up is against one.
        shared: axes and parameters that are said elsewhere.
    """

    result: Result
    measurement: Measurement | None = None
    failure: str | None = None
    first: bool = True
    peers: Sequence[Result] = ()
    shared: Collection[str] = ()

    @functools.cached_property
    def judged(self) -> Judged:
        """What its time came to, also where the test failed by itself; no time counts of a wrong output."""
        result, time = self.result, self.measurement
        if result.correctness is Correctness.INCORRECT:
            return Judged(INCORRECT, (result.diagnosis or "").strip())
        if time is None:
            return _by_code(result)
        if time.invalid is not None:
            return Judged(VerdictKind.INVALID.value, time.invalid)
        verdict = result.verdicts.get(time.key)
        return Judged(verdict.kind.value, verdict.explained, verdict) if verdict else Judged()

    @functools.cached_property
    def standing(self) -> Judged:
        """What its time came to, or that the test failed by itself: then no time of it counts."""
        if self.failure is None or self.judged.kind == INCORRECT:
            return self.judged
        return self.judged._replace(kind=FAILED, reason=self.failure)

    @property
    def state(self) -> str:
        """FAILED for a test that failed by itself, else the verdict or what became of it, in a word."""
        return self.standing.kind or self.became

    @property
    def became(self) -> str:
        """What became of it apart from a verdict: `measured`, `checked`, `unchecked` …"""
        result = self.result
        if result.code or result.simulated:
            return "compiled" if result.code else "simulated"
        unchecked = result.correctness is Correctness.UNCHECKED
        return "measured" if self.measurement else "unchecked" if unchecked else "checked"

    @property
    def timed(self) -> Measurement | None:
        """Its measurement, but the simulator's: that is no time of a kernel, whoever took it."""
        return None if self.result.simulated else self.measurement

    @property
    def timing(self) -> Timing | None:
        time = self.measurement
        return (time.scope, time.timer, time.cache) if time is not None else None

    @property
    def own_size(self) -> str:
        return own_size(self.result.case.sizes, self.shared)

    @functools.cached_property
    def shares(self) -> Mapping[str, float]:
        """Ceiling → the share of it that the time reaches."""
        return ceiling_shares(self.result, self.timed) if self.timed else {}

    @functools.cached_property
    def factor(self) -> float | None:
        """The reference variant's time ÷ this one's; None where either is missing or invalid.

        The reference is taken at the same point as run, in the same scope if it has it, else in its only
        scope. If it has several parameter values, equal ones count if they are there, else the fastest.
        """
        case, timed, against = self.result.case, self.timed, self.result.speedup_against
        own = timed.summary.median_ns if timed and timed.invalid is None else None
        if timed is None or not against or not units.is_number(own) or own <= 0:
            return None
        candidates = [peer for peer in self.peers if peer.case.label == against and peer.valid]
        same = [peer for peer in candidates if peer.case.parameters == case.parameters]
        times = [time for peer in same or candidates if (time := _time(peer, timed)) is not None]
        return min(times) / own if times else None

    @property
    def footnotes(self) -> list[Footnote]:
        """What there is to say about it."""
        result, time = self.result, self.measurement
        kind, reason, verdict = self.judged if time else self.standing
        footnotes = [Footnote(FAILED, self.failure)] if time and self.failure is not None else []
        if time is None:
            footnotes += [Footnote(kind, reason)] if reason else []
        elif kind and STATES[kind].shows_reason:
            # What fresh sessions neither confirmed nor cleared needs a reader.
            unsettled = verdict is not None and verdict.unconfirmed
            quiet = STATES[kind].tone is Tone.DOUBTFUL and not unsettled
            footnotes.append(Footnote(kind, reason, time.key, verdict.ratio if verdict else None, quiet))
        notes = [*(_remarks(time) if time else ()), *(result.notes if self.first else ())]
        footnotes += [Footnote("", note.text, quiet=note.about is not About.READER) for note in notes]
        return footnotes + [Footnote(of.kind, of.text) for of in (result.findings if self.first else ())]


def rows_of(
    result: Result, failure: str | None, peers: Sequence[Result] = (), shared: Collection[str] = ()
) -> list[ResultRow]:
    """Returns the rows of one result, one a time that counts; `failure` is of the first."""
    wrong = result.correctness is Correctness.INCORRECT
    first, *others = (() if wrong else result.measurements) or (None,)
    rows = [ResultRow(result, first, failure, peers=peers, shared=shared)]
    return rows + [ResultRow(result, time, None, False, peers, shared) for time in others]


def shared_sizes(results: Sequence[Result]) -> dict[str, str]:
    """Returns axes and parameters that every result has with the same value: a table says them once."""
    if len(results) < 2:
        return {}
    first, *others = (result.case.sizes for result in results)
    return {name: value for name, value in first.items() if all(o.get(name) == value for o in others)}


def own_size(sizes: Mapping[str, object], shared: Collection[str]) -> str:
    return sizes_text({name: value for name, value in sizes.items() if name not in shared})


def chosen_text(result: Result) -> str:
    """Returns what an autotuner chose, as `(BLOCK=1024 num_warps=8)`; of several kernels by name."""
    texts = []
    for kernel, settings in result.autotuned.items():
        text = sizes_text({name: value for name, value in settings.items() if _USUAL.get(name) != value})
        texts.append(f"{kernel}: {text}" if len(result.autotuned) > 1 else text)
    return f"({', '.join(texts)})" if texts else ""


def _time_text(row: ResultRow) -> str:
    if row.timed is not None:
        return units.time(row.timed.summary.median_ns, row.timed.summary.half_width)
    nothing = row.became == "unchecked" or (row.measurement is None and row.standing.kind)
    return units.NOTHING if nothing else row.became


def _first_call_text(row: ResultRow) -> str:
    ns = row.result.first_call_ns
    return units.time(ns) if row.first and row.measurement and units.is_number(ns) else ""


def _verdict_text(row: ResultRow) -> str:
    """Returns the verdict, with its change where the kind shows its reason, and with what leaves it open."""
    kind, _, verdict = came_to = row.judged if row.measurement else row.standing
    ratio = verdict.ratio if verdict is not None and STATES[kind].shows_reason else None
    text = f"{kind} {units.change(ratio)}" if units.is_number(ratio) else kind
    return f"{text}: {came_to.doubt.short}" if came_to.doubt else text


class TimeColumn(NamedTuple):
    """Describes a column of the table of times: its text of a row, and how `layout.Column` fits it."""

    title: str
    text: Callable[[ResultRow], str]
    numeric: bool = True
    shortens: bool = False
    dispensable: int | None = None


COLUMNS = {
    "variant": TimeColumn(
        "variant", lambda row: row.result.case.label if row.first else "", numeric=False, shortens=True
    ),
    "size": TimeColumn(
        "size",
        lambda row: f"{row.own_size} {chosen_text(row.result)}".strip() if row.first else "",
        numeric=False,
    ),
    "first_call": TimeColumn("first call", _first_call_text, dispensable=0),
    "time": TimeColumn("time", _time_text),
    "uncertainty": TimeColumn(
        "±", lambda row: units.share(row.timed.summary.half_width) if row.timed else "", dispensable=2
    ),
    "rate": TimeColumn("rate", lambda row: rate_text(row.timed) if row.timed else "", dispensable=4),
    "ceiling": TimeColumn("of ceiling", lambda row: " ".join(nearest_ceiling(row.shares)), dispensable=3),
    "speedup": TimeColumn(
        "speed-up",
        lambda row: units.factor(row.factor) if row.timed and row.result.speedup_against else "",
        dispensable=1,
    ),
    "error": TimeColumn("error", lambda row: error_text(row.result) if row.first else "", dispensable=5),
    "verdict": TimeColumn("verdict", _verdict_text, numeric=False),
}
"""Name → a column of the terminal's table. The page takes titles and texts from here, too."""


def _remarks(measurement: Measurement) -> Iterator[Note]:
    yield from measurement.summary.notes
    unused = measurement.invalid_samples
    if unused and measurement.invalid is None:
        samples = f"{units.counted(unused, 'sample')} {'was' if unused == 1 else 'were'}"
        yield Note(f"{samples} taken while the device was disturbed, and not used", About.NOISE)


def rate_text(measurement: Measurement) -> str:
    """Returns GB/s of the declared traffic, or GFLOP/s; empty where neither is declared."""
    median_ns, traffic, flops = measurement.summary.median_ns, measurement.traffic_bytes, measurement.flops
    if flops and (not traffic or flops / traffic > _COMPUTE_BOUND):
        return units.throughput(flops, median_ns)
    return units.bandwidth(traffic, median_ns) if traffic else ""


def error_text(result: Result) -> str:
    """Returns the worst error over the outputs: in ULP where that is telling, else relative or absolute.

    Near a zero in the reference, as in a sum that cancels, any error is many ULP: the absolute one tells.
    """
    if result.code:
        return ""
    if result.correctness is Correctness.UNCHECKED:
        return ": ".join(["unchecked", ", ".join(result.unchecked)] if result.unchecked else ["unchecked"])
    if not result.errors:
        return ""
    errors = list(result.errors.values())
    if result.correctness is Correctness.INCORRECT:  # beside it, an error within the tolerance says nothing
        wrong = [error for error in errors if error.mismatches]
        return f"{wrong[0].mismatches} of {wrong[0].size} wrong" if wrong else ""
    if all(error.max_abs == 0 for error in errors):
        return units.EXACT
    ulp = _worst(errors, "max_ulp")
    if ulp is not None and ulp < TELLING_ULP:
        return units.ulps(ulp)
    relative = units.relative_error(_worst(errors, "max_rel"))
    absolute = units.absolute_error(_worst(errors, "max_abs"))
    first, second = (relative, absolute) if ulp is None else (absolute, relative)
    return first if first != units.NOTHING else second


def _worst(errors: list[OutputError], name: str) -> float | None:
    """Returns the largest of a figure over the outputs that are not exact; None where one lacks it."""
    values: list[float | None] = [getattr(error, name) for error in errors if error.max_abs != 0]
    numbers = [value for value in values if units.is_number(value)]
    return max(numbers) if len(numbers) == len(values) else None


def nearest_ceiling(shares: Mapping[str, float]) -> tuple[str, ...]:
    """Returns what is reached of the nearest ceiling, as `97 %`, and its name; nothing where none is known.

    A kernel may be a little faster than the copy that was measured: then it is at the limit.
    """
    if not shares:
        return ()
    name, share = max(shares.items(), key=lambda item: item[1])
    return ("≥ 100 %" if share > 1 else units.share(share)), name


def ceiling_shares(result: Result, measurement: Measurement) -> dict[str, float]:
    """Maps each ceiling to the share of it that a time reaches, 0.97 for 97 %, of a kernel or of copies."""
    ns = measurement.summary.median_ns
    if not result.ceilings or not result.case.on_gpu or result.simulated or not units.is_number(ns):
        return {}
    known = Ceilings.__struct_fields__  # a run of another release may have others
    ceilings = Ceilings(**{name: result.ceilings.get(name) for name in known})
    copies = [(of.host_copy, of.size_bytes or 0.0) for of in measurement.work if of.host_copy is not None]
    share = ceilings.host_copy_share(copies, ns)
    # Copies do not bound a call that hardly copies, nor one that copies faster than was measured.
    shares = {HOST_COPY: share if share is not None and _LEAST_COPYING <= share <= 1 else None}
    if measurement.scope == "kernel":
        shares = {
            COPY: ceilings.bandwidth_share(measurement.traffic_bytes, ns, measurement.cache),
            FMA: ceilings.compute_share(measurement.flops, ns, result.dtype),
        }
    return {name: share for name, share in shares.items() if share is not None}


def _time(peer: Result, measurement: Measurement) -> float | None:
    of_scope = [other for other in peer.measurements if other.scope == measurement.scope]
    times = of_scope or (peer.measurements if len(peer.measurements) == 1 else ())
    time = times[0].summary.median_ns if times else None
    return time if units.is_number(time) else None
