"""Readings of a self-test as an H200 might give them; run as a script, one session of a fake child.

python made_up_selftest.py FILE [rivals]
"""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path

from pytest_gpukern.selftest.recording import (
    Node,
    Preparation,
    Reading,
    Recording,
    RivalReading,
    Session,
    Spin,
    Suites,
    Wall,
    write_json,
)

KERNELS = {"exp 64 K f32": 1312.0, "exp 10 M f32": 48_640.0, "sgemm 2048": 338_720.0}
SPINS = (500.0, 1_500.0, 20_000.0, 10_000_000.0)
BEYOND_CUPTI, BEYOND_EVENT, EVENT_COST = 704.0, 3_900.0, 3_200.0
GAP = 40.0


def spins(cupti=BEYOND_CUPTI, event=BEYOND_EVENT):
    beyond = {"cupti": cupti, "event": event}
    return tuple(
        Spin(ns, timer, ns + 16, ns + 16 + more, more) for ns in SPINS for timer, more in beyond.items()
    )


def nodes():
    found = [Node(f"spin {ns}", ns + 704.0 + GAP, ns + 704.0) for ns in (1500, 20000)]
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
    return (*found, RivalReading("NVBench", "", "cold", problem="not installed; cuda-bench brings it"))


def session(**changes):
    """One session; every target reached."""
    found = Session(
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


def recording(*sessions, **changes):
    """A self-test of these sessions; of three, where none are given."""
    found = sessions or (session(), session(), session())
    made = Recording(
        gpukern="0.1.0",
        created="2026-11-20T13:00:00+00:00",
        fingerprint={
            "device_name": "NVIDIA H200",
            "driver_version": "580.159",
            "cuda_driver_version": "13.0",
            "python_version": "3.12.3",
            "cpu_model": "AMD EPYC",
            "libraries": {"cupy-cuda13x": "14.2"},
        },
        rivals={"triton": "3.5"},
        asked_sessions=len(found),
        elapsed_s=70.0,
        sessions=tuple(found),
        suites=Suites(95.0, 0),
    )
    return dataclasses.replace(made, **changes)


if __name__ == "__main__":
    into, wanted = Path(sys.argv[1]), sys.argv[2:]
    made = session() if wanted else session(rivals=())
    write_json(into, dataclasses.asdict(made))
    sys.stderr.write("the context is gone\n")
    sys.exit(3)
