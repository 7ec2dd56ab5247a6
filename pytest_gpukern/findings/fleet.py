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
4. *Confirmation.* Other sessions confirm: the same shift, less that of the cards that are not suspected, must
   reach the limit of confirmation. Sessions that raise a suspicion never count, since it chose them. Without
   others it stays a suspicion.

The number of spreads is a quantile of Student's t, at 1 in 1000 divided by the number of cards, hosts and
classes (Bonferroni). So of 1000 healthy fleets about one has a suspicion, if shifts are normal. The degrees
of freedom are 0.37 (n − 1), since the median absolute deviation is 37 % efficient (Rousseeuw & Croux 1993).
`tests/evidence/fleet_simulation.py` counts both errors, and tells what becomes of them with heavy tails.

A fixed limit is confirmed by itself, a number of spreads by the quantile at 1 in 1000. Below `FEWEST_CARDS`
a card is slow if that is confirmed in two classes of kernels, or in one that has a physical cause. Otherwise
one class is told and blames nobody: healthy cards differ in some kernels by several per cent. Of two cards,
one is named only if its own record or a physical cause says which.
"""

from __future__ import annotations

import itertools
import math
import re
import statistics
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from pytest_gpukern.findings.cards import (
    COPIES,
    FEWEST_CASES,
    LIMITS,
    Card,
    CardFacts,
    CardFinding,
    CardVerdict,
    Cause,
    Session,
    causes,
    kernel_class,
)
from pytest_gpukern.measure.statistics import student_t
from pytest_gpukern.values.result import hash_method

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Array = NDArray[np.float64]

FEWEST_CARDS = 20
"""Cards of a model, or hosts, whose spread says what stands out."""
_FALSE_ALARMS = 1 / 1000
"""Healthy fleets with a suspicion."""
_NOT_CONFIRMED = 1 / 1000
"""Healthy cards that a suspicion's other sessions would confirm."""
_EFFICIENCY = 0.37
_NORMAL = 1.4826
_LEAST_SPREAD = 1e-4
"""A log ratio that sessions do not resolve."""
_FEWEST_TO_COMPARE = 3
_OTHERS = 31
_KERNELS_OF_A_CLASS = 16
"""Kernels of a class that further sessions measure: their median is known better than cards differ."""


_ByCard = Mapping[Card, Sequence[Session]]
_Rows = Mapping[str, list[int]]
_Key = TypeVar("_Key", bound=Hashable)
_Item = TypeVar("_Item")


class Group(NamedTuple):
    """Names cards that have something in common, and are slower by it.

    Attributes:
        kind: `host`, `driver` or `libraries`.
        name: host or version; of libraries those that differ from most cards'.
        shifts: class → log ratio, of the classes that stand out.
        confirmed: classes that other sessions confirmed.
    """

    kind: str
    name: str
    cards: tuple[Card, ...]
    shifts: Mapping[str, float]
    confirmed: tuple[str, ...]


@dataclass(frozen=True)
class Model:
    """Holds what was found about the cards of one model.

    Attributes:
        spreads: class with enough kernels → spread of the cards' shifts, as a log ratio.
    """

    name: str
    cards: Mapping[Card, CardFinding]
    facts: Mapping[Card, CardFacts]
    groups: tuple[Group, ...]
    spreads: Mapping[str, float]

    @property
    def by_spread(self) -> bool:
        return len(self.cards) >= FEWEST_CARDS

    @property
    def bad(self) -> bool:
        """Whether it is confirmed that a card or a group of them is slow."""
        return any(of.bad for of in self.cards.values()) or any(group.confirmed for group in self.groups)


class Wrong(NamedTuple):
    """Says which cards computed a case wrongly, of how many of their model; most cards are not at fault."""

    case: str
    cards: tuple[Card, ...]
    of: int

    @property
    def everywhere(self) -> bool:
        return 2 * len(self.cards) > self.of and self.of > 1


class Corruption(NamedTuple):
    """Says whose outputs have other bits than those of the other cards with the same software.

    Attributes:
        outputs: `case output`, each once.
        sessions: of the card, in which that is so; a second one confirms it.
    """

    card: Card
    outputs: tuple[str, ...]
    sessions: int


@dataclass(frozen=True)
class FleetFindings:
    """Holds what was found about a fleet, or a host.

    Attributes:
        cards: all that reported.
        missing: expected hosts that reported nothing; None without a list of them.
        few: host → its number of cards, where that is lower than most hosts' number, `usual`.
        lacking: card → case → why it has no valid time there, though most cards of the model have one.
        silent: card → what its runs told instead of valid times.
        failed: card → failed tests of its sessions.
        confirmed_by: most sessions of a card that may confirm a suspicion.
    """

    cards: tuple[Card, ...] = ()
    models: tuple[Model, ...] = ()
    wrong: tuple[Wrong, ...] = ()
    corrupt: tuple[Corruption, ...] = ()
    missing: tuple[str, ...] | None = None
    few: Mapping[str, int] = field(default_factory=dict)
    usual: int = 0
    lacking: Mapping[Card, Mapping[str, str]] = field(default_factory=dict)
    silent: Mapping[Card, tuple[str, ...]] = field(default_factory=dict)
    failed: Mapping[Card, int] = field(default_factory=dict)
    confirmed_by: int = 0

    @property
    def bad(self) -> bool:
        """Whether something stands out: wrong, confirmed or silent."""
        confirmed = any(odd.sessions > 1 for odd in self.corrupt) or any(model.bad for model in self.models)
        return confirmed or any((self.wrong, self.missing, self.few, self.lacking, self.silent))

    @property
    def to_drain(self) -> list[str]:
        """Hosts with a card that is confirmed to be slow or corrupt, or computed wrongly by itself."""
        cards = [card for wrong in self.wrong if not wrong.everywhere for card in wrong.cards]
        cards += [found.card for found in self.corrupt if found.sessions > 1]
        for model in self.models:
            cards += [card for card, of in model.cards.items() if of.verdict is CardVerdict.SLOW]
            cards += [group.cards[0] for group in model.groups if group.kind == "host" and group.confirmed]
        return sorted({card.host for card in cards}, key=_natural)


def sides(sessions: Iterable[Session]) -> tuple[list[Session], list[Session]]:
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
    raising: Sequence[Session],
    confirming: Sequence[Session] = (),
    *,
    since_record: Mapping[str, float] | None = None,
    expected: Iterable[str] | None = None,
    unreadable: Iterable[tuple[str, str]] = (),
) -> FleetFindings:
    """Returns what stands out among the cards, by the method above.

    Args:
        raising: sessions of all cards.
        confirming: further ones, of all cards or of some suspected ones and a neighbour.
        since_record: UUID → log ratio of a card's times to its own recorded ones, where that is known.
        expected: hosts that should have reported.
        unreadable: host and index of files that cannot be read: these cards did report.
    """
    by_card, first, fresh = _by_card([*raising, *confirming]), _by_card(raising), _by_card(confirming)
    by_model = _grouped((card.model, card) for card in by_card if card.model)
    models = [
        _judged_model(name, cards, first, fresh, since_record or {}) for name, cards in by_model.items()
    ]
    wrong = []
    for cards in by_model.values():
        with_it = _grouped((case, card) for card in cards for of in by_card[card] for case in {*of.wrong})
        wrong += [Wrong(case, tuple(dict.fromkeys(on)), len(cards)) for case, on in sorted(with_it.items())]
    reported = dict.fromkeys((*((card.host, card.index or card.uuid) for card in by_card), *unreadable))
    counts = Counter(host for host, _ in reported)
    usual = max(((n, count) for count, n in Counter(counts.values()).items()), default=(0, 0))[1]
    return FleetFindings(
        tuple(by_card),
        tuple(models),
        tuple(wrong),
        tuple(_corrupted(by_card)),
        None if expected is None else tuple(sorted({*expected} - counts.keys(), key=_natural)),
        {host: n for host, n in counts.items() if n < usual and len(counts) >= _FEWEST_TO_COMPARE},
        usual,
        {card: cases for cards in by_model.values() for card, cases in _lacking(cards, by_card)},
        {card: told for card, of in by_card.items() if (told := _silence(of))},
        {card: failed for card, of in by_card.items() if (failed := max(session.failed for session in of))},
        max(map(len, fresh.values()), default=0),
    )


def _grouped(pairs: Iterable[tuple[_Key, _Item]]) -> dict[_Key, list[_Item]]:
    groups: dict[_Key, list[_Item]] = {}
    for key, item in pairs:
        groups.setdefault(key, []).append(item)
    return groups


def _by_card(sessions: Iterable[Session]) -> dict[Card, list[Session]]:
    """Returns the sessions of each card, oldest first; one that is there twice counts once."""
    once = {
        (of.card, of.id or number): of
        for number, of in enumerate(sorted(sessions, key=lambda of: of.created))
    }
    groups = _grouped((session.card, session) for session in once.values()).values()
    # By the newest session: a host may have got another name.
    newest = {of[-1].card: of for of in groups}
    order = sorted(newest, key=lambda card: (_natural(card.host), _natural(card.index), card.uuid))
    return {card: newest[card] for card in order}


def _natural(name: str) -> list[tuple[int, str]]:
    """Returns by what people sort names: node2 comes before node10."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", name)]


def _silence(sessions: Sequence[Session]) -> tuple[str, ...]:
    """Returns what the runs of a card told, if they have no valid time or told of a problem; else nothing."""
    told = [problem for session in sessions for problem in session.problems]
    if not any(session.times_ns for session in sessions):
        reasons = (why for session in sessions for why in session.not_run.values())
        told = ["nothing valid was measured", *told, *reasons]
    return tuple(dict.fromkeys(told))


def _lacking(cards: Sequence[Card], by_card: _ByCard) -> Iterator[tuple[Card, Mapping[str, str]]]:
    """Yields a card and the cases that most cards have a valid time of, and it has not → why."""
    timed = {card: {key for session in by_card[card] for key in session.times_ns} for card in cards}
    counts = Counter(key for keys in timed.values() for key in keys)
    usual = [key for key, n in counts.items() if 2 * n > len(cards)]
    for card in cards:
        not_run = {case: why for session in by_card[card] for case, why in session.not_run.items()}
        wrong = {case for session in by_card[card] for case in session.wrong}
        cases = [key.rpartition(" ")[0] for key in usual if timed[card] and key not in timed[card]]
        if lacking := {case: not_run.get(case, "no valid time") for case in cases if case not in wrong}:
            yield card, lacking


def _corrupted(by_card: _ByCard) -> Iterator[Corruption]:
    """Yields cards with outputs whose bits differ from those of most cards with the same software.

    Bits that more than a hundredth of the cards have, and more than two, are what a library chose there.
    """
    alike = _grouped(((card.model, card.driver, card.libraries), card) for card in by_card)
    for cards in alike.values():
        seen = _grouped(
            ((output, hash_method(bits)), (bits, card))
            for card in cards
            for session in by_card[card]
            for output, bits in session.bits.items()
        )
        odd: set[tuple[str, str]] = set()
        for (output, _), pairs in seen.items():
            cards_with = {bits: {*of} for bits, of in _grouped(pairs).items()}
            count, most = len({card for _, card in pairs}), max(map(len, cards_with.values()))
            if count >= _FEWEST_TO_COMPARE and 2 * most > count:
                few = min(max(2, count // 100), most - 1)
                odd |= {(output, bits) for bits, of in cards_with.items() if len(of) <= few}
        for card in cards if odd else ():
            outputs = [odd & session.bits.items() for session in by_card[card]]
            if any(outputs):
                names = sorted({output for of_session in outputs for output, _ in of_session})
                yield Corruption(card, tuple(names), sum(map(bool, outputs)))


# --- times ----------------------------------------------------------------------------------------


def kernel_classes(by_card: _ByCard) -> dict[str, str]:
    """Returns kernel → class, of the kernels that more than one card has a valid time of."""
    first = ({kernel: of for of in reversed(all_of) for kernel in of.times_ns} for all_of in by_card.values())
    on_cards = _grouped(pair for of_card in first for pair in of_card.items())
    classes = {
        kernel: kernel_class([of.kernels[kernel] for of in found], [of.times_ns[kernel] for of in found])
        for kernel, found in on_cards.items()
        if len(found) > 1
    }
    return {kernel: name for kernel, name in classes.items() if name is not None}


def to_measure_again(sessions: Iterable[Session]) -> dict[str, str]:
    """Returns kernel → class of those that further sessions measure: the quickest of each problem in turn.

    `Session.kernels` has their tests. Cases that one card computed wrongly are left out.
    """
    by_card = _by_card(sessions)
    all_sessions = [session for of in by_card.values() for session in of]
    wrong = {case for session in all_sessions for case in session.wrong}
    known = _grouped((kernel, of) for session in all_sessions for kernel, of in session.kernels.items())
    classes = _grouped((name, kernel) for kernel, name in kernel_classes(by_card).items())
    chosen: dict[str, str] = {}
    for name, of_class in classes.items():
        problems = _grouped(
            (known[kernel][0].problem, (max(of.took_s for of in known[kernel]), kernel))
            for kernel in of_class
            if kernel.rpartition(" ")[0] not in wrong
        )
        in_turn = itertools.zip_longest(*map(sorted, problems.values()))
        kernels = [timed[1] for turn in in_turn for timed in turn if timed is not None]
        if len(kernels) >= FEWEST_CASES:
            chosen |= dict.fromkeys(kernels[:_KERNELS_OF_A_CLASS], name)
    return chosen


class Recheck(NamedTuple):
    """Says in which classes a suspected card is to be measured again, and beside which other card."""

    classes: tuple[str, ...]
    beside: Card | None


def to_confirm(found: FleetFindings) -> dict[Card, Recheck]:
    """Returns the cards whose suspicion other sessions should decide; of a group that is suspected, some.

    A neighbour is the card whose largest shift is the smallest, by the limits of the classes, among those
    with times in the classes in doubt.
    """
    again: dict[Card, Recheck] = {}
    for model in found.models:
        doubtful = {card: finding.suspected for card, finding in model.cards.items() if finding.suspected}
        for group in model.groups:
            doubtful |= dict.fromkeys(group.cards[:_FEWEST_TO_COMPARE], tuple(group.shifts))
        quiet = [card for card in model.cards if not any(card in group.cards for group in model.groups)]
        for card, classes in doubtful.items():
            others = [other for other in quiet if other != card]
            fit = [other for other in others if model.cards[other].shifts.keys() >= {*classes}]
            beside = min(fit or others, key=lambda other: _largest(model.cards[other].shifts), default=None)
            again[card] = Recheck(classes, beside)
    return again


def _largest(shifts: Mapping[str, float]) -> float:
    return max((abs(shift) / LIMITS[name] for name, shift in shifts.items()), default=9.0)


class _Shifts:
    """Holds the shifts of a model's cards: cards × classes, NaN where too few kernels have times.

    Attributes:
        raised: by the sessions that raise suspicions.
        fresh: by those that confirm, beside the former of all cards.
    """

    def __init__(self, cards: Sequence[Card], first: _ByCard, fresh: _ByCard) -> None:
        import numpy as np

        of_kernels = kernel_classes({card: first[card] for card in cards if card in first})
        kernels = _grouped((name, kernel) for kernel, name in of_kernels.items())
        self.classes = [name for name in LIMITS if len(kernels.get(name, ())) >= FEWEST_CASES]
        self.by_spread = len(cards) >= FEWEST_CARDS
        self.raised = np.empty((len(cards), len(self.classes)))
        self.fresh = np.empty_like(self.raised)
        for number, name in enumerate(self.classes):
            logs = _log_times(cards, first, kernels[name])
            centre, weights = _middle(logs), np.ones(len(kernels[name]))
            if self.by_spread:
                spread = _spread(logs - centre)  # 0 where cards differ by less than a step of the timer
                weights = np.maximum(spread, np.median(spread)) ** -2
            self.raised[:, number] = _weighted(logs - centre, weights)
            self.fresh[:, number] = _weighted(_log_times(cards, fresh, kernels[name]) - centre, weights)


def _log_times(cards: Sequence[Card], by_card: _ByCard, kernels: Sequence[str]) -> Array:
    """Returns the lower median over each card's sessions: cards × kernels."""
    import numpy as np

    logs = np.full((len(cards), len(kernels)), np.nan)
    for row, card in enumerate(cards):
        if card in by_card:
            times = [[of.times_ns.get(kernel, np.nan) for kernel in kernels] for of in by_card[card]]
            logs[row] = _middle(np.log(np.array(times, float)))
    return logs


def _middle(values: Array) -> Array:
    """Returns the lower median along the first axis, of what is no NaN."""
    import numpy as np

    ordered = np.sort(values, axis=0)  # with NaN behind
    places = np.maximum((~np.isnan(values)).sum(axis=0) - 1, 0) // 2
    middle: Array = np.take_along_axis(ordered, places[None], axis=0)[0]
    return middle


def _spread(deviations: Array) -> Array:
    """Returns the standard deviation of normal deviations about 0, by their median size."""
    return (_NORMAL * _middle(abs(deviations))).clip(_LEAST_SPREAD)


def _weighted(deviations: Array, weights: Array) -> Array:
    """Returns the lower weighted median of each row, NaN for those with too few values."""
    import numpy as np

    known, order = ~np.isnan(deviations), np.argsort(deviations, axis=1)
    sums = np.cumsum(np.take_along_axis(np.where(known, weights, 0.0), order, axis=1), axis=1)
    place = (sums >= sums[:, -1:] / 2).argmax(axis=1)[:, None]
    middle = np.take_along_axis(np.take_along_axis(deviations, order, axis=1), place, axis=1)[:, 0]
    return np.where(known.sum(axis=1) >= FEWEST_CASES, middle, np.nan)


def _quantile(n: int, chance: float) -> float:
    """Returns how many spreads that n deviations show one of them exceeds by such a chance."""
    return student_t(1 - chance, max(1.0, _EFFICIENCY * (n - 1)))


def _judged_model(
    name: str, cards: Sequence[Card], first: _ByCard, fresh: _ByCard, since_record: Mapping[str, float]
) -> Model:
    import numpy as np

    shifts, groups = _Shifts(cards, first, fresh), list[Group]()
    shown, left, left_fresh = shifts.raised, shifts.raised, shifts.fresh
    limits = confirming = np.array([LIMITS[each] for each in shifts.classes])
    if shifts.by_spread:
        groups, limits, confirming, left, left_fresh, shown = _judged_groups(cards, shifts)
    out = left >= limits
    left_fresh = left_fresh - _middle(np.where(out, np.nan, left_fresh))
    held, refuted = out & (left_fresh >= confirming), out & (left_fresh < confirming)
    facts = {card: CardFacts.merged([of.facts for of in first.get(card) or fresh[card]]) for card in cards}
    step = max(1, len(cards) // _OTHERS)  # the median of so many is what is usual
    in_groups = {card for group in groups for card in group.cards}
    found = {}
    for row, card in enumerate(cards):
        of_card = dict(zip(shifts.classes, map(float, shown[row]), strict=True))
        known = {each: shift for each, shift in of_card.items() if not math.isnan(shift)}
        slower, doubtful = (
            tuple(each for each, true in zip(shifts.classes, truths[row], strict=True) if true)
            for truths in (held, out & ~held & ~refuted)
        )
        differs: tuple[Cause, ...] = ()
        if slower or doubtful or card in in_groups or not shifts.by_spread:
            others = [facts[other] for other in cards[::step] if other != card]
            differs = (*causes(facts[card], others), *_own_software(card, cards))
        verdict = CardVerdict.ALIKE if known else CardVerdict.NOT_COMPARED
        if slower:
            explained = any(cause.slows.intersection(slower) for cause in differs)
            several = sum(each != COPIES for each in slower) > 1
            verdict = CardVerdict.SLOW if several or explained or shifts.by_spread else CardVerdict.ONE_CLASS
            if len(cards) == 2 and several and not (explained or _recorded_faster(card.uuid, since_record)):
                verdict = CardVerdict.ONE_OF_TWO
        elif doubtful:
            verdict = CardVerdict.SUSPECTED
        elif refuted[row].any():
            verdict = CardVerdict.NOT_CONFIRMED
        elif card in in_groups:
            verdict = CardVerdict.IN_GROUP
        found[card] = CardFinding(verdict, known, slower, doubtful, differs, since_record.get(card.uuid))
    spreads = dict(zip(shifts.classes, map(float, _spread(left - _middle(left))), strict=True))
    return Model(name, found, facts, tuple(groups), spreads)


def _recorded_faster(card: str, since_record: Mapping[str, float]) -> bool:
    limit = LIMITS["compute"]
    rest = [shift for other, shift in since_record.items() if other != card]
    slower = since_record.get(card, 0.0) >= limit
    return slower and bool(rest) and all(shift < limit / 2 for shift in rest)


def _own_software(card: Card, cards: Sequence[Card]) -> Iterator[Cause]:
    """Yields in what versions a card differs from most cards."""
    driver = Counter(each.driver for each in cards).most_common(1)[0][0]
    libraries = Counter(each.libraries for each in cards).most_common(1)[0][0]
    text = differing(card.libraries, libraries)
    if card.driver != driver:
        text = ", ".join(filter(None, (f"driver {card.driver} (most: {driver})", text)))
    if text:
        yield Cause(text, "install what the other cards have", frozenset(LIMITS), fault=False)


def differing(libraries: Iterable[tuple[str, str]], others: Iterable[tuple[str, str]]) -> str:
    """Returns in what versions two sets of libraries differ: `numba 0.67 (most: 0.68)`."""
    own, usual = dict(libraries), dict(others)
    names = sorted(name for name in own.keys() | usual.keys() if own.get(name) != usual.get(name))
    texts = (f"{name} {own.get(name, 'missing')} (most: {usual.get(name, 'missing')})" for name in names)
    return ", ".join(texts)


def _judged_groups(
    cards: Sequence[Card], shifts: _Shifts
) -> tuple[list[Group], Array, Array, Array, Array, Array]:
    """Returns groups that stand out, limits of suspicion and confirmation, and shifts of the cards.

    These are what groups leave of the shifts by the sessions that raise, and by those that confirm; and the
    former with what is due to a group that stands out.
    """
    import numpy as np

    left, fresh, groups = shifts.raised.copy(), shifts.fresh.copy(), list[Group]()
    due = np.zeros_like(left)
    most = Counter(card.libraries for card in cards).most_common(1)[0][0]
    labels = (
        [card.driver or "unknown" for card in cards],
        [differing(card.libraries, most) or "those of most cards" for card in cards],
        [card.host for card in cards],
    )
    drivers, libraries, hosts = (_grouped(zip(names, itertools.count(), strict=False)) for names in labels)
    several = {name: rows for name, rows in hosts.items() if len(rows) > 1}
    hosts = several if len(several) >= FEWEST_CARDS else {}
    judged_ones = len(cards) + len(hosts) + len(drivers) + len(libraries)
    chance = _FALSE_ALARMS / max(1, len(shifts.classes)) / judged_ones

    def judge(kind: str, of: _Rows, usual: Array, again: Array, spread: Array, n: int) -> None:
        for name, rows in of.items():
            moved, moved_again = _middle(left[rows]) - usual, _middle(fresh[rows]) - again
            held = moved_again >= _quantile(n, _NOT_CONFIRMED) * spread
            out = (moved >= _quantile(n, chance) * spread) & (held | np.isnan(moved_again)) & (len(rows) > 1)
            if out.any():
                found = {each: float(moved[i]) for i, each in enumerate(shifts.classes) if out[i]}
                confirmed = tuple(each for i, each in enumerate(shifts.classes) if out[i] and held[i])
                groups.append(Group(kind, name, tuple(cards[row] for row in rows), found, confirmed))
            many = kind != "host" and len(rows) >= FEWEST_CARDS
            left[rows] -= np.where(out | many, moved, 0.0)
            fresh[rows] -= np.where(out | many, moved, 0.0)
            due[rows] += np.where(out, moved, 0.0)

    for kind, of in (("driver", drivers), ("libraries", libraries)):
        # Many cards know their shift well. The fastest of such groups is what the others are compared with.
        many = [rows for rows in of.values() if len(rows) >= FEWEST_CARDS] or [max(of.values(), key=len)]
        middles, again = (np.array([_middle(side[rows]) for rows in many]) for side in (left, fresh))
        fastest = np.where(np.isnan(middles), np.inf, middles).argmin(axis=0), np.arange(len(shifts.classes))
        own = np.concatenate([left[rows] - _middle(left[rows]) for rows in many])
        if len(of) > 1:
            judge(kind, of, middles[fastest], again[fastest], _spread(own), len(own))
    left -= _middle(left)
    spread = _spread(left)
    limits = _quantile(len(cards), chance) * spread
    fresh -= _middle(np.where(left >= limits, np.nan, fresh))
    if hosts:
        middles = np.array([_middle(left[rows]) for rows in hosts.values()])
        usual = _middle(middles)
        judge("host", hosts, usual, np.zeros_like(usual), _spread(middles - usual), len(hosts))
    return groups, limits, _quantile(len(cards), _NOT_CONFIRMED) * spread, left, fresh, left + due


# --- before and after -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Change:
    """Holds how the cards of both sides have changed since another time.

    Attributes:
        cards: how many are on both sides.
        shifts: model → class → log ratio of after to before, the lower median over the cards.
        canaries: name → the same, of the fixed kernels that every session measures.
        versions: driver or library → versions before → versions after, of those that differ.
        moved: models as `judged` finds them, of times less those before: which cards moved differently.
    """

    cards: int
    shifts: Mapping[str, Mapping[str, float]]
    canaries: Mapping[str, float]
    versions: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]]
    moved: tuple[Model, ...]

    @property
    def bad(self) -> bool:
        """Whether it is confirmed of a card that it became slower than the others did."""
        return any(model.bad for model in self.moved)


def changed(before: Sequence[Session], raising: Sequence[Session], confirming: Sequence[Session]) -> Change:
    """Returns how the cards that have sessions on both sides have changed."""
    old, now = _by_card(before), _by_card([*raising, *confirming])
    own = {card: _medians(of.times_ns for of in old[card]) for card in now if card in old}
    usual = _medians(own.values())

    def beside_its_own(session: Session) -> Session:
        """Returns the session with the times that it would have if all cards had been alike before."""
        was, now = own[session.card], session.times_ns
        return replace(session, times_ns={k: now[k] * usual[k] / was[k] for k in now if k in was})

    both = [[beside_its_own(each) for each in side if each.card in own] for side in (raising, confirming)]
    shifts: dict[str, dict[str, float]] = {}
    for model, of in _grouped((session.card.model, session) for session in both[0]).items():
        ratios = {kernel: ns / usual[kernel] for kernel, ns in _medians(each.times_ns for each in of).items()}
        classes = kernel_classes(_by_card(of))
        logs = _grouped((name, math.log(ratios[kernel])) for kernel, name in classes.items())
        shifts[model] = {name: statistics.median(of_class) for name, of_class in logs.items()}
    first, last = (_medians(of[card][0].canaries for card in own) for of in (old, now))
    versions = [_versions(old), _versions(now)]
    names = sorted({name for name, _ in {*versions[0].items()} ^ {*versions[1].items()}})
    return Change(
        len(own),
        shifts,
        {name: math.log(last[name] / first[name]) for name in first if name in last},
        {name: (versions[0].get(name, ()), versions[1].get(name, ())) for name in names},
        judged(*both).models,
    )


def _medians(mappings: Iterable[Mapping[str, float]]) -> dict[str, float]:
    gathered = _grouped(pair for mapping in mappings for pair in mapping.items())
    return {name: statistics.median(values) for name, values in gathered.items()}


def _versions(cards: Iterable[Card]) -> dict[str, tuple[str, ...]]:
    """Returns driver or library → its versions on all cards."""
    pairs = (pair for card in cards for pair in (("driver", card.driver or "unknown"), *card.libraries))
    return {name: tuple(sorted({*versions})) for name, versions in _grouped(pairs).items()}
