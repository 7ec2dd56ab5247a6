"""Checks which arguments a child session gets; options are those of this very pytest, with its plugins."""

from __future__ import annotations

import argparse
import dataclasses
import shlex
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from pytest_gpukern.session.arguments import known_options, sessions_of

OF_OTHERS = [
    # plugins that are not installed here
    *[("--cov", "?"), ("--cov-report", None), ("--no-cov", 0)],
    *[("--html", None), ("--json-report-file", None)],
    *[("--reruns", None), ("--retries", None), ("--force-flaky", 0)],
    # pytest's cache, which may be blocked
    *[("--last-failed --lf", 0), ("--failed-first --ff", 0), ("--new-first --nf", 0), ("--cache-clear", 0)],
    *[("--last-failed-no-failures --lfnf", None), ("--stepwise --sw", 0), ("--stepwise-skip --sw-skip", 0)],
    # a project
    *[("--database -D", None), ("--covenant", None), ("--group", None), ("--fancy", 0)],
    *[("--pair", 2), ("--many", "+")],
]


@pytest.fixture
def started(pytestconfig):
    """Returns what starts the children of a run that was given these arguments."""
    there = {name for option in known_options(pytestconfig) for name in option.names}
    missing = [option for option in OF_OTHERS if there.isdisjoint(option[0].split())]

    def ask(line="", *, addopts=(), plugins=(), blocked=(), environ=(), seed=None, judges=False, more=()):
        own = argparse.ArgumentParser(add_help=False)
        for names, nargs in [*missing, *more]:
            own.add_argument(*names.split(), **({"nargs": nargs} if nargs != 0 else {"action": "store_true"}))
        actions = [*pytestconfig._parser.optparser._actions, *own._actions]
        config = SimpleNamespace(
            getini=lambda name: {"addopts": list(addopts)}[name],
            invocation_params=SimpleNamespace(args=shlex.split(line), plugins=plugins, dir=Path("/run")),
            rootpath=Path("/root"),
            pluginmanager=SimpleNamespace(is_blocked=lambda name: name in blocked),
            _parser=SimpleNamespace(optparser=SimpleNamespace(_actions=actions)),
        )
        found = sessions_of(config, device="GPU-A", seed=seed, environ=dict(environ))
        return dataclasses.replace(found, options=found.judging) if judges else found

    return ask


@pytest.fixture
def kept(started):
    """Returns what a child gets of a command line, as it is written for it, and what belongs to no option."""

    def ask(line, **judges):
        found = started(line, **judges)
        always = len(started(**judges).options)
        return list(found.options[: len(found.options) - always]), list(found.positional)

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
        "-x --exitfirst --maxfail=3 --reruns 2 --retries 2 --force-flaky",
        "--pdb --trace --collect-only --co --setup-show --basetemp=/somewhere",
        "--gpukern-baseline=create --gpukern-baseline-dir x --gpukern-write-in-ci --gpukern-report=run.json",
        "--gpukern-fail-on=no-gpu --gpukern-sessions=3 --gpukern-device 1 --gpukern-isolate=on",
    ],
)
def test_options_that_report_distribute_or_record_stay_with_the_parent(kept, line):
    assert kept(line) == ([], [])


@pytest.mark.parametrize(
    ("line", "judges"),
    [
        ("-pmy.plugin -pno:randomly -cother.ini --rootdir=/r -oa=b --confcutdir=/c", False),
        ("--import-mode=importlib -Werror --strict-markers --benchmark-disable --benchmark-enable", False),
        ("--gpu-benchmark --gpukern-timer=event --gpukern-axis=n=1 --gpukern-axis=m=2,3", False),
        ("'-kexp and not slow' -mgpu --deselect=a.py::b --ignore=c '--ignore-glob=*d'", False),
        ("'--database=a b' -Dx --pair 1 2 --many a b c --fancy", False),
        ("--database=-x -D-x --covenant=yes --group=mine", False),
        # The measuring process writes no file, but what it measures depends on whether one is written.
        ("-v --tb=short --showlocals --reruns=2 --retries=2", True),
        ("--gpukern-fail-on=host --gpukern-baseline=update --gpukern-reason=x", True),
    ],
)
def test_options_that_decide_how_tests_run_are_kept_with_their_values(kept, line, judges):
    assert kept(line, judges=judges) == (shlex.split(line), [])


def test_the_reporting_process_selects_and_stops_for_the_measuring_process(kept):
    line = "-x --maxfail=3 --junitxml=x --lf --gpukern-isolate=on --gpukern-device=1"
    assert kept(line, judges=True) == ([], [])


def test_a_value_is_told_from_a_path_by_the_option_before_it_and_flags_from_each_other(kept):
    found, positional = kept("tests -k exp --database tests/db -xvs test_a.py::test_b[x-1] --fancy more")
    assert found == ["-kexp", "--database=tests/db", "-s", "--fancy"]
    assert positional == ["tests", "test_a.py::test_b[x-1]", "more"]
    with pytest.raises(ValueError, match="expected one argument"):
        kept("--database")


def test_addopts_the_environment_and_the_command_line_are_taken_in_this_order_and_once(started):
    environ = {"PYTEST_ADDOPTS": "--database='from there' -v"}
    found = started("--database=line b.py", addopts=["--database=ini", "-n2", "tests"], environ=environ)
    assert found.options[:3] == ("--database=ini", "--database=from there", "--database=line")
    assert "-oaddopts=" in found.options
    assert found.positional == ("tests", "b.py")
    assert (found.folder, found.card, found.blocked) == ("/run", "GPU-A", ())
    assert found.path == tuple(str(Path("/run") / entry) for entry in sys.path)
    assert started(blocked=["logging", "tmpdir"]).blocked == ("tmpdir",)


HERE, WRITES = {"--gpukern-isolate=off", "-ogpukern_isolate="}, {"--gpukern-baseline=update"}
OFF = {"--gpukern-baseline=off", "-ogpukern_baseline=", "-ogpukern_report="}


@pytest.mark.parametrize(
    ("given", "has", "lacks"),
    [
        ({}, HERE | OFF | {"-ogpukern_fail_on=", "-ogpukern_sessions=", "-olog_file="}, WRITES),
        ({"judges": True}, HERE | WRITES | {"-ogpukern_against=", "-ogpukern_device="}, OFF),
        ({}, {"--group=1", "--rootdir=../root"}, {"-ogpukern_timer=", "-ogpukern_axis="}),
        ({"blocked": ["logging"]}, set(), {"-olog_file="}),
        ({"plugins": ["my.plugin", object()]}, {"-pmy.plugin"}, set()),
        # a part of a suite is not split again
        ({"more": [("--splits", None)]}, set(), {"--group=1"}),
        # as `stash.settings_of` leaves it; else the ini file's would be drawn anew
        ({"seed": 1234}, {"--gpukern-seed=1234", "-ogpukern_seed="}, {"--gpukern-seed=random"}),
    ],
)
def test_a_child_neither_judges_writes_nor_starts_another_and_a_measuring_process_judges(
    started, given, has, lacks
):
    line = "--gpukern-baseline=update --gpukern-isolate=on --gpukern-seed=random --group=1"
    options = set(started(line, **given).options)
    assert has <= options
    assert options.isdisjoint(lacks | {"--gpukern-isolate=on"})
