"""Defines what a reader is told beside figures: notes on a result or a measurement, and why none is there."""

from __future__ import annotations

import enum

from pytest_gpukern.values.stored import Stored


class About(enum.StrEnum):
    """Says what a note is about; a file has the word. To add a subject, write its row here."""

    READER = "reader"
    """What somebody should see, and perhaps act on. Reports tell the others at length only."""
    NOISE = "noise"
    MODES = "modes"
    """Samples of two modes, of which the page of a case shows the humps."""
    TIMERS = "timers"
    LAUNCH_COST = "launch cost"
    SIZES = "sizes"
    UNPOISONED = "unpoisoned"
    MACHINE_CODE = "machine code"


class Note(Stored, frozen=True):
    """Holds something to know about a result or a measurement, which is no fault, and its subject."""

    text: str
    about: About = About.READER

    def __str__(self) -> str:
        return self.text


NO_GPU = "no GPU"
NOT_SIMULATED = "not in the simulator"
NOT_COVERED = "not covered without a GPU"
CANNOT_BE_KNOWN = "cannot be known without a GPU"
DEVICE_OF_TENSORS = 'write device="cpu" if gpu_device.is_simulated else "cuda"'


class NotRun(str):
    """Says why a case does not run here, in words that begin with what a short report counts it as."""

    kind: str

    def __new__(cls, kind: str, detail: str) -> NotRun:
        reason = super().__new__(cls, f"{kind}: {detail}")
        reason.kind = kind
        return reason

    @classmethod
    def told(cls, kind: str, text: str) -> NotRun:
        """Returns a reason that another process has put into words."""
        reason = str.__new__(cls, text)
        reason.kind = kind
        return reason
