"""Checks which arguments a child session gets; options are those of this very pytest, with its plugins."""

from __future__ import annotations

import itertools
import shlex
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from pytest_gpukern.session.arguments import (
    KnownOption,
    is_for_children,
    known_options,
    sessions_of,
    tokenized,
)


def options_named(names, nargs=None):
    return [KnownOption(tuple(each.split("|")), nargs) for each in names.split()]


OF_A_PROJECT = options_named("--database|-D --covenant --group") + options_named("--fancy", 0)
OF_A_PROJECT += [*options_named("--pair", 2), *options_named("--many", "+")]
OF_OTHERS = [  # of plugins that are not installed here, and of pytest's cache, which may be blocked
    *options_named("--cov-report --html --json-report-file --splits --reruns"),
    *[*options_named("--cov", "?"), *options_named("--no-cov --cache-clear", 0)],
    *options_named("--last-failed|--lf --failed-first|--ff --new-first|--nf", 0),
    *options_named("--stepwise|--sw --stepwise-skip|--sw-skip", 0),
    *options_named("--last-failed-no-failures|--lfnf"),
]


@pytest.fixture(scope="module")
def known(pytestconfig):
    registered = known_options(pytestconfig)
    names = {name for option in registered for name in option.names}
    others = (option for option in OF_OTHERS if names.isdisjoint(option.names))
    return [*registered, *others, *OF_A_PROJECT]


@pytest.fixture
def kept(known):
    """Returns what children get of a command line, and what belongs to no option."""

    def ask(line, **judges):
        tokens, positional = tokenized(shlex.split(line), known)
        passed_on = [token.written for token in tokens if is_for_children(token.option, **judges)]
        return list(itertools.chain(*passed_on)), positional

    return ask


@pytest.mark.parametrize(
    "line",
    [
        "-v -q -rA --tb=short --durations 5 --color=yes -vv -l --no-header",
        "--junitxml=out.xml --junit-xml out.xml --junit-prefix a --log-file=x.log --log-cli-level=INFO",
        "--html report.html --json-report-file=x.json",
        "-n4 --dist loadfile --maxprocesses=8 --tx 2*popen --max-worker-restart=0 -d --testrunuid=abc",
        "--cov --cov=src --cov-report term-missing --no-cov",
        "--benchmark-autosave --benchmark-save=x --benchmark-json=o.json --benchmark-compare",
        "--benchmark-compare=0001 --benchmark-compare-fail=mean:5% --benchmark-histogram=h",
        "--lf --ff --nf --sw --stepwise-skip --last-failed-no-failures none --cache-clear",
        "-x --exitfirst --maxfail=3 --reruns 2",
        "-k 'exp and not slow' -m gpu --deselect a.py::b --ignore=c --ignore-glob '*d'",
        "--pdb --trace --collect-only --co --setup-show --basetemp=/somewhere",
        "--gpukern-baseline=create --gpukern-baseline-dir x --gpukern-write-in-ci --gpukern-report=run.json",
        "--gpukern-fail-on=no-gpu --gpukern-sessions=3 --gpukern-device 1 --gpukern-isolate=on",
    ],
)
def test_options_that_report_select_distribute_or_record_stay_with_the_parent(kept, line):
    assert kept(line) == ([], [])


def test_the_reporting_process_selects_and_stops_for_the_measuring_process(kept):
    line = "-x --maxfail=3 --deselect=exp --junitxml=x --lf --gpukern-isolate=on --gpukern-device=1"
    assert kept(line, judges=True) == ([], [])


@pytest.mark.parametrize(
    ("line", "judges"),
    [
        ("-p my.plugin -pno:randomly -c other.ini --rootdir=/r -o a=b --confcutdir /c", False),
        ("--import-mode=importlib -W error --strict-markers --benchmark-disable", False),
        ("--gpu-benchmark --gpukern-timer event --gpukern-axis n=1 --gpukern-axis m=2,3", False),
        ("--database 'a b' -D x --pair 1 2 --many a b c --fancy", False),
        ("--database=-x -D-x --covenant=yes --group=mine", False),
        # The measuring process writes no file, but what it measures depends on whether one is written.
        ("-v --tb=short --showlocals --reruns 2 -k exp --gpukern-report=x", True),
        ("--gpukern-fail-on=host --gpukern-baseline=update --gpukern-reason=x", True),
    ],
)
def test_options_that_decide_how_tests_run_are_kept_with_the_same_meaning(kept, known, line, judges):
    found, positional = kept(line, judges=judges)
    assert positional == []
    again, _ = tokenized(found, known)
    before, _ = tokenized(shlex.split(line), known)
    assert again == before
    assert len(before) >= 3


def test_a_value_is_told_from_a_path_by_the_option_before_it_and_flags_from_each_other(kept):
    found, positional = kept(
        "tests -k exp --database tests/db -xvs tests/test_a.py::test_b[x-1] --fancy more"
    )
    assert found == ["--database=tests/db", "-s", "--fancy"]
    assert positional == ["tests", "tests/test_a.py::test_b[x-1]", "more"]
    with pytest.raises(ValueError, match="expected one argument"):
        kept("--database")


class _Registered:
    """An option as pytest 8.4 keeps it: what it was registered with."""

    def __init__(self, option):
        self.names = lambda: option.names
        self.attrs = lambda: (
            {"action": "store_true", "help": "…"} if option.nargs == 0 else {"nargs": option.nargs}
        )


@pytest.fixture
def started(pytestconfig):
    """Returns what starts the children of a run that was given these arguments."""

    def ask(*given, addopts=(), plugins=(), blocked=(), environ=(), seed=None, judges=False, more=""):
        parser = pytestconfig._parser
        own = SimpleNamespace(options=[*map(_Registered, [*OF_A_PROJECT, *options_named(more)])])
        config = SimpleNamespace(
            getini=lambda name: {"addopts": list(addopts)}[name],
            invocation_params=SimpleNamespace(args=given, plugins=plugins, dir=Path("/run")),
            rootpath=Path("/root"),
            pluginmanager=SimpleNamespace(is_blocked=lambda name: name in blocked),
            option=SimpleNamespace(gpukern_seed=seed),
            _parser=SimpleNamespace(_anonymous=parser._anonymous, _groups=[*parser._groups, own]),
        )
        return sessions_of(config, device="GPU-A", judges=judges, environ=dict(environ))

    return ask


def test_addopts_the_environment_and_the_command_line_are_taken_in_this_order_and_once(started):
    environ = {"PYTEST_ADDOPTS": "--database='from there' -v"}
    found = started("--database=line", "b.py", addopts=["--database=ini", "-n2", "tests"], environ=environ)
    assert found.options[:3] == ("--database=ini", "--database=from there", "--database=line")
    assert "-oaddopts=" in found.options
    assert found.positional == ("tests", "b.py")
    assert (found.folder, found.rootdir, found.card, found.blocked) == ("/run", "/root", "GPU-A", ())
    assert found.path == tuple(str(Path("/run") / entry) for entry in sys.path)
    assert started(blocked=["logging", "tmpdir"]).blocked == ("tmpdir",)


HERE, WRITES = {"--gpukern-isolate=off", "-ogpukern_isolate="}, {"--gpukern-baseline=update"}
OFF = {"--gpukern-baseline=off", "-ogpukern_baseline=", "-ogpukern_report="}


@pytest.mark.parametrize(
    ("given", "has", "lacks"),
    [
        ({}, HERE | OFF | {"-ogpukern_fail_on=", "-ogpukern_sessions=", "-olog_file="}, WRITES),
        ({"judges": True}, HERE | WRITES | {"-ogpukern_against=", "-ogpukern_device="}, OFF),
        ({}, set(), {"-ogpukern_timer=", "-ogpukern_axis="}),
        ({"blocked": ["logging"]}, set(), {"-olog_file="}),
        ({"plugins": ["my.plugin", object()]}, {"-pmy.plugin"}, set()),
        # a part of a suite is not split again
        ({"more": "--splits"}, set(), {"--group=1"}),
        ({}, {"--group=1"}, set()),
        # as `stash.settings_of` leaves it; else the ini file's would be drawn anew
        ({"seed": "1234"}, {"--gpukern-seed=1234", "-ogpukern_seed="}, {"--gpukern-seed=random"}),
    ],
)
def test_a_child_neither_judges_writes_nor_starts_another_and_a_measuring_process_judges(
    started, given, has, lacks
):
    line = "--gpukern-baseline=update --gpukern-isolate=on --gpukern-seed=random --group=1"
    options = set(started(*line.split(), **given).options)
    assert has <= options
    assert options.isdisjoint(lacks | {"--gpukern-isolate=on"})
