"""Stands for a Dask cluster whose hosts have GPUs: runs it, is loaded by its workers, and is their pytest.

`$STAND_IN` is a folder. Its `plan.json` says what `hosts` there are, worker → UUIDs of its GPUs, and what
`acts` happen on a GPU besides measuring `run.json`, where its UUID is `GPU-any`. For each process that
measured, `begun/` has a file of the GPU's name and a number, with the process's id and its worker's.
"""

import fcntl
import json
import os
import signal
import sys
from pathlib import Path

FOLDER = Path(os.environ.get("STAND_IN", "."))


def plan():
    return json.loads((FOLDER / "plan.json").read_text())


def serve(workers):
    """Runs a cluster until its input ends; prints the scheduler's address."""
    import dask
    from distributed import LocalCluster

    # So long after it lost a worker, a cluster looks whether that is back. One that was lost again meanwhile,
    # and is about to come back, it gives up.
    dask.config.set({"distributed.deploy.lost-worker-timeout": "1h"})
    options = {"n_workers": workers, "threads_per_worker": 1, "dashboard_address": None}
    with LocalCluster(processes=True, preload=["dask_stand_in"], **options) as cluster:
        sys.stdout.write(f"{cluster.scheduler_address}\n")
        sys.stdout.flush()
        sys.stdin.read()


def dask_setup(worker):
    """Makes a worker see what the plan says; one without GPUs runs the real pytest."""
    from dataclasses import replace

    from fake_nvml import FakeNvml, gpu

    from pytest_gpukern.cli import dask_fleet, suites
    from pytest_gpukern.gpu.errors import NvmlUnavailable

    os.environ.pop("CUDA_VISIBLE_DEVICES", None)
    real, name = suites.command, str(worker.name)

    def open_nvml():
        uuids = plan()["hosts"].get(name, ())
        if not uuids:
            raise NvmlUnavailable("the NVIDIA driver is not loaded")
        return FakeNvml(tuple(replace(gpu(), index=index, uuid=uuid) for index, uuid in enumerate(uuids)))

    def command(options, tests=()):
        dask_fleet._HANGS_S = plan().get("hangs_s", 600.0)
        if not plan()["hosts"].get(name):
            return real(options, tests)
        return [sys.executable, "-IS", __file__, str(FOLDER), *options, *tests]

    dask_fleet._SIGN_EVERY_S = 0.1
    dask_fleet.open_nvml = open_nvml
    dask_fleet.socket.gethostname = lambda: f"host{name}"
    suites.command = command


def measure(arguments):
    """Does what pytest would on one GPU: writes the file of a run, and whatever else the plan says."""
    uuid = os.environ["CUDA_VISIBLE_DEVICES"]
    alone = (FOLDER / f"{uuid}.lock").open("w")
    fcntl.flock(alone, fcntl.LOCK_EX | fcntl.LOCK_NB)  # fails if another process measures this GPU
    number = len([*(FOLDER / "begun").glob(f"{uuid}.*")])
    begun = FOLDER / "begun" / f"{uuid}.{number}"
    begun.write_text(json.dumps({"pid": os.getpid(), "worker": os.getppid(), "arguments": arguments}))
    act = plan().get("acts", {}).get(uuid, {})
    text = (FOLDER / "run.json").read_text().replace("GPU-any", act.get("measures", uuid))
    run = json.loads(text.replace(*act.get("software", ("", ""))))
    (of_process,) = run["processes"].values()
    run["processes"] = {begun.name: of_process}
    for result in run["results"]:
        result["session"] = begun.name
        for measurement in result["measurements"]:
            measurement["summary"]["median_ns"] *= act.get("slower", 1.0)
    text = act.get("writes", json.dumps(run))
    for file in (each.partition("=")[2] for each in arguments if each.startswith("--gpukern-report=")):
        Path(file).write_text(text)
    for name, pid in act.get("signals", {}).items():
        os.kill(pid or os.getppid(), getattr(signal, name))
    if act.get("hangs"):
        signal.pause()
    sys.stdout.write(act.get("says", ""))
    return act.get("status", 0)


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        serve(int(sys.argv[2]))
    else:
        FOLDER = Path(sys.argv[1])
        sys.exit(measure(sys.argv[2:]))
