"""Defines what is known of a card: its figures, what limits its kernels, and what slows it down.

`fleet.py` judges cards by it. Its limits for a few cards lie above the differences of healthy cards. Between
eight H200s of several hosts, shifts of classes were −0.4 … +0.9 % (`tests/data/devices-h200.json`,
November 2026). Kernels at the power limit differed by 2 to 4.4 % between four H200s.
`docs/explanation/evidence-log.md` has the rates of false and missed names.
"""

from __future__ import annotations

import enum
import math
import operator
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from sys import intern
from typing import NamedTuple

from pytest_gpukern.gpu.nvml import COUNTED_EVENTS
from pytest_gpukern.measure.card_state import CARD
from pytest_gpukern.measure.device_clocks import CLOCKS, INVALIDATING, ORDINARY
from pytest_gpukern.measure.observers import OBSERVERS
from pytest_gpukern.values.grouping import grouped
from pytest_gpukern.values.result import Correctness, Determinism, Measurement, Result

Facts = Mapping[str, float]
"""What is known of a card while it was measured: name → value, by the names of its two observers."""


_COMBINED: dict[str, Callable[[Sequence[float]], float]] = {
    "sm_mhz": statistics.median,
    "memory_mhz": statistics.median,
    "power_w": max,
    "temperature_c": max,
    "limited_s": sum,
    "pcie": max,  # an idle card may use less of its link
}
"""Name, or what is before its dot → how values of several tests or sessions become one; else the newest."""
_NAMES = {*_COMBINED, *OBSERVERS[CARD].figures}


def facts_of(results: Iterable[Result]) -> Facts:
    """Returns what results of one card say of it; invalid times count, too: they tell what it did."""
    seen: list[Mapping[str, object]] = []
    for result in results:
        kernels = (measurement for measurement in result.measurements if measurement.scope == "kernel")
        seen += [{"power_limit_w": result.fingerprint.power_limit_w}, result.observations.get(CARD, {})]
        seen += [kernel.observations.get(CLOCKS, {}) for kernel in kernels]
    return combined(seen)


def combined(seen: Iterable[Mapping[str, object]]) -> Facts:
    """Returns what several tests or sessions of a card say together.

    A run's file may come from anybody: what is no finite number or truth value is unknown.
    """
    pairs = (pair for each in seen for pair in each.items() if pair[0] in _NAMES)
    known = grouped(
        (name, value) for name, value in pairs if isinstance(value, (int, float)) and math.isfinite(value)
    )
    return {
        name: _COMBINED.get(name.partition(".")[0], operator.itemgetter(-1))(values)
        for name, values in known.items()
    }


@dataclass(frozen=True)
class Card:
    """Names a card. Cards of one `uuid` are one card.

    Attributes:
        uuid: `host-index` where it is unknown.
        host: empty where a host validates itself.
        index: its number in nvidia-smi, for people; empty if unknown.
        model: name of the device; empty if no GPU was there.
        libraries: (name, version) of what else is behind its times, by name.
        shares_index: whether another card had this index on this host, as after a replacement.
    """

    uuid: str
    host: str = field(default="", compare=False)
    index: str = field(default="", compare=False)
    model: str = field(default="", compare=False)
    driver: str | None = field(default=None, compare=False)
    libraries: tuple[tuple[str, str], ...] = field(default=(), compare=False)
    shares_index: bool = field(default=False, compare=False)

    @property
    def versions(self) -> tuple[tuple[str, str], ...]:
        return (("driver", self.driver or "unknown"), *self.libraries)

    def __str__(self) -> str:
        gpu = f"GPU {self.index}" if self.index else self.uuid[:12]
        gpu += f" {self.uuid[:12]}" if self.shares_index else ""
        return f"{self.host} {gpu}" if self.host else gpu


@dataclass(frozen=True)
class CardFigures:
    """Holds the figures of a card from one session: only what compares cards, so that a thousand are small.

    Attributes:
        id: of the session.
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
    facts: Facts = field(default_factory=dict)

    @classmethod
    def of(cls, card: Card, results: Sequence[Result], created: datetime) -> CardFigures:
        """Returns what the results of a session say of its card; what else is known is of its run."""
        times_ns: dict[str, float] = {}
        kernels: dict[str, Kernel] = {}
        bits: dict[str, str] = {}
        for result in results:
            case = result.case
            if result.correctness is Correctness.INCORRECT or result.simulated:
                continue
            inputs = "" if result.seed is None else f" seed {result.seed}"
            for name, output in result.errors.items():
                if output.bits is not None and output.determinism == Determinism.BITWISE and case.on_gpu:
                    bits[intern(f"{case.id} {name}{inputs}")] = intern(output.bits)
            for measured in filter(is_valid, result.measurements):
                key = intern(f"{case.id} {measured.key}")
                times_ns[key] = measured.summary.median_ns
                kernels[key] = Kernel(class_of(result, measured), intern(result.nodeid))
        wrong = [intern(of.case.id) for of in results if of.correctness is Correctness.INCORRECT]
        facts = facts_of(of for of in results if of.case.on_gpu)
        session, seen = (results[0].session, results[0].canaries) if results else ("", {})
        canaries = {name: ns for name, ns in seen.items() if ns}
        of_tests = (times_ns, kernels, bits, tuple(wrong))
        return cls(card, session, created, *of_tests, canaries=canaries, facts=facts)


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
    """Holds what is known of a kernel on a card besides its time: its class, and how to measure it again.

    Attributes:
        limited_by: key of `LIMITS`, or None.
        test: pytest's name of its test.
    """

    limited_by: str | None
    test: str = ""


def class_of(result: Result, measurement: Measurement) -> str | None:
    """Returns what limits a kernel on a card: a key of `LIMITS`, or None.

    A kernel is `power-limited` if the power limit held down the clocks, `short` below 10 µs, and bound by
    `memory` if its declared bytes move at half the rate of a copy or more. All others are `compute`: they
    follow the clock of the multiprocessors. Times of the host have no class.
    """
    if measurement.scope == "transfer":
        return COPIES
    if measurement.scope != "kernel" or not result.case.on_gpu:
        return None
    events = measurement.observations.get(CLOCKS, {}).get("clock_events")
    if isinstance(events, tuple) and "sw_power_cap" in events:  # a run's file may hold anything
        return _LIMITED_BY_POWER
    ns, copied_bytes_per_s = measurement.summary.median_ns, result.ceilings.get("device_copy_bytes_per_s")
    if ns < _SHORT_NS:
        return "short"
    traffic_bytes = measurement.traffic_bytes
    if not copied_bytes_per_s or traffic_bytes is None:
        return "compute"
    return "memory" if traffic_bytes * 1e9 / ns >= _NEAR_MEMORY * copied_bytes_per_s else "compute"


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

    @property
    def of_memory(self) -> bool:
        """Whether its memory fails, which is told of a card however fast it is."""
        return self.fault and self.slows == _MEMORY


_COPIES, _MEMORY = frozenset({COPIES}), frozenset({"memory"})
_KERNELS = frozenset(LIMITS) - _COPIES
_POWER = _KERNELS - {"short"}
_LOWER = 0.01
"""Clocks and limits that are lower by less are the same: NVML's steps are up to 0.8 %."""
_MANY_CORRECTED = 100
"""Single errors are corrected without a loss of time."""
_LIMITED_S = 1.0
"""Clocks that were held down for less, beyond the other cards, slow nothing down that we compare."""


_LOOK = "nvidia-smi -q -d PERFORMANCE,CLOCK,POWER,TEMPERATURE -i {index}"
_RESEAT = "reseat the card, or look at its slot in the BIOS: nvidia-smi -q -i {index} shows the link"
_RESET = "reset the GPU: nvidia-smi -r -i {index}; if that does not help, have it replaced"
_HIGHER_IS_FASTER = (
    ("power_limit_w", "power limit in W", "nvidia-smi -pl sets it, as root", _POWER),
    ("sm_mhz", "SM clock in MHz", f"see what lowers it: {_LOOK}", _KERNELS),
    ("memory_mhz", "memory clock in MHz", f"see what lowers it: {_LOOK}", _MEMORY),
    ("pcie.width", "PCIe lanes", _RESEAT, _COPIES),
    ("pcie.generation", "PCIe generation", _RESEAT, _COPIES),
)
_ERRORS = (  # and how many more than on the others are too many
    ("uncorrected_errors", "uncorrected memory errors", 1),
    ("corrected_errors", "corrected memory errors", _MANY_CORRECTED),
    ("remapped_rows", "replaced memory rows", 1),
)


def causes(card: Facts, others: Sequence[Facts]) -> Iterator[Cause]:
    """Yields in what a card differs from the others and may be slower for; unknown values are no cause."""
    of_others = grouped(pair for other in others for pair in other.items())
    usual = {name: statistics.median(values) for name, values in of_others.items() if name in card}
    for event in COUNTED_EVENTS:
        name = f"limited_s.{event}"
        if name in usual and card[name] >= usual[name] + max(_LIMITED_S, usual[name]):
            words = f"{(INVALIDATING | ORDINARY)[event]} ({event})"
            text = f"{words} for {card[name]:.0f} s, on the others {usual[name]:.0f} s"
            remedy = f"{'improve the cooling' if 'thermal' in event else 'check power and cooling'}: {_LOOK}"
            slows = _POWER if event == "sw_power_cap" else _KERNELS
            yield Cause(text, remedy, slows, fault=event in INVALIDATING)
    for name, words, remedy, slows in _HIGHER_IS_FASTER:
        if name in usual and card[name] < (1 - _LOWER) * usual[name]:
            yield Cause(f"{words}: {card[name]:.0f}, of the others {usual[name]:.0f}", remedy, slows)
    if card.get("ecc") and not all(of_others.get("ecc", ())):
        remedy = "set it alike (nvidia-smi -e 1 -i {index}), then reset the GPU"
        yield Cause("ECC is on, and off on another card", remedy, _MEMORY)
    if card.get("row_remap_pending") or card.get("row_remap_failed"):
        yield Cause("broken memory rows wait to be replaced, or could not be", _RESET, _MEMORY)
    for name, words, many in _ERRORS:
        if name in usual and card[name] >= usual[name] + many:
            yield Cause(f"{card[name]:.0f} {words}, on the others {usual[name]:.0f}", _RESET, _MEMORY)


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
    FASTER = "faster"
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
        faster: classes in which it is faster.
    """

    verdict: CardVerdict
    shifts: Mapping[str, float]
    slower: tuple[str, ...] = ()
    suspected: tuple[str, ...] = ()
    causes: tuple[Cause, ...] = ()
    facts: Facts = field(default_factory=dict)
    faster: tuple[str, ...] = ()

    @property
    def bad(self) -> bool:
        return self.verdict in (CardVerdict.SLOW, CardVerdict.ONE_OF_TWO)
