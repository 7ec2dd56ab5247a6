"""Makes a launch and checks everything about it, of a variant or of a test's own call. `CHECKS` says what."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable

from pytest_gpukern.backends.foreign_array import leaves
from pytest_gpukern.check.diagnosis import (
    Diagnosis,
    Fault,
    IncorrectError,
    Launch,
    Made,
    diagnose_aliasing,
    diagnose_damage,
    diagnose_launches,
    diagnose_written,
)
from pytest_gpukern.gpu.live_threads import running_threads, still_running, threads_left, wait_for
from pytest_gpukern.gpu.simulator.errors import WroteOutside
from pytest_gpukern.values.note import Note

_MOST_REPEATED = 200
REPEATED_NS = 1.5e7
"""Most launches that we compare by hash alone, and their time; a fault in one of 64 is found with 96 %."""
_MAY_COME_LATE = {Fault.NOT_WRITTEN, Fault.WRONG_VALUES, Fault.UNEXPECTED_NAN, Fault.STALE_RESULT}
"""Faults that a thread explains if the launch has left it at work: it may write the output later."""


def shares_memory(launch: Launch, _: Made) -> Diagnosis | None:
    """Finds outputs that lie in an input or in each other."""
    apart = launch.returns_apart
    return diagnose_aliasing(launch.results, launch.inputs, {}, launch.sharing_remedy, apart=apart)


def out_of_bounds(launch: Launch, _: Made) -> Diagnosis | None:
    """Finds what was written into guard zones."""
    return diagnose_damage(launch.damage(), launch.place)


def unwritten(launch: Launch, _: Made) -> Diagnosis | None:
    """Looks at outputs without a reference: finds elements that hold a poison, or changed and must not."""
    at = f", {launch.place}" if launch.place else ""
    return _first(diagnose_written(written, at) for written in launch.written())


def misses_its_reference(launch: Launch, _: Made) -> Diagnosis | None:
    """Finds elements outside the tolerance, unwritten ones, and NaN, in outputs that have a reference."""
    return _first(launch.compared())


def works_on(launch: Launch, made: Made) -> Diagnosis | None:
    """Finds outputs that threads change after the launch has returned; threads that do not are noted."""
    if not made.threads:
        return None
    wait_for(made.threads)
    launch.synchronize()
    now = launch.bits()
    late = [name for name, bits in made.bits.items() if now[name] != bits]
    running = still_running(list(made.threads), launch.by)
    if late:
        return _left_to_threads(running, f"{', '.join(late)} changed after {launch.by} had returned")
    if any(thread.is_alive() for thread in made.threads):
        launch.notes[Note(running)] = None
    return None


def writes_inputs(launch: Launch, made: Made) -> Diagnosis | None:
    """Finds inputs that the launch, or its preparation, has changed."""
    now = launch.digests() if made.digests else {}
    changed = [name for name in now if now[name] != made.digests[name]]
    if not changed:
        return None
    text = f"{launch.by} changed {', '.join(changed)}{launch.modified_remedy}"
    return Diagnosis.of(Fault.INPUT_MODIFIED, text)


def returns_the_same_memory(launch: Launch, _: Made) -> Diagnosis | None:
    """Finds results in memory that an earlier launch returned, too.

    It comes behind the values, since shared memory more often explains a stale result than the other way
    round.
    """
    return diagnose_aliasing(launch.results, {}, launch.held, launch.sharing_remedy, apart=False)


def differs(launch: Launch, _: Made) -> Diagnosis | None:
    """Finds launches on the same inputs that differ bit by bit although they are declared not to."""
    return _first(
        diagnose_launches(name, bits, launch.determinism) for name, bits in launch.seen_bits.items()
    )


CHECKS = (
    shares_memory,
    out_of_bounds,
    unwritten,
    misses_its_reference,
    works_on,
    writes_inputs,
    returns_the_same_memory,
    differs,
)
"""All checks of a launch, in this order; a further one is a file and a row.

Each takes the launch and what it made, and returns what is wrong, or None. They also look at what timed
launches left: `made` is empty then.
"""


def checked_launch(launch: Launch, *, poisoned: bool = True) -> Made:
    """Launches once, and has every check look at it.

    Unless they are `poisoned`, the outputs still hold what an earlier launch left.

    Raises:
        IncorrectError: something is wrong; it holds the first fault.
    """
    digests = launch.digests_before()
    launch.fill(poisoned=poisoned)
    launch.synchronize()  # an error of earlier work must not count for this launch
    threads, first = running_threads(), launch.first_call_ns is None
    start = time.perf_counter_ns()
    try:
        returned = launch.run()
    except WroteOutside as error:
        diagnosis = diagnose_damage(error.args, launch.place)
        assert diagnosis is not None
        raise IncorrectError(diagnosis) from None
    took_ns = float(time.perf_counter_ns() - start)
    if first:
        launch.first_call_ns = took_ns
    launch.shortest_call_ns = min(took_ns, launch.shortest_call_ns or took_ns)
    left = tuple(threads_left(threads, first=first))
    for name, value in leaves("returned", returned):
        undone = launch.why_lazy(value)
        if undone is not None:
            raise IncorrectError(Diagnosis.of(Fault.WRONG_TYPE, f"{launch.by} returned {undone}", name))
    launch.take(returned)
    made = Made(returned, left, launch.bits() if left else {}, digests)
    _judge(launch, made)
    return made


def check_left(launch: Launch) -> None:
    """Checks what the last timed launch left; raises IncorrectError for the first fault."""
    launch.synchronize()
    launch.take_timed()
    _judge(launch, Made(None))


def _judge(launch: Launch, made: Made) -> None:
    """Raises IncorrectError for the first check that finds something."""
    for check in CHECKS:
        diagnosis = check(launch, made)
        if diagnosis is None:
            continue
        if made.threads and diagnosis.fault in _MAY_COME_LATE:
            diagnosis = _left_to_threads(still_running(list(made.threads), launch.by), diagnosis.message)
        raise IncorrectError(diagnosis, launch.errors)


def repeat_while_steady(
    launch: Launch, again: Callable[[], object], *, most: int = _MOST_REPEATED, for_ns: float = math.inf
) -> None:
    """Launches again and again while outputs that had the same bits so far keep them: a fault may be rare.

    A fault in one of N launches is found with a chance of 1 − (1 − 1/N) ** launches. `for_ns` limits how
    long we go on.
    """
    steady, ends = set(launch.steady), time.perf_counter_ns() + for_ns
    for _ in range(most if steady else 0):
        again()
        if not steady <= set(launch.steady) or time.perf_counter_ns() > ends:
            return


def worth_repeating(call_ns: float) -> int:
    """Returns how many launches of so long we compare by hash alone."""
    return int(min(_MOST_REPEATED, REPEATED_NS / max(1.0, call_ns)))


def _first(diagnoses: Iterable[Diagnosis | None]) -> Diagnosis | None:
    return next(filter(None, diagnoses), None)


def _left_to_threads(running: str, wrong: str) -> Diagnosis:
    remedy = "a launch must do its own work, or join the threads that do it"
    return Diagnosis(Fault.STILL_RUNNING, f"{running}; {remedy}\n{wrong}")
