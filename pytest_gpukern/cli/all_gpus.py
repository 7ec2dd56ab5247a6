"""Runs `gpukern validate --all-gpus`: the suites on every GPU of a host side by side; compares the GPUs.

The first round is a run of all suites with `-n auto --dist=each`, which judges each GPU by its record. Two
more rounds on all GPUs measure some kernels of each class again, and three on suspected GPUs and a neighbour.
Each round has a fresh process for each GPU.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO

from pytest_gpukern.cli import exits
from pytest_gpukern.findings import cards, fleet
from pytest_gpukern.findings.cards import FEWEST_CASES, Card, Session
from pytest_gpukern.gpu.errors import DeviceError, NvmlUnavailable
from pytest_gpukern.gpu.model import Device, short_uuid
from pytest_gpukern.gpu.nvml import Nvml, open_nvml
from pytest_gpukern.gpu.selection import visible_devices
from pytest_gpukern.processes.sessions import environment, seeing
from pytest_gpukern.report import units
from pytest_gpukern.report.fleet import cards_table, facts_table, lines_of, of_card, rows
from pytest_gpukern.report.fleet_files import sessions_of, write_run
from pytest_gpukern.report.layout import wrapped
from pytest_gpukern.report.run import RunResults
from pytest_gpukern.report.run_file import DAMAGED, read_run, run_text
from pytest_gpukern.session.arguments import KnownOption, is_for_children, known_options, tokenized
from pytest_gpukern.values.atomic_file import TemporaryFolder
from pytest_gpukern.values.form_table import suffix_of
from pytest_gpukern.values.untrusted_json import ContentError, FileError, content_of

_COMMAND = "validate --all-gpus"
_USAGE_ERROR = 4
"""pytest's own status."""
_RAN = (0, 1)
"""pytest's statuses of a run to its end."""
_TO_END_S = 20.0
"""Time for a run of pytest to end after Ctrl-C."""
_REPORT = "--gpukern-report"
_SIDE_BY_SIDE = ("-n", "auto", "--dist=each")
_KERNELS_ONLY = "--gpukern-scope=kernel"
"""Copies and times of the host would be taken one GPU at a time. A later `--gpukern-scope` wins."""


def validate_all_gpus(
    options: Sequence[str], command: Callable[..., list[str]], folders: Sequence[Path]
) -> int:
    """Validates all visible GPUs of the first one's model; returns the exit status.

    Args:
        options: of pytest.
        command: returns the command that runs the suites with options, or only those of their tests.
        folders: get a run's file of each GPU and session.
    """
    try:
        given = _Given.of(options)
    except ValueError as error:
        exits.complain(_COMMAND, error)
        return _USAGE_ERROR
    # Python would die on the spot, and leave pytest running.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    try:
        with open_nvml() as nvml, TemporaryFolder("validate") as folder:
            host = _Host.of(nvml)
            if given.records:
                return _record(host, given, command, Path(folder), folders)
        return _Validation(host, options, given.further, command, Path(folder), folders).run()
    except (NvmlUnavailable, DeviceError, FileError) as error:
        exits.complain(_COMMAND, error)
        return exits.BAD
    except KeyboardInterrupt:
        return 128 + signal.SIGINT


# --- what was asked -------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Given:
    """Holds what pytest's options mean for us; `further` rounds get those that neither report nor select."""

    records: bool
    reports: tuple[Path, ...]
    options: tuple[str, ...]
    further: tuple[str, ...]

    @classmethod
    def of(cls, options: Sequence[str]) -> _Given:
        """Reads them as pytest does; ValueError says what cannot be done on all GPUs."""
        known = _options_of_pytest()
        own, positional = tokenized(options, known)
        tokens = [*tokenized(shlex.split(os.environ.get("PYTEST_ADDOPTS", "")), known)[0], *own]
        values = {token.name: token.values[-1] for token in tokens if token.values}
        device, baseline = values.get("--gpukern-device"), values.get("--gpukern-baseline", "compare")
        if device is not None:
            raise ValueError(
                f"--gpukern-device={device} leaves one GPU; drop it, or choose some of the GPUs with "
                "CUDA_VISIBLE_DEVICES"
            )
        if baseline not in ("compare", "append", "off"):
            raise ValueError(
                f"--gpukern-baseline={baseline} records a case once, on one GPU; "
                "--gpukern-baseline=append records every GPU"
            )
        if importlib.util.find_spec("xdist") is None:
            raise ValueError(
                "pytest-xdist runs the GPUs side by side, and is not installed: pip install pytest-xdist"
            )
        others = [argument for token in own if token.name != _REPORT for argument in token.written]
        kept = [argument for token in tokens if is_for_children(token.option) for argument in token.written]
        return cls(
            baseline == "append",
            tuple(Path(value) for token in own if token.name == _REPORT for value in token.values),
            (*others, *positional),
            tuple(kept),
        )


def _options_of_pytest() -> list[KnownOption]:
    from _pytest.config import get_config

    config = get_config()
    config.pluginmanager.load_setuptools_entrypoints("pytest11")
    config.pluginmanager.consider_env()
    if not config.pluginmanager.has_plugin("gpukern"):
        config.pluginmanager.import_plugin("pytest_gpukern.plugin")
    return known_options(config)


@dataclass(frozen=True)
class _Host:
    """Holds the GPUs that are validated, and those that are not, with the reason in words."""

    cards: tuple[Device, ...]
    left_out: tuple[str, ...] = ()

    @classmethod
    def of(cls, nvml: Nvml) -> _Host:
        """Returns the visible GPUs; DeviceError if there is none to validate."""
        visible = visible_devices(nvml, os.environ)
        whole = [device for device in visible if device.mig_profile is None]
        if not whole:
            raise DeviceError(
                "no whole GPU is visible"
                + (": instances of MIG share one, and are not compared" if visible else "")
            )
        of_one_model = tuple(device for device in whole if device.model_key == whole[0].model_key)
        left_out = []
        parts = len(visible) - len(whole)
        if parts:
            left_out.append(f"{parts} instances of MIG: they share a GPU")
        others = [device for device in whole if device not in of_one_model]
        if others:
            chosen = ",".join(device.uuid for device in others if device.model_key == others[0].model_key)
            named = ", ".join(map(str, others))
            left_out.append(
                f"{named}: of another model than {whole[0].name}. Validate them by themselves: "
                f"CUDA_VISIBLE_DEVICES={chosen} gpukern {_COMMAND}"
            )
        closed = nvml.count() - len(nvml.gpus())
        if closed > 0:
            left_out.append(f"{closed} GPUs that NVML lists but cannot open: see dmesg for Xid errors")
        return cls(of_one_model, tuple(left_out))

    @property
    def uuids(self) -> tuple[str, ...]:
        return tuple(card.uuid for card in self.cards)

    def name(self, uuid: str) -> str:
        """Returns a GPU's number in nvidia-smi and the beginning of its UUID: `0 GPU-8d1f0a2c`."""
        card = next(card for card in self.cards if card.uuid == uuid)
        return f"{card.index} {short_uuid(uuid, self.uuids)}"

    def card(self, card: Card) -> Card:
        """Returns a card of a run's file with its number and model."""
        return replace(card, index=self.name(card.uuid), model=self.cards[0].name)


@contextlib.contextmanager
def _started(
    arguments: Sequence[str], environ: Mapping[str, str], log: IO[bytes] | None
) -> Iterator[subprocess.Popen[bytes]]:
    """Starts a process that writes to a log, or to our own output; it ends when we are ended."""
    errors = None if log is None else subprocess.STDOUT
    with subprocess.Popen(arguments, env=environ, stdout=log, stderr=errors) as process:
        try:
            yield process
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt):  # which it has got as well, and ends by itself
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(_TO_END_S)
            process.terminate()
            process.wait()
            raise


# --- recording ------------------------------------------------------------------------------------


def _record(
    host: _Host, given: _Given, command: Callable[..., list[str]], folder: Path, folders: Sequence[Path]
) -> int:
    """Records every GPU at the same time, in a run of its own each; shows one run after the other."""
    with contextlib.ExitStack() as stack:
        runs = []
        for uuid in host.uuids:
            paths = [_of_gpu(path, short_uuid(uuid, host.uuids)) for path in given.reports]
            paths += [folder / f"kept-{uuid}.json"] if folders else []
            own = [f"{_REPORT}={path}" for path in paths]
            log = stack.enter_context((folder / uuid).open("w+b"))
            arguments = command([_KERNELS_ONLY, *given.options, *own])
            process = stack.enter_context(_started(arguments, os.environ | seeing(uuid), log))
            runs.append((uuid, process, log))
        _say(f"recording {units.counted(len(runs), 'GPU')} side by side")
        statuses = []
        for uuid, process, log in runs:
            statuses.append(process.wait())
            _say(f"GPU {host.name(uuid)}: pytest ended with status {statuses[-1]}")
            log.seek(0)
            sys.stdout.write(log.read().decode(errors="replace"))
            index, kept = host.name(uuid).partition(" ")[0], folder / f"kept-{uuid}.json"
            for into in folders if kept.exists() else ():
                write_run(into, socket.gethostname(), index, kept.read_bytes())
        exits.show([*_not_validated(host)])
        return next((status for status in statuses if status not in _RAN), max(statuses))


def _of_gpu(path: Path, gpu: str) -> Path:
    """Returns the file of one GPU: `run-GPU-8d1f0a2c.json` for `run.json`."""
    suffix = suffix_of(path) or ""
    return path.with_name(f"{path.name.removesuffix(suffix)}-{gpu}{suffix}")


# --- measuring ------------------------------------------------------------------------------------


@dataclass
class _Validation:
    """Validates the GPUs of a host; `further` are pytest's options in all rounds but the first."""

    host: _Host
    options: Sequence[str]
    further: Sequence[str]
    command: Callable[..., list[str]]
    folder: Path
    folders: Sequence[Path]
    statuses: list[int] = field(default_factory=list)
    sessions: list[Session] = field(default_factory=list)

    def run(self) -> int:
        uuids = self.host.uuids
        if not self._round(self.options, os.environ | seeing(*uuids)):
            return self.statuses[0]
        kernels = fleet.to_measure_again(self.sessions)
        for number in range(2, cards.ROUNDS + 1) if kernels else ():
            self._again(f"session {number} of {cards.ROUNDS}", uuids, kernels)
        run, raising = read_run(self.folder / "0.json"), [*self.sessions]
        since_record = cards.since_own_record(run.results, run.history)
        found = fleet.judged(raising, since_record=since_record)
        if suspects := fleet.to_confirm(found):
            self._confirm(suspects, kernels)
            found = fleet.judged(raising, self.sessions[len(raising) :], since_record=since_record)
        exits.show(_report(self.host, found))
        corrupt = any(odd.sessions > 1 for odd in found.corrupt)
        return max(*self.statuses, int(corrupt or any(model.bad for model in found.models)))

    def _confirm(self, suspects: Mapping[Card, fleet.Recheck], kernels: Mapping[str, str]) -> None:
        """Measures suspected GPUs and a neighbour again."""
        neighbours = dict.fromkeys(again.beside for again in suspects.values())
        others = [card for card in neighbours if card is not None and card not in suspects]
        doubtful = {name for again in suspects.values() for name in again.classes}
        doubtful_kernels = [kernel for kernel, name in kernels.items() if name in doubtful]
        names = ", ".join(card.index for card in suspects)
        beside = f" beside {', '.join(card.index for card in others)}" if others else ""
        for number in range(1, cards.FRESH_ROUNDS + 1) if doubtful_kernels else ():
            what = f"fresh session {number} of {cards.FRESH_ROUNDS}, of {names}{beside}"
            self._again(what, [card.uuid for card in (*suspects, *others)], doubtful_kernels)

    def _again(self, what: str, uuids: Sequence[str], kernels: Iterable[str]) -> None:
        """Measures kernels again in fresh processes, without judging; shows the run only if it failed."""
        known = {kernel: of.test for session in self.sessions for kernel, of in session.kernels.items()}
        begun, tests = time.monotonic(), sorted({known[kernel] for kernel in kernels})
        unjudged = ("--gpukern-baseline=off", "--gpukern-fail-on=none")
        log = self.folder / "log"
        with log.open("w+b") as file:
            ran = self._round([*self.further, *unjudged], environment(seeing(*uuids)), tests, file)
        status = self.statuses[-1]
        if status != exits.FINE:
            sys.stdout.write(log.read_text(encoding="utf-8", errors="replace"))
        if not ran:
            raise DeviceError(f"pytest ended with status {status}, so the GPUs were not compared")
        _say(f"{what}: {units.counted(len(tests), 'test')}, {units.duration(time.monotonic() - begun)}")

    def _round(
        self,
        options: Sequence[str],
        environ: Mapping[str, str],
        tests: Sequence[str] = (),
        log: IO[bytes] | None = None,
    ) -> bool:
        """Runs a pytest, and reads what it measured; returns whether it came to its end."""
        output = self.folder / f"{len(self.statuses)}.json"
        arguments = self.command([_KERNELS_ONLY, *options, *_SIDE_BY_SIDE, f"{_REPORT}={output}"], tests)
        with _started(arguments, environ, log) as process:
            self.statuses.append(process.wait())
        if self.statuses[-1] not in _RAN:
            return False
        try:
            sessions = sessions_of(content_of(output))
        except ContentError as error:
            raise error.of_file(output, DAMAGED) from error
        known = [session for session in sessions if session.card.uuid in self.host.uuids]
        self.sessions += [replace(session, card=self.host.card(session.card)) for session in known]
        if self.folders:
            self._keep(read_run(output))
        return True

    def _keep(self, run: RunResults) -> None:
        """Writes what a run measured on each GPU into the folders that were asked for."""
        for card in self.host.cards:
            results = [result for result in run.results if result.fingerprint.device_uuid == card.uuid]
            tests = {result.nodeid for result in results}
            ours = short_uuid(card.uuid, self.host.uuids)
            failures = {
                test: why for test, why in run.failures.items() if test in tests or test.endswith(f"@{ours}")
            }
            sessions = {test: of for test, of in run.sessions.items() if test in tests}
            if results or failures:
                content = run_text(
                    replace(run, results=results, sessions=sessions, failures=failures)
                ).encode()
                for folder in self.folders:
                    write_run(folder, socket.gethostname(), str(card.index), content)


# --- telling it -----------------------------------------------------------------------------------


def _report(host: _Host, found: fleet.FleetFindings) -> list[str]:
    width, lines = exits.width(), [""]
    for model in found.models:
        lines += [f"{len(model.cards)} × {model.name}: times beside those of the other GPUs"]
        lines += [*cards_table(model, width, found.failed), "", "seen while they measured"]
        lines += [*facts_table(model, width), ""]
        if len(model.cards) == 1:
            lines.append("there is one GPU of this model, so only its record says whether it is slow")
        elif not model.spreads:
            lines.append(
                f"not compared: two GPUs have valid times of fewer than {FEWEST_CASES} kernels of a class"
            )
        told = (of_card(card, finding, found.confirmed_by) for card, finding in model.cards.items())
        lines += [line for row in told if row.text for line in lines_of(row, width)]
    lines += [line for row in rows(replace(found, models=())) for line in lines_of(row, width)]
    slow = sum(finding.bad for model in found.models for finding in model.cards.values())
    text = f"{units.counted(slow, 'GPU')} slow" if slow else "no GPU is slow"
    failures = sum(found.failed.values())
    text += f"; {units.counted(failures, 'failed test')}" if failures else ""
    return [
        *lines,
        *_not_validated(host),
        f"gpukern {_COMMAND}: {units.counted(len(host.cards), 'GPU')}, {text}",
    ]


def _not_validated(host: _Host) -> list[str]:
    return [part.text for why in host.left_out for part in wrapped(f"left out: {why}", exits.width())]


def _say(text: str) -> None:
    sys.stdout.write(f"gpukern {_COMMAND}: {text}\n")
    sys.stdout.flush()
