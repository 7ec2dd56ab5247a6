"""Finds a slow card among a host's cards of one model: times of several sessions in, verdicts out.

The method has three steps.

1. *Shift.* All cards measure the same kernels side by side, in several rounds. In a round, a kernel's
   deviation on a card is its log time less the lower median over the cards. The median deviation of a class
   of kernels is the card's shift in that round, and the median over the rounds is its shift.
2. *Suspicion and confirmation.* A card whose shift reaches the limit of a class is suspected. Three fresh
   sessions of it and of a neighbour decide, by the median of their differences. The sessions that raised the
   suspicion do not count, since they were chosen for it.
3. *Name.* A card is slow if that is confirmed in two classes of kernels, or in one that has a physical cause.
   Otherwise one class is told and blames nobody: healthy cards differ in some kernels by several per cent. Of
   two cards, one is named only if its own record or a physical cause says which.

The lower median is the time of one of the cards: of two, the faster one. Among three or more, a single card
moves it little, however slow or fast it is.

The limits are above what healthy cards differ by. Between eight H200s of several hosts, shifts of classes
were −0.4 … +0.9 % (`tests/data/devices-h200.json`, November 2026). Kernels at the power limit differed by 2
to 4.4 % between four H200s. `docs/explanation/evidence.md` has the rates of false and missed names.
"""

from __future__ import annotations

import enum
import math
import operator
import statistics
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from pytest_gpukern.baseline.record import RecordedCase
from pytest_gpukern.gate.change import percent
from pytest_gpukern.gpu.nvml import Configuration, PcieLink
from pytest_gpukern.measure.device_clocks import INVALIDATING, ORDINARY, DeviceClocks
from pytest_gpukern.values.result import Measurement, Result

Times = dict[str, dict[str, float]]
"""Card → `case id scope/timer/cache` → median time in nanoseconds, of one session of each card."""

ROUNDS = 3
"""Sessions of each card that may raise a suspicion."""
FRESH_ROUNDS = 3
"""Fresh sessions of a suspected card and a neighbour that confirm it."""
FEWEST_CASES = 5
"""Kernels of a class; fewer say nothing about a card."""

COPIES = "copies"
_LIMITED_BY_POWER = "power-limited"
LIMITS = {
    "memory": math.log1p(0.0125),
    "compute": math.log1p(0.0125),
    "short": math.log1p(0.0125),
    _LIMITED_BY_POWER: math.log1p(0.05),
    COPIES: math.log1p(0.25),
}
"""Class → the shift, as a log ratio, from which a card is suspected.

Copies take time of the host: single sessions of one H200 differed by 6 % (root mean square) there.
"""

_SHORT_NS = 10_000.0
_NEAR_MEMORY = 0.5


def class_of(on_cards: Sequence[tuple[Result, Measurement]]) -> str | None:
    """Returns what limits a kernel, by its measurements on all cards: a key of `LIMITS`, or None.

    A kernel is `power-limited` if the power limit held down the clocks of more than half of the cards,
    `short` below 10 µs, and bound by `memory` if its declared bytes move at half the rate of a copy or more.
    All others are `compute`: they follow the clock of the multiprocessors. Times of the host have no class.
    """
    result, measurement = on_cards[0]
    if measurement.scope == "transfer":
        return COPIES
    if measurement.scope != "kernel" or not result.case.on_gpu:
        return None
    held = sum("sw_power_cap" in DeviceClocks.of(measurement).clock_events for _, measurement in on_cards)
    if 2 * held > len(on_cards):
        return _LIMITED_BY_POWER
    ns = statistics.median(measurement.summary.median_ns for _, measurement in on_cards)
    if ns < _SHORT_NS:
        return "short"
    rates = [rate for result, _ in on_cards if (rate := result.ceilings.get("device_copy_bytes_per_s"))]
    if not rates or measurement.traffic_bytes is None:
        return "compute"
    share = measurement.traffic_bytes / (ns * 1e-9) / statistics.median(rates)
    return "memory" if share >= _NEAR_MEMORY else "compute"


def is_valid(measurement: Measurement) -> bool:
    """Returns whether a time may be compared; a run's file has no number for what is not finite."""
    return measurement.invalid is None and (measurement.summary.median_ns or 0.0) > 0


def shifts_in(times: Times, classes: Mapping[str, str]) -> dict[str, dict[str, float]]:
    """Returns card → class → shift in one round, as a log ratio; a class with too few kernels is absent."""
    deviations: dict[str, dict[str, list[float]]] = {card: {} for card in times}
    for kernel, name in classes.items():
        logs = {card: math.log(times_ns[kernel]) for card, times_ns in times.items() if kernel in times_ns}
        if len(logs) > 1:
            usual = statistics.median_low(logs.values())
            for card, value in logs.items():
                deviations[card].setdefault(name, []).append(value - usual)
    return {card: _medians(deviating) for card, deviating in deviations.items()}


def _medians(logs_of: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """Returns class, or card → median; without those of too few kernels."""
    return {name: statistics.median(logs) for name, logs in logs_of.items() if len(logs) >= FEWEST_CASES}


def combined(rounds: Iterable[Mapping[str, Mapping[str, float]]]) -> dict[str, dict[str, float]]:
    """Returns card → class → the lower median of the shifts of all rounds."""
    shifts_of: dict[str, dict[str, list[float]]] = {}
    for shifts in rounds:
        for card, classes in shifts.items():
            for name, shift in classes.items():
                shifts_of.setdefault(card, {}).setdefault(name, []).append(shift)
    return {card: {name: statistics.median_low(of[name]) for name in of} for card, of in shifts_of.items()}


def suspected(shifts: Mapping[str, Mapping[str, float]]) -> dict[str, list[str]]:
    """Returns the cards that are suspected → the classes whose limit their shift reaches."""
    return {card: names for card, classes in shifts.items() if (names := _reaching(classes, LIMITS))}


def _reaching(shifts: Mapping[str, float], names: Iterable[str]) -> list[str]:
    return [name for name in names if shifts.get(name, -math.inf) >= LIMITS[name]]


def neighbours(
    shifts: Mapping[str, Mapping[str, float]], suspects: Mapping[str, Collection[str]]
) -> dict[str, str]:
    """Returns each suspected card → the one that it is measured beside.

    That is the card whose largest shift, by the limit of its class, is the smallest, among those that have
    times in the classes in doubt. It may be suspected in another class.
    """

    def largest(card: str) -> float:
        return max((abs(shift) / LIMITS[name] for name, shift in shifts[card].items()), default=9.0)

    beside = {}
    for suspect, names in suspects.items():
        others = [card for card in shifts if card != suspect]
        comparable = [card for card in others if shifts[card].keys() >= set(names)]
        beside[suspect] = min(comparable or others, key=largest)
    return beside


def confirmed(
    suspects: Mapping[str, Collection[str]],
    fresh: Sequence[Times],
    classes: Mapping[str, str],
    beside: Mapping[str, str],
) -> dict[str, list[str]]:
    """Returns which suspicions hold: card → classes in which it is slower than its neighbour by the limit.

    `fresh` are times of rounds after the suspicion, `classes` those of kernels, and `beside` the neighbours.
    """
    held = {}
    for card, names in suspects.items():
        rounds = [{card: _differences(times, card, beside[card], classes)} for times in fresh]
        held[card] = _reaching(combined(rounds).get(card, {}), names)
    return {card: names for card, names in held.items() if names}


def _differences(times: Times, card: str, beside: str, classes: Mapping[str, str]) -> dict[str, float]:
    own, others = times.get(card, {}), times.get(beside, {})
    ratios: dict[str, list[float]] = {}
    for kernel, name in classes.items():
        if kernel in own and kernel in others:
            ratios.setdefault(name, []).append(math.log(own[kernel] / others[kernel]))
    return _medians(ratios)


# --- what is known of a card ----------------------------------------------------------------------


@dataclass(frozen=True)
class CardFacts:
    """Holds what is known of a card while it was measured; None, or absent, if unknown.

    Attributes:
        sm_mhz: SM clock, measured behind batches; the median over the kernels.
        memory_mhz: memory clock, likewise.
        power_w: highest power that was drawn behind a batch.
        power_limit_w: the limit that it runs under.
        temperature_c: highest temperature behind a batch.
        limited_s: clock event → seconds for which it held down the clocks.
        setup: among other things, errors and rows of its memory.
        pcie: the link to the host, at its best while the card was in use.
    """

    sm_mhz: float | None = None
    memory_mhz: float | None = None
    power_w: float | None = None
    power_limit_w: float | None = None
    temperature_c: float | None = None
    limited_s: Mapping[str, float] = field(default_factory=dict)
    setup: Configuration = field(default_factory=Configuration)
    pcie: PcieLink = field(default_factory=PcieLink)


class Cause(NamedTuple):
    """Holds a physical difference between a card and the others, and what to do about it.

    Attributes:
        text: the difference, with values.
        remedy: what to do; `{index}` stands for the number of the card in nvidia-smi.
        slows: classes that it can slow down.
        fault: whether it is worth telling of a card that is not slow.
    """

    text: str
    remedy: str
    slows: frozenset[str]
    fault: bool = True


_COPIES, _MEMORY = frozenset({COPIES}), frozenset({"memory"})
_KERNELS = frozenset(LIMITS) - _COPIES
_POWER = _KERNELS - {"short"}
_LOWER = 0.01
"""Clocks and limits that are lower by less are the same: NVML's steps are up to 0.8 %."""
_MANY_CORRECTED = 100
"""Single errors are corrected without a loss of time."""
_LIMITED_S = 1.0
"""Clocks that were held down for less, beyond the other cards, slow nothing down that we compare."""


def causes(card: CardFacts, others: Sequence[CardFacts]) -> Iterator[Cause]:
    """Yields in what a card differs from the others and may be slower for; unknown values are no cause."""
    look = "nvidia-smi -q -d PERFORMANCE,CLOCK,POWER,TEMPERATURE -i {index}"
    reseat = "reseat the card, or look at its slot in the BIOS: nvidia-smi -q -i {index} shows the link"
    for event, seconds in card.limited_s.items():
        usual = median_of_known(other.limited_s.get(event) for other in others)
        if usual is not None and seconds >= usual + max(_LIMITED_S, usual):
            words = (INVALIDATING | ORDINARY)[event]
            text = f"{words} ({event}) for {seconds:.0f} s, on the others {usual:.0f} s"
            remedy = f"{'improve the cooling' if 'thermal' in event else 'check power and cooling'}: {look}"
            slows = _POWER if event == "sw_power_cap" else _KERNELS
            yield Cause(text, remedy, slows, fault=event in INVALIDATING)
    for name, words, remedy, slows in (
        ("power_limit_w", "power limit in W", "nvidia-smi -pl sets it, as root", _POWER),
        ("sm_mhz", "SM clock in MHz", f"see what lowers it: {look}", _KERNELS),
        ("memory_mhz", "memory clock in MHz", f"see what lowers it: {look}", _MEMORY),
        ("pcie.width", "PCIe lanes", reseat, _COPIES),
        ("pcie.generation", "PCIe generation", reseat, _COPIES),
    ):
        figure = operator.attrgetter(name)
        own, usual = figure(card), median_of_known(map(figure, others))
        if own is not None and usual is not None and own < (1 - _LOWER) * usual:
            yield Cause(f"{words}: {own:.0f}, of the others {usual:.0f}", remedy, slows)
    setup, setups = card.setup, [other.setup for other in others]
    if setup.ecc and any(other.ecc is False for other in setups):
        text = "ECC is on, and off on another card"
        yield Cause(text, "set it alike (nvidia-smi -e 1 -i {index}), then reset the GPU", _MEMORY)
    reset = "reset the GPU: nvidia-smi -r -i {index}; if that does not help, have it replaced"
    if setup.row_remap_pending or setup.row_remap_failed:
        yield Cause("broken memory rows wait to be replaced, or could not be", reset, _MEMORY)
    for name, words, least in (
        ("uncorrected_errors", "uncorrected memory errors", 1),
        ("corrected_errors", "corrected memory errors", _MANY_CORRECTED),
        ("remapped_rows", "replaced memory rows", 1),
    ):
        own, usual = getattr(setup, name), median_of_known(getattr(other, name) for other in setups)
        if own is not None and usual is not None and own >= usual + least:
            yield Cause(f"{own} {words}, on the others {usual:.0f}", reset, _MEMORY)


def median_of_known(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


# --- who is named ---------------------------------------------------------------------------------


class CardVerdict(enum.StrEnum):
    """Says how a card compares with the others of its host."""

    ALIKE = "as the others"
    SLOW = "SLOW"
    ONE_OF_TWO = "SLOW, or the other is fast"
    ONE_CLASS = "slower in one class"
    """Without a physical cause, that names no card."""
    NOT_CONFIRMED = "not confirmed"
    NOT_COMPARED = "not compared"
    """Too few of its times are valid."""


@dataclass(frozen=True)
class CardFinding:
    """Holds what was found out about a card.

    Attributes:
        shifts: class → log ratio to the lower median of the cards.
        slower: classes in which fresh sessions confirmed that it is slower.
        causes: in what it differs from the others.
        since_record: log ratio of its times to its own recorded ones, or None.
    """

    verdict: CardVerdict
    shifts: Mapping[str, float]
    slower: tuple[str, ...] = ()
    causes: tuple[Cause, ...] = ()
    since_record: float | None = None

    @property
    def bad(self) -> bool:
        return self.verdict in (CardVerdict.SLOW, CardVerdict.ONE_OF_TWO)

    @property
    def slower_by(self) -> str:
        """Returns `+5.1 % in memory, +4.9 % in compute`: the confirmed classes."""
        return ", ".join(f"{percent(self.shifts[name])} in {name}" for name in self.slower)


def findings(
    shifts: Mapping[str, Mapping[str, float]],
    suspects: Collection[str],
    held: Mapping[str, Sequence[str]],
    facts: Mapping[str, CardFacts],
    since_record: Mapping[str, float],
) -> dict[str, CardFinding]:
    """Returns card → what was found, by the rules of this module.

    `held` has the classes that were confirmed, and `since_record` the log ratio of a card's times to its own
    recorded ones, where they are known.
    """
    results = {}
    for card, classes in shifts.items():
        others = [each for other, each in facts.items() if other != card]
        differs = tuple(causes(facts[card], others))
        slower = tuple(held.get(card, ()))
        explained = any(cause.slows.intersection(slower) for cause in differs)
        verdict = CardVerdict.ALIKE if classes else CardVerdict.NOT_COMPARED
        if card in suspects:
            verdict = CardVerdict.NOT_CONFIRMED
        if slower:
            several = sum(name != COPIES for name in slower) > 1
            verdict = CardVerdict.SLOW if several or explained else CardVerdict.ONE_CLASS
            if len(shifts) == 2 and several and not (explained or _recorded_faster(card, since_record)):
                verdict = CardVerdict.ONE_OF_TWO
        results[card] = CardFinding(verdict, classes, slower, differs, since_record.get(card))
    return results


def _recorded_faster(card: str, since_record: Mapping[str, float]) -> bool:
    limit = LIMITS["compute"]
    rest = [shift for other, shift in since_record.items() if other != card]
    slower = since_record.get(card, 0.0) >= limit
    return slower and bool(rest) and all(shift < limit / 2 for shift in rest)


def since_own_record(results: Iterable[Result], history: Mapping[str, RecordedCase]) -> dict[str, float]:
    """Returns card → median log ratio of its kernels' times to its own sessions of the newest epoch.

    Cards with fewer than `FEWEST_CASES` recorded kernels are absent.
    """
    ratios: dict[str, list[float]] = {}
    for result in results:
        card, recorded = result.fingerprint.device_uuid, history.get(result.nodeid)
        if card is None or recorded is None:
            continue
        for measurement in result.measurements:
            times = [time for time in recorded.times.get(measurement.key, ()) if time.device == card]
            if times and measurement.scope == "kernel" and not measurement.beside and is_valid(measurement):
                logs = [math.log(time.median_ns) for time in times if time.epoch == times[-1].epoch]
                ratio = math.log(measurement.summary.median_ns) - statistics.fmean(logs)
                ratios.setdefault(card, []).append(ratio)
    return _medians(ratios)
