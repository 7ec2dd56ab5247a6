"""What is known of earlier sessions: the record, its file format and the store that reads and writes it."""

from pytest_gpukern.baseline.merge import Refusal
from pytest_gpukern.baseline.past import CompiledKernel, Past, PastSession
from pytest_gpukern.baseline.record import (
    Baseline,
    BaselineError,
    Epoch,
    OutputAccuracy,
    Record,
    RecordedKernel,
    RecordedSession,
    RecordedTime,
)
from pytest_gpukern.baseline.schema import MIGRATIONS, SCHEMA, load, parse, render
from pytest_gpukern.baseline.store import BaselineMode, Store, WriteReport, unfit

__all__ = [
    "MIGRATIONS",
    "SCHEMA",
    "Baseline",
    "BaselineError",
    "BaselineMode",
    "CompiledKernel",
    "Epoch",
    "OutputAccuracy",
    "Past",
    "PastSession",
    "Record",
    "RecordedKernel",
    "RecordedSession",
    "RecordedTime",
    "Refusal",
    "Store",
    "WriteReport",
    "load",
    "parse",
    "render",
    "unfit",
]
