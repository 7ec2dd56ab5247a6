"""pytest-benchmark: every valid measurement in its JSON, table, saved files and comparison.

The one package that touches that plugin's objects. It relies on five things of 5.3: the session registered as
the plugin "pytest-benchmark" with its list `benchmarks`, `stats.Metadata` with its duck-typed fixture, the
session's `compared_mapping`, that an item is a benchmark if `benchmark` is among its fixture names, and that
its `BenchmarkFixture` leaves the running to its methods `_raw` and `_raw_pedantic`.
Where the plugin is absent or blocked (`-p no:benchmark`), nothing happens.
"""

from __future__ import annotations

from pytest_gpukern.interop.entries import add_entries, give_stats, listed_as, take_entries
from pytest_gpukern.interop.fixture import hand_over, is_its_fixture
from pytest_gpukern.interop.plugin_of_run import counted_as_benchmarks, machine_info, switched_off
from pytest_gpukern.interop.publishing import publish

__all__ = [
    "add_entries",
    "counted_as_benchmarks",
    "give_stats",
    "hand_over",
    "is_its_fixture",
    "listed_as",
    "machine_info",
    "publish",
    "switched_off",
    "take_entries",
]
