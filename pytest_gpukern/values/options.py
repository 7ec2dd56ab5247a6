"""Holds the table of options: one row gives the command line, the ini twin and the choices.

`plugin.py` loads this module in every run of pytest, so it loads nothing but the standard library.
`settings.py` parses the values.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from pytest_gpukern.values.backend_table import BACKENDS
from pytest_gpukern.values.timer_table import TIMERS

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pytest

SANITIZERS = ("memcheck", "racecheck", "initcheck", "synccheck")
UNDER_SANITIZER = "GPUKERN_UNDER_SANITIZER"
"""Environment variable of a process that runs under one of these tools: the tool and the process that wants
to know, as in `memcheck:12345`."""
GATES = ("time", "tail", "resources", "accuracy", "memory", "host")
DEFAULT_THRESHOLD = 0.02
DEFAULT_TIMEOUT_S = 60.0
NOT_GIVEN: tuple[Any, ...] = (None, False, "", [])
"""What the value of an option is that nobody gave."""

_LONGEST_MESSAGE = 2000


class SettingsError(Exception):
    """Refuses an option, ini value or marker argument; the message holds value, rule and remedy."""

    def __init__(self, message: str) -> None:
        from pytest_gpukern.values.untrusted_json import bounded, printable_lines

        super().__init__(printable_lines(bounded(message, _LONGEST_MESSAGE)))


class Option(NamedTuple):  # made in a sixth of a dataclass's time, in every run of pytest
    """Describes one option: its name without prefix, what is allowed, and its help."""

    name: str
    help: str
    choices: tuple[str, ...] = ()
    metavar: str | None = None
    flag: bool = False
    repeatable: bool = False
    listed: bool = False

    @property
    def cli(self) -> str:
        """As written on the command line."""
        return f"--gpukern-{self.name}"

    @property
    def ini(self) -> str:
        """As written in an ini file; also the attribute that pytest stores the value under."""
        return "gpukern_" + self.name.replace("-", "_")


OPTIONS = (
    Option(
        "all",
        "measure on the GPU every test that uses pytest-benchmark's `benchmark` fixture, marked or not; one "
        "that launches nothing there is left to that plugin, unless it is marked",
        flag=True,
    ),
    Option("device", "GPU to use: index, UUID or its prefix, or part of the name", metavar="INDEX|UUID|NAME"),
    Option(
        "simulator",
        "Numba's CUDA simulator: where there is no GPU (auto; the default of a run that measures or is given "
        "any other option here), always, or never",
        choices=("auto", "always", "never"),
    ),
    Option("timer", "how to time; auto (the default) picks the best that works", choices=("auto", *TIMERS)),
    Option(
        "cache", "flush the L2 before each sample (cold, the default) or not (hot)", choices=("cold", "hot")
    ),
    Option(
        "scope",
        "scopes to measure, comma separated; those of each problem by default",
        ("kernel", "transfer", "end_to_end", "launch"),
        listed=True,
    ),
    Option("backend", "backends to run, comma separated; all by default", tuple(BACKENDS), listed=True),
    Option(
        "isolate",
        "run tests that may use the GPU in a process of their own, which is replaced when it dies, hangs or "
        "loses its CUDA context (on, the default of a run that measures on a GPU or is given a timeout), or "
        "in pytest's own, as debuggers need it (off)",
        choices=("on", "off"),
    ),
    Option(
        "timeout",
        "seconds that one test may take in that process, or a worker of xdist's, before it is ended; 60 by "
        "default, off for none",
        metavar="SECONDS|off",
    ),
    Option(
        "size",
        "problem sizes; full by default with --gpu-benchmark on a GPU; huge ones, beyond what 32 bits count, "
        "are checked and never measured",
        choices=("smoke", "full", "huge"),
    ),
    Option(
        "axis",
        "values of a problem's axis instead of its own; repeatable",
        metavar="NAME=V[,V…]",
        repeatable=True,
    ),
    Option(
        "seeds",
        "check each case on inputs of so many different seeds; two or three by default",
        metavar="N",
    ),
    Option(
        "seed",
        "draw all inputs from this seed instead of each problem's own, or from one that nobody knows before "
        "(random); it is printed, so that a failure can be repeated",
        metavar="N|random",
    ),
    Option(
        "baseline",
        "compare with the stored baseline (default), create what is missing, append sessions to what is "
        "current, update, or off",
        choices=("compare", "create", "append", "update", "off"),
    ),
    Option(
        "reason", "why the times changed: kept with what --gpukern-baseline=update records", metavar="TEXT"
    ),
    Option(
        "prune",
        "have --gpukern-baseline=update remove recorded cases that no longer exist, in a run of everything",
        flag=True,
    ),
    Option(
        "sessions",
        "fresh processes that measure each test: 5 by default when a baseline is written, 4 of each "
        "revision with --gpukern-against, else 1",
        metavar="N",
    ),
    Option("baseline-dir", "folder of baselines, instead of baselines/ beside each test", metavar="DIR"),
    Option("write-in-ci", "allow writing baselines although CI is set in the environment", flag=True),
    Option("output", "write every result of the run to this JSON file", metavar="RUN.json"),
    Option(
        "gate",
        "what a bad verdict does to its test: fail it (default), warn, or nothing (off)",
        choices=("fail", "warn", "off"),
    ),
    Option(
        "gate-on",
        "what fails a test, comma separated: time (default), tail of slow calls beside a median that is no "
        "slower, resources that a kernel takes more of, "
        "accuracy of outputs (other bits from the same machine code are a part of that), memory of the "
        "device that is not given back, host: times of host variants too",
        GATES,
        listed=True,
    ),
    Option(
        "energy",
        "run each case on a GPU back to back for a second more, and tell the energy of a call, or why not; "
        "not for tests of callables of their own",
        flag=True,
    ),
    Option("strict", "NEW, UNDECIDED and UNCOMPARABLE fail too, except of host variants", flag=True),
    Option(
        "require", "gpu: fail a run that measured nothing on a GPU; none: do not", choices=("gpu", "none")
    ),
    Option(
        "against",
        "measure the merge base of this revision and HEAD, in a worktree of its own, against the working "
        "tree, in fresh sessions that take turns; judge by their paired ratios and by no baseline",
        metavar="REV",
    ),
    Option(
        "against-setup",
        "with --gpukern-against: run this by the shell in the base's worktree first (GPUKERN_WORKTREE)",
        metavar="CMD",
    ),
    Option(
        "sanitize",
        "run each test that uses this plugin's fixtures once under these tools of compute-sanitizer, comma "
        "separated, in a process of their own; what they find fails the test; nothing is measured",
        SANITIZERS,
        listed=True,
    ),
    Option(
        "threshold", "smallest slowdown that matters: 2%% (default) is the same as 0.02", metavar="SLOWDOWN"
    ),
)


def add_options(parser: pytest.Parser) -> None:
    """Registers `--gpu-benchmark`, every `--gpukern-…` and its ini twin."""
    group = parser.getgroup("gpukern", "GPU kernels: right and fast (pytest-gpukern)")
    group.addoption(
        "--gpu-benchmark",
        action="store_true",
        default=False,
        help="measure; without it each case runs once at a smoke size and is checked",
    )
    for option in OPTIONS:
        if option.flag:
            group.addoption(option.cli, dest=option.ini, action="store_true", default=None, help=option.help)
            # Not type="bool": pytest 8.4 dies of a value that is none, in a traceback.
            parser.addini(option.ini, option.help, type="string", default="")
            continue
        metavar = option.metavar or "{" + ",".join(option.choices) + "}"
        action = "append" if option.repeatable else "store"
        ini_type: Literal["args", "string"] = "args" if option.repeatable else "string"
        group.addoption(
            option.cli, dest=option.ini, action=action, default=None, metavar=metavar, help=option.help
        )
        parser.addini(
            option.ini,
            option.help.replace("%%", "%"),
            type=ini_type,
            default=[] if option.repeatable else "",
        )


def values_of(config: pytest.Config) -> tuple[bool, dict[str, Any], dict[str, Any]]:
    """Returns whether measuring is on, and option name → value, of the command line and of the ini file."""
    # Before the first conftest is loaded only this namespace holds the options; it stays right later.
    namespace = config.known_args_namespace
    return (
        getattr(namespace, "gpu_benchmark", False),
        {option.name: getattr(namespace, option.ini, None) for option in OPTIONS},
        {option.name: config.getini(option.ini) for option in OPTIONS},
    )


def asked(config: pytest.Config) -> bool:
    """Says whether a run mentions this plugin at all; cheap, since every run of pytest asks."""
    benchmark, given, ini = values_of(config)
    if any(value not in (None, False, []) for value in given.values()):
        return True
    return benchmark or any(value not in NOT_GIVEN for value in ini.values())


def measures(config: pytest.Config) -> bool:
    """Says whether a run was given `--gpu-benchmark`."""
    return bool(config.getoption("gpu_benchmark", default=False))


def try_the_simulator(config: pytest.Config) -> str:
    """Says how kernels are checked without a GPU, with the line for the run's own ini file."""
    file = "pyproject.toml" if config.inipath is None else config.inipath.name
    auto = '"auto"' if file.endswith(".toml") else "auto"
    return (
        f"Numba's simulator checks Numba kernels without a GPU: add gpukern_simulator = {auto} to pytest's "
        f"options in {file}, or run pytest --gpukern-simulator=auto once"
    )


def sanitizing_tool(environ: Mapping[str, str] = os.environ) -> str | None:
    """Returns the tool of compute-sanitizer that looks at this process, such as `racecheck`, or None."""
    return environ.get(UNDER_SANITIZER, "").partition(":")[0] or None


def asking_process(environ: Mapping[str, str] = os.environ) -> int | None:
    """Returns the process with which this one, which runs under a tool, has to end; or None."""
    number = environ.get(UNDER_SANITIZER, "").partition(":")[2]
    return int(number) if number.isdecimal() else None


def parse_threshold(text: str, label: str) -> float:
    """Reads `2%` or `0.02` as 0.02; `label` names the option in the SettingsError."""
    stripped = text.strip()
    percent = stripped.endswith("%")
    try:
        value = float(stripped.rstrip("%").strip()) / (100 if percent else 1)
    except ValueError:
        value = -1.0
    if not 0 < value < 1:
        meant = f"; write {stripped}% if per cent are meant" if not percent and 1 <= value < 100 else ""
        raise SettingsError(
            f"{label}: a threshold is more than 0 and less than 100 %, such as 2% or 0.02{meant}"
        )
    return value


def parse_timeout(text: str, label: str) -> float | None:
    """Reads `60` as 60.0 seconds, `off` as None; `label` names the option in the SettingsError."""
    if text.strip().lower() == "off":
        return None
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise SettingsError(f"{label}: seconds are a number above 0, such as 60; or off")
    return value
