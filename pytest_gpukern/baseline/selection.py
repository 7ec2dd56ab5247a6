"""Which sessions of a test a record takes: not those that were selected for being slow."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_gpukern.values.result import SessionRole, VerdictKind

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_gpukern.values.result import Result


def confirmed_slower(result: Result) -> bool:
    """Whether a time of the test is slower than recorded, for good; a host's may be so unconfirmed."""
    return any(
        verdict.kind is VerdictKind.SLOWER and verdict.gates and not verdict.suspected
        for verdict in result.verdicts.values()
    )


def unselected(result: Result, sessions: Sequence[Result]) -> list[Result]:
    """The sessions of a test that stand for its time, of all that a run measured; oldest first.

    All, unless they confirmed a slowdown: then those that raised the suspicion are left out. These came to be
    followed by others because they were slow, and the epoch that is opened holds what was followed up, so
    that their mean is biased upwards (the winner's curse); with three sessions an epoch a biased one moves it
    by a third of its bias, and hides as much of the next slowdown. The verdict does not rest on them either.

    Where the suspicion was refuted they stay, with those that refuted it. Whether more sessions follow
    depends on the first one alone, so that over many runs the mean of all sessions is that of the case
    (Wald's identity), while leaving out the slow ones, and only these, would cut off the upper tail: the
    record would be too fast and too narrow, and later runs would be blamed for it.

    Args:
        result: what the run reports, with its verdicts.
        sessions: the others, in the order in which they were measured: those before the first that confirms
            raised the suspicion together with `result`.
    """
    roles = [session.role for session in sessions]
    if SessionRole.CONFIRMING in roles and confirmed_slower(result):
        return list(sessions[roles.index(SessionRole.CONFIRMING) :])
    return [result, *sessions]
