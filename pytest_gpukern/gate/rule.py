"""The rule: from a change, its error and a threshold to a verdict with the reason."""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING

from pytest_gpukern.gate.change import CONFIRMING, numbers, percent, ratio_of, undecided_words
from pytest_gpukern.values.result import Verdict, VerdictKind

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_gpukern.gate.change import Change


def screened(change: Change, threshold: float, *, confirming: int) -> Verdict:
    """What a change is called by one test, without regard to how much is recorded."""
    if change.error() >= 1:
        reason = f"too short or too noisy for this timer: the standard error is {100 * change.error():.3g} %"
        return Verdict(VerdictKind.UNDECIDED, reason, ratio_of(change.delta), sessions=change.fresh)
    limit, bound = math.log1p(threshold), f"{100 * threshold:g} %"
    detectable = change.detectable(limit, screening=change.fresh, confirming=confirming)
    kind, reason = VerdictKind.UNDECIDED, f"{numbers(change)}: {undecided_words(change, limit, detectable)}"
    if change.least() > 0 and change.delta >= limit:
        kind, reason = VerdictKind.SLOWER, f"{numbers(change)}, threshold {bound}"
    elif change.least() > 0 and change.delta <= -limit:
        kind, reason = VerdictKind.FASTER, f"{numbers(change)}, threshold {bound}"
    elif -limit <= change.low and change.high <= limit:
        kind, reason = VerdictKind.SAME, f"{numbers(change)}, inside ±{bound}"
    return Verdict(
        kind,
        reason,
        ratio_of(change.delta),
        ratio_of(change.low),
        ratio_of(change.high),
        ratio_of(detectable),
        sessions=change.fresh,
    )


def with_anchor(verdict: Verdict, since_first: Change, threshold: float) -> Verdict:
    """The verdict with the change since the first epoch, told where accepted or small steps have added up."""
    reason, limit = verdict.reason, math.log1p(threshold)
    grown = since_first.least() > 0 and since_first.delta >= limit
    if grown and verdict.kind in (VerdictKind.SAME, VerdictKind.UNDECIDED):
        reason = f"{reason}; since the first epoch {numbers(since_first)}"
    return dataclasses.replace(verdict, reason=reason, anchor=ratio_of(since_first.delta))


def decided(
    suspicion: Verdict,
    again: Verdict,
    change: Change,
    threshold: float,
    *,
    apart: bool,
    remarks: Sequence[str] = (),
) -> Verdict:
    """What fresh sessions alone make of a suspicion.

    Args:
        suspicion: what has to be confirmed.
        again: what the fresh sessions are called by one test.
        change: by the fresh sessions.
        threshold: smallest change that counts.
        apart: whether each of them was slower.
        remarks: on what the comparison rests on.
    """
    limit = math.log1p(threshold)
    sure = change.least(CONFIRMING) if change.delta > 0 else -math.inf
    if apart and sure >= limit:
        text = f"{numbers(change)}, threshold {100 * threshold:g} %; at least {percent(sure)} with 97.5 %"
        reason = "; ".join([f"{text} by {_sessions(change)} that confirmed it", *remarks])
        return dataclasses.replace(again, kind=VerdictKind.SLOWER, reason=reason, suspected=False)
    if again.kind is VerdictKind.SLOWER:
        detectable = change.detectable(limit, screening=1, confirming=change.fresh)
        words = undecided_words(change, limit, detectable)
        if sure >= limit:
            words = (
                f"not each of them was slower than {'the recorded ones' if change.recorded else 'its base'}"
            )
        reason = "; ".join([f"{numbers(change)}: {words}", *remarks])
        again = dataclasses.replace(again, kind=VerdictKind.UNDECIDED, reason=reason)
    return unconfirmed(suspicion, again, _sessions(change))


def unconfirmed(suspicion: Verdict, again: Verdict, sessions: str = "fresh sessions") -> Verdict:
    """The verdict of fresh sessions that do not confirm a suspicion, which its reason tells all the same."""
    first = "a slowdown" if suspicion.ratio is None else percent(math.log(suspicion.ratio))
    reason = f"suspected {first}, not confirmed by {sessions}: {again.reason}"
    return dataclasses.replace(again, reason=reason, suspected=False)


def _sessions(change: Change) -> str:
    one = "pair" if not change.recorded else "session"
    return f"{change.fresh} fresh {one}{'s' if change.fresh > 1 else ''}"
