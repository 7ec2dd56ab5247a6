"""What `gpukern selftest --gate` does, and its exit status."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from pytest_gpukern.printable import printable
from pytest_gpukern.selftest.command import GATE_SESSIONS, table_width, tell

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from pytest_gpukern.selftest.gate_recording import GateRecording

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
    from pytest_gpukern.device import DeviceError
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
