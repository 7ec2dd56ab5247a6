"""Defines one difference between a session and those on record, and says it in words."""

from __future__ import annotations

from pytest_gpukern.values.stored import Stored

MACHINE_CODE, AUTOTUNED, CLOCK = "machine code", "autotuned", "clock"
CYCLES, KERNEL, DEVICE, WORK = "cycles", "kernel", "device", "work"
"""What a difference may be about, besides launches, resources, libraries and fields of the fingerprint."""


class Difference(Stored, frozen=True):
    """Holds what a session has of something, and what the recorded sessions had.

    Attributes:
        what: what it is about: one of the names above, a resource such as `registers`, a library, a field of
            the fingerprint such as `driver`.
        before: on record, as text; None where it was not there, or has too many values to name.
        now: in the session, with its unit; None where it is not there any more.
        kernels: the kernels that it is about; empty for all.
        others: how many values are on record, where these are not named.
        is_cause: whether something changed, so that it may be why a time did.
    """

    what: str
    before: str | None = None
    now: str | None = None
    kernels: tuple[str, ...] = ()
    others: int = 0
    is_cause: bool = True

    def __str__(self) -> str:
        if len(self.kernels) > _FEW:
            return f"{len(self.kernels)} kernels: {self._words()}"
        return f"{', '.join(self.kernels)}: {self._words()}" if self.kernels else self._words()

    def _words(self) -> str:
        if self.what == MACHINE_CODE:
            return f"{'new' if self.is_cause else 'same'} machine code"
        if self.what == WORK:
            return "the same code, launches, arguments and inputs: the machine, not the change"
        if self.what == AUTOTUNED:
            return f"autotuned: {self.now}, recorded: {self.before}"
        if self.what == CYCLES:
            same = "the same number of cycles: clock or power, not code"
            return f"in cycles {self.now}" if self.now else same
        if self.what == KERNEL:
            return f"new: kernel {self.now}" if self.now else f"gone: kernel {self.before}"
        if not self.what:  # in older run files
            return SAME_MACHINE
        others = f" ({self.others} others recorded)" if self.others else ""
        return f"{self.what} {self.before or ''}".rstrip() + f" → {self.now}{others}"


_FEW = 2
"""Kernels that are named; more are counted."""

NEW_CODE = Difference(MACHINE_CODE)
SAME_CODE = Difference(MACHINE_CODE, is_cause=False)
SAME_WORK = Difference(WORK, is_cause=False)
"""All that the device did is as recorded, also what no timer sees."""
SAME_MACHINE = "same machine and libraries as recorded"
