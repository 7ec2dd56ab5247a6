"""Sessions of both self-tests as a steady H200 might give them; run as a script, a fake child.

python made_up_selftest.py timers|gate FILE NUMBER [rivals] [nvbench]
"""

from __future__ import annotations

import dataclasses
import math
import random
import sys
from pathlib import Path

from pytest_gpukern.selftest.gate_kernels import gate_cases
from pytest_gpukern.selftest.recording import (
    GateReading,
    GateRecording,
    GateSession,
    Node,
    NvbenchReading,
    Preparation,
    Reading,
    RivalReading,
    Spin,
    Suites,
    TimerRecording,
    TimerSession,
    Wall,
    write_session,
)

FINGERPRINT = {
    "device_name": "NVIDIA H200",
    "device_uuid": "GPU-1",
    "driver_version": "580.159",
    "cuda_driver_version": "13.0",
    "python_version": "3.12.3",
    "cpu_model": "AMD EPYC",
    "libraries": {"cupy-cuda13x": "14.2"},
}

# the timers

KERNELS = {"exp 64 K f32": 1312.0, "exp 10 M f32": 48_640.0, "sgemm 2048": 338_720.0}
SPINS = (500.0, 1_500.0, 20_000.0, 10_000_000.0)
GAP = 40.0
BEYOND_CUPTI, EVENT_COST = 704.0, 3_200.0
BEYOND_EVENT = BEYOND_CUPTI + GAP + EVENT_COST


def spins(cupti=BEYOND_CUPTI, event=BEYOND_EVENT):
    beyond = {"cupti": cupti, "event": event}
    return tuple(
        Spin(ns, timer, ns + 16, ns + 16 + more, more) for ns in SPINS for timer, more in beyond.items()
    )


def nodes():
    found = [Node(f"spin {ns}", ns + 720.0 + GAP, ns + 720.0) for ns in (1500, 20000)]
    found += [Node(name, ns + GAP, ns) for name, ns in KERNELS.items() if name != "sgemm 2048"]
    return (*found, Node("sgemm 2048", problem="the call cannot be captured: it waits"))


def readings(scale=1.0):
    return tuple(
        Reading(name, cache, timer, (ns + more) * scale, 120)
        for name, ns in KERNELS.items()
        for cache in ("cold", "hot")
        for timer, more in (("cupti", 0.0), ("event", EVENT_COST))
    )


def walls(seconds=0.25):
    return tuple(Wall(name, cache, seconds) for name in KERNELS for cache in ("cold", "hot"))


def rivals():
    found = [RivalReading("do_bench", name, "cold", ns + 3000.0) for name, ns in KERNELS.items()]
    return (*found, RivalReading("NVBench", "", "cold", problem="not installed; cuda-bench provides it"))


def timer_session(**changes):
    """One session; every target reached."""
    found = TimerSession(
        default_timer="cupti",
        ticks_ns={"cupti": 32.0, "event": 32.0},
        fixed_costs_ns={"cupti": None, "event": EVENT_COST},
        truth_step_ns=32.0,
        setup_s=0.6,
        elapsed_s=7.5,
        spins=spins(),
        nodes=nodes(),
        preparations=tuple(Preparation(name, 1.2, 0.3, 0.1) for name in KERNELS),
        readings=readings(),
        walls=walls(),
        rivals=rivals(),
    )
    return dataclasses.replace(found, **changes)


def timer_recording(*sessions, **changes):
    """A self-test of these sessions; of three, where none are given."""
    found = sessions or (timer_session(), timer_session(), timer_session())
    made = TimerRecording(
        gpukern="0.1.0",
        created="2026-11-20T13:00:00+00:00",
        fingerprint=FINGERPRINT,
        rivals={"triton": "3.5"},
        asked_sessions=len(found),
        elapsed_s=70.0,
        sessions=tuple(found),
        suites=Suites(95.0, 0),
    )
    return dataclasses.replace(made, **changes)


# the gate

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


def gate_session(number, *, spread=SPREAD, slower=None, nvbench=False, cases=CASES, **changes):
    """One session; `slower` has case → factor on its time."""
    rng = random.Random(f"1 {number}")
    found, wall_times, others = [], {}, []
    for case in cases:
        work_ns = 1e5 * (1 + case.share)
        time_ns = work_ns * (slower or {}).get(case.id, 1.0) * math.exp(spread * rng.gauss(0, 1))
        clock = CLOCK_MHZ + rng.gauss(0, 0.2)
        found.append(GateReading(case.id, time_ns, time_ns * 0.9999, time_ns * 1.0001, 100, clock))
        wall_times[case.id] = (work_ns + 2e4) * math.exp(WALL_SPREAD * rng.gauss(0, 1))
        if nvbench and case.share in (0.0, 0.05) and (case.base or case.id) == FAMILY:
            others.append(NvbenchReading(case.id, time_ns * math.exp(0.003 * rng.gauss(0, 1)), 0.002))
    made = GateSession(
        default_timer="cupti", readings=tuple(found), walls_ns=wall_times, nvbench=tuple(others)
    )
    return dataclasses.replace(made, **changes)


def gate_recording(sessions=40, *, changed=None, **options):
    """A self-test of so many sessions; `changed` has number → what differs in it."""
    made = tuple(
        gate_session(number, nvbench=number % 4 == 0, **options, **(changed or {}).get(number, {}))
        for number in range(sessions)
    )
    return GateRecording(
        gpukern="0.1.0",
        created="2026-11-20T13:00:00+00:00",
        fingerprint=FINGERPRINT,
        rivals={"cuda-bench": "0.3.0"},
        cases=options.get("cases", CASES),
        asked_sessions=sessions,
        elapsed_s=240.0,
        sessions=made,
    )


if __name__ == "__main__":
    what, into, number, *wanted = sys.argv[1:]
    if what == "timers":
        made = timer_session() if "rivals" in wanted else timer_session(rivals=())
    else:
        made = gate_session(int(number), cases=gate_cases(), nvbench="nvbench" in wanted)
        if "rivals" not in wanted:
            made = dataclasses.replace(made, walls_ns={})
    write_session(Path(into), made)
    sys.stderr.write("the context is gone\n")
    sys.exit(3)
