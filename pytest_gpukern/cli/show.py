"""Runs `gpukern show`: prints what a run with `-v` printed, from the file of the run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_gpukern.cli import exits
from pytest_gpukern.report.durations import durations
from pytest_gpukern.report.run import Run
from pytest_gpukern.report.run_file import read_run
from pytest_gpukern.report.terminal import whole
from pytest_gpukern.report.trace import UNTRACED, gpu_trace

if TYPE_CHECKING:
    import argparse

    from pytest_gpukern.values.result import JsonDict, Result


_UNTIMED = "it says of no test where its time went: an older release wrote it"


def declare(parser: argparse.ArgumentParser) -> None:
    """Declares `gpukern show`."""
    parser.description = (
        "Prints a run that --gpukern-output wrote, as pytest -v does: what needs a reader, all tables, and a "
        "summary. Adds what the device did in a call of each case, if CUPTI saw it: copies, memsets, kernels "
        "and their share of the time. " + exits.STATUSES
    )
    exits.add_run(parser)
    exits.add_text(parser)
    parser.add_argument(
        "--trace",
        action="store_true",
        help="print instead what one execution of each case did, as nvprof --print-gpu-trace does",
    )
    parser.add_argument(
        "--durations",
        action="store_true",
        help="say instead where the time of the run went, and that of each case, the slowest first",
    )
    exits.add_json(parser)
    parser.set_defaults(run=_run)


def _run(known: argparse.Namespace) -> int:
    run = read_run(known.file)
    results = run.results
    if known.text or known.trace or not (run.ran or run.skips or run.problems):
        results = exits.chosen("show", known.file, run.results, known.text)
        if not results:
            return exits.BAD
    if known.json:
        exits.show_json([_without_samples(result) for result in results])
        return exits.FINE
    if known.text:
        failures = {each.nodeid: run.failures[each.nodeid] for each in results if each.nodeid in run.failures}
        run = Run(results, failures=failures, compared_with=run.compared_with)
    if known.trace:
        lines, reason = gpu_trace(results, exits.width(exits.UNLIMITED)), UNTRACED
    elif known.durations:
        lines, reason = durations(run, width=exits.width()), _UNTIMED
    else:
        lines, reason = whole(run, width=exits.width(), verbose=True), ""
    if not lines:
        exits.complain("show", f"{known.file}: {reason}")
        return exits.BAD
    exits.show(line.text for line in lines)
    return exits.FINE


def _without_samples(result: Result) -> JsonDict:
    plain = result.to_json()
    for measurement in plain["measurements"]:
        del measurement["samples_ns"]
    return plain
