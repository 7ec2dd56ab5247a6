"""Holds the table of options: one row gives the command line, the ini twin and the choices.

`plugin.py` loads this module in every run of pytest, so it loads nothing but the standard library.
`settings.py` parses the values.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from pytest_gpukern.values.backend_table import BACKENDS
from pytest_gpukern.values.failure_table import FAILURES, NOTHING
from pytest_gpukern.values.form_table import FORMS, suffixes
from pytest_gpukern.values.timer_table import TIMERS

if TYPE_CHECKING:
    import pytest

SANITIZERS = ("memcheck", "racecheck", "initcheck", "synccheck")
UNDER_SANITIZER = "GPUKERN_UNDER_SANITIZER"
"""Environment variable of a process that runs under one of these tools: the tool and the process that wants
to know, as in `memcheck:12345`."""
RUN_FOLDER_VARIABLE = "GPUKERN_RUN_FOLDER"
"""Environment variable by which a run's workers and their child sessions know its temporary folder."""
DEFAULT_THRESHOLD = 0.02
DEFAULT_TIMEOUT_S = 60.0
RECORDED_CODE = "recorded"
"""What stands for the architectures on record."""
CHANGED_CODE = "code"
"""What `--gpukern-only-changed` means without a run file: kernels whose code changed."""
NOT_GIVEN: tuple[Any, ...] = (None, False, "", [])
"""What the value of an option is that nobody gave."""

_LONGEST_MESSAGE = 2000


class SettingsError(Exception):
    """Refuses an option, ini value or marker argument; the message holds value, rule and remedy."""

    def __init__(self, message: str) -> None:
        from pytest_gpukern.values.untrusted_json import bounded, printable_lines

        super().__init__(printable_lines(bounded(message, _LONGEST_MESSAGE)))


class Option(NamedTuple):  # made in a sixth of a dataclass's time, in every run of pytest
    """Describes one option: its name without prefix, what is allowed, and its help.

    Attributes:
        help: two lines of `pytest --help` at most.
        more: whole sentences that only the site shows.
        alone: what the option means without a value, unless its ini value says that. An ini value alone then
            switches nothing on. None if the option needs a value.
        ini_counts: whether its ini value switches it on nevertheless, and says nothing of one without value.
    """

    name: str
    help: str
    choices: tuple[str, ...] = ()
    metavar: str | None = None
    flag: bool = False
    repeatable: bool = False
    listed: bool = False
    more: str = ""
    alone: str | None = None
    ini_counts: bool = False

    @property
    def cli(self) -> str:
        # A prefix of our own: an option that two plugins define, as gpucheck's --gpu-device, ends pytest.
        return f"--gpukern-{self.name}"

    @property
    def ini(self) -> str:
        """As written in an ini file; also the attribute that pytest stores the value under."""
        return "gpukern_" + self.name.replace("-", "_")

    @property
    def arguments(self) -> dict[str, Any]:
        shared: dict[str, Any] = {"dest": self.ini, "default": None, "help": self.help}
        if self.flag:
            return {**shared, "action": "store_true"}
        metavar = self.metavar or "{" + ",".join(self.choices) + "}"
        if self.alone is not None:
            shared |= {"nargs": "?", "const": True}
        return {**shared, "action": "append" if self.repeatable else "store", "metavar": metavar}


GROUPS: dict[str, tuple[Option, ...]] = {
    "GPU kernels (pytest-gpukern); in an ini file, --gpukern-NAME is gpukern_NAME": (
        Option(
            "all",
            "with --gpu-benchmark: measure every test that uses pytest-benchmark's fixture, marked or not",
            more="An unmarked test that launches nothing on the GPU is left to pytest-benchmark.",
            flag=True,
        ),
        Option(
            "simulator",
            "Numba's CUDA simulator: where there is no GPU (auto), always, or never",
            choices=("auto", "always", "never"),
            more="`auto` is the default of a run that measures or is given any other option of this plugin.",
        ),
        Option(
            "device", "GPU to use: index, UUID or its prefix, or part of the name", metavar="INDEX|UUID|NAME"
        ),
        Option(
            "isolate",
            "run GPU tests in a process of their own (default: on when a GPU is measured)",
            choices=("on", "off"),
            more="That process is replaced when it crashes, hangs or loses its CUDA context. A run with "
            "`--gpukern-timeout` isolates, too. Debuggers need `off`.",
        ),
        Option(
            "timeout",
            "seconds for one test in a process of its own, or in a worker of xdist (default: 60)",
            metavar="SECONDS|off",
            more="In a run that measures nothing on a GPU, only this option or `--gpukern-isolate=on` starts "
            "such a process.",
        ),
        Option(
            "sanitize",
            "run each test once under these tools of compute-sanitizer, comma-separated; measure nothing",
            SANITIZERS,
            listed=True,
            more="This holds for tests that use fixtures of this plugin. What a tool finds fails the test.",
        ),
    ),
    "GPU kernels, which cases": (
        Option("backend", "backends to run, comma-separated (default: all)", tuple(BACKENDS), listed=True),
        Option(
            "size",
            "problem sizes (default: full when measuring on a GPU, else smoke)",
            choices=("smoke", "full", "huge"),
            more="Huge sizes have more elements than 32 bits count. They are checked and never measured.",
        ),
        Option(
            "axis",
            "values of a problem's axis instead of its own; repeatable",
            metavar="NAME=V[,V…]",
            repeatable=True,
        ),
        Option(
            "seed",
            "draw all inputs from this seed; random draws a new seed and prints it",
            metavar="N|random",
        ),
    ),
    "GPU kernels, machine code without a GPU": (
        Option(
            "code",
            "compile what Numba and Triton would launch, for these architectures, and run nothing",
            metavar="sm_90[,sm_80…]|recorded",
            alone=RECORDED_CODE,
            more="It needs the extra `code` and no GPU. The code is compared with the record. Without a "
            "value, the ini value names the architectures, or else the record. The ini value alone compiles "
            "nothing.",
        ),
    ),
    "GPU kernels, how to measure": (
        Option("timer", "how to time (default: auto, the best timer that works)", choices=("auto", *TIMERS)),
        Option(
            "cache",
            "flush the L2 cache before each sample (cold, the default) or not (hot)",
            choices=("cold", "hot"),
        ),
        Option(
            "scope",
            "scopes to measure, comma-separated (default: those of each problem)",
            ("kernel", "transfer", "end_to_end", "launch"),
            listed=True,
        ),
        Option(
            "sessions",
            "fresh processes that measure each test (default: 1; to record, 5; with --gpukern-against, 4)",
            metavar="N",
            more="With `--gpukern-against`, as many measure each revision.",
        ),
        Option(
            "only-changed",
            "time only kernels whose code changed; =RUN.json: run only tests that load a changed file",
            metavar="RUN.json",
            alone=CHANGED_CODE,
            ini_counts=True,
            more="Without a value, everything is checked. A kernel is timed, too, where libraries, driver, "
            "clocks, the card's model or the problem differ from the record; the others are SAME CODE. Only "
            "scope `kernel` is measured, and no host variant. With the file of a green run of everything, "
            "tests that load nothing that differs from its commit do not run: they are UNCHANGED.",
        ),
        Option(
            "trace",
            "record one more execution of each case, for --gpukern-report=RUN.json",
            more="It needs CUPTI, and nothing is timed meanwhile.",
            flag=True,
        ),
    ),
    "GPU kernels, reports": (
        Option(
            "report",
            "write this file, whose suffix says the form: " + ", ".join(suffixes()) + "; repeatable",
            metavar="FILE",
            repeatable=True,
            more=" ".join(f"`{name}`: {FORMS[name].holds}." for name in suffixes()),
        ),
    ),
    "GPU kernels, baselines": (
        Option(
            "baseline",
            "compare with the record (default), create what is missing, append sessions, update, or off",
            choices=("compare", "create", "append", "update", "off"),
        ),
        Option("baseline-dir", "folder of baselines (default: baselines/ beside each test)", metavar="DIR"),
        Option(
            "reason",
            "why times changed; --gpukern-baseline=update needs it, and keeps it in the record",
            metavar="TEXT",
        ),
        Option("write-in-ci", "write baselines although CI is set in the environment", flag=True),
        Option(
            "against",
            "compare with the merge base of this revision and HEAD instead of a baseline",
            metavar="REV",
            more="The merge base has a worktree of its own. Fresh sessions of both take turns, and we judge "
            "the ratios of their pairs.",
        ),
        Option(
            "against-setup",
            "shell command to run first in the worktree of --gpukern-against (GPUKERN_WORKTREE)",
            metavar="CMD",
        ),
    ),
    "GPU kernels, what fails a run": (
        Option(
            "fail-on",
            "what fails a run besides slower, INCORRECT and INVALID, comma-separated; none: not even slower",
            (*FAILURES, NOTHING),
            repeatable=True,
            listed=True,
            more=" ".join(f"`{kind}`: {row.fails}." for kind, row in FAILURES.items()),
        ),
        Option(
            "threshold", "smallest slowdown that matters (default: 2%%, which is 0.02)", metavar="SLOWDOWN"
        ),
    ),
}
"""Heading in `pytest --help` → its options."""
OPTIONS = tuple(option for options in GROUPS.values() for option in options)


def add_options(parser: pytest.Parser) -> None:
    for heading, options in GROUPS.items():
        group = parser.getgroup(heading)
        if options[0] is OPTIONS[0]:
            group.addoption(
                "--gpu-benchmark",
                action="store_true",
                default=False,
                help="measure; without it, each case runs once, at a small size, and is checked",
            )
        for option in options:
            group.addoption(option.cli, **option.arguments)
            # Not type="bool": pytest dies of a value that is none, in a traceback.
            several = option.repeatable and not option.listed  # a list is one value in an ini file
            ini_type: Literal["args", "string"] = "args" if several else "string"
            parser.addini(option.ini, option.help, type=ini_type, default=[] if several else "")


def refuse_misspelt(config: pytest.Config, parser: pytest.Parser, args: list[str]) -> None:
    """Raises UsageError for an option or ini value that looks like ours and that nobody has added by now."""
    ours = ["--gpu-benchmark", *(option.cli for option in OPTIONS)]
    unknown = [name for name in args if "gp" in name and name.partition("=")[0] not in ours]
    if unknown:  # or the value of another option, or an option of others
        unknown = parser.parse_known_and_unknown_args(args, copy.copy(config.known_args_namespace))[1]
    # pytest has no public list of either.
    read, added = vars(config).get("_inicfg", ()), getattr(parser, "_inidict", ())
    unknown += [name for name in read if name.startswith("gpukern_") and name not in added]
    for name in unknown:
        import pytest

        from pytest_gpukern.values.nearest import did_you_mean

        near = did_you_mean(name.partition("=")[0], [*ours, *(option.ini for option in OPTIONS)])
        if near:
            raise pytest.UsageError(f"{name}: there is no such option{near}")


def values_of(config: pytest.Config) -> tuple[bool, dict[str, Any], dict[str, Any]]:
    """Returns whether measuring is on, and option name → value, of the command line and of the ini file."""
    # Before the first conftest is loaded only this namespace holds the options; it stays right later.
    namespace = config.known_args_namespace
    return (
        getattr(namespace, "gpu_benchmark", False),
        {option.name: getattr(namespace, option.ini, None) for option in OPTIONS},
        {option.name: config.getini(option.ini) for option in OPTIONS},
    )


def plugin_requested(config: pytest.Config) -> bool:
    """Says whether a run mentions this plugin at all; cheap, since every run of pytest asks."""
    benchmark, given, ini = values_of(config)
    if any(value not in (None, False, []) for value in given.values()):
        return True
    return benchmark or any(value not in NOT_GIVEN for value in ini.values())


def measures(config: pytest.Config) -> bool:
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
    return environ.get(UNDER_SANITIZER) or None


def parse_names(text: str, label: str, choices: tuple[str, ...]) -> tuple[str, ...]:
    """Reads `time,host` as names, each once; `label` names the option in the SettingsError."""
    names = tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
    for name in names:
        if name not in choices:
            raise SettingsError(f"{label}: {name!r} is none of {', '.join(choices)}")
    if not names:
        raise SettingsError(f"{label}: must name some of {', '.join(choices)}")
    return names


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
