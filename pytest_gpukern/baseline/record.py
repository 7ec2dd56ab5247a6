"""Defines what a baseline file holds: the records of cases, as epochs of sessions, oldest first.

A session is what a process measured of a case: a `Result`, without what no later run reads (`trimmed`).
"""

from __future__ import annotations

import hashlib
import itertools
import math
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from typing import Annotated, TypeVar

from msgspec import Meta, structs

from pytest_gpukern.gate.change import SESSIONS_TO_GATE
from pytest_gpukern.gate.comparability import SessionTime, Text
from pytest_gpukern.gpu.kernel_facts import fitted
from pytest_gpukern.measure.device_clocks import CLOCKS
from pytest_gpukern.measure.host_load import LOAD
from pytest_gpukern.measure.statistics import quantiles
from pytest_gpukern.values.grouping import grouped
from pytest_gpukern.values.result import (
    CaseInfo,
    Choice,
    Correctness,
    KernelFacts,
    Measurement,
    Observations,
    Result,
)
from pytest_gpukern.values.stored import Stored

QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
"""The quantiles of a session's samples that a record keeps."""

DIGITS = 6
"""Significant digits of recorded times and errors: 1e-6 relative, far below any timer's repeatability."""

LONGEST_NAME = 120
"""Characters. A longer name of a kernel loses its parameters and template arguments."""

NEWEST_EPOCHS = 3  # that a record keeps, beside its first, the anchor against small steps
MOST_SESSIONS = 20  # of a measurement that an epoch keeps
FIRST_SESSIONS = 5  # that stay in an epoch, against a slow drift, if it was opened with too few to gate

_Held = TypeVar("_Held", bound=Stored)

_KEPT = {CLOCKS: ("sm_mhz", "memory_mhz"), LOAD: ("others_share", "most_ns", "loop_ns")}
"""Observer → its figures that a record keeps."""

MOMENT = r"^\d{4}-\d\d-\d\dT\d\d:\d\d(:\d\d(\.\d+)?)?(Z|[+-]\d\d:?\d\d)$"
"""An ISO 8601 time with its offset."""


def trimmed(result: Result, *, recorded: str = "") -> Result:
    """Returns what a record keeps of a result; `recorded` is when, as an ISO 8601 time with its offset.

    Numbers have `DIGITS` significant digits. Quantiles and a mean stand for the samples. Each kernel is there
    once, by its first launch.
    """
    kernels, launched = launches_of(result)
    as_it_is = ("fingerprint", "autotuned", "dtype", "corners", "held", "inputs", "scalars", "files")
    return Result(
        structs.replace(result.case, baseline_dir=""),
        result.case.id,
        simulated=False,
        correctness=Correctness.PASSED if result.errors else Correctness.UNCHECKED,
        errors={
            name: _rounded(error, "max_abs", "max_rel", "max_ulp") for name, error in result.errors.items()
        },
        first_call_ns=finite(result.first_call_ns),
        compile_ns=finite(result.compile_ns),
        measurements=tuple(
            structs.replace(trimmed_time(timed), does=_beyond_launches(result, timed))
            for timed in result.measurements
        ),
        kernels=kernels,
        launched=launched,
        session=result.session or "unknown",
        recorded=recorded,
        canaries={name: finite(ns) for name, ns in result.canaries.items()},
        **{name: getattr(result, name) for name in (*as_it_is, "provenance", "declared")},
    )


def trimmed_time(measured: Measurement) -> Measurement:
    seen = measured.observations
    kept: Observations = {}
    for name, figures in _KEPT.items():
        known = ((figure, finite(seen.get(name, {}).get(figure))) for figure in figures)
        if held := {figure: number for figure, number in known if number is not None}:
            kept[name] = {**held}
    samples = measured.samples_ns
    return Measurement(
        measured.scope,
        measured.timer,
        measured.cache,
        iterations=measured.iterations,
        summary=_rounded(structs.replace(measured.summary, notes=()), "median_ns", "low_ns", "high_ns"),
        quantiles_ns=_quantiles(samples) if samples else measured.quantiles_ns,
        mean_ns=finite(statistics.fmean(samples)) if samples else measured.mean_ns,
        cpu_ns=finite(measured.cpu_ns),
        invalid_samples=measured.invalid_samples,
        fixed_cost_ns=finite(measured.fixed_cost_ns),
        jitter_ns=finite(measured.jitter_ns) or 0.0,
        observations=kept,
    )


def _quantiles(samples_ns: Sequence[float]) -> tuple[float, float, float, float, float]:
    q05, q25, q50, q75, q95 = (rounded(ns) for ns in quantiles(samples_ns, QUANTILES))
    return q05, q25, q50, q75, q95


def _rounded(held: _Held, *numbers: str) -> _Held:
    return structs.replace(held, **{name: finite(getattr(held, name)) for name in numbers})


def as_recorded(kernel: KernelFacts) -> KernelFacts:
    unknown = dict.fromkeys(("symbol", "blocks_per_sm", "occupancy", "limited_by"))
    return structs.replace(kernel, name=fitted(kernel.name, LONGEST_NAME), **unknown)


def launches_of(result: Result) -> tuple[tuple[KernelFacts, ...], tuple[int, ...]]:
    """Returns each kernel of a call once, and the place among them of each launch of a call.

    The places are empty where calls differ, or where it is not known.
    """
    seen = [as_recorded(kernel) for kernel in result.kernels]
    kernels = list(dict.fromkeys(seen))
    timed = next((timed for timed in result.measurements if timed.order and timed.scope == "kernel"), None)
    if timed is None:
        return tuple(kernels), result.launched
    works = [place for place, work in enumerate(timed.work) if work.kind == "kernel"]
    order = [works.index(place) for place in timed.order if place in works]
    known = len(works) == len(seen)  # else the kernels belong to another measurement
    return tuple(kernels), tuple(kernels.index(seen[place]) for place in order) if known else ()


def device_work(result: Result, timed: Measurement) -> str | None:
    """Returns a hash of what each call of a scope has the device do, in order; None where that is not known.

    It is the same for a new result and for its record. A kernel counts by what the device executes, and a
    copy by its direction, its kinds of memory and its size.
    """
    if timed.does is not None:
        return timed.does
    if timed.order:
        codes = {kernel.launch: kernel.executed for kernel in result.kernels}
        parts = [
            codes.get(work.kernel.launch)
            if work.kernel is not None
            else (work.kind, work.name, float(work.count), float(work.size_bytes))
            for work in timed.work
        ]
        does = [parts[place] for place in timed.order]
    else:
        kernels, launched = launches_of(result)
        by_launches = timed.scope in ("kernel", "launch")  # and a record of copies, too, has `does`
        does = [kernels[place].executed for place in launched] if by_launches else []
    known = does and all(of is not None and of[0] is not None for of in does)
    return hashlib.sha256(repr(does).encode()).hexdigest() if known else None


def _beyond_launches(result: Result, timed: Measurement) -> str | None:
    """Returns what a record has to say of a scope's work besides the launches of its session."""
    does = device_work(result, timed)
    only_launches = structs.replace(timed, does=None, work=(), order=())
    return does if does != device_work(result, only_launches) else None


def choice_of(result: Result) -> Choice:
    """Returns what an autotuner or a library chose in a new result, to compare with a record's."""
    return Choice.of(result.autotuned, map(as_recorded, result.kernels))


class Epoch(Stored, frozen=True):
    """Holds the sessions of a record between two deliberate updates.

    Attributes:
        opened: when, as an ISO 8601 time with its offset.
        sessions: oldest first, never empty; all of one version of the problem.
        reason: why the epoch was opened, where somebody gave a reason.
    """

    opened: Annotated[str, Meta(pattern=MOMENT)]
    sessions: Annotated[tuple[Result, ...], Meta(min_length=1)]
    reason: Text | None = None

    @property
    def keys(self) -> set[str]:
        return {timed.key for session in self.sessions for timed in session.measurements}

    def holding(self, key: str) -> list[Result]:
        return [session for session in self.sessions if session.time(key) is not None]

    def first(self, key: str) -> int:
        """Returns how many of its sessions under a key opened it: they stay, as the anchor against drift.

        If those are too few to gate, the first appended ones count too.
        """
        moments = (session.recorded for session in self.holding(key))
        opened = sum(1 for _ in itertools.takewhile(lambda moment: moment <= self.opened, moments))
        return min(opened if opened >= SESSIONS_TO_GATE else FIRST_SESSIONS, MOST_SESSIONS // 2)

    def adding(self, sessions: Iterable[Result]) -> Epoch:
        """Returns the epoch with more sessions; it keeps `MOST_SESSIONS` of every measurement.

        These are the ones that opened it, against steps that add up, and the newest.
        """
        longer = structs.replace(self, sessions=(*self.sessions, *sessions))
        surplus = defaultdict[int, set[str]](set)
        for key in longer.keys:
            holders = [i for i, session in enumerate(longer.sessions) if session.time(key) is not None]
            first = longer.first(key)
            for index in holders[first : first - MOST_SESSIONS]:
                surplus[index].add(key)
        kept = (only(session, longer.keys - surplus[i]) for i, session in enumerate(longer.sessions))
        return structs.replace(longer, sessions=tuple(session for session in kept if session.measurements))


def only(session: Result, keys: AbstractSet[str]) -> Result:
    return structs.replace(session, measurements=tuple(of for of in session.measurements if of.key in keys))


class Record(Stored, frozen=True):
    """Holds what is recorded of one case on one device model.

    Attributes:
        case: its id.
        epochs: oldest first.
        device_model: key of the device model, or of the CPU model for host variants.
    """

    case: Text
    epochs: Annotated[tuple[Epoch, ...], Meta(min_length=1)]
    device_model: str = ""

    @property
    def sessions(self) -> list[Result]:
        return [session for epoch in self.epochs for session in epoch.sessions]

    @property
    def keys(self) -> set[str]:
        return {key for epoch in self.epochs for key in epoch.keys}

    def _holding(self, key: str | None) -> list[Epoch]:
        return [epoch for epoch in self.epochs if key is None or key in epoch.keys]

    def opening(self, epoch: Epoch) -> Record:
        """Returns the record with a new current epoch.

        It keeps the two before it, and the oldest and the newest that hold each measurement.
        """
        epochs = (*self.epochs, epoch)
        kept = set(range(max(0, len(epochs) - NEWEST_EPOCHS), len(epochs)))
        for key in self.keys | epoch.keys:
            holders = [index for index, held in enumerate(epochs) if key in held.keys]
            kept |= {holders[0], holders[-1]}
        return structs.replace(self, epochs=tuple(epochs[index] for index in sorted(kept)))

    def renamed(self, case_id: str) -> Record:
        """Returns the record under the id of another case."""

        def of(session: Result) -> Result:
            return structs.replace(session, case=_renamed(session.case, case_id), nodeid=case_id)

        return structs.replace(self._with_each(of), case=case_id)

    def comparable(self, key: str) -> tuple[SessionTime, ...]:
        """Returns what the gate compares a measurement with, from the current epoch.

        If the case was never measured under `key`, these are the sessions in the same scope with their own
        key, so that the gate can say how they differ. Other scopes are no substitute.
        """
        scope = key.partition("/")[0]
        similar = sorted(other for other in self.keys if other.partition("/")[0] == scope)
        wanted = [key] if key in similar else similar
        return tuple(time for other in wanted for time in self.past(other))

    def past(self, key: str | None = None) -> tuple[SessionTime, ...]:
        """Returns the sessions of the newest epoch that holds a measurement, oldest first.

        So an update of one scope leaves others judged. Without a `key` it returns each session of the newest
        epoch once, with one of its times.
        """
        return self._times(self._holding(key)[-1:], key)

    def times(self, key: str) -> tuple[SessionTime, ...]:
        """Returns the sessions of all epochs under a key, oldest first."""
        return self._times(self._holding(key), key)

    def anchor(self, key: str) -> tuple[SessionTime, ...]:
        """Returns the sessions of the oldest epoch under `key`; none if that is the current one.

        They show small steps that have added up.
        """
        return self._times(self._holding(key)[:-1][:1], key)

    def newer_epoch(self, key: str) -> str | None:
        """Returns when the newest epoch was opened if `key` is judged by an older one, or None."""
        older = key in self.keys and key not in self.epochs[-1].keys
        return self.epochs[-1].opened if older else None

    def for_report(self) -> Record:
        """Returns what a report shows: the interval of each session, and when and where it was measured."""
        return self._with_each(_for_report)

    def _with_each(self, of: Callable[[Result], Result]) -> Record:
        epochs = (structs.replace(epoch, sessions=tuple(map(of, epoch.sessions))) for epoch in self.epochs)
        return structs.replace(self, epochs=tuple(epochs))

    def _times(self, epochs: Iterable[Epoch], key: str | None) -> tuple[SessionTime, ...]:
        times = []
        for epoch in epochs:
            place, first = self.epochs.index(epoch), 0 if key is None else epoch.first(key)
            for number, session in enumerate(epoch.sessions if key is None else epoch.holding(key)):
                time = session.time(key or "") or session.measurements[0]
                known = (session, time, self.device_model)
                times.append(SessionTime.of(*known, opening=number < first, epoch=place))
        return tuple(times)


def _renamed(case: CaseInfo, case_id: str) -> CaseInfo:
    """Returns what another id says of a case; values of axes and parameters stay as they are."""
    problem, _, variant = case_id.partition("/")
    backend = case.backend
    if case.id.startswith(f"{problem}/{case.label}/"):  # no plain test
        backend, _, variant = variant.partition("/")[0].partition(".")
    return structs.replace(case, id=case_id, backend=backend, variant=variant)


def _for_report(session: Result) -> Result:
    times = (
        Measurement(of.scope, of.timer, of.cache, iterations=of.iterations, summary=of.summary)
        for of in session.measurements
    )
    kept = ("simulated", "session", "recorded", "canaries", "provenance")
    return Result(
        session.case,
        session.nodeid,
        session.fingerprint,
        measurements=tuple(times),
        **{name: getattr(session, name) for name in kept},
    )


NO_RECORD = Record("none", ())


@dataclass(frozen=True)
class Baseline:
    """Holds the content of one file: the records of one problem on one device model.

    Attributes:
        problem: the file's `baseline_name`: the problem or test module.
        device_model: key of the device model, or of the CPU model for host variants.
        cases: case id → record.
    """

    problem: str
    device_model: str
    cases: dict[str, Record] = field(default_factory=dict)

    def of(self, case_id: str) -> Record:
        """Returns what is recorded of a case; an empty record if nothing is."""
        return self.cases.get(case_id, NO_RECORD)

    def all_times(self) -> Iterator[tuple[SessionTime, ...]]:
        """Yields the current sessions of every case under every key, apart by what an autotuner chose."""
        for record in self.cases.values():
            for key in sorted(record.keys):
                by_choice = grouped((time.choice.configurations, time) for time in record.past(key))
                yield from map(tuple, by_choice.values())

    def renaming(self, names: Mapping[str, str]) -> Baseline:
        moved = {new: self.cases[old].renamed(new) for old, new in names.items()}
        return replace(self, cases=self.without(names).cases | moved)

    def without(self, case_ids: Iterable[str]) -> Baseline:
        gone = set(case_ids)
        return replace(self, cases={name: of for name, of in self.cases.items() if name not in gone})


def rounded(value: float, digits: int = DIGITS) -> float:
    return float(f"{value:.{digits}g}")


def finite(value: object, digits: int = DIGITS) -> float | None:
    """Rounds a number to be recorded; None for what is not finite or not known."""
    number = value if isinstance(value, (int, float)) else None
    return rounded(number, digits) if number is not None and math.isfinite(number) else None
