"""Runs `gpukern validate --all-gpus`: the suites on every GPU of a host side by side; compares the GPUs.

The first round runs all suites, and judges each GPU by its record. Two more rounds on all GPUs measure some
kernels of each class again, and three on suspected GPUs and a neighbour. Each round starts a pytest of its
own for each GPU.
"""

from __future__ import annotations

import contextlib
import itertools
import socket
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

from pytest_gpukern.cli import exits, suites
from pytest_gpukern.findings import cards, fleet
from pytest_gpukern.findings.cards import Card, CardFigures
from pytest_gpukern.gpu.errors import DeviceError, NvmlUnavailable
from pytest_gpukern.gpu.model import Device, short_uuid
from pytest_gpukern.gpu.nvml import Nvml, open_nvml
from pytest_gpukern.report import units
from pytest_gpukern.report.fleet import FleetReport, terminal
from pytest_gpukern.report.fleet_files import figures_of, write_run
from pytest_gpukern.report.layout import wrapped
from pytest_gpukern.report.run_file import read_run
from pytest_gpukern.session.arguments import KnownOption, tokenized
from pytest_gpukern.values.atomic_file import TemporaryFolder
from pytest_gpukern.values.options import RUN_FOLDER_VARIABLE
from pytest_gpukern.values.untrusted_json import FileError

_COMMAND = "validate --all-gpus"
_KERNELS_ONLY = "--gpukern-scope=kernel"
"""Copies and times of the host would be taken one GPU at a time. A later `--gpukern-scope` wins."""
_UNJUDGED = ("--gpukern-baseline=off", "--gpukern-fail-on=none")


def validate_all_gpus(request: suites.ValidateOptions) -> int:
    """Validates all visible GPUs of the first one's model; returns the exit status."""
    recording = "records a case once, on one GPU; --gpukern-baseline=append records every GPU"
    request.refuse_unless(("compare", "append", "off"), recording)
    if junit := [each for each in request.options if each.startswith(("--junitxml", "--junit-xml"))]:
        own = "each GPU has a pytest of its own, and all would write this file"
        raise suites.UsageError(f"{junit[0]}: {own}. {suites.REPORT}=FILE writes a file for each")
    try:
        with open_nvml() as nvml:
            host = _Host.of(request, nvml)
        return _record(host) if request.baseline == "append" else _HostValidation(host).run()
    except (NvmlUnavailable, DeviceError, FileError) as error:
        raise exits.RefusedError(error) from error


@dataclass(frozen=True)
class _Host:
    """Holds what is asked, the GPUs that are validated, and why others are not, in words."""

    request: suites.ValidateOptions
    gpus: dict[str, Device]
    left_out: tuple[str, ...]

    @classmethod
    def of(cls, request: suites.ValidateOptions, nvml: Nvml) -> _Host:
        """Returns the visible GPUs; DeviceError if there is none to validate."""
        whole, parts, unopened = suites.visible_gpus(nvml)
        left_out = [f"{parts} instances of MIG: they share a GPU"] if parts else []
        others = [gpu for gpu in whole if gpu.model_key != whole[0].model_key]
        if others:
            chosen = ",".join(gpu.uuid for gpu in others if gpu.model_key == others[0].model_key)
            left_out.append(
                f"{', '.join(map(str, others))}: of another model than {whole[0].name}. Validate them by "
                f"themselves: CUDA_VISIBLE_DEVICES={chosen} gpukern {_COMMAND}"
            )
        gpus = {gpu.uuid: gpu for gpu in whole if gpu not in others}
        return cls(request, gpus, (*left_out, *unopened))

    def short(self, uuid: str) -> str:
        return short_uuid(uuid, self.gpus)

    def name(self, uuid: str) -> str:
        """Returns a GPU's number in nvidia-smi and the beginning of its UUID: `0 GPU-8d1f0a2c`."""
        return f"{self.gpus[uuid].index} {self.short(uuid)}"

    def keep(self, uuid: str, content: bytes) -> None:
        """Writes a run's file of a GPU into the folders."""
        for folder in self.request.folders:
            write_run(folder, socket.gethostname(), str(self.gpus[uuid].index), content)

    @contextlib.contextmanager
    def side_by_side(
        self, options: Sequence[str], uuids: Iterable[str], tests: Sequence[str] = ()
    ) -> Iterator[dict[str, suites.SuiteRun]]:
        """Starts a pytest for each GPU, of all suites with its reports, or of some tests.

        A report `run.json` is `run-GPU-8d1f0a2c.json` of one GPU. They take turns where they time something
        on the host.
        """
        with contextlib.ExitStack() as stack:
            turns = {RUN_FOLDER_VARIABLE: stack.enter_context(TemporaryFolder("validate"))}
            runs = {}
            for uuid in uuids:
                paths = () if tests else map(Path, self.request.reports)
                own = (path.with_stem(f"{path.stem}-{self.short(uuid)}") for path in paths)
                given = [_KERNELS_ONLY, *options, *(f"{suites.REPORT}={path}" for path in own)]
                run = suites.started(given, tests=tests, gpus=[uuid], environ=turns)
                runs[uuid] = stack.enter_context(run)
            yield runs

    def show(self, uuid: str, run: suites.SuiteRun) -> None:
        """Shows how a GPU's pytest ended, and what it printed."""
        _say(f"GPU {self.name(uuid)}: pytest ended with status {run.process.returncode}")
        sys.stdout.write(run.output)


def _record(host: _Host) -> int:
    """Records every GPU at the same time, in a run of its own each; shows one run after the other."""
    statuses = []
    with host.side_by_side(host.request.options, host.gpus) as runs:
        _say(f"recording {units.counted(len(runs), 'GPU')} side by side")
        for uuid, run in runs.items():
            statuses.append(run.process.wait())
            host.show(uuid, run)
            if run.file.exists():
                host.keep(uuid, run.file.read_bytes())
    exits.show([*_not_validated(host)])
    return next((status for status in statuses if status not in suites.RAN), max(statuses))


@dataclass
class _HostValidation:
    """Validates the GPUs of a host."""

    host: _Host
    statuses: list[int] = field(default_factory=list)
    figures: list[CardFigures] = field(default_factory=list)

    def run(self) -> int:
        uuids = [*self.host.gpus]
        _say(f"measuring {units.counted(len(uuids), 'GPU')} side by side")
        self._round(self.host.request.options, uuids)
        tests = fleet.to_measure_again(self.figures)
        for number in range(2, cards.ROUNDS + 1) if tests else ():
            self._again(f"session {number} of {cards.ROUNDS}", uuids, {*itertools.chain(*tests.values())})
        raising = [*self.figures]
        findings = fleet.judged(raising, expected=())
        if suspects := fleet.to_confirm(findings):
            self._confirm(suspects, tests)
            findings = fleet.judged(raising, self.figures[len(raising) :], expected=())
        report = FleetReport(findings)
        exits.show(["", *terminal(report, exits.width()), *_not_validated(self.host)])
        _say(report.counts)
        return max(*self.statuses, int(findings.confirmed))

    def _confirm(self, suspects: Mapping[Card, fleet.Recheck], tests: Mapping[str, Sequence[str]]) -> None:
        """Measures suspected GPUs and a neighbour again."""
        neighbours = dict.fromkeys(again.neighbour for again in suspects.values())
        others = [card for card in neighbours if card is not None and card not in suspects]
        doubtful = {test for of in suspects.values() for name in of.classes for test in tests.get(name, ())}
        names = ", ".join(card.index for card in suspects)
        neighbours_text = f" beside {', '.join(card.index for card in others)}" if others else ""
        for number in range(1, cards.FRESH_ROUNDS + 1) if doubtful else ():
            what = f"fresh session {number} of {cards.FRESH_ROUNDS}, of {names}{neighbours_text}"
            self._again(what, [card.uuid for card in (*suspects, *others)], doubtful)

    def _again(self, what: str, uuids: Sequence[str], tests: Set[str]) -> None:
        """Measures tests again in fresh processes, without judging."""
        begun = time.monotonic()
        # What fails the first round may need records, and these rounds have none.
        _, options = tokenized(self.host.request.options, [KnownOption(("--gpukern-fail-on",), None)])
        try:
            self._round([*options, *_UNJUDGED], uuids, sorted(tests))
        except suites.NoRunError as error:
            raise DeviceError(f"{error}, so the GPUs were not compared") from error
        _say(f"{what}: {units.counted(len(tests), 'test')}, {units.duration(time.monotonic() - begun)}")

    def _round(self, options: Sequence[str], uuids: Sequence[str], tests: Sequence[str] = ()) -> None:
        """Measures GPUs; shows chosen tests only if they failed. NoRunError if no run came to its end."""
        lost = 0
        with self.host.side_by_side(options, uuids, tests) as runs:
            for uuid, run in runs.items():
                status = run.process.wait()
                if not tests or status != exits.FINE:
                    self.host.show(uuid, run)
                gpu = Card(uuid, index=self.host.name(uuid), model=self.host.gpus[uuid].name)
                try:
                    content = run.content()
                except suites.NoRunError as error:
                    lost += 1
                    if lost == len(runs):
                        raise
                    self.statuses.append(exits.BAD)
                    self.figures.append(CardFigures(gpu, "", datetime.now(UTC), problems=(str(error),)))
                    continue
                self.statuses.append(status)
                for of in figures_of(read_run(run.file)):
                    known = replace(of.card, uuid=uuid, index=gpu.index, model=gpu.model)
                    self.figures.append(replace(of, card=known))
                self.host.keep(uuid, content)


def _not_validated(host: _Host) -> list[str]:
    return [part.text for why in host.left_out for part in wrapped(f"left out: {why}", exits.width())]


def _say(text: str) -> None:
    exits.show([f"gpukern {_COMMAND}: {text}"])
