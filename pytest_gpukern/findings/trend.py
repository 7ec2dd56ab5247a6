"""Says since when a case is as it is: which recorded sessions were at the old level, and which no more."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import NamedTuple

from pytest_gpukern.baseline.record import RecordedCase, SessionEntry
from pytest_gpukern.gate.change import FEWEST
from pytest_gpukern.gate.comparability import SessionTime
from pytest_gpukern.values.fingerprint import NO_PROVENANCE, Provenance
from pytest_gpukern.values.result import Correctness, Result

_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")


class Point(NamedTuple):
    """Holds what a case took in one session.

    Attributes:
        recorded: when; None if the file names no such time.
        card: UUID of the GPU; None for the host, or where it is not known.
        provenance: the commit that it was recorded *on*, which is a parent of the one that holds the record.
    """

    session: str
    recorded: datetime | None
    median_ns: float
    card: str | None = None
    provenance: Provenance = NO_PROVENANCE


@dataclass(frozen=True)
class SinceWhen:
    """Says since when a result of a run differs from its record.

    Attributes:
        before: the recorded sessions at the old level, oldest first; never empty.
        since: the recorded sessions after them, which are at the new level; empty if it is new in this run.
        wrong: whether the result is INCORRECT. Then all sessions are `before`: a record holds no wrong one.
        until: the commit of this run; empty where it is not known.
        commits: how many commits of `span` touch the suite's folder; None where git does not know.
        folder: name of that folder.
    """

    before: tuple[Point, ...]
    since: tuple[Point, ...] = ()
    wrong: bool = False
    until: str = ""
    commits: int | None = None
    folder: str = ""

    def __str__(self) -> str:
        """Returns `new in this run; all 7 recorded sessions of 20 to 22 Nov were at the old level`."""
        if self.since:
            return f"since {session_words(self.since[0])}"
        count, days = len(self.before), days_of(self.before)
        of = f"recorded session{'s' * (count > 1)}" + (f" of {days}" if days else "")
        if count == 1:
            return f"new in this run; the {of} was {'not wrong' if self.wrong else 'at the old level'}"
        were = (
            f"none of the {count} {of} was wrong" if self.wrong else f"all {count} {of} were at the old level"
        )
        return f"new in this run; {were}"

    @property
    def cards(self) -> int:
        """How many cards the sessions at the old level were recorded on; 0 for the host."""
        return len({point.card for point in self.before} - {None})

    @property
    def span(self) -> tuple[str, str] | None:
        """The commits between which it changed, for `commits_touching`; None if the first is not known."""
        last = self.before[-1].provenance.commit
        first = self.since[0].provenance.commit if self.since else self.until or "HEAD"
        return (last, first) if last and first else None

    @property
    def touching(self) -> str:
        """Returns `5 commits since 093d14b touch vector_exp`; empty where git does not know."""
        if self.commits is None or self.span is None:
            return ""
        last, first = (commit[:7] for commit in self.span)
        between = f"between {last} and {first}" if self.since else f"since {last}"
        count = f"{self.commits or 'no'} commit{'s' * (self.commits > 1)}"
        return f"{count} {between} touch{'es' * (self.commits < 2)} {self.folder}"

    def with_commits(self, commits: int | None, folder: str) -> SinceWhen:
        return dataclasses.replace(self, commits=commits, folder=folder)


def since_when(
    result: Result, key: str, recorded: RecordedCase | None, sessions: Mapping[str, SessionEntry]
) -> SinceWhen | None:
    """Returns since when a measurement, or an INCORRECT result, is not what its record says.

    The newest recorded sessions are at the new level if each is nearer to it than to the median of those
    before, and lies outside of all that these had. At least three have to be before.

    Args:
        key: of the measurement; empty for what is wrong with the result itself.
        recorded: of its test, from `RunResults.history`.
        sessions: `RunResults.recorded_sessions`.

    Returns:
        None if nothing is recorded, or the time is no number.
    """
    points = points_of(_newest_epoch(recorded, key) if recorded else (), sessions)
    until = result.provenance.commit or ""
    if points and not key and result.correctness is Correctness.INCORRECT:
        return SinceWhen(points, wrong=True, until=until)
    now = next((time.summary.median_ns for time in result.measurements if time.key == key), None)
    if not points or now is None or not 0 < now < math.inf:
        return None
    times = [point.median_ns for point in points]
    start = next((place for place in range(FEWEST, len(times)) if _is_step(times, place, now)), len(times))
    return SinceWhen(points[:start], points[start:], until=until)


def _is_step(times: Sequence[float], place: int, now: float) -> bool:
    before, since = times[:place], times[place:]
    usual = statistics.median(before)
    outside = min(since) > max(before) if now > usual else max(since) < min(before)
    return outside and all(abs(math.log(time / now)) < abs(math.log(time / usual)) for time in since)


def _newest_epoch(recorded: RecordedCase, key: str) -> list[SessionTime]:
    """Returns the times under a key in the newest epoch that has it; under any key, one of each session."""
    times = recorded.times.get(key, ()) if key else [time for of in recorded.times.values() for time in of]
    newest = max((time.epoch for time in times), default=0)
    return [*{time.session: time for time in times if time.epoch == newest}.values()]


def points_of(times: Iterable[SessionTime], sessions: Mapping[str, SessionEntry]) -> tuple[Point, ...]:
    """Returns recorded times as points, oldest first."""
    points = []
    for time in times:
        entry = sessions.get(time.session)
        provenance = (entry.provenance if entry else None) or NO_PROVENANCE
        points.append(Point(time.session, moment_of(time.recorded), time.median_ns, time.device, provenance))
    return tuple(sorted(points, key=lambda point: point.recorded or _BEGINNING))


_BEGINNING = datetime.fromtimestamp(0, UTC)


def moment_of(text: str) -> datetime | None:
    """Returns an ISO 8601 time in UTC, or None for one that does not exist, which a file may name."""
    try:
        moment = datetime.fromisoformat(text)
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).astimezone(UTC)
    except (ValueError, OverflowError):  # a month 13, or the year 10000 in UTC
        return None


def session_words(point: Point) -> str:
    """Returns `the session of 21 Nov, recorded on 093d14b`, as far as it is known."""
    day, state = days_of([point]), point.provenance.state
    return "the session" + (f" of {day}" if day else "") + (f", recorded on {state}" if state else "")


def days_of(points: Iterable[Point]) -> str:
    """Returns `20 to 22 Nov`: the days of UTC from the first to the last; with years if these differ."""
    moments = sorted(point.recorded for point in points if point.recorded)
    if not moments:
        return ""
    first, last = moments[0].date(), moments[-1].date()
    in_words = [str(day.day) for day in (first, last)]
    if (first.year, first.month) != (last.year, last.month):
        in_words[0] += f" {_MONTHS[first.month - 1]}" + (f" {first.year}" if first.year < last.year else "")
    in_words[1] += f" {_MONTHS[last.month - 1]}" + (f" {last.year}" if first.year < last.year else "")
    return in_words[1] if first == last else " to ".join(in_words)
