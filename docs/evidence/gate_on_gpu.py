"""Has the gate judge real kernels, unchanged and with a little more work, and other tools beside it.

Makes the figures of "The gate, on a GPU" in docs/explanation/evidence-log.md:

- `python docs/evidence/gate_on_gpu.py judge [FILE]` judges recorded sessions, by default those of an H200 in
  tests/data. It needs no GPU.
- `python docs/evidence/gate_on_gpu.py measure FILE` records 40 sessions of this machine's GPU, each in a
  fresh process, and judges them. That takes about four minutes. Every fourth session asks NVBench, too.

A trial takes five sessions for the record, one that is judged against it, and two fresh ones that confirm a
suspicion. In order of time, the first five are the record, every later session is judged, and the two after
it confirm. After the last comes the first behind the record. Drawn trials choose sessions at random for each
part. They overlap, so they are no additional evidence: they show how much depends on the choice.

Two other tools judge the same sessions by their own rules and data:

- pytest-benchmark with `--benchmark-compare-fail=median:X%` fails where current ÷ stored · 100 − 100 > X
  (`PercentageRegressionCheck` in its utils.py). It stores one run, by default the newest: here the last
  session of the record. Its data are wall times until the device is idle.
- NVBench's compare script by means (`python/scripts/nvbench_compare_legacy.py` in its repository) compares
  the relative change of the mean with the smaller of both relative standard deviations: SAME if
  |change| ≤ deviation, else FAST if it is negative, else SLOW. It has no threshold and no second look: every
  session that ran it is judged against every earlier one.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import itertools
import json
import random
import statistics
import subprocess
import sys
from collections import Counter
from contextlib import ExitStack, nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
from gate_kernels import GateCase, GateKernels, gate_cases, in_session_order
from rivals import NVBENCH, run_nvbench, wall_clock

from pytest_gpukern.gate.comparability import Conditions, SessionTime
from pytest_gpukern.gate.judge import Basis, confirm, judge
from pytest_gpukern.gate.spread import shared_spread, spread_key
from pytest_gpukern.gpu.runtime import runtime
from pytest_gpukern.gpu.simulator.switch import SimulatorState
from pytest_gpukern.measure.device_clocks import CLOCKS
from pytest_gpukern.measure.measure import Repeated, Sampler, rule_for, warm_up
from pytest_gpukern.measure.observers import ObservedCall
from pytest_gpukern.run.device_session import DeviceSession
from pytest_gpukern.run.environment import Environment
from pytest_gpukern.timers.timer import TimerUnavailable, open_timer
from pytest_gpukern.values.result import Measurement, Summary
from pytest_gpukern.values.settings import Settings
from pytest_gpukern.values.timer_table import auto_timers
from pytest_gpukern.values.verdict_table import VerdictKind

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pytest_gpukern.values.result import Verdict

RECORDED = Path(__file__).parents[2] / "tests/data/gate-h200.json"
SESSIONS = 40
RECORD, FRESH = 5, 2
DRAWS = 1000
SEED = 20261120
THRESHOLDS = {0.005: 0.0025, 0.01: 0.005, 0.02: 0.01, 0.05: 0.02}
"""Share of additional work → threshold at which it has to be caught."""
DEFAULT_THRESHOLD = 0.02
LOWER_CLOCK, CLOCK_THRESHOLD, CLOCK_DRAWS = 0.01, 0.005, 200
NVBENCH_BASES = ("fma 9600 trips, cold", "add 32 M f64, cold")
NVBENCH_SHARES = (0.0, 0.01, 0.05)
NVBENCH_EVERY = 4
"""It takes half a second for each case, and its end may destroy the context."""


# measuring


def record(into: Path) -> None:
    """Records all sessions, one after another, each in a process of its own."""
    sessions = []
    part = into.with_suffix(".part")
    for number in range(SESSIONS):
        status = subprocess.call([sys.executable, __file__, "session", str(part), str(number)])
        if not part.exists():  # with one, any status will do: NVBench may have ended the process badly
            sys.exit(f"session {number + 1} ended with status {status} and measured nothing")
        sessions.append(json.loads(part.read_text(encoding="utf-8")))
        part.unlink()
        cases = [dataclasses.asdict(case) for case in gate_cases()]
        fingerprint = sessions[0]["fingerprint"]
        into.write_text(json.dumps({"fingerprint": fingerprint, "cases": cases, "sessions": sessions}) + "\n")
        print(f"session {number + 1} of {SESSIONS}", file=sys.stderr)


def measure_session(into: Path, number: int) -> None:
    """Measures each kernel once as `--gpu-benchmark` does, after the wall clock and before NVBench.

    Once CUPTI is attached, it slows the API calls that are in other tools' numbers. NVBench's numbers hold
    none, and its end may destroy the context, so the session is saved before it.
    """
    settings = Settings(benchmark=True, requested=True, baseline="off")
    simulated = SimulatorState(False, "off: this is about a GPU")
    environment = Environment(settings, DeviceSession(settings, simulated))
    with environment.gpu.working(), ExitStack() as kept:
        kept.callback(environment.gpu.close)
        cases = in_session_order(gate_cases(), number)
        kernels = GateKernels(cases)
        kept.callback(kernels.close)
        _refuse_wrong(cases, kernels, environment)
        fingerprint, walls_ns = msgspec.to_builtins(environment.gpu.fingerprint), {}
        for case in cases:
            with _current(case, environment):
                walls_ns[case.id] = round(wall_clock(kernels.launch(case)), 1)
        timer = _default_timer(kernels.stream)
        readings = [_reading(case, kernels, timer, environment) for case in cases]
        session = {
            "fingerprint": fingerprint,
            "default_timer": timer,
            "readings": readings,
            "walls_ns": walls_ns,
        }
        _refuse_wrong(cases, kernels, environment)
        into.write_text(json.dumps(session), encoding="utf-8")
        if number % NVBENCH_EVERY == 0 and NVBENCH.missing() is None:
            session["nvbench"] = _by_nvbench(cases, kernels)
            into.write_text(json.dumps(session), encoding="utf-8")


def _refuse_wrong(cases: Sequence[GateCase], kernels: GateKernels, environment: Environment) -> None:
    for case in cases:
        with _current(case, environment):
            fault = kernels.fault(case)
        if fault is not None:
            raise RuntimeError(f"{case.id}: {fault}")


def _current(case: GateCase, environment: Environment) -> Any:
    """Makes the timed stream CuPy's current one, on which it launches."""
    return environment.backend("cupy").current() if case.kernel == "gemm" else nullcontext()


def _default_timer(stream: Any) -> str:
    """Returns the timer that `auto` chooses for kernels."""
    for name in auto_timers():
        with suppress(TimerUnavailable):
            return open_timer(name, stream).name
    raise RuntimeError("no timer works here")


def _reading(case: GateCase, kernels: GateKernels, timer: str, environment: Environment) -> dict[str, Any]:
    call = kernels.launch(case)
    with _current(case, environment):
        call_ns = warm_up(call, runtime().synchronize, compiled=True).settled_ns
        opened = open_timer(timer, kernels.stream)
        measured = Sampler(
            Repeated(call),
            opened,
            scope="kernel",
            cache=case.cache,
            call_ns=call_ns,
            rule=rule_for(call_ns),
            observing=environment.gpu.observers.observe(ObservedCall(on_gpu=True), opened),
        ).measure()
    summary = measured.summary
    return {
        "case": case.id,
        "median_ns": round(summary.median_ns, 2),
        "low_ns": round(summary.low_ns, 2),
        "high_ns": round(summary.high_ns, 2),
        "samples": summary.n,
        "sm_mhz": measured.seen(CLOCKS, "sm_mhz"),
        "jitter_ns": round(measured.jitter_ns, 2),
        "invalid": measured.invalid,
    }


def _by_nvbench(cases: Sequence[GateCase], kernels: GateKernels) -> list[dict[str, Any]]:
    chosen = {
        case.id: functools.partial(kernels.on_handle, case)
        for case in cases
        if (case.base or case.id) in NVBENCH_BASES and case.share in NVBENCH_SHARES
    }
    return [
        {"case": name, "mean_ns": round(times.mean_ns, 2), "noise": round(times.noise, 8)}
        for name, times in run_nvbench(chosen).items()
        if not isinstance(times, str) and times.mean_ns is not None and times.noise is not None
    ]


# judging


class Trial(NamedTuple):
    """Says which sessions are the record, are judged and confirm."""

    record: tuple[int, ...]
    candidate: int
    fresh: tuple[int, ...]


class Share(NamedTuple):
    """Holds how many of a number of trials had an outcome."""

    count: int
    trials: int


def in_order(sessions: int) -> list[Trial]:
    """Returns a trial of every session after the first five, judged against these."""
    later = list(range(RECORD, sessions))
    doubled = later + later
    return [
        Trial(tuple(range(RECORD)), candidate, tuple(doubled[place + 1 : place + 1 + FRESH]))
        for place, candidate in enumerate(later)
    ]


def drawn(sessions: int, draws: int) -> list[Trial]:
    """Returns trials of sessions drawn at random, each at most once per trial."""
    rng = random.Random(SEED)
    trials = []
    for _ in range(draws):
        chosen = rng.sample(range(sessions), RECORD + 1 + FRESH)
        trials.append(Trial(tuple(sorted(chosen[:RECORD])), chosen[RECORD], tuple(chosen[RECORD + 1 :])))
    return trials


class Replay:
    """Replays the gate on recorded sessions.

    Args:
        recorded: as `record` writes it.
        slowdown: multiplies times in the sessions that are judged, and divides clocks: 1/0.99 is the effect
            of a 1 % lower clock on a compute-bound kernel.
        cycles: judges times multiplied by clocks, in units of the recording's first clock, instead of times.
    """

    def __init__(self, recorded: dict[str, Any], *, slowdown: float = 1.0, cycles: bool = False) -> None:
        self.cases = [GateCase(**case) for case in recorded["cases"]]
        self.sessions = recorded["sessions"]
        self.readings = {
            (reading["case"], number): reading
            for number, session in enumerate(self.sessions)
            for reading in session["readings"]
        }
        self.default_timer = self.sessions[0]["default_timer"]
        self._conditions = Conditions(1, recorded["fingerprint"]["device_name"])
        self._slowdown, self._cycles = slowdown, cycles
        self._first_mhz = self.sessions[0]["readings"][0]["sm_mhz"]
        self._shared = functools.cache(self._shared_spread)
        self.judge = functools.cache(self._judge)

    def share(self, cases: Sequence[GateCase], trials: Sequence[Trial], threshold: float) -> Share:
        """Counts final verdicts of SLOWER."""
        verdicts = [self.judge(*each, threshold)[1] for each in itertools.product(cases, trials)]
        return Share(sum(each.kind is VerdictKind.SLOWER for each in verdicts), len(verdicts))

    def _judge(self, case: GateCase, trial: Trial, threshold: float) -> tuple[Verdict, Verdict]:
        """Returns the first and the final verdict on a case, by the record of its base."""
        record = [self._session_time(case.base or case.id, number) for number in trial.record]
        first = self._measured(case.id, trial.candidate)
        basis = Basis(
            record,
            self._conditions,
            threshold,
            shared=self._shared(trial.record).get(spread_key(first.key)),
        )
        screened = judge([first], basis)
        if not screened.suspected:
            return screened, screened
        fresh = [self._measured(case.id, number) for number in trial.fresh]
        return screened, confirm(screened, fresh, basis)

    def _session_time(self, case: str, number: int) -> SessionTime:
        return SessionTime(self._measured(case, number, recorded=True), self._conditions)

    def _measured(self, case: str, number: int, *, recorded: bool = False) -> Measurement:
        reading = self.readings[case, number]
        # The slowdown multiplies times and divides clocks, so it cancels in cycles.
        scale = reading["sm_mhz"] / self._first_mhz if self._cycles else 1.0
        scale *= 1.0 if self._cycles or recorded else self._slowdown
        times = (scale * reading[name] for name in ("median_ns", "low_ns", "high_ns"))
        cache = next(each.cache for each in self.cases if each.id == case)
        summary = Summary(*times, reading["samples"])
        jitter_ns, invalid = reading.get("jitter_ns", 0.0), reading.get("invalid")
        return Measurement(
            "kernel", self.default_timer, cache, 1, summary, jitter_ns=jitter_ns, invalid=invalid
        )

    def _shared_spread(self, record: tuple[int, ...]) -> dict[str, Any]:
        """Returns the spread that the unchanged cases share in these sessions, as in a baseline."""
        unchanged = [case.id for case in self.cases if not case.base]
        return shared_spread([self._session_time(case, number) for number in record] for case in unchanged)


def median_failed(stored_ns: float, current_ns: float, threshold: float) -> bool:
    """Says whether pytest-benchmark's comparison of medians fails; a threshold of 0.02 is `median:2%`."""
    return current_ns / stored_ns * 100 - 100 > 100 * threshold


def nvbench_slow(stored: dict[str, Any], current: dict[str, Any]) -> bool:
    """Says whether NVBench's comparison says SLOW."""
    change = (current["mean_ns"] - stored["mean_ns"]) / stored["mean_ns"]
    return bool(abs(change) > min(stored["noise"], current["noise"]) and change > 0)


def _by_medians(replay: Replay, cases: Sequence[GateCase], threshold: float) -> Share:
    failed = []
    for case, trial in itertools.product(cases, in_order(len(replay.sessions))):
        stored = replay.sessions[trial.record[-1]]["walls_ns"][case.base or case.id]
        current = replay.sessions[trial.candidate]["walls_ns"][case.id]
        failed.append(median_failed(stored, current, threshold))
    return Share(sum(failed), len(failed))


def _by_nvbenchs_rule(replay: Replay, cases: Sequence[GateCase]) -> Share:
    by_case = [
        {each["case"]: each for each in session["nvbench"]}
        for session in replay.sessions
        if session.get("nvbench")
    ]
    slow = []
    for case, (earlier, later) in itertools.product(cases, itertools.combinations(by_case, 2)):
        stored, current = earlier.get(case.base or case.id), later.get(case.id)
        if stored is not None and current is not None:
            slow.append(nvbench_slow(stored, current))
    return Share(sum(slow), len(slow))


def figures(recorded: dict[str, Any], draws: int = DRAWS) -> Iterator[str]:
    """Yields the lines of the table, a figure each."""
    replay = Replay(recorded)
    trials, random_trials = in_order(len(replay.sessions)), drawn(len(replay.sessions), draws)
    unchanged = [case for case in replay.cases if not case.base]
    planted = [case for case in replay.cases if case.base]
    for threshold in sorted(THRESHOLDS.values(), reverse=True):
        verdicts = [replay.judge(*each, threshold) for each in itertools.product(unchanged, trials)]
        kinds = Counter(final.kind.value for _, final in verdicts)
        suspected = sum(first.suspected for first, _ in verdicts)
        beside = _by_medians(replay, unchanged, threshold)
        yield (
            f"unchanged, at {threshold:.2%}: {len(verdicts)} judged, {suspected} suspected, "
            f"{kinds['SLOWER']} confirmed SLOWER, {kinds['SAME']} SAME, {kinds['UNDECIDED']} UNDECIDED; "
            f"pytest-benchmark: {beside.count} false alarms"
        )
    nvbench = _by_nvbenchs_rule(replay, unchanged)
    yield f"unchanged, NVBench's compare: {nvbench.count} of {nvbench.trials}"
    for case in planted:
        threshold = THRESHOLDS[case.share]
        caught, of_drawn = (replay.share([case], some, threshold) for some in (trials, random_trials))
        base = next(each for each in replay.cases if each.id == case.base)
        ratios = (replay.judge(base, trial, threshold)[0].detectable for trial in trials)
        seen_from = statistics.median(ratio for ratio in ratios if ratio is not None) - 1
        medians, nvbench = _by_medians(replay, [case], threshold), _by_nvbenchs_rule(replay, [case])
        yield (
            f"{case.id} at {threshold:.2%}: caught {caught.count} of {caught.trials}, drawn "
            f"{of_drawn.count} of {of_drawn.trials}, seen from {seen_from:+.2%} on; pytest-benchmark: "
            f"{medians.count}; NVBench: {nvbench.count} of {nvbench.trials}"
        )
    slowdown = 1 / (1 - LOWER_CLOCK)
    by_time = Replay(recorded, slowdown=slowdown)
    by_cycles = Replay(recorded, slowdown=slowdown, cycles=True)
    clocks = random_trials[:CLOCK_DRAWS]
    for case in replay.cases:
        if case.kernel == "fma" and case.cache == "cold" and not case.base:
            times, cycles = (each.share([case], clocks, CLOCK_THRESHOLD) for each in (by_time, by_cycles))
            yield (
                f"{case.id}, the clock {LOWER_CLOCK:.0%} lower, at {CLOCK_THRESHOLD:.1%}: SLOWER by time "
                f"{times.count} of {times.trials}, by cycles {cycles.count}"
            )


def main(arguments: Sequence[str]) -> None:
    """Measures or judges, and prints the figures."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(required=True, dest="command")
    commands.add_parser("measure").add_argument("file", type=Path)
    judging = commands.add_parser("judge")
    judging.add_argument("file", type=Path, nargs="?", default=RECORDED)
    judging.add_argument("--draws", type=int, default=DRAWS)
    session = commands.add_parser("session")
    session.add_argument("file", type=Path)
    session.add_argument("number", type=int)
    known = parser.parse_args(arguments)
    if known.command == "session":
        measure_session(known.file, known.number)
        return
    if known.command == "measure":
        record(known.file)
    recorded = json.loads(known.file.read_text(encoding="utf-8"))
    for line in figures(recorded, getattr(known, "draws", DRAWS)):
        print(line)


if __name__ == "__main__":
    main(sys.argv[1:])
