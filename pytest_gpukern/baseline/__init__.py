"""What is known of earlier sessions: the record, its file format and the store that reads and writes it."""

from pytest_gpukern.baseline.edit import rewrite
from pytest_gpukern.baseline.errors import BaselineError
from pytest_gpukern.baseline.merge import Refusal
from pytest_gpukern.baseline.past import CompiledKernel, Past, PastSession
from pytest_gpukern.baseline.record import (
    Baseline,
    Epoch,
    OutputAccuracy,
    Record,
    RecordedKernel,
    RecordedSession,
    RecordedTime,
    SessionEntry,
)
from pytest_gpukern.baseline.schema import MIGRATIONS, SCHEMA, load, parse, render
from pytest_gpukern.baseline.selection import confirmed_slower, unselected
from pytest_gpukern.baseline.store import BaselineMode, KnownCases, Store, WriteReport, unfit

__all__ = [
    "MIGRATIONS",
    "SCHEMA",
    "Baseline",
    "BaselineError",
    "BaselineMode",
    "CompiledKernel",
    "Epoch",
    "KnownCases",
    "OutputAccuracy",
    "Past",
    "PastSession",
    "Record",
    "RecordedKernel",
    "RecordedSession",
    "RecordedTime",
    "Refusal",
    "SessionEntry",
    "Store",
    "WriteReport",
    "confirmed_slower",
    "load",
    "parse",
    "render",
    "rewrite",
    "unfit",
    "unselected",
]
