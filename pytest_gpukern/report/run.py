"""Defines what a run found out: the value that every report is made of, and that the file of a run holds."""

from __future__ import annotations

import functools
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from pytest_gpukern.baseline.merge import WriteReport
from pytest_gpukern.baseline.record import Record
from pytest_gpukern.baseline.store import ToPrune
from pytest_gpukern.findings.common_shift import Shift
from pytest_gpukern.package import __version__
from pytest_gpukern.report.rows import ResultRow, rows_of
from pytest_gpukern.report.units import SHOWN, named
from pytest_gpukern.values.fingerprint import Fingerprint
from pytest_gpukern.values.result import GateFailure, JsonDict, Result, Whole
from pytest_gpukern.values.settings import Settings
from pytest_gpukern.values.stored import Stored
from pytest_gpukern.values.verdict_table import VerdictKind

BASELINE, CODE_ON_RECORD = "baseline", "recorded code"
"""What a run is compared with, unless it names a revision or another run."""
UNCHANGED = "UNCHANGED"
"""What tests are that did not run since nothing that they load changed; never PASSED."""
AGAINST = "against "
"""What stands before the short commit of a revision, where a run is compared with one."""


class Skip(NamedTuple):
    """Says which case or test did not run, and why.

    Attributes:
        kind: what the reason is counted as where there are many; empty for itself.
    """

    id: str
    reason: str
    kind: str = ""


class NextStep(NamedTuple):
    """Says in a few words what a command is for; a form prints both, or lets the command be copied."""

    label: str
    command: str

    def __str__(self) -> str:
        return f"{self.label}: {self.command}"


class Failure(Stored, frozen=True):
    """Says why a test failed.

    Attributes:
        text: the first line of the failure.
        reasons: the gate's, if it failed the test, and nothing before it did.
    """

    text: str
    reasons: tuple[GateFailure, ...] = ()

    @property
    def by_the_gate(self) -> bool:
        return bool(self.reasons)


class Voucher(Stored, frozen=True):
    """Says for which tests a run vouches, and what they load: `--gpukern-only-changed=RUN.json` reads it.

    Attributes:
        refused: why the run vouches for no test, in words; empty where it does.
        commit: hash of the commit that it ran on.
        conditions: what has to be equal, such as `library numpy` → `2.4.6`.
        fail_on: the kinds that failed it; a later run must not ask for more.
        opened: what may serve every test, as paths from the repository's top: a module, fixture or plugin may
            have kept it.
        tests: test that passed, and whose every time was judged or is new → what was opened in it, but for
            what its imports tell.
    """

    refused: str = ""
    commit: str = ""
    conditions: dict[str, str] = {}
    fail_on: tuple[str, ...] = ()
    opened: tuple[str, ...] = ()
    tests: dict[str, tuple[str, ...]] = {}


class Unchanged(Stored, frozen=True):
    """Says which tests did not run, since nothing that they load changed, and why the others ran.

    Attributes:
        vouches: `a1b2c3d, where they passed with these libraries, 3 days ago`; empty if nothing vouches.
        tests: those that did not run.
        ran: why others ran → how many did.
    """

    vouches: str = ""
    tests: tuple[str, ...] = ()
    ran: dict[str, Whole] = {}

    @property
    def lines(self) -> list[str]:
        """Returns `412 of 573 not run: nothing that they load differs from …`, and why the others ran."""
        count, running = len(self.tests), sum(self.ran.values())
        reasons = named([f"{why} ({number})" for why, number in self.ran.items()], SHOWN)
        if not self.tests:
            return [f"no test was left out: {reasons}"]
        left = f"{count} of {count + running} not run: nothing that they load differs from {self.vouches}"
        return [left, *([f"{running} run: {reasons}"] if running else [])]


@dataclass(frozen=True)
class RunResults:
    """Holds what a run found out.

    Attributes:
        results: one a test, in the order in which they arrived.
        sessions: test → results of its further and confirming sessions, oldest first, each with its `role`.
        rejected: ids of the broken cases that the checks rejected as they must; these have no result.
        failures: test → why it failed. Some of these tests have no result.
        history: test → its record, as far as a report shows it.
        shift: how the times of all compared results moved together; None where they are too few.
        since_record: what else all cases have in common since the record, a sentence each.
        machine: whether the machine is as recorded, and what differs; empty where nothing was compared.
        compared_with: what verdicts are about, in words.
        heading: lines above the tables.
        closing: lines below them, with the commands that record and accept.
        problems: what went wrong in the run as a whole.
        duration_s: how long the run took until its report was made; None where that is not known.
        spent_s: `phases.Phase` → seconds of all tests and of the run around them. Workers side by
            side spend more than the run takes.
        created: when the run ended.
        version: release of pytest-gpukern that made it.
        name: of the file that it was read from; empty for a run that has just ended.
        unchanged: which tests were left out since nothing that they load changed; None in most runs.
        voucher: for which tests a later run may do so; None where that was not looked at.
        record_of: what baselines hold, as `vector_exp on nvidia-h200`, where these are told of and nothing
            ran; else empty.

    Only the process that ran it knows the others, which no file holds:
        places: test → file and line of its variant, or of the test itself.
        entries: test → what pytest-benchmark's entry of it needs: the `group` of its marker, its `params`.
        listed: test → how pytest-benchmark lists it, of tests that used that plugin's fixture.
        shortened: why fewer sessions were recorded than asked for → cases.
        stale: recorded cases that no longer exist, by file.
        shaping: the run's options without which other cases would be recorded, or elsewhere.
    """

    results: Sequence[Result] = ()
    sessions: Mapping[str, Sequence[Result]] = field(default_factory=dict)
    skips: Sequence[Skip] = ()
    rejected: Sequence[str] = ()
    failures: Mapping[str, Failure] = field(default_factory=dict)
    history: Mapping[str, Record] = field(default_factory=dict)
    shift: Shift | None = None
    since_record: Sequence[str] = ()
    machine: str = ""
    compared_with: str = BASELINE
    heading: Sequence[str] = ()
    closing: Sequence[str | NextStep] = ()
    problems: Sequence[str] = ()
    duration_s: float | None = None
    spent_s: Mapping[str, float] = field(default_factory=dict)
    created: datetime = field(default_factory=lambda: datetime.now(UTC))
    version: str = __version__
    name: str = field(default="", compare=False)
    unchanged: Unchanged | None = None
    voucher: Voucher | None = None
    record_of: str = ""
    settings: Settings = field(default_factory=Settings)
    places: Mapping[str, tuple[str, int]] = field(default_factory=dict)
    entries: Mapping[str, JsonDict] = field(default_factory=dict)
    listed: Mapping[str, JsonDict] = field(default_factory=dict)
    baselines: WriteReport | None = None
    shortened: Mapping[str, Sequence[str]] = field(default_factory=dict)
    stale: Sequence[ToPrune] = ()
    shaping: tuple[str, ...] = ()
    files: tuple[Path, ...] = ()

    @property
    def ran(self) -> bool:
        """Whether any test came to an end: one that passed, failed or rejected a broken case."""
        return bool(self.results or self.rejected or self.failures)

    @property
    def base(self) -> str:
        """Short commit that it is compared with, as `--gpukern-against` takes it; empty for no revision."""
        named = re.fullmatch(f"{AGAINST}([0-9a-f]{{4,40}})", self.compared_with)
        return named[1] if named else ""

    @property
    def benchmarks(self) -> bool:
        """Whether it was to time, also where nothing came to be timed."""
        return self.measured or self.settings.benchmark

    @functools.cached_property
    def measured(self) -> bool:
        """Whether it timed anything outside of the simulator."""
        return any(result.measurements and not result.simulated for result in self.results)

    @functools.cached_property
    def rows(self) -> Sequence[ResultRow]:
        """What each time came to, and each result without any, in the order of `results`."""
        return [row for result in self.results for row in rows_of(result, self.own_failure(result))]

    @functools.cached_property
    def verdicts(self) -> Counter[VerdictKind]:
        """How many times, or cases compiled, have each kind of verdict, in the order of a summary."""
        counts = Counter(row.judged.kind for row in self.rows)
        return Counter({kind: counts[kind] for kind in VerdictKind if counts[kind]})

    @functools.cached_property
    def on_another_card(self) -> bool:
        """Whether it was measured on cards that are not on record."""
        fingerprints = (of.fingerprint for known in self.history.values() for of in known.sessions)
        recorded = {of.device_uuid for of in fingerprints if of.device_uuid}
        used = {of.device_uuid for of in self.on_gpus()}
        return bool(recorded and used) and recorded.isdisjoint(used)

    @property
    def is_record(self) -> bool:
        """Whether it only tells what baselines hold, which were not compared with anything."""
        return bool(self.record_of) and not self.verdicts

    @property
    def nothing_recorded(self) -> bool:
        """Whether it was compared, and none of its times was on record."""
        return self.verdicts.keys() == {VerdictKind.NEW}

    def only(self, text: str) -> RunResults:
        """Returns the run with those cases alone whose id holds a text, and with what is about them."""
        results = {result.nodeid: result for result in self.results if text in result.case.id}
        return RunResults(
            [*results.values()],
            {test: sessions for test, sessions in self.sessions.items() if test in results},
            failures={test: failure for test, failure in self.failures.items() if test in results},
            history=self.history,
            compared_with=self.compared_with,
            created=self.created,
            version=self.version,
            name=self.name,
            record_of=self.record_of,
        )

    def on_gpus(self) -> list[Fingerprint]:
        """Returns what was measured on, of each result that is from a real GPU."""
        return [of.fingerprint for of in self.results if of.case.on_gpu and not of.fingerprint.is_simulated]

    def own_failure(self, result: Result) -> str | None:
        """Returns why a test failed by itself, not by the gate, or None."""
        failure = self.failures.get(result.nodeid)
        return None if failure is None or failure.by_the_gate else failure.text

    def sessions_of(self, result: Result) -> Sequence[Result]:
        return self.sessions.get(result.nodeid, ())
