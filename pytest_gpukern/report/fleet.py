"""Tells what was found about the cards of a fleet or of a host: on the terminal, or in a file."""

from __future__ import annotations

import functools
import itertools
import math
import shlex
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC
from typing import NamedTuple

from pytest_gpukern.findings.cards import COPIES, LIMITS, Card, CardFinding, CardVerdict, Cause, Facts
from pytest_gpukern.findings.fleet import FEWEST_CARDS, FleetChange, FleetFinding, FleetFindings, Kind, Model
from pytest_gpukern.gate.change import percent, ratio_of
from pytest_gpukern.report import units
from pytest_gpukern.report.csv_table import written
from pytest_gpukern.report.html import page
from pytest_gpukern.report.layout import Column, table, wrapped
from pytest_gpukern.values.grouping import grouped
from pytest_gpukern.values.untrusted_json import FileError, bounded, printable

_MOST_OF_A_KIND = 5
"""Findings that the terminal tells."""
_MOST_IN_TABLE = 8
_MOST_HOSTS = 12
_LONGEST_TEXT = 300
_UNEXPLAINED = (
    "nothing that NVML tells explains it: look at cooling, power and firmware (nvidia-smi -q -i {index}), "
    "move it to another slot, and validate again before you have it replaced"
)
_FASTER = "see whether its clocks or power limit are set otherwise: nvidia-smi -q -d CLOCK,POWER -i {index}"
_NOT_YET = ", not confirmed yet"
_OF_TWO = ". Two cards do not tell which of them is off: no physical cause says it"
_OF_ONE_CLASS = ", but in one class and without a physical cause, so not called slow"
_PEERS, _BEFORE = "its peers", "before, beside its peers"
_TELLS = {
    CardVerdict.SLOW: (Kind.SLOW, "", _UNEXPLAINED),
    CardVerdict.ONE_OF_TWO: (Kind.SLOW, _OF_TWO, _UNEXPLAINED),
    CardVerdict.ONE_CLASS: (Kind.NOTED, _OF_ONE_CLASS, ""),
    CardVerdict.SUSPECTED: (Kind.SUSPECTED, _NOT_YET, ""),
    CardVerdict.FASTER: (Kind.NOTED, "", _FASTER),
}
"""Verdict that names a card → what it is called, what is said behind its shifts, and a remedy."""
_badness = [*Kind].index
_VALIDATE = "gpukern validate --gpukern-report=FOLDER/"


class Row(NamedTuple):
    """Tells one finding: a kind such as `SLOW`, the card, host, driver or case, and what to do about it.

    `cards` are the cards that it is about; as a string it is the line that each form tells.
    """

    kind: Kind
    where: str
    text: str
    remedies: tuple[str, ...] = ()
    cards: tuple[Card, ...] = ()

    def __str__(self) -> str:
        return f"{self.kind} {self.where}: {self.text}"


_WRONG = "gpukern report FILE -k {quoted} tells what is wrong"
_BITS = "bits of {outputs} differ from those of the other cards in {sessions}: {names}"
_OTHER_VERSION = "measure one with the version before"
_SAID = {
    "wrong": ("wrong output of {cases}: {names}", _WRONG),
    "wrong everywhere": (
        "wrong output of {cases} on {number} of {of} cards: it is the kernel, driver or library",
        _WRONG,
    ),
    "bits": (_BITS, "take the card out of service, and test it: dcgmi diag -r 3"),
    "odd bits": (_BITS, ""),
    "driver": ("all {cards}, {slower}", _OTHER_VERSION),
    "libraries": ("all {cards}, {slower}", _OTHER_VERSION),
    "host": ("its {cards}, {slower}", "look at cooling and power of the host"),
    "missing": ("reported nothing", "see whether the host and its task came up"),
    "told": ("{names}", ""),
    "few": ("{cards}, and most hosts have {of}", "nvidia-smi -L lists its cards; dmesg has Xid errors"),
    "lacking": ("no valid time of {cases} that most cards have: {names}", ""),
    "one place": ("{names} were both there", "see whether one was replaced, or two hosts have one name"),
}
"""What a finding is about → words, and a remedy."""


def _of_finding(finding: FleetFinding, causes: Sequence[Cause] = (), slower: str = "") -> Row:
    text, remedy = _SAID[finding.what]
    values = {
        "quoted": shlex.quote(printable(finding.where)),
        "names": units.named(finding.names),
        "number": finding.number,
        "of": finding.of,
        **{f"{noun}s": units.counted(finding.number, noun) for noun in ("card", "session")},
        **{f"{noun}s": units.counted(len(finding.names), noun) for noun in ("output", "case")},
        "slower": slower,
    }
    texts = (text.format(**values), *(cause.text for cause in causes))
    remedies = _remedies((cause.remedy for cause in causes), finding.cards[0]) if causes else ()
    remedies = remedies or tuple(filter(None, (remedy.format(**values),)))
    where = f"{finding.what} {finding.where}" if finding.what in ("driver", "libraries") else finding.where
    where = units.named(finding.cards) if finding.what == "wrong" else where
    return Row(finding.kind, where, "; ".join(texts), remedies, finding.cards)


class _Side(NamedTuple):
    """Holds the log ratios that stand out, of all classes compared with peers or with before, and a doubt."""

    than: str
    shifts: Mapping[str, float]
    compared: Iterable[str]
    doubt: str

    @property
    def words(self) -> str:
        """By how much: `all kernels 6.2 % slower`; a range where classes differ by more than a tenth."""
        kernels = {name: shift for name, shift in self.shifts.items() if name != COPIES}
        whole = len(kernels) > 1 and kernels.keys() == {*self.compared} - {COPIES}
        name = f"{'all' if whole else ' and '.join(kernels)} kernels"
        texts = [f"{name} {_range([*kernels.values()])}"] if kernels else []
        texts += [f"{COPIES} {_range([self.shifts[COPIES]])}"] if COPIES in self.shifts else []
        return f"{', '.join(texts)} {'slower' if max(self.shifts.values()) > 0 else 'faster'}"


def _alike(shifts: Sequence[float]) -> bool:
    return max(shifts) - min(shifts) <= 0.1 * max(map(abs, shifts))


def _range(shifts: Sequence[float]) -> str:
    ends = [statistics.median(shifts)] if _alike(shifts) else [min(shifts), max(shifts)]
    return " to ".join(percent(shift).lstrip("+−") for shift in ends)


def _told(sides: Iterable[_Side]) -> str:
    first, *others = sides
    for side in others:
        both = [statistics.median(of.shifts.values()) for of in (first, side)]
        if (side.shifts.keys(), side.doubt) == (first.shifts.keys(), first.doubt) and _alike(both):
            return f"{first.words} than {first.than}, and than before{first.doubt}"
    return "; ".join(f"{side.words} than {side.than}{side.doubt}" for side in (first, *others))


def _of_group(sides: Sequence[tuple[str, Model, FleetFinding]]) -> Row:
    """Returns what the cards of a host, driver or set of libraries have in common."""
    _, model, worst = min(sides, key=lambda side: _badness(side[2].kind))
    shifted = (
        _Side(than, of.shifts, known.cards[of.cards[0]].shifts, _NOT_YET * (of.kind is Kind.SUSPECTED))
        for than, known, of in sides
    )
    causes = model.cards[worst.cards[0]].causes if worst.what == "host" else ()
    return _of_finding(worst, causes, _told(shifted))


def _of_card(card: Card, sides: Sequence[tuple[str, CardFinding]]) -> Row | None:
    """Returns what a card's verdicts rest on, what is known of the cause, and what to do; None if nothing."""
    shifted, kinds, remedies, causes = [], [Kind.NOTED], list[str](), dict[Cause, None]()
    for than, of in sides:
        out = of.slower or of.suspected or of.faster
        causes |= dict.fromkeys(cause for cause in of.causes if cause.fault or of.slower or of.suspected)
        if of.verdict in _TELLS:
            kind, doubt, remedy = _TELLS[of.verdict]
            shifted.append(_Side(than, {name: of.shifts[name] for name in out}, of.shifts, doubt))
            kinds, remedies = [*kinds, kind], [*remedies, *filter(None, [remedy])]
    if not shifted and not any(cause.of_memory for cause in causes):
        return None
    texts = [*([_told(shifted)] if shifted else ()), *(cause.text for cause in causes)]
    remedies = [cause.remedy for cause in causes] or remedies
    return Row(min(kinds, key=_badness), str(card), "; ".join(texts), _remedies(remedies, card), (card,))


def _remedies(texts: Iterable[str], card: Card) -> tuple[str, ...]:
    index = card.index or card.uuid
    return tuple(dict.fromkeys(text.format(index=index) for text in texts))


def _changes(shifts: Mapping[str, float], names: Iterable[str]) -> str:
    return ", ".join(f"{percent(shifts[name])} in {name}" for name in names)


@dataclass(frozen=True)
class FleetReport:
    """Holds what is told of a fleet; `unreadable` are files that are not judged, `listed` names of hosts."""

    fleet: FleetFindings
    unreadable: Sequence[FileError] = ()
    change: FleetChange | None = None
    listed: Mapping[str, str] = field(default_factory=dict)

    @functools.cached_property
    def rows(self) -> list[Row]:
        """All findings, what is worst first."""
        rows = [*map(_of_finding, self.fleet.findings)]
        for error in self.unreadable:
            text = f"{f'{error.where}: ' if error.where else ''}{error.problem}; the others are judged"
            rows.append(Row(Kind.UNREADABLE, str(error.path), text, (error.remedy,)))
        sides = [(_PEERS, model) for model in self.fleet.models]
        sides += [(_BEFORE, model) for model in (self.change.moved.models if self.change else ())]
        their = [(than.replace("its", "their"), model) for than, model in sides]
        groups = (((group.what, group.where), (*side, group)) for side in their for group in side[1].groups)
        rows += map(_of_group, grouped(groups).values())
        cards = ((card, (than, of)) for than, model in sides for card, of in model.cards.items())
        rows += filter(None, itertools.starmap(_of_card, grouped(cards).items()))
        return sorted(rows, key=lambda row: _badness(row.kind))

    @property
    def drain(self) -> list[str]:
        """The hosts to take out of service, as the list of hosts names them."""
        moved = self.change.moved.to_drain if self.change else []
        hosts = dict.fromkeys([*self.fleet.to_drain, *moved])
        return [self.listed.get(host, host) for host in hosts if host]

    @property
    def headline(self) -> str:
        """What to take out of service: `Drain 2 hosts: node3, node7`; or why nothing. Empty without hosts."""
        if not any(card.host for card in self.fleet.cards):
            return ""
        if drain := self.drain:
            return f"Drain {units.counted(len(drain), 'host')}: {units.named(drain, _MOST_HOSTS)}"
        none = "no card is confirmed to be slow or wrong by itself" if self.rows else "nothing stands out"
        return f"Drain no host: {none}"

    @property
    def counts(self) -> str:
        """How many findings of each kind there are: `24 cards of 12 hosts: 1 CORRUPT, 1 SLOW`."""
        cards, kinds = self.fleet.cards, [row.kind for row in self.rows]
        hosts = units.counted(len({card.host for card in cards}), "host")
        result = ", ".join(f"{kinds.count(kind)} {kind}" for kind in dict.fromkeys(kinds))
        return f"{units.counted(len(cards), 'card')} of {hosts}: {result or 'nothing stands out'}"

    @property
    def notes(self) -> list[str]:
        """How the cards were compared, what has changed since before, and what else to know."""
        fleet = self.fleet
        notes = [*map(_context, fleet.models), *(_of_change(self.change) if self.change else ())]
        if fleet.failed:
            failed = units.counted(sum(fleet.failed.values()), "failed test")
            on = units.counted(len(fleet.failed), "card")
            notes.append(f"{failed} on {on}: gpukern report FILE tells why")
        if any(row.kind is Kind.SLOW for row in self.rows):
            notes.append(f"each SLOW was confirmed by {units.counted(fleet.confirmed_by, 'other session')}")
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
        found = dict.fromkeys(self.fleet.cards, CardFinding(CardVerdict.NOT_COMPARED, {}))
        found |= {card: finding for model in self.fleet.models for card, finding in model.cards.items()}
        return [
            {
                "host": card.host,
                "index": card.index,
                "uuid": card.uuid,
                "model": card.model,
                "driver": card.driver,
                "findings": " ".join(dict.fromkeys(kinds_of.get(card, ()))),
                "verdict": _verdict(kinds_of.get(card, ()), finding.verdict),
                **{f"{name} %": _percent(finding.shifts.get(name, math.nan)) for name in LIMITS},
                "confirmed": " ".join(finding.slower),
                "failed tests": self.fleet.failed.get(card, 0),
                **_facts(finding.facts),
                "causes": "; ".join(cause.text for cause in finding.causes),
            }
            for card, finding in found.items()
        ]


def _verdict(kinds: Iterable[Kind], of_times: CardVerdict) -> str:
    """Returns the verdict on a card's times, behind the findings that it does not tell."""
    others = [kind for kind in dict.fromkeys(kinds) if kind not in of_times]
    return ", ".join([*others, *([] if others and of_times is CardVerdict.ALIKE else [of_times])])


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
    usual = dict(sorted(on, key=lambda pair: len(on[pair])))  # name → version; the commonest comes last
    return [
        f"{name} {version} on {units.named(cards)} (most: {usual[name]})"
        for (name, version), cards in on.items()
        if version != usual[name]
    ]


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
    """Returns what to drain, the first findings of every kind, and what to know about the method."""
    lines = _wrapped(filter(None, (report.headline, report.counts)), width)
    for kind, rows in grouped((row.kind, row) for row in report.rows).items():
        for row in rows[:_MOST_OF_A_KIND]:
            lines += _wrapped([bounded(str(row), _LONGEST_TEXT)], width)
            lines += _wrapped((f"→ {remedy}" for remedy in row.remedies), width, "  ")
        more = len(rows) - _MOST_OF_A_KIND
        lines += [f"and {more} more {kind}: -o fleet.html has all"] if more > 0 else []
    if len(report.fleet.cards) <= _MOST_IN_TABLE:
        for model in report.fleet.models:
            lines += [*_tables(model, width, report), ""]
    return lines + _wrapped((bounded(note, _LONGEST_TEXT) for note in report.notes), width)


def _wrapped(texts: Iterable[str], width: int, indent: str = "") -> list[str]:
    return [part.text for text in texts for part in wrapped(text, width, indent=indent)]


def _tables(model: Model, width: int, report: FleetReport) -> Iterator[str]:
    """Yields a row for each card by its shifts, then one with what is known of it; no column is empty."""
    findings, failed = model.cards.values(), report.fleet.failed
    logs = {name: [of.shifts.get(name, math.nan) for of in findings] for name in LIMITS}
    changes = {name: [units.change(ratio_of(log)) for log in of] for name, of in logs.items()}
    failures = [str(failed.get(card, 0)) for card in model.cards]
    told = {row["uuid"]: str(row["verdict"]) for row in report.cards()}
    verdicts = [told[card.uuid] if len(findings) > 1 else "" for card in model.cards]
    facts = [_facts(finding.facts) for finding in findings]
    known = {title: [of[title] for of in facts] for title in _FACTS}
    texts = ("card", "verdict", "clocks held down", "PCIe")
    for columns in ({"verdict": verdicts, **changes, "failed tests": failures}, known):
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

_TONES = dict(zip(Kind, (*["bad"] * 3, *["doubt"] * 3, "faint"), strict=True))


def _html(report: FleetReport) -> bytes:
    lines = {card: str(row) for row in reversed(report.rows) for card in row.cards}
    *notes, measured = report.notes
    fleet = {
        "name": measured,
        "headline": (report.headline or report.counts).split(": ", 1),
        "tone": "bad" if report.drain else "" if report.rows else "good",
        "counts": report.counts,
        "findings": [(row.kind, row.where, row.text, row.remedies) for row in report.rows],
        "missing": [of.where for of in report.fleet.findings if of.what == "missing"],
        "cards": [
            {**row, "name": str(card), "line": lines.get(card, str(card))}
            for card, row in zip(report.fleet.cards, report.cards(), strict=True)
        ],
        "models": [
            (model.name, [(name, _percent(limit)) for name, (_, limit) in model.spreads.items()])
            for model in report.fleet.models
        ],
        "facts": [*_FACTS],
        "notes": notes,
    }
    return page((), fleet=fleet, tones=_TONES)


FORMS: dict[str, Callable[[FleetReport], str | bytes]] = {
    ".html": _html,
    ".csv": lambda report: written(report.cards()) or "host\n",
}
"""Suffix → what makes such a file."""
