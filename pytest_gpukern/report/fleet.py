"""Tells what was found about the cards of a fleet or of a host: on the terminal, or in a file."""

from __future__ import annotations

import csv
import html
import io
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from pytest_gpukern.findings.cards import LIMITS, Card, CardFacts, CardFinding, CardVerdict
from pytest_gpukern.findings.fleet import FEWEST_CARDS, Change, Corruption, FleetFindings, Group, Model, Wrong
from pytest_gpukern.gate.change import percent, ratio_of
from pytest_gpukern.gpu.nvml import PcieLink
from pytest_gpukern.report import units
from pytest_gpukern.report.csv_table import harmless
from pytest_gpukern.report.layout import Column, table, wrapped
from pytest_gpukern.report.markdown import unmarked
from pytest_gpukern.values.untrusted_json import FileError, bounded, printable

_MOST_LINES = 30
_MOST_NAMES = 5
_MOST_IN_TABLE = 8
_LONGEST_TEXT = 300
_UNKNOWN = "unknown"
_ONE_OF_TWO = "Two cards do not tell which of them is off: neither record nor physical cause says it"
_UNEXPLAINED = (
    "nothing that NVML tells explains it: look at cooling, power and firmware (nvidia-smi -q -i {index}), "
    "move it to another slot, and validate again before you have it replaced"
)
_SINCE = " since before, beside the fleet"
_VALIDATE = "gpukern validate --gpukern-report=FOLDER/"


class Row(NamedTuple):
    """Tells one finding.

    Attributes:
        kind: a word, such as `SLOW`; rows of one kind follow each other.
        where: card, host, driver or case.
        text: what was found.
        remedies: what to do about it.
    """

    kind: str
    where: str
    text: str
    remedies: tuple[str, ...] = ()


def rows(
    found: FleetFindings, unreadable: Sequence[FileError] = (), change: Change | None = None
) -> list[Row]:
    """Returns all findings, what is worst first."""
    slow, rest, sessions = list[Row](), list[Row](), found.confirmed_by
    judged = [(model, "") for model in found.models]
    for model, since in judged + [(model, _SINCE) for model in (change.moved if change else ())]:
        for group in model.groups:
            (slow if group.confirmed else rest).append(_of_group(group, model, sessions, since))
        for card, finding in model.cards.items():
            if finding.verdict in (CardVerdict.SUSPECTED, CardVerdict.ONE_CLASS) or finding.bad:
                (slow if finding.bad else rest).append(of_card(card, finding, sessions, since))
    corrupt, odd = (
        [_corrupt(of) for of in found.corrupt if (of.sessions > 1) == sure] for sure in (True, False)
    )
    return [*map(_wrong, found.wrong), *corrupt, *slow, *_of_silence(found, unreadable), *odd, *rest]


def _wrong(wrong: Wrong) -> Row:
    text = f"wrong output on {_named(wrong.cards)}"
    if wrong.everywhere:
        text = f"wrong output on {len(wrong.cards)} of {wrong.of} cards: it is the kernel, driver or library"
    return Row("WRONG", wrong.case, text, (f"gpukern report FILE -k {wrong.case!r} tells what is wrong",))


def _corrupt(corrupt: Corruption) -> Row:
    differ = f"bits of {units.counted(len(corrupt.outputs), 'output')} differ from those of the other cards"
    text = f"{differ} in {units.counted(corrupt.sessions, 'session')}: {_named(corrupt.outputs)}"
    if corrupt.sessions == 1:
        return Row("suspected", str(corrupt.card), text)
    return Row(
        "CORRUPT", str(corrupt.card), text, ("take the card out of service, and test it: dcgmi diag -r 3",)
    )


def _of_group(group: Group, model: Model, sessions: int, since: str) -> Row:
    shifts, of_host = _changes(group.shifts, group.confirmed or group.shifts), group.kind == "host"
    who = f"{'its' if of_host else 'all'} {len(group.cards)} cards are slower"
    told = model.cards[group.cards[0]].causes if of_host else ()
    text = "; ".join(
        (f"{who}: {shifts}{since}, {_confirmed(group.confirmed, sessions)}", *(cause.text for cause in told))
    )
    usual = "look at cooling and power of the host" if of_host else "measure one with the version before"
    remedies = dict.fromkeys(cause.remedy.format(index=group.cards[0].index) for cause in told)
    where = group.name if of_host else f"{group.kind} {group.name}"
    return Row("SLOW" if group.confirmed else "suspected", where, text, tuple(remedies) or (usual,))


def of_card(card: Card, finding: CardFinding, sessions: int, since: str = "") -> Row:
    """Returns what a card's verdict rests on, what is known of the cause, and what to do."""
    slower = f"{_changes(finding.shifts, finding.slower)}{since}, {_confirmed(finding.slower, sessions)}"
    others = units.counted(sessions, "other session")
    said = {
        CardVerdict.SLOW: slower,
        CardVerdict.ONE_OF_TWO: f"slower than the other by {slower}. {_ONE_OF_TWO}",
        CardVerdict.ONE_CLASS: f"{slower}, but in one class and without a physical cause, so not called slow",
        CardVerdict.SUSPECTED: f"{_changes(finding.shifts, finding.suspected)}{since}, {_confirmed((), 0)}",
        CardVerdict.NOT_CONFIRMED: f"looked slow, and {others} did not confirm it",
    }.get(finding.verdict)
    told = [cause for cause in finding.causes if cause.fault or finding.slower or finding.suspected]
    text = "; ".join([*([said] if said else []), *(cause.text for cause in told)])
    index = card.index.partition(" ")[0] or card.uuid
    remedies = [cause.remedy.format(index=index) for cause in told]
    if finding.bad and not remedies:
        remedies = [_UNEXPLAINED.format(index=index)]
    kind = "SLOW" if finding.bad else "suspected" if finding.suspected else "noted"
    return Row(kind, str(card), text, tuple(dict.fromkeys(remedies)))


def _changes(shifts: Mapping[str, float], names: Iterable[str]) -> str:
    return ", ".join(f"{percent(shifts[name])} in {name}" for name in names)


def _confirmed(classes: Sequence[str], sessions: int) -> str:
    return f"confirmed by {units.counted(sessions, 'other session')}" if classes else "not confirmed yet"


def _of_silence(found: FleetFindings, unreadable: Sequence[FileError]) -> Iterator[Row]:
    for host in found.missing or ():
        yield Row("SILENT", host, "reported nothing", ("see whether the host and its task came up",))
    for card, told in found.silent.items():
        yield Row("SILENT", str(card), _named(told))
    for host, count in found.few.items():
        text = f"{units.counted(count, 'card')}, and most hosts have {found.usual}"
        yield Row("SILENT", host, text, ("nvidia-smi -L lists its cards; dmesg has Xid errors",))
    for card, cases in found.lacking.items():
        lacks = f"no valid time of {units.counted(len(cases), 'case')} that most cards have"
        yield Row("SILENT", str(card), f"{lacks}: {_named(f'{case} ({why})' for case, why in cases.items())}")
    for error in unreadable:
        yield Row("UNREADABLE", error.path.name, f"{error.problem}; the others are judged", (error.remedy,))


def _named(items: Iterable[object]) -> str:
    names = [*map(str, items)]
    more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
    return ", ".join(names[:_MOST_NAMES]) + more


# --- the terminal ---------------------------------------------------------------------------------


def headline(found: FleetFindings, told: Sequence[Row]) -> str:
    """Returns the verdict on a fleet in one line."""
    hosts = {card.host for card in found.cards}
    counts = {kind: sum(row.kind == kind for row in told) for kind in dict.fromkeys(row.kind for row in told)}
    result = ", ".join(f"{count} {kind}" for kind, count in counts.items()) or "nothing stands out"
    return f"{units.counted(len(found.cards), 'card')} of {units.counted(len(hosts), 'host')}: {result}"


def terminal(told: Told, width: int) -> list[str]:
    """Returns at most 30 lines: the verdict, findings of every kind, and what to know about the method."""
    found, change = told.found, told.change
    summary = (headline(found, told.rows), *_context(found), *_of_change(change))
    head = _wrapped((bounded(text, _LONGEST_TEXT) for text in summary), width)
    if len(found.cards) <= _MOST_IN_TABLE:
        for model in found.models:
            head += cards_table(model, width, found.failed)
    closing = _wrapped(_notes(found, told.rows), width)
    kinds = list(dict.fromkeys(row.kind for row in told.rows))
    room = _MOST_LINES - len(head) - len(closing)
    for number, kind in enumerate(kinds):
        of_kind = [row for row in told.rows if row.kind == kind]
        share, shown = room - 3 * (len(kinds) - number - 1), list[str]()
        for place, row in enumerate(of_kind):
            parts = lines_of(row, width)
            if len(shown) + len(parts) > share - (place + 1 < len(of_kind)):
                shown.append(f"and {len(of_kind) - place} more {kind}: -o fleet.html has all")
                break
            shown += parts
        room -= len(shown)
        head += shown
    return [*head, *closing]


def _wrapped(texts: Iterable[str], width: int, indent: str = "") -> list[str]:
    return [part.text for text in texts for part in wrapped(text, width, indent=indent)]


def lines_of(row: Row, width: int) -> list[str]:
    text = bounded(f"{row.kind} {row.where}: {row.text}", _LONGEST_TEXT)
    return [*_wrapped([text], width), *_wrapped((f"→ {remedy}" for remedy in row.remedies), width, "  ")]


def _context(found: FleetFindings) -> Iterator[str]:
    for model in found.models:
        how = "too few kernels have times on two cards, so none are compared"
        if model.spreads:
            how = f"fewer than {FEWEST_CARDS} cards, judged by fixed limits"
        if model.by_spread:
            spreads = ", ".join(f"{name} {units.share(spread)}" for name, spread in model.spreads.items())
            how = f"cards differ by (standard deviation): {spreads}"
        yield f"{model.name}, {units.counted(len(model.cards), 'card')}: {how}"


def _of_change(change: Change | None) -> Iterator[str]:
    if change is None:
        return
    for model, shifts in change.shifts.items():
        both = f"since before, {units.counted(change.cards, 'card')} on both sides, {model}"
        yield f"{both}: {_changes(shifts, shifts) or 'too few kernels to compare'}"
    if change.canaries:
        yield f"fixed kernels of each session: {_changes(change.canaries, change.canaries)}"
    if change.versions:
        sides = [
            (name, _named(old) or "none", _named(new) or "none")
            for name, (old, new) in change.versions.items()
        ]
        yield f"versions: {', '.join(f'{name} {old} → {new}' for name, old, new in sides)}"


def _notes(found: FleetFindings, told: Sequence[Row]) -> Iterator[str]:
    if found.failed:
        failed = units.counted(sum(found.failed.values()), "failed test")
        yield f"{failed} on {units.counted(len(found.failed), 'card')}: gpukern report FILE tells why"
    if any(row.kind == "suspected" for row in told):
        yield f"to confirm, measure these cards again, three sessions in all: {_VALIDATE}"
    if not found.models:
        yield "no run measured on a GPU, so no times are compared"
    if found.missing is None:
        yield "hosts that reported nothing cannot be seen: name all in a file, --expect=FILE"


def cards_table(model: Model, width: int, failed: Mapping[Card, int]) -> list[str]:
    """Returns a row for each card, by its shifts."""
    cards, findings = list(model.cards), list(model.cards.values())

    def changes(title: str, log_ratios: Sequence[float | None]) -> list[Column]:
        """Returns a column, or none where no card has a change to show."""
        if all(log_ratio is None for log_ratio in log_ratios):
            return []
        ratios = (None if log_ratio is None else ratio_of(log_ratio) for log_ratio in log_ratios)
        return [Column(title, tuple(map(units.change, ratios)), numeric=True)]

    columns = [
        Column("card", tuple(map(str, cards))),
        *(part for name in LIMITS for part in changes(name, [of.shifts.get(name) for of in findings])),
        *changes("since its record", [of.since_record for of in findings]),
        Column("failed tests", tuple(str(failed.get(card, 0)) for card in cards), numeric=True),
        Column("verdict", tuple(of.verdict.value if len(cards) > 1 else "" for of in findings)),
    ]
    return table(columns, width, indent="  ")[0]


def facts_table(model: Model, width: int) -> list[str]:
    """Returns a row for each card with what is known of it, `unknown` where the driver does not tell."""
    columns = [
        Column(
            title,
            tuple(cell(facts) for facts in model.facts.values()),
            numeric=title not in ("clocks held down", "PCIe"),
        )
        for title, cell in _FACTS.items()
    ]
    return table([Column("card", tuple(map(str, model.facts))), *columns], width, indent="  ")[0]


def _known(value: float | None, unit: str = "") -> str:
    return _UNKNOWN if value is None else f"{value:.0f}{unit}"


def _limited(facts: CardFacts) -> str:
    if not facts.limited_s:
        return _UNKNOWN
    held = [f"{event} {seconds:.1f} s" for event, seconds in facts.limited_s.items() if seconds >= 0.05]
    return ", ".join(held) or "never"


def _link(link: PcieLink) -> str:
    now = f"{_known(link.generation)} x{_known(link.width)}"
    most = f"{_known(link.max_generation)} x{_known(link.max_width)}"
    if now == most:
        return now if link.width is not None else _UNKNOWN
    return f"{now} of {most}"


_FACTS: dict[str, Callable[[CardFacts], str]] = {
    "SM clock": lambda card: _known(card.sm_mhz, " MHz"),
    "memory clock": lambda card: _known(card.memory_mhz, " MHz"),
    "power of limit": lambda card: f"{_known(card.power_w)} of {_known(card.power_limit_w, ' W')}",
    "hottest": lambda card: _known(card.temperature_c, " °C"),
    "clocks held down": _limited,
    "ECC corrected": lambda card: _known(card.setup.corrected_errors),
    "uncorrected": lambda card: _known(card.setup.uncorrected_errors),
    "replaced rows": lambda card: _known(card.setup.remapped_rows),
    "PCIe": lambda card: _link(card.pcie),
}


# --- files ----------------------------------------------------------------------------------------


class Told(NamedTuple):
    """Holds what a file of a fleet tells."""

    found: FleetFindings
    rows: Sequence[Row]
    change: Change | None = None

    @property
    def lines(self) -> list[str]:
        """The verdict, and what to know about it."""
        notes = _notes(self.found, self.rows)
        return [headline(self.found, self.rows), *_context(self.found), *_of_change(self.change), *notes]

    def cards(self) -> Iterator[dict[str, str | float | None]]:
        """Yields a row for each card: who it is, its verdict, shifts in percent, facts and causes."""
        for model in self.found.models:
            for card, finding in model.cards.items():
                yield {
                    "host": card.host,
                    "index": card.index,
                    "uuid": card.uuid,
                    "model": card.model,
                    "driver": card.driver,
                    "verdict": finding.verdict.value,
                    **{f"{name} %": _percent(finding.shifts.get(name)) for name in LIMITS},
                    "confirmed": " ".join(finding.slower),
                    "failed tests": self.found.failed.get(card, 0),
                    **{title: cell(model.facts[card]) for title, cell in _FACTS.items()},
                    "causes": "; ".join(cause.text for cause in finding.causes),
                }


def _percent(shift: float | None) -> float | None:
    ratio = None if shift is None else ratio_of(shift)
    return round(100 * (ratio - 1), 3) if units.is_number(ratio) else None


def _csv(told: Told) -> str:
    stream, cards = io.StringIO(), [*told.cards()]
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerows([cards[0] if cards else ["host"], *(map(harmless, row.values()) for row in cards)])
    return stream.getvalue()


def _json(told: Told) -> str:
    findings = [row._asdict() for row in told.rows]
    value = {"bad": told.found.bad, "summary": told.lines, "findings": findings, "drain": told.found.to_drain}
    return (
        json.dumps({**value, "cards": [*told.cards()]}, ensure_ascii=False, indent=1, allow_nan=False) + "\n"
    )


_TITLES = ("finding", "where", "what", "to do")


def _cells(told: Told) -> list[tuple[str, ...]]:
    return [(row.kind, row.where, row.text, "; ".join(row.remedies)) for row in told.rows]


def _markdown(told: Told) -> str:
    first, *others = map(unmarked, told.lines)
    rows = (
        [_TITLES, ("---",) * len(_TITLES), *(map(unmarked, row) for row in _cells(told))] if told.rows else []
    )
    lines = "\n".join(f"| {' | '.join(row)} |" for row in rows)
    return "\n\n".join((f"### gpukern fleet: {first}", *others, lines)).rstrip() + "\n"


def _html(told: Told) -> str:
    def html_table(titles: Iterable[str], body: Iterable[Iterable[object]]) -> str:
        rows = (("td", row) for row in body)
        lines = (
            "".join(f"<{tag}>{_escaped('' if cell is None else cell)}" for cell in row)
            for tag, row in (("th", titles), *rows)
        )
        return f"<table>{''.join(f'<tr>{line}' + chr(10) for line in lines)}</table>"

    first, *others = map(_escaped, told.lines)
    cards = [*told.cards()]
    parts = [f"{_PAGE}<h1>gpukern fleet: {first}</h1>", *(f"<p>{line}</p>" for line in others)]
    parts += [html_table(_TITLES, _cells(told))] if told.rows else []
    parts += [html_table(cards[0], (row.values() for row in cards))] if cards else []
    return "\n".join(parts) + "\n"


def _escaped(cell: object) -> str:
    return html.escape(printable(str(cell)))


_PAGE = """<!doctype html><html lang="en"><meta charset="utf-8"><title>gpukern fleet</title>
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<style>body{font:14px sans-serif;margin:2em}table{border-collapse:collapse;margin:1em 0}
td,th{border-bottom:1px solid #ccc;padding:.2em .6em;text-align:left;vertical-align:top}</style>
"""

FORMS: dict[str, Callable[[Told], str]] = {".html": _html, ".md": _markdown, ".csv": _csv, ".json": _json}
"""Suffix → what makes such a file."""
