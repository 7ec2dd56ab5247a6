"""Measures unchanged calls on an idle and on a busy host, and replays what the gate makes of them.

Makes the figures of "Host times beside other programs" in docs/explanation/evidence-log.md, and those of
`pytest_gpukern.measure.host_load`. `python docs/evidence/busy_host.py record FILE` measures for ten minutes.
`… replay FILE` needs no idle machine. A session is a process that is forked before it starts threads. Loads
are Python processes that loop, or add to 64 MB arrays. Idle sessions have priority over all others (nice −20,
as root), and so count as undisturbed.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_gpukern.gate.comparability import Conditions, SessionTime
from pytest_gpukern.gate.judge import Basis, Paired, confirm, judge
from pytest_gpukern.measure.host_load import LEAST, LOAD, LOOP, MOST, OTHERS_SHARE, STALLED_NS, UNFAIR
from pytest_gpukern.values.result import Measurement, Summary
from pytest_gpukern.values.verdict_table import VerdictKind

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pytest_gpukern.gate.change import Pair
    from pytest_gpukern.values.result import Verdict

SEED = 20261128
RUNS = 200
THRESHOLD = 0.02
FIGURES = ("ns", "low_ns", "high_ns", OTHERS_SHARE, LEAST, MOST, LOOP)
"""What is recorded of a time, in this order; None for what is not known."""
IDLE = "idle"
LOOPS, ADDS = (
    "while True: pass",
    "import numpy as np; a = np.ones(8_000_000)\nwhile True: np.add(a, 1.0, out=a)",
)
BESIDE = {IDLE: [], "2 loops": [LOOPS] * 2, "4 both": [LOOPS, ADDS] * 2, "6 loops": [LOOPS] * 6}
"""Load → programs beside each of ten sessions."""
_HERE = Conditions(1, "this-cpu")
_KEY = ("end_to_end", "host", "hot")

Sessions = dict[str, list[dict[str, list[Any]]]]
"""Load → sessions, each with case → `FIGURES`."""


def measured(figures: Sequence[Any], factor: float = 1.0) -> Measurement:
    """Returns a recorded time, with as many times the work, of a host with up to eight CPUs."""
    ns, low, high, share, least, most, loop = (figure or 0.0 for figure in figures)
    shared_ns = (ns * factor * (1 - share) - STALLED_NS) / UNFAIR  # as the observer has it
    least = max(least * factor, shared_ns)
    scaled = {LEAST: least, MOST: most * factor, OTHERS_SHARE: share, LOOP: loop}
    seen = {name: value for name, value in scaled.items() if value > 0}
    summary = Summary(ns * factor, low * factor, high * factor, 12)
    return Measurement(*_KEY, 1, summary, jitter_ns=100.0, observations={LOAD: seen})


def by_record(record: Sequence[Measurement], fresh: Sequence[Measurement]) -> Verdict:
    """Judges the first new time, and confirms a suspicion by the two others."""
    basis = Basis([SessionTime(old, _HERE) for old in record], _HERE, THRESHOLD)
    verdict = judge(fresh[:1], basis)
    return confirm(verdict, fresh[1:], basis) if verdict.suspected else verdict


def by_pairs(pairs: Sequence[Pair]) -> Verdict:
    """Judges four pairs, and confirms a suspicion by the eight others."""
    verdict = judge(pairs[:4], Paired(THRESHOLD))
    return confirm(verdict, pairs[4:], Paired(THRESHOLD)) if verdict.suspected else verdict


def replay(sessions: Sessions, case: str, factor: float, how: str, runs: int = RUNS) -> Counter[VerdictKind]:
    """Returns how often each verdict came of so many runs, whose sessions are drawn.

    Args:
        sessions: from `record`.
        factor: how many times the work the new times have.
        how: `idle` or `busy` for a record of five such sessions, `pairs` for two revisions on a busy host.
    """
    rng = random.Random(f"{SEED} {case} {factor} {how}")
    found: Counter[VerdictKind] = Counter()
    times = {load: [session[case] for session in of] for load, of in sessions.items()}
    for _ in range(runs):
        load = times[rng.choice([name for name in times if name != IDLE])]
        if how == "pairs":
            places = [rng.randrange(len(load) - 1) for _ in range(12)]
            turns = [rng.sample((load[place], load[place + 1]), 2) for place in places]
            verdict = by_pairs([(measured(base), measured(head, factor)) for base, head in turns])
        else:
            drawn = rng.sample(load, 8)
            old = rng.sample(times[IDLE], 5) if how == IDLE else drawn[3:]
            verdict = by_record(list(map(measured, old)), [measured(of, factor) for of in drawn[:3]])
        found[verdict.kind] += 1
    return found


def cases() -> dict[str, Callable[[], object]]:
    """Returns calls by name; those in several threads begin with `threads`."""
    import numpy as np
    from numba import njit, prange

    @njit(cache=True)
    def work(x: float, count: int) -> float:
        total = 0.0
        for _ in range(count):
            x = x * 1.0000001 + 1e-9
            total += x
        return total

    @njit(parallel=True, cache=True)
    def parallel(count: int) -> float:
        total = 0.0
        for number in prange(64):
            total += work(1.0 + number, count // 64)
        return total

    def loop(count: int) -> int:
        total = 0
        for number in range(count):
            total += number * number % 7
        return total

    rng = np.random.default_rng(SEED)
    small, large, out = rng.random(60_000), rng.random(4_000_000), np.zeros(4_000_000)
    order, square = rng.permutation(4_000_000), rng.random((700, 700))
    return {
        "Python 10 µs": lambda: loop(300),
        "Python 3 ms": lambda: loop(70_000),
        "Python 60 ms": lambda: loop(1_500_000),
        "dicts 3 ms": lambda: sum(map(len, {i: [i, str(i)] for i in range(20_000)}.values())),
        "add 15 µs": lambda: np.add(small, small, out=out[:60_000]),
        "sort 1 ms": lambda: np.sort(large[:200_000]),
        "exp 3 ms": lambda: np.exp(large[:400_000]),
        "add 2 ms": lambda: np.add(large, out, out=out),
        "gather 30 ms": lambda: large[order],
        "Numba 70 µs": lambda: work(1.0, 40_000),
        "threads 80 µs": lambda: parallel(100_000),
        "threads 20 x 16 µs": lambda: [parallel(20_000) for _ in range(20)],
        "threads 2 ms": lambda: parallel(2_000_000),
        "threads 25 ms": lambda: parallel(30_000_000),
        "threads matmul": lambda: square @ square,
    }


def session(calls: Mapping[str, Callable[[], object]]) -> dict[str, list[Any]]:
    """Times all calls as a test does, each beside an observer of the load."""
    from pytest_gpukern.measure.measure import Repeated, Sampler, rule_for, warm_up
    from pytest_gpukern.measure.observers import OBSERVERS, ObservedCall, Observers
    from pytest_gpukern.timers.host import HostTimer

    observers, found = Observers(None, {LOAD: OBSERVERS[LOAD]}), {}  # type: ignore[arg-type]
    observers.begin_test()
    for name, call in calls.items():
        call_ns = warm_up(call, lambda: None, by_host=True).settled_ns
        timer, rule = HostTimer(lambda: None), rule_for(call_ns, by_host=True)
        looking = observers.observe(ObservedCall(on_gpu=False), timer)
        timed = Sampler(Repeated(call), timer, *_KEY[::2], call_ns, rule, looking).measure()
        seen = [timed.seen(LOAD, figure) for figure in FIGURES[3:]]
        if os.getpriority(os.PRIO_PROCESS, 0) < 0:
            seen[:3] = 0.0, None, None
        known = [timed.summary.median_ns, timed.summary.low_ns, timed.summary.high_ns, *seen]
        found[name] = [value and float(f"{value:.4g}") for value in known]
    return found


def record() -> Sessions:
    """Measures all sessions; idle ones first."""
    calls, found = cases(), Sessions()
    own = os.getpriority(os.PRIO_PROCESS, 0)
    for name in ("Numba 70 µs", "threads 80 µs"):
        _in_a_fork(lambda name=name: {name: [calls[name]() and 0]})  # type: ignore[misc]
    for load, programs in BESIDE.items():
        os.setpriority(os.PRIO_PROCESS, 0, own)
        beside = [subprocess.Popen([sys.executable, "-c", text]) for text in programs]
        try:
            time.sleep(2)  # until they have started
            os.setpriority(os.PRIO_PROCESS, 0, own if beside else -20)
            found[load] = [_in_a_fork(lambda: session(calls)) for _ in range(10)]
        finally:
            for program in beside:
                program.kill()
                program.wait()
    return found


def _in_a_fork(work: Callable[[], dict[str, list[Any]]]) -> dict[str, list[Any]]:
    ours, theirs = multiprocessing.Pipe(duplex=False)
    process = multiprocessing.get_context("fork").Process(target=lambda: theirs.send(work()))
    process.start()
    found: dict[str, list[Any]] = ours.recv()
    process.join()
    return found


def main(command: str, file: str) -> None:
    path = Path(file)
    if command == "record":
        path.write_text(json.dumps(record()), encoding="utf-8")
    sessions = json.loads(path.read_text(encoding="utf-8"))
    for how in (IDLE, "busy", "pairs"):
        for case in sessions[IDLE][0]:
            for factor in (1.0, 1.3, 302.0):
                found = replay(sessions, case, factor, how)
                print(how, case, f"x{factor:g}", {kind.value: count for kind, count in found.items()})


if __name__ == "__main__":
    main(*sys.argv[1:])
