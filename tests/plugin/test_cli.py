"""The `gpukern` command."""

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import pytest_gpukern.cli
from pytest_gpukern.cli import main as cli
from pytest_gpukern.cli import suites, validate
from pytest_gpukern.package import __version__

PROJECT = Path(__file__).parents[2]


def gpukern(folder, *arguments):
    command = [sys.executable, "-m", "pytest_gpukern", *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True)


def test_validate_runs_the_packaged_suites_from_anywhere_with_pytests_options(tmp_path):
    pytest.importorskip("numba_cuda")
    chosen = ["-k", "vector_exp and host.numpy", "--gpukern-report=run.json", "--gpukern-backend=host"]
    found = gpukern(tmp_path, "validate", *chosen)
    assert found.returncode == 0, found.stdout + found.stderr
    assert "vector_exp · end_to_end by host, hot" in found.stdout
    assert "gpukern: 2 passed" in found.stdout
    assert (tmp_path / "run.json").exists(), "a path belongs to whoever typed it"


@pytest.mark.parametrize(
    ("options", "fail_on"),
    [
        ([], "no-gpu,missing"),
        (["-o", "gpukern_simulator=auto"], "no-gpu,missing"),
        (["--gpukern-simulator=never", "--gpukern-backend=host,numba"], "no-gpu,missing"),
        (["--gpukern-simulator", "auto"], "missing"),
        (["--gpukern-simulator=always"], "missing"),
        (["--gpukern-backend=host"], "missing"),
        (["--gpukern-baseline=off"], "no-gpu"),
        (["--gpukern-baseline=off", "--gpukern-backend=host"], None),
        (["--gpukern-fail-on=host"], "no-gpu,missing"),
        (["--gpukern-fail-on=none"], "no-gpu,missing"),
    ],
)
def test_validate_adds_to_what_fails_unless_asked_otherwise_on_its_command_line(
    monkeypatch, options, fail_on
):
    monkeypatch.setattr(validate.subprocess, "call", lambda command: command)
    added = [] if fail_on is None else [f"--gpukern-fail-on={fail_on}"]
    assert validate.validate(options) == validate.command([*options, *added])


def test_validate_passes_pytests_exit_status_on(tmp_path):
    assert gpukern(tmp_path, "validate", "--gpukern-size=huge").returncode == pytest.ExitCode.USAGE_ERROR


def test_the_version_is_that_of_the_package(capsys):
    with pytest.raises(SystemExit) as end:
        cli.main(["--version"])
    assert end.value.code == 0
    assert capsys.readouterr().out == f"pytest-gpukern {__version__}\n"


def test_a_command_is_a_module_and_a_row_and_is_loaded_when_it_is_run(monkeypatch, tmp_path, capsys):
    tmp_path.joinpath("greet.py").write_text(
        "def declare(parser):\n"
        "    parser.add_argument('whom')\n"
        "    parser.set_defaults(run=lambda known: print(f'hello {known.whom}') or 7)\n"
    )
    monkeypatch.setattr(pytest_gpukern.cli, "__path__", [*pytest_gpukern.cli.__path__, str(tmp_path)])
    monkeypatch.setitem(cli.COMMANDS, "greet", "be polite")
    with pytest.raises(SystemExit):
        cli.main(["--help"])
    assert "be polite" in capsys.readouterr().out
    assert "pytest_gpukern.cli.greet" not in sys.modules
    assert (cli.main(["greet", "you"]), capsys.readouterr().out) == (7, "hello you\n")


def test_the_table_of_commands_loads_the_standard_library_only():
    script = (
        "import sys; known = set(sys.modules); from pytest_gpukern.cli import main\n"
        "print(*sorted({name.partition('.')[0] for name in sys.modules.keys() - known}))\n"
        "print(*sorted(name for name in sys.modules if name.startswith('pytest_gpukern.')))"
    )
    said = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    packages, ours = (line.split() for line in said.splitlines())
    assert set(packages) <= {*sys.stdlib_module_names, "pytest_gpukern"}
    assert ours == ["pytest_gpukern.cli", "pytest_gpukern.cli.main", "pytest_gpukern.package"]


def test_validate_needs_no_entry_point_in_a_checkout(monkeypatch):
    monkeypatch.setattr(suites.importlib.metadata, "entry_points", lambda **_: [])
    monkeypatch.setattr(validate.subprocess, "call", lambda command: command)
    command = validate.validate(["-k", "x"])
    assert command[-5:-1] == ["-p", "pytest_gpukern.plugin", "-k", "x"]


def test_the_wheel_carries_the_suites_where_the_command_looks_for_them(monkeypatch):
    build = tomllib.loads((PROJECT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]
    assert build["targets"]["wheel"]["force-include"] == {"suites": "pytest_gpukern/suites"}
    assert (PROJECT / "suites" / "__init__.py").is_file()


@pytest.mark.parametrize(
    ("options", "writes"),
    [
        (["--gpukern-baseline=create"], True),
        (["--gpukern-baseline", "update", "-k", "exp"], True),
        (["--gpukern-baseline=append"], True),
        (["--gpukern-baseline=create", "--gpukern-baseline-dir=before"], False),
        (["--gpukern-baseline=compare"], False),
        ([], False),
    ],
)
def test_an_installed_package_writes_no_baseline_beside_its_suites(monkeypatch, capsys, options, writes):
    called = []
    monkeypatch.setattr(validate, "suites_folder", lambda: validate.FOLDER / "suites")
    monkeypatch.setattr(validate.subprocess, "call", lambda command: called.append(command) or 0)
    assert cli.main(["validate", *options]) == (4 if writes else 0)
    assert bool(called) is not writes
    assert ("--gpukern-baseline-dir=FOLDER" in capsys.readouterr().err) is writes
