"""Holds the command `gpukern selftest`: its options, and its exit status."""

from __future__ import annotations

import argparse
import shutil
import sys
from pathlib import Path

from pytest_gpukern.gpu.errors import DeviceError
from pytest_gpukern.package import __version__
from pytest_gpukern.selftest import gate_results, tables, timer_results
from pytest_gpukern.selftest.gate_simulation import simulate
from pytest_gpukern.selftest.processes import NoGpuError, run_selftest
from pytest_gpukern.selftest.recording import (
    Conclusions,
    GateRecording,
    Recording,
    RecordingError,
    TimerRecording,
    now,
    read_recording,
    write_recording,
)
from pytest_gpukern.values.untrusted_json import printable, printable_lines

SESSIONS = {False: 8, True: 40}
"""Fresh processes by default, without and with `--gate`."""
PARTS = {False: ("rivals", "suites"), True: ("rivals", "simulation")}
"""Parts that can be left out, without and with `--gate`."""
DRAWN_TRIALS = 1000
"""Enough to tell 99.9 % from less."""
SIMULATED_RUNS = 200
"""Each takes a fifth of a second; the table in the repository has ten times as many."""
_NARROWEST_TABLE = 120


def declare(parser: argparse.ArgumentParser) -> None:
    """Declares `gpukern selftest`."""
    parser.description = (
        "Tests the timers: fresh processes time kernels of known time and five others, other tools time the "
        "same kernels, and the results are compared with targets. Exit status: 0 if all targets are reached, "
        "1 if one is missed, 2 if there is no GPU or a file cannot be used. With --gate, tests the gate: it "
        "judges unchanged kernels and kernels with a little more work, as --gpu-benchmark does, from many "
        "fresh processes; without a GPU it judges simulated noise only."
    )
    add = parser.add_argument
    add("--output", type=Path, metavar="FILE.json", help="write raw readings and conclusions")
    add("--gate", action="store_true", help="test the gate's verdicts instead of the timers")
    add(
        "--sessions",
        type=_sessions,
        help=f"fresh processes, at least 2 (default: {SESSIONS[False]}, with --gate {SESSIONS[True]})",
    )
    add(
        "--without",
        type=_parts,
        metavar="PART[,PART]",
        help=f"leave out {' or '.join(PARTS[False])}, with --gate {' or '.join(PARTS[True])}, or both",
    )
    add("--device", help="which GPU, as for pytest's --gpukern-device")
    add("--replay", type=Path, metavar="FILE.json", help="judge a recorded self-test again; needs no GPU")
    parser.set_defaults(run=_run, parser=parser)


def _run(known: argparse.Namespace) -> int:
    """Runs the command as it was parsed, and returns its exit status.

    The file is written after each session, so that nothing is lost, and again with the conclusions.

    Returns:
        0 if all targets are reached, 1 if one is missed, 2 if there is nothing to show or a file cannot be
        used.
    """
    _refuse_contradictions(known)
    without = known.without or ()
    width = max(_NARROWEST_TABLE, shutil.get_terminal_size().columns)
    try:
        recording = _recording(known, without)
        conclusions: Conclusions
        if isinstance(recording, GateRecording):
            if recording.no_gpu is not None and "simulation" in without:
                _tell(f"no GPU: {recording.no_gpu}; without the simulation nothing is left to show")
                return 2
            simulation = () if "simulation" in without else simulate(SIMULATED_RUNS, tell=_tell)
            conclusions = found = gate_results.conclude(recording, simulation, draws=DRAWN_TRIALS)
            lines = tables.render_gate(recording, found, width=width)
        else:
            conclusions = read = timer_results.conclude(recording)
            lines = tables.render_timers(recording, read, width=width)
        sys.stdout.write("\n".join((*map(printable, lines), "")))
        if known.output is not None:
            write_recording(known.output, recording, conclusions)
    except NoGpuError as error:
        _tell(f"no GPU: {error}")
        return 2
    except (DeviceError, RecordingError) as error:
        _tell(str(error))
        return 2
    return 0 if conclusions.reached else 1


def _recording(known: argparse.Namespace, without: tuple[str, ...]) -> TimerRecording | GateRecording:
    """Reads an earlier recording or measures now; without a GPU, the gate's recording says so."""
    kind: type[TimerRecording | GateRecording] = GateRecording if known.gate else TimerRecording
    if known.replay is not None:
        return read_recording(known.replay, kind)

    def keep(recording: Recording) -> None:
        if known.output is not None:
            write_recording(known.output, recording)

    try:
        return run_selftest(
            kind,
            sessions=known.sessions or SESSIONS[known.gate],
            rivals="rivals" not in without,
            suites=not known.gate and "suites" not in without,
            device=known.device,
            tell=_tell,
            keep=keep,
        )
    except NoGpuError as error:
        if not known.gate or known.device is not None:
            raise
        return GateRecording(gpukern=__version__, created=now(), no_gpu=str(error))


def _refuse_contradictions(known: argparse.Namespace) -> None:
    """Ends the command where its options contradict each other."""
    given = [name for name in ("sessions", "without", "device") if getattr(known, name) is not None]
    if known.gate and known.without == ("simulation",):
        given = [name for name in given if name != "without"]
    if known.replay is not None and given:
        known.parser.error(f"--{given[0]}: --replay measures nothing; drop one of them")
    possible = PARTS[known.gate]
    for part in known.without or ():
        if part not in possible:
            with_gate = "with" if known.gate else "without"
            known.parser.error(f"--without={part}: {with_gate} --gate, it takes {' and '.join(possible)}")


def _tell(line: str) -> None:
    """Says what happens, beside the table."""
    sys.stderr.write(f"gpukern selftest: {printable_lines(line)}\n")
    sys.stderr.flush()


def _sessions(text: str) -> int:
    if not text.isdecimal() or int(text) < 2:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of sessions: give at least 2")
    return int(text)


def _parts(text: str) -> tuple[str, ...]:
    parts = tuple(part.strip() for part in text.split(","))
    for part in parts:
        known = dict.fromkeys((*PARTS[False], *PARTS[True]))
        if part not in known:
            raise argparse.ArgumentTypeError(f"{part!r} is none of {', '.join(known)}")
    return parts
