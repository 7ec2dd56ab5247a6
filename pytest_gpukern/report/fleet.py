"""Tells what was found about the cards of a fleet or of a host: on the terminal, or in a file."""

from __future__ import annotations

import functools
import html
import math
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC
from typing import NamedTuple

from pytest_gpukern.findings.cards import LIMITS, Card, CardFinding, CardVerdict, Cause, Facts
from pytest_gpukern.findings.fleet import FEWEST_CARDS, FleetChange, FleetFinding, FleetFindings, Kind, Model
from pytest_gpukern.gate.change import percent, ratio_of
from pytest_gpukern.report import units
from pytest_gpukern.report.csv_table import written
from pytest_gpukern.report.layout import Column, table, wrapped
from pytest_gpukern.values.grouping import grouped
from pytest_gpukern.values.untrusted_json import FileError, bounded, printable

_MOST_OF_A_KIND = 5
"""Findings that the terminal tells."""
_MOST_IN_TABLE = 8
_LONGEST_TEXT = 300
_ONE_OF_TWO = "Two cards do not tell which of them is off: no physical cause says it"
_UNEXPLAINED = (
    "nothing that NVML tells explains it: look at cooling, power and firmware (nvidia-smi -q -i {index}), "
    "move it to another slot, and validate again before you have it replaced"
)
_NOT_YET = "not confirmed yet"
_SINCE = " since before, beside the fleet"
_VALIDATE = "gpukern validate --gpukern-report=FOLDER/"


class Row(NamedTuple):
    """Tells one finding: a kind such as `SLOW`, the card, host, driver or case, and what to do about it.

    `cards` are the cards that it is about.
    """

    kind: Kind
    where: str
    text: str
    remedies: tuple[str, ...] = ()
    cards: tuple[Card, ...] = ()


_WRONG = "gpukern report FILE -k {quoted} tells what is wrong"
_BITS = "bits of {outputs} differ from those of the other cards in {sessions}: {names}"
_SLOWER = "{cards} are slower: {shifts}, {confirmed}"
_OTHER_VERSION = "measure one with the version before"
_SAID = {
    "wrong": ("wrong output of {cases} on {on}", _WRONG),
    "wrong everywhere": (
        "wrong output of {cases} on {number} of {of} cards: it is the kernel, driver or library",
        _WRONG,
    ),
    "bits": (_BITS, "take the card out of service, and test it: dcgmi diag -r 3"),
    "odd bits": (_BITS, ""),
    "driver": (f"all {_SLOWER}", _OTHER_VERSION),
    "libraries": (f"all {_SLOWER}", _OTHER_VERSION),
    "host": (f"its {_SLOWER}", "look at cooling and power of the host"),
    "missing": ("reported nothing", "see whether the host and its task came up"),
    "told": ("{names}", ""),
    "few": ("{cards}, and most hosts have {of}", "nvidia-smi -L lists its cards; dmesg has Xid errors"),
    "lacking": ("no valid time of {cases} that most cards have: {names}", ""),
}
"""What a finding is about → words, and a remedy."""


def _of_finding(
    finding: FleetFinding, causes: Sequence[Cause] = (), confirmed: str = "", since: str = ""
) -> Row:
    text, remedy = _SAID[finding.what]
    values = {
        "quoted": shlex.quote(printable(finding.where)),
        "names": units.named(finding.names),
        "on": units.named(finding.cards),
        "number": finding.number,
        "of": finding.of,
        **{f"{noun}s": units.counted(finding.number, noun) for noun in ("card", "session")},
        **{f"{noun}s": units.counted(len(finding.names), noun) for noun in ("output", "case")},
        "shifts": _changes(finding.shifts, finding.shifts) + since,
        "confirmed": confirmed if finding.kind is Kind.SLOW else _NOT_YET,
    }
    texts = (text.format(**values), *(cause.text for cause in causes))
    remedies = _remedies((cause.remedy for cause in causes), finding.cards[0]) if causes else ()
    remedies = remedies or tuple(filter(None, (remedy.format(**values),)))
    where = f"{finding.what} {finding.where}" if finding.what in ("driver", "libraries") else finding.where
    return Row(finding.kind, where, "; ".join(texts), remedies, finding.cards)


def _of_card(card: Card, finding: CardFinding, confirmed: str, since: str) -> Row:
    """Returns what a card's verdict rests on, what is known of the cause, and what to do."""
    slower = f"{_changes(finding.shifts, finding.slower)}{since}, {confirmed}"
    words = {
        CardVerdict.SLOW: slower,
        CardVerdict.ONE_OF_TWO: f"slower than the other by {slower}. {_ONE_OF_TWO}",
        CardVerdict.ONE_CLASS: f"{slower}, but in one class and without a physical cause, so not called slow",
        CardVerdict.SUSPECTED: f"{_changes(finding.shifts, finding.suspected)}{since}, {_NOT_YET}",
    }.get(finding.verdict, "")
    causes = [cause for cause in finding.causes if cause.fault or finding.slower or finding.suspected]
    text = "; ".join(filter(None, (words, *(cause.text for cause in causes))))
    remedies = _remedies([cause.remedy for cause in causes] or [_UNEXPLAINED] * finding.bad, card)
    kind = Kind.SLOW if finding.bad else Kind.SUSPECTED if finding.suspected else Kind.NOTED
    return Row(kind, str(card), text, remedies, (card,))


def _remedies(texts: Iterable[str], card: Card) -> tuple[str, ...]:
    index = card.index.partition(" ")[0] or card.uuid
    return tuple(dict.fromkeys(text.format(index=index) for text in texts))


def _changes(shifts: Mapping[str, float], names: Iterable[str]) -> str:
    return ", ".join(f"{percent(shifts[name])} in {name}" for name in names)


@dataclass(frozen=True)
class FleetReport:
    """Holds what the terminal or a file tells of a fleet; `unreadable` says why files are not judged."""

    fleet: FleetFindings
    unreadable: Sequence[FileError] = ()
    change: FleetChange | None = None

    @functools.cached_property
    def rows(self) -> list[Row]:
        """All findings, what is worst first."""
        rows = [*map(_of_finding, self.fleet.findings)]
        for error in self.unreadable:
            text = f"{f'{error.where}: ' if error.where else ''}{error.problem}; the others are judged"
            rows.append(Row(Kind.UNREADABLE, str(error.path), text, (error.remedy,)))
        confirmed = f"confirmed by {units.counted(self.fleet.confirmed_by, 'other session')}"
        models = [(model, "") for model in self.fleet.models]
        models += [(model, _SINCE) for model in (self.change.moved.models if self.change else ())]
        for model, since in models:
            for group in model.groups:
                causes = model.cards[group.cards[0]].causes if group.what == "host" else ()
                rows.append(_of_finding(group, causes, confirmed, since))
            for card, finding in model.cards.items():
                doubtful = finding.verdict in (CardVerdict.SUSPECTED, CardVerdict.ONE_CLASS)
                if finding.bad or doubtful or any(cause.of_memory for cause in finding.causes):
                    rows.append(_of_card(card, finding, confirmed, since))
        return sorted(rows, key=lambda row: [*Kind].index(row.kind))

    @property
    def drain(self) -> list[str]:
        """The hosts to take out of service."""
        moved = self.change.moved.to_drain if self.change else []
        return list(dict.fromkeys([*self.fleet.to_drain, *moved]))

    @property
    def verdict(self) -> list[str]:
        """The verdict in one line; then how the cards were compared, and what has changed since before."""
        cards, kinds = self.fleet.cards, [row.kind for row in self.rows]
        hosts = units.counted(len({card.host for card in cards}), "host")
        result = ", ".join(f"{kinds.count(kind)} {kind}" for kind in dict.fromkeys(kinds))
        first = f"{units.counted(len(cards), 'card')} of {hosts}: {result or 'nothing stands out'}"
        return [first, *map(_context, self.fleet.models), *(_of_change(self.change) if self.change else ())]

    @property
    def notes(self) -> list[str]:
        """What else to know about it."""
        fleet, notes = self.fleet, []
        if fleet.failed:
            failed = units.counted(sum(fleet.failed.values()), "failed test")
            on = units.counted(len(fleet.failed), "card")
            notes.append(f"{failed} on {on}: gpukern report FILE tells why")
        if any(row.kind is Kind.SUSPECTED for row in self.rows):
            notes.append(f"to confirm, measure these cards again, three sessions in all: {_VALIDATE}")
        verdicts = [of.verdict for model in fleet.models if model.spreads for of in model.cards.values()]
        if alone := verdicts.count(CardVerdict.NOT_COMPARED):
            notes.append(f"{units.counted(alone, 'card')} not compared: too few valid times that others have")
        if not fleet.models:
            notes.append("no run measured on a GPU, so no times are compared")
        if not fleet.knows_hosts:
            notes.append("hosts that reported nothing cannot be seen: name all in a file, --expect=FILE")
        if others := _other_versions(fleet.cards):
            notes.append(f"other versions: {units.named(others)}")
        first, last = (f"{moment.astimezone(UTC):%Y-%m-%d %H:%M}" for moment in fleet.measured)
        return [*notes, f"measured from {first} to {last} UTC, judged as one time"]

    def cards(self) -> list[dict[str, str | float | None]]:
        """Returns a row for each card: who it is, its verdict, shifts in percent, facts and causes."""
        kinds_of = grouped((card, row.kind) for row in self.rows for card in row.cards)
        return [
            {
                "host": card.host,
                "index": card.index,
                "uuid": card.uuid,
                "model": card.model,
                "driver": card.driver,
                "findings": " ".join(dict.fromkeys(kinds_of.get(card, ()))),
                "verdict": finding.verdict.value,
                **{f"{name} %": _percent(finding.shifts.get(name, math.nan)) for name in LIMITS},
                "confirmed": " ".join(finding.slower),
                "failed tests": self.fleet.failed.get(card, 0),
                **_facts(finding.facts),
                "causes": "; ".join(cause.text for cause in finding.causes),
            }
            for model in self.fleet.models
            for card, finding in model.cards.items()
        ]


def _percent(shift: float) -> float | None:
    ratio = ratio_of(shift)
    return round(100 * (ratio - 1), 3) if math.isfinite(ratio) else None


def _context(model: Model) -> str:
    how = "too few kernels have times on two cards, so none are compared"
    if len(model.cards) >= FEWEST_CARDS:
        classes = (
            f"{units.share(spread)} in {name}, suspected from {percent(limit)}"
            for name, (spread, limit) in model.spreads.items()
        )
        how = f"cards differ by (standard deviation) {'; '.join(classes)}"
    elif len(model.cards) == 1:
        how = "there is no other of this model, so only its own record says whether it is slow"
    elif model.spreads:
        how = f"fewer than {FEWEST_CARDS} cards, judged by fixed limits"
    return f"{model.name}, {units.counted(len(model.cards), 'card')}: {how}"


def _other_versions(cards: Iterable[Card]) -> list[str]:
    """Returns what cards have in another version than most: `numba 0.67 on node1 GPU 0 (most: 0.68)`."""
    on = grouped((pair, card) for card in cards if card.model for pair in card.versions)
    by_name = grouped((name, (version, cards)) for (name, version), cards in on.items())
    lines = []
    for name, of in by_name.items():
        *others, (usual, _) = sorted(of, key=lambda pair: len(pair[1]))
        lines += [f"{name} {version} on {units.named(cards)} (most: {usual})" for version, cards in others]
    return lines


def _of_change(change: FleetChange) -> Iterator[str]:
    for model, shifts in change.shifts.items():
        both = f"since before, {units.counted(change.cards, 'card')} on both sides, {model}"
        yield f"{both}: {_changes(shifts, shifts) or 'too few kernels to compare'}"
    if change.canaries:
        yield f"fixed kernels of each session: {_changes(change.canaries, change.canaries)}"
    if change.versions:
        versions = (
            f"{name} {units.named(old) or 'none'} → {units.named(new) or 'none'}"
            for name, (old, new) in change.versions.items()
        )
        yield f"versions: {', '.join(versions)}"


# --- the terminal ---------------------------------------------------------------------------------


def terminal(report: FleetReport, width: int) -> list[str]:
    """Returns the verdict, the first findings of every kind, and what to know about the method."""
    lines = _wrapped((bounded(text, _LONGEST_TEXT) for text in report.verdict), width)
    if len(report.fleet.cards) <= _MOST_IN_TABLE:
        for model in report.fleet.models:
            lines += [*_tables(model, width, report.fleet.failed), ""]
    for kind, rows in grouped((row.kind, row) for row in report.rows).items():
        for row in rows[:_MOST_OF_A_KIND]:
            lines += _lines_of(row, width)
        more = len(rows) - _MOST_OF_A_KIND
        lines += [f"and {more} more {kind}: -o fleet.html has all"] if more > 0 else []
    return lines + _wrapped((bounded(note, _LONGEST_TEXT) for note in report.notes), width)


def _wrapped(texts: Iterable[str], width: int, indent: str = "") -> list[str]:
    return [part.text for text in texts for part in wrapped(text, width, indent=indent)]


def _lines_of(row: Row, width: int) -> list[str]:
    text = bounded(f"{row.kind} {row.where}: {row.text}", _LONGEST_TEXT)
    return [*_wrapped([text], width), *_wrapped((f"→ {remedy}" for remedy in row.remedies), width, "  ")]


def _tables(model: Model, width: int, failed: Mapping[Card, int]) -> Iterator[str]:
    """Yields a row for each card by its shifts, then one with what is known of it; no column is empty."""
    findings = model.cards.values()
    logs = {name: [of.shifts.get(name, math.nan) for of in findings] for name in LIMITS}
    changes = {name: [units.change(ratio_of(log)) for log in of] for name, of in logs.items()}
    failures = [str(failed.get(card, 0)) for card in model.cards]
    verdicts = [of.verdict.value if len(findings) > 1 else "" for of in findings]
    facts = [_facts(finding.facts) for finding in findings]
    known = {title: [of[title] for of in facts] for title in _FACTS}
    texts = ("card", "verdict", "clocks held down", "PCIe")
    for columns in ({**changes, "failed tests": failures, "verdict": verdicts}, known):
        cells = {"card": map(str, model.cards), **columns}
        shown = [Column(title, tuple(of), numeric=title not in texts) for title, of in cells.items()]
        some = [column for column in shown if {*column.cells} - {units.NOTHING, _UNKNOWN}]
        yield from ("", *table(some, width, indent="  ")[0])


_UNKNOWN = "unknown"
_FACTS = {
    "SM clock": "%(sm_mhz).0f MHz",
    "memory clock": "%(memory_mhz).0f MHz",
    "power of limit": "%(power_w).0f of %(power_limit_w).0f W",
    "hottest": "%(temperature_c).0f °C",
    "clocks held down": "%(held)s",
    "ECC corrected": "%(corrected_errors).0f",
    "uncorrected": "%(uncorrected_errors).0f",
    "replaced rows": "%(remapped_rows).0f",
    "PCIe": "%(pcie.generation).0f x%(pcie.width).0f of %(pcie.max_generation).0f x%(pcie.max_width).0f",
}


def _facts(of: Facts) -> dict[str, str]:
    """Returns what is known of a card in words, by the titles of `_FACTS`."""
    held = {name.removeprefix("limited_s."): s for name, s in of.items() if name.startswith("limited_s.")}
    texts = (f"{event} {seconds:.1f} s" for event, seconds in held.items() if seconds >= 0.05)
    known = {**of, "held": ", ".join(texts) or "never"} if held else of
    cells = {}
    for title, text in _FACTS.items():
        try:
            cells[title] = text % known
        except KeyError:
            cells[title] = _UNKNOWN
    return cells


# --- files ----------------------------------------------------------------------------------------


def _html(report: FleetReport) -> str:
    def html_table(titles: Iterable[str], body: Iterable[Iterable[object]]) -> str:
        lines: list[tuple[str, Iterable[object]]] = [("th", titles), *(("td", row) for row in body)]
        cells = ("".join(f"<{tag}>{_escaped(cell)}" for cell in line) for tag, line in lines)
        return f"<table>{''.join(f'<tr>{line}' + chr(10) for line in cells)}</table>"

    first, *others = map(_escaped, (*report.verdict, *report.notes))
    parts = [f"{_PAGE}<h1>gpukern fleet: {first}</h1>", *(f"<p>{line}</p>" for line in others)]
    cards = report.cards()
    findings = [(row.kind, row.where, row.text, "; ".join(row.remedies)) for row in report.rows]
    parts += [html_table(("finding", "where", "what", "to do"), findings)] if findings else []
    parts += [html_table(cards[0], [row.values() for row in cards])] if cards else []
    return "\n".join(parts) + "\n"


def _escaped(cell: object) -> str:
    return html.escape(printable("" if cell is None else str(cell)))


_PAGE = """<!doctype html><html lang="en"><meta charset="utf-8"><title>gpukern fleet</title>
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<style>body{font:14px sans-serif;margin:2em}
table{border-collapse:collapse;margin:1em 0;display:block;overflow-x:auto}
table:first-of-type td+td{overflow-wrap:anywhere}
td,th{border-bottom:1px solid #ccc;padding:.2em .6em;text-align:left;vertical-align:top}</style>
"""

FORMS: dict[str, Callable[[FleetReport], str]] = {
    ".html": _html,
    ".csv": lambda report: written(report.cards()) or "host\n",
}
"""Suffix → what makes such a file."""
