"""Results of a problem that never ran, and a store to record them in."""

from __future__ import annotations

import itertools
from datetime import UTC, datetime

import made_up_results as made_up
from msgspec import structs

from pytest_gpukern.baseline.store import Store
from pytest_gpukern.values.fingerprint import Fingerprint
from pytest_gpukern.values.result import Measurement, OutputError, Summary

H200 = "nvidia-h200"
KERNEL = "kernel/event/cold"
START = datetime(2026, 11, 20, 10, tzinfo=UTC)
_NUMBERS = itertools.count(0xABCD0000)


def case_of(folder, variant="numba", name="vector_exp", version=1, n=1000):
    case = made_up.result(f"numba.{variant}", problem=name, point={"n": n}).case
    changes = {"id": f"{name}-{variant}-n={n}", "problem_version": version, "baseline_dir": str(folder)}
    return structs.replace(case, **changes)


def measurement_of(median_ns=50_000.0, scope="kernel", timer="event", cache="cold", invalid=None):
    samples = tuple(median_ns * (1 + 0.001 * i) for i in range(-5, 6))
    summary = Summary(median_ns, median_ns * 0.999, median_ns * 1.001, len(samples))
    return Measurement(scope, timer, cache, 1, summary, samples_ns=samples, invalid=invalid)


def result_of(case, *medians_ns, measurements=None, **changes):
    values = {
        "case": case,
        "nodeid": case.id,
        "fingerprint": Fingerprint(driver_version="580.159", libraries={"numba": "0.61"}),
        "errors": {"out": OutputError(1000, 0, 1e-7, 2.123456789e-7, 1.0)},
        "first_call_ns": 123456789.0,
        "session": f"{next(_NUMBERS):08x}",
        "measurements": measurements or tuple(measurement_of(ns) for ns in medians_ns or (50_000.0,)),
    }
    return structs.replace(made_up.result(), **{**values, **changes})


def store_of(mode, **arguments):
    return Store(mode, now=lambda: START, **arguments)


def record(mode, *results, model_key=H200, **arguments):
    store = store_of(mode, **arguments)
    for result in results:
        store.add(result, model_key=model_key)
    return store.flush()


def path_in(folder, name="vector_exp", model_key=H200):
    return folder / f"{name}.{model_key}.json"


def sessions(folder, case=None, key=KERNEL, model_key=H200, mode="compare"):
    return store_of(mode).sessions_for(case or case_of(folder), model_key, key)
