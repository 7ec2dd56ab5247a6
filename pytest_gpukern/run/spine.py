"""Takes what a test measures from its inputs to its final verdicts: the spine.

Read `run` and `settle` first. A `Subject` is what a test measures, a case or a call. What its steps find out
is `Evidence`; a `TimedScope` (`timed_scope.py`) times it.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from msgspec import structs

from pytest_gpukern.arrays.memory import Span
from pytest_gpukern.baseline.merge import confirmed_slower
from pytest_gpukern.baseline.record import choice_of
from pytest_gpukern.baseline.same_work import SameWork, conditions_of, newest, same_work
from pytest_gpukern.check.diagnosis import Diagnosis, IncorrectError
from pytest_gpukern.findings.findings import explained, failures
from pytest_gpukern.findings.weaker import weaker
from pytest_gpukern.gate.change import FRESH_SESSIONS, SESSIONS_TO_GATE
from pytest_gpukern.gate.comparability import Conditions
from pytest_gpukern.gate.judge import (
    BY_MACHINE,
    Basis,
    confirm,
    judge,
    undecidable,
    unless_same_code,
)
from pytest_gpukern.gate.spread import spread_key
from pytest_gpukern.gpu import runtime as cuda
from pytest_gpukern.gpu.kernel_facts import autotuned, kernel_facts, without_hash
from pytest_gpukern.gpu.simulator.launch import SimulatedLaunches
from pytest_gpukern.processes.sessions import ChildSessions, Ending
from pytest_gpukern.run.environment import Environment, Open
from pytest_gpukern.run.extra_sessions import ExtraSessions, measure_extra_sessions
from pytest_gpukern.timers.cupti import machine_code
from pytest_gpukern.timers.timer import TimerUnavailable
from pytest_gpukern.values.backend_table import distributions_of_others
from pytest_gpukern.values.grouping import grouped
from pytest_gpukern.values.marker import MarkerOptions
from pytest_gpukern.values.note import Note
from pytest_gpukern.values.phases import phase
from pytest_gpukern.values.result import (
    CaseInfo,
    Correctness,
    GateFailure,
    Measurement,
    OutputError,
    Result,
    SessionRole,
    Trace,
    Verdict,
)
from pytest_gpukern.values.timer_table import timer_row, times_host
from pytest_gpukern.values.verdict_table import VerdictKind

NO_CALL = "the test made no call by gpu_benchmark that returned, so nothing was checked"


@dataclass(frozen=True)
class SubjectContext:
    """Holds what a subject needs to know of its test and its run.

    Attributes:
        test_file: the test's file; baselines lie beside it.
        checked: whether an earlier session of a comparison of revisions has checked the same code in full.
            Then a case is checked on what it is timed on, before and after: not in its corners, and by no
            launches after timing.
        asks: whether this session only asks what tests have the device do, by the fewest samples.
        rootdir: pytest's, which all processes of a run share.
    """

    environment: Environment
    marker: MarkerOptions
    nodeid: str
    test_file: Path
    checked: bool = False
    asks: bool = False
    rootdir: Path = Path()

    def new_result(self, case: CaseInfo, *, simulated: bool, **known: Any) -> Result:
        environment = self.environment
        return Result(
            case=case,
            nodeid=self.nodeid,
            fingerprint=environment.gpu.fingerprint,
            provenance=environment.provenance,
            simulated=simulated,
            session=environment.session,
            **known,
        )

    def timed_as(self, scopes: tuple[str, ...]) -> tuple[str, ...]:
        """Says how the test declares that it is timed, as in `kernel hot`; `scopes` are its problem's."""
        marker = self.marker
        ways = [way for way in (marker.timer, marker.cache) if way not in (None, "auto", "cold")]
        return tuple(" ".join([scope, *ways]) for scope in ((marker.scope,) if marker.scope else scopes))

    @property
    def timer(self) -> str:
        return self.marker.timer or self.environment.settings.timer

    @property
    def cache(self) -> str:
        return self.marker.cache or self.environment.settings.cache

    @property
    def times_host(self) -> bool:
        """Returns whether the test or the run asks for a timer of the host, which needs no GPU."""
        return times_host(self.timer)


class Subject(Protocol):
    """Describes what one test measures: a case of a problem (`CaseSubject`), or a call (`CallSubject`).

    Each step adds what it finds to the `Evidence` that it is given, so that nothing is lost if a step raises.

    Attributes:
        is_timed: whether it is measured in this run.
    """

    is_timed: bool

    def begin(self) -> Result:
        """Returns the result of this subject before anything ran."""

    def prepare(self) -> AbstractContextManager[None]:
        """Prepares what the steps below need on the host and on the device, and gives it back."""

    def check(self, evidence: Evidence) -> None:
        """Runs it untimed and checks what it did.

        Raises:
            IncorrectError: it is wrong.
        """

    def measure(self, evidence: Evidence) -> None:
        """Times it, in each of its scopes.

        Raises:
            IncorrectError: it was wrong while it was timed.
            NothingLaunched: it puts nothing on the GPU, and may be measured elsewhere.
        """

    def recheck(self, evidence: Evidence) -> None:
        """Checks what the last timed executions left, and another one.

        Raises:
            IncorrectError: it is no longer right.
        """


class NotRunError(Exception):
    """Says why a case cannot run here; the test is skipped with this message."""


def run(subject: Subject, evidence: Evidence, environment: Environment) -> None:
    """Checks a subject, measures it if that is asked for, and checks it again.

    Faults in its outputs are noted as evidence, and not raised. This process holds the device all the while;
    what is timed on the host has the host to itself. Only `measure` is timed. Host work for a later subject
    belongs before `prepare`, or beside `measure` if it disturbs no time.

    Raises:
        NotRunError: it cannot run here, with the reason.
        NothingLaunched: it puts nothing on the GPU, and may be measured elsewhere.
    """
    gpu = environment.gpu
    with gpu.working(), evidence.noting_what_is_wrong(), ExitStack() as prepared:
        with phase("preparing"):
            prepared.enter_context(subject.prepare())
        with phase("checking"):
            subject.check(evidence)
        if subject.is_timed:
            simulated = SimulatedLaunches.made
            with gpu.timing(on_gpu=evidence.result.case.on_gpu), phase("timing"):
                subject.measure(evidence)
            if SimulatedLaunches.made != simulated:
                evidence.drop_simulated_times()
            with phase("checking"):
                subject.recheck(evidence)
            evidence.result = with_facts(evidence.result, environment, evidence.arrays)
            evidence.add_note(*gpu.take_late_warnings())  # if nothing ran on a GPU


def with_facts(result: Result, environment: Environment, arrays: Sequence[tuple[str, Span]] = ()) -> Result:
    """Adds kernel facts, scalar arguments, ceilings and canaries to a measured result.

    `arrays` are those that a call got when its launches were observed.
    """
    device = environment.gpu.device
    if not result.case.on_gpu or device is None or not environment.gpu.has_gpu or not result.measurements:
        return result
    kernels_first = sorted(result.measurements, key=lambda time: time.scope != "kernel")
    with cuda.at_home():
        code, gpu = machine_code.machine_code(), environment.gpu
        ceilings, canaries = gpu.ceilings, gpu.canaries
    kernels = kernel_facts(
        next((time.work for time in kernels_first if time.work), ()),
        device.compute_capability,
        code.sha256 if code is not None else None,
    )
    unhashed = without_hash(kernels, code.refused if code is not None else "CUPTI cannot be used")
    first = kernels_first[0]
    launched = [first.work[place].name for place in first.order if first.work[place].kernel]
    return structs.replace(
        result,
        notes=(*result.notes, *environment.gpu.take_late_warnings(), *_copied_values(first), *unhashed),
        kernels=kernels,
        scalars=code.scalars(launched, arrays) if code is not None and arrays else None,
        # To look for tuners takes 20 to 100 ms.
        autotuned={} if "triton" in distributions_of_others(result.case.backend) else autotuned(kernels),
        ceilings=structs.asdict(ceilings) if ceilings is not None else {},
        canaries=dict(canaries),
    )


def _copied_values(timed: Measurement) -> Iterator[Note]:
    """Yields a note if each timed call copies single values to the device: it waits longer than they take."""
    to_device = [of for of in timed.work if of.host_copy is not None and of.host_copy.direction == "HtoD"]
    count = round(sum(of.count for of in to_device if of.size_bytes <= _A_VALUE_BYTES * of.count))
    if timed.scope == "kernel" and count:
        remedy = "make them on the device before, such as jax.numpy.float32(2)"
        copies = f"each call copies {count} single value{'s' * (count > 1)} from the host"
        yield Note(f"{copies}, as JAX does with Python's numbers, and that is in its time: {remedy}")


_A_VALUE_BYTES = 16
"""A complex number has so many bytes, and no single value has more."""


@dataclass(frozen=True)
class Settled:
    """Holds what a test came to, or has come to so far.

    Attributes:
        result: of this process, with its verdicts; in the end also with their reasons, and findings.
        sessions: other sessions that were measured for it, in their order.
        threshold: the smallest change that counts.
        expects_check: whether the test may fail as nobody compared its outputs.
        failures: why the gate fails the test, in the end.
        waits: whether a time is open until other sessions have measured it.
    """

    result: Result
    sessions: tuple[Result, ...] = ()
    threshold: float = 0.0
    expects_check: bool = False
    failures: tuple[GateFailure, ...] = ()
    waits: bool = False

    @property
    def suspected(self) -> list[str]:
        return [key for key, verdict in self.result.verdicts.items() if verdict.suspected]

    def judged_as(self, verdicts: Mapping[str, Verdict], *more: Result) -> Settled:
        """Returns it with other verdicts, and with `more` sessions."""
        result = structs.replace(self.result, verdicts=dict(verdicts))
        return dataclasses.replace(self, result=result, sessions=(*self.sessions, *more))


def settle(
    result: Result,
    environment: Environment,
    marker: MarkerOptions,
    *,
    expects_check: bool = False,
    may_wait: bool = False,
) -> Settled:
    """Judges a result once its test's body has ended, so that every verdict is final.

    With `unchecked` in `--gpukern-fail-on`, a test that `expects_check` fails if nobody checked its outputs.
    A test expects that if it uses our fixture, or declares what its calls write.

    A run that compares by several sessions runs the others first. What is open then needs more sessions. If
    it `may_wait`, they are left to the end of the run, where all such tests share them: `settle_together`.
    """
    further: tuple[Result, ...] = ()
    threshold = marker.threshold or environment.settings.threshold
    if result.measurements and not result.verdicts:  # those of child sessions, as of another revision, stay
        result, further = judged_by_record(result, environment, threshold)
    settled = Settled(result, further, threshold, expects_check)
    if may_wait and (settled.suspected or left_open(settled, environment) is not None):
        return dataclasses.replace(settled, waits=True)
    (settled,) = settle_together([settled], environment)
    return settled


def settle_together(
    tests: Sequence[Settled], environment: Environment, *, early: bool = False
) -> list[Settled]:
    """Settles tests that were judged.

    What a record of other cards leaves open is measured beside its commit. Fresh sessions decide suspicions
    that are left. In a run that ends `early` nothing more is measured.
    """
    waiting = [left_open(test, environment) for test in tests]
    known = [of for of in waiting if of is not None]
    ended = measured_beside(known, environment) if known and not early else {}
    judged = [
        test if of is None else settled_beside(test, of, ended.get(test.result.nodeid, _ENDED_EARLY))
        for of, test in zip(waiting, tests, strict=True)
    ]
    # A verdict rests on fresh sessions if these decided it, else on the first ones.
    return [
        _with_failures(settled, environment, _by_key([test.result, *test.sessions]) | decided)
        for test, (settled, decided) in zip(tests, confirmed(judged, environment, early=early), strict=True)
    ]


_ENDED_EARLY = "the run ended before"


def _with_failures(
    settled: Settled, environment: Environment, deciding: Mapping[str, Sequence[Measurement]]
) -> Settled:
    """Returns what a test comes to, with reasons, findings, and why the gate fails it."""
    settings, result = environment.settings, settled.result
    if result.measurements:
        result = explained(result, environment.record_of(result.case).past, deciding=deciding)
    if settings.benchmark and settings.baseline != "off":  # also where the record makes times needless
        past = [time.session for time in environment.record_of(result.case).past()]
        found = (*result.findings, *weaker(result, past, settings.threshold))
        result = structs.replace(result, findings=found)
    # The reason first: pytest's short summary names the test already, and cuts long lines.
    failing = failures(result, settings.fail_on, accepts=settings.baseline == "update")
    unchecked = result.correctness is Correctness.UNCHECKED and not result.code  # of what ran
    if "unchecked" in settings.fail_on and settled.expects_check and unchecked:
        failing.insert(0, GateFailure("unchecked", _why_unchecked(result)))
    return dataclasses.replace(settled, result=result, failures=tuple(failing))


def _why_unchecked(result: Result) -> str:
    """Says which outputs of an unchecked result nothing compared, with the remedy."""
    if result.first_call_ns is None:
        return f"{NO_CALL}: call it, or drop the fixture and the marker"
    never = f"{', '.join(result.unchecked)}: never compared" if result.unchecked else "no output was compared"
    return (
        f"{never} with a reference: call gpu_benchmark.verify(out, expected) with the output or "
        "a copy of it, or pass check= to its pedantic; a test of the fixture benchmark takes gpu_benchmark "
        "instead"
    )


def judged_by_record(
    result: Result, environment: Environment, threshold: float
) -> tuple[Result, tuple[Result, ...]]:
    """Returns a measured result with a verdict for each time, and the further sessions that were judged.

    Without baselines, only what is INVALID has a verdict.
    """
    settings, further = environment.settings, ExtraSessions()
    if settings.baseline == "compare" and settings.sessions > 1:
        further = _in_fresh_processes([result], environment, settings.sessions - 1, before=1)[result.nodeid]
    sessions = (result, *further.results)
    by_key = _by_key(sessions)
    verdicts: dict[str, Verdict] = {}
    for key in (time.key for time in result.measurements):
        basis = _basis_of(result, key, environment, threshold)
        verdict = judge(by_key[key], basis)
        folder = settings.baseline_dir
        if verdict.kind is VerdictKind.NEW and folder is not None and not folder.is_dir():
            verdict = structs.replace(verdict, reason=f"{verdict.reason}: there is no folder {folder}")
        verdict = _by_code(verdict, sessions, key, basis)
        if further.reason is not None:
            verdict = Verdict(VerdictKind.INVALID, f"its extra sessions failed: {further.reason}")
        if settings.baseline != "off" or verdict.kind is VerdictKind.INVALID:
            verdicts[key] = verdict
    return structs.replace(result, verdicts=verdicts), further.results


def left_open(settled: Settled, environment: Environment) -> Open | None:
    """Returns what a record of other cards leaves open: suspicions, and times of changed code.

    Cards of a model differ by more than most changes do. By the host's clock only suspicions are settled: its
    times differ so much that most are open.
    """
    result, verdicts = settled.result, settled.result.verdicts
    by_others = [key for key, verdict in verdicts.items() if verdict.other_card]
    if not by_others or environment.beside is None or environment.settings.baseline != "compare":
        return None
    record = environment.record_of(result.case)
    others = {key: newest(record.past(key)) for key in by_others}
    as_recorded = {key for key, of in others.items() if conditions_of(result, key) == conditions_of(of, key)}
    work = {key: same_work(result, of, key) for key, of in others.items()}
    by_device = {time.key for time in result.measurements if timer_row(time.timer).device_timed}
    other_files = {key for key, of in others.items() if of.files not in (None, result.files)}
    other_work = {key for key in others if work[key] is SameWork.NO}
    changed = (other_work | other_files) & as_recorded & by_device
    undecided = {key for key in changed if verdicts[key].kind is VerdictKind.UNDECIDED}
    left = tuple(key for key in others if verdicts[key].suspected or key in undecided)
    if not left:
        return None
    return Open(
        result,
        left,
        others[left[0]].provenance,
        settled.threshold,
        frozenset(as_recorded),
        same_work=not other_work.intersection(left),
    )


def measured_beside(waiting: Sequence[Open], environment: Environment) -> Mapping[str, Ending | str]:
    """Measures the commits of the tests' records on this card beside the working tree.

    This process must not hold the device. Returns for each test how it ended, or why it was not measured.
    """
    assert environment.beside is not None
    children = _children_of([of.result for of in waiting], environment)
    with phase("confirming sessions"), environment.gpu.clock_stopped():
        return environment.beside(waiting, children)


def settled_beside(settled: Settled, of: Open, ended: Ending | str) -> Settled:
    """Decides by pairs what was open. What they cannot decide stays as it was, and a note says why."""
    result, verdicts = settled.result, dict(settled.result.verdicts)
    if isinstance(ended, str):
        note = Note(f"recorded on other cards only, and not measured beside that commit: {ended}")
        return dataclasses.replace(settled, result=structs.replace(result, notes=(*result.notes, note)))
    for key in of.keys:
        verdict = ended.result.verdicts.get(key) if ended.result is not None else None
        if ended.outcome == "failed":
            verdicts[key] = undecidable(verdicts[key], ended.text)
        elif verdict is not None:
            # Both sides have libraries, driver and clocks in common: pairs do not show what these changed.
            settles = verdict.kind.row.compared or verdict.kind is VerdictKind.SAME_CODE
            if verdict.kind is VerdictKind.SLOWER or (settles and key in of.as_recorded):
                verdicts[key] = verdict
            else:
                verdicts[key] = verdicts[key].adding(f"{verdict.kind.value}: {verdict.reason}")
    return settled.judged_as(verdicts, *ended.sessions)


def confirmed(
    tests: Sequence[Settled], environment: Environment, *, early: bool = False
) -> list[tuple[Settled, dict[str, list[Measurement]]]]:
    """Decides each suspicion by fresh sessions of the same tests, and by these alone, which are returned.

    If there are too few of these, the suspicion is INVALID, with the reason. A confirmed slowdown may be
    intended: a run that writes a file then measures as many more sessions as a new epoch needs to gate at
    once.
    """
    settings = environment.settings
    suspects = [] if early else [test.result for test in tests if test.suspected]
    again = _in_fresh_processes(suspects, environment, FRESH_SESSIONS, role=SessionRole.CONFIRMING)
    found = []
    for test in tests:
        fresh, problem = again.get(test.result.nodeid, ExtraSessions(reason=_ENDED_EARLY))
        verdicts, by_key = dict(test.result.verdicts), _by_key(fresh)
        decided = {key: by_key.get(key, []) for key in test.suspected}
        for key, times in decided.items():
            if problem or len(times) < len(fresh):
                verdicts[key] = undecidable(verdicts[key], problem or f"{key} was not measured in each")
            else:
                basis = _basis_of(test.result, key, environment, test.threshold)
                verdict = confirm(verdicts[key], times, basis)
                verdicts[key] = _by_code(verdict, [test.result, *fresh], key, basis, decided=True)
        found.append((test.judged_as(verdicts, *fresh), decided))
    stored = settings.run_file is not None and settings.baseline == "compare"
    slower = [
        of.result for of, _ in found if stored and of.result.nodeid in again and confirmed_slower(of.result)
    ]
    further = SESSIONS_TO_GATE - FRESH_SESSIONS
    more = _in_fresh_processes(slower, environment, further, before=FRESH_SESSIONS)
    return [
        (of.judged_as(of.result.verdicts, *more.get(of.result.nodeid, ExtraSessions()).results), decided)
        for of, decided in found
    ]


def _by_code(
    verdict: Verdict, sessions: Iterable[Result], key: str, basis: Basis, *, decided: bool = False
) -> Verdict:
    """Returns the verdict, or SAME CODE where what these sessions did decides and their time does not.

    Files tell of no option or variable. So where files alone are known, a device's time that is slower on
    another card stays SLOWER, and more sessions settle it. Once it is `decided`, none follow.
    """
    if not basis.reference:
        return verdict
    before = newest(basis.reference)
    same = {same_work(session, before, key) for session in sessions}
    if SameWork.NO in same:
        return verdict
    stays = timer_row(key.split("/")[1]).device_timed and not decided
    explains = (0.0 if stays else BY_MACHINE) if SameWork.FILES in same else math.inf
    return unless_same_code(verdict, all_known=SameWork.SEEN not in same, explains=explains)


def _basis_of(result: Result, key: str, environment: Environment, threshold: float) -> Basis:
    """Returns what a measurement is judged by.

    A remark says if that is an older epoch, because the newest has no time under its key.
    """
    on_gpu, store = result.case.on_gpu, environment.store
    model = environment.gpu.model_key(on_gpu=on_gpu)
    recorded = environment.record_of(result.case)
    opened = recorded.newer_epoch(key)
    return Basis(
        store.sessions_for(result.case, model, key),
        Conditions(result.case.problem_version, model, result.simulated),
        threshold=threshold,
        device=result.device,
        shared=store.shared_spread(model).get(spread_key(key)),
        anchor=recorded.anchor(key),
        choice=choice_of(result),
        remark=f"judged by an older epoch, because that of {opened[:10]} has no {key}" if opened else "",
        fails_with="" if on_gpu or "host" in environment.settings.fail_on else "--gpukern-fail-on",
    )


def _by_key(results: Iterable[Result]) -> dict[str, list[Measurement]]:
    """Returns `scope/timer/cache` → the measurements of results."""
    return grouped((time.key, time) for result in results for time in result.measurements)


def _in_fresh_processes(
    results: Sequence[Result],
    environment: Environment,
    count: int,
    *,
    role: SessionRole = SessionRole.FURTHER,
    before: int = 0,
) -> dict[str, ExtraSessions]:
    """Runs so many fresh sessions of tests; returns what came of each test's.

    This process judges, so it starts them. It must not hold the device, which they lock. They check in full
    and judge nothing. Messages number them after those that came `before`.
    """
    if not results:
        return {}
    children, numbers = _children_of(results, environment), range(before + 1, before + count + 1)
    with phase("confirming sessions"), environment.gpu.clock_stopped():
        return measure_extra_sessions(environment, children, results, numbers, role=role)


def _children_of(results: Sequence[Result], environment: Environment) -> ChildSessions:
    """Returns what starts sessions of tests, which import no variants of other backends if all have one.

    On an H200's host that took most of a session's ten seconds. Sessions of host variants import all, as
    those on record did; options about GPUs, such as `--gpukern-timer=event`, contradict
    `--gpukern-backend=host`.
    """
    children, backends = environment.children, {of.case.backend if of.case.on_gpu else None for of in results}
    if len(backends) > 1 or None in backends:
        return children
    return dataclasses.replace(children, options=(*children.options, f"--gpukern-backend={backends.pop()}"))


class Evidence:
    """Gathers what a test finds out: each check and each measurement adds to its result.

    The `diagnosis` comes from the first check that failed. `arrays` are those of a case, by name, as each of
    its observed launches got them.
    """

    def __init__(self, result: Result) -> None:
        self.result = result
        self.diagnosis: Diagnosis | None = None
        self.arrays: list[tuple[str, Span]] = []

    def add(self, **known: Any) -> None:
        """Adds what is known of the result, by its fields."""
        self.result = structs.replace(self.result, **known)

    def add_note(self, *notes: Note) -> None:
        self.add(notes=tuple(dict.fromkeys((*self.result.notes, *notes))))

    def drop_simulated_times(self) -> None:
        """Drops times that contain work of the simulator, as of a host variant that launches."""
        self.add(simulated=True, measurements=())
        self.add_note(Note("not timed: the timed calls ran kernels in the simulator, which never times"))

    def add_trace(self, take: Callable[[], Trace]) -> None:
        """Adds what one more execution did, or a note that says why nothing could record it."""
        try:
            self.add(trace=take())
        except TimerUnavailable as reason:
            self.add_note(Note(f"no trace: {reason}"))

    def passes(self, errors: Mapping[str, OutputError] | None = None) -> None:
        """Notes that a check found nothing wrong, and the errors of its outputs; a fault stays."""
        wrong = self.result.correctness is Correctness.INCORRECT
        correctness = Correctness.INCORRECT if wrong else Correctness.PASSED
        self.add(correctness=correctness, errors={**self.result.errors, **(errors or {})})

    def fails(self, diagnosis: str, errors: Mapping[str, OutputError] | None = None) -> None:
        """Notes what is wrong, in words; `errors` as in `passes`."""
        errors = {**self.result.errors, **(errors or {})}
        self.add(correctness=Correctness.INCORRECT, diagnosis=diagnosis, errors=errors)

    @contextmanager
    def noting_what_is_wrong(self) -> Iterator[None]:
        """Notes an `IncorrectError` that ends the block. We drop the times of what is wrong."""
        try:
            yield
        except IncorrectError as error:
            self.diagnosis = error.diagnosis
            self.fails("\n".join([str(error), *getattr(error, "__notes__", ())]), error.errors)
            self.add(measurements=(), trace=None)
            # Else, since Python 3.12, the error and the frame of `__exit__` hold each other and all frames
            # below: the test's objects would go when the collector runs, and not as the test ends.
            error.__traceback__ = None
