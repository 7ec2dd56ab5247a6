"""Follows one test from its set-up to its teardown: what it measures, and what it finds out.

`MeasuredTest` says when the spine runs (`spine.py`). `GpuBenchmark` is what the test sees of it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from typing import Any, NoReturn

import pytest
from msgspec import structs

from pytest_gpukern.check.call_arguments import DeclarationError
from pytest_gpukern.check.check_call import GuardedArrays
from pytest_gpukern.check.diagnosis import diagnose_damage
from pytest_gpukern.check.verify import SeenOutputs, check_against_reference
from pytest_gpukern.findings.findings import findings_that_fail
from pytest_gpukern.gpu import runtime as cuda
from pytest_gpukern.gpu.libcuda import CudaError
from pytest_gpukern.gpu.simulator.launch import SimulatedLaunches
from pytest_gpukern.measure.observers import ObservedTest
from pytest_gpukern.measure.rounds import Rounds, arguments_made
from pytest_gpukern.problems.call_by_name import ProblemError, place_of, users_line
from pytest_gpukern.problems.cases import Case
from pytest_gpukern.run.call_subject import CallSubject, CallTarget, LoopSubject, result_of
from pytest_gpukern.run.case_subject import CaseSubject, why_not_rejected
from pytest_gpukern.run.spine import NO_CALL, Evidence, NotRunError, SubjectContext, run, settle
from pytest_gpukern.values.nearest import refusing_unknown
from pytest_gpukern.values.note import About, Note
from pytest_gpukern.values.result import Correctness, GateFailure, JsonDict, Result
from pytest_gpukern.values.stored import plain
from pytest_gpukern.values.untrusted_json import printable_lines

_UNPOISONED = "its call returned no array and declares no outputs, so nothing that it wrote was poisoned"


class Failed(pytest.fail.Exception):  # type: ignore[name-defined,misc]
    """Fails a test without a traceback; pytest shows notes beside one only, so its message takes them."""

    __module__ = "builtins"  # as of pytest's, so nobody sees a module
    evidence: Evidence | None = None

    def add_note(self, note: str, /) -> None:
        note = printable_lines(note)
        self.msg = f"{self}\n{note}"
        if self.evidence is not None and self.evidence.result.diagnosis:
            self.evidence.add(diagnosis=f"{self.evidence.result.diagnosis}\n{' '.join(note.split())}")


class MeasuredTest:
    """Follows one attempt at a test. The test itself sees only `GpuBenchmark`, which forwards to this.

    Attributes:
        sessions: the results of the test's other sessions, in the order measured.
        rejected: the broken case that it checked.
        verified: whether it compared anything itself, here or in the child session that ran it.
        gate_failures: why the gate failed the test, if nothing before it did.
        ended: whether its body came to its end.
        sent: whether a report has carried its result.
        guarded: its arrays between guard zones.
        seen: what the test's calls left in each of their outputs, until it is torn down.
    """

    def __init__(self, context: SubjectContext) -> None:
        self.environment = context.environment
        self.context = context
        self._is_ours, self._has_check = True, False
        self.evidence: Evidence | None = None
        self.sessions: tuple[Result, ...] = ()
        self.rejected: Case | None = None
        self.verified = False
        self.gate_failures: tuple[GateFailure, ...] = ()
        self.waits: JsonDict | None = None
        self.ended = False
        self._begun_to_observe = False
        self._observed: ObservedTest | None = None
        self.seen: SeenOutputs | None = None
        self.guarded = GuardedArrays(context.environment.backend)
        self._failed_with: str | None = None
        self.sent = False
        self._loading = ExitStack()
        self._example: object = None
        self._place = ""
        SimulatedLaunches.shares = False

    @property
    def result(self) -> Result | None:
        return None if self.evidence is None else self.evidence.result

    @result.setter
    def result(self, result: Result | None) -> None:
        self.evidence = None if result is None else Evidence(result)

    @property
    def diagnosis(self) -> str | None:
        """Says what is wrong with an INCORRECT result; None for any other."""
        if self.result is None or self.result.correctness is not Correctness.INCORRECT:
            return None
        return self.result.diagnosis or ""

    @property
    def wrong(self) -> str | None:
        """Says why the test must fail even if it goes on; None if nothing was found."""
        # Without a failure of ours, it is from the test's own `check`.
        return self._failed_with or (None if self.diagnosis is None else f"INCORRECT: {self.diagnosis}")

    def begin(self) -> None:
        """Starts to observe the test, and the machine code that it loads before its first call."""
        if self.environment.settings.benchmark:
            with self.environment.gpu.exclusive(), suppress(CudaError):  # whose test reports a lost context
                self.environment.gpu.observers.begin_test()
                self._begun_to_observe = True
        self._loading.enter_context(self.environment.gpu.loading_observed(begins=True))

    def stop_observing(self) -> None:
        """Stops watching the code that the test loads; code of its calls is still watched."""
        self._loading.close()

    def finish_observing(self, *, passed: bool, let_go: Callable[[], object]) -> Sequence[GateFailure]:
        """Looks at the device after the teardown; returns why the gate fails the test for what was found.

        If the body has not `passed`, its traceback may keep arrays; those do not count against the test.
        `let_go` drops what pytest still refers to.
        """
        if self._begun_to_observe:
            with self.environment.gpu.exclusive(), suppress(CudaError):
                self._observed = self.environment.gpu.observers.end_test(passed=passed, let_go=let_go)
                return findings_that_fail(self._observed.findings, self.environment.settings.fail_on)
        return ()

    def measure_call(self, target: CallTarget) -> CallSubject:
        """Checks and measures a call; returns the subject, which has what the first and last call returned.

        Skips the test if there is neither a GPU nor the simulator, fails it if the call is wrong.
        """
        self._begin_use()
        if self.environment.gpu.device is None and not self.context.times_host:
            pytest.skip(self.environment.gpu.why_no_gpu)
        subject_of = CallSubject if target.loop is None else LoopSubject
        subject = subject_of(target, self.context, self.guarded)
        self.seen = subject.seen
        self._is_ours, self._has_check = not target.runs_once, target.check is not None
        self.evidence = Evidence(subject.begin())
        try:
            run(subject, self.evidence, self.environment)
        except DeclarationError as error:
            self._fail(str(error))
        self._fail_where_incorrect()
        return subject

    def measure_case(self, case: Case) -> None:
        self._begin_use()
        self._run_case(case)
        self._fail_where_incorrect()

    def reject(self, case: Case) -> None:
        self.rejected = case
        self.stop_observing()
        evidence = self._run_case(case, rejects=True)
        self.evidence = None
        complaint = why_not_rejected(case, evidence.diagnosis)
        if complaint is not None:
            self._fail(complaint)

    def _run_case(self, case: Case, *, rejects: bool = False) -> Evidence:
        """Takes a case through the spine; skips the test if it cannot run here."""
        code = case.variant.prepare.__code__ if case.variant.prepare is not None else None
        self._place = place_of(code.co_filename, code.co_firstlineno) if code is not None else users_line()
        try:
            subject = CaseSubject(case, self.context, rejects=rejects)
            self.evidence = evidence = Evidence(subject.begin())  # it keeps what is found, whatever is raised
            run(subject, evidence, self.environment)
        except NotRunError as reason:
            self.evidence = None
            pytest.skip(reason.args[0])
        except ProblemError as error:
            self._fail(error.located, error.place)
        return evidence

    def verify(
        self, actual: Any, expected: Any, rtol: float | None, atol: float | None, *, expect_failure: bool
    ) -> None:
        """Compares an output with its reference, notes its error, and fails the test if it is wrong.

        With `expect_failure`, it fails the test if the output is right.
        """
        environment = self.environment
        if environment.gpu.has_gpu:
            cuda.runtime().synchronize()
        earlier = self.result.errors if self.result else {}
        check = check_against_reference(
            f"output {len(earlier) + 1}" if earlier else "output",
            actual,
            expected,
            rtol,
            atol,
            seen=self.seen,
            hashes=environment.gpu.measures,
            asks_what_else=self.evidence is not None,
            counts=not expect_failure,
        )
        self.verified = True
        name = f"{check.name} {len(earlier) + 1}" if check.name in earlier else check.name
        evidence, errors = self.evidence, {} if check.error is None else {name: check.error}
        if check.diagnosis is None:
            if evidence is not None:
                evidence.add_note(*map(Note, check.doubts))
                if check.counts:
                    evidence.passes(errors)
            if expect_failure:
                right = f"{name} is right, but verify(…, expect_failure=True) expects it to be wrong"
                self._fail(right, users_line())
        elif expect_failure and evidence is not None and (declared := evidence.result.declared) is not None:
            evidence.add(declared=structs.replace(declared, must_fail=declared.must_fail + 1))
        elif not expect_failure:
            wrong = check.diagnosis.message
            if evidence is None:
                wrong += "\n  nothing was called before this verify; call gpu_benchmark(kernel, …) first"
            else:
                evidence.fails(wrong, errors)
            self._fail(f"INCORRECT: {wrong}", users_line())

    def note_where_never_called(self) -> None:
        """Gives a test that measured nothing a row that says so, unless it only verifies or rejects."""
        declares = self.context.marker.outputs or self.context.marker.inout
        if self.evidence is None and self.rejected is None and (declares or not self.verified):
            self.evidence = Evidence(result_of(self.context))
            self.evidence.add_note(Note(NO_CALL))

    def settle(self, *, may_wait: bool = False) -> tuple[GateFailure, ...]:
        """Settles the test once its body has ended; returns why the gate fails it, if it does.

        If it `may_wait`, what is measured beside another commit may be left to the end of the run.
        """
        self.ended = True
        if self.evidence is None or self.wrong is not None:
            return ()
        diagnosis = None if self.seen is None or self._has_check else self.seen.unsettled()
        if diagnosis is None and self.guarded.held:
            diagnosis = diagnose_damage(self.guarded.damage(), "at the end of the test")
        if diagnosis is not None:
            self.evidence.fails(diagnosis.message)
            self._fail_where_incorrect()
        if self.seen is not None and not self._has_check and self.seen.never_compared:
            self.evidence.add(correctness=Correctness.UNCHECKED, unchecked=self.seen.never_compared)
        unpoisoned = self.seen is not None and self.seen.unpoisoned
        if unpoisoned and self.evidence.result.correctness is Correctness.PASSED:
            self.evidence.add_note(Note(_UNPOISONED, About.UNPOISONED))
        marker = self.context.marker
        if self.evidence.result.measurements:
            self.evidence.add(files=self.environment.files_of(self.context.test_file, marker.reads))
        expects_check = self._is_ours or bool(marker.outputs or marker.inout)
        settled = settle(
            self.evidence.result, self.environment, marker, expects_check=expects_check, may_wait=may_wait
        )
        if settled.waits:
            self.waits = {"threshold": settled.threshold, "expects_check": expects_check}
        self.evidence.result = settled.result
        self.sessions += settled.sessions
        return settled.failures

    def to_json(self) -> JsonDict:
        """Returns what the test has come to before its teardown, as plain JSON."""
        self.sent = True
        return {
            "result": plain(self.result),
            "sessions": plain(self.sessions),
            "gate_failures": plain(self.gate_failures),
            "rejected": self.rejected is not None,
            "waits": self.waits,
        }

    def torn_down_to_json(self) -> JsonDict:
        """Returns what observers saw of the test, once it is torn down, as plain JSON."""
        return {"observed": plain(self._observed), "gate_failures": plain(self.gate_failures)}

    def let_go(self) -> None:
        """Drops the arrays kept for `verify`, and the guarded ones."""
        self.seen = None
        if self.guarded.held:
            self.guarded.close()

    def _begin_use(self) -> None:
        self.stop_observing()
        control: Any = sys.modules.get("hypothesis.control")
        in_example = control is not None and control.currently_in_test_context()
        earlier, self._example = self._example, control.current_build_context() if in_example else None
        self._place = users_line() if self.evidence is None else self._place
        if self.evidence is None or (self._example is not earlier and not self.evidence.result.measurements):
            return
        several = "Hypothesis runs it for each example: omit --gpu-benchmark, or measure without @given"
        remedy = several if self._example is not earlier else "split the test, or parametrize it"
        raise RuntimeError(f"gpu_benchmark measures once per test, and {self._place} did: {remedy}")

    def _fail_where_incorrect(self) -> None:
        if self.diagnosis is not None:
            self._fail(f"INCORRECT: {self.diagnosis}")

    def _fail(self, message: str, place: str = "") -> NoReturn:
        """Fails the test, at its end again if it goes on; `place` is by default the line of the call."""
        place = place or self._place
        message = message if message.startswith(place) else f"{message}\n  at {place}"
        self._failed_with = message = printable_lines(message)  # pytest shows it as it is
        failed = Failed(message, pytrace=False)
        failed.evidence = self.evidence
        raise failed from None  # shown once


class GpuBenchmark:
    """Measures and verifies what one test launches; the value of the `gpu_benchmark` fixture.

    A test measures once: it calls the fixture, `pedantic`, `run` or `reject`. With neither a GPU nor the
    simulator the test is skipped there, unless only the host's clock times it. In the simulator, and without
    `--gpu-benchmark`, its calls are checked and not timed.
    """

    def __init__(self, test: MeasuredTest) -> None:
        self._test = test

    def __call__(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Calls `function` untimed, then measures it. Returns what its last untimed call returned.

        The first call compiles and loads; its time is reported apart. If the marker names `outputs`, or a
        call returns new arrays, we check up to three calls before timing and one after it. The device is
        synchronized around every sample, whatever library the function launches with. The measurement is
        INVALID if the call launches nothing. Timed by events alone, it is INVALID too if work on a
        non-blocking stream outlasts the default stream; CUPTI times such work.

        The test fails if the marker names an output that the call does not have or cannot write, or sets
        `determinism` without any.
        """
        return self._test.measure_call(CallTarget.repeated(function, args, kwargs)).last

    def pedantic(
        self,
        target: Callable[..., Any],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
        setup: Callable[[], Any] | None = None,
        teardown: Callable[..., Any] | None = None,
        rounds: int | None = None,
        warmup_rounds: int = 0,
        iterations: int = 1,
        *,
        check: Callable[..., Any] | None = None,
    ) -> Any:
        """Measures in rounds, or with fresh arguments for every call; takes what pytest-benchmark's takes.

        A kernel that updates in place needs only `setup` and `check` here, or the marker's `inout` without
        `pedantic`. With these two alone, `setup` makes arguments for a batch of calls ahead, and sampling
        ends once the median is known. With any other argument, each round is set up, called and torn down
        before the next begins.

        Args:
            target: the function to measure.
            args: its positional arguments, if `setup` makes none.
            kwargs: its keyword arguments, if `setup` makes none.
            setup: runs untimed before each call. It returns `(args, kwargs)`, a tuple of positional
                arguments, or nothing if `args` and `kwargs` are given.
            teardown: runs untimed after each round, with the same arguments.
            rounds: number of samples; by default as many as the median needs.
            warmup_rounds: untimed rounds before them.
            iterations: calls in a sample with a hot cache; with a cold one each sample is one call.
            check: `check(returned, *args, **kwargs)` raises if an untimed call was wrong, or returns False or
                what is wrong in words. It judges the calls before timing and the one after it.

        Returns:
            The value that the last untimed call returned.

        Raises:
            TypeError: `setup` and the test both give arguments, or `setup` or `check` returns something else.
            ValueError: a number is not whole or too small, or `setup` is combined with several iterations.
        """
        in_turn = teardown is not None or rounds is not None or warmup_rounds != 0 or iterations != 1
        if setup is not None and not (args or kwargs or in_turn):
            chosen = CallTarget.set_up(target, lambda: arguments_made(setup()), check)
        else:
            wanted = Rounds(target, args, kwargs or {}, setup, teardown, rounds, warmup_rounds, iterations)
            chosen = CallTarget.in_rounds(wanted, check)
        return self._test.measure_call(chosen).last

    @refusing_unknown
    def verify(
        self,
        actual: Any,
        expected: Any,
        rtol: float | None = None,
        atol: float | None = None,
        *,
        expect_failure: bool = False,
    ) -> None:
        """Compares an output with its reference, records the error, and fails the test if it is wrong.

        An element passes if ``|actual − expected| ≤ atol + rtol · |expected|``. By any bounds it passes if it
        is the reference rounded to NumPy's dtype of `actual`: no such number is nearer. NaN passes only where
        the reference is NaN. Without bounds we use `Tolerance.for_dtype` of the dtype of `actual`; its `atol`
        becomes at most a hundredth of the largest reference value. A note says if zeros or a lower precision
        would pass too, and if `actual` is narrower than all float arrays that the call was given.

        Args:
            actual: array on the device or the host, any shape; also of bfloat16 and float8.
            expected: reference of the same shape, in the same or a higher precision.
            rtol: relative bound; 0 if only `atol` is given.
            atol: absolute bound; 0 if only `rtol` is given.
            expect_failure: whether the output must be wrong; then a right one fails the test, and a wrong one
                does not count as compared. A test that catches the failure itself fails at its end.

        Raises:
            TypeError: `actual` is lazy or of an unknown class, or one of NumPy's subclasses or no numbers.
            ValueError: a bound is negative, not finite or a bool, the arrays share memory, `expected` is all
                NaN, or both are empty although no call was given an empty array.
        """
        self._test.verify(actual, expected, rtol, atol, expect_failure=expect_failure)

    def guarded(self, array: Any, name: str | None = None) -> Any:
        """Returns a copy of an array with a guard zone before and behind it, until the end of the test.

        A call that writes into a zone is INCORRECT, with the place, even if its values are right. We look
        after each untimed call, after the timed ones, and at the end of the test. A call that reads a zone
        gets NaN. Make the copy before the measured call, not inside it.

        Args:
            array: array of NumPy, or on the device of Numba, CuPy, PyCUDA or PyTorch. In Triton's interpreter
                it is a tensor on the host.
            name: the array's name in messages.

        Returns:
            An array of the same library, shape and dtype, in C order, whose memory is freed with the test.

        Raises:
            TypeError: it is no such array.
        """
        with self._test.environment.gpu.exclusive():
            return self._test.guarded.make(array, name, copied=True)

    def guarded_like(self, array: Any, name: str | None = None) -> Any:
        """Returns a guarded array like another, for a call to write.

        It holds a poison, and its zones differ from the zones that `guarded` makes. A kernel that copies one
        element too many would write a zone of a guarded copy into an equal zone, and nobody would see it.

        Args:
            array: has the same library, shape and dtype.
            name: the array's name in messages.

        Raises:
            TypeError: as for `guarded`.
        """
        with self._test.environment.gpu.exclusive():
            return self._test.guarded.make(array, name, copied=False)

    def run(self, case: Case) -> None:
        """Checks a case, measures it if measuring is on, checks it again, and fails the test if it is wrong.

        The test is skipped, with the reason, if the case cannot run here.
        """
        self._test.measure_case(case)

    def reject(self, case: Case) -> None:
        """Fails the test unless the checker rejects this deliberately broken case for its declared fault."""
        self._test.reject(case)
