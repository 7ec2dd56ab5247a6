"""`gpukern init`: what it writes into a project, and what it leaves alone."""

import re
from pathlib import Path

import pytest
import yaml

from pytest_gpukern.cli import main as cli

TOML_LINE, INI_LINE = 'gpukern_simulator = "auto"', "gpukern_simulator = auto"
WRITTEN = {"tests/test_saxpy.py", "tests/baselines/.gitkeep", ".github/workflows/kernels.yml"}
SAXPY = Path(cli.__file__).parent / "templates" / "test_saxpy_numba.py"


@pytest.fixture
def project(tmp_path, monkeypatch):
    """The current folder, empty, with none above it that pytest is configured in."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def files(folder):
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


def test_a_new_project_passes_its_first_test_where_there_is_no_gpu(project, pytester, capsys):
    pytest.importorskip("numba_cuda")
    assert cli.main(["init"]) == 0
    assert files(project).keys() == WRITTEN | {"pyproject.toml"}
    said = capsys.readouterr().out
    assert all(f"wrote  {name} " in said for name in files(project))
    assert said.endswith("\nNext: pytest tests/test_saxpy.py\n")
    workflow = yaml.safe_load(files(project)[".github/workflows/kernels.yml"])
    assert workflow["jobs"].keys() == {"without-gpu", "gpu", "comment"}
    result = pytester.runpytest_subprocess("-p", "no:cacheprovider", f"--rootdir={project}", str(project))
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["gpukern simulator: on (no GPU: *"])


def test_what_is_there_already_is_named_and_left_also_by_a_second_run(project, capsys):
    project.joinpath("tests").mkdir()
    project.joinpath("tests/test_saxpy.py").write_text("mine = 1\n")
    assert cli.main(["init"]) == 0
    before, said = files(project), capsys.readouterr().out
    assert before["tests/test_saxpy.py"] == b"mine = 1\n"
    assert "left   tests/test_saxpy.py" in said
    assert "wrote  .github/workflows/kernels.yml" in said
    assert cli.main(["init"]) == 0
    said = capsys.readouterr().out
    assert files(project) == before
    assert all(f"left   {name} " in said for name in before)
    assert "wrote" not in said


OTHERS = '# kept\n[project]\nname = "p"   # as typed\n'


@pytest.mark.parametrize(
    ("name", "before", "after"),
    [
        ("pyproject.toml", OTHERS, f"{OTHERS}\n[tool.pytest.ini_options]\n{TOML_LINE}\n"),
        ("pyproject.toml", "[tool.x]\ny = 1", f"[tool.x]\ny = 1\n\n[tool.pytest.ini_options]\n{TOML_LINE}\n"),
        (
            "pyproject.toml",
            f'[tool.pytest.ini_options]  # ours\naddopts = "-q"\n{OTHERS}',
            f'[tool.pytest.ini_options]  # ours\n{TOML_LINE}\naddopts = "-q"\n{OTHERS}',
        ),
        (
            "pyproject.toml",
            "[tool.pytest.ini_options]\r\nminversion = '8'\r\n",
            f"[tool.pytest.ini_options]\r\n{TOML_LINE}\r\nminversion = '8'\r\n",
        ),
        ("pyproject.toml", "[tool.pytest]\nstrict = true\n", f"[tool.pytest]\n{TOML_LINE}\nstrict = true\n"),
        ("pytest.ini", "", f"[pytest]\n{INI_LINE}\n"),
        ("tox.ini", "[tox]\n[pytest]\naddopts = -q\n", f"[tox]\n[pytest]\n{INI_LINE}\naddopts = -q\n"),
        ("setup.cfg", "[tool:pytest]\n", f"[tool:pytest]\n{INI_LINE}\n"),
        ("pytest.toml", "[pytest]\n", f"[pytest]\n{TOML_LINE}\n"),
    ],
    ids=[
        *("no section", "no last end of line", "a section", "Windows", "native"),
        *("pytest.ini", "tox.ini", "setup.cfg", "pytest.toml"),
    ],
)
def test_the_file_that_pytest_reads_gets_one_line_and_is_otherwise_as_typed(
    project, capsys, name, before, after
):
    project.joinpath(name).write_bytes(before.encode())
    assert cli.main(["init"]) == 0
    assert project.joinpath(name).read_bytes() == after.encode()
    assert files(project).keys() == WRITTEN | {name}
    assert f"wrote  {name} " in capsys.readouterr().out


@pytest.mark.parametrize(
    "text",
    [
        "[tool]\npytest.ini_options = {addopts = '-q'}\n",
        '[tool.x]\ny = """\n[tool.pytest.ini_options]\n"""\n',
    ],
    ids=["inline table", "a text"],
)
def test_another_way_to_write_the_section_is_left_and_the_line_is_printed(project, capsys, text):
    path = project / "pyproject.toml"
    path.write_text(text)
    assert cli.main(["init"]) == 1, "what is left to do is no success"
    assert path.read_text() == text
    assert files(project).keys() == WRITTEN | {path.name}
    said = capsys.readouterr().out
    assert f"Add to {path}, below [tool.pytest.ini_options]:\n  {TOML_LINE}\n" in said


def test_the_file_of_a_folder_above_counts_as_it_does_for_pytest(project, monkeypatch, capsys):
    project.joinpath("pytest.ini").write_text("[pytest]\n")
    project.joinpath("part").mkdir()
    monkeypatch.chdir(project / "part")
    assert cli.main(["init"]) == 1
    assert files(project / "part").keys() == WRITTEN
    assert f"Add to {project / 'pytest.ini'}, below [pytest]:" in capsys.readouterr().out
    project.joinpath("pytest.ini").rename(project / "pyproject.toml").write_text("[project]\n")
    assert cli.main(["init"]) == 0, "that file has no options of pytest"
    assert files(project / "part").keys() == WRITTEN | {"pyproject.toml"}


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("pyproject.toml", '[tool.pytest.ini_options]\ntestpaths = ["checks"]\n'),
        ("pytest.ini", "[pytest]\ntestpaths =\n    checks\n    more\n"),
    ],
    ids=["pyproject.toml", "pytest.ini"],
)
def test_the_first_test_is_written_where_pytest_looks_for_tests(project, capsys, name, text):
    project.joinpath("checks").mkdir()
    project.joinpath(name).write_text(text)
    assert cli.main(["init"]) == 0
    assert project.joinpath("checks/test_saxpy.py").read_bytes() == SAXPY.read_bytes()
    assert capsys.readouterr().out.endswith("\nNext: pytest checks/test_saxpy.py\n")


def test_a_file_that_cannot_be_read_ends_it_before_anything_is_written(project, capsys):
    project.joinpath("pyproject.toml").write_text("[tool\n")
    assert cli.main(["init"]) == 3
    assert files(project).keys() == {"pyproject.toml"}
    assert "pyproject.toml: " in capsys.readouterr().err


TRITON = "import torch, numba\nimport triton\n"


@pytest.mark.parametrize(
    ("source", "first", "also"),
    [
        (TRITON, "triton", ",triton"),
        ("@p.variant('triton')\ndef f(): ...\n", "triton", ",triton"),
        (f"{TRITON}from numba import (\n    cuda,\n)\n", "numba", ",triton"),
        ("import numba.cuda, cupy\n", "numba", ""),
    ],
    ids=["Triton", "a variant", "both", "Numba"],
)
def test_the_first_test_and_what_ci_installs_are_of_what_the_project_uses(project, source, first, also):
    project.joinpath("kernels.py").write_text(source)
    project.joinpath("venv/lib/site-packages").mkdir(parents=True)
    project.joinpath("venv/lib/site-packages/other.py").write_text("import pycuda, numba.cuda\n")
    assert cli.main(["init"]) == 0
    written = files(project)
    assert written["tests/test_saxpy.py"] == SAXPY.with_name(f"test_saxpy_{first}.py").read_bytes()
    text = written[".github/workflows/kernels.yml"].decode()
    assert re.findall(r"pytest-gpukern\[(.*)\]", text) == [f"code{also}", f"cu13{also}"]
