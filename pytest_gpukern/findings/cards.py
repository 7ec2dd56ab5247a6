"""Defines what is known of a card: its sessions, what limits its kernels, and what slows it down.

`fleet.py` judges cards by it. Its limits for a few cards are above what healthy cards differ by. Between
eight H200s of several hosts, shifts of classes were −0.4 … +0.9 % (`tests/data/devices-h200.json`,
November 2026). Kernels at the power limit differed by 2 to 4.4 % between four H200s.
`docs/explanation/evidence.md` has the rates of false and missed names.
"""

from __future__ import annotations

import enum
import math
import operator
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import NamedTuple

from pytest_gpukern.baseline.record import RecordedCase
from pytest_gpukern.gate.change import percent
from pytest_gpukern.gpu.nvml import Configuration, PcieLink
from pytest_gpukern.measure.card_state import setup_of
from pytest_gpukern.measure.device_clocks import INVALIDATING, ORDINARY, DeviceClocks
from pytest_gpukern.values.result import Measurement, Result


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

    @classmethod
    def of(cls, results: Iterable[Result]) -> CardFacts:
        """Returns what results of one card say of it; invalid times count, too: they tell what it did."""
        results = list(results)
        clocks = [
            DeviceClocks.of(measurement)
            for result in results
            for measurement in result.measurements
            if measurement.scope == "kernel"
        ]
        setup, link, power_limit_w, limited_s = setup_of(result.observations for result in results)
        return cls(
            median_of_known(seen.sm_mhz for seen in clocks),
            median_of_known(seen.memory_mhz for seen in clocks),
            max_of_known(seen.power_w for seen in clocks),
            power_limit_w or max_of_known(result.fingerprint.power_limit_w for result in results),
            max_of_known(seen.temperature_c for seen in clocks),
            limited_s,
            setup,
            link,
        )

    @classmethod
    def merged(cls, sessions: Sequence[CardFacts]) -> CardFacts:
        """Returns what several sessions of a card say; seconds add up, and the newest setup counts."""
        limited_s: dict[str, float] = {}
        for facts in sessions:
            for event, seconds in facts.limited_s.items():
                limited_s[event] = limited_s.get(event, 0.0) + seconds
        return cls(
            median_of_known(facts.sm_mhz for facts in sessions),
            median_of_known(facts.memory_mhz for facts in sessions),
            max_of_known(facts.power_w for facts in sessions),
            sessions[-1].power_limit_w,
            max_of_known(facts.temperature_c for facts in sessions),
            limited_s,
            sessions[-1].setup,
            max((facts.pcie for facts in sessions), key=lambda link: (link.generation or 0, link.width or 0)),
        )


def median_of_known(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


def max_of_known(values: Iterable[float | None]) -> float | None:
    return max((value for value in values if value is not None), default=None)


@dataclass(frozen=True)
class Card:
    """Names a card. Cards of one `uuid` are one card.

    Attributes:
        host: name of its host; empty where a host validates itself.
        uuid: of the card; `host-index` where that is unknown.
        index: its number in nvidia-smi, for people; empty if unknown.
        model: name of the device; empty if no GPU was there.
        driver: version of the driver, or None.
        libraries: (name, version) of what else is behind its times, by name.
    """

    uuid: str
    host: str = field(default="", compare=False)
    index: str = field(default="", compare=False)
    model: str = field(default="", compare=False)
    driver: str | None = field(default=None, compare=False)
    libraries: tuple[tuple[str, str], ...] = field(default=(), compare=False)

    def __str__(self) -> str:
        gpu = f"GPU {self.index}" if self.index else self.uuid[:12]
        return f"{self.host} {gpu}" if self.host else gpu


@dataclass(frozen=True)
class Session:
    """Holds what one session found on one card.

    Attributes:
        id: of the process that measured.
        created: when its run ended.
        times_ns: `case id scope/timer/cache` → median time in nanoseconds, where that is valid and right.
        kernels: the same key → what else is known of it.
        bits: `case id output` → hash of an output that is bitwise the same in every launch.
        wrong: ids of cases whose outputs were wrong.
        failed: how many tests failed.
        not_run: case id → why it has no result.
        problems: what went wrong in its run as a whole.
        canaries: name → median time in nanoseconds of a fixed kernel that every session measures.
    """

    card: Card
    id: str
    created: datetime
    times_ns: Mapping[str, float] = field(default_factory=dict)
    kernels: Mapping[str, Kernel] = field(default_factory=dict)
    bits: Mapping[str, str] = field(default_factory=dict)
    wrong: tuple[str, ...] = ()
    failed: int = 0
    not_run: Mapping[str, str] = field(default_factory=dict)
    problems: tuple[str, ...] = ()
    canaries: Mapping[str, float] = field(default_factory=dict)
    facts: CardFacts = field(default_factory=CardFacts)


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


class Kernel(NamedTuple):
    """Holds what is known of a kernel on a card besides its time: what classes it, and measures it again.

    Attributes:
        scope: such as `kernel`.
        on_gpu: whether its times are those of a GPU.
        capped: whether the power limit held down the clocks.
        share: rate at which its declared bytes move ÷ rate of a copy; None if unknown.
        test: pytest's name of its test, without a GPU.
        problem: what it computes.
        took_s: how long the test took; 0 if unknown.
    """

    scope: str
    on_gpu: bool
    capped: bool = False
    share: float | None = None
    test: str = ""
    problem: str = ""
    took_s: float = 0.0

    @classmethod
    def of(cls, result: Result, measurement: Measurement, test: str = "") -> Kernel:
        rate, traffic_bytes = result.ceilings.get("device_copy_bytes_per_s"), measurement.traffic_bytes
        ns, scope = measurement.summary.median_ns, measurement.scope
        known = bool(rate and traffic_bytes is not None and ns)
        return cls(
            scope,
            result.case.on_gpu,
            scope == "kernel" and "sw_power_cap" in DeviceClocks.of(measurement).clock_events,
            traffic_bytes * 1e9 / ns / rate if known else None,  # type: ignore[operator]
            test,
            result.case.problem,
            result.duration_s or 0.0,
        )


def class_of(on_cards: Sequence[tuple[Result, Measurement]]) -> str | None:
    """Returns what limits a kernel, by its measurements on all cards: a key of `LIMITS`, or None."""
    kernels = [Kernel.of(result, measurement) for result, measurement in on_cards]
    return kernel_class(kernels, [measurement.summary.median_ns for _, measurement in on_cards])


def kernel_class(kernels: Sequence[Kernel], times_ns: Sequence[float]) -> str | None:
    """Returns what limits a kernel, by what is known of it on all cards: a key of `LIMITS`, or None.

    A kernel is `power-limited` if the power limit held down the clocks of more than half of the cards,
    `short` below 10 µs, and bound by `memory` if its declared bytes move at half the rate of a copy or more.
    All others are `compute`: they follow the clock of the multiprocessors. Times of the host have no class.
    """
    if kernels[0].scope == "transfer":
        return COPIES
    if kernels[0].scope != "kernel" or not kernels[0].on_gpu:
        return None
    if 2 * sum(kernel.capped for kernel in kernels) > len(kernels):
        return _LIMITED_BY_POWER
    if statistics.median(times_ns) < _SHORT_NS:
        return "short"
    share = median_of_known(kernel.share for kernel in kernels)
    return "memory" if share is not None and share >= _NEAR_MEMORY else "compute"


def is_valid(measurement: Measurement) -> bool:
    """Returns whether a time may be compared; a run's file has no number for what is not finite."""
    return measurement.invalid is None and (measurement.summary.median_ns or 0.0) > 0


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


# --- who is named ---------------------------------------------------------------------------------


class CardVerdict(enum.StrEnum):
    """Says how a card compares with the others of its model."""

    ALIKE = "as the others"
    SLOW = "SLOW"
    ONE_OF_TWO = "SLOW, or the other is fast"
    ONE_CLASS = "slower in one class"
    """Without a physical cause, that names no card."""
    SUSPECTED = "suspected"
    """No session of it can confirm that."""
    IN_GROUP = "as its group"
    """It is as slow as its host, or as all cards with its driver or libraries, which are named instead."""
    NOT_CONFIRMED = "not confirmed"
    NOT_COMPARED = "not compared"
    """Too few of its times are valid."""


@dataclass(frozen=True)
class CardFinding:
    """Holds what was found out about a card.

    Attributes:
        shifts: class → log ratio to the lower median of the cards.
        slower: classes in which other sessions confirmed that it is slower.
        suspected: classes in which it looks slower, and no other session can tell.
        causes: in what it differs from the others.
        since_record: log ratio of its times to its own recorded ones, or None.
    """

    verdict: CardVerdict
    shifts: Mapping[str, float]
    slower: tuple[str, ...] = ()
    suspected: tuple[str, ...] = ()
    causes: tuple[Cause, ...] = ()
    since_record: float | None = None

    @property
    def bad(self) -> bool:
        return self.verdict in (CardVerdict.SLOW, CardVerdict.ONE_OF_TWO)

    @property
    def slower_by(self) -> str:
        """Returns `+5.1 % in memory, +4.9 % in compute`: the confirmed classes."""
        return ", ".join(f"{percent(self.shifts[name])} in {name}" for name in self.slower)


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
    return {card: statistics.median(logs) for card, logs in ratios.items() if len(logs) >= FEWEST_CASES}
