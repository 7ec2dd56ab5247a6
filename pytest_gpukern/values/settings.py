"""Parses options and ini values once into frozen `Settings`, and refuses those that contradict each other.

Every option of the command line but `--gpu-benchmark` has an ini twin: `--gpukern-device` is
`gpukern_device`. The command line wins. Units are converted here and nowhere else.
"""

from __future__ import annotations

import ast
import os
import re
import secrets
from collections.abc import Callable, Iterator, Mapping
from configparser import RawConfigParser
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_gpukern.values.backend_table import select_the_host_only
from pytest_gpukern.values.failure_table import BY_DEFAULT, BY_DEFAULT_IN_CI, FAILURES, NOTHING
from pytest_gpukern.values.form_table import RUN_FILE, suffix_of, suffixes
from pytest_gpukern.values.literals import constant
from pytest_gpukern.values.options import (
    CHANGED_CODE,
    DEFAULT_THRESHOLD,
    DEFAULT_TIMEOUT_S,
    NOT_GIVEN,
    OPTIONS,
    RECORDED_CODE,
    Option,
    SettingsError,
    parse_names,
    parse_threshold,
    parse_timeout,
    values_of,
)
from pytest_gpukern.values.timer_table import TIMERS

if TYPE_CHECKING:
    import pytest


SESSIONS_TO_RECORD = 5
"""Processes that measure a record, by default."""
SESSIONS_A_SIDE = 4
"""Processes that measure each of two revisions, by default."""
REASON_NEEDED = "say why times changed; whoever reads the record later will want to know"
_SAYS_NOTHING = re.compile(
    r"(\b(text|reason|message|placeholder|todo|tbd|fixme|xxx|none|null|n|a|an|the|my|your|here|say|why|because|"
    r"times?|changed?)\b|\W)*"
)
"""Words that give no reason by themselves. `TEXT` stands in the commands that we print."""


@dataclass(frozen=True)
class Settings:
    """Holds the parsed options of a run; see `options.OPTIONS`.

    Attributes:
        benchmark: whether to measure; otherwise each case is checked once, at its smoke size.
        requested: whether the run mentions this plugin at all; only then may we switch the simulator on.
        scopes: scopes to measure; empty for each problem's own.
        backends: backends to run; empty for all.
        size: None for what fits the machine.
        axes: axis → values that replace the problem's own.
        seed: seed of all inputs; None for the seed of every run that records.
        sessions: processes that measure each test, this one among them; with `against`, for each side.
        reports: files to write, each once; each ends in a suffix of `FORMS`.
        fail_on: kinds of `FAILURES` that fail the run.
        asks_for_gpu: whether `no-gpu` also fails a run of host tests alone.
        threshold: relative slowdown that matters, 0.02 for 2 %.
        isolate: whether tests run in a process beside pytest's own; None if no option says so.
        timeout_s: None if nothing ends a test.
        bounds_tests: whether an option bounds how long a test may take.
        only_changed: whether only kernels whose code changed are timed.
        voucher: run file that vouches for tests which load nothing that changed; these do not run.
        sanitize: empty for an ordinary run, and for one that measures.
        code: architectures to compile for, or `recorded`; empty for a run that executes its tests.
    """

    benchmark: bool = False
    requested: bool = False
    measure_all: bool = False
    device: str | None = None
    simulator: str = "auto"
    timer: str = "auto"
    cache: str = "cold"
    scopes: tuple[str, ...] = ()
    backends: tuple[str, ...] = ()
    size: str | None = None
    axes: dict[str, tuple[Any, ...]] = field(default_factory=dict)
    seed: int | None = None
    sessions: int = 1
    baseline: str = "compare"
    reason: str | None = None
    baseline_dir: Path | None = None
    reports: tuple[Path, ...] = ()
    against: str | None = None
    against_setup: str | None = None
    fail_on: frozenset[str] = frozenset(BY_DEFAULT)
    asks_for_gpu: bool = False
    trace: bool = False
    only_changed: bool = False
    voucher: Path | None = None
    threshold: float = DEFAULT_THRESHOLD
    isolate: bool | None = None
    timeout_s: float | None = DEFAULT_TIMEOUT_S
    bounds_tests: bool = False
    sanitize: tuple[str, ...] = ()
    code: tuple[str, ...] = ()

    @property
    def run_file(self) -> Path | None:
        return next((path for path in self.reports if suffix_of(path) == RUN_FILE), None)

    @classmethod
    def from_config(cls, config: pytest.Config, environ: Mapping[str, str] = os.environ) -> Settings:
        """Reads a configured run; raises SettingsError for impossible or contradictory options."""
        return cls.from_values(*values_of(config), environ, config.invocation_params.dir, config.rootpath)

    @classmethod
    def from_values(
        cls,
        benchmark: bool,
        given: Mapping[str, Any],
        ini: Mapping[str, Any],
        environ: Mapping[str, str],
        invocation_dir: Path | None = None,
        ini_dir: Path | None = None,
    ) -> Settings:
        """Reads plain mappings of option name → value, if given; raises SettingsError, too."""
        values, labels = _parsed(given, ini, invocation_dir, ini_dir)
        # An ini file is for runs of every kind, so we refuse it only if a baseline would be written.
        for name, remedy in _contradictions(benchmark, values, labels, in_ci(environ)):
            if labels[name].startswith("--") or (name == "baseline" and benchmark):
                raise SettingsError(f"{labels[name]}: {remedy}")
        # A runner that lost its driver must not go green if a baseline was named for it.
        records = values.get("baseline") in _WRITES
        judges = benchmark or "code" in values
        against = values.get("against") if judges and not records else None
        compares = values.get("baseline", "compare" if "baseline-dir" in values else None) == "compare"
        uses_gpu = values.get("simulator") != "always" and not select_the_host_only(values.get("backend"))
        usual_sessions = SESSIONS_TO_RECORD if records else 1
        named = benchmark and uses_gpu and (compares or against is not None)
        usual = BY_DEFAULT_IN_CI if named and in_ci(environ) else BY_DEFAULT
        changed = values.get("only-changed")
        more, fail_on = values.get("fail-on", ()), {*usual}
        for kind in more:
            fail_on = {of for of in fail_on if FAILURES[of].of_run} if kind == NOTHING else {*fail_on, kind}
        fields = {_FIELDS.get(name, name.replace("-", "_")): value for name, value in values.items()}
        fields |= {
            "benchmark": benchmark,
            "requested": benchmark or bool(values),
            "sessions": values.get("sessions", SESSIONS_A_SIDE if against else usual_sessions),
            "baseline": "off" if against is not None else values.get("baseline", "compare"),
            "against": against,
            "fail_on": frozenset(fail_on),
            "asks_for_gpu": "no-gpu" in more or against is not None,
            "isolate": {"on": True, "off": False}.get(values.get("isolate", "")),
            "bounds_tests": values.get("timeout") is not None,
            "only_changed": changed == CHANGED_CODE,
            "voucher": changed if isinstance(changed, Path) else None,
            "scopes": ("kernel",) if changed == CHANGED_CODE else values.get("scope", ()),
            "sanitize": () if benchmark else values.get("sanitize", ()),
            "code": () if benchmark else values.get("code", ()),
        }
        return cls(**{name: fields[name] for name in cls.__dataclass_fields__ if name in fields})


_FIELDS = {
    "all": "measure_all",
    "axis": "axes",
    "backend": "backends",
    "report": "reports",
    "scope": "scopes",
    "timeout": "timeout_s",
}
"""Option → its field, where that has another name."""


def _parsed(
    given: Mapping[str, Any], ini: Mapping[str, Any], invocation_dir: Path | None, ini_dir: Path | None
) -> tuple[dict[str, Any], dict[str, str]]:
    """Returns the given options: name → value, and name → label for errors."""
    values: dict[str, Any] = {}
    labels: dict[str, str] = {}
    for option in OPTIONS:
        if given.get(option.name) == "":
            raise SettingsError(f"{option.cli}= is empty: give it a value, or check the variable in it")
        from_cli = given.get(option.name) not in NOT_GIVEN
        value = given.get(option.name) if from_cli else ini.get(option.name)
        if option.alone is not None and value is True:
            from_cli = option.ini_counts or not ini.get(option.name)
            value = option.alone if from_cli else ini[option.name]
        elif option.alone is not None and not from_cli and not option.ini_counts:
            continue  # it says what the option means without a value
        if value in NOT_GIVEN:
            continue
        shown = " ".join(value) if isinstance(value, list) else value
        label = f"{option.cli}={shown}" if from_cli else f"ini value {option.ini} = {shown}"
        as_written = option.flag or (option.ini_counts and value == option.alone)
        labels[option.name] = option.cli if as_written and from_cli else label
        parsed = parse_option(option, value, labels[option.name])
        base = (invocation_dir if from_cli else ini_dir) or Path.cwd()
        if isinstance(parsed, Path):
            parsed = base / parsed
        if option.name == "report":
            parsed = tuple(dict.fromkeys(base / path for path in parsed))
        values[option.name] = parsed
    return values, labels


def in_ci(environ: Mapping[str, str] = os.environ) -> bool:
    """Says whether `CI` is set in the environment; if so, we write baselines on request only."""
    return environ.get("CI", "").lower() not in ("", "0", "false")


def parse_option(option: Option, value: Any, label: str) -> Any:
    """Returns the value of an option; raises SettingsError, with the label, where it may not be that."""
    if option.flag:
        return _truth(value, label)
    if option.name in _READ:
        return _READ[option.name](value, label)
    if option.listed:
        uses = value if isinstance(value, list) else [str(value)]
        return tuple(name for text in uses for name in parse_names(text, label, option.choices))
    if option.choices and value not in option.choices:
        raise SettingsError(f"{label}: must be one of {', '.join(option.choices)}")
    return str(value)


_SEEDS = 2**32


def _sessions(text: str, label: str) -> int:
    if not re.fullmatch(r"0*[1-9][0-9]{0,5}", text.strip()):
        raise SettingsError(f"{label}: must be a whole number of processes, 1 or more, such as 5")
    return int(text)


def _seed(text: str, label: str) -> int:
    """Reads a seed, or draws one for `random`, which no kernel can have been tuned to."""
    if text.strip() == "random":
        return secrets.randbelow(_SEEDS)
    if not (re.fullmatch(r"[0-9]{1,10}", text.strip()) and int(text) < _SEEDS):
        raise SettingsError(f"{label}: must be a whole number from 0 to {_SEEDS - 1}, or random")
    return int(text)


def parse_reason(text: str, label: str) -> str:
    """Returns why times changed; raises SettingsError where the text stands for a reason and is none."""
    if _SAYS_NOTHING.fullmatch(text.casefold().replace("_", " ")):
        remedy = "write what changed, such as 'checks bounds'"
        raise SettingsError(f"{label}: {text!r} is no reason: {REASON_NEEDED}; {remedy}")
    return text


def _architectures(text: str, label: str) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
    if names == (RECORDED_CODE,):
        return names
    if not names or not all(re.fullmatch(r"sm_\d{2,3}", name) for name in names):
        rule = f"architectures are written sm_90 or sm_80,sm_90; or {RECORDED_CODE}"
        raise SettingsError(f"{label}: {rule}{_to_select(text)}")
    return names


def _changed(text: str, label: str) -> str | Path | bool:
    """Reads what has to have changed: a kernel's code, or a file since a run; False for neither."""
    if text == CHANGED_CODE or text.strip().lower() in RawConfigParser.BOOLEAN_STATES:
        return CHANGED_CODE if text == CHANGED_CODE or _truth(text, label) else False
    path = _path(text, label)
    if suffix_of(path) != RUN_FILE:
        rule = "name the run file of a run of everything, such as run.json"
        raise SettingsError(f"{label}: {rule}{_to_select(text)}")
    return path


def _to_select(text: str) -> str:
    """Says how to select what an option was given in the place of its value, if that is there."""
    # Not Path.exists, which raises where a name is too long.
    is_path = os.path.exists(text.partition("::")[0].replace("\0", ""))  # noqa: PTH110
    return f". To select {text}, name it before the option" if is_path else ""


def _path(text: str, label: str) -> Path:
    if "\0" in text:
        raise SettingsError(f"{label}: a path has no NUL character")
    try:
        return Path(text).expanduser()
    except RuntimeError as error:
        raise SettingsError(f"{label}: the home folder in it is not known; give the whole path") from error


def _reports(texts: list[str], label: str) -> list[Path]:
    paths = [_path(text, label) for text in texts]
    for text, path in zip(texts, paths, strict=True):
        if suffix_of(path) is None:
            ends = ", ".join(suffixes())
            raise SettingsError(f"{label}: {text!r} names no form of a report; end it in {ends}")
    return paths


def _truth(value: Any, label: str) -> bool:
    """Reads a flag as pytest reads its own ini values."""
    truth = RawConfigParser.BOOLEAN_STATES.get(str(value).strip().lower())
    if truth is None:
        raise SettingsError(f"{label}: must be true or false")
    return truth


def _axes(entries: list[str], label: str) -> dict[str, tuple[Any, ...]]:
    axes: dict[str, tuple[Any, ...]] = {}
    for entry in entries:
        name, equals, text = entry.partition("=")
        values = tuple(_axis_value(part.strip()) for part in text.split(",") if part.strip())
        if not equals or not name.strip().isidentifier() or not values:
            raise SettingsError(f"{label}: an axis is written NAME=VALUE or NAME=VALUE,VALUE, such as n=1000")
        if name.strip() in axes:
            raise SettingsError(f"{label}: axis {name.strip()!r} is given twice; write n=1000,2000")
        axes[name.strip()] = values
    return axes


def _axis_value(text: str) -> Any:
    """Reads a number if the text is one (`1000`, `10**7`, `1e7`), else returns the text."""
    try:
        value = constant(ast.parse(text, mode="eval").body)
    except (ValueError, SyntaxError, RecursionError, MemoryError):  # the last two: nested too deeply
        return text
    return int(value) if isinstance(value, float) and value.is_integer() else value


_READ: dict[str, Callable[[Any, str], Any]] = {
    "axis": _axes,
    "baseline-dir": _path,
    "code": _architectures,
    "only-changed": _changed,
    "reason": parse_reason,
    "report": _reports,
    "seed": _seed,
    "sessions": _sessions,
    "threshold": parse_threshold,
    "timeout": parse_timeout,
}
"""Option → what reads its value, and refuses it by a label."""
_WRITES = ("create", "append", "update")
_GPU_TIMERS = tuple(name for name, row in TIMERS.items() if row.device_timed)
_HOST = (select_the_host_only,)
_EXCLUDING: tuple[tuple[str, tuple[Any, ...], str, tuple[Any, ...], str], ...] = (
    ("baseline", _WRITES, "simulator", ("always",), "a simulated run has no times to record"),
    ("seed", (), "baseline", _WRITES, "records are measured on each problem's own inputs"),
    ("against", (), "baseline", _WRITES, "a comparison of two revisions records nothing"),
    ("against", (), "sessions", (1,), "one pair has no spread, ask for 2 or more a side"),
    ("code", (), "simulator", ("always",), "the simulator compiles nothing"),
    ("code", (), "sanitize", (), "a tool looks at kernels that run, and none runs"),
    ("code", (), "device", (), "kernels are compiled and run on no device"),
    ("code", (), "isolate", ("on",), "its tests have processes of their own"),
    ("code", (), "size", ("huge",), "huge sizes are for checks, and nothing is checked"),
    ("code", (), "backend", _HOST, "only host variants are selected, which have no machine code"),
    ("sanitize", (), "simulator", ("always",), "the simulator has no kernels to look into"),
    ("sanitize", (), "backend", _HOST, "only host variants are selected, which launch nothing on a GPU"),
    ("sanitize", (), "isolate", ("on",), "each tool has processes of its own"),
    ("only-changed", (CHANGED_CODE,), "baseline", (*_WRITES, "off"), "it compares with a record"),
    ("only-changed", (), "baseline", _WRITES, "a run that leaves out tests writes no record"),
    ("only-changed", (CHANGED_CODE,), "against", (), "that compares with no record"),
    ("only-changed", (), "simulator", ("always",), "the simulator has no machine code"),
    ("only-changed", (CHANGED_CODE,), "scope", (), "it measures the scope kernel"),
    ("device", (), "simulator", ("always",), "the simulator has no GPU to choose"),
    ("size", ("full", "huge"), "simulator", ("always",), "such sizes never end in the simulator, use smoke"),
    ("trace", (), "simulator", ("always",), "the simulator has no activity to record"),
    ("trace", (), "backend", _HOST, "it records a GPU, and only host variants are selected"),
    ("timer", _GPU_TIMERS, "backend", _HOST, "it times a GPU, and only host variants are selected"),
)
"""Each row: an option and its values (none: any), another and its values that exclude them, and why.

A function among the values says which ones."""
_NEEDING: tuple[tuple[str, str, tuple[Any, ...], str], ...] = (
    (
        "write-in-ci",
        "baseline",
        _WRITES,
        "nothing is written; add --gpukern-baseline=create, append or update",
    ),
    ("reason", "baseline", ("update",), "an update keeps it; add --gpukern-baseline=update"),
    ("against-setup", "against", (), "there is no base to set up; add --gpukern-against=REV"),
    (
        "trace",
        "report",
        (lambda paths: RUN_FILE in map(suffix_of, paths),),
        "only a run file keeps it; add --gpukern-report=RUN.json",
    ),
)
"""Each row: an option, another that it needs and its values (none: any), and the remedy."""


def _contradictions(
    benchmark: bool, values: Mapping[str, Any], labels: Mapping[str, str], in_ci: bool
) -> Iterator[tuple[str, str]]:
    """Yields the options that contradict others, each with the reason and the remedy."""

    def given(name: str, *meant: Any) -> bool:
        if name not in values or values[name] is False:
            return False
        value = values[name]
        return not meant or any(one(value) if callable(one) else one == value for one in meant)

    writes = given("baseline", *_WRITES)
    if benchmark and given("code"):
        yield "code", "kernels are compiled, and none runs; drop it or --gpu-benchmark"
    if not benchmark:
        idle = [name for name in ("all", "sessions", "trace", "only-changed") if given(name)]
        idle += ["against"] * (given("against") and not given("code"))
        for name in ["baseline"] * (writes and not given("code")) + idle:
            yield name, "nothing is measured; add --gpu-benchmark"
    if benchmark and given("sanitize"):
        yield "sanitize", "times under a sanitizer mean nothing; drop it or --gpu-benchmark"
    if benchmark and given("size", "huge"):
        yield "size", "huge sizes are checked, never measured; drop --gpu-benchmark"
    if writes and in_ci and not given("write-in-ci"):
        unless = "add --gpukern-write-in-ci if meant"
        yield "baseline", f"CI is set in the environment and CI may not write baselines; {unless}"
    for name, other, needed, remedy in _NEEDING:
        if given(name) and not given(other, *needed):
            yield name, remedy
    for name, meant, other, excluded, reason in _EXCLUDING:
        if given(name, *meant) and given(other, *excluded):
            yield name, f"{reason}; drop it or {labels[other]}"
    kinds = [FAILURES[kind] for kind in values.get("fail-on", ()) if kind != NOTHING]
    if kinds and given("baseline", "off") and all(kind.needs_record for kind in kinds):
        yield "fail-on", f"there is nothing to compare with; drop it or {labels['baseline']}"
    if any(kind.of_run for kind in kinds) and not (benchmark or given("code")):
        yield "fail-on", "nothing is measured; add --gpu-benchmark"
    for name, only, reason in (
        ("simulator", "always", "the simulator is not a GPU"),
        ("backend", *_HOST, "only host variants are selected"),
        ("code", bool, "no kernel runs"),
    ):
        # An ini file may say so for other runs: then this one fails at its end.
        if "no-gpu" in values.get("fail-on", ()) and given(name, only) and labels[name].startswith("--"):
            yield "fail-on", f"{reason}; drop no-gpu or {labels[name]}"
    # A reason is one update's: from an ini file, every run would accept what it finds.
    reasoned = given("reason") and labels["reason"].startswith("--")
    if (benchmark or given("code")) and given("baseline", "update") and not reasoned:
        yield "baseline", f"{REASON_NEEDED}; add --gpukern-reason=TEXT"
