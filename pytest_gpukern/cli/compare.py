"""`gpukern compare A B`: how the times of two runs, or of a run and records, compare by the gate's rule."""

from __future__ import annotations

import argparse
import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_gpukern.cli import exits
from pytest_gpukern.values.options import DEFAULT_THRESHOLD, SettingsError, parse_threshold
from pytest_gpukern.values.result import Verdict, VerdictKind

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_gpukern.cli.compared_times import Side, Timed
    from pytest_gpukern.gate.spread import SharedSpread
    from pytest_gpukern.report.layout import Column
    from pytest_gpukern.values.result import JsonDict

SUMMARY = "compare two runs, two baselines, or a run and a baseline"
DESCRIPTION = (
    "Judges the times of B by those of A, case by case, as the gate does: ratio and 90 % interval. "
    "A and B are files that --gpukern-output wrote, baseline files, or folders of the latter. What differs "
    "between the machines comes first. What is SLOWER here was not confirmed by fresh sessions. "
    "Ends with status 1 where something is SLOWER, INVALID or INCORRECT in B. " + exits.STATUSES
)
_BAD = (VerdictKind.SLOWER, VerdictKind.INVALID)
_SHOWN = 5


@dataclass(frozen=True)
class Row:
    """One measurement of a case on both sides.

    Attributes:
        case: id of the case.
        key: `scope/timer/cache`.
        model: key of the device model that B's sessions are of.
        a_ns: median of A's sessions.
        b_ns: median of B's sessions; NaN where it has no time.
        a_sessions: how many A has.
        b_sessions: how many B has.
        verdict: of the gate.
    """

    case: str
    key: str
    model: str
    a_ns: float
    b_ns: float
    a_sessions: int
    b_sessions: int
    verdict: Verdict


def add_options(parser: argparse.ArgumentParser) -> None:
    """Gives the command's parser its options."""
    parser.add_argument("a", type=Path, metavar="A", help="the times to compare with")
    parser.add_argument("b", type=Path, metavar="B", help="the times that are judged")
    parser.add_argument(
        "--threshold",
        type=_threshold,
        default=DEFAULT_THRESHOLD,
        help="smallest slowdown that matters: 2%% (default) is the same as 0.02",
    )
    exits.add_json(parser)


def run(parser: argparse.ArgumentParser, known: argparse.Namespace) -> int:  # noqa: ARG001
    """Prints how B compares with A."""
    from pytest_gpukern.cli.compared_times import read_side
    from pytest_gpukern.values.untrusted_json import FileError

    try:
        a, b = read_side(known.a), read_side(known.b)
    except FileError as error:
        exits.complain("compare", error)
        return exits.UNREADABLE
    rows = compared(a, b, known.threshold)
    if known.json:
        exits.show_json(_json(a, b, rows))
    else:
        exits.show(_lines(a, b, rows))
    bad = b.incorrect or any(row.verdict.kind in _BAD for row in rows)
    return exits.BAD if bad else exits.FINE


def compared(a: Side, b: Side, threshold: float) -> list[Row]:
    """What both sides measured, in order of B.

    A side may hold times of several device models, as a folder of baselines does: each is judged by those of
    the same model, where A has any.
    """
    from pytest_gpukern.gate.spread import shared_spread, spread_key

    alike = [group for keys in a.times.values() for times in keys.values() for group in _alike(times)]
    spreads = {
        model: shared_spread(
            tuple(timed.session for timed in group)
            for group in alike
            if group[0].conditions.device_model == model
        )
        for model in {group[0].conditions.device_model for group in alike}
    }
    rows = []
    for case, keys in b.times.items():
        for key, times in keys.items():
            for fresh in _alike(times):
                model = fresh[0].conditions.device_model
                recorded = _to_compare_with(a.times.get(case, {}).get(key, ()), model)
                if recorded:
                    shared = spreads.get(model, {}).get(spread_key(key))
                    rows.append(
                        Row(
                            case,
                            key,
                            model,
                            _median(recorded),
                            _median(fresh),
                            len(recorded),
                            len(fresh),
                            _judged(fresh, recorded, threshold, shared),
                        )
                    )
    return rows


def _alike(times: Sequence[Timed]) -> list[list[Timed]]:
    """Sessions in groups of those that were measured under the same conditions."""
    groups: list[list[Timed]] = []
    for timed in times:
        group = next((each for each in groups if each[0].conditions == timed.conditions), None)
        if group is None:
            groups.append([timed])
        else:
            group.append(timed)
    return groups


def _to_compare_with(times: Sequence[Timed], model: str) -> list[Timed]:
    """The valid sessions of a device model; all valid ones where there are none, so that it is told."""
    valid = [timed for timed in times if not timed.measurement.invalid]
    return [timed for timed in valid if timed.conditions.device_model == model] or valid


def _judged(
    fresh: Sequence[Timed], recorded: Sequence[Timed], threshold: float, shared: SharedSpread | None
) -> Verdict:
    """The gate's verdict on all of B's sessions; what is SLOWER has not been confirmed by fresh ones."""
    from pytest_gpukern.gate.judge import judge

    devices = {timed.device for timed in fresh}
    return judge(
        [timed.measurement for timed in fresh],
        [timed.session for timed in recorded],
        conditions=fresh[0].conditions,
        threshold=threshold,
        jitter_ns=max(timed.measurement.jitter_ns for timed in fresh),
        device=devices.pop() if len(devices) == 1 else None,  # several are none of the recorded ones
        shared=shared,
    )


def _median(times: Sequence[Timed]) -> float:
    return statistics.median(timed.measurement.summary.median_ns for timed in times)


def differences(a: Side, b: Side) -> list[tuple[str, list[Any], list[Any]]]:
    """The fields of the fingerprints in which the sides differ, each with the values of both."""
    ours, theirs = _values(a), _values(b)
    return [
        (name, ours.get(name, []), theirs.get(name, []))
        for name in sorted(ours.keys() | theirs.keys())
        if ours.get(name, []) != theirs.get(name, [])
    ]


def _values(side: Side) -> dict[str, list[Any]]:
    """Field → its different values, libraries by their names."""
    found: dict[str, list[Any]] = {}
    for fingerprint in side.fingerprints:
        for name, value in _flat(fingerprint).items():
            values = found.setdefault(name, [])
            if value not in values:
                values.append(value)
    return {name: sorted(values, key=str) for name, values in found.items()}


def _flat(fingerprint: JsonDict) -> JsonDict:
    libraries = fingerprint.get("libraries")
    plain = {name: value for name, value in fingerprint.items() if name != "libraries"}
    return plain | (libraries if isinstance(libraries, dict) else {})


def _words(values: list[Any]) -> str:
    return ", ".join("–" if value is None else str(value) for value in values) or "–"


def _only(one: Side, other: Side) -> list[str]:
    """What only one side measured: cases, or measurements of a case that both have."""
    found = []
    for case, keys in one.times.items():
        if case not in other.times:
            found.append(case)
        else:
            found += [f"{case} ({key})" for key in keys if key not in other.times[case]]
    return found


def _lines(a: Side, b: Side, rows: list[Row]) -> list[str]:
    lines = [f"{name}: {_words(ours)} → {_words(theirs)}" for name, ours, theirs in differences(a, b)]
    lines = lines or ["measured with the same device, driver and libraries"]
    if rows:
        lines += ["", *_table(rows)]
    lines += [""]
    lines += [f"INCORRECT in B: {case}: {' '.join(text.split())}" for case, text in b.incorrect.items()]
    lines += [
        f"{row.verdict.kind}: {row.case} ({row.key}): {row.verdict.reason}"
        for row in rows
        if row.verdict.kind in (*_BAD, VerdictKind.UNCOMPARABLE)
    ]
    for words, ids in (("only in B", _only(b, a)), ("only in A", _only(a, b))):
        if ids:
            more = f" and {len(ids) - _SHOWN} more" if len(ids) > _SHOWN else ""
            lines.append(f"{words}: {', '.join(ids[:_SHOWN])}{more}")
    return [*lines, _total(rows, b)]


def _total(rows: list[Row], b: Side) -> str:
    counts = {kind: sum(row.verdict.kind is kind for row in rows) for kind in VerdictKind}
    told = [f"{count} {kind.value.lower()}" for kind, count in counts.items() if count]
    told += [f"{len(b.incorrect)} incorrect"] if b.incorrect else []
    number = "1 measurement" if len(rows) == 1 else f"{len(rows)} measurements"
    return f"{number} compared: {', '.join(told)}" if told else "nothing to compare: no case is in both"


def _table(rows: list[Row]) -> list[str]:
    """A row a measurement; where ids do not fit beside it, each on a line of its own: none is shortened."""
    from pytest_gpukern.report.layout import Column, display_width, table

    cases = [row.case for row in rows]
    named = tuple("" if i and cases[i - 1] == case else case for i, case in enumerate(cases))
    columns = _columns(rows)
    flat, left_out = table([Column("case", named), *columns], exits.width())
    if not left_out and max(map(display_width, flat)) <= exits.width():
        return flat
    header, *stacked = table(columns, exits.width(), indent="  ")[0]
    lines = ["case", header]
    for case, line in zip(named, stacked, strict=True):
        lines += [case, line] if case else [line]
    return lines


def _columns(rows: list[Row]) -> list[Column]:
    """All but the case."""
    from pytest_gpukern.report import units
    from pytest_gpukern.report.layout import Column

    verdicts = [row.verdict for row in rows]
    return [
        Column("measured", tuple(row.key for row in rows)),
        *([Column("device", tuple(row.model for row in rows))] if _several_models(rows) else []),
        Column("A", tuple(units.time(row.a_ns) for row in rows), numeric=True),
        Column("B", tuple(units.time(row.b_ns) for row in rows), numeric=True),
        Column("sessions", tuple(f"{row.a_sessions}, {row.b_sessions}" for row in rows), dispensable=1),
        Column("change", tuple(units.change(verdict.ratio) for verdict in verdicts), numeric=True),
        Column("90 % interval", tuple(_interval(verdict) for verdict in verdicts)),
        Column("verdict", tuple(verdict.kind.value for verdict in verdicts)),
    ]


def _several_models(rows: Sequence[Row]) -> bool:
    """Whether B has a measurement of a case on several device models."""
    return len({(row.case, row.key) for row in rows}) < len(rows)


def _interval(verdict: Verdict) -> str:
    from pytest_gpukern.report import units

    if verdict.ratio_low is None or verdict.ratio_high is None:
        return ""
    return f"{units.change(verdict.ratio_low)} … {units.change(verdict.ratio_high)}"


def _json(a: Side, b: Side, rows: list[Row]) -> JsonDict:
    from pytest_gpukern.values.result import plain

    return {
        "differences": [{"field": name, "a": ours, "b": theirs} for name, ours, theirs in differences(a, b)],
        "measurements": [
            {
                "case": row.case,
                "key": row.key,
                "device_model": row.model,
                "a_ns": plain(row.a_ns),
                "b_ns": plain(row.b_ns),
                "a_sessions": row.a_sessions,
                "b_sessions": row.b_sessions,
                "ratio": plain(row.verdict.ratio),
                "ratio_low": plain(row.verdict.ratio_low),
                "ratio_high": plain(row.verdict.ratio_high),
                "verdict": row.verdict.kind.value,
                "reason": row.verdict.reason,
            }
            for row in rows
        ],
        "incorrect": b.incorrect,
        "only_in_a": _only(a, b),
        "only_in_b": _only(b, a),
    }


def _threshold(text: str) -> float:
    try:
        return parse_threshold(text, "--threshold")
    except SettingsError as error:
        raise argparse.ArgumentTypeError(f"{text}: {str(error).partition(': ')[2]}") from error
