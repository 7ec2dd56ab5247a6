"""Reads what `gpukern validate` is asked for, and starts a pytest of the suites for it.

Every card is measured by a process that `started` starts, on this host or in a task of Dask.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import signal
import subprocess
import sys
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from pytest_gpukern.cli.exits import BAD, RefusedError
from pytest_gpukern.gpu.errors import DeviceError
from pytest_gpukern.gpu.model import Device
from pytest_gpukern.gpu.nvml import Nvml
from pytest_gpukern.gpu.selection import visible_devices
from pytest_gpukern.package import FOLDER, SUITES
from pytest_gpukern.processes.process import end_group, end_in_words, last_lines, started_with_us
from pytest_gpukern.processes.sessions import environment, seeing
from pytest_gpukern.session.arguments import KnownOption, tokenized
from pytest_gpukern.values.atomic_file import TemporaryFolder

RAN = (0, 1)
"""pytest's statuses of a run to its end."""
REPORT = "--gpukern-report"
_READ = ("device", "baseline", "baseline-dir", "backend", "simulator")
_TO_END_S = 20.0
"""Time for a run of pytest to end after Ctrl-C."""


# --- what was asked -------------------------------------------------------------------------------


class UsageError(RefusedError):
    """Refuses options, with pytest's own status."""

    def __init__(self, problem: object) -> None:
        super().__init__(problem, 4)


@dataclass(frozen=True)
class ValidateOptions:
    """Holds what pytest's options ask for.

    Attributes:
        options: all but `--gpukern-report`.
        values: name → last value, of options that we read.
        reports: files.
        folders: get a run's file of each card and session; they exist or end in `/`.
    """

    options: list[str]
    values: dict[str, str]
    reports: list[str]
    folders: list[Path]

    @classmethod
    def of(cls, options: Sequence[str]) -> ValidateOptions:
        """Reads options as pytest does; raises UsageError if one lacks its value."""
        try:
            read, _ = tokenized(options, [KnownOption((f"--gpukern-{name}",), None) for name in _READ])
            written, others = tokenized(options, [KnownOption((REPORT,), None)])
        except ValueError as error:
            raise UsageError(error) from error
        values = {token.name.removeprefix("--gpukern-"): token.values[0] for token in read}
        paths = dict.fromkeys(token.values[0] for token in written)
        folders = [path for path in paths if path.endswith("/") or (path and Path(path).is_dir())]
        reports = [path for path in paths if path not in folders]
        return cls(others, values, reports, [*map(Path, folders)])

    @property
    def baseline(self) -> str:
        return self.values.get("baseline", "compare")

    def refuse_unless(self, baselines: Collection[str], recording: str) -> None:
        """Raises UsageError for what several GPUs cannot do.

        `recording` says why only these `--gpukern-baseline` can be, and what to do instead.
        """
        if "device" in self.values:
            only = f"--gpukern-device={self.values['device']} leaves one GPU"
            raise UsageError(f"{only}; drop it, or choose some of the GPUs with CUDA_VISIBLE_DEVICES")
        if self.baseline not in baselines:
            raise UsageError(f"--gpukern-baseline={self.baseline} {recording}")


def visible_gpus(nvml: Nvml) -> tuple[list[Device], int, list[str]]:
    """Returns the visible GPUs, the number of visible instances of MIG, and what NVML cannot open, in words.

    Raises DeviceError if no GPU is whole.
    """
    visible = visible_devices(nvml, os.environ)
    whole = [device for device in visible if device.mig_profile is None]
    if not whole:
        why = ": instances of MIG share one, and are not compared" if visible else ""
        raise DeviceError(f"no whole GPU is visible{why}")
    closed = nvml.count() - len(nvml.gpus())
    unopened = [f"{closed} GPUs that NVML lists but cannot open: see dmesg for Xid errors"] * (closed > 0)
    return whole, len(visible) - len(whole), unopened


# --- the process ----------------------------------------------------------------------------------


class NoRunError(RefusedError):
    """Says why there is no run file."""


@dataclass(frozen=True)
class SuiteRun:
    """Holds a pytest of the suites that has been started, and the files that it writes."""

    process: subprocess.Popen[bytes]
    file: Path
    log: Path

    @property
    def output(self) -> str:
        """What it has printed."""
        return self.log.read_text(encoding="utf-8", errors="replace")

    def looks(self, every_s: float) -> Iterator[float]:
        """Yields now and then until it has ended: for how many seconds it has printed nothing."""
        size, heard_s = -1, time.monotonic()
        while self.process.poll() is None:
            yield time.monotonic() - heard_s
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(every_s)
            if self.log.stat().st_size != size:
                size, heard_s = self.log.stat().st_size, time.monotonic()

    def content(self) -> bytes:
        """Waits for its end; returns the run's file, or raises NoRunError."""
        status = self.process.wait()
        if status in RAN and self.file.exists():
            return self.file.read_bytes()
        last = f": {last_lines(self.output)}" if self.output else ""
        ended = f"its pytest ended {end_in_words(status)}"
        raise NoRunError(f"{ended}{', and wrote no file' * (status in RAN)}{last}", status or BAD)


def command(options: Sequence[str], tests: Sequence[str] = ()) -> list[str]:
    """Returns the command that runs the packaged suites, or only the given tests, with these options."""
    folder = suites_folder()
    chosen = [f"{folder.parent}/{test}" for test in tests] or [str(folder)]
    ours = [*chosen, f"--rootdir={folder.parent}", "--gpu-benchmark", "-p", "no:cacheprovider"]
    # Numba's own, of a vectorize on the host; a checkout's configuration is quiet about it.
    ours += ["-W", "ignore:The keyword argument 'nopython=False':DeprecationWarning"]
    installed = importlib.metadata.entry_points(group="pytest11", name="gpukern")
    plugin = [] if installed else ["-p", "pytest_gpukern.plugin"]  # as in a checkout
    return [sys.executable, "-m", "pytest", *ours, *plugin, *options]


def suites_folder() -> Path:
    """Returns the folder of the suites: inside the installed package, or beside it in a checkout."""
    for folder in SUITES:
        if (folder / "__init__.py").is_file():
            return folder
    raise FileNotFoundError(f"the suites are neither in {FOLDER} nor beside it: install the package anew")


@contextlib.contextmanager
def started(
    options: Sequence[str],
    *,
    tests: Sequence[str] = (),
    gpus: Sequence[str] = (),
    environ: Mapping[str, str] = MappingProxyType({}),
) -> Iterator[SuiteRun]:
    """Starts the suites, or some of their tests, in a process that sees these GPUs, or all that we see.

    It ends with this block, and with the thread that is in it. `environ` is added to its environment.
    """
    with TemporaryFolder("validate") as folder:
        file, log = Path(folder, "run.json"), Path(folder, "output")
        arguments = command([*options, f"{REPORT}={file}"], tests)
        with log.open("wb") as output:
            variables = environment({**environ, **(seeing(*gpus) if gpus else {})})
            process = started_with_us(arguments, variables, output)
        try:
            yield SuiteRun(process, file, log)
        except KeyboardInterrupt:  # Ctrl-C does not reach its process group; pytest tells what it has so far
            process.send_signal(signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_TO_END_S)
            raise
        finally:
            end_group(process)
