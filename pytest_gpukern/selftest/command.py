"""The command `gpukern selftest`: its options, and its exit status."""

from __future__ import annotations

import argparse
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_gpukern.values.untrusted_json import printable, printable_lines

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_gpukern.selftest.gate_recording import GateRecording


SESSIONS = 8
PARTS = ("rivals", "suites")
GATE_SESSIONS = 40
GATE_PARTS = ("rivals", "simulation")
_NARROWEST_TABLE = 120


def declare(parser: argparse.ArgumentParser) -> None:
    """Declares `gpukern selftest`."""
    parser.description = (
        "Times kernels of known time and five others in fresh processes, one after another, and other tools "
        "on the same kernels; compares what was found with the targets. Ends with status 0 where all are "
        "reached, 1 where one is missed, and 2 where there is no GPU or a file cannot be used. With --gate: "
        "judges kernels that stay as they are and kernels with a little more work, measured in many fresh "
        "processes, as --gpu-benchmark would judge them; without a GPU it shows the gate on simulated noise."
    )
    add = parser.add_argument
    add("--output", type=Path, metavar="FILE.json", help="write raw readings and conclusions")
    add("--gate", action="store_true", help="test the gate's verdicts instead of the timers")
    add(
        "--sessions",
        type=_sessions,
        help=f"fresh processes, at least 2 (default: {SESSIONS}, of --gate {GATE_SESSIONS})",
    )
    add(
        "--without",
        type=_parts,
        metavar="PART[,PART]",
        help=f"leave out {' or '.join(PARTS)}, with --gate {' or '.join(GATE_PARTS)}, or both",
    )
    add("--device", help="which GPU, as for pytest's --gpukern-device")
    add("--replay", type=Path, metavar="FILE.json", help="judge a recorded self-test again; needs no GPU")
    parser.set_defaults(run=_run, parser=parser)


def _run(known: argparse.Namespace) -> int:
    given = [name for name in ("sessions", "without", "device") if getattr(known, name) is not None]
    if known.gate and known.without == ("simulation",):
        given = [name for name in given if name != "without"]
    if known.replay is not None and given:
        known.parser.error(f"--{given[0]}: --replay measures nothing; drop one of them")
    possible = GATE_PARTS if known.gate else PARTS
    for part in known.without or ():
        if part not in possible:
            with_gate = "with" if known.gate else "without"
            known.parser.error(f"--without={part}: {with_gate} --gate there are {' and '.join(possible)}")
    if known.gate:
        return gate_selftest(
            known.output,
            sessions=known.sessions or GATE_SESSIONS,
            without=known.without or (),
            device=known.device,
            replay=known.replay,
        )
    return selftest(
        known.output,
        sessions=known.sessions or SESSIONS,
        without=known.without or (),
        device=known.device,
        replay=known.replay,
    )


def selftest(
    output: Path | None = None,
    *,
    sessions: int = SESSIONS,
    without: Sequence[str] = (),
    device: str | None = None,
    replay: Path | None = None,
) -> int:
    """Tests what this machine can resolve, or judges a recorded test again; prints the table.

    Args:
        output: file for raw readings and conclusions, as JSON.
        sessions: fresh processes.
        without: of `rivals` and `suites`, what is left out.
        device: which GPU, as in `--gpukern-device`.
        replay: a file that an earlier test wrote.

    Returns:
        0 where all targets are reached, 1 where one is missed, 2 where there is no GPU or a file cannot be
        used.
    """
    from pytest_gpukern.gpu.errors import DeviceError
    from pytest_gpukern.selftest.processes import NoGpuError, run_selftest
    from pytest_gpukern.selftest.recording import RecordingError, read_recording, write_recording
    from pytest_gpukern.selftest.table import render
    from pytest_gpukern.selftest.targets import conclude

    try:
        if replay is not None:
            recording = read_recording(replay)
        else:
            recording = run_selftest(
                sessions=sessions,
                rivals="rivals" not in without,
                suites="suites" not in without,
                device=device,
                tell=tell,
            )
        conclusions = conclude(recording)
        lines = render(recording, conclusions, width=table_width())
        sys.stdout.write("\n".join((*map(printable, lines), "")))
        if output is not None:
            write_recording(output, recording, conclusions.to_json())
    except NoGpuError as error:
        tell(f"no GPU: {error}")
        return 2
    except (DeviceError, RecordingError) as error:
        tell(str(error))
        return 2
    return 0 if conclusions.reached else 1


def table_width() -> int:
    """Columns of the terminal, and of a file or a pipe enough."""
    return max(_NARROWEST_TABLE, shutil.get_terminal_size().columns)


def tell(line: str) -> None:
    """Says what happens, beside the table."""
    sys.stderr.write(f"gpukern selftest: {printable_lines(line)}\n")
    sys.stderr.flush()


def _sessions(text: str) -> int:
    if not text.isdecimal() or int(text) < 2:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of sessions: 2 at least, for a range")
    return int(text)


def _parts(text: str) -> tuple[str, ...]:
    parts = tuple(part.strip() for part in text.split(","))
    for part in parts:
        known = dict.fromkeys((*PARTS, *GATE_PARTS))
        if part not in known:
            raise argparse.ArgumentTypeError(f"{part!r} is none of {', '.join(known)}")
    return parts


DRAWN_TRIALS = 1000
"""Enough to tell 99.9 % from less."""

SIMULATED_RUNS = 200
"""Each takes about half a second; the table in the repository is of ten times as many."""


def gate_selftest(
    output: Path | None = None,
    *,
    sessions: int = GATE_SESSIONS,
    without: Sequence[str] = (),
    device: str | None = None,
    replay: Path | None = None,
) -> int:
    """Tests the gate on this machine and in simulation, or judges recorded sessions again; prints the table.

    The file is written after each session, so that nothing is lost, and again with what is concluded.

    Args:
        output: file for what was measured and concluded, as JSON.
        sessions: fresh processes.
        without: of `rivals` and `simulation`, what is left out.
        device: which GPU, as in `--gpukern-device`.
        replay: a file that an earlier test wrote.

    Returns:
        0 where all targets are reached, 1 where one is missed, 2 where there is nothing to show or a file
        cannot be used.
    """
    from pytest_gpukern.gpu.errors import DeviceError
    from pytest_gpukern.selftest.gate_processes import run_gate_sessions
    from pytest_gpukern.selftest.gate_recording import read_gate_recording, write_gate_recording
    from pytest_gpukern.selftest.gate_simulation import simulate
    from pytest_gpukern.selftest.gate_table import render_gate
    from pytest_gpukern.selftest.gate_targets import conclude
    from pytest_gpukern.selftest.recording import RecordingError

    def keep(recording: GateRecording) -> None:
        if output is not None:
            write_gate_recording(output, recording, {})

    try:
        if replay is not None:
            recording = read_gate_recording(replay)
        else:
            rivals = "rivals" not in without
            recording = run_gate_sessions(
                sessions=sessions, rivals=rivals, device=device, tell=tell, keep=keep
            )
        if recording.no_gpu is not None and "simulation" in without:
            tell(f"no GPU: {recording.no_gpu}; without the simulation nothing is left to show")
            return 2
        simulation = () if "simulation" in without else simulate(SIMULATED_RUNS, tell=tell)
        conclusions = conclude(recording, simulation, draws=DRAWN_TRIALS)
        lines = render_gate(recording, conclusions, width=table_width())
        sys.stdout.write("\n".join((*map(printable, lines), "")))
        if output is not None:
            write_gate_recording(output, recording, conclusions.to_json())
    except (DeviceError, RecordingError) as error:
        tell(str(error))
        return 2
    return 0 if conclusions.reached else 1
