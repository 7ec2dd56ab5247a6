"""Judges one test by the sessions of both sides: values in, a verdict or why there is none out."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from statistics import fmean
from typing import NamedTuple

from msgspec import structs

from pytest_gpukern.baseline.merge import confirmed_slower
from pytest_gpukern.baseline.same_work import SameWork, same_work
from pytest_gpukern.findings.explain import code_changes
from pytest_gpukern.findings.weaker import may_have_others
from pytest_gpukern.gate import judge
from pytest_gpukern.gate.change import Pair, log_ratios
from pytest_gpukern.gate.spread import SharedSpread, spread_key
from pytest_gpukern.processes.sessions import Ending
from pytest_gpukern.values.result import Correctness, Measurement, Result, SessionRole, Verdict
from pytest_gpukern.values.timer_table import timer_row
from pytest_gpukern.values.untrusted_json import first_line
from pytest_gpukern.values.verdict_table import VerdictKind

FEWEST_PAIRS = 2
"""Fewer pairs of sessions have no spread."""

SAME_WORK = (
    "the same machine code, launches and libraries on both sides, with the same inputs and arguments or "
    "times within half the threshold"
)

Side = Sequence[Ending | None]
"""How a test ended in each session of the base, or of the working tree; None where it was not reported."""
Both = tuple[Side, Side]
"""The same of both sides: base and working tree."""


class Rule(NamedTuple):
    """Holds what a test is judged by.

    Attributes:
        threshold: smallest change that counts, 0.02 for 2 %.
        spreads: those of all cases of the run, since suspects may be few.
        hosts: whether times of host variants can fail a test.
        same: the times whose work is the same on both sides (`same_times`).
        asked: whether these are all, so that nothing was measured.
    """

    threshold: float
    spreads: Mapping[str, SharedSpread]
    hosts: bool = False
    same: frozenset[str] = frozenset()
    asked: bool = False


def without_times(ending: Ending) -> Ending:
    """Returns what a session that only asked knows of a test."""
    result = ending.result
    return ending._replace(result=None if result is None else structs.replace(result, measurements=()))


def values_differ(case: Both) -> bool:
    """Returns whether the first session of the working tree compared with other values than the base's."""
    base, head = (_results(side)[:1] for side in case)
    return any(may_have_others(now, before) for now, before in zip(head, base, strict=False))


def valid_sessions(head: Side, role: SessionRole, *, but: Result | None = None) -> tuple[Result, ...]:
    """Returns the working tree's results that passed and are valid, in a role."""
    passed = _results(ending for ending in _reported(head) if ending.outcome == "passed")
    return tuple(
        structs.replace(result, role=role) for result in passed if result is not but and result.valid
    )


def _shown(head: Side) -> Result | None:
    """Returns what is reported: the working tree's wrong result, else its first valid one, or its first.

    The first session checks in full, so its result says most.
    """
    results = _results(head)
    wrong = [result for result in results if result.correctness is Correctness.INCORRECT]
    valid = [result for result in results if result.valid]
    return next(iter((*wrong, *valid, *results)), None)


def _judged_keys(head: Side) -> list[str]:
    shown = _shown(head)
    return [time.key for time in shown.measurements] if shown is not None else []


def _pairs(case: Both, key: str) -> list[Pair]:
    """Returns the measurements of neighbouring sessions under a key, where both have one."""
    both = zip(*(_measured(side, key) for side in case), strict=True)
    return [(base, head) for base, head in both if base is not None and head is not None]


def same_times(case: Both, threshold: float) -> tuple[frozenset[str], bool]:
    """Returns the times of work that is the same on both sides, and whether these are all times of the test.

    Sessions without times, which only asked, do not count. `same_work` may not know all, as a number of
    rounds. Then the times of both sides have to agree within half the threshold, on average of the pairs. On
    an H200 one pair of a 5 µs kernel differed by 3 %, two by 0.02 % on average. The host's clock is too
    coarse for that: its times have to agree within `BY_MACHINE`, and the files have to be the same.
    """
    ended = [_reported(side) for side in case]
    base, head = ([result for result in _results(side) if result.measurements] for side in ended)
    passed = all(ending.outcome == "passed" for side in ended for ending in side)
    if not passed or not len(base) == len(head) > 0 or not all(result.valid for result in (*base, *head)):
        return frozenset(), False
    both = [*zip(base, head, strict=True)]
    keys = {time.key for result in (*base, *head) for time in result.measurements}
    same = frozenset(key for key in keys if _is_same(both, key, threshold))
    return same, same == keys


def _is_same(both: Sequence[tuple[Result, Result]], key: str, threshold: float) -> bool:
    known = {same_work(head, base, key) for base, head in both}
    if SameWork.NO in known:
        return False
    if known == {SameWork.ALL}:
        return True
    pairs = [(before, now) for base, head in both if (before := base.time(key)) and (now := head.time(key))]
    timed = [*chain.from_iterable(pairs)]
    if not all(time.summary.median_ns > 0 for time in timed):
        return False
    if all(timer_row(time.timer).device_timed for time in timed):
        most = math.log1p(threshold) / 2
    else:
        most = 0.0 if SameWork.SEEN in known else math.log1p(judge.BY_MACHINE)
    return abs(fmean(log_ratios(pairs))) < most


class Conclusion(Ending):
    """Says how one test ended in both trees, before the gate looks at its verdicts.

    `result` has verdicts on how the working tree compares with the base. `sessions` has the working tree's
    other sessions, for `baseline.merge.sessions_to_record`.
    """

    @property
    def verdicts(self) -> Mapping[str, Verdict]:
        return self.result.verdicts if self.result is not None else {}

    @property
    def suspected(self) -> bool:
        return any(verdict.suspected for verdict in self.verdicts.values())

    @property
    def may_be_slower(self) -> bool:
        return any(map(judge.may_be_slower, self.verdicts.values()))

    @property
    def confirmed(self) -> bool:
        again = any(session.role is SessionRole.CONFIRMING for session in self.sessions)
        return again and self.result is not None and confirmed_slower(self.result)

    @classmethod
    def of(cls, head: Side, verdicts: Mapping[str, Verdict]) -> Conclusion:
        """Returns the conclusion from a test's verdicts; a test that fails in the working tree keeps none."""
        failure, shown, reported = failure_in(head), _shown(head), _reported(head)
        if failure is not None:
            return cls("failed", failure, structs.replace(shown, verdicts={}) if shown else None)
        if not reported:
            return cls("failed", "no session of the working tree reported this test", None)
        last, others = reported[-1], valid_sessions(head, SessionRole.FURTHER, but=shown)
        judged = structs.replace(_with_full_check(shown, head), verdicts=dict(verdicts)) if shown else None
        return cls(last.outcome, last.text, judged, others)


def _with_full_check(shown: Result, head: Side) -> Result:
    """Returns what is shown with what the first session found out, if that only asked: it checks in full."""
    first = _results(head)[0]
    if first.measurements:
        return shown
    notes = tuple(dict.fromkeys((*first.notes, *shown.notes)))
    told = {name: getattr(first, name) for name in ("errors", "corners", "held")}
    return structs.replace(shown, **told, notes=notes)


def failure_in(side: Side) -> str | None:
    """Says why a test fails on a side, by the first session where it did; returns None if it does not."""
    return next((ending.text for ending in _reported(side) if ending.outcome == "failed"), None)


def shared_spreads(cases: Iterable[Both]) -> dict[str, SharedSpread]:
    """Returns the spread of a run's paired ratios, for each `scope/timer`, from all its cases together."""
    right = [case for case in cases if not any(failure_in(side) is not None for side in case)]
    return judge.shared_spread_of_pairs(
        _valid(_pairs(case, key)) for case in right for key in _judged_keys(case[1])
    )


def conclude(case: Both, rule: Rule) -> Conclusion:
    """Returns the conclusion on a test, with suspicions that `confirm` decides."""
    shown, verdicts = _shown(case[1]), {}
    for key in _judged_keys(case[1]):
        if rule.asked:
            verdict = _same_code(_pairs(case, key), rule.threshold)
        else:
            verdict = _barred(case, key) or _judged(case, key, rule)
        if key in rule.same and verdict.kind is VerdictKind.UNDECIDED:
            reason = f"{SAME_WORK}; by time alone {verdict.reason}"
            verdict = structs.replace(verdict, kind=VerdictKind.SAME_CODE, reason=reason, detectable=None)
        fails = rule.hosts or (shown is not None and shown.case.on_gpu)
        verdicts[key] = verdict if fails else judge.of_host(verdict)
    conclusion = Conclusion.of(case[1], verdicts)
    # So few samples are no time that a report or a record should have.
    return conclusion._replace(result=without_times(conclusion).result) if rule.asked else conclusion


def confirm(first: Conclusion, again: Both, rule: Rule, *, last: bool = True) -> Conclusion:
    """Decides a suspicion by fresh sessions alone; INVALID where these cannot be compared.

    Args:
        first: the conclusion from the first sessions, or what is left of it after a look at fewer fresh ones.
        again: the test in all fresh sessions of both sides.
        last: whether no more sessions are measured; else a suspicion may stay one.
    """
    verdicts = dict(first.verdicts)
    for key, suspicion in first.verdicts.items():
        if suspicion.suspected:
            barred = _barred(again, key)
            verdicts[key] = (
                judge.undecidable(suspicion, barred.reason)
                if barred is not None
                else _judged(again, key, rule, suspicion, last=last)
            )
    fresh = Conclusion.of(again[1], verdicts)
    if fresh.outcome == "failed" or first.result is None:
        return fresh
    further = (session for session in first.sessions if session.role is not SessionRole.CONFIRMING)
    confirming = valid_sessions(again[1], SessionRole.CONFIRMING)
    result = structs.replace(first.result, verdicts=verdicts)
    return first._replace(result=result, sessions=(*further, *confirming))


def _judged(
    case: Both, key: str, rule: Rule, suspicion: Verdict | None = None, *, last: bool = True
) -> Verdict:
    """Returns the gate's verdict on valid pairs: a first one, or one that decides about a suspicion."""
    all_pairs = _pairs(case, key)
    pairs, basis = _valid(all_pairs), judge.Paired(rule.threshold, rule.spreads.get(spread_key(key)))
    if suspicion is None:
        verdict = judge.judge(pairs, basis)
    else:
        verdict = judge.confirm(suspicion, pairs, basis, last=last)
        if verdict.suspected:
            return suspicion
    base, head = map(_results, case)
    code = code_changes(head[-1], base)
    invalid = len(all_pairs) - len(pairs)
    words = [f"{invalid} of {len(all_pairs)} pairs of sessions are not valid"] if invalid else []
    return verdict.adding(*words, differences=(*code, *verdict.differences))


def _same_code(pairs: Sequence[Pair], threshold: float) -> Verdict:
    """Returns the verdict on a time whose work is the same on both sides, from the only pair."""
    ((base, head),) = pairs
    before_ns, now_ns = base.summary.median_ns, head.summary.median_ns
    return Verdict(
        VerdictKind.SAME_CODE,
        f"{SAME_WORK}: not measured again",
        ratio=now_ns / before_ns if before_ns > 0 else None,
        threshold=threshold,
        pairs=((before_ns, now_ns),),
    )


def _barred(case: Both, key: str) -> Verdict | None:
    base, head = case
    ours = [measurement.invalid for measurement in _measured(head, key) if measurement is not None]
    if ours and all(ours):
        return Verdict(VerdictKind.INVALID, str(ours[-1]))
    if not any(base):
        return Verdict(VerdictKind.NEW, "not in the base")
    reason = _why_not_comparable(case, key)
    return None if reason is None else Verdict(VerdictKind.UNCOMPARABLE, reason)


def _valid(pairs: Iterable[Pair]) -> list[Pair]:
    return [(base, head) for base, head in pairs if base.invalid is None and head.invalid is None]


def _why_not_comparable(case: Both, key: str) -> str | None:
    failed = failure_in(case[0])
    if failed is not None:
        return f"failed on the base: {first_line(failed)}"
    base = next((result for result in _results(case[0]) if result.measurements), None)
    if base is None:
        ending = _reported(case[0])[0]
        why = f": {first_line(ending.text)}" if ending.text else ""
        return f"{'skipped' if ending.outcome == 'skipped' else 'not measured'} on the base{why}"
    head = _shown(case[1])
    assert head is not None
    for label, old, new in (
        ("problem version", base.case.problem_version, head.case.problem_version),
        ("device", base.fingerprint.device_uuid, head.fingerprint.device_uuid),
    ):
        if old != new:
            return f"{label} {old} on the base, {new} in the working tree"
    pairs = _pairs(case, key)
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


def _reported(side: Side) -> list[Ending]:
    return [ending for ending in side if ending is not None]


def _results(endings: Iterable[Ending | None]) -> list[Result]:
    return [ending.result for ending in endings if ending is not None and ending.result is not None]


def _measured(side: Side, key: str) -> list[Measurement | None]:
    return [ending.result.time(key) if ending and ending.result else None for ending in side]
