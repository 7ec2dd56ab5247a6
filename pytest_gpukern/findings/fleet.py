"""Judges the cards of a host or of a fleet: sessions of cards in, verdicts out.

The method has four steps. Cards of one model are compared.

1. *Shift.* A card's log time of a kernel is the lower median over the sessions that may raise suspicions.
   Less the lower median over the cards, it is the card's deviation. The weighted median deviation of a class
   of kernels is the card's shift.
2. *Suspicion.* Below `FEWEST_CARDS` cards, a card is suspected from fixed limits (`LIMITS`), and kernels
   weigh alike. From there on no percentage is fixed: a kernel weighs by 1 ÷ spread², and a card is suspected
   from a number of spreads between cards. The spread is 1.4826 times the median absolute deviation.
3. *Groups.* All cards of a driver, of a set of libraries or of a host may have shifted. Then the group is
   named, and each of its cards is judged by what is left. Hosts are judged like cards, by the lower median of
   their cards, where there are `FEWEST_CARDS` hosts with two cards or more.
4. *Confirmation.* Other sessions confirm: their shift, less the shift of cards that are not suspected, must
   reach the limit of confirmation. Sessions that raise a suspicion never count, since it chose them. Without
   others it stays a suspicion.

The number of spreads is a quantile of Student's t, at 1 in 1000 divided by the number of cards, hosts and
classes (Bonferroni). So of 1000 healthy fleets about one has a suspicion, if shifts are normal. The degrees
of freedom are 0.37 (n − 1), since the median absolute deviation is 37 % efficient (Rousseeuw & Croux 1993).
`docs/evidence/fleet_simulation.py` counts both errors, and tells what becomes of them with heavy tails.

A fixed limit is confirmed by itself, a number of spreads by the quantile at 1 in 1000. Below `FEWEST_CARDS`
a card is slow if that is confirmed in two classes of kernels, or in one that has a physical cause. Otherwise
one class is told and blames nobody: healthy cards differ in some kernels by several per cent. Of two cards,
one is named only if a physical cause says which.
"""

from __future__ import annotations

import enum
import itertools
import math
import re
import statistics
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pytest_gpukern.findings.cards import (
    COPIES,
    FEWEST_CASES,
    LIMITS,
    Card,
    CardFigures,
    CardFinding,
    CardVerdict,
    Cause,
    Facts,
    causes,
    combined,
)
from pytest_gpukern.measure.statistics import student_t
from pytest_gpukern.values.grouping import grouped
from pytest_gpukern.values.result import hash_method

Array = NDArray[np.float64]

FEWEST_CARDS = 20
"""Cards of a model, or hosts, whose spread says what stands out."""
_FALSE_ALARMS = 1 / 1000  # healthy fleets with a suspicion
_CONFIRMED_WRONGLY = 1 / 1000  # healthy cards that a suspicion's other sessions would confirm
_EFFICIENCY = 0.37  # of the median absolute deviation (Rousseeuw & Croux 1993)
_NORMAL = 1.4826  # the standard deviation of a normal distribution ÷ its median absolute deviation
_LEAST_SPREAD = 1e-4  # a log ratio that sessions do not resolve
_FEWEST_TO_COMPARE = 3
_OTHERS = 31
_KERNELS_OF_A_CLASS = 16  # for further sessions: cards differ by more than the error of such a median

_ByCard = Mapping[Card, Sequence[CardFigures]]
_Rows = Mapping[str, list[int]]
_Versions = tuple[tuple[str, str], ...]

# --- what is found --------------------------------------------------------------------------------


class Kind(enum.StrEnum):
    """Says how bad a finding is, the worst first."""

    WRONG = "WRONG"
    CORRUPT = "CORRUPT"
    SLOW = "SLOW"
    SILENT = "SILENT"
    UNREADABLE = "UNREADABLE"
    SUSPECTED = "suspected"
    NOTED = "noted"


class FleetFinding(NamedTuple):
    """Says what stands out, besides the times of a card.

    Attributes:
        what: `wrong`, `wrong everywhere`, `bits`, `odd bits`, `missing`, `told`, `few`, `lacking` or `one
            place`; or what slower cards have in common: `driver`, `libraries` or `host`.
        where: name of a card, host or case, driver or libraries.
        names: outputs or cases, or problems of a card's runs.
        number: of cards that are so, or of sessions.
        of: number of all cards of the model, or of cards in most hosts.
        cards: the cards that it is about; none for `missing` and `few`.
        shifts: class → log ratio of slower cards, of the classes that stand out.
    """

    kind: Kind
    what: str
    where: str
    names: tuple[str, ...] = ()
    number: int = 0
    of: int = 0
    cards: tuple[Card, ...] = ()
    shifts: Mapping[str, float] = MappingProxyType({})


@dataclass(frozen=True)
class Model:
    """Holds what was found about the cards of one model.

    Attributes:
        spreads: class with enough kernels → spread of the cards' shifts, and the shift from which a card is
            suspected, as log ratios.
    """

    name: str
    cards: Mapping[Card, CardFinding]
    groups: tuple[FleetFinding, ...]
    spreads: Mapping[str, tuple[float, float]]


@dataclass(frozen=True)
class FleetFindings:
    """Holds what was found about a fleet, or a host.

    Attributes:
        cards: all that reported.
        models: what their times say.
        findings: what else stands out.
        knows_hosts: whether missing hosts would be seen.
        failed: card → failed tests of its sessions.
        confirmed_by: most sessions of a card that may confirm a suspicion.
        measured: when the first and the last session ended.
    """

    cards: tuple[Card, ...]
    models: tuple[Model, ...]
    findings: tuple[FleetFinding, ...]
    knows_hosts: bool
    failed: Mapping[Card, int]
    confirmed_by: int
    measured: tuple[datetime, datetime]

    @property
    def _all_findings(self) -> list[FleetFinding]:
        return [*self.findings, *(group for model in self.models for group in model.groups)]

    @property
    def confirmed(self) -> bool:
        """Whether a card, or a group of them, is slow or corrupt for sure."""
        cards = (card for model in self.models for card in model.cards.values())
        sure = any(finding.kind in (Kind.CORRUPT, Kind.SLOW) for finding in self._all_findings)
        return sure or any(card.bad for card in cards)

    @property
    def bad(self) -> bool:
        """Whether something stands out: wrong, confirmed or silent."""
        harmless = (Kind.SUSPECTED, Kind.NOTED)
        return self.confirmed or any(finding.kind not in harmless for finding in self.findings)

    @property
    def to_drain(self) -> list[str]:
        """Hosts with a card that is confirmed to be slow or corrupt, or computed wrongly by itself."""
        at_fault = (of for of in self._all_findings if of.what in ("wrong", "bits", "host"))
        cards = [card for of in at_fault if of.kind is not Kind.SUSPECTED for card in of.cards]
        for model in self.models:
            cards += [card for card, of in model.cards.items() if of.verdict is CardVerdict.SLOW]
        return sorted({card.host for card in cards}, key=_natural)


# --- the fleet ------------------------------------------------------------------------------------


def split_sessions(sessions: Iterable[CardFigures]) -> tuple[list[CardFigures], list[CardFigures]]:
    """Returns the sessions that may raise a suspicion, and those that confirm one: of three a card or more.

    The first third raises, rounded up, and the others confirm. With fewer all raise, and none confirms.
    """
    raising, confirming = [], []
    for of_card in _by_card(sessions).values():
        first = len(of_card) if len(of_card) < _FEWEST_TO_COMPARE else -(-len(of_card) // 3)
        raising += of_card[:first]
        confirming += of_card[first:]
    return raising, confirming


def judged(
    raising: Sequence[CardFigures],
    confirming: Sequence[CardFigures] = (),
    *,
    expected: Iterable[str] | None = None,
    unreadable: Iterable[tuple[str, str]] = (),
) -> FleetFindings:
    """Returns what stands out among the cards, by the method above.

    Args:
        raising: sessions of all cards.
        confirming: further ones, of all cards or of some suspected ones and a neighbour.
        expected: hosts that should have reported.
        unreadable: host and index of files that cannot be read: these cards did report.
    """
    by_card, first, fresh = _by_card([*raising, *confirming]), _by_card(raising), _by_card(confirming)
    by_model = grouped((card.model, card) for card in by_card if card.model)
    moments = [session.created for session in (*raising, *confirming)]
    failed = {card: n for card, of in by_card.items() if (n := max(session.failed for session in of))}
    findings = [wrong for cards in by_model.values() for wrong in _wrong(cards, by_card)]
    findings += [*_corrupt(by_card), *_silent(by_card, expected, unreadable)]
    findings += [lacking for cards in by_model.values() for lacking in _lacking(cards, by_card)]
    return FleetFindings(
        tuple(by_card),
        tuple(_judged_model(name, of, first, fresh) for name, of in by_model.items()),
        tuple(findings),
        expected is not None,
        failed,
        max(map(len, fresh.values()), default=0),
        (min(moments), max(moments)),
    )


def _by_card(sessions: Iterable[CardFigures]) -> dict[Card, list[CardFigures]]:
    """Returns the sessions of each card, oldest first; one that is there twice counts once."""
    in_time = sorted(sessions, key=lambda session: session.created)
    # A run in which nothing was measured does not know its card, but its file has host and index.
    at = {(card.host, card.index): card for card in (session.card for session in in_time) if card.model}
    for number, session in enumerate(in_time):
        card = session.card
        if not card.model and (card.host, card.index) in at:
            in_time[number] = replace(session, card=at[card.host, card.index])
    once = {(session.card, session.id or number): session for number, session in enumerate(in_time)}
    groups = grouped((session.card, session) for session in once.values()).values()
    # By the newest session: a host may have got another name.
    newest = {of[-1].card: of for of in groups}
    order = sorted(newest, key=lambda card: (_natural(card.host), _natural(card.index), card.uuid))
    places = Counter((card.host, card.index) for card in order if card.index and card.model)
    return {replace(card, shares_index=places[card.host, card.index] > 1): newest[card] for card in order}


def _natural(name: str) -> list[tuple[int, str]]:
    """Returns by what people sort names: node2 comes before node10."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", name)]


def _wrong(cards: Sequence[Card], by_card: _ByCard) -> Iterator[FleetFinding]:
    """Yields the cases that the same cards of a model computed wrongly; if most did, no card is at fault."""
    on = grouped((case, card) for card in cards for session in by_card[card] for case in session.wrong)
    for bad, cases in grouped((tuple(dict.fromkeys(on[case])), case) for case in sorted(on)).items():
        what = "wrong everywhere" if 2 * len(bad) > len(cards) > 1 else "wrong"
        yield FleetFinding(Kind.WRONG, what, cases[0], tuple(cases), len(bad), len(cards), bad)


def _silent(
    by_card: _ByCard, expected: Iterable[str] | None, unreadable: Iterable[tuple[str, str]]
) -> Iterator[FleetFinding]:
    """Yields hosts that are silent or have few cards, and cards without valid times or at one index."""
    places = grouped(((card.host, card.index), card) for card in by_card)
    for (host, index), both in places.items():
        if len(both) > 1 and index:
            uuids = tuple(card.uuid[:12] for card in both)
            yield FleetFinding(Kind.NOTED, "one place", f"{host} GPU {index}", uuids, cards=tuple(both))
    damaged = grouped({*unreadable} - places.keys())
    reported = {session.card.host for sessions in by_card.values() for session in sessions}
    for host in sorted({*(expected or ())} - reported - damaged.keys(), key=_natural):
        yield FleetFinding(Kind.SILENT, "missing", host)
    for card, sessions in by_card.items():
        problems = [problem for session in sessions for problem in session.problems]
        if not any(session.times_ns for session in sessions):
            reasons = (why for session in sessions for why in session.not_run.values())
            problems = ["nothing valid was measured", *problems, *reasons]
        if problems:
            yield FleetFinding(Kind.SILENT, "told", str(card), tuple(dict.fromkeys(problems)), cards=(card,))
    for on_hosts in grouped((card.model, card.host) for card in by_card).values():
        counts = Counter(on_hosts)
        usual, hosts = Counter(counts.values()).most_common(1)[0]
        for host in sorted(counts, key=_natural) if len(counts) >= _FEWEST_TO_COMPARE else ():
            here = counts[host] + len(damaged.get(host, ()))
            if here < usual and 2 * hosts > len(counts):
                yield FleetFinding(Kind.SILENT, "few", host, number=here, of=usual)


def _lacking(cards: Sequence[Card], by_card: _ByCard) -> Iterator[FleetFinding]:
    """Yields the cards that lack a valid time of cases that most cards of the model have timed."""
    timed = {card: dict.fromkeys(key for of in by_card[card] for key in of.times_ns) for card in cards}
    counts = Counter(key for keys in timed.values() for key in keys)
    usual = [key for key, n in counts.items() if 2 * n > len(cards)]
    for card in cards:
        why = {case: why for session in by_card[card] for case, why in session.not_run.items()}
        wrong = {case for session in by_card[card] for case in session.wrong}
        lacking = {key.rpartition(" ")[0]: None for key in usual if timed[card] and key not in timed[card]}
        if cases := [case for case in lacking if case not in wrong]:
            names = tuple(f"{case} ({why.get(case, 'no valid time')})" for case in cases)
            yield FleetFinding(Kind.SILENT, "lacking", str(card), names, cards=(card,))


def _corrupt(by_card: _ByCard) -> Iterator[FleetFinding]:
    """Yields cards with outputs whose bits differ from most cards with the same software.

    A second session confirms it. Bits that more than a hundredth of the cards have, and more than two, are
    what a library chose there.
    """
    for cards in grouped(((card.model, card.versions), card) for card in by_card).values():
        sessions = [(card, session) for card in cards for session in by_card[card]]
        seen = grouped(
            ((output, hash_method(bits)), (bits, card))
            for card, session in sessions
            for output, bits in session.bits.items()
        )
        odd: set[tuple[str, str]] = set()
        for (output, _), pairs in seen.items():
            cards_with = {bits: {*of} for bits, of in grouped(pairs).items()}
            count, most = len({card for _, card in pairs}), max(map(len, cards_with.values()))
            if count >= _FEWEST_TO_COMPARE and 2 * most > count:
                few = min(max(2, count // 100), most - 1)
                odd |= {(output, bits) for bits, of in cards_with.items() if len(of) <= few}
        in_doubt = grouped((card, here) for card, each in sessions if (here := odd & each.bits.items()))
        for card, of_sessions in in_doubt.items():
            outputs = tuple(sorted({output for here in of_sessions for output, _ in here}))
            kind, what = (Kind.CORRUPT, "bits") if len(of_sessions) > 1 else (Kind.SUSPECTED, "odd bits")
            yield FleetFinding(kind, what, str(card), outputs, len(of_sessions), cards=(card,))


# --- what is measured again -----------------------------------------------------------------------


def kernel_classes(by_card: _ByCard) -> dict[str, str]:
    """Returns kernel → class on most cards, of the kernels that more than one card has a valid time of."""
    first = ({kernel: of for of in reversed(all_of) for kernel in of.times_ns} for all_of in by_card.values())
    known = grouped(
        (kernel, session.kernels[kernel].limited_by) for of in first for kernel, session in of.items()
    )
    counts = {kernel: Counter(names) for kernel, names in known.items() if len(names) > 1}
    return {kernel: max(LIMITS, key=of.__getitem__) for kernel, of in counts.items() if None not in of}


def to_measure_again(sessions: Sequence[CardFigures]) -> dict[str, list[str]]:
    """Returns class → tests of the kernels to measure further, from all over the suites.

    Cases that one card computed wrongly are left out.
    """
    tests = {kernel: of.test for session in sessions for kernel, of in session.kernels.items()}
    wrong = {case for session in sessions for case in session.wrong}
    classes = kernel_classes(_by_card(sessions)).items()
    of_class = grouped((name, tests[each]) for each, name in classes if each.rpartition(" ")[0] not in wrong)
    enough = {name: of for name, of in of_class.items() if len(of) >= FEWEST_CASES}
    return {name: of[:: -(-len(of) // _KERNELS_OF_A_CLASS)] for name, of in enough.items()}


class Recheck(NamedTuple):
    """Says in which classes a suspected card is to be measured again, and with which neighbour."""

    classes: tuple[str, ...]
    neighbour: Card | None


def to_confirm(fleet: FleetFindings) -> dict[Card, Recheck]:
    """Returns the cards whose suspicion other sessions should decide; of a group that is suspected, some.

    A neighbour is the card whose largest shift is the smallest, by the limits of the classes, among the cards
    with times in the classes in doubt.
    """
    again: dict[Card, Recheck] = {}
    for model in fleet.models:
        shifts = {card: finding.shifts for card, finding in model.cards.items()}
        doubtful = {card: finding.suspected for card, finding in model.cards.items() if finding.suspected}
        for group in model.groups:
            doubtful |= dict.fromkeys(group.cards[:_FEWEST_TO_COMPARE], tuple(group.shifts))
        moved = {
            card: max((abs(shift) / LIMITS[name] for name, shift in of.items()), default=math.inf)
            for card, of in shifts.items()
            if not any(card in group.cards for group in model.groups)
        }
        for card, classes in doubtful.items():
            others = [other for other in moved if other != card]
            fit = [other for other in others if shifts[other].keys() >= {*classes}]
            again[card] = Recheck(classes, min(fit or others, key=moved.__getitem__, default=None))
    return again


# --- times of one model ---------------------------------------------------------------------------


def _judged_model(name: str, cards: Sequence[Card], first: _ByCard, fresh: _ByCard) -> Model:
    shifts = _Shifts(cards, first, fresh)
    out = shifts.raised >= shifts.suspected_from
    again = shifts.fresh - _median(np.where(out, np.nan, shifts.fresh))
    held, doubtful = out & (again >= shifts.confirmed_from), out & np.isnan(again)
    fast = (shifts.raised <= -shifts.suspected_from) & ~(again > -shifts.confirmed_from)
    facts = {card: combined(of.facts for of in first.get(card) or fresh[card]) for card in cards}
    in_group = {card for group in shifts.groups for card in group.cards}
    usual = statistics.mode(card.versions for card in cards)
    findings = {}
    for row, (card, own) in enumerate(zip(cards, (shifts.raised + shifts.due).tolist(), strict=True)):
        known = {each: x for each, x in zip(shifts.classes, own, strict=True) if not math.isnan(x)}
        sides = (held, doubtful, fast)
        slower, suspected, faster = (tuple(itertools.compress(shifts.classes, of[row])) for of in sides)
        differs = tuple(_differences(card, cards, facts, usual))
        verdict = CardVerdict.ALIKE if known else CardVerdict.NOT_COMPARED
        if slower:
            verdict = _slow(cards, slower, differs)
        elif suspected:
            verdict = CardVerdict.SUSPECTED
        elif out[row].any():
            verdict = CardVerdict.NOT_CONFIRMED
        elif card in in_group:
            verdict = CardVerdict.IN_GROUP
        elif faster and (len(cards) >= FEWEST_CARDS or len({*faster} - {COPIES}) > 1):
            verdict = CardVerdict.FASTER
        findings[card] = CardFinding(verdict, known, slower, suspected, differs, facts[card], faster)
    spreads = _spread(shifts.raised - _median(shifts.raised)).tolist()
    limits = zip(spreads, shifts.suspected_from.tolist(), strict=True)
    return Model(name, findings, tuple(shifts.groups), dict(zip(shifts.classes, limits, strict=True)))


def _slow(cards: Sequence[Card], slower: Sequence[str], differs: Iterable[Cause]) -> CardVerdict:
    """Returns what to call one of these cards that is confirmed to be slower in some classes."""
    if len(cards) >= FEWEST_CARDS or any(cause.slows.intersection(slower) for cause in differs):
        return CardVerdict.SLOW
    if sum(name != COPIES for name in slower) < 2:
        return CardVerdict.ONE_CLASS
    return CardVerdict.SLOW if len(cards) > 2 else CardVerdict.ONE_OF_TWO


def _differences(
    card: Card, cards: Sequence[Card], facts: Mapping[Card, Facts], usual: _Versions
) -> Iterator[Cause]:
    """Yields in what a card differs from the others: in what is known of it, and in its versions."""
    sample = cards[:: max(1, len(cards) // _OTHERS)]  # their median is what is usual
    yield from causes(facts[card], [facts[other] for other in sample if other != card])
    if text := _differing(card.versions, usual):
        yield Cause(text, "install what the other cards have", frozenset(LIMITS), fault=False)


def _differing(versions: _Versions, most: _Versions) -> str:
    """Returns which versions most cards do not have: `numba 0.67 (most: 0.68)`."""
    own, usual = dict(versions), dict(most)
    names = (name for name in usual | own if own.get(name) != usual.get(name))
    return ", ".join(
        f"{name} {own.get(name, 'missing')} (most: {usual.get(name, 'missing')})" for name in names
    )


class _Shifts:
    """Holds the shifts of a model's cards: arrays of cards × classes, NaN where too few kernels have times.

    Attributes:
        raised: shifts by the sessions that raise suspicions, without what groups of cards have in common.
        fresh: shifts by the sessions that confirm, also without that, against all cards' in the first.
        due: what groups that stand out have in common.
        suspected_from: limit of each class for `raised`; `confirmed_from` is the limit for `fresh`.
    """

    def __init__(self, cards: Sequence[Card], first: _ByCard, fresh: _ByCard) -> None:
        of_kernels = kernel_classes({card: first[card] for card in cards if card in first})
        kernels = grouped((name, kernel) for kernel, name in of_kernels.items())
        self.cards, self.groups = cards, list[FleetFinding]()
        self.classes = [name for name in LIMITS if len(kernels.get(name, ())) >= FEWEST_CASES]
        self.both = np.empty((2, len(cards), len(self.classes)))
        self.raised, self.fresh = self.both
        self.due = np.zeros_like(self.raised)
        for number, name in enumerate(self.classes):
            logs = [_log_times(cards, side, kernels[name]) for side in (first, fresh)]
            deviations, weights = logs - _median(logs[0]), np.ones(len(kernels[name]))
            if len(cards) >= FEWEST_CARDS:
                spread = _spread(deviations[0])  # 0 where cards differ by less than a step of the timer
                weights = np.maximum(spread, np.median(spread)) ** -2
            for side, of in zip(self.both, deviations, strict=True):
                enough = (~np.isnan(of)).sum(axis=1) >= FEWEST_CASES
                side[:, number] = np.where(enough, _median(of.T, weights), np.nan)
        self.suspected_from = self.confirmed_from = np.array([LIMITS[name] for name in self.classes])
        if len(cards) >= FEWEST_CARDS:
            self._take_out_groups()

    def _take_out_groups(self) -> None:
        """Judges drivers, then libraries, then hosts, each by what the former leave; sets the limits."""
        most = statistics.mode(card.libraries for card in self.cards)
        sets = (_differing(card.libraries, most) or "those of most cards" for card in self.cards)
        names = ((card.versions[0][1] for card in self.cards), sets, (card.host for card in self.cards))
        drivers, libraries, of_hosts = (grouped(zip(of, itertools.count(), strict=False)) for of in names)
        hosts = {name: rows for name, rows in of_hosts.items() if len(rows) > 1}
        hosts = hosts if len(hosts) >= FEWEST_CARDS else {}
        judged_ones = len(self.cards) + len(hosts) + len(drivers) + len(libraries)
        chance = _FALSE_ALARMS / max(1, len(self.classes)) / judged_ones
        for what, of in (("driver", drivers), ("libraries", libraries)):
            # Many cards know their shift well. The fastest of such groups is what others are compared with.
            many = [rows for rows in of.values() if len(rows) >= FEWEST_CARDS] or [max(of.values(), key=len)]
            middles = np.array([self._middle(rows) for rows in many])
            fastest = np.nan_to_num(middles[:, 0], nan=np.inf).argmin(axis=0)
            own = np.concatenate([self.raised[rows] - _median(self.raised[rows]) for rows in many])
            if len(of) > 1:
                usual = middles[fastest, :, np.arange(len(self.classes))].T
                self._judge(what, of, usual, _limits(own, chance))
        self.raised -= _median(self.raised)
        self.suspected_from, self.confirmed_from = _limits(self.raised, chance)
        self.fresh -= _median(np.where(self.raised >= self.suspected_from, np.nan, self.fresh))
        if hosts:
            middles = np.array([self._middle(rows)[0] for rows in hosts.values()])
            usual = _median(middles)
            self._judge("host", hosts, np.array([usual, 0 * usual]), _limits(middles - usual, chance))

    def _middle(self, rows: list[int]) -> Array:
        """Returns the shifts of a group of cards: 2 × classes, raised and fresh."""
        return np.array([_median(side[rows]) for side in self.both])

    def _judge(self, what: str, groups: _Rows, usual: Array, limits: tuple[Array, Array]) -> None:
        """Names the groups whose cards are slower than usual, and takes out what the cards have in common."""
        for name, rows in groups.items():
            moved, again = self._middle(rows) - usual
            held = again >= limits[1]
            out = (moved >= limits[0]) & (held | np.isnan(again)) & (len(rows) > 1)
            if out.any():
                of_group = tuple(self.cards[row] for row in rows)
                kind, classes = (Kind.SLOW, out & held) if (out & held).any() else (Kind.SUSPECTED, out)
                shifts = dict(itertools.compress(zip(self.classes, moved.tolist(), strict=True), classes))
                group = FleetFinding(kind, what, name, (), len(rows), 0, of_group, shifts)
                self.groups.append(group)
            many = what != "host" and len(rows) >= FEWEST_CARDS
            self.both[:, rows] -= np.where(out | many, moved, 0.0)
            self.due[rows] += np.where(out, moved, 0.0)


def _log_times(cards: Sequence[Card], by_card: _ByCard, kernels: Sequence[str]) -> Array:
    """Returns the lower median over each card's sessions: cards × kernels."""
    most = max((len(by_card.get(card, ())) for card in cards), default=0)
    times = np.full((max(1, most), len(cards), len(kernels)), np.nan)
    for row, card in enumerate(cards):
        for number, session in enumerate(by_card.get(card, ())):
            times[number, row] = [session.times_ns.get(kernel, np.nan) for kernel in kernels]
    return _median(np.log(times))


def _median(values: Array, weights: Array | None = None) -> Array:
    """Returns the lower median along the first axis, of what is no NaN; `weights` are of its places."""
    order, known = np.argsort(values, axis=0), ~np.isnan(values)  # NaN comes last
    heavy = known if weights is None else known * weights[:, None]
    sums = np.cumsum(np.take_along_axis(heavy, order, axis=0), axis=0)
    place = (sums >= sums[-1] / 2).argmax(axis=0)[None]
    middle: Array = np.take_along_axis(np.take_along_axis(values, order, axis=0), place, axis=0)[0]
    return middle


def _spread(deviations: Array) -> Array:
    """Returns the standard deviation of normal deviations about 0, by their median size."""
    return (_NORMAL * _median(abs(deviations))).clip(_LEAST_SPREAD)


def _limits(deviations: Array, chance: float) -> tuple[Array, Array]:
    """Returns what one of these deviations exceeds by a chance, and by the chance of confirmation."""
    freedom = max(1.0, _EFFICIENCY * (len(deviations) - 1))
    suspected, confirmed = (student_t(1 - each, freedom) for each in (chance, _CONFIRMED_WRONGLY))
    return suspected * _spread(deviations), confirmed * _spread(deviations)


# --- before and after -----------------------------------------------------------------------------


@dataclass(frozen=True)
class FleetChange:
    """Holds how the cards of both sides have changed since another time.

    Attributes:
        cards: how many are on both sides.
        shifts: model → class → log ratio of after to before, the median over the kernels.
        canaries: name → log ratio, of the fixed kernels that every session measures.
        versions: driver or library → versions before → versions after, where these differ.
        moved: findings about the changes of times: which cards moved differently.
    """

    cards: int
    shifts: Mapping[str, Mapping[str, float]]
    canaries: Mapping[str, float]
    versions: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]]
    moved: FleetFindings


def changed(
    before: Sequence[CardFigures], raising: Sequence[CardFigures], confirming: Sequence[CardFigures]
) -> FleetChange | None:
    """Returns how the cards that have sessions on both sides have changed, or None if none has."""
    old, now = _by_card(before), _by_card([*raising, *confirming])
    own = {card: _medians(of.times_ns for of in old[card]) for card in now if card in old}
    if not own:
        return None
    usual = _medians(own.values())

    def beside_its_own(session: CardFigures) -> CardFigures:
        """Returns the session with the times that it would have if all cards had been alike before."""
        was, times = own[session.card], session.times_ns
        return replace(session, times_ns={k: times[k] * usual[k] / was[k] for k in times if k in was})

    both = [[beside_its_own(each) for each in side if each.card in own] for side in (raising, confirming)]
    shifts = {}
    for model, of in grouped((session.card.model, session) for session in both[0]).items():
        times = _medians(session.times_ns for session in of)
        classes = kernel_classes(_by_card(of)).items()
        shifts[model] = _medians({name: math.log(times[kernel] / usual[kernel])} for kernel, name in classes)
    first, last = (_medians(of[card][0].canaries for card in own) for of in (old, now))
    had, has = _versions(old), _versions(now)
    versions = {name: (had.get(name, ()), has.get(name, ())) for name in sorted(had | has)}
    return FleetChange(
        len(own),
        shifts,
        {name: math.log(last[name] / first[name]) for name in first if name in last},
        {name: sides for name, sides in versions.items() if sides[0] != sides[1]},
        judged(*both),
    )


def _medians(mappings: Iterable[Mapping[str, float]]) -> dict[str, float]:
    gathered = grouped(pair for mapping in mappings for pair in mapping.items())
    return {name: statistics.median(values) for name, values in gathered.items()}


def _versions(cards: Iterable[Card]) -> dict[str, tuple[str, ...]]:
    """Returns driver or library → its versions on all cards."""
    versions = grouped(pair for card in cards for pair in card.versions)
    return {name: tuple(sorted({*of})) for name, of in versions.items()}
