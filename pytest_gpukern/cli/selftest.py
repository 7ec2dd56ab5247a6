"""Runs `gpukern selftest`: has pytest time kernels in several sessions, and holds them against targets."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from pytest_gpukern.cli import exits
from pytest_gpukern.cli.suites import plugin_options
from pytest_gpukern.gpu.errors import DeviceError
from pytest_gpukern.gpu.selection import missing_gpu_reason
from pytest_gpukern.package import FOLDER
from pytest_gpukern.report import units
from pytest_gpukern.report.layout import Column, table, wrapped
from pytest_gpukern.report.run import RunResults
from pytest_gpukern.report.run_file import read_run
from pytest_gpukern.selftest import targets
from pytest_gpukern.selftest.known_times import known_times_of
from pytest_gpukern.values.atomic_file import TemporaryFolder, write_named
from pytest_gpukern.values.fingerprint import Fingerprint

_SESSIONS = 8
_TESTS = FOLDER / "selftest" / "test_timers.py"
_PASS = {True: "PASS", False: "FAIL", None: ""}
_INDENT = "  "


def declare(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Tests the timers: several sessions of pytest time kernels of known time and five others, and the "
        f"results are held against targets. A target that is missed is something wrong. {exits.STATUSES}"
    )
    add = parser.add_argument
    kept = "keep what was measured, as the file of a run, which gpukern report and gpukern compare read"
    add("-o", "--output", type=_json_file, metavar="FILE.json", help=kept)
    add("--sessions", type=_sessions, default=_SESSIONS, help=f"sessions, at least 2 (default: {_SESSIONS})")
    add("--device", help="which GPU, as for pytest's --gpukern-device")
    parser.set_defaults(run=_run)


def _run(known: argparse.Namespace) -> int:
    try:
        missing_gpu = missing_gpu_reason(os.environ)
    except DeviceError as error:
        missing_gpu = str(error)
    if missing_gpu is not None:
        raise exits.RefusedError(f"no GPU: {missing_gpu}; without one no timer can be tested")
    with TemporaryFolder("selftest") as folder:
        file = Path(folder) / "selftest.json"
        status = subprocess.call(pytest_command(file, known), stdout=sys.stderr)
        if not file.exists():
            raise exits.RefusedError(f"pytest ended with status {status} and wrote no results; see above")
        run = read_run(file)
        if known.output is not None:
            write_named(known.output, file.read_text(encoding="utf-8"), "--output")
    conclusions = targets.conclusions_of(run, known.sessions)
    exits.show(render(run, conclusions, width=exits.width()))
    return exits.FINE if conclusions.reached else exits.BAD


def pytest_command(file: Path, known: argparse.Namespace) -> list[str]:
    """Returns the command that measures in all sessions, and writes the file of the run.

    Sessions follow each other as if they were to be recorded, so that each measures all kernels. The record,
    which nobody needs, lies beside the file.
    """
    options = [
        *("-c", os.devnull, f"--rootdir={_TESTS.parent}", "-p", "no:cacheprovider"),  # no project's own
        *("--gpu-benchmark", f"--gpukern-sessions={known.sessions}", "--gpukern-write-in-ci"),
        *("--gpukern-baseline=create", f"--gpukern-baseline-dir={file.with_name('baselines')}"),
        f"--gpukern-report={file}",
    ]
    if known.device is not None:
        options.append(f"--gpukern-device={known.device}")
    return [sys.executable, "-m", "pytest", str(_TESTS), *options, *plugin_options()]


def render(run: RunResults, conclusions: targets.Conclusions, *, width: int) -> list[str]:
    lines = [f"gpukern selftest: {_device(run)}"]
    lines += _sentences(_remarks(run), width)
    for section in targets.Section:
        rows = [row for row in conclusions.rows if row.section is section]
        if rows:
            lines += ["", section.value, *_table(rows, width)]
    lines += ["", *_sentences((f"FAIL: {missing}" for missing in conclusions.missing), width)]
    return [*lines, f"{sum(conclusions.verdicts)} of {len(conclusions.verdicts)} targets reached"]


def _remarks(run: RunResults) -> Iterator[str]:
    """Yields what went wrong in the run, and what the timers say, such as why CUPTI is not used."""
    yield from run.problems
    for result in run.results:
        if known_times_of(result) is not None:
            for measurement in result.measurements:
                yield from (note.text for note in measurement.summary.notes)


def _device(run: RunResults) -> str:
    machine = run.results[0].fingerprint if run.results else Fingerprint()
    driver = f"driver {machine.driver_version}, CUDA {machine.cuda_driver_version}"
    made = f"{run.created.isoformat(timespec='seconds')} · pytest-gpukern {run.version}"
    return f"{machine.device_name} · {driver} · {machine.cpu_model} · {made}"


def _table(rows: Sequence[targets.TargetRow], width: int) -> list[str]:
    def column(title: str, cells: Iterable[str], *, numeric: bool = True) -> Column:
        return Column(title, tuple(cells), numeric=numeric)

    time_name, found_name = _TITLES[rows[0].section]
    columns = [
        column("what", (row.what for row in rows), numeric=False),
        column("against", (row.against for row in rows), numeric=False),
        column("timer", (row.timer for row in rows), numeric=False),
        column(time_name, (units.time(row.time_ns, 0.0) for row in rows)),
        column(found_name, (_signed(row.found_ns, row) for row in rows)),
        column("", (_share(row.found_ns, row.time_ns) for row in rows)),
        column("worst", ("" if row.worst_ns is None else _signed(row.worst_ns, row) for row in rows)),
        column("allowed", ("" if row.allowed_ns is None else units.time(row.allowed_ns) for row in rows)),
        column("sessions", (f"{row.sessions}" for row in rows)),
        column("target", (_PASS[row.reached] for row in rows), numeric=False),
    ]
    return table(columns, width, indent=_INDENT)[0]


_TITLES = {
    targets.Section.TRUTH: ("true", "error"),
    targets.Section.REPEATS: ("median", "range"),
}


def _signed(ns: float, row: targets.TargetRow) -> str:
    text = units.time(abs(ns))
    return text if not ns or row.section is not targets.Section.TRUTH else f"{'−' if ns < 0 else '+'}{text}"


def _share(ns: float, of_ns: float) -> str:
    return f"{100 * ns / of_ns:.2f} %".replace("-", "−") if of_ns else ""


def _sentences(texts: Iterable[str], width: int) -> Iterator[str]:
    for text in texts:
        yield from (line.text for line in wrapped(text, width, indent=_INDENT))


def _json_file(text: str) -> Path:
    if not text.endswith(".json"):
        raise argparse.ArgumentTypeError(f"{text!r} is no .json; gpukern report makes other forms of one")
    return Path(text)


def _sessions(text: str) -> int:
    if not text.isdecimal() or int(text) < 2:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of sessions: give at least 2")
    return int(text)
