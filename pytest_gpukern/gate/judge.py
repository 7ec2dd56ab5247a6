"""Judges whether a time is the same as its record, faster or slower, from stored and new numbers alone.

The unit is the session, since samples of one process share its clocks, memory layout and neighbours. We
compare log medians of sessions by the spread between sessions (Kalibera & Jones 2013, *Rigorous benchmarking
in reasonable time*). `judge` screens: what it calls SLOWER is suspected. `confirm` decides by fresh sessions
alone, since the measurement that raised a suspicion was selected for being slow. Both do so by a record
(`Basis`), or for two revisions by neighbouring sessions of both (`Paired`).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeVar

from msgspec import structs

from pytest_gpukern.gate.change import (
    CONFIRMING,
    SESSIONS_TO_GATE,
    Change,
    Pair,
    change_of_pairs,
    change_since,
    log_ratios,
    numbers,
    percent,
    ratio_of,
    undecided_words,
)
from pytest_gpukern.gate.comparability import Conditions, SessionTime, difference, of_one_choice
from pytest_gpukern.gate.spread import FEWEST_CASES, SharedSpread, spread_key, spread_of_ratios
from pytest_gpukern.measure.host_load import BUSY_HOST, CPU_GROWTH, LEAST, LOAD, LOOP, MOST, OTHERS_SHARE
from pytest_gpukern.values.grouping import grouped
from pytest_gpukern.values.result import UNKNOWN_CHOICE, Choice, Measurement, Verdict
from pytest_gpukern.values.timer_table import timer_row
from pytest_gpukern.values.verdict_table import VerdictKind

_Number = TypeVar("_Number", int, float)
_Row = TypeVar("_Row")

_NO_LEAST_NS = 1e-3  # stands for the least that a call would take if that is not known
_EXCUSED = 10  # of so many recorded sessions one may be as slow: a disturbed one would hide a slowdown

FALSE_ALARMS = {
    0.02: {3: 0.0012, 5: 0.0004, 8: 0.0002},
    0.01: {3: 0.0020, 5: 0.0009, 8: 0.0006},
    0.005: {3: 0.0032, 5: 0.0017, 8: 0.0011},
    0.0025: {3: 0.0046, 5: 0.0026, 8: 0.0015},
    0.0: {3: 0.0068, 5: 0.0043, 8: 0.0025},
}
"""Threshold → recorded sessions → share of unchanged cases that are called SLOWER and confirmed.

Figures of docs/evidence/gate_simulation.py for noisy suites: heavy tails, 8 % of the cases with two modes, a
common shift. None of 24 000 quiet kernels was.
"""

FALSE_ALARMS_OF_PAIRS = {True: {2: 0.0005, 4: 0.0004}, False: {2: 0.006, 4: 0.004}}
"""Whether a device times itself → first pairs → share of unchanged cases called SLOWER at any look.

Figures of docs/evidence/gate_simulation.py, rounded up: for noisy suites, and for times of a host whose
sessions differ by 10 %.
"""


BY_MACHINE = 0.25
"""By how much a time may grow on another machine, or in another session, though all files are the same."""


class Since(NamedTuple):
    """Holds a change, whether each fresh time was slower than what it is compared with, and what that is."""

    change: Change
    apart: bool
    words: str = ""


@dataclass(frozen=True)
class Basis:
    """Holds what new measurements of a case are judged by.

    Attributes:
        sessions: the record's current sessions, none if nothing is recorded.
        conditions: problem version, device model and simulator state of the new measurements.
        threshold: smallest change that counts, 0.02 for 2 %; thresholds are log(1 + threshold) both ways.
        device: UUID of the device that the new measurements were taken on.
        shared: the spread that the suite's cases have in common; where None, it is assumed.
        anchor: the sessions of the record's first epoch, where that is not the current one.
        remark: a remark on the recorded sessions that ends the reason.
        choice: what an autotuner or a library chose in the new measurements.
        fails_with: named in the reason of a host time that may not fail; empty where it may.
    """

    sessions: Sequence[SessionTime]
    conditions: Conditions
    threshold: float
    device: str | None = None
    shared: SharedSpread | None = None
    anchor: Sequence[SessionTime] = ()
    remark: str = ""
    choice: Choice = UNKNOWN_CHOICE
    fails_with: str = ""

    @property
    def reference(self) -> Sequence[SessionTime]:
        """Returns sessions of one choice: of this device alone if it has enough to gate, else of all.

        Those that other programs on the host disturbed count only if the others are too few to gate.
        """
        own = self._on_this_device(of_one_choice(self.sessions, self.choice, SESSIONS_TO_GATE))
        quiet = [session for session in own if not _busy([session.measurement])]
        return quiet if len(quiet) >= SESSIONS_TO_GATE else own

    @property
    def opening(self) -> Sequence[SessionTime]:
        """Returns the sessions that opened the epoch, if others were appended, which may hide a slow drift.

        Sessions with other launches than now count, too: the code may have changed in each step.
        """
        tuned = any(session.choice.configurations for session in self.sessions)
        among = self.reference if tuned else self._on_this_device(self.sessions)
        opening = [session for session in among if session.opening]
        return opening if SESSIONS_TO_GATE <= len(opening) < len(among) else ()

    def _on_this_device(self, sessions: Sequence[SessionTime]) -> Sequence[SessionTime]:
        own = [session for session in sessions if session.device == self.device]
        return own if len(own) >= SESSIONS_TO_GATE else sessions

    @property
    def recorded(self) -> list[Measurement]:
        return [session.measurement for session in self.reference]

    def barred(self, fresh: Sequence[Measurement]) -> Verdict | None:
        for measurement in fresh:
            if measurement.invalid is not None:
                return Verdict(VerdictKind.INVALID, measurement.invalid)
        if self.conditions.simulated:
            return Verdict(VerdictKind.UNCOMPARABLE, "the simulator's times say nothing about speed")
        if not self.sessions:
            return Verdict(VerdictKind.NEW, "nothing recorded yet")
        for key in dict.fromkeys(measurement.key for measurement in fresh):
            differs = difference(key, self.conditions, self.sessions)
            if differs is not None:
                return Verdict(VerdictKind.UNCOMPARABLE, differs)
        return _too_small([*fresh, *(session.measurement for session in self.sessions)])

    def changes(self, fresh: Sequence[Measurement], *, least: bool = False) -> list[Since]:
        """Returns the change since the reference, and since the sessions that opened the epoch, if any."""
        if least:
            quiet = [structs.replace(old, measurement=_at_most(old.measurement)) for old in self.sessions]
            return replace(self, sessions=quiet).changes(_at_least(fresh, self.recorded))
        changes, opening = [self._since(self.reference, fresh)], self.opening
        if opening:
            changes.append(self._since(opening, fresh, f" since the epoch's first {len(opening)} sessions"))
        return changes

    def _since(self, recorded: Sequence[SessionTime], fresh: Sequence[Measurement], words: str = "") -> Since:
        change = change_since(recorded, fresh, device=self.device, shared=self.shared)
        slowest = sorted(session.median_ns for session in recorded)[-1 - len(recorded) // _EXCUSED]
        return Since(change, min(timed.summary.median_ns for timed in fresh) > slowest, words)

    def old_and_new(self, fresh: Sequence[Measurement]) -> tuple[list[Measurement], Sequence[Measurement]]:
        return self.recorded, fresh

    def remarks(self, change: Change) -> list[str]:
        reference, remarks = self.reference, []
        devices = {session.device for session in reference}
        if self.device not in devices:
            remarks.append("recorded on another device of this model")
        elif len(devices) > 1:
            remarks.append("recorded partly on other devices of this model")
        if not (change.spread.alone or (self.shared is not None and self.shared.cases)):
            remarks.append(f"spread assumed (under {FEWEST_CASES} cases recorded twice)")
        if len(reference) < SESSIONS_TO_GATE:
            remarks.append(f"reported, not gated: {len(reference)} of {SESSIONS_TO_GATE} sessions recorded")
        if words := _busy(self.recorded):
            remarks.append(f"recorded while {words}")
        return [*remarks, self.remark] if self.remark else remarks

    def completed(self, verdict: Verdict, fresh: Sequence[Measurement], change: Change) -> Verdict:
        """Returns a verdict with what is known of the record; says where small steps have added up."""
        reference, threshold = self.reference, self.threshold
        if self.anchor and replace(self, sessions=self.anchor).barred(fresh) is None:
            since = self._since(self.anchor, fresh).change
            grown = since.least() > 0 and since.delta >= math.log1p(threshold)
            unseen = grown and verdict.kind in (VerdictKind.SAME, VerdictKind.UNDECIDED)
            words = [f"since the first epoch {numbers(since)}"] if unseen else []
            verdict = verdict.adding(*words, anchor=ratio_of(since.delta))
        gates = len(reference) >= SESSIONS_TO_GATE
        verdict = verdict.adding(
            *self.remarks(change),
            gates=gates,
            suspected=gates and verdict.kind is VerdictKind.SLOWER,
            false_alarm=_up_to(_up_to(FALSE_ALARMS, threshold), len(self.opening or reference))
            if gates
            else 0.0,
            other_card=bool(self.device) and self.device not in {session.device for session in reference},
        )
        return of_host(verdict, self.fails_with) if self.fails_with else verdict


@dataclass(frozen=True)
class Paired:
    """Holds what pairs of (base, head) in neighbouring sessions of two revisions are judged by, two at least.

    What both sessions of a pair share cancels. Δ is the mean of the log ratios.

    Attributes:
        threshold: smallest change that counts, 0.02 for 2 %.
        shared: the spread of ratios, from `shared_spread_of_pairs`; where None, it is assumed.
    """

    threshold: float
    shared: SharedSpread | None = None

    def barred(self, pairs: Sequence[Pair]) -> Verdict | None:
        return _too_small([timed for pair in pairs for timed in pair])

    def changes(self, pairs: Sequence[Pair], *, least: bool = False) -> list[Since]:
        """Returns the change between the revisions.

        Neighbours are beside the same programs. So if both know it, we compare their CPU times.
        """

        def bounded(base: Measurement, head: Measurement) -> Pair:
            both = base.seen(LOAD, MOST) and head.seen(LOAD, MOST)
            return _at_most(base), _at_most(head) if both else _at_least([head], [base])[0]

        pairs = [bounded(*pair) for pair in pairs] if least else pairs
        return [Since(change_of_pairs(pairs, shared=self.shared), min(log_ratios(pairs)) > 0)]

    def old_and_new(self, pairs: Sequence[Pair]) -> tuple[list[Measurement], list[Measurement]]:
        return [base for base, _ in pairs], [head for _, head in pairs]

    def remarks(self, _change: Change) -> list[str]:
        return []

    def completed(self, verdict: Verdict, pairs: Sequence[Pair], _change: Change) -> Verdict:
        alarms = FALSE_ALARMS_OF_PAIRS[timer_row(pairs[0][0].timer).device_timed]
        return structs.replace(
            verdict,
            suspected=verdict.kind is VerdictKind.SLOWER,
            false_alarm=_up_to(alarms, len(pairs)),
            pairs=tuple((base.summary.median_ns, head.summary.median_ns) for base, head in pairs),
        )


Fresh = Sequence[Any]
"""Measurements of new sessions, one each and under one key; for `Paired` pairs of measurements."""


def judge(fresh: Fresh, basis: Basis | Paired) -> Verdict:
    """Compares new times with recorded sessions of their case, or with those of another revision.

    Δ is the mean of the new log medians less the recorded sessions' mean. SLOWER: Δ is significant at 5 %,
    one-sided, and at least the threshold: a suspicion, which `confirm` decides. FASTER mirrors it. SAME:
    the 90 % interval of Δ lies inside ± the threshold (two one-sided tests, Schuirmann 1987). Else UNDECIDED,
    with the smallest slowdown that would be caught and the number of sessions that would settle it.

    A time SLOWER than the sessions that opened the epoch is SLOWER, too: appended ones may have crept. If
    others used the host meanwhile, a host's time is SLOWER by the least that it would take without them.
    """
    barred = basis.barred(fresh)
    if barred is not None:
        return barred
    changes = basis.changes(fresh)
    verdict = basis.completed(_unless_busy(changes, fresh, basis), fresh, changes[0].change)
    return structs.replace(verdict, threshold=basis.threshold)


def confirm(suspicion: Verdict, fresh: Fresh, basis: Basis | Paired, *, last: bool = True) -> Verdict:
    """Decides about a suspicion by fresh sessions alone: the measurement that raised it was selected.

    SLOWER: the one-sided 97.5 % lower bound is at least the threshold, and each fresh session was slower than
    90 % of the recorded sessions. Of fewer than ten these are all. Two fresh sessions of unchanged code are
    slower than five recorded ones in one case out of 21, however times are distributed. Otherwise it is the
    verdict of `judge` on the fresh sessions, never SLOWER, and says that the suspicion was not confirmed.

    Each pair has to be slower. Two are often too few for times of a host. So we look again after every two
    (`FRESH_PAIRS`), at all of them, until the last look. One pair that was not slower ends this, and so does
    a mean change below the threshold: unchanged code mostly stops at the first look. `FALSE_ALARMS_OF_PAIRS`
    counts the false alarms of all looks together.

    Args:
        fresh: all fresh ones so far.
        last: whether no more pairs are measured; else it may be the suspicion itself that is returned.
    """
    again = judge(fresh, basis)
    again = structs.replace(again, false_alarm=again.false_alarm and suspicion.false_alarm)
    if again.ratio_low is None or again.others_share is not None:
        return _unconfirmed(suspicion, again)
    despite = _despite_others(basis.old_and_new(fresh)[1])
    changes = basis.changes(fresh, least=again.kind is VerdictKind.SLOWER)
    verdict = _first_slower([_decided(suspicion, again, since, basis, despite) for since in changes])
    may_be = changes[0].apart and changes[0].change.delta >= math.log1p(basis.threshold)
    return suspicion if may_be and verdict.kind is VerdictKind.UNDECIDED and not last else verdict


def unless_same_code(verdict: Verdict, *, all_known: bool, explains: float = math.inf) -> Verdict:
    """Returns the verdict on a time whose session did the same as its record, as far as timers see.

    It is SAME CODE where the time does not decide. On a card that is not on record, SLOWER decides nothing
    either, unless its lower bound exceeds what that card `explains`: 0.25 is 25 %. If not `all_known`,
    something may differ that timers do not see, such as a number of rounds. Then the time has to agree within
    half the threshold, which another card's does not tell.
    """
    is_open = verdict.kind is VerdictKind.UNDECIDED
    elsewhere = verdict.kind is VerdictKind.SLOWER and verdict.other_card
    if not is_open and not (elsewhere and (verdict.ratio_low or math.inf) <= 1 + explains):
        return verdict
    limit, ratio = math.log1p(verdict.threshold or 0.0) / 2, verdict.ratio
    agrees = ratio is not None and not verdict.other_card and abs(math.log(ratio)) <= limit
    if not all_known and not agrees:
        return verdict
    known = "code, launches, arguments and inputs" if explains == math.inf else "code, launches and files"
    same = known if all_known else "code and launches"
    return structs.replace(
        verdict,
        kind=VerdictKind.SAME_CODE,
        reason=f"{same} are as recorded, so the time need not decide: {verdict.reason}",
        suspected=False,
        unconfirmed=False,
        false_alarm=0.0 if verdict.other_card else verdict.false_alarm,
    )


def undecidable(suspicion: Verdict, problem: str) -> Verdict:
    """Returns INVALID, which fails: a suspicion must not pass because nothing could decide it."""
    reason = f"suspected {_first(suspicion)}, but the sessions to confirm it failed: {problem}"
    return _without_confirmation(suspicion, VerdictKind.INVALID, reason)


def of_host(verdict: Verdict, fails_with: str = "--gpukern-fail-on") -> Verdict:
    """Returns a verdict about a host's time: it fails no test, so there is nothing to confirm."""
    slower = verdict.kind is VerdictKind.SLOWER
    words = [f"a host time fails no test by default ({fails_with}=host)"] if slower else []
    return verdict.adding(*words, suspected=False, false_alarm=0.0)


def may_be_slower(verdict: Verdict) -> bool:
    """Says whether two pairs more are to be judged with those that left a time open.

    That is so if each was slower, and by the threshold on average. Two pairs alone have a wide interval: in
    simulations two more raise the share of +5 % that is caught from 89 to 93 %.
    """
    can_fail = verdict.false_alarm > 0  # a host's time cannot, where nobody asks for that
    if verdict.kind is not VerdictKind.UNDECIDED or not can_fail or verdict.others_share is not None:
        return False
    each_slower = all(base < head for base, head in verdict.pairs)
    return each_slower and (verdict.ratio or 0.0) >= 1.0 + (verdict.threshold or 0.0)


def shared_spread_of_pairs(cases: Iterable[Sequence[Pair]]) -> dict[str, SharedSpread]:
    """Returns what `Paired` takes as `shared`, by `scope/timer`, from all pairs of a run."""
    groups = grouped(
        (spread_key(pairs[0][0].key), log_ratios(pairs))
        for pairs in cases
        if pairs and Paired(0.0).barred(pairs) is None
    )
    return {key: spread_of_ratios(key.rpartition("/")[2], ratios) for key, ratios in groups.items()}


def fails(verdict: Verdict, fail_on: Collection[str], *, on_gpu: bool) -> bool:
    """Returns whether a verdict fails its test: INVALID does, and others by the row of their kind.

    SLOWER that does not gate, as from too few sessions, counts as UNDECIDED. A host variant fails by INVALID
    alone, unless `fail_on` has `host`.
    """
    if verdict.kind.row.always_fails:
        return True
    doubtful = verdict.kind is VerdictKind.SLOWER and not verdict.gates
    kind = VerdictKind.UNDECIDED if doubtful else verdict.kind
    return kind.row.fail_on in fail_on and (on_gpu or "host" in fail_on)


def _too_small(times: Iterable[Measurement]) -> Verdict | None:
    """Returns the verdict on times that have no ratio; JSON turns one that is not finite into None."""
    medians_ns = [timed.summary.median_ns for timed in times]
    if any(median is None or not math.isfinite(median) for median in medians_ns):
        return Verdict(VerdictKind.UNDECIDED, "a median is not finite, so there is nothing to compare")
    if min(medians_ns) > 0:
        return None
    return Verdict(VerdictKind.UNDECIDED, f"a median is {min(medians_ns):g} ns, less than the timer resolves")


def _unless_busy(changes: Sequence[Since], fresh: Fresh, basis: Basis | Paired) -> Verdict:
    """Returns a verdict; UNDECIDED if programs that slowed the new times, or the old ones, may explain it.

    It is SLOWER if the new times are so by what they would be at least without them.
    """
    old, new = basis.old_and_new(fresh)
    if despite := _despite_others(new):
        certain = _screened(basis.changes(fresh, least=True), basis.threshold)
        if certain.kind is VerdictKind.SLOWER:
            return certain.adding(*despite)
    verdict = _screened(changes, basis.threshold)
    slowed = {VerdictKind.SLOWER: new, VerdictKind.FASTER: old}.get(verdict.kind, ())
    busy, when = _busy(slowed), "meanwhile" if slowed is new else "before"
    if not busy:
        return verdict
    reason = f"{verdict.reason}, but {busy} {when}"
    return structs.replace(verdict, kind=VerdictKind.UNDECIDED, reason=reason, others_share=_others(slowed))


def _screened(changes: Sequence[Since], threshold: float) -> Verdict:
    """Returns the verdict by the first change, or SLOWER by another."""
    verdicts = [_by_interval(since, threshold) for since in changes]
    verdict, first = _first_slower(verdicts), changes[0].change
    words = [f"{numbers(first)} since all {first.recorded}"] if verdict is not verdicts[0] else []
    return verdict.adding(*words)


def _first_slower(verdicts: Sequence[Verdict]) -> Verdict:
    return next((verdict for verdict in verdicts if verdict.kind is VerdictKind.SLOWER), verdicts[0])


def _by_interval(since: Since, threshold: float) -> Verdict:
    change = since.change
    if change.error() >= 1:  # a factor of e: no ratio says anything
        reason = f"too short or too noisy for this timer: the standard error is {100 * change.error():.3g} %"
        return Verdict(VerdictKind.UNDECIDED, reason, ratio_of(change.delta), sessions=change.fresh)
    limit, bound = math.log1p(threshold), f"{100 * threshold:g} %"
    detectable = change.detectable(limit)
    kind, reason = VerdictKind.UNDECIDED, f"{numbers(change)}: {undecided_words(change, limit, detectable)}"
    if change.least() > 0 and change.delta >= limit:
        kind, reason = VerdictKind.SLOWER, f"{numbers(change)}{since.words}, threshold {bound}"
    elif change.least() > 0 and change.delta <= -limit:
        kind, reason = VerdictKind.FASTER, f"{numbers(change)}, threshold {bound}"
    elif -limit <= change.low and change.high <= limit:
        kind, reason = VerdictKind.SAME, f"{numbers(change)}, inside ±{bound}"
    ratio, low, high = map(ratio_of, (change.delta, change.low, change.high))
    return Verdict(kind, reason, ratio, low, high, ratio_of(detectable), sessions=change.fresh)


def _others(times: Iterable[Measurement]) -> float:
    return max((timed.seen(LOAD, OTHERS_SHARE) or 0.0 for timed in times), default=0.0)


def _busy(times: Iterable[Measurement]) -> str:
    """Says which share of the host others used while it timed these; nothing if that disturbed none."""
    share = _others(times)
    return f"other programs used {100 * share:.0f} % of the host's CPUs" if share >= BUSY_HOST else ""


def _despite_others(new: Sequence[Measurement]) -> list[str]:
    words = _busy(new)
    return [f"at least so much, though {words} meanwhile"] if words else []


def _at_most(timed: Measurement) -> Measurement:
    """Returns a time as it would have been at most without other programs."""
    most = timed.seen(LOAD, MOST)
    return _taking(timed, most) if most and _busy([timed]) else timed


def _at_least(new: Sequence[Measurement], old: Sequence[Measurement]) -> list[Measurement]:
    """Returns times as they would be at least without other programs.

    A fixed loop tells how much slower the CPUs are than for the old times, as where others share their cores.
    Beyond what we allow for anyway, other code may lose twice as much as that loop. Where it is not known, we
    take them for half as fast.
    """
    loops = [loop for timed in old if (loop := timed.seen(LOAD, LOOP))]

    def at_least(timed: Measurement) -> Measurement:
        if not _busy([timed]):
            return timed
        loop, least = timed.seen(LOAD, LOOP), timed.seen(LOAD, LEAST) or _NO_LEAST_NS
        growth = 2 * loop / statistics.median(loops) - CPU_GROWTH if loop and loops else 2.0
        return _taking(timed, least / max(1.0, growth / CPU_GROWTH))

    return list(map(at_least, new))


def _taking(timed: Measurement, ns: float) -> Measurement:
    summary = structs.replace(timed.summary, median_ns=ns, low_ns=ns, high_ns=ns)
    return structs.replace(timed, summary=summary)


def _up_to(table: Mapping[_Number, _Row], most: _Number) -> _Row:
    """Returns the row of a table for the largest of its keys up to `most`."""
    return table[max(known for known in table if known <= most)]


def _decided(
    suspicion: Verdict, again: Verdict, since: Since, basis: Basis | Paired, despite: Sequence[str]
) -> Verdict:
    change, limit = since.change, math.log1p(basis.threshold)
    remarks = [*despite, *basis.remarks(change)]
    sure = change.least(CONFIRMING) if change.delta > 0 else -math.inf
    if since.apart and sure >= limit:
        own = _by_interval(since, basis.threshold)
        by_it = {name: getattr(own, name) for name in ("kind", "ratio", "ratio_low", "ratio_high")}
        sessions = f"{_sessions(change)} confirmed at least {percent(sure)} (97.5 %)"
        reason = "; ".join([own.reason, sessions, *remarks])
        return structs.replace(again, **by_it, reason=reason, suspected=False)
    if again.kind is VerdictKind.SLOWER:
        words = undecided_words(change, limit, change.detectable(limit, screening=suspicion.sessions))
        if sure >= limit:
            than = "the recorded ones" if change.recorded else "its base"
            words = f"not every fresh session was slower than {than}"
        reason = "; ".join([f"{numbers(change)}: {words}", *remarks])
        again = structs.replace(again, kind=VerdictKind.UNDECIDED, reason=reason)
    return _unconfirmed(suspicion, again, _sessions(change))


def _unconfirmed(suspicion: Verdict, again: Verdict, sessions: str = "fresh sessions") -> Verdict:
    reason = f"suspected {_first(suspicion)}, not confirmed by {sessions}: {again.reason}"
    return _without_confirmation(again, again.kind, reason)


def _without_confirmation(verdict: Verdict, kind: VerdictKind, reason: str) -> Verdict:
    return structs.replace(verdict, kind=kind, reason=reason, suspected=False, unconfirmed=True)


def _first(suspicion: Verdict) -> str:
    return "a slowdown" if suspicion.ratio is None else percent(math.log(suspicion.ratio))


def _sessions(change: Change) -> str:
    one = "pair" if not change.recorded else "session"
    return f"{change.fresh} fresh {one}{'s' if change.fresh > 1 else ''}"
