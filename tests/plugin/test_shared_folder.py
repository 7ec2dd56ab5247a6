"""Checks plain tests whose baselines lie in one folder."""

import pytest

from pytest_gpukern.cli import main as cli
from pytest_gpukern.report.run_file import read_run

from .conftest import refused

TEST = """
def test_it(gpu_benchmark):
    def launch(): pass
    launch.takes_ns = {}
    gpu_benchmark(launch)
"""


@pytest.fixture
def modules(pytester):
    """Makes modules of one name in several folders."""

    def make(*folders):
        for number, folder in enumerate(folders):
            (pytester.path / folder).mkdir(parents=True)
            (pytester.path / folder / "test_k.py").write_text(TEST.format(1000 + 8000 * number))

    return make


def test_modules_of_one_name_share_no_record(pytester, gpu, modules, capsys):
    modules("a", "b")
    run = ("a", "b", "--import-mode=importlib", "--gpukern-baseline-dir=all")
    gpu(*run, "--gpukern-baseline=create").assert_outcomes(passed=2)
    names = sorted(path.name.partition(".json")[0] for path in (pytester.path / "all").iterdir())
    assert [name.rpartition(".")[0] for name in names] == ["a.test_k", "b.test_k"]
    again = gpu(*run, "--gpukern-report=run.json")
    again.assert_outcomes(passed=2)
    again.stdout.fnmatch_lines(["gpukern: 2 unchecked* of 2 times: 2 same"])
    found = read_run(pytester.path / "run.json")
    records = [found.history[each.nodeid] for each in found.results]
    recorded = [record.times(key) for record in records for key in record.keys]
    assert [time.median_ns for times in recorded for time in times] == pytest.approx([1000, 9000])
    capsys.readouterr()
    cli.main(["compare", "run.json", "run.json", "-k", ""])
    told = capsys.readouterr().out
    assert [part in told for part in (" 1.000 µs ", " 9.000 µs ", ": 2 same\n")] == [True] * 3


def test_modules_of_one_path_in_two_repositories_are_refused(gpu, modules):
    modules("a/.git", "b/.git", "a/tests", "b/tests")
    run = ("a/tests", "b/tests", "--import-mode=importlib")
    gpu(*run).assert_outcomes(passed=2)
    refused(
        gpu(*run, "--gpukern-baseline-dir=all"), "two test modules *'tests/test_k', in */a/* and in */b/*: *"
    )
