"""Simulates fleets of a thousand cards: how often a healthy one is suspected, and what is found in others.

Makes the figures of "Cards of a fleet, by simulation" in docs/explanation/evidence-log.md:
`python docs/evidence/fleet_simulation.py`. It needs no GPU. 200 fleets take some minutes; `--fleets` gives
another number.

A log time has four parts: what a card adds to all its kernels of a class, what it adds to one kernel, and
what a session adds to both. Their standard deviations are those of the eight H200s in
`tests/data/devices-h200.json`, of which one has three sessions. Tails are normal, or Student's t with three
degrees of freedom of the same variance. `findings.fleet` itself gives the verdicts.
"""

from __future__ import annotations

import argparse
import gzip
import json
import math
import sys
from collections import Counter
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pytest_gpukern.findings.cards import Card, CardFigures, Kernel, class_of
from pytest_gpukern.findings.fleet import FleetFindings, Kind, judged, split_sessions
from pytest_gpukern.values.result import Result
from pytest_gpukern.values.untrusted_json import built

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

SEED = 20261126
FLEETS = 200
CARDS = 1000
SESSIONS = MOST = 3
"""Of a card; also on record, of the card that has most."""
CARDS_OF_A_HOST = 8
SLOW = {100: 0.06, 300: 0.03, 500: 0.02}
"""Card → by what it is slower."""
THROTTLED, BY = 88, 0.05
"""A host, and by what its cards are slower."""
OTHER_BITS, MISSING = 700, "host9999"
_KEY = "kernel/cupti/cold"
_DATA = Path(__file__).parents[2] / "tests/data"
_BEGAN = datetime(2026, 11, 26, tzinfo=UTC)


@dataclass(frozen=True)
class Spreads:
    """Holds the kernels of the recorded run, and by how much eight cards and their sessions differ.

    Attributes:
        times_ns: median times.
        classes: of each kernel, the number of its class.
        card: of the shifts of a class between cards, one a class; a standard deviation of logs, as all below.
        kernel: of each kernel between cards, without these shifts.
        session: of the shifts of a class between sessions of one card, one a class.
        sample: of each kernel between sessions, without these shifts.
    """

    kernels: dict[str, Kernel]
    times_ns: Any
    classes: Any
    card: Any
    kernel: Any
    session: Any
    sample: Any


def spreads() -> Spreads:
    """Returns those of the eight H200s on record."""
    run = json.loads(gzip.decompress((_DATA / "run-h200.json.gz").read_bytes()))
    recorded = json.loads((_DATA / "devices-h200.json").read_text())[_KEY]
    kernels = {}
    for result in (built({**each, "fingerprint": {}}, Result) for each in run["results"]):
        measured = next((each for each in result.measurements if each.key == _KEY), None)
        if measured is not None and result.case.id in recorded:
            kernels[f"{result.case.id} {_KEY}"] = Kernel(class_of(result, measured))
    cards = sorted({card for of in recorded.values() for card in of})
    several = max(cards, key=lambda card: sum(len(of.get(card, ())) for of in recorded.values()))
    times = [recorded[kernel.rpartition(" ")[0]] for kernel in kernels]
    on_cards = np.array([[np.median(of[card]) if card in of else np.nan for card in cards] for of in times])
    again = np.array([of[several] if len(of[several]) == MOST else [np.nan] * MOST for of in times])
    usual = np.nanmedian(on_cards, axis=1)
    classes = np.unique([str(of.limited_by) for of in kernels.values()], return_inverse=True)[1]
    session, sample = _two_levels(np.log(again), classes)
    sample = np.where(np.isnan(sample), np.nanmedian(sample), sample)  # of kernels with fewer sessions
    return Spreads(kernels, usual, classes, *_two_levels(np.log(on_cards), classes), session, sample)


def _two_levels(logs: Any, classes: Any) -> tuple[Any, Any]:
    """Returns the standard deviation of a class's shift, and of each kernel without it; kernels × cards."""
    known = ~np.isnan(logs).all(axis=1)
    deviations = np.full(logs.shape, np.nan)
    deviations[known] = logs[known] - np.nanmean(logs[known], axis=1, keepdims=True)
    shifts = np.array(
        [np.nanmedian(deviations[classes == number], axis=0) for number in range(classes.max() + 1)]
    )
    rest = np.full(len(logs), np.nan)
    rest[known] = np.nanstd((deviations - shifts[classes])[known], axis=1, ddof=1)
    return shifts.std(axis=1, ddof=1), rest


def draw(
    of: Spreads, rng: np.random.Generator, *, heavy: bool, planted: bool, cards: int = CARDS
) -> Iterator[CardFigures]:
    """Yields the sessions of a fleet, with all that is planted, or healthy."""

    def noise(*shape: int) -> Any:
        return rng.standard_t(3, shape) / math.sqrt(3) if heavy else rng.standard_normal(shape)

    kernels = len(of.kernels)
    own = (of.card * noise(cards, len(of.card)))[:, of.classes] + of.kernel * noise(cards, kernels)
    if planted:
        for card, change in SLOW.items():
            own[card] += math.log1p(change)
        own[THROTTLED * CARDS_OF_A_HOST : (THROTTLED + 1) * CARDS_OF_A_HOST] += math.log1p(BY)
    for number in range(SESSIONS):
        session = (of.session * noise(cards, len(of.session)))[:, of.classes]
        times = of.times_ns * np.exp(own + session + of.sample * noise(cards, kernels))
        for card in range(cards):
            host, index = divmod(card, CARDS_OF_A_HOST)
            yield CardFigures(
                Card(f"GPU-{card}", f"host{host}", f"{index}", "NVIDIA H200", "580"),
                f"{number}",
                _BEGAN + timedelta(hours=number),
                dict(zip(of.kernels, times[card].tolist(), strict=True)),
                of.kernels,
                {"saxpy out": "other" if planted and card == OTHER_BITS and number != 1 else "usual"},
            )


def tallied(found: FleetFindings) -> set[str]:
    """Returns what was named: cards and hosts, and `suspected` if anything was."""
    (model,) = found.models
    names = {card.uuid for card, finding in model.cards.items() if finding.bad}
    names |= {str(group.where) for group in model.groups if group.kind is Kind.SLOW}
    names |= {f"bits of {of.cards[0].uuid}" for of in found.findings if of.kind is Kind.CORRUPT}
    names |= {str(of.where) for of in found.findings if of.what == "missing"}
    doubtful = any(finding.suspected for finding in model.cards.values())
    return names | ({"suspected"} if doubtful else set())


def simulate(
    fleets: int = FLEETS,
    *,
    cards: int = CARDS,
    heavy_tails: Sequence[bool] = (False, True),
    tell: Callable[[str], None] = lambda _: None,
) -> dict[str, Counter[str]]:
    """Returns kind of fleet → what was named → in how many fleets; fleets with planted faults are a quarter.

    The same numbers give the same table.
    """
    of, table = spreads(), {}
    hosts = [f"host{number}" for number in range(cards // CARDS_OF_A_HOST)]
    for heavy in heavy_tails:
        for planted in (False, True):
            kind = f"{'t3' if heavy else 'normal'} tails, {'with faults' if planted else 'healthy'}"
            rng, counts = np.random.default_rng((SEED, heavy, planted)), Counter[str]()
            for number in range(max(1, fleets // 4) if planted or heavy else fleets):
                raising, confirming = split_sessions(draw(of, rng, heavy=heavy, planted=planted, cards=cards))
                names = tallied(judged(raising, confirming, expected=[*hosts, MISSING] if planted else hosts))
                names |= {"suspected"} & tallied(judged(raising))  # by one session alone
                usual = {f"GPU-{card}" for card in SLOW} | {
                    f"host{THROTTLED}",
                    MISSING,
                    f"bits of GPU-{OTHER_BITS}",
                }
                known = names & usual if planted else set[str]()
                others = names - known - {"suspected"}
                counts.update(["fleets", *known, *(["another"] if others else ()), *(names & {"suspected"})])
                counts["others"] += len(others)
                tell(f"{kind}: {number + 1} fleets")
            table[kind] = counts
    return table


def main(arguments: Sequence[str]) -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--fleets", type=int, default=FLEETS, help=f"healthy ones (default: {FLEETS})")
    of = spreads()
    print(
        f"{len(of.kernels)} kernels; card {of.card}, session {of.session}, kernel {np.median(of.kernel):.5f}"
    )
    for kind, counts in simulate(
        parser.parse_args(arguments).fleets, tell=lambda line: print(line, file=sys.stderr)
    ).items():
        print(kind, dict(sorted(counts.items())))


if __name__ == "__main__":
    main(sys.argv[1:])
