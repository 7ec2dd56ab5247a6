"""Runs `gpukern validate --all-gpus`: the suites on every GPU of a host side by side; compares the GPUs.

The first round is a run of all suites with `-n auto --dist=each`, which judges each GPU by its record. Two
more rounds on all GPUs measure some kernels of each class again, and three on suspected GPUs and a neighbour.
Each round has a fresh process for each GPU.
"""

from __future__ import annotations

import contextlib
import importlib.util
import itertools
import os
import shlex
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from pytest_gpukern.cli import exits
from pytest_gpukern.findings import cards
from pytest_gpukern.gate.change import ratio_of
from pytest_gpukern.gpu.errors import DeviceError, NvmlUnavailable
from pytest_gpukern.gpu.model import Device, short_uuid
from pytest_gpukern.gpu.nvml import Configuration, Nvml, PcieLink, PowerLimits, open_nvml
from pytest_gpukern.gpu.selection import visible_devices
from pytest_gpukern.measure.device_clocks import DeviceClocks
from pytest_gpukern.processes.sessions import environment, seeing
from pytest_gpukern.report import units
from pytest_gpukern.report.layout import Column, table, wrapped
from pytest_gpukern.report.run import RunResults
from pytest_gpukern.report.run_file import read_run
from pytest_gpukern.session.arguments import KnownOption, is_for_children, known_options, tokenized
from pytest_gpukern.values.atomic_file import TemporaryFolder
from pytest_gpukern.values.form_table import suffix_of
from pytest_gpukern.values.result import Correctness, Measurement, Result
from pytest_gpukern.values.untrusted_json import FileError

_COMMAND = "validate --all-gpus"
_USAGE_ERROR = 4
"""pytest's own status."""
_RAN = (0, 1)
"""pytest's statuses of a run to its end."""
_KERNELS_OF_A_CLASS = 16
"""Kernels of a class that further rounds measure: their median is known better than cards differ."""
_LOOK_EVERY_S = 1.0
_TO_END_S = 20.0
"""Time for a run of pytest to end after Ctrl-C."""
_REPORT = "--gpukern-report"
_SIDE_BY_SIDE = ("-n", "auto", "--dist=each")
_KERNELS_ONLY = "--gpukern-scope=kernel"
"""Copies and times of the host would be taken one GPU at a time. A later `--gpukern-scope` wins."""


def validate_all_gpus(options: Sequence[str], command: Callable[..., list[str]]) -> int:
    """Validates all visible GPUs of the first one's model; returns the exit status.

    Args:
        options: of pytest.
        command: returns the command that runs the suites with options, or only those of their tests.
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
                return _record(host, given, command, Path(folder))
            watch = _Watch(nvml, host.uuids)
            return _Validation(host, watch, options, given.further, command, Path(folder)).run()
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


def _record(host: _Host, given: _Given, command: Callable[..., list[str]], folder: Path) -> int:
    """Records every GPU at the same time, in a run of its own each; shows one run after the other."""
    with contextlib.ExitStack() as stack:
        runs = []
        for uuid in host.uuids:
            own = [f"{_REPORT}={_of_gpu(path, short_uuid(uuid, host.uuids))}" for path in given.reports]
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
        exits.show([*_not_validated(host)])
        return next((status for status in statuses if status not in _RAN), max(statuses))


def _of_gpu(path: Path, gpu: str) -> Path:
    """Returns the file of one GPU: `run-GPU-8d1f0a2c.json` for `run.json`."""
    suffix = suffix_of(path) or ""
    return path.with_name(f"{path.name.removesuffix(suffix)}-{gpu}{suffix}")


# --- measuring ------------------------------------------------------------------------------------


class _Watch:
    """Asks NVML about the GPUs while others use them."""

    def __init__(self, nvml: Nvml, uuids: Sequence[str]) -> None:
        self.nvml = nvml
        self.uuids = uuids
        self.limited_ns = {uuid: self._limited_ns(uuid) for uuid in uuids}
        self.links: dict[str, PcieLink] = {}

    def look(self) -> None:
        """Notes the links to the host: an idle GPU may have another."""
        for uuid in self.uuids:
            with contextlib.suppress(DeviceError):
                now, before = self.nvml.pcie_link(uuid), self.links.get(uuid)
                if before is None or (now.generation or 0) >= (before.generation or 0):
                    self.links[uuid] = now

    def facts(self, uuid: str, results: Iterable[Result]) -> cards.CardFacts:
        """Returns what is known of a GPU by NVML, and by what was seen behind its batches.

        Invalid times count, too: they say what the GPU did. Take it while all GPUs have done the same work.
        """
        clocks = [
            DeviceClocks.of(measurement)
            for result in results
            if result.fingerprint.device_uuid == uuid
            for measurement in result.measurements
            if measurement.scope == "kernel"
        ]
        setup, limits = Configuration(), PowerLimits()
        with contextlib.suppress(DeviceError):
            setup, limits = self.nvml.configuration(uuid), self.nvml.limits(uuid)
        before, after = self.limited_ns[uuid], self._limited_ns(uuid)
        return cards.CardFacts(
            sm_mhz=cards.median_of_known(seen.sm_mhz for seen in clocks),
            memory_mhz=cards.median_of_known(seen.memory_mhz for seen in clocks),
            power_w=max((seen.power_w for seen in clocks if seen.power_w is not None), default=None),
            power_limit_w=limits.power_w,
            temperature_c=max(
                (seen.temperature_c for seen in clocks if seen.temperature_c is not None), default=None
            ),
            limited_s={event: (after[event] - before[event]) / 1e9 for event in after if event in before},
            setup=setup,
            pcie=self.links.get(uuid, PcieLink()),
        )

    def _limited_ns(self, uuid: str) -> Mapping[str, int]:
        """Returns how long each clock event has held down the clocks, as far as NVML tells."""
        with contextlib.suppress(DeviceError):
            return self.nvml.state(uuid).limited_ns
        return {}


_OnCards = dict[str, dict[str, tuple["Result", "Measurement"]]]
"""`case id scope/timer/cache` → card → what was measured."""


def _on_cards(run: RunResults) -> _OnCards:
    """Returns what of a run can be compared between GPUs; what one GPU got wrong is left out on all."""
    wrong = {result.test for result in run.results if result.correctness is Correctness.INCORRECT}
    on_cards: _OnCards = {}
    for result in run.results:
        card = result.fingerprint.device_uuid
        if result.test in wrong or result.simulated or card is None:
            continue
        for measurement in result.measurements:
            if not measurement.beside and cards.is_valid(measurement):
                kernel = f"{result.case.id} {measurement.key}"
                on_cards.setdefault(kernel, {})[card] = (result, measurement)
    return on_cards


def _times(on_cards: _OnCards) -> cards.Times:
    times: cards.Times = {}
    for kernel, by_card in on_cards.items():
        for card, (_, measurement) in by_card.items():
            times.setdefault(card, {})[kernel] = measurement.summary.median_ns
    return times


def _chosen(on_cards: _OnCards) -> dict[str, str]:
    """Returns kernel → class of those to measure again: the quickest tests of each problem in turn."""
    groups: dict[str, dict[str, list[tuple[float, str]]]] = {}
    for kernel, by_card in on_cards.items():
        name = cards.class_of(list(by_card.values())) if len(by_card) > 1 else None
        if name is not None:
            results = [result for result, _ in by_card.values()]
            took_s = max(result.duration_s or 0.0 for result in results)
            groups.setdefault(name, {}).setdefault(results[0].case.problem, []).append((took_s, kernel))
    chosen: dict[str, str] = {}
    for name, problems in groups.items():
        in_turn = itertools.zip_longest(*map(sorted, problems.values()))
        kernels = [timed[1] for turn in in_turn for timed in turn if timed is not None]
        if len(kernels) >= cards.FEWEST_CASES:
            chosen |= dict.fromkeys(kernels[:_KERNELS_OF_A_CLASS], name)
    return chosen


@dataclass
class _Validation:
    """Validates the GPUs of a host; `further` are pytest's options in all rounds but the first."""

    host: _Host
    watch: _Watch
    options: Sequence[str]
    further: Sequence[str]
    command: Callable[..., list[str]]
    folder: Path
    tests: dict[str, str] = field(default_factory=dict)  # kernel → the test that measures it
    results: list[Result] = field(default_factory=list)
    statuses: list[int] = field(default_factory=list)

    def run(self) -> int:
        uuids = self.host.uuids
        run = self._round(self.options, os.environ | seeing(*uuids))
        if run is None:
            return self.statuses[0]
        on_cards = _on_cards(run)
        classes = _chosen(on_cards)
        self.tests = {kernel: next(iter(on_cards[kernel].values()))[0].test for kernel in classes}
        further = range(2, cards.ROUNDS + 1) if classes else ()
        again = [self._again(f"session {number} of {cards.ROUNDS}", uuids, classes) for number in further]
        by_card = cards.combined(cards.shifts_in(times, classes) for times in (_times(on_cards), *again))
        shifts = {uuid: by_card.get(uuid, {}) for uuid in uuids}
        facts = {uuid: self.watch.facts(uuid, self.results) for uuid in uuids}
        suspects, held = self._decided(shifts, classes)
        judged = cards.findings(
            shifts, suspects, held, facts, cards.since_own_record(run.results, run.history)
        )
        exits.show(_report(self.host, judged, facts, _failed(run, self.host), compared=bool(classes)))
        return max(*self.statuses, int(any(finding.bad for finding in judged.values())))

    def _decided(
        self, shifts: Mapping[str, Mapping[str, float]], classes: Mapping[str, str]
    ) -> tuple[Mapping[str, Sequence[str]], Mapping[str, Sequence[str]]]:
        """Measures suspected GPUs and a neighbour again; returns what was suspected and what is confirmed."""
        suspects = cards.suspected(shifts)
        if not suspects:
            return {}, {}
        beside = cards.neighbours(shifts, suspects)
        others = [uuid for uuid in dict.fromkeys(beside.values()) if uuid not in suspects]
        names = ", ".join(self.host.name(uuid) for uuid in suspects)
        doubtful = set(itertools.chain.from_iterable(suspects.values()))
        kernels = [kernel for kernel, name in classes.items() if name in doubtful]
        fresh = []
        for number in range(1, cards.FRESH_ROUNDS + 1):
            what = f"fresh session {number} of {cards.FRESH_ROUNDS}, of {names}"
            what += f" beside {', '.join(map(self.host.name, others))}" if others else ""
            fresh.append(self._again(what, [*suspects, *others], kernels))
        return suspects, cards.confirmed(suspects, fresh, classes, beside)

    def _again(self, what: str, uuids: Sequence[str], kernels: Iterable[str]) -> cards.Times:
        """Measures kernels again in fresh processes, without judging; shows the run only if it failed."""
        begun, tests = time.monotonic(), sorted({self.tests[kernel] for kernel in kernels})
        unjudged = ("--gpukern-baseline=off", "--gpukern-fail-on=none")
        log = self.folder / "log"
        with log.open("w+b") as file:
            run = self._round([*self.further, *unjudged], environment(seeing(*uuids)), tests, file)
        status = self.statuses[-1]
        if status != exits.FINE:
            sys.stdout.write(log.read_text(encoding="utf-8", errors="replace"))
        if run is None:
            raise DeviceError(f"pytest ended with status {status}, so the GPUs were not compared")
        _say(f"{what}: {units.counted(len(tests), 'test')}, {units.duration(time.monotonic() - begun)}")
        return _times(_on_cards(run))

    def _round(
        self,
        options: Sequence[str],
        environ: Mapping[str, str],
        tests: Sequence[str] = (),
        log: IO[bytes] | None = None,
    ) -> RunResults | None:
        """Runs a pytest, and looks at the GPUs meanwhile; returns None if it did not come to its end."""
        output = self.folder / f"{len(self.statuses)}.json"
        given = [_KERNELS_ONLY, *options, *_SIDE_BY_SIDE, f"{_REPORT}={output}"]
        status = None
        with _started(self.command(given, tests), environ, log) as process:
            while status is None:
                self.watch.look()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    status = process.wait(timeout=_LOOK_EVERY_S)
        self.statuses.append(status)
        if status not in _RAN:
            return None
        run = read_run(output)
        self.results += run.results
        return run


def _failed(run: RunResults, host: _Host) -> Counter[str]:
    """Returns card → how many of its tests failed."""
    names = {f"@{short_uuid(uuid, host.uuids)}": uuid for uuid in host.uuids}
    return Counter(uuid for nodeid in run.failures for name, uuid in names.items() if nodeid.endswith(name))


# --- telling it -----------------------------------------------------------------------------------


def _report(
    host: _Host,
    judged: Mapping[str, cards.CardFinding],
    facts: Mapping[str, cards.CardFacts],
    failed: Mapping[str, int],
    *,
    compared: bool,
) -> list[str]:
    model = f"{len(host.cards)} × {host.cards[0].name}" if len(host.cards) > 1 else host.cards[0].name
    lines = ["", f"{model}: times beside those of the other GPUs", *_times_table(host, judged, failed)]
    lines += ["", "seen while they measured", *_facts_table(host, facts), ""]
    if len(host.cards) == 1:
        lines.append("there is one GPU of this model, so only its record says whether it is slow")
    elif not compared:
        lines.append(
            f"not compared: two GPUs have valid times of fewer than {cards.FEWEST_CASES} kernels of a class"
        )
    for uuid, finding in judged.items():
        lines += _lines_of(host, uuid, finding)
    slow, failures = sum(finding.bad for finding in judged.values()), sum(failed.values())
    text = f"{units.counted(slow, 'GPU')} slow" if slow else "no GPU is slow"
    text += f"; {units.counted(failures, 'failed test')}" if failures else ""
    last = f"gpukern {_COMMAND}: {units.counted(len(judged), 'GPU')}, {text}"
    return [*lines, *_not_validated(host), last]


def _times_table(
    host: _Host, judged: Mapping[str, cards.CardFinding], failed: Mapping[str, int]
) -> list[str]:
    on_gpus = list(judged.values())

    def changes(title: str, log_ratios: Sequence[float | None]) -> list[Column]:
        """Returns a column, or none where no GPU has a change to show."""
        if all(log_ratio is None for log_ratio in log_ratios):
            return []
        ratios = (None if log_ratio is None else ratio_of(log_ratio) for log_ratio in log_ratios)
        return [Column(title, tuple(map(units.change, ratios)), numeric=True)]

    columns = [
        Column("GPU", tuple(map(host.name, judged))),
        *(part for name in cards.LIMITS for part in changes(name, [gpu.shifts.get(name) for gpu in on_gpus])),
        *changes("since its record", [gpu.since_record for gpu in on_gpus]),
        Column("failed tests", tuple(str(failed.get(uuid, 0)) for uuid in judged), numeric=True),
        Column("verdict", tuple(gpu.verdict.value if len(on_gpus) > 1 else "" for gpu in on_gpus)),
    ]
    return table(columns, exits.width(), indent="  ")[0]


def _facts_table(host: _Host, facts: Mapping[str, cards.CardFacts]) -> list[str]:
    def numbers(title: str, cell: Callable[[cards.CardFacts], str]) -> Column:
        return Column(title, tuple(map(cell, facts.values())), numeric=True)

    columns = [
        Column("GPU", tuple(map(host.name, facts))),
        numbers("SM clock", lambda gpu: _known(gpu.sm_mhz, " MHz")),
        numbers("memory clock", lambda gpu: _known(gpu.memory_mhz, " MHz")),
        numbers("power of limit", lambda gpu: f"{_known(gpu.power_w)} of {_known(gpu.power_limit_w, ' W')}"),
        numbers("hottest", lambda gpu: _known(gpu.temperature_c, " °C")),
        Column("clocks held down", tuple(map(_limited, facts.values()))),
        numbers("ECC corrected", lambda gpu: _known(gpu.setup.corrected_errors)),
        numbers("uncorrected", lambda gpu: _known(gpu.setup.uncorrected_errors)),
        numbers("replaced rows", lambda gpu: _known(gpu.setup.remapped_rows)),
        Column("PCIe", tuple(_link(gpu.pcie) for gpu in facts.values())),
    ]
    return table(columns, exits.width(), indent="  ")[0]


_UNKNOWN = "unknown"


def _known(value: float | None, unit: str = "") -> str:
    return _UNKNOWN if value is None else f"{value:.0f}{unit}"


def _limited(facts: cards.CardFacts) -> str:
    if not facts.limited_s:
        return _UNKNOWN
    held = [f"{event} {seconds:.1f} s" for event, seconds in facts.limited_s.items() if seconds >= 0.05]
    return ", ".join(held) or "never"


def _link(link: PcieLink) -> str:
    now = f"{_known(link.generation)} x{_known(link.width)}"
    most = f"{_known(link.max_generation)} x{_known(link.max_width)}"
    if now == most:
        return now if link.width is not None else _UNKNOWN
    return f"{now} of {most}"


def _lines_of(host: _Host, uuid: str, finding: cards.CardFinding) -> list[str]:
    """Says what a GPU's verdict rests on, what is known of the cause, and what to do."""
    index = host.name(uuid).partition(" ")[0]
    confirmed = f"confirmed by {cards.FRESH_ROUNDS} fresh sessions"
    said = {
        cards.CardVerdict.SLOW: f"SLOW: {finding.slower_by}, {confirmed}",
        cards.CardVerdict.ONE_OF_TWO: (
            f"slower than the other by {finding.slower_by}, {confirmed}. Two GPUs do not tell which of them "
            "is off: neither record nor physical cause says it"
        ),
        cards.CardVerdict.ONE_CLASS: (
            f"{finding.slower_by}, {confirmed}, but in one class and without a physical cause, so it is not "
            "called slow"
        ),
        cards.CardVerdict.NOT_CONFIRMED: (
            f"looked slow, and {cards.FRESH_ROUNDS} fresh sessions did not confirm it"
        ),
    }.get(finding.verdict)
    lines = [] if said is None else [f"GPU {host.name(uuid)}: {said}"]
    causes = [cause for cause in finding.causes if cause.fault or finding.slower]
    lines += [f"GPU {host.name(uuid)}: {cause.text}" for cause in causes]
    remedies = dict.fromkeys(cause.remedy.format(index=index) for cause in causes)
    if finding.bad and not remedies:
        remedies[
            "nothing that NVML tells explains it: look at cooling, power and firmware (nvidia-smi -q -i "
            f"{index}), move it to another slot, and validate again before you have it replaced"
        ] = None
    lines += [f"  → {remedy}" for remedy in remedies]
    return [part.text for line in lines for part in wrapped(line, exits.width(), indent="")]


def _not_validated(host: _Host) -> list[str]:
    return [part.text for why in host.left_out for part in wrapped(f"left out: {why}", exits.width())]


def _say(text: str) -> None:
    sys.stdout.write(f"gpukern {_COMMAND}: {text}\n")
    sys.stdout.flush()
