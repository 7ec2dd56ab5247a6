"""Checks which arguments a child session gets; options are those of this very pytest, with its plugins."""

from __future__ import annotations

import shlex
from types import SimpleNamespace

import pytest

from pytest_gpukern.session.arguments import (
    KnownOption,
    child_arguments,
    child_environment,
    is_for_children,
    known_options,
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

    def ask(line):
        tokens, positional = tokenized(shlex.split(line), known)
        written = [text for token in tokens if is_for_children(token.option) for text in token.written]
        return written, positional

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
            invocation_params=SimpleNamespace(args=tuple(given), plugins=plugins),
            pluginmanager=SimpleNamespace(is_blocked=lambda name: name in blocked),
            option=SimpleNamespace(),
            _parser=SimpleNamespace(_anonymous=parser._anonymous, _groups=[*parser._groups, own]),
        )

    return make


class _Registered:
    """An option as pytest 8.4 keeps it: what it was registered with."""

    def __init__(self, option):
        self._option = option

    def names(self):
        return self._option.names

    def attrs(self):
        action = {"action": "store_true"} if self._option.nargs == 0 else {"nargs": self._option.nargs}
        return {**action, "help": "…"}


def test_addopts_the_environment_and_the_command_line_are_taken_in_this_order(configured):
    config = configured(
        ["--database=line", "tests/b.py"], addopts=["--database=ini", "-n2", "tests"], blocked=["logging"]
    )
    found = child_arguments(config, {"PYTEST_ADDOPTS": "--database='the environment' -v"})
    assert found.options[:3] == ("--database=ini", "--database=the environment", "--database=line")
    assert found.positional == ("tests", "tests/b.py")


def test_addopts_do_not_count_twice(configured):
    assert "-oaddopts=" in child_arguments(configured([]), {}).options


def test_ini_values_that_a_child_must_not_heed_are_emptied_and_the_others_are_left(configured):
    options = child_arguments(configured([]), {}).options
    assert {"-ogpukern_report=", "-ogpukern_fail_on=", "-ogpukern_sessions=", "-olog_file="} <= set(options)
    assert not [option for option in options if "gpukern_timer" in option or "gpukern_axis" in option]


def test_a_child_neither_judges_nor_writes(configured):
    options = child_arguments(configured(["--gpukern-baseline=update", "--gpukern-reason=x"]), {}).options
    assert "--gpukern-baseline=off" in options
    assert "--gpukern-baseline=update" not in options


def test_plugins_given_by_name_to_pytest_main_are_named_and_objects_stay_behind(configured):
    options = child_arguments(configured([], plugins=["my.plugin", object()]), {}).options
    assert "-pmy.plugin" in options


def test_a_part_of_a_suite_is_not_split_again(configured):
    split = configured(["--splits=4", "--group=1"], groups=[KnownOption(("--splits",), None)])
    assert not {"--splits=4", "--group=1"} & set(child_arguments(split, {}).options)
    assert "--group=1" in child_arguments(configured(["--group=1"]), {}).options


def test_variables_of_a_pytest_a_worker_coverage_and_a_git_hook_stay_behind():
    environ = {
        "PYTEST_ADDOPTS": "-x",
        "PYTEST_CURRENT_TEST": "a",
        "PYTEST_XDIST_WORKER": "gw0",
        "PYTEST_XDIST_TESTRUNUID": "1",
        "COV_CORE_SOURCE": "src",
        "COVERAGE_PROCESS_START": "x",
        "GIT_DIR": "/of/a/hook",
        "GIT_INDEX_FILE": "/of/a/commit",
        "PYTEST_PLUGINS": "mine",
        "CUDA_VISIBLE_DEVICES": "GPU-1",
    }
    assert child_environment(environ) == {"PYTEST_PLUGINS": "mine", "CUDA_VISIBLE_DEVICES": "GPU-1"}


def test_a_measuring_process_judges_and_shapes_reports_as_the_run_was_asked_to(known):
    def kept_by_it(line):
        tokens, _ = tokenized(shlex.split(line), known)
        return [
            text for token in tokens if is_for_children(token.option, judges=True) for text in token.written
        ]

    # It writes no file, but what it measures depends on whether one is written.
    asked = (
        "-v --tb=short --showlocals --reruns 2 --gpukern-fail-on=host --gpukern-baseline=update "
        "--gpukern-report=x"
    )
    again, _ = tokenized(kept_by_it(asked), known)
    assert again == tokenized(shlex.split(asked), known)[0]
    done = "-x --maxfail=3 --deselect=exp --junitxml=x --lf --gpukern-isolate=on --gpukern-device=1"
    assert kept_by_it(done) == []


def test_children_get_the_number_of_the_seed_that_was_drawn(configured):
    config = configured(["--gpukern-seed=random"])
    config.option.gpukern_seed = "1234"  # as `stash.settings_of` leaves it
    options = child_arguments(config, {}).options
    assert "--gpukern-seed=1234" in options
    assert "--gpukern-seed=random" not in options
    assert "-ogpukern_seed=" in options, "or the ini file's would be drawn anew"
