"""Says what a subject of a test is, a case or a call; times it, and gathers what its steps find out."""

from __future__ import annotations

import dataclasses
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from pytest_gpukern.check.diagnosis import IncorrectError
from pytest_gpukern.measure.by_timer import HOST_REMEDY, measured_by, not_of_the_device
from pytest_gpukern.measure.measure import Sampler, rule_beside, rule_for
from pytest_gpukern.measure.rounds import rule_of_rounds
from pytest_gpukern.timers.timer import NothingLaunched, PerCall, TimerUnavailable
from pytest_gpukern.values.result import Correctness, Result
from pytest_gpukern.values.timer_table import timer_row

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from contextlib import AbstractContextManager

    from pytest_gpukern.check.diagnosis import Diagnosis
    from pytest_gpukern.measure.observers import ObservedCall
    from pytest_gpukern.run.environment import Environment
    from pytest_gpukern.timers.timer import Executions, Timer
    from pytest_gpukern.values.marker import MarkerOptions
    from pytest_gpukern.values.result import Measurement, OutputError, Trace


@dataclass(frozen=True)
class SubjectContext:
    """Holds what a subject needs to know of its test and its run.

    Attributes:
        environment: device, settings, backends and data sets.
        marker: arguments of the test's marker.
        nodeid: pytest's name of the test.
        test_file: the test's file; baselines lie beside it.
        checked: whether an earlier session has checked the same code in full. Then a case is checked on what
            it is timed on, before and after: not in its corners, and by no launches after timing.
        rootdir: pytest's, in the process that reports.
    """

    environment: Environment
    marker: MarkerOptions
    nodeid: str
    test_file: Path
    checked: bool = False
    rootdir: Path = Path()


class Subject(Protocol):
    """Describes what one test measures: a case of a problem (`CaseSubject`), or a call (`CallSubject`).

    Each step adds what it finds to the `Found` that it is given, so that nothing is lost if a step raises.

    Attributes:
        is_timed: whether it is measured in this run.
    """

    is_timed: bool

    def begin(self) -> Result:
        """Returns the result of this subject before anything ran."""

    def prepare(self) -> AbstractContextManager[None]:
        """Prepares what the steps below need on the host and on the device, and gives it back."""

    def check(self, found: Found) -> None:
        """Runs it untimed and checks what it did.

        Raises:
            IncorrectError: it is wrong.
        """

    def measure(self, found: Found) -> None:
        """Times it, in each of its scopes.

        Raises:
            IncorrectError: it was wrong while it was timed.
            NothingLaunched: it puts nothing on the GPU, and may be measured elsewhere.
        """

    def recheck(self, found: Found) -> None:
        """Checks what the last timed executions left, and another one.

        Raises:
            IncorrectError: it is no longer right.
        """


class NotRunError(Exception):
    """Says why a case cannot run here; the test is skipped with this message."""


class Found:
    """Gathers what a test finds out: each check and each measurement adds to its result.

    Attributes:
        result: what is known so far.
        diagnosis: what the first check that failed says, or None.
    """

    def __init__(self, result: Result) -> None:
        self.result = result
        self.diagnosis: Diagnosis | None = None

    def add_note(self, *notes: str) -> None:
        """Adds notes to the result."""
        if not notes:
            return
        self.result = dataclasses.replace(self.result, notes=(*self.result.notes, *notes))

    def add_first_call(self, time_ns: float | None) -> None:
        """Adds how long the first call took, in nanoseconds, compiling and loading included."""
        self.result = dataclasses.replace(self.result, first_call_ns=time_ns)

    def add_duration(self, duration_s: float) -> None:
        """Adds how long the whole test took, in seconds."""
        self.result = dataclasses.replace(self.result, duration_s=duration_s)

    def add_measurements(self, measurements: tuple[Measurement, ...]) -> None:
        """Adds what was measured."""
        self.result = dataclasses.replace(self.result, measurements=measurements)

    def drop_simulated_times(self) -> None:
        """Drops times that contain work of the simulator, as of a host variant that launches."""
        self.result = dataclasses.replace(self.result, simulated=True, measurements=())
        self.add_note("not timed: the timed calls ran kernels in the simulator, which never times")

    def add_trace(self, take: Callable[[], Trace]) -> None:
        """Adds what one more execution did, or a note that says why nothing could record it."""
        try:
            trace = take()
        except TimerUnavailable as reason:
            self.add_note(f"no trace: {reason}")
            return
        self.result = dataclasses.replace(self.result, trace=trace)

    def passes(self, errors: Mapping[str, OutputError] | None = None) -> None:
        """Notes that a check found nothing wrong, and the errors of its outputs; a fault stays."""
        wrong = self.result.correctness is Correctness.INCORRECT
        self.result = dataclasses.replace(
            self.result,
            correctness=Correctness.INCORRECT if wrong else Correctness.PASSED,
            errors={**self.result.errors, **(errors or {})},
        )

    def leaves_unchecked(self, outputs: tuple[str, ...]) -> None:
        """Notes the declared outputs that nothing compared; with one, the result is not PASSED."""
        if outputs and self.result.correctness is not Correctness.INCORRECT:
            unchecked = Correctness.UNCHECKED
            self.result = dataclasses.replace(self.result, correctness=unchecked, unchecked=outputs)

    def fails(self, diagnosis: str, errors: Mapping[str, OutputError] | None = None) -> None:
        """Notes what is wrong, in words; `errors` as in `passes`."""
        self.result = dataclasses.replace(
            self.result,
            correctness=Correctness.INCORRECT,
            diagnosis=diagnosis,
            errors={**self.result.errors, **(errors or {})},
        )

    @contextmanager
    def noting_what_is_wrong(self) -> Iterator[None]:
        """Notes an `IncorrectError` that ends the block. We drop the times of what is wrong."""
        __tracebackhide__ = True
        try:
            yield
        except IncorrectError as error:
            self.diagnosis = error.diagnosis
            self.fails(error.diagnosis.message, error.errors)
            self.result = dataclasses.replace(self.result, measurements=(), trace=None)
            # Else, since Python 3.12, the error and the frame of `__exit__` hold each other and all frames
            # below: the test's objects would go when the collector runs, and not as the test ends.
            error.__traceback__ = None


ELSEWHERE = "the test works in a CUDA context of its own, where only scope='launch' can be measured"


@dataclass(frozen=True)
class TimedScope:
    """Says what is timed in one scope: a case's launch or its copies, or a plain test's call.

    Attributes:
        executions: what the timer takes.
        call: what observers are told of it.
        environment: the observers.
        cache: `cold` or `hot`.
        call_ns: its approximate time, in nanoseconds.
        traffic_bytes: declared bytes of the work.
        flops: declared operations of the work.
        inspect: checks what a call left that the main timer timed; None if it cannot be checked.
        count: samples of the main timer, or None to sample until the median is known.
        calls_a_sample: calls in each.
        elsewhere: whether it works in a CUDA context of the test's own, in which nothing of ours can run.
    """

    executions: Executions
    call: ObservedCall
    environment: Environment
    cache: str
    call_ns: float
    traffic_bytes: float | None = None
    flops: float | None = None
    inspect: Callable[[], None] | None = None
    count: int | None = None
    calls_a_sample: int = 1
    elsewhere: bool = False

    def by_timers(
        self, wanted: str, stream: Any, *, any_stream: bool, refuses_host_calls: bool = False
    ) -> list[Measurement]:
        """Measures on the device by the main timer and, if that tells more, by a second one beside it.

        Args:
            wanted: the timer, as in `--gpukern-timer`.
            stream: the timed stream, as a cuda.core stream.
            any_stream: whether the call's work may outlast the timed stream.
            refuses_host_calls: whether a call that puts nothing on the GPU raises, instead of being INVALID.

        Raises:
            NothingLaunched: the call puts nothing on the GPU, and that is refused.
            IncorrectError: a timed call left an output wrong.
        """
        scope = self.call.scope
        try:
            if scope == "kernel" and self.elsewhere:
                raise NothingLaunched(ELSEWHERE)
            found = measured_by(self.by, wanted, scope=scope, stream=stream, any_stream=any_stream)
        except NothingLaunched as reason:
            if refuses_host_calls:
                raise
            found = [not_of_the_device(self.by, stream, f"{reason}; {HOST_REMEDY}")]
        return [self.environment.gpu.observers.measured(self.call, found[0]), *found[1:]]

    def by(self, timer: Timer, *, beside: bool) -> Measurement:
        """Measures it by one timer, alone or beside the main one.

        Only a kernel that the device times is measured while other workers work on the host.
        """
        by_host = not timer_row(timer.name).device_timed
        gpu = self.environment.gpu
        with nullcontext() if self.call.scope == "kernel" and not by_host else gpu.timing_by_host():
            return self._by(timer, beside=beside, by_host=by_host)

    def _by(self, timer: Timer, *, beside: bool, by_host: bool) -> Measurement:
        rule = rule_beside(self.call_ns) if beside else rule_for(self.call_ns, by_host=by_host)
        return Sampler(
            self.executions,
            PerCall(timer, self.calls_a_sample) if self.calls_a_sample > 1 else timer,
            scope=self.call.scope,
            cache=self.cache,
            call_ns=self.call_ns,
            rule=rule if self.count is None else rule_of_rounds(self.count, rule, beside=beside),
            observing={}
            if self.elsewhere
            else self.environment.gpu.observers.observe(self.call, timer, beside=beside),
            inspect=None if beside else self.inspect,
            traffic_bytes=self.traffic_bytes,
            flops=self.flops,
            beside=beside,
        ).measure()
