"""Finds what got worse besides a median: errors that grew, other bits, more registers, and slow calls."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from msgspec import structs

from pytest_gpukern.baseline.record import as_recorded, trimmed_time
from pytest_gpukern.gate.change import SESSIONS_TO_GATE
from pytest_gpukern.gate.comparability import SessionTime
from pytest_gpukern.measure.statistics import student_t
from pytest_gpukern.values.difference import Difference
from pytest_gpukern.values.grouping import grouped
from pytest_gpukern.values.result import (
    Determinism,
    Finding,
    KernelFacts,
    Measurement,
    OutputError,
    hash_method,
    machine_code,
    of_sessions,
)

ACCURACY, BITS, DETERMINISM, RESOURCES, TAIL = "accuracy", "bits", "determinism", "resources", "tail"

FACTOR = 4.0
"""By which an error may grow beyond the largest recorded before it is reported."""
FEWEST_WITH_THE_SAME_BITS = 2
"""Recorded sessions that must agree in their bits: one cannot show that an output is deterministic."""

_ROUNDING_ULP = 4.0
"""Up to here an error has not grown, whatever was recorded: any correct rounding may be half an ULP off, and
a compiler that contracts a multiply-add moves that."""

TELLING_ULP = 1000.0
"""From here on an error is counted in ULP of a reference near zero, where it may change at random."""

_FEWEST_SAMPLES = 20
"""Samples from which a 95th percentile says anything."""
_LEAST_TAIL = math.log1p(0.05)
"""By how much a mean or a percentile has to grow at least, relative to the median."""
_SURE = 0.995
"""One-sided confidence that it grew."""

_FIGURES = (("max_ulp", " ULP"), ("max_rel", " relative"), ("max_abs", " absolute"))
_FIELDS = (("registers", "registers", ""), ("local_bytes", "local", " B"), ("shared_bytes", "shared", " B"))


def grown_errors(errors: Mapping[str, OutputError], past: Sequence[SessionTime]) -> Iterator[Finding]:
    """Yields a finding for each output whose error exceeds four times the largest one recorded.

    An error of up to four ULP is rounding, whatever it was. If the recorded one is exact, any other error
    beyond that has grown. Near a zero in the reference, errors are many ULP, and the absolute error counts.
    """
    for name, error in errors.items():
        if error.max_ulp is not None and error.max_ulp <= _ROUNDING_ULP:
            continue
        outputs, grown = _outputs(name, past), []
        near_zero = any((output.max_ulp or 0.0) >= TELLING_ULP for output in outputs)
        for field, unit in _FIGURES if not near_zero else _FIGURES[-1:]:
            now, *before = (getattr(of, field) for of in (error, *outputs))
            if before and None not in (now, *before) and now > FACTOR * max(before):
                grown.append(f"{f'{max(before):.3g}' if max(before) else 'exact'} → {now:.3g}{unit}")
        if grown:
            recorded = f"the largest of {n} sessions" if (n := len(past)) > 1 else "of one session"
            yield Finding(ACCURACY, f"{name}: error {', '.join(grown)} (recorded: {recorded})")


def other_bits(
    errors: Mapping[str, OutputError], kernels: Iterable[KernelFacts], past: Sequence[SessionTime]
) -> Iterator[Finding]:
    """Yields a finding for each output with other bits than recorded for the same machine code and inputs.

    Two or more sessions have to be recorded, and all have to agree: else the output may differ from run to
    run. Equal problem versions mean equal inputs, which are random from a fixed seed.
    """
    code = machine_code(map(as_recorded, kernels))
    if code is None or any(machine_code(time.session.kernels) != code for time in past):
        return
    for name, error in errors.items():
        recorded = [output.bits for output in _outputs(name, past)]
        complete = len(recorded) == len(past)
        (first, *others) = dict.fromkeys(recorded) if complete else [None]
        if others or first is None or error.bits is None or len(recorded) < FEWEST_WITH_THE_SAME_BITS:
            continue
        if error.bits != first and hash_method(error.bits) == hash_method(first):
            text = f"{name}: other bits from the same machine code and inputs: {first} in {len(recorded)} "
            yield Finding(BITS, f"{text}sessions, now {error.bits}")


def over_sessions(
    errors: Mapping[str, OutputError], kernels: Iterable[KernelFacts], past: Sequence[SessionTime]
) -> dict[str, OutputError]:
    """Returns the errors with each output's determinism, over all sessions of the same machine code.

    Without others, or if the machine code is not known, this session alone says it.
    """
    code = machine_code(map(as_recorded, kernels))
    alike = [time for time in past if code is not None and machine_code(time.session.kernels) == code]
    over = {}
    for name, error in errors.items():
        seen = [(output.determinism, output.bits) for output in _outputs(name, alike)]
        determinism = of_sessions([(error.determinism, error.bits), *seen] if error.determinism else ())
        over[name] = structs.replace(error, determinism=determinism)
    return over


def other_determinism(errors: Mapping[str, OutputError], past: Sequence[SessionTime]) -> Iterator[Finding]:
    """Yields a finding for each output that was the same in every launch and no longer is, or vice versa.

    The machine code need not be the same: an atomic addition that replaced a tree is worth a finding. So is
    an output that became `bitwise`, but only if several sessions saw it differ.
    """
    for name, error in errors.items():
        seen = [kind for output in _outputs(name, past) if (kind := output.determinism) is not None]
        differs = error.determinism == Determinism.TOLERANT
        differed = [kind == Determinism.TOLERANT for kind in seen]
        steadied = all(differed) and len(seen) >= FEWEST_WITH_THE_SAME_BITS and not differs
        if error.determinism is not None and seen and ((differs and not any(differed)) or steadied):
            text = f"{name}: {seen[-1]} in {len(seen)} recorded sessions, now {error.determinism}"
            yield Finding(DETERMINISM, text)


def _outputs(name: str, past: Iterable[SessionTime]) -> list[OutputError]:
    return [time.session.errors[name] for time in past if name in time.session.errors]


def grown_resources(kernels: Iterable[KernelFacts], past: Sequence[SessionTime]) -> Iterator[Finding]:
    """Yields a finding for each kernel that takes more of anything than in every recorded session.

    A kernel that no recorded session launched has nothing to be compared with.
    """
    new = by_name(map(as_recorded, kernels))
    old = by_name(kernel for time in past for kernel in time.session.kernels)
    for name, launches in new.items():
        grown = resource_changes(launches, old.get(name, ()), grown=True)
        if grown:
            yield Finding(RESOURCES, f"{name}: {', '.join(map(str, grown))}")


def resource_changes(
    now: Sequence[KernelFacts], before: Sequence[KernelFacts], *, grown: bool = False
) -> list[Difference]:
    """Returns what the launches of one kernel take now and never took before."""
    differences = []
    for field, label, unit in _FIELDS:
        new, old = ({getattr(kernel, field) for kernel in kernels} for kernels in (now, before))
        if new and old and (max(new) > max(old) if grown else new - old):
            differences.append(Difference(label, str(max(old)), f"{max(new)}{unit}"))
    return differences


def slow_calls(deciding: Sequence[Measurement], past: Sequence[SessionTime]) -> tuple[Finding, ...]:
    """Returns a finding where some calls became slow: mean or 95th percentile grew beyond what was recorded.

    Both are relative to the session's median, so that a clock or a card changes neither. They have to be
    larger than in every recorded session, by 5 % at least, and beyond a Student prediction interval.

    Args:
        deciding: measurements of new sessions under one key, whose median did not become slower.
        past: the sessions of the record, of which those count that hold the figure.
    """
    key = deciding[0].key
    if any(ns is None or not math.isfinite(ns) for measurement in deciding for ns in measurement.samples_ns):
        return ()
    new = [trimmed_time(measurement) for measurement in deciding if measurement.samples_ns]
    old = [time.measurement for time in past]
    grown = []
    for name, figure in (
        ("mean", lambda time: time.mean_ns),
        ("95th percentile", lambda time: (time.quantiles_ns or (None,))[-1]),
    ):
        now, before = _above_median(new, figure), _above_median(old, figure)
        if len(now) < len(deciding) or len(before) < SESSIONS_TO_GATE:
            continue
        usual, usual_now = statistics.fmean(before), statistics.fmean(now)
        error = statistics.stdev(before) * math.sqrt(1 / len(now) + 1 / len(before))
        least = max(_LEAST_TAIL, student_t(_SURE, len(before) - 1) * error)
        if usual_now > max(before) and usual_now - usual >= least:
            grown.append(
                f"the {name} is {math.exp(usual_now):.2f} times it (recorded: {math.exp(usual):.2f})"
            )
    return (Finding(TAIL, f"{key}: the median is no slower, but {', '.join(grown)}"),) if grown else ()


def _above_median(times: Iterable[Measurement], figure: Callable[[Measurement], float | None]) -> list[float]:
    """Returns the log of a figure relative to the median, of each session that tells it of enough samples."""
    enough = [time for time in times if time.summary.n >= _FEWEST_SAMPLES]
    known = [(figure(time), time.summary.median_ns) for time in enough]
    return [math.log(value) - math.log(median) for value, median in known if value]


def by_name(kernels: Iterable[KernelFacts]) -> dict[str, list[KernelFacts]]:
    """Maps the name of each kernel to its launches, in order."""
    return grouped((kernel.name, kernel) for kernel in kernels)
