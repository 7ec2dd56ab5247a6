"""A run on a GPU that never was, of any number of cases, for tests of what is made of whole runs."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import made_up_results as made_up
from msgspec import structs

from pytest_gpukern.report.run import Failure, RunResults, Skip
from pytest_gpukern.report.run_file import read_run, run_text
from pytest_gpukern.values.atomic_file import write_named
from pytest_gpukern.values.note import Note
from pytest_gpukern.values.result import Finding
from pytest_gpukern.values.stored import plain

STORED = read_run(Path(__file__).parents[1] / "data" / "golden" / "made_up.json.gz")
"""Sixty cases with their records, of every verdict."""
CREATED = STORED.created
HOSTILE = '</script><script>ran()</script><img src=x onerror=ran()>" onload="ran() javascript:ran()'
"""What runs if a page takes it for markup, for a link or for code."""


def gpu_run(cases: int = 60, *, samples: int = 30, name: str = "", **changes) -> RunResults:
    """The stored run with that many cases; beyond its own they come again at other sizes.

    `name` ends the names of all problems.
    """
    results, history, failures = [], {}, {}
    for number in range(cases):
        again, place = divmod(number, len(STORED.results))
        stored = STORED.results[place]
        problem, point = f"{stored.case.problem}{name}", {"n": stored.case.point["n"] + again}
        case_id = f"{problem}/{stored.case.label}/n={point['n']}"
        case = structs.replace(stored.case, id=case_id, problem=problem, point=point)
        nodeid = f"test_it.py::test_it[{case_id}]"
        # Whole calls have ten samples on file, of which no distribution is drawn.
        times = [structs.replace(of, samples_ns=(3 * of.samples_ns)[:samples]) for of in stored.measurements]
        results.append(structs.replace(stored, case=case, nodeid=nodeid, measurements=tuple(times)))
        history[nodeid] = STORED.history[stored.nodeid]
        if stored.nodeid in STORED.failures:
            failures[nodeid] = STORED.failures[stored.nodeid]
    filled = {"results": tuple(results), "history": history, "failures": failures, "name": ""}
    return dataclasses.replace(STORED, **{**filled, **changes})


def hostile_run() -> RunResults:
    """A run whose every text would run as script in a page that took it for markup."""
    run = gpu_run(12, name=HOSTILE)
    results = tuple(
        structs.replace(
            each,
            nodeid=f"{each.nodeid}{HOSTILE}",
            notes=(Note(HOSTILE),),
            diagnosis=HOSTILE,
            errors={HOSTILE: made_up.error()},
            findings=(Finding(HOSTILE, HOSTILE),),
            kernels=(structs.replace(each.kernels[0], name=HOSTILE),) if each.kernels else (),
            fingerprint=structs.replace(each.fingerprint, device_name=HOSTILE, libraries={HOSTILE: HOSTILE}),
            verdicts={key: structs.replace(v, reason=HOSTILE) for key, v in each.verdicts.items()},
        )
        for each in run.results
    )
    return dataclasses.replace(
        run,
        results=results,
        failures={HOSTILE: Failure(HOSTILE)},
        since_record=(HOSTILE,),
        skips=(Skip(HOSTILE, HOSTILE),),
        closing=(HOSTILE,),
        problems=(HOSTILE,),
        compared_with=HOSTILE,
        version=HOSTILE,
    )


def write_run_file(path, run):
    """Writes a run as `--gpukern-report=RUN.json` does."""
    write_named(path, run_text(run), "--gpukern-report")


def whole_run(path):
    """Plain JSON of a run file in which each result is whole; it may be changed and written again."""
    run = read_run(path)
    sessions = [_whole(session) for of_test in run.sessions.values() for session in of_test]
    return {**json.loads(path.read_text()), "results": _whole(run.results), "sessions": sessions}


def _whole(value):
    if hasattr(value, "__struct_fields__"):
        return {name: _whole(getattr(value, name)) for name in value.__struct_fields__}
    if isinstance(value, dict):
        return {key: _whole(of) for key, of in value.items()}
    return [*map(_whole, value)] if isinstance(value, (list, tuple)) else plain(value)
