"""Says what changed since the record that all cases share: the machine, its software, all times."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence

from pytest_gpukern.findings.common_shift import LEAST, Compared, MachineVerdict, Shift, kernel_ratios, phrase
from pytest_gpukern.findings.explain import ClockChange, clock_change, other_machine
from pytest_gpukern.findings.regressions import ACCURACY, BITS, DETERMINISM
from pytest_gpukern.gate.change import percent
from pytest_gpukern.measure.device_clocks import CLOCKS
from pytest_gpukern.report import units
from pytest_gpukern.values.difference import DEVICE, SAME_MACHINE, Difference
from pytest_gpukern.values.result import Verdict


def head(compared: Sequence[Compared], shift: Shift | None, *, wrong: bool = False) -> list[str]:
    """Says what changed, whether outputs did, the common shift, and what changed beyond it, a sentence each.

    Where the machine is as it was recorded and there is no common shift, that is said if a time changed.
    """
    changes = changes_since(compared)
    differences = ", ".join(_but_the_card(changes, len(compared))) or "same libraries, driver and clocks"
    common = shift is not None and shift.common
    if not changes and not common:
        verdicts = [verdict for entry in compared for verdict in entry.result.verdicts.values()]
        return [SAME_MACHINE] if any(verdict.kind.row.changed for verdict in verdicts) else []
    outputs = _outputs(compared, wrong=wrong)
    texts = [
        f"since the record: {differences}; {outputs}",
        f"times: {_times(compared, shift, [*changes])}",
    ]
    if shift is not None and common:
        texts.append(f"beyond it: {_residual(compared, shift)}")
    return texts


def machine_as_recorded(compared: Sequence[Compared], shift: Shift | None) -> str:
    """Says whether the machine is as recorded, and what differs: `almost: another card of the model`."""
    changes, count = changes_since(compared), len(compared)
    other_card = any(change.what == DEVICE and n == count for change, n in changes.items())
    parts = [*["another card of the model"] * other_card, *_but_the_card(changes, count)]
    moved = [*_moved(shift).values()] if shift is not None else []
    if shift is not None and shift.common:
        moved.insert(0, f"all kernels {percent(math.log(shift.ratio))}")
    answer = "no" if moved else "almost" if parts else "yes"
    return ": ".join(filter(None, (answer, ", ".join([*moved, *parts]))))


def _but_the_card(changes: Mapping[Difference, int], count: int) -> list[str]:
    """Returns what differs from the record; the line about what the run was compared with names the card."""
    return [
        f"{change}{f' ({n} of {count} cases)' * (n < count)}"
        for change, n in changes.items()
        if change.what != DEVICE
    ]


def _moved(shift: Shift) -> dict[str, str]:
    """Returns each canary that is slower or faster than recorded, and by how much: `copy +3.0 %`."""
    return {
        name: f"{name} {percent(math.log(canary.ratio))}"
        for name, canary in shift.canaries.items()
        if canary.verdict in (MachineVerdict.SLOWER, MachineVerdict.FASTER)
    }


def changes_since(compared: Sequence[Compared]) -> dict[Difference, int]:
    """Returns what differs between the fingerprints, each with its cases, and the clock if it moved."""
    changes: Counter[Difference] = Counter()
    for entry in compared:
        recorded = [time.session.fingerprint for time in entry.past]
        now, on_gpu = entry.result.fingerprint, entry.result.case.on_gpu
        changes.update(other_machine(now, recorded, host=not on_gpu))
    clock = _clock(compared)
    return dict(changes) | ({clock: len(compared)} if clock else {})


def _clock(compared: Sequence[Compared]) -> Difference | None:
    """Returns the multiprocessors' clock as measured, where it moved for most of the kernels."""
    known = [
        (time, entry.past)
        for entry in compared
        for time in entry.result.measurements
        if time.scope == "kernel" and time.key == entry.past[0].key and time.seen(CLOCKS, "sm_mhz")
    ]
    moved = [change for time, past in known if (change := clock_change([time], past)) is not None]
    if 2 * len(moved) <= len(known):
        return None
    before = statistics.median(change.before_mhz for change in moved)
    return ClockChange(before, statistics.median(change.now_mhz for change in moved)).difference()


def _outputs(compared: Sequence[Compared], *, wrong: bool) -> str:
    kinds = (ACCURACY, BITS, DETERMINISM)
    count = sum(any(finding.kind in kinds for finding in entry.result.findings) for entry in compared)
    changed = f"outputs changed in {count} of {len(compared)} cases, see above"
    return changed if count else f"outputs {'of all others ' * wrong}as recorded"


def _times(compared: Sequence[Compared], shift: Shift | None, changes: Sequence[Difference]) -> str:
    if shift is None:
        count = len(kernel_ratios(entry.result for entry in compared))
        return f"{count} {'kernel' if count == 1 else 'kernels'} compared, too few for a common shift"
    if shift.common:
        return phrase(shift, changes)
    anyway = ", since sessions shift by that anyway" if shift.limit == shift.usual else ""
    rule = f"below the {percent(shift.limit)[1:]} that counts{anyway}"
    if abs(math.log(shift.ratio)) >= shift.limit:
        low, high = (percent(math.log(ratio)) for ratio in (shift.low, shift.high))
        rule = f"but its 95 % interval includes 0: {low} … {high}"
    text = f"no common shift: the median of {shift.cases} is {percent(math.log(shift.ratio))}, {rule}"
    canaries = [f"{text} ({shift.canaries[name]})" for name, text in _moved(shift).items()]
    return f"{text}, but canaries moved: {', '.join(canaries)}" if canaries else text


def _residual(compared: Sequence[Compared], shift: Shift) -> str:
    changed: list[tuple[float, str]] = []
    for result in (entry.result for entry in compared if entry.result.case.on_gpu):
        kernels = [measurement.key for measurement in result.measurements if measurement.scope == "kernel"]
        for verdict in (result.verdicts[key] for key in kernels if key in result.verdicts):
            left = _left(verdict, shift.ratio)
            if left is not None:
                whole = units.change(verdict.ratio)
                changed.append((left, f"{result.case.id} {units.change(left)} (of {whole})"))
    if not changed:
        return "no kernel's time changed"
    changed.sort(key=lambda entry: -units.size_of_change(entry[0]))
    return units.named((text for _, text in changed), units.SHOWN)


def _left(verdict: Verdict, scale: float) -> float | None:
    """Returns what is left of a ratio beyond a shift, where that is significant and not tiny."""
    low, high, ratio = verdict.ratio_low, verdict.ratio_high, verdict.ratio
    if not (units.is_number(ratio) and units.is_number(low) and units.is_number(high)) or ratio <= 0:
        return None
    is_large = not low <= scale <= high and abs(math.log(ratio / scale)) >= math.log1p(LEAST)
    return ratio / scale if is_large else None
