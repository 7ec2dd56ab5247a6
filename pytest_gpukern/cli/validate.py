"""Runs `gpukern validate`: the suites that come with the package, on this machine."""

from __future__ import annotations

import argparse
import contextlib
import os
import shlex
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from pytest_gpukern.cli.suites import REPORT, UsageError, ValidateOptions, command, suites_folder
from pytest_gpukern.package import FOLDER
from pytest_gpukern.values.atomic_file import TemporaryFolder
from pytest_gpukern.values.backend_table import select_the_host_only


def declare(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Runs the suites of this package with pytest --gpu-benchmark. All other options go to pytest, such "
        "as -k vector_exp. The exit status is pytest's: 1 also if a case on record did not run, or if "
        "nothing was measured on a GPU, unless --gpukern-simulator=auto or --gpukern-backend=host asks for "
        "that here. --gpukern-report=FOLDER/ writes HOST-INDEX.json there, which gpukern fleet reads."
    )
    parser.usage = "%(prog)s [-h] [--all-gpus | --dask=SCHEDULER] [PYTEST OPTIONS]"
    several = parser.add_mutually_exclusive_group()
    several.add_argument(
        "--all-gpus",
        action="store_true",
        help="run on every visible GPU of one model side by side, and compare the GPUs: status 1 if one is "
        "confirmed to be slower",
    )
    several.add_argument(
        "--dask",
        metavar="SCHEDULER",
        help="like --all-gpus, on every GPU of a Dask cluster: address or file of its scheduler",
    )
    parser.set_defaults(
        run=lambda known: validate(known.rest, all_gpus=known.all_gpus, dask=known.dask),
        takes_pytest_options=True,
    )


def validate(options: Sequence[str] = (), *, all_gpus: bool = False, dask: str | None = None) -> int:
    """Runs the packaged suites in a pytest of their own, or in several; returns the exit status."""
    typed = ValidateOptions.of(options)
    writes = typed.baseline in ("create", "append", "update")
    if writes and "baseline-dir" not in typed.values and suites_folder().parent == FOLDER:
        problem = "the next installation would delete baselines beside the installed suites"
        raise UsageError(f"{problem}; add --gpukern-baseline-dir=FOLDER")
    # A driver may vanish with an upgrade. So `auto` for the simulator counts only if it was typed.
    backends = typed.values.get("backend")
    host_only = select_the_host_only(backends and backends.split(","))
    needs_gpu = typed.values.get("simulator") not in ("auto", "always") and not host_only
    fails_too = ["no-gpu"] * needs_gpu + ["missing"] * (typed.baseline != "off")  # besides what is typed
    options = [*options, *([f"--gpukern-fail-on={','.join(fails_too)}"] if fails_too else [])]
    if not all_gpus and dask is None:
        return _on_one_gpu(ValidateOptions.of(options))
    request = ValidateOptions.of([*shlex.split(os.environ.get("PYTEST_ADDOPTS", "")), *options])
    # Python would die on the spot; so it ends what was started.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    try:
        if dask is not None:
            from pytest_gpukern.cli.dask_fleet import validate_on_dask

            return validate_on_dask(dask, request, needs_gpu=needs_gpu)
        from pytest_gpukern.cli.all_gpus import validate_all_gpus

        return validate_all_gpus(request)
    except KeyboardInterrupt:
        return 128 + signal.SIGINT


def _on_one_gpu(request: ValidateOptions) -> int:
    options = [*request.options, *(f"{REPORT}={path}" for path in request.reports)]
    if not request.folders:
        return subprocess.call(command(options))
    with TemporaryFolder("validate") as temporary:
        report = Path(temporary, "run.json")
        status = subprocess.call(command([*options, f"{REPORT}={report}"]))
        if report.exists():
            _keep(report, request.folders)
    return status


def _keep(report: Path, folders: Sequence[Path]) -> None:
    """Writes a run's file into folders, named by this host and by its card's number in nvidia-smi."""
    from pytest_gpukern.gpu.errors import DeviceError, NvmlUnavailable
    from pytest_gpukern.gpu.nvml import open_nvml
    from pytest_gpukern.report.fleet_files import write_run
    from pytest_gpukern.report.run_file import read_run

    uuids = {result.fingerprint.device_uuid for result in read_run(report).results}
    index = ""
    with contextlib.suppress(DeviceError, NvmlUnavailable), open_nvml() as nvml:
        owners = ((gpu.index, {gpu.uuid, *(part.uuid for part in gpu.mig_instances)}) for gpu in nvml.gpus())
        index = next((str(number) for number, names in owners if names & uuids), "")
    for folder in folders:
        path = write_run(folder, socket.gethostname(), index, report.read_bytes())
        sys.stdout.write(f"gpukern validate: the run is in {path}\n")
