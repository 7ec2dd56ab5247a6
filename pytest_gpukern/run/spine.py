"""Runs what a test measures: checks it, measures it, and checks it again. Read this file first."""

from __future__ import annotations

import dataclasses
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from pytest_gpukern.check.diagnosis import IncorrectError
from pytest_gpukern.gpu.kernel_facts import autotuned, kernel_facts, without_hash
from pytest_gpukern.gpu.simulator.launch import Launches
from pytest_gpukern.timers.timer import TimerUnavailable
from pytest_gpukern.values.phases import phase
from pytest_gpukern.values.result import Correctness, Result

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from contextlib import AbstractContextManager

    from pytest_gpukern.check.diagnosis import Diagnosis
    from pytest_gpukern.run.environment import Environment
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


def run(subject: Subject, found: Found, environment: Environment) -> None:
    """Checks a subject, measures it if that is asked for, and checks it again.

    Faults in its outputs are noted in `found`, and not raised. This process holds the device all the while;
    what is timed on the host has the host to itself. Only `measure` is timed. Host work for a later subject
    belongs before `prepare`, or beside `measure` if it disturbs no time.

    Raises:
        NotRunError: it cannot run here, with the reason.
        NothingLaunched: it puts nothing on the GPU, and may be measured elsewhere.
    """
    __tracebackhide__ = True
    gpu = environment.gpu
    with (
        gpu.exclusive(),
        gpu.host.busy(),
        found.noting_what_is_wrong(),
        phase("preparing"),
        subject.prepare(),
    ):
        with phase("checking"):
            subject.check(found)
        if subject.is_timed:
            simulated = Launches.made
            with gpu.timing(on_gpu=found.result.case.on_gpu), phase("timing"):
                subject.measure(found)
            if Launches.made != simulated:
                found.drop_simulated_times()
            with phase("checking"):
                subject.recheck(found)
            found.result = with_facts(found.result, environment)
            found.add_note(*gpu.take_late_warnings())  # if nothing ran on a GPU


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


def with_facts(result: Result, environment: Environment) -> Result:
    """Returns a measured result with the facts of its kernels, and with the best that the device does."""
    device = environment.gpu.device
    if not result.case.on_gpu or device is None or not environment.gpu.has_gpu:
        return result
    from pytest_gpukern.gpu.runtime import at_home
    from pytest_gpukern.timers.cupti.machine_code import machine_code

    seen = [measurement for measurement in result.measurements if measurement.work]
    of_kernels = [measurement for measurement in seen if measurement.scope == "kernel"] or seen
    with at_home():
        code, ceilings, canaries = machine_code(), environment.gpu.ceilings, environment.gpu.canaries
    kernels = kernel_facts(
        of_kernels[0].work if of_kernels else (),
        device.compute_capability,
        code.sha256 if code is not None else None,
    )
    unhashed = without_hash(kernels, code.refused if code is not None else "CUPTI cannot be used")
    return dataclasses.replace(
        result,
        notes=(*result.notes, *environment.gpu.take_late_warnings(), *unhashed),
        kernels=kernels,
        autotuned=autotuned(kernels),
        ceilings=ceilings.to_json() if ceilings is not None else {},
        canaries=dict(canaries),
    )
