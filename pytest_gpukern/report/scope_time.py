"""What a report shows of a scope: one time, and beside it what another timer read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_gpukern.values.result import VerdictKind

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pytest_gpukern.values.result import Measurement, Result, Verdict


@dataclass(frozen=True)
class ScopeTime:
    """The measurements of one scope.

    Attributes:
        shown: whose time is shown and judged.
        others: those of the same scope by other timers.
    """

    shown: Measurement
    others: tuple[Measurement, ...] = ()

    @property
    def seen(self) -> Measurement | None:
        """The one whose timer saw what the device did, or None."""
        return next((each for each in (self.shown, *self.others) if each.work), None)


def scope_times(result: Result) -> list[ScopeTime]:
    """The scopes of a result in order, each by its main measurement, or by the one beside it if only that
    was judged: a record may know the scope by one timer only."""
    mains = [each for each in result.measurements if not each.beside]
    times, taken = [], set()
    for main in mains:
        others = [] if main.scope in taken else [each for each in _beside(result) if each.scope == main.scope]
        taken.add(main.scope)
        shown = _judged(main, others, result.verdicts)
        rest = tuple(each for each in (main, *others) if each is not shown)
        times.append(ScopeTime(shown, rest))
    return times + [ScopeTime(each) for each in _beside(result) if each.scope not in taken]


def verdict_of(result: Result, time: ScopeTime) -> tuple[str, float | None, str]:
    """Kind, ratio and reason of a scope's verdict, the reason with what else changed; INVALID also where
    nothing was compared, or where the number beside the one shown is."""
    for measurement in (time.shown, *time.others):
        if measurement.invalid is not None:
            by = "" if measurement is time.shown else f"by {measurement.timer}: "
            return VerdictKind.INVALID.value, None, f"{by}{measurement.invalid}"
    verdict = result.verdicts.get(time.shown.key)
    return (verdict.kind.value, verdict.ratio, verdict.explained) if verdict else ("", None, "")


def _beside(result: Result) -> list[Measurement]:
    return [each for each in result.measurements if each.beside]


def _judged(main: Measurement, others: list[Measurement], verdicts: Mapping[str, Verdict]) -> Measurement:
    if main.key in verdicts or main.invalid is not None:
        return main
    judged = [each for each in others if each.key in verdicts and each.invalid is None]
    return judged[0] if judged else main
