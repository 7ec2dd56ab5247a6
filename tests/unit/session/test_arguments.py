"""Checks which arguments a child session gets; options are those of this very pytest, with its plugins."""

from __future__ import annotations

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

OF_OTHERS = [
    # pytest-cov, pytest-html and pytest-json-report, which are not installed here
    KnownOption(("--cov",), "?"),
    KnownOption(("--cov-report",), None),
    KnownOption(("--no-cov",), 0),
    KnownOption(("--html",), None),
    KnownOption(("--json-report-file",), None),
    KnownOption(("--splits",), None),
    KnownOption(("--reruns",), None),
    # pytest's cache plugin, which a run can be without
    KnownOption(("--last-failed", "--lf"), 0),
    KnownOption(("--failed-first", "--ff"), 0),
    KnownOption(("--new-first", "--nf"), 0),
    KnownOption(("--last-failed-no-failures", "--lfnf"), None),
    KnownOption(("--cache-clear",), 0),
    KnownOption(("--stepwise", "--sw"), 0),
    KnownOption(("--stepwise-skip", "--sw-skip"), 0),
    # a project's own
    KnownOption(("--database", "-D"), None),
    KnownOption(("--pair",), 2),
    KnownOption(("--many",), "+"),
    KnownOption(("--fancy",), 0),
    KnownOption(("--covenant",), None),
    KnownOption(("--group",), None),
]
OF_A_PROJECT = OF_OTHERS[-6:]


@pytest.fixture(scope="module")
def known(pytestconfig):
    registered = known_options(pytestconfig)
    names = {name for option in registered for name in option.names}
    return [*registered, *(option for option in OF_OTHERS if names.isdisjoint(option.names))]


@pytest.fixture
def kept(known):
    """Returns what children get of a command line, and what belongs to no option."""

    def ask(line, **judges):
        tokens, positional = tokenized(shlex.split(line), known)
        return [
            text for token in tokens if is_for_children(token.option, **judges) for text in token.written
        ], positional

    return ask


@pytest.mark.parametrize(
    "line",
    [
        "-v -q -rA --tb=short --durations 5 --color=yes -vv -l --no-header",
        "--junitxml=out.xml --junit-xml out.xml --junit-prefix a --log-file=x.log --log-cli-level=INFO",
        "--html report.html --json-report-file=x.json",
        "-n4 --dist loadfile --maxprocesses=8 --tx 2*popen --max-worker-restart=0",
        "-n auto -d --testrunuid=abc",
        "--cov --cov=src --cov-report term-missing --no-cov",
        "--benchmark-autosave --benchmark-save=x --benchmark-json=o.json --benchmark-compare",
        "--benchmark-compare=0001 --benchmark-compare-fail=mean:5% --benchmark-histogram=h",
        "--lf --ff --nf --sw --stepwise-skip --last-failed-no-failures none --cache-clear",
        "-x --exitfirst --maxfail=3 --reruns 2",
        "-k 'exp and not slow' -m gpu --deselect a.py::b --ignore=c --ignore-glob '*d'",
        "--pdb --trace --collect-only --co --setup-show",
        "--basetemp=/somewhere",
        "--gpukern-baseline=create --gpukern-baseline-dir x --gpukern-write-in-ci --gpukern-report=run.json",
        "--gpukern-fail-on=no-gpu --gpukern-sessions=3 --gpukern-device 1",
    ],
)
def test_options_that_report_select_distribute_or_record_stay_with_the_parent(kept, line):
    assert kept(line) == ([], [])


@pytest.mark.parametrize(
    "line",
    [
        "-p my.plugin -pno:randomly",
        "-c other.ini --rootdir=/r -o a=b --confcutdir /c",
        "--import-mode=importlib -W error --strict-markers",
        "--benchmark-disable --benchmark-enable",
        "--gpu-benchmark --gpukern-timer event --gpukern-axis n=1 --gpukern-axis m=2,3",
        "--database 'a b' -D x --pair 1 2 --many a b c --fancy",
        "--database=-x -D-x",
        "--covenant=yes --group=mine",
    ],
)
def test_options_that_decide_how_tests_run_are_kept_with_the_same_meaning(kept, known, line):
    found, positional = kept(line)
    assert positional == []
    again, _ = tokenized(found, known)
    before, _ = tokenized(shlex.split(line), known)
    assert again == before
    assert len(before) >= 2


def test_a_value_is_told_from_a_path_by_the_option_before_it(kept):
    found, positional = kept("tests -k exp --database tests/db -x tests/test_a.py::test_b[x-1] --fancy more")
    assert found == ["--database=tests/db", "--fancy"]
    assert positional == ["tests", "tests/test_a.py::test_b[x-1]", "more"]


def test_flags_that_were_written_together_are_told_apart(kept):
    assert kept("-xvs") == (["-s"], [])


def test_an_option_without_its_value_is_an_error(known):
    with pytest.raises(ValueError, match="expected one argument"):
        tokenized(["--database"], known)


@pytest.fixture
def configured(pytestconfig):
    """Returns a run's config, as far as its arguments go."""

    def make(given, addopts=(), plugins=(), blocked=(), groups=()):
        own = SimpleNamespace(options=[_Registered(option) for option in (*OF_A_PROJECT, *groups)])
        parser = pytestconfig._parser
        return SimpleNamespace(
            getini=lambda name: {"addopts": list(addopts)}[name],
            invocation_params=SimpleNamespace(args=tuple(given), plugins=plugins, dir=Path("/run")),
            rootpath=Path("/root"),
            pluginmanager=SimpleNamespace(is_blocked=lambda name: name in blocked),
            option=SimpleNamespace(),
            _parser=SimpleNamespace(_anonymous=parser._anonymous, _groups=[*parser._groups, own]),
        )

    return make


def options_of(config, **judges):
    return set(sessions_of(config, device=None, environ={}, **judges).options)


class _Registered:
    """An option as pytest 8.4 keeps it: what it was registered with."""

    def __init__(self, option):
        self._option = option

    def names(self):
        return self._option.names

    def attrs(self):
        action = {"action": "store_true"} if self._option.nargs == 0 else {"nargs": self._option.nargs}
        return {**action, "help": "…"}


def test_addopts_the_environment_and_the_command_line_are_taken_in_this_order_and_once(configured):
    config = configured(["--database=line", "tests/b.py"], addopts=["--database=ini", "-n2", "tests"])
    found = sessions_of(config, device="GPU-A", environ={"PYTEST_ADDOPTS": "--database='from there' -v"})
    assert found.options[:3] == ("--database=ini", "--database=from there", "--database=line")
    assert "-oaddopts=" in found.options
    assert found.positional == ("tests", "tests/b.py")
    assert (found.folder, found.rootdir, found.card) == ("/run", "/root", "GPU-A")
    assert found.path == tuple(str(Path("/run") / entry) for entry in sys.path)


def test_ini_values_that_a_child_must_not_heed_are_emptied_and_the_others_are_left(configured):
    options = options_of(configured([]))
    assert {"-ogpukern_report=", "-ogpukern_fail_on=", "-ogpukern_sessions=", "-olog_file="} <= options
    assert not [option for option in options if "gpukern_timer" in option or "gpukern_axis" in option]
    blocked = sessions_of(configured([], blocked=["logging", "tmpdir"]), device=None, environ={})
    assert "-olog_file=" not in blocked.options
    assert blocked.blocked == ("tmpdir",)


def test_a_child_neither_judges_nor_writes_nor_starts_another_but_a_measuring_process_judges(configured):
    config = configured(["--gpukern-baseline=update", "--gpukern-reason=x", "--gpukern-isolate=on"])
    written = {"--gpukern-baseline=update", "--gpukern-reason=x", "-ogpukern_baseline="}
    alone = {"--gpukern-isolate=off", "-ogpukern_isolate="}
    child, measuring = options_of(config), options_of(config, judges=True)
    assert alone | {"--gpukern-baseline=off", "-ogpukern_baseline="} <= child
    assert child.isdisjoint(written - {"-ogpukern_baseline="})
    assert alone | written - {"-ogpukern_baseline="} <= measuring
    assert measuring.isdisjoint({"--gpukern-baseline=off", "-ogpukern_baseline=", "--gpukern-isolate=on"})


def test_plugins_given_by_name_to_pytest_main_are_named_and_objects_stay_behind(configured):
    named = [
        option for option in options_of(configured([], plugins=["my.plugin", object()])) if option[1] == "p"
    ]
    assert named == ["-pmy.plugin"]


def test_a_part_of_a_suite_is_not_split_again(configured):
    split = configured(["--splits=4", "--group=1"], groups=[KnownOption(("--splits",), None)])
    assert options_of(split).isdisjoint({"--splits=4", "--group=1"})
    assert "--group=1" in options_of(configured(["--group=1"]))


def test_a_measuring_process_judges_and_shapes_reports_as_the_run_was_asked_to(kept, known):
    # It writes no file, but what it measures depends on whether one is written.
    asked = "-v --tb=short --showlocals --reruns 2 -k exp --gpukern-fail-on=host --gpukern-baseline=update"
    asked += " --gpukern-report=x"
    found, _ = kept(asked, judges=True)
    assert tokenized(found, known) == tokenized(shlex.split(asked), known)
    done = "-x --maxfail=3 --deselect=exp --junitxml=x --lf --gpukern-isolate=on --gpukern-device=1"
    assert kept(done, judges=True) == ([], [])


def test_children_get_the_number_of_the_seed_that_was_drawn(configured):
    config = configured(["--gpukern-seed=random"])
    config.option.gpukern_seed = "1234"  # as `stash.settings_of` leaves it
    options = options_of(config)
    assert {"--gpukern-seed=1234", "-ogpukern_seed="} <= options, "or the ini file's would be drawn anew"
    assert "--gpukern-seed=random" not in options
