"""Runs `gpukern trace`: writes what one execution of each case did as a timeline for Perfetto."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_gpukern.cli import exits
from pytest_gpukern.report.run_file import read_run
from pytest_gpukern.report.trace import UNTRACED, chrome_trace
from pytest_gpukern.values.atomic_file import write_named

if TYPE_CHECKING:
    import argparse


def declare(parser: argparse.ArgumentParser) -> None:
    """Declares `gpukern trace`."""
    parser.description = (
        "Writes what a run with --gpukern-trace recorded of one execution of each case, in Chrome's trace "
        "event format. Perfetto (https://ui.perfetto.dev) opens it: a row for each stream and for each "
        "thread of the host, and arrows from calls to kernels. " + exits.STATUSES
    )
    exits.add_run(parser)
    exits.add_text(parser)
    parser.add_argument(
        "-o", "--output", metavar="TRACE.json", type=Path, required=True, help="the file to write"
    )
    parser.set_defaults(run=_run)


def _run(known: argparse.Namespace) -> int:
    results = exits.chosen("trace", known.file, read_run(known.file).results, known.text)
    traces = [result.trace for result in results if result.trace is not None]
    if results and not traces:
        exits.complain("trace", f"{known.file}: {UNTRACED}")
    if not traces:
        return exits.BAD
    # Perfetto shows escapes, such as that of µ, as they are written.
    text = json.dumps(chrome_trace(results), ensure_ascii=False, allow_nan=False)
    write_named(known.output, text, "-o", makes_folders=False)
    activities = sum(len(trace.activities) for trace in traces)
    calls = sum(len(trace.calls) for trace in traces)
    held = f"{activities} activities of the device and {calls} calls of the host"
    told = f"{known.output}: {held}, of {len(traces)} of {len(results)} cases"
    exits.show([told, "open it in https://ui.perfetto.dev, which keeps it in the browser"])
    return exits.FINE
