"""Judges one test by the sessions of both sides: values in, a verdict or why there is none out."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from pytest_gpukern.gate import judge
from pytest_gpukern.gate.change import Pair, log_ratios, percent
from pytest_gpukern.gate.spread import SharedSpread, spread_key
from pytest_gpukern.values.difference import NEW_CODE, SAME_CODE
from pytest_gpukern.values.result import Correctness, Measurement, Result, SessionRole, Verdict
from pytest_gpukern.values.verdict_table import VerdictKind

FEWEST_PAIRS = 2
"""Fewer pairs of sessions have no spread."""


@dataclass(frozen=True)
class SessionEnding:
    """Holds how a test ended in one session: `passed`, `failed`, `skipped` or `xfailed`, why, and times."""

    outcome: str
    text: str
    result: Result | None


@dataclass(frozen=True)
class CaseRuns:
    """Holds how one test ended in each session of both sides, in order; None where it was not reported.

    With `same_work`, both sides did the same, so it was measured in one session each (see `does_the_same`).
    `threshold` is the smallest change that counts, 0.02 for 2 %.
    """

    base: tuple[SessionEnding | None, ...]
    head: tuple[SessionEnding | None, ...]
    threshold: float
    same_work: bool = False

    @property
    def shown(self) -> Result | None:
        """Returns what is reported: the working tree's wrong result, else its first valid one, or its first.

        The first session checks in full, so its result says most.
        """
        results = _results(self.head)
        wrong = [result for result in results if result.correctness is Correctness.INCORRECT]
        valid = [result for result in results if result.valid]
        return next(iter((*wrong, *valid, *results)), None)

    def sessions(self, role: SessionRole, *, but: Result | None = None) -> tuple[Result, ...]:
        """Returns the working tree's results that passed and are valid, in a role."""
        passed = _results(ending for ending in _reported(self.head) if ending.outcome == "passed")
        return tuple(
            dataclasses.replace(result, role=role) for result in passed if result is not but and result.valid
        )

    def pairs(self, key: str) -> list[Pair]:
        """Returns the measurements of neighbouring sessions under a key, where both have one."""
        both = zip(_measured(self.base, key), _measured(self.head, key), strict=True)
        return [(base, head) for base, head in both if base is not None and head is not None]

    def judged_keys(self) -> list[str]:
        return [time.key for time in self.shown.measurements] if self.shown is not None else []

    @property
    def same_code(self) -> bool | None:
        """Says whether its kernels' machine code is the same on both sides; None where that is not known."""
        codes = [_codes(side) for side in (self.base, self.head)]
        return None if None in codes else codes[0] == codes[1]


def does_the_same(case: CaseRuns) -> bool:
    """Returns whether a test, by the first session of each side, has the device do the same in the same time.

    The same are machine code, launches, copies, inputs, device and libraries. Arguments that are no inputs,
    such as a number of rounds, are not known. So the times of both sessions have to agree within half the
    threshold. Only a case that is measured in scope `kernel` alone, and whose machine code is known, does
    the same.
    """
    both = []
    for side in (case.base, case.head):
        if not side or side[0] is None or side[0].outcome != "passed" or side[0].result is None:
            return False
        both.append(side[0].result)
    if not all(map(_is_known, both)) or _does(both[0]) != _does(both[1]):
        return False
    base, head = (result.measurements[0] for result in both)
    return abs(log_ratios([(base, head)])[0]) < math.log1p(case.threshold) / 2


def _is_known(result: Result) -> bool:
    """Returns whether all that a result's times depend on is known, but for arguments that are no inputs."""
    times = result.measurements
    return (
        result.valid
        and result.correctness is Correctness.PASSED
        and result.inputs is not None
        and [measurement.scope for measurement in times] == ["kernel"]
        and bool(times[0].work)
        and times[0].summary.median_ns > 0
        and bool(result.kernels)
        and all(kernel.machine_code_sha256 is not None for kernel in result.kernels)
    )


def _does(result: Result) -> tuple[object, ...]:
    """Returns what has to be equal for equal times."""
    (time,) = result.measurements
    work = [
        (part.kind, None if part.kernel else part.name, part.count, part.size_bytes) for part in time.work
    ]
    kernels = [kernel.executed for kernel in result.kernels]
    rates = (time.key, time.buffer_sets, time.traffic_bytes, time.flops)
    point = (result.case.problem_version, result.case.measured_point, result.case.parameters, result.seed)
    return (work, kernels, rates, point, result.inputs, result.fingerprint)


@dataclass(frozen=True)
class Conclusion:
    """Holds the conclusion on one test.

    Attributes:
        outcome: `passed`, `failed`, `skipped` or `xfailed`, before the gate looks at its verdicts.
        text: why, in words.
        result: what is reported.
        verdicts: `scope/timer/cache` → how the working tree compares with the base.
        sessions: results of the working tree's other sessions, as `baseline.merge.unselected` takes them.
    """

    outcome: str
    text: str
    result: Result | None
    verdicts: Mapping[str, Verdict]
    sessions: tuple[Result, ...] = ()

    @property
    def suspected(self) -> bool:
        return any(verdict.suspected for verdict in self.verdicts.values())

    @property
    def confirmed(self) -> bool:
        again = any(session.role is SessionRole.CONFIRMING for session in self.sessions)
        kinds = [verdict.kind for verdict in self.verdicts.values() if not verdict.suspected]
        return again and VerdictKind.SLOWER in kinds

    @classmethod
    def of(cls, case: CaseRuns, verdicts: Mapping[str, Verdict]) -> Conclusion:
        """Returns the conclusion from a test's verdicts; a test that fails in the working tree keeps none."""
        failure = failure_of(case)
        if failure is not None:
            return cls("failed", failure, case.shown, {})
        reported = _reported(case.head)
        if not reported:
            return cls("failed", "no session of the working tree reported this test", None, {})
        last, shown = reported[-1], case.shown
        return cls(last.outcome, last.text, shown, verdicts, case.sessions(SessionRole.FURTHER, but=shown))


def failure_of(case: CaseRuns) -> str | None:
    """Says why a test fails in the working tree, by the first session where it did, or returns None."""
    failed = [
        (number, ending.text)
        for number, ending in enumerate(case.head, 1)
        if ending is not None and ending.outcome == "failed"
    ]
    if not failed:
        return None
    (number, text), every = failed[0], len(case.head)
    some = f"failed in {len(failed)} of {every} sessions of the working tree, first in session {number}: "
    return text if len(failed) == every else some + text


def failure_on_base(case: CaseRuns) -> str | None:
    return next((ending.text for ending in _reported(case.base) if ending.outcome == "failed"), None)


def shared_spreads(cases: Iterable[CaseRuns]) -> dict[str, SharedSpread]:
    """Returns the spread of a run's paired ratios, for each `scope/timer`, from all its cases together."""
    right = [case for case in cases if failure_of(case) is None and failure_on_base(case) is None]
    return judge.shared_spread_of_pairs(
        _valid(case.pairs(key)) for case in right for key in case.judged_keys()
    )


def conclusions(cases: Mapping[str, CaseRuns], *, hosts: bool = False) -> dict[str, Conclusion]:
    """Returns the conclusion on every test of a run, with suspicions that `confirm` decides.

    With `hosts`, times of host variants can fail a test.
    """
    spreads = shared_spreads(cases.values())
    return {
        nodeid: Conclusion.of(case, _verdicts(case, spreads, hosts=hosts)) for nodeid, case in cases.items()
    }


def _verdicts(case: CaseRuns, spreads: Mapping[str, SharedSpread], *, hosts: bool) -> dict[str, Verdict]:
    """Returns a verdict for each scope of what is shown; none for what is not timed."""
    verdicts = {}
    for key in case.judged_keys():
        if case.same_work:
            verdict = _same_work(case.pairs(key), case.threshold)
        else:
            verdict = _barred(case, key) or _judged(case, key, spreads)
        fails = hosts or (case.shown is not None and case.shown.case.on_gpu)
        verdicts[key] = verdict if fails else judge.of_host(verdict)
    return verdicts


def confirm(
    first: Conclusion,
    case: CaseRuns,
    again: CaseRuns,
    spreads: Mapping[str, SharedSpread],
    *,
    last: bool = True,
) -> Conclusion:
    """Decides a suspicion by fresh sessions alone; INVALID where these cannot be compared.

    Args:
        first: the conclusion from the first sessions, or what is left of it after a look at fewer fresh ones.
        case: the test in the first sessions.
        again: the test in all fresh sessions of both sides.
        spreads: those of all cases of the run, since the suspects may be few.
        last: whether no more sessions are measured; else a suspicion may stay one.
    """
    verdicts = dict(first.verdicts)
    for key, suspicion in first.verdicts.items():
        if suspicion.suspected:
            barred = _barred(again, key)
            verdicts[key] = (
                judge.undecidable(suspicion, barred.reason)
                if barred is not None
                else _judged(again, key, spreads, suspicion, last=last)
            )
    conclusion = Conclusion.of(again, verdicts)
    if conclusion.outcome == "failed":
        return conclusion
    conclusion = Conclusion.of(case, verdicts)
    confirming = again.sessions(SessionRole.CONFIRMING)
    return dataclasses.replace(conclusion, sessions=(*conclusion.sessions, *confirming))


def _judged(
    case: CaseRuns,
    key: str,
    spreads: Mapping[str, SharedSpread],
    suspicion: Verdict | None = None,
    *,
    last: bool = True,
) -> Verdict:
    """Returns the gate's verdict on valid pairs: a first one, or one that decides about a suspicion."""
    all_pairs = case.pairs(key)
    pairs = _valid(all_pairs)
    shared, threshold = spreads.get(spread_key(key)), case.threshold
    if suspicion is None:
        verdict = judge.judge_paired(pairs, threshold=threshold, shared=shared)
    else:
        verdict = judge.confirm_paired(suspicion, pairs, threshold=threshold, shared=shared, last=last)
        if verdict.suspected:
            return suspicion
    invalid, known = len(all_pairs) - len(pairs), case.same_code is not None
    reason = f"{verdict.reason}; {invalid} of {len(all_pairs)} pairs of sessions are not valid"
    return dataclasses.replace(
        verdict,
        differences=(*([SAME_CODE if case.same_code else NEW_CODE] if known else []), *verdict.differences),
        reason=reason if invalid else verdict.reason,
    )


def _same_work(pairs: Sequence[Pair], threshold: float) -> Verdict:
    """Returns the verdict on a case that does the same on both sides, from its only pair."""
    (change,) = log_ratios(pairs)
    return Verdict(
        VerdictKind.SAME,
        f"the same machine code, launches, inputs and libraries on both sides, and {percent(change)} in one "
        "pair of sessions: not measured again",
        ratio=math.exp(change),
        threshold=threshold,
        pairs=tuple((base.summary.median_ns, head.summary.median_ns) for base, head in pairs),
    )


def _barred(case: CaseRuns, key: str) -> Verdict | None:
    ours = [measurement.invalid for measurement in _measured(case.head, key) if measurement is not None]
    if ours and all(ours):
        return Verdict(VerdictKind.INVALID, str(ours[-1]))
    if not any(case.base):
        return Verdict(VerdictKind.NEW, "not in the base")
    reason = _why_not_comparable(case, key)
    return None if reason is None else Verdict(VerdictKind.UNCOMPARABLE, reason)


def _valid(pairs: Iterable[Pair]) -> list[Pair]:
    return [(base, head) for base, head in pairs if base.invalid is None and head.invalid is None]


def _why_not_comparable(case: CaseRuns, key: str) -> str | None:
    failed = failure_on_base(case)
    if failed is not None:
        return f"failed on the base: {first_line(failed)}"
    base = next(iter(_results(case.base)), None)
    if base is None or not base.measurements:
        ending = _reported(case.base)[0]
        why = f": {first_line(ending.text)}" if ending.text else ""
        return f"{'skipped' if ending.outcome == 'skipped' else 'not measured'} on the base{why}"
    head = case.shown
    assert head is not None
    for label, old, new in (
        ("problem version", base.case.problem_version, head.case.problem_version),
        ("measured point", base.case.measured_point, head.case.measured_point),
        ("device", base.fingerprint.device_uuid, head.fingerprint.device_uuid),
    ):
        if old != new:
            return f"{label} {old} on the base, {new} in the working tree"
    pairs = case.pairs(key)
    if not pairs:
        measured = ", ".join(measurement.key for measurement in base.measurements)
        return f"measured as {measured} on the base, as {key} in the working tree"
    valid = len(_valid(pairs))
    if valid >= FEWEST_PAIRS:
        return None
    invalid = next(
        filter(None, (measurement.invalid for pair in pairs for measurement in pair)), "not measured"
    )
    return f"{valid} of {len(pairs)} pairs of sessions are valid, {FEWEST_PAIRS} needed: {invalid}"


def first_line(text: str) -> str:
    return text.strip().partition("\n")[0]


def _reported(side: Sequence[SessionEnding | None]) -> list[SessionEnding]:
    return [ending for ending in side if ending is not None]


def _results(endings: Iterable[SessionEnding | None]) -> list[Result]:
    return [ending.result for ending in endings if ending is not None and ending.result is not None]


def _measured(side: Sequence[SessionEnding | None], key: str) -> list[Measurement | None]:
    sessions = (ending.result.measurements if ending and ending.result else () for ending in side)
    return [next((measured for measured in session if measured.key == key), None) for session in sessions]


def _codes(side: Sequence[SessionEnding | None]) -> tuple[str, ...] | None:
    results = _results(side)
    codes = [kernel.machine_code_sha256 for kernel in results[-1].kernels] if results else []
    known = [code for code in codes if code is not None]
    return tuple(sorted(known)) if known and len(known) == len(codes) else None
