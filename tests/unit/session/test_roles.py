"""Checks what a process does for its run, by what it was asked and by who started it."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from pytest_gpukern.session import stash
from pytest_gpukern.session.stash import CHILD, ENVIRONMENT, SETTINGS, isolates, judges, reports

HERE, MEASURING = {"reports", "judges"}, {"isolates", "reports", "judges"}
ASKED = {"against": None, "sanitize": None, "code": (), "isolate": None, "bounds_tests": False}


def config(*options, gpu=True, worker=False, judges=None, asked=True, **settings):
    """A run with these of pytest's options and our settings, where it measures on a GPU or not."""
    given = dict.fromkeys(options, True) | {"dist": "load" if "tx" in options else "no"}
    made = SimpleNamespace(
        stash=pytest.Stash(),
        asked=asked,
        getoption=lambda name, default=None: given.get(name, default),
        pluginmanager=SimpleNamespace(is_blocked=lambda name: f"no:{name}" in options),
    )
    if worker:
        made.workerinput = {}
    if judges is not None:
        made.stash[CHILD] = SimpleNamespace(judges=judges)
    made.stash[SETTINGS] = SimpleNamespace(**{**ASKED, **settings})
    made.stash[ENVIRONMENT] = SimpleNamespace(gpu=SimpleNamespace(measures=gpu))
    return made


@pytest.fixture(autouse=True)
def _asked(monkeypatch):
    monkeypatch.setattr(stash, "plugin_requested", lambda config: config.asked)


@pytest.mark.parametrize(
    ("config", "role"),
    [
        (config(asked=False), HERE),
        (config(gpu=False), HERE),
        (config(), MEASURING),
        (config(isolate=False), HERE),
        (config(isolate=True, gpu=False), MEASURING),
        (config(bounds_tests=True, gpu=False), MEASURING),
        (config("--pdb"), HERE),
        (config("--trace", bounds_tests=True), HERE),
        (config("--setup-plan"), HERE),
        (config("no:reports"), HERE),
        (config("no:terminal"), MEASURING),
        (config(against="main"), HERE),
        (config(sanitize=("memcheck",), isolate=True), HERE),
        (config(code=("sm_90",), gpu=False), HERE),
        (config("tx"), HERE),
        (config("tx", asked=False), HERE),
        (config(worker=True), {"isolates", "judges"}),
        (config(worker=True, isolate=False), {"judges"}),
        (config(judges=True), {"judges"}),
        (config(judges=False), set()),
    ],
)
def test_a_process_knows_what_it_does_for_its_run(config, role):
    assert {does.__name__ for does in (isolates, reports, judges) if does(config)} == role


@pytest.mark.parametrize(
    ("option", "named"),
    [("--pdb", "--pdb"), ("--setup-show", "--setup-show"), ("no:reports", "-p no:reports")],
)
def test_isolation_is_refused_with_what_needs_the_tests_in_this_process(option, named):
    with pytest.raises(pytest.UsageError, match=f"--gpukern-isolate=on: {named} needs the tests in pytest's"):
        isolates(config(option, isolate=True))
