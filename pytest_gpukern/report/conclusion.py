"""Concludes what a run found: what failed, from what to what, since when, why, and what to do.

Every form of the report takes its headline, its failures and what changed otherwise from here, so all of them
say the same in the same order.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import statistics
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from pytest_gpukern.findings.explain import OF_THE_MACHINE
from pytest_gpukern.findings.regressions import TELLING_ULP
from pytest_gpukern.findings.trend import SeriesKey, Trend, days_of, since_when
from pytest_gpukern.report import units
from pytest_gpukern.report.recorded import trends
from pytest_gpukern.report.records import accept, repeat
from pytest_gpukern.report.rows import OTHER_CARD, ceiling_shares, doubt_about, own_size, shared_sizes
from pytest_gpukern.report.run import AGAINST, BASELINE, UNCHANGED, RunResults
from pytest_gpukern.values.difference import DEVICE, NEW_CODE, SAME_CODE, SAME_WORK
from pytest_gpukern.values.failure_table import FAILURES, KIND_OF_FINDING
from pytest_gpukern.values.grouping import grouped
from pytest_gpukern.values.note import NO_GPU
from pytest_gpukern.values.result import Correctness, GateFailure, Result, SessionRole, Verdict
from pytest_gpukern.values.untrusted_json import first_line
from pytest_gpukern.values.verdict_table import FAILED, INCORRECT, STATES, Tone, VerdictKind, severity

_ROUNDOFFS = {"float32": 2.0**-24, "float16 or TF32": 2.0**-11}
"""Largest relative error of rounding once (IEEE 754; TF32 has as many digits as float16)."""
_NEAR = 16.0
_FAR = 2.0
"""Multiple of the threshold from which a report says which changes it could not see."""
_LEAST_SHARE = 0.01
"""Share of a limit below which it limits nothing."""


@dataclass(frozen=True)
class TimeChange:
    """Holds a time's way from the record, or from the other revision, to now.

    Attributes:
        ratio: now ÷ before.
        times: `37.4 → 46.8 µs`.
        percent: `+25.4 %`.
        interval: `[+22.4, +28.4]`, the ends of the ratio's 90 % interval in percent; empty where not known.
        limit: what bounds the time, such as the device's copies; empty where that is not known.
        share_before: part of that limit which the time reached, 0.51 for 51 %, and what it reaches now.
    """

    ratio: float
    times: str
    percent: str
    interval: str
    limit: str = ""
    share_before: float | None = None
    share_now: float | None = None

    @property
    def of_limit(self) -> str:
        """Returns `51 → 40 % of copy`, or nothing."""
        if self.share_before is None or self.share_now is None or self.share_before < _LEAST_SHARE:
            return ""
        before, now = units.share(self.share_before), units.share(self.share_now)
        way = f"{before.removesuffix(' %')} → {now}" if before != now else now
        return f"{way} of {self.limit}"

    def __str__(self) -> str:
        return " ".join(filter(None, (f"{self.times}, {self.percent}", self.interval)))


@dataclass(frozen=True)
class FailureCard:
    """Holds one failure, or all failures of one variant with one kind of diagnosis.

    Attributes:
        kind: word of the verdict, INCORRECT, FAILED, or the kind of a finding in capitals.
        name: the case, as every form and every command names it; the variant where there are several.
        sizes: what tells several cases apart, one text each; empty for a single one.
        results: of the tests that failed, `nodeids`; None for a test without a result.
        scope: what was timed; empty for a failure that is not about a time.
        what: what is wrong, one text a case; for a time, the reason in words.
        since: since when it is so; empty where that is not known.
        repeat, accept: commands that run the tests again, and that take the change for the new normal.
    """

    kind: str
    name: str
    results: tuple[Result | None, ...]
    nodeids: tuple[str, ...]
    sizes: tuple[str, ...] = ()
    scope: str = ""
    change: TimeChange | None = None
    threshold: float | None = None
    what: tuple[str, ...] = ()
    since: tuple[str, ...] = ()
    why: tuple[str, ...] = ()
    repeat: str = ""
    accept: str = ""

    @property
    def advice(self) -> str:
        if self.kind != INCORRECT:
            return ""
        return "no command accepts a wrong result: mend it, or declare the tolerance that it needs"

    @property
    def title(self) -> str:
        return f"{self.name}: {units.named(self.sizes, units.SHOWN)}" if self.sizes else self.name

    @property
    def headline(self) -> str:
        """Says it in one line: `kernel 37.4 → 46.8 µs, +25.4 % [+22.4, +28.4]`, or what is wrong."""
        if self.change is not None:
            return f"{self.scope} {self.change}"
        return first_line(self.what[0]) if self.what else ""


@dataclass(frozen=True)
class Others:
    """Holds times with one kind of verdict and one cause, or cases with one finding, which failed no test.

    Attributes:
        names: of the cases, the largest change first, each with its scope where that is not the kernel.
        ratios: now ÷ before, in the same order; empty where nothing was compared.
        cause: what they have in common, in words; empty where nothing is known.
    """

    kind: str
    names: tuple[str, ...]
    ratios: tuple[float, ...] = ()
    cause: str = ""

    @property
    def cases(self) -> str:
        """Returns the name of one, or how many they are and of which variant or problem."""
        if len(self.names) == 1:
            return self.names[0]
        parts = zip(*(name.split("/")[:-1] for name in self.names), strict=False)
        of = "/".join(same[0] for same in itertools.takewhile(lambda same: len({*same}) == 1, parts))
        what = "timings" if self.ratios else "cases"
        return f"{len(self.names)} {what}" + (f" of {of}" if of else "")

    @property
    def change(self) -> str:
        """Returns the change, or from which to which; of what is undecided, whose suspicion is largest."""
        if not self.ratios:
            return ""
        first, last = units.change(self.ratios[0]), units.change(self.ratios[-1])
        doubtful = self.kind in STATES and STATES[self.kind].tone is Tone.DOUBTFUL
        if doubtful and len(self.names) > 1:
            largest = f"the largest suspicion {first}, {self.names[0]}"
            return largest if self.ratios[0] > 1 else "none looks slower"
        return first if first == last or doubtful else f"{last} to {first}"


class Headline(NamedTuple):
    """Says in one line whether a run is good: FAILED, PASSED or NOTHING RAN, and what is worst."""

    outcome: str
    text: str = ""

    def __str__(self) -> str:
        """Returns `FAILED: 1 kernel +25.4 %`."""
        return ": ".join(filter(None, self))


def headline(run: RunResults, failed: Sequence[FailureCard]) -> Headline:
    """Returns the headline of a run whose failures are these `cards`."""
    if run.is_record:
        cases = units.counted(len(run.results), "case")
        return Headline(f"Record of {run.record_of}", f"{cases}, {_recorded(run)[0]}")
    if run.failures or run.problems:
        parts = [*_failures_in_words(failed)]
        parts += [f"{units.counted(len(run.problems), 'problem')} of the run"] if run.problems else []
        return Headline(FAILED, ", ".join(parts))
    left_out = len(run.unchanged.tests) if run.unchanged is not None else 0
    if not run.ran:
        return Headline(UNCHANGED, units.counted(left_out, "test")) if left_out else Headline("NOTHING RAN")
    texts = (", ".join(_passed_in_words(run)), *_judged_in_words(run))
    return Headline("PASSED", " · ".join(filter(None, texts)))


def _failures_in_words(failed: Sequence[FailureCard]) -> Iterable[str]:
    for kind, of_kind in grouped((card.kind, card) for card in failed).items():
        count = sum(len(card.nodeids) for card in of_kind)
        changes = [card.change for card in of_kind if card.change is not None]
        if kind == INCORRECT:
            yield units.counted(count, "wrong result")
        elif kind == FAILED:
            yield units.counted(count, "failed test")
        elif changes:
            noun = "kernel" if all(card.scope == "kernel" for card in of_kind) else "time"
            worst = max((change.ratio for change in changes), key=units.size_of_change)
            yield f"{units.counted(count, noun)} {'up to ' * (count > 1)}{units.change(worst)}"
        else:
            noun, by = ("time", kind) if kind in STATES else ("test", f"by {kind.lower()}")
            yield f"{units.counted(count, noun)} {by}"


def _passed_in_words(run: RunResults) -> Iterable[str]:
    right = [result for result in run.results if result.correctness is Correctness.PASSED]
    simulated = sum(result.simulated for result in right)
    compiled = sum(bool(result.code) for result in run.results)
    unchecked = sum(result.correctness is Correctness.UNCHECKED for result in run.results) - compiled
    if compiled:
        counts = [f"{count} {kind.lower()}" for kind, count in run.verdicts.items()]
        yield f"{units.counted(compiled, 'case')} compiled: {', '.join(counts)}"
    if right:
        where = f", {simulated} of them in the simulator" if simulated else ""
        where = " in the simulator" if simulated == len(right) else where
        are = "recorded" if run.record_of else "is right" if len(right) == 1 else "are right"
        yield f"{len(right)} case{'s' * (len(right) != 1)} {are}{where}"
    if run.rejected:
        yield f"{units.counted(len(run.rejected), 'broken case')} rejected"
    if unchecked:
        yield f"{unchecked} without a check"
    if run.unchanged is not None and run.unchanged.tests:
        yield f"{len(run.unchanged.tests)} unchanged"
    if not compiled and run.verdicts and all(kind.row.decided for kind in run.verdicts):
        yield f"{run.verdicts[VerdictKind.SLOWER] or 'none is'} slower"


def _judged_in_words(run: RunResults) -> Iterator[str]:
    """Says which times were not judged, and why; and why none was taken on a GPU."""
    if any(result.code for result in run.results):
        return
    left = {kind: count for kind, count in run.verdicts.items() if not kind.row.decided}
    if left:
        total = run.verdicts.total()
        count, slower = total - sum(left.values()), run.verdicts[VerdictKind.SLOWER] or "none of these"
        of_these = f", {slower} slower; the others" if count else ""
        why = ", ".join(f"{n} {kind.lower()}" for kind, n in left.items())
        doubts = {row.judged.doubt.sentence for row in run.rows if row.judged.doubt}
        if left.keys() == {VerdictKind.UNDECIDED} and len(doubts) == 1:
            (why,) = doubts
        elif run.nothing_recorded:
            why = "nothing was on record"
        yield f"{count} of {units.counted(total, 'time')} judged{of_these}: {why}"
    on_a_gpu = any(of.measurements and of.case.on_gpu and not of.simulated for of in run.results)
    lacks_one = any(of.simulated for of in run.results) or any(skip.kind == NO_GPU for skip in run.skips)
    if run.benchmarks and lacks_one and not on_a_gpu:
        yield "only the host was timed: no GPU" if run.measured else "nothing was timed: no GPU"


def context(run: RunResults) -> list[str]:
    """Says what the run ran on, a line each: the device with the commit, and what it was compared with."""
    devices = dict.fromkeys(
        of.device_name + (f", driver {of.driver_version}" if of.driver_version else "")
        for of in run.on_gpus()
        if of.device_name
    )
    on = next((of.provenance for of in run.results if of.provenance and of.provenance.commit), None)
    commit = f"run on {on.state}" if on and not run.record_of else ""
    first = " · ".join(filter(None, ("; ".join(devices), commit)))
    unchanged = run.unchanged.lines if run.unchanged is not None else []
    return [line for line in (first, _compared_with(run), *unchanged, _could_see(run)) if line]


def _could_see(run: RunResults) -> str:
    """Says below which change half of the times could not have become SLOWER, where that is far from it."""
    known = [
        (verdict.detectable - 1, verdict, result.case.on_gpu)
        for result in run.results
        for verdict in result.verdicts.values()
        if units.is_number(verdict.detectable) and verdict.threshold and verdict.kind.row.compared
    ]
    known.sort(key=lambda entry: entry[0])
    unseen, median, _ = known[len(known) // 2] if known else (0.0, None, False)
    if median is None or unseen < _FAR * (median.threshold or 0.0):
        return ""
    (doubt, _), *_ = Counter(doubt_about(verdict) for _, verdict, _ in known).most_common(1)
    record = "--gpukern-baseline=append"
    remedy = f"record more sessions: {record}" if run.compared_with == BASELINE else "measure more sessions"
    if median.pairs:
        remedy += f": --gpukern-sessions={2 * len(median.pairs)}"
    if doubt == OTHER_CARD or (run.on_another_card and any(on_gpu for *_, on_gpu in known)):
        doubt, remedy = OTHER_CARD, f"record this card, too: {record}"
    nothing = f"nothing below {float(f'{100 * unseen:.2g}'):g} %"
    caught = f"half of {len(known)} times catch {nothing}" if len(known) > 1 else f"{nothing} is caught"
    return f"{doubt.sentence}: {caught}; {remedy}"


def _compared_with(run: RunResults) -> str:
    if run.compared_with != BASELINE:
        return f"compared with {run.compared_with.removeprefix(AGAINST)}"
    recorded, of_all = _recorded(run)
    return f"compared with the record{of_all}: {recorded}" if recorded and not run.record_of else ""


def _recorded(run: RunResults) -> tuple[str, str]:
    """Returns `9 sessions on 5 cards, 20 to 22 Nov`, and ` of all cases` where no case has all of these."""
    of_cases = [
        {time.session.session: time for key in known.keys for time in known.times(key)}
        for known in run.history.values()
    ]
    times = {session: time for of_case in of_cases for session, time in of_case.items()}
    if not times:
        return "", ""
    on_cards = {time.device for time in times.values() if time.device}
    others = "other " * (run.on_another_card and not run.record_of)
    of_all = " of all cases" if any(0 < len(of_case) < len(times) for of_case in of_cases) else ""
    of_cards = f" on {units.counted(len(on_cards), f'{others}card')}" if on_cards else ""
    when = f", {days}" if (days := days_of(times.values())) else ""
    return f"{units.counted(len(times), 'session')}{of_cards}{when}", of_all


# --- failures -------------------------------------------------------------------------------------


def cards(run: RunResults, series: Mapping[SeriesKey, Trend] | None = None) -> list[FailureCard]:
    """Returns the failures, the worst kind first and the largest change of a kind first.

    Wrong results of one variant share a card, and so do failures with the same words. `series` are the run's
    `trends`, where they are known already.
    """
    results = {result.nodeid: result for result in run.results}
    timed = any(reason.key for failure in run.failures.values() for reason in failure.reasons)
    series = series or (trends([run]) if timed else {})
    made: list[FailureCard] = []
    for nodeid, failure in run.failures.items():
        result = results.get(nodeid)
        if result is None or not failure.by_the_gate:
            wrong = result is not None and result.correctness is Correctness.INCORRECT
            text = (result.diagnosis if wrong and result else None) or failure.text
            made.append(_of_test(run, nodeid, result, INCORRECT if wrong else FAILED, text.strip()))
        else:
            made += [_by_the_gate(run, result, reason, series) for reason in failure.reasons]
    groups = grouped((_group(card), card) for card in made)
    return sorted(
        (_together(run, group) for group in groups.values()),
        key=lambda of: (severity(of.kind), -units.size_of_change(of.change.ratio if of.change else None)),
    )


def _of_test(run: RunResults, nodeid: str, result: Result | None, kind: str, text: str) -> FailureCard:
    name = result.case.id if result is not None else nodeid
    card = FailureCard(kind, name, (result,), (nodeid,), what=(text,), repeat=repeat(run, [nodeid], [result]))
    if result is None or kind != INCORRECT:
        return card
    return dataclasses.replace(card, since=_since(run, result), why=tuple(_rounded_like(result)))


def _by_the_gate(
    run: RunResults, result: Result, reason: GateFailure, series: Mapping[SeriesKey, Trend]
) -> FailureCard:
    """Returns the card of a time, or of a finding; what is slower or beyond the record can be accepted."""
    key, kind, finding = reason.key, reason.kind, KIND_OF_FINDING.get(reason.kind, "")
    beyond_record = finding in FAILURES and FAILURES[finding].needs_record
    card = dataclasses.replace(
        _of_test(run, result.nodeid, result, kind if key else kind.upper(), reason.text),
        scope=key.partition("/")[0],
        accept=accept(run, [result]) if (kind == VerdictKind.SLOWER if key else beyond_record) else "",
    )
    verdict, trend = result.verdicts.get(key), series.get((result.case.id, key))
    if not key:
        return card
    if verdict is None or verdict.kind.value != kind:  # INVALID stands in the measurement
        time = result.time(key)
        return dataclasses.replace(card, what=(time.invalid,) if time and time.invalid is not None else ())
    return dataclasses.replace(
        card,
        change=change_of(run, result, key),
        threshold=verdict.threshold,
        what=(verdict.reason,),
        since=_since(run, result, trend) if trend else (),
        why=_why(verdict),
    )


def _group(card: FailureCard) -> object:
    """Returns what failures must have in common to share a card."""
    result = card.results[0]
    if card.change is not None:
        return card.nodeids, card.scope
    if card.kind == INCORRECT and result is not None:
        return result.case.problem, result.case.label
    return card.kind, card.what


def _together(run: RunResults, group: Sequence[FailureCard]) -> FailureCard:
    first, *others = group
    if not others:
        return first
    results = [card.results[0] for card in group]
    cases = [result.case for result in results if result is not None]
    variants = {f"{result.case.problem}/{result.case.label}" for result in results if result is not None}
    name, sizes = f"{len(group)} tests", tuple(card.name for card in group)
    if len(cases) == len(group) and len(variants) == 1:
        name = variants.pop()
        shared = shared_sizes([*filter(None, results)])
        sizes = tuple(own_size(case.sizes, shared) for case in cases)
    nodeids = tuple(nodeid for card in group for nodeid in card.nodeids)
    return FailureCard(
        first.kind,
        name,
        tuple(results),
        nodeids,
        sizes,
        what=tuple(dict.fromkeys(text for card in group for text in card.what)),
        since=first.since if len({card.since for card in group}) == 1 else (),
        why=tuple(dict.fromkeys(text for card in group for text in card.why)),
        repeat=repeat(run, nodeids, results),
        accept=accept(run, [*filter(None, results)]) if first.accept else "",
    )


def _rounded_like(result: Result) -> Iterator[str]:
    """Says which precision errors look like: they reach its roundoff, far beyond their own dtype's."""
    for name, error in result.errors.items():
        worst, ulp = error.max_rel, error.max_ulp
        for precision, roundoff in _ROUNDOFFS.items():
            if worst and ulp and roundoff / _NEAR < worst <= roundoff and ulp > TELLING_ULP:
                bound = units.relative_error(worst)
                yield f"no relative error of {name} exceeds {bound}: like values rounded to {precision}"


def _why(verdict: Verdict) -> tuple[str, ...]:
    """Returns what else changed; another card is said once, above all."""
    causes = [cause for cause in verdict.differences if cause.is_cause and cause.what != DEVICE]
    texts = [str(cause) for cause in causes]
    if NEW_CODE in causes and not any(cause.what in OF_THE_MACHINE for cause in causes):
        texts.append("the code, not the machine")
    return tuple(texts) or tuple(str(same) for same in verdict.differences if not same.is_cause)


def _since(run: RunResults, result: Result, trend: Trend | None = None) -> tuple[str, ...]:
    since = since_when(result, run.history.get(result.nodeid), trend)
    return (since,) if since else ()


def change_of(run: RunResults, result: Result, key: str) -> TimeChange | None:
    """Returns the change of a time, or None where it has nothing to be compared with."""
    verdict, sides = result.verdicts.get(key), times_before_and_now(run, result, key)
    if verdict is None or verdict.ratio is None or sides is None:
        return None
    interval = units.change_interval(verdict.ratio_low, verdict.ratio_high)
    change = TimeChange(verdict.ratio, units.way(*sides), units.change(verdict.ratio), interval)
    time = result.time(key)
    shares = ceiling_shares(result, time) if time else {}
    if not time or not shares:
        return change
    limit, share = max(shares.items(), key=lambda reached: reached[1])
    before, now = (share * time.summary.median_ns / ns for ns in sides)
    return dataclasses.replace(change, limit=limit, share_before=before, share_now=now)


def times_before_and_now(run: RunResults, result: Result, key: str) -> tuple[float, float] | None:
    """Returns the times that a ratio is of: of the pairs, else of the record and the deciding sessions."""
    verdict = result.verdicts.get(key)
    if verdict is None or not units.is_number(verdict.ratio) or verdict.ratio <= 0:
        return None
    pairs = [pair for pair in verdict.pairs if all(units.is_number(ns) and ns > 0 for ns in pair)]
    if pairs:
        base, head = (statistics.geometric_mean(side) for side in zip(*pairs, strict=True))
        return base, head
    others = run.sessions_of(result)
    confirming = [session for session in others if session.role is SessionRole.CONFIRMING]
    times = filter(None, (session.time(key) for session in confirming or (result, *others)))
    known = [ns for time in times if units.is_number(ns := time.summary.median_ns) and ns > 0]
    if not known:
        return None
    now_ns = statistics.geometric_mean(known)
    return now_ns / verdict.ratio, now_ns


# --- what changed otherwise -----------------------------------------------------------------------


def others(run: RunResults) -> list[Others]:
    """Returns what is to be said of times and findings that failed no test, the worst kind first.

    Times with one cause share an entry; of what is undecided the largest suspicion is enough.
    """
    groups: dict[tuple[str, str], list[tuple[float, str, float | None]]] = {}
    for row in run.rows:
        (kind, _, verdict), result, time = row.judged, row.result, row.measurement
        if result.nodeid in run.failures:
            continue
        if kind in STATES and STATES[kind].shows_reason:
            state, size = STATES[kind], 0.0
            ratio = verdict.ratio if verdict is not None and state.compared else None
            if units.is_number(ratio) and ratio > 0:  # of what is in doubt, what looks slower comes first
                size = math.log(ratio) if state.tone is Tone.DOUBTFUL else units.size_of_change(ratio)
            cause = _cause(verdict) if verdict is not None and state.changed else ""
            cause = cause if state.compared else row.judged.line
            cause = row.judged.doubt.short if row.judged.doubt else cause
            scope = f" {time.scope}" if time is not None and time.scope != "kernel" else ""
            groups.setdefault((kind, cause), []).append((size, result.case.id + scope, ratio))
        for finding in result.findings if row.first else ():
            groups.setdefault((finding.kind, finding.text), []).append((0.0, result.case.id, None))
    lines = []
    for (kind, cause), entries in groups.items():
        entries.sort(key=lambda entry: -entry[0])
        ratios = tuple(ratio for *_, ratio in entries if units.is_number(ratio))
        lines.append(Others(kind, tuple(name for _, name, _ in entries), ratios, cause))
    lines.sort(key=lambda of: (severity(of.kind), -max(map(units.size_of_change, of.ratios), default=0.0)))
    return lines


def _cause(verdict: Verdict) -> str:
    """Says why a time changed, and whether that is the machine or the code."""
    causes = [difference for difference in verdict.differences if difference.is_cause]
    beside_card = [cause for cause in causes if cause.what != DEVICE]
    if beside_card:
        of_machine = all(cause.what in OF_THE_MACHINE for cause in beside_card)
        return ", ".join(map(str, beside_card)) + (": the machine, not the change" if of_machine else "")
    if SAME_WORK in verdict.differences:
        return str(SAME_WORK)
    same = ["same machine code"] if SAME_CODE in verdict.differences else []
    return ", ".join([*same, *(["another card"] if causes else [])])
