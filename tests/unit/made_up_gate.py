"""Sessions of the gate's self-test as a steady device might give them; run as a script, a fake child.

python made_up_gate.py FILE NUMBER [walls] [nvbench]
"""

from __future__ import annotations

import dataclasses
import json
import math
import random
import sys
from pathlib import Path

from pytest_gpukern.selftest.gate_kernels import gate_cases
from pytest_gpukern.selftest.gate_recording import (
    GateReading,
    GateRecording,
    GateSession,
    NvbenchReading,
    sparse,
)
from pytest_gpukern.selftest.recording import write_text

FAMILY = "fma 9600 trips, cold"
OTHERS = (
    "scale 1 M f32, cold",
    "scale 10 M f32, cold",
    "copy 16 MiB, cold",
    "sum 1 M u32, hot",
    "gemm 256 f32, hot",
)
CASES = tuple(case for case in gate_cases() if (case.base or case.id) == FAMILY or case.id in OTHERS)
UNCHANGED = tuple(case for case in CASES if not case.base)
SPREAD, WALL_SPREAD = 1e-4, 0.01
CLOCK_MHZ = 1980.0


def session(number, *, spread=SPREAD, seed=1, slower=None, nvbench=False, cases=CASES, **changes):
    """One session; `slower` has case → factor on its time."""
    rng = random.Random(f"{seed} {number}")
    readings, walls, others = [], {}, []
    for case in cases:
        work_ns = 1e5 * (1 + case.share)
        time_ns = work_ns * (slower or {}).get(case.id, 1.0) * math.exp(spread * rng.gauss(0, 1))
        readings.append(
            GateReading(
                case.id, time_ns, time_ns * 0.9999, time_ns * 1.0001, 100, CLOCK_MHZ + rng.gauss(0, 0.2)
            )
        )
        walls[case.id] = (work_ns + 2e4) * math.exp(WALL_SPREAD * rng.gauss(0, 1))
        if nvbench and case.share in (0.0, 0.05) and (case.base or case.id) == FAMILY:
            others.append(NvbenchReading(case.id, time_ns * math.exp(0.003 * rng.gauss(0, 1)), 0.002))
    made = GateSession("cupti", None, tuple(readings), walls, tuple(others))
    return dataclasses.replace(made, **changes)


def recording(sessions=40, *, changed=None, **options):
    """A self-test of so many sessions; `changed` has number → what differs in it."""
    made = tuple(
        session(number, nvbench=number % 4 == 0, **options, **(changed or {}).get(number, {}))
        for number in range(sessions)
    )
    return GateRecording(
        gpukern="0.1.0",
        created="2026-11-20T13:00:00+00:00",
        fingerprint={
            "device_name": "NVIDIA H200",
            "device_uuid": "GPU-1",
            "driver_version": "580.159",
            "cuda_driver_version": "13.0",
        },
        rivals={"cuda-bench": "0.3.0"},
        cases=options.get("cases", CASES),
        asked_sessions=sessions,
        elapsed_s=240.0,
        sessions=made,
    )


if __name__ == "__main__":
    into, number, *wanted = sys.argv[1:]
    made = session(int(number), cases=gate_cases(), nvbench="nvbench" in wanted)
    if "walls" not in wanted:
        made = dataclasses.replace(made, walls_ns={})
    write_text(Path(into), json.dumps(sparse(made)))
    sys.stderr.write("the context is gone\n")
    sys.exit(3)
