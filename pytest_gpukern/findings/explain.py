"""Finds what changed since the record besides a time: code, launch, clocks, versions."""

from __future__ import annotations

import itertools
import math
import operator
import statistics
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from msgspec import structs

from pytest_gpukern.baseline.record import as_recorded, launches_of
from pytest_gpukern.baseline.same_work import SameWork, newest, same_work
from pytest_gpukern.findings.regressions import by_name, resource_changes
from pytest_gpukern.gate.change import SESSIONS_TO_GATE, percent
from pytest_gpukern.gate.comparability import SessionTime, of_one_choice
from pytest_gpukern.gpu.kernel_facts import with_occupancy
from pytest_gpukern.measure.device_clocks import CLOCKS
from pytest_gpukern.values.backend_table import distributions_of_others
from pytest_gpukern.values.difference import (
    AUTOTUNED,
    CLOCK,
    CYCLES,
    DEVICE,
    KERNEL,
    NEW_CODE,
    SAME_CODE,
    SAME_WORK,
    Difference,
)
from pytest_gpukern.values.fingerprint import Fingerprint
from pytest_gpukern.values.grouping import grouped
from pytest_gpukern.values.result import Choice, KernelFacts, Measurement, Result, Verdict, hash_method
from pytest_gpukern.values.timer_table import timer_row

NOT_INSTALLED = "none"

_CLOCK_FLOOR = 0.003
"""A smaller relative change of a clock is never shown: the probe knows it to 0.1 … 0.2 %."""

_SAME_CYCLES = 0.25
"""Share of a change of the time that may remain in cycles which are called the same."""

_ALIKE = 3
"""From how many on recorded values of one kind are counted, not named."""

_OF_THE_DEVICE = (
    ("driver_version", "driver", ""),
    ("cuda_driver_version", "CUDA", ""),
    ("power_limit_w", "power limit", " W"),
    ("max_sm_clock_mhz", "highest SM clock", " MHz"),
    ("max_memory_clock_mhz", "highest memory clock", " MHz"),
    ("mig_profile", "MIG profile", ""),
    ("device_uuid", DEVICE, ""),
)

_OF_THE_HOST = (
    ("cpu_model", "processor", ""),
    ("cpu_count", "CPUs", ""),
    ("platform", "system", ""),
    ("python_version", "Python", ""),
    ("blas", "BLAS", ""),
)
"""Field of a fingerprint, what it is called, and its unit."""

OF_THE_MACHINE = frozenset(label for _, label, _ in _OF_THE_DEVICE + _OF_THE_HOST) | {CLOCK}
"""What a difference may be about that no change of the code makes."""

_OF_HOST_CODE = ("CPUs", "BLAS")
"""What the host's part of a call to a GPU does not use: it launches and copies, in one thread."""


def because(
    result: Result, deciding: Sequence[Measurement], verdict: Verdict, past: Sequence[SessionTime]
) -> tuple[Difference, ...]:
    """Returns what else changed between the recorded sessions and a result, for a verdict that something did.

    A value has changed if no recorded session had it. That the code did not change is said too, and no cause.
    `deciding` are the measurements that the verdict rests on, all under one key: the result's own, or of the
    fresh sessions that confirmed or refuted a suspicion.
    """
    of_host = not timer_row(deciding[0].timer).device_timed
    differences = [*_choice_changes(result, past)]
    if same_work(result, newest(past), deciding[0].key) is SameWork.ALL:
        differences.append(SAME_WORK)
    elif deciding[0].scope != "transfer":
        differences += code_changes(result, [time.session for time in past])
    differences += _clock_changes(deciding, verdict, past)
    fingerprints = [time.session.fingerprint for time in past]
    unused = distributions_of_others(result.case.backend)
    for host in (False,) * result.case.on_gpu + (True,) * of_host:
        others = other_machine(result.fingerprint, fingerprints, host=host, unused=unused)
        used = [of for of in others if not (result.case.on_gpu and of.what in _OF_HOST_CODE)]
        differences += [other for other in used if other not in differences]  # libraries are part of either
    return tuple(differences)


def _choice_changes(result: Result, past: Sequence[SessionTime]) -> Iterator[Difference]:
    """Yields for which kernels an autotuner chose otherwise than in the sessions that judge it."""
    now = Choice.of(result.autotuned, ())
    reference = of_one_choice(past, now, SESSIONS_TO_GATE)[0]
    before = {name: dict(values) for name, values in reference.choice.configurations}
    for kernel, values in now.configurations:
        recorded = before.get(kernel, {})
        others = [(name, value) for name, value in values if recorded.get(name, value) != value]
        if others:
            chosen = " ".join(f"{name} {value}" for name, value in others)
            kernels = () if len(result.autotuned) == 1 else (kernel,)
            was = " ".join(recorded[name] for name, _ in others)
            yield Difference(AUTOTUNED, was, chosen, kernels)


def other_machine(
    now: Fingerprint, recorded: Sequence[Fingerprint], *, host: bool, unused: Collection[str] = ()
) -> tuple[Difference, ...]:
    """Returns in which device or host, and in which libraries, a session differs from all recorded ones.

    A field that no recorded session knows is no difference, and neither are versions of `unused` libraries.
    """
    rows = _OF_THE_HOST if host else _OF_THE_DEVICE
    differences = [
        _difference(label, unit, getattr(now, field), [getattr(before, field) for before in recorded])
        for field, label, unit in rows
    ]
    before = [fingerprint.libraries for fingerprint in recorded if fingerprint.libraries]
    for name in sorted(set(now.libraries).union(*before).difference(unused)):
        versions = [libraries.get(name, NOT_INSTALLED) for libraries in before]
        differences.append(_difference(name, "", now.libraries.get(name, NOT_INSTALLED), versions))
    return tuple(difference for difference in differences if difference is not None)


def code_changes(result: Result, sessions: Sequence[Result]) -> Iterator[Difference]:
    """Yields what differs from earlier sessions in a case's kernels: code, resources, launches, names."""
    new = by_name(map(as_recorded, result.kernels))
    launched = [[*map(as_recorded, session.kernels)] for session in sessions if session.kernels]
    seen = list(map(by_name, launched))
    if not new or not seen:
        return
    old = by_name(itertools.chain(*launched))
    capability = result.fingerprint.compute_capability
    kernels = grouped(
        (difference, name)
        for name in filter(old.__contains__, new)
        for difference in _kernel_changes(new[name], old[name], capability)
    )
    for difference, names in kernels.items():
        yield difference if len(names) == len(new) else structs.replace(difference, kernels=tuple(names))
    added = ", ".join(name for name in new if name not in old)
    gone = ", ".join(name for name in old if name not in new and all(name in session for session in seen))
    yield from [Difference(KERNEL, now=added)] if added else []
    yield from [Difference(KERNEL, before=gone)] if gone else []
    now, *counts = (len(launches_of(of)[1]) for of in (result, *sessions))
    before = sorted(set(filter(None, counts)))
    if now and before and now not in before:
        yield Difference("launches", " or ".join(map(str, before)), str(now))


class ClockChange(NamedTuple):
    """Holds a clock that is not what it was: its recorded and its new value in MHz."""

    before_mhz: float
    now_mhz: float

    def difference(self, what: str = CLOCK) -> Difference:
        return Difference(what, f"{self.before_mhz:.0f}", f"{self.now_mhz:.0f} MHz")


def clock_change(
    deciding: Sequence[Measurement], past: Sequence[SessionTime], clock: str = "sm_mhz"
) -> ClockChange | None:
    """Says how a clock moved beyond its own spread since the recorded sessions of measurements under one key.

    If there are several sessions, their median counts, and the spread between them is part of the spread.
    Returns None where it did not move or is not known.
    """
    own = [mhz for time in deciding if (mhz := time.seen(CLOCKS, clock))]
    known = [mhz for time in past if (mhz := time.measurement.seen(CLOCKS, clock))]
    if not own or not known:
        return None
    high, low = ([time.seen(CLOCKS, f"{clock}_{end}") or 0.0 for time in deciding] for end in ("high", "low"))
    ranges = map(operator.sub, high, low)
    before, now = statistics.median(known), statistics.median(own)
    spread = max(*ranges, max(own) - min(own), max(known) - min(known), _CLOCK_FLOOR * before)
    return ClockChange(before, now) if abs(now - before) > spread else None


def _clock_changes(
    deciding: Sequence[Measurement], verdict: Verdict, past: Sequence[SessionTime]
) -> list[Difference]:
    """Returns clocks that moved, and whether the multiprocessors' explains the time of a kernel."""
    first, sm, memory = deciding[0], clock_change(deciding, past), clock_change(deciding, past, "memory_mhz")
    moved = [sm.difference()] if sm else []
    on_device = first.scope == "kernel" and timer_row(first.timer).device_timed
    if sm and on_device and verdict.ratio and is_about(verdict.ratio, deciding, past):
        time_change = math.log(verdict.ratio)
        cycles = time_change + math.log(sm.now_mhz / sm.before_mhz)  # they are time times clock
        if abs(cycles) < abs(time_change):  # else the clock explains nothing
            same = abs(cycles) <= _SAME_CYCLES * abs(time_change)
            moved.append(Difference(CYCLES, now=None if same else percent(cycles)))
    return [*moved, memory.difference("memory clock")] if memory else moved


def is_about(ratio: float, deciding: Sequence[Measurement], past: Sequence[SessionTime]) -> bool:
    """Says whether a ratio compares these measurements, whose clocks are known, with all recorded sessions.

    It does not if the gate compared them only with sessions on their own card, or with the epoch's first.
    """
    recorded = statistics.fmean(math.log(time.median_ns) for time in past)
    now = statistics.fmean(math.log(measurement.summary.median_ns) for measurement in deciding)
    return abs(now - recorded - math.log(ratio)) <= _SAME_CYCLES * abs(math.log(ratio))


def _kernel_changes(
    now: Sequence[KernelFacts], before: Sequence[KernelFacts], capability: tuple[int, int] | None
) -> Iterator[Difference]:
    codes = {kernel.machine_code_sha256 for kernel in now if kernel.machine_code_sha256}
    methods, recorded = set(map(hash_method, codes)), (kernel.machine_code_sha256 for kernel in before)
    # A hash of a whole module (`module:…`) tells nothing beside one of a kernel's code (`code:…`).
    known = {code for code in recorded if code and hash_method(code) in methods}
    yield from [SAME_CODE if codes <= known else NEW_CODE] if codes and known else []
    yield from resource_changes(now, before)
    for what in ("grid", "block"):
        new = [size for size in dict.fromkeys(getattr(kernel, what) for kernel in now) if size]
        old = [size for size in dict.fromkeys(getattr(kernel, what) for kernel in before) if size]
        if new and old and not set(new) <= set(old):
            before_text, now_text = (" or ".join(map(dimensions, sizes)) for sizes in (old, new))
            yield Difference(what, before_text, now_text)
    new_share, old_share = (_occupancy(kernels, capability) for kernels in (now, before))
    if new_share and old_share and new_share != old_share:
        yield Difference("occupancy", f"{100 * old_share:.0f}", f"{100 * new_share:.0f} %")


def _occupancy(kernels: Iterable[KernelFacts], capability: tuple[int, int] | None) -> float:
    """Returns the highest theoretical occupancy of launches, which records do not hold; 0 if not known."""
    return max((with_occupancy(kernel, capability).occupancy or 0.0 for kernel in kernels), default=0.0)


def dimensions(size: tuple[int, ...]) -> str:
    """Returns `15625`, `63×4`: without the trailing ones."""
    while len(size) > 1 and size[-1] == 1:
        size = size[:-1]
    return "×".join(map(str, size))


def _difference(label: str, unit: str, now: Any, recorded: Sequence[Any]) -> Difference | None:
    known = list(dict.fromkeys(_text(value) for value in recorded if value is not None))
    if now is None or now in recorded or not known:
        return None
    if len(known) >= _ALIKE:
        return Difference(label, None, f"{_text(now)}{unit}", others=len(known))
    return Difference(label, " or ".join(known), f"{_text(now)}{unit}")


def _text(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
