"""Pauses after disturbed batches, until the device has recovered or a case is given up."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytest_gpukern.measure.validity.disturbance import Disturbance


@dataclass(frozen=True)
class PausePolicy:
    """How long to pause after a disturbed batch: from `first_s`, doubling up to `longest_s`, as NVBench.

    Attributes:
        first_s: the first pause, in seconds.
        longest_s: no pause is longer.
        total_s: no batch is repeated once the pauses add up to this.

    Raises:
        ValueError: 0 < first_s ≤ longest_s ≤ total_s does not hold.
    """

    first_s: float = 0.05
    longest_s: float = 0.5
    total_s: float = 3.0

    def __post_init__(self) -> None:
        if not 0 < self.first_s <= self.longest_s <= self.total_s:
            raise ValueError(
                f"0 < first_s ≤ longest_s ≤ total_s is needed, "
                f"got {self.first_s!r}, {self.longest_s!r} and {self.total_s!r}"
            )

    def pause_s(self, number: int) -> float:
        """The pause after the `number`th disturbed batch, counted from 0."""
        return min(self.longest_s, self.first_s * 2.0 ** min(number, 64))


class Recovery:
    """Counts the disturbed batches of one measurement and pauses after each.

    After a pause the device has rested: make one call untimed before the next batch, so that clocks and
    caches are as they were.

    Args:
        policy: how long to pause.
        sleep: pauses, in seconds.
    """

    def __init__(
        self, policy: PausePolicy | None = None, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        self._policy = policy or PausePolicy()
        self._sleep = sleep
        self._paused_s = 0.0
        self._seen: list[Disturbance] = []

    @property
    def disturbed(self) -> int:
        """How many batches were disturbed so far."""
        return len(self._seen)

    def pause(self, disturbance: Disturbance) -> bool:
        """Notes a disturbed batch; pauses and returns True, or False once no pause is left."""
        pause_s = self._policy.pause_s(self.disturbed)
        self._seen.append(disturbance)
        if self._paused_s + pause_s > self._policy.total_s * (1 + 1e-9):
            return False
        self._paused_s += pause_s
        self._sleep(pause_s)
        return True

    @property
    def reason(self) -> str:
        """Why the measurement is given up: what was seen, how often, in spite of what, and the remedies."""
        remedies = "; ".join(dict.fromkeys(disturbance.remedy for disturbance in self._seen))
        return (
            f"could not be measured cleanly: {self._counted()}, "
            f"in spite of {self._paused_s:.3g} s of pauses: {self._causes()}. Remedy: {remedies}"
        )

    @property
    def note(self) -> str | None:
        """What was repeated in a measurement that became clean, or None."""
        return f"{self._counted()} and repeated: {self._causes()}" if self._seen else None

    def _counted(self) -> str:
        return f"{self.disturbed} {'batch was' if self.disturbed == 1 else 'batches were'} disturbed"

    def _causes(self) -> str:
        """Each kind once, as last seen, the most frequent first."""
        last = {disturbance.kind: disturbance.seen for disturbance in self._seen}
        counts = Counter(disturbance.kind for disturbance in self._seen)
        return ", ".join(f"{count} × {last[kind]}" for kind, count in counts.most_common())
