"""Follows one test from its set-up to its teardown: what it measures, and what it finds out."""

from __future__ import annotations

import time
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING, Any, NoReturn

import pytest

from pytest_gpukern.check.call_arguments import DeclarationError
from pytest_gpukern.check.diagnosis import IncorrectError
from pytest_gpukern.check.guarded_arrays import GuardedArrays
from pytest_gpukern.check.verify import check_against_reference
from pytest_gpukern.findings.findings import findings_that_fail
from pytest_gpukern.problems.call_by_name import ProblemError
from pytest_gpukern.run.call_subject import CallSubject, CallTarget, LoopSubject, result_of, timed_by_host
from pytest_gpukern.run.case_subject import CaseSubject, refuse_to_reject, why_not_rejected
from pytest_gpukern.run.settle import NO_CALL, settle
from pytest_gpukern.run.spine import Found, NotRunError, run
from pytest_gpukern.values.phases import phase
from pytest_gpukern.values.result import Correctness

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from pytest_gpukern.check.check_call import SeenOutputs
    from pytest_gpukern.measure.observers import ObservedTest
    from pytest_gpukern.problems.cases import Case
    from pytest_gpukern.run.environment import Environment
    from pytest_gpukern.run.spine import SubjectContext
    from pytest_gpukern.values.result import GateFailure, Result


_WENT_ON = "the test caught this and went on; use verify(…, expect_failure=True) for an expected failure"


class MeasuredTest:
    """Follows one attempt at a test. The test itself sees only `GpuBenchmark`, which forwards to this.

    Args:
        context: the test and its run.
        begun_s: when its set-up began, by the monotonic clock.
        replaceable: whether another process takes over if this one has lost its CUDA context.

    Attributes:
        sessions: the results of the test's other sessions, in the order measured.
        rejected: the broken case that it checked.
        verified: whether it compared anything itself, here or in the child session that ran it.
        gate_failures: why the gate failed the test, if nothing before it did.
        ended: whether its body came to its end.
        observed: what observers see of the test from its set-up to its teardown.
        guarded: the test's arrays between guard zones.
        seen: what the test's calls left in each of their outputs, until it is torn down.
        spent_s: phase → seconds spent so far.
    """

    def __init__(self, context: SubjectContext, *, begun_s: float, replaceable: bool = False) -> None:
        self.environment = context.environment
        self.context = context
        self._begun_s = begun_s
        self._replaceable = replaceable
        self._is_ours, self._has_check = True, False
        self.found: Found | None = None
        self.sessions: tuple[Result, ...] = ()
        self.rejected: Case | None = None
        self.verified = False
        self.gate_failures: tuple[GateFailure, ...] = ()
        self.ended = False
        self.observed = ObservedFromOutside(context.environment)
        self.guarded = GuardedArrays(context.environment.libraries.backend)
        self.seen: SeenOutputs | None = None
        self.spent_s: dict[str, float] = {}
        self._failed_with: str | None = None
        self._loading = ExitStack()

    @property
    def result(self) -> Result | None:
        """Returns what the test has found so far; None before anything ran."""
        return None if self.found is None else self.found.result

    @result.setter
    def result(self, result: Result | None) -> None:
        self.found = None if result is None else Found(result)

    def begin(self) -> None:
        """Starts to observe the test, and the machine code that it loads before its first call."""
        self.observed.begin()
        self._loading.enter_context(self.environment.gpu.loading_observed(begins=True))

    def stop_observing(self) -> None:
        """Stops watching the code that the test loads; that of its calls is still watched."""
        self._loading.close()

    def measure_call(self, target: CallTarget) -> CallSubject:
        """Checks and measures a call; returns the subject, which has what the first and last call returned.

        Skips the test if there is neither a GPU nor the simulator, fails it if the call is wrong.
        """
        __tracebackhide__ = True  # a skip is shown at the line of the test that asked
        self._begin_use()
        if self.environment.gpu.device is None and not timed_by_host(self.context):
            pytest.skip(self.environment.gpu.why_no_gpu)
        subject_of = CallSubject if target.loop is None else LoopSubject
        subject = subject_of(target, self.context, self.guarded)
        self.seen = subject.seen
        self._is_ours, self._has_check = not target.runs_once, target.check is not None
        self.found = Found(subject.begin())
        try:
            run(subject, self.found, self.environment)
        except DeclarationError as error:
            self._fail(str(error))
        self._fail_where_incorrect()
        return subject

    def measure_case(self, case: Case) -> None:
        """Checks and measures a case; skips the test if it cannot run here, fails it if it is wrong."""
        __tracebackhide__ = True
        self._begin_use()
        try:
            subject = CaseSubject(case, self.context)
            found = Found(subject.begin())
            run(subject, found, self.environment)
        except NotRunError as reason:
            pytest.skip(str(reason))
        except ProblemError as error:
            self._fail(error.located)
        self.found = found
        self._fail_where_incorrect()

    def reject(self, case: Case) -> None:
        """Fails the test unless the checker rejects this broken case for its declared fault."""
        __tracebackhide__ = True
        self.rejected = case
        self.stop_observing()
        try:
            refuse_to_reject(case, replaceable=self._replaceable)
            subject = CaseSubject(case, self.context, rejects=True)
            found = Found(subject.begin())
            run(subject, found, self.environment)
        except NotRunError as reason:
            pytest.skip(str(reason))
        except ProblemError as error:
            self._fail(error.located)
        complaint = why_not_rejected(case, found.diagnosis)
        if complaint is not None:
            self._fail(complaint)

    def verify(
        self, actual: Any, expected: Any, rtol: float | None, atol: float | None, *, expect_failure: bool
    ) -> None:
        """Compares an output with its reference, notes its error, and fails the test if it is wrong.

        With `expect_failure`, it fails the test if the output is right.
        """
        __tracebackhide__ = True
        environment = self.environment
        if environment.gpu.has_gpu:
            from pytest_gpukern.gpu.runtime import runtime

            runtime().synchronize()
        errors = self.result.errors if self.result else {}
        with phase("checking"):
            check = check_against_reference(
                f"output {len(errors) + 1}" if errors else "output",
                actual,
                expected,
                rtol,
                atol,
                seen=self.seen,
                hashes=environment.gpu.measures,
                asks_what_else=self.found is not None,
            )
        self.verified = True
        name = f"{check.name} {len(errors) + 1}" if check.name in errors else check.name
        wrong = None if check.diagnosis is None else check.diagnosis.message
        if self.found is not None and wrong is None:
            if check.loose is not None:
                self.found.add_note(check.loose)
            self.found.passes({} if check.error is None else {name: check.error})
        elif self.found is not None and expect_failure:
            self.found.passes()
        elif self.found is not None and wrong is not None:
            self.found.fails(wrong, {} if check.error is None else {name: check.error})
        if wrong is not None and not expect_failure:
            self._fail(f"INCORRECT: {wrong}")
        if wrong is None and expect_failure:
            self._fail(f"{name} is right, but verify(…, expect_failure=True) expects it to be wrong")

    def note_where_never_called(self) -> None:
        """Gives a test that measured nothing a row that says so, unless it only verifies or rejects."""
        declares = self.context.marker.outputs or self.context.marker.inout
        if self.found is None and self.rejected is None and (declares or not self.verified):
            self.found = Found(result_of(self.context))
            self.found.add_note(NO_CALL)

    def settle(self) -> tuple[GateFailure, ...]:
        """Settles the test once its body has ended; returns why the gate fails it, if it does.

        Fails it if something wrong did not end its body, as under a bare `except:`.
        """
        self.ended = True
        wrong = self._failed_with
        if wrong is None and self.result is not None and self.result.correctness is Correctness.INCORRECT:
            wrong = f"INCORRECT: {self.result.diagnosis}"  # from the test's own `check`
        if wrong is not None:
            pytest.fail(f"{wrong}\n  {_WENT_ON}", pytrace=False)
        if self.found is None:
            return ()
        diagnosis = None if self.seen is None else self.seen.unsettled()
        try:
            self.guarded.check("at the end of the test")
        except IncorrectError as error:
            diagnosis = diagnosis or error.diagnosis
        if diagnosis is not None:
            self.found.fails(diagnosis.message)
            self._fail_where_incorrect()
        if self.seen is not None and not self._has_check:
            self.found.leaves_unchecked(self.seen.never_compared)
        self.found.add_duration(time.monotonic() - self._begun_s)
        marker = self.context.marker
        expects_check = self._is_ours or bool(marker.outputs or marker.inout)
        with phase("judging"):
            settled = settle(self.found.result, self.environment, marker, expects_check=expects_check)
        self.found.result = settled.result
        self.sessions += settled.sessions
        return settled.failures

    def let_go(self) -> None:
        """Drops the arrays kept for `verify`, and the guarded ones."""
        self.seen = None
        self.guarded.close()

    def _begin_use(self) -> None:
        self.stop_observing()
        if self.found is not None:
            raise RuntimeError("gpu_benchmark measures once per test: split the test, or parametrize it")

    def _fail_where_incorrect(self) -> None:
        __tracebackhide__ = True
        result = self.result
        if result is not None and result.correctness is Correctness.INCORRECT:
            self._fail(f"INCORRECT: {result.diagnosis}")

    def _fail(self, message: str) -> NoReturn:
        """Fails the test, at its end again if it goes on."""
        __tracebackhide__ = True
        self._failed_with = message
        raise pytest.fail.Exception(message, pytrace=False) from None  # shown once


class ObservedFromOutside:
    """Holds what observers see of one test; nothing unless we measure.

    Args:
        environment: the device, its observers, and what fails a test.
    """

    def __init__(self, environment: Environment) -> None:
        self._environment = environment
        self._begun = False
        self.found: ObservedTest | None = None
        """What observers found, after the teardown."""

    def begin(self) -> None:
        """Begins before the test; what wider fixtures have made already exists."""
        if self._environment.settings.benchmark:
            with self._environment.gpu.exclusive(), _context_may_be_lost(), phase("observing"):
                self._environment.gpu.observers.begin_test()
                self._begun = True

    def finish(self, *, passed: bool, let_go: Callable[[], object]) -> Sequence[GateFailure]:
        """Ends after the teardown; returns why the gate fails the test for what was found.

        If the body has not `passed`, its traceback may keep arrays; those do not count against the test.
        `let_go` drops what pytest still refers to.
        """
        settings = self._environment.settings
        if not self._begun:
            return ()
        with self._environment.gpu.exclusive(), _context_may_be_lost(), phase("observing"):
            self.found = self._environment.gpu.observers.end_test(passed=passed, let_go=let_go)
        return findings_that_fail(self.found.findings if self.found else (), settings.fail_on)


@contextmanager
def _context_may_be_lost() -> Iterator[None]:
    """Ignores CUDA's errors after a kernel has destroyed the context: its own test reports that."""
    from pytest_gpukern.gpu.libcuda import CudaError

    with suppress(CudaError):
        yield
