"""Holds what a run measures with: device, libraries, records, data sets and child sessions.

What needs NumPy is imported where it is asked for, as in `device_session.py`.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_gpukern.backends import skcuda_imports
from pytest_gpukern.baseline.store import Store
from pytest_gpukern.gpu.fingerprint import take_provenance
from pytest_gpukern.processes.sessions import ChildSessions, Ending
from pytest_gpukern.run.device_session import DeviceSession
from pytest_gpukern.values.backend_table import BACKENDS, missing_library
from pytest_gpukern.values.fingerprint import NO_PROVENANCE, Provenance
from pytest_gpukern.values.note import NOT_COVERED, NotRun
from pytest_gpukern.values.settings import Settings

if TYPE_CHECKING:
    from pytest_gpukern.backends.backend import Backend
    from pytest_gpukern.baseline.record import Record
    from pytest_gpukern.problems.dataset import Datasets
    from pytest_gpukern.run.loaded_files import OpenedFiles
    from pytest_gpukern.values.result import CaseInfo, Result


@dataclass(frozen=True)
class Open:
    """Holds what a record of other cards leaves open of a test, until it is measured beside that commit.

    Attributes:
        keys: the times.
        recorded: the commit of the record.
        threshold: smallest change that counts.
        as_recorded: the times whose conditions are those of the record.
        same_work: whether the device did the same for these times, as far as timers see.
    """

    result: Result
    keys: tuple[str, ...]
    recorded: Provenance
    threshold: float
    as_recorded: frozenset[str]
    same_work: bool


Beside = Callable[[Sequence[Open], ChildSessions], Mapping[str, Ending | str]]
"""Measures tests on this card in the code that was recorded and in ours, while nobody holds the device.

It takes what is open of each test, and what starts sessions. It returns for each test how it ended in ours,
with verdicts, or why it was not measured.
"""


class Environment:
    """Holds what the tests of one process share, and opens the backends that work here.

    Args:
        settings: what the run was asked to do.
        gpu: the device, or what we know without one.
        children: makes what starts child sessions of the run's tests; None if there is no run.
        datasets: folder in which this session keeps data sets for others of the same tree, or None.
        rootdir: folder whose commit is recorded, or None.
        opened: sees what tests open, or None where nobody looks.

    Attributes:
        beside: measures tests beside the commits of their records; None where no test is judged.
        store: baselines, with what is recorded of earlier sessions.
        unusable: says why a backend cannot run here; returns None if it can.
        session: id of this process, which tells its measurements from other processes' measurements.
    """

    def __init__(
        self,
        settings: Settings,
        gpu: DeviceSession,
        *,
        children: Callable[[], ChildSessions] | None = None,
        datasets: Path | None = None,
        rootdir: Path | None = None,
        opened: OpenedFiles | None = None,
    ) -> None:
        self.settings = settings
        self.gpu = gpu
        self.session = secrets.token_hex(4)
        self._backends: dict[str, Backend] = {}
        self.unusable = functools.cache(self._why_unusable)
        self.store = Store(
            settings.baseline, directory_override=settings.baseline_dir, reason=settings.reason
        )
        self.beside: Beside | None = None
        self._folder, self._rootdir, self._children = datasets, rootdir, children
        self.opened = opened

    @functools.cached_property
    def poisons(self) -> tuple[int, ...]:
        """Returns what fills outputs before checked launches, by the run's seed, or the session."""
        from pytest_gpukern.arrays.compare import draw_poisons

        return draw_poisons(self.session if self.settings.seed is None else self.settings.seed)

    @functools.cached_property
    def datasets(self) -> Datasets:
        """Returns inputs and references of cases."""
        from pytest_gpukern.problems.dataset import Datasets

        return Datasets(seed=self.settings.seed, folder=self._folder)

    @functools.cached_property
    def corner_datasets(self) -> Datasets:
        """Returns inputs and references of corners, which are many small points."""
        from pytest_gpukern.problems.dataset import MOST_CORNERS, Datasets

        return Datasets(points=MOST_CORNERS, seed=self.settings.seed)

    @functools.cached_property
    def provenance(self) -> Provenance:
        """Returns which state of the code is measured; nothing is known in a run that does not measure."""
        if self._rootdir is None or not self.settings.benchmark:
            return NO_PROVENANCE
        opened = self.opened  # git reads files to find changes
        with opened.looking_away(opened.project.tracked) if opened is not None else contextlib.nullcontext():
            return take_provenance(self._rootdir)

    def files_of(self, test: Path, reads: Sequence[str]) -> str | None:
        """Returns a hash of the project's files that the running test loads; None where that is not sure."""
        if self.opened is None or self.opened.why_blind:
            return None
        opened = self.opened.of_test()
        with self.opened.looking_away():
            return self.opened.project.hash_of_loads(test, tuple(reads), opened)

    def record_of(self, case: CaseInfo) -> Record:
        """Returns what is on record of a case, for the model that it runs on here."""
        model = self.gpu.model_key(on_gpu=case.on_gpu)
        return self.store.baseline(case, model).of(case.id)

    @property
    def size(self) -> str:
        """Returns `smoke`, `full` or `huge`; by default `full` to measure on a real GPU, else `smoke`."""
        if self.settings.size is not None:
            return self.settings.size
        return "full" if self.gpu.measures or self.settings.code else "smoke"

    @functools.cached_property
    def children(self) -> ChildSessions:
        assert self._children is not None, "nobody runs tests in this process"
        return self._children()

    # the backends that work here

    def _why_unusable(self, name: str) -> str | None:
        """Says why backend `name` cannot run here; returns None if it can.

        We open the backend to find out: an installed library may fail to import, or not fit the driver.
        """
        if name not in BACKENDS:
            return f"the backend {name!r} is none of {', '.join(BACKENDS)}"
        chosen = self.settings.backends
        if chosen and name not in chosen:  # so its variants need no import
            return NotRun("not selected", f"--gpukern-backend={','.join(chosen)}")
        if self.settings.code and not BACKENDS[name].captured_by:
            of_host = "variants of the host, which have no machine code"
            return NotRun(NOT_COVERED, f"kernels of {name}" if BACKENDS[name].on_gpu else of_host)
        missing = missing_library(name, compiles=bool(self.settings.code))
        if missing is not None or self.settings.code:
            return missing
        if self.gpu.why_no_context is not None:  # so nothing is imported in vain
            return self.gpu.why_no_context
        row = BACKENDS[name]
        if self.gpu.simulated.active and row.simulated_by:
            return None
        if row.on_gpu:
            if not self.gpu.has_gpu:
                return self.gpu.why_no_gpu
            from pytest_gpukern.gpu.runtime import runtime

            runtime()  # a device that fails is no library's fault, so it raises here
        try:
            self.backend(name)
        except Exception as error:  # noqa: BLE001 - from an unresolved symbol to a NumPy that is too new
            text = " ".join(str(error).split()) or "no reason given"
            return f"the backend {name} cannot be opened: {type(error).__name__}: {text}"
        return None

    def backend(self, name: str) -> Backend:
        """Returns the backend `name`, opened once; ask `unusable` first."""
        if name not in self._backends:
            from pytest_gpukern.backends.backend import open_backend

            self._backends[name] = open_backend(name, simulated=self.gpu.simulated.active)
            self._backends[name].poisons = self.poisons
        return self._backends[name]

    @property
    def library_notes(self) -> list[str]:
        """Returns what stood in while libraries were imported, with their versions."""
        return [*skcuda_imports.notes()]


def available_host_bytes() -> float:
    """Returns host memory that is usable without swapping, by Linux's estimate; else half of all memory."""
    with contextlib.suppress(OSError):
        available = re.search(r"^MemAvailable: *(\d+) kB", Path("/proc/meminfo").read_text(), re.MULTILINE)
        if available is not None:
            return 1024.0 * int(available[1])
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2
