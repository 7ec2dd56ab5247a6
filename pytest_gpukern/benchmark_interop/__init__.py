"""Puts measurements into pytest-benchmark's JSON, table, saved files and comparison.

The only code that touches that plugin's objects. It relies on five things of release 5.3: the session is
registered as the plugin "pytest-benchmark" and has a list `benchmarks`; `stats.Metadata` takes a duck-typed
fixture; the session has `compared_mapping`; an item is a benchmark if `benchmark` is among its fixture names;
and `BenchmarkFixture` leaves the running to its methods `_raw` and `_raw_pedantic`.
Where the plugin is absent or blocked (`-p no:benchmark`), nothing happens. Start with `publishing.py`.
"""
