"""Checks whether the modules of a side are its own."""

from __future__ import annotations

import pytest

from pytest_gpukern.processes.messages import LoadedModule
from pytest_gpukern.revisions.trees import Tree, misplaced


def files(top, *names):
    for name in names:
        path = top / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("")
    return top


@pytest.fixture
def trees(tmp_path):
    """Makes the base and the working tree of a project with a package in src."""
    names = ("src/pkg/__init__.py", "src/pkg/kernel.py", "tests/test_kernel.py")
    return tuple(Tree(label, files(tmp_path / label, *names)) for label in ("base", "head"))


def loaded(name, file, sha256="abc"):
    return LoadedModule(name, str(file), sha256)


def test_a_project_provides_what_lies_at_its_top_in_src_and_where_pyproject_says(tmp_path):
    files(tmp_path, "flat/__init__.py", "module.py", "src/inner/__init__.py", "src/native.so")
    files(tmp_path, "lib/below/__init__.py", "python/listed/__init__.py", "cuda/name/space.py")
    (tmp_path / "pyproject.toml").write_text(
        '[tool.setuptools.packages.find]\nwhere = ["lib"]\n'
        '[tool.pytest.ini_options]\npythonpath = "python"\n'
        '[tool.hatch.build.targets.wheel]\npackages = ["cuda/name", "absent"]\n'
    )
    places = {name: str(path.relative_to(tmp_path)) for name, path in Tree("here", tmp_path).names.items()}
    assert places == {
        "flat": "flat",
        "module": "module.py",
        "inner": "src/inner",
        "native": "src/native.so",
        "below": "lib/below",
        "listed": "python/listed",
        "name": "cuda/name",
    }


def test_folders_without_code_and_names_of_tools_and_of_the_standard_library_are_not_provided(tmp_path):
    files(tmp_path, "docs/index.md", "conftest.py", "setup.py", "test/__init__.py", "my-scripts/__init__.py")
    (tmp_path / "pyproject.toml").write_text("not [ toml")
    assert Tree("here", tmp_path).names == {}


@pytest.mark.parametrize(
    ("sides", "name", "file", "said"),
    [
        ("base head", "pkg", "base/src/pkg/__init__.py", None),
        ("base head", "test_kernel", "base/tests/test_kernel.py", None),
        ("base head", "numpy", "/opt/lib/site-packages/numpy/__init__.py", None),
        # a copy that is installed, or in an environment inside the tree
        ("base head", "pkg", "site-packages/pkg/__init__.py", "not from {}/base/src/pkg"),
        ("head base", "pkg", "site-packages/pkg/__init__.py", "not from {}/head/src/pkg"),
        ("head base", "pkg", "head/.venv/lib/site-packages/pkg/__init__.py", "not from {}/head/src/pkg"),
        # an environment inside the working tree serves both sides
        ("base head", "numpy", "head/.venv/lib/site-packages/numpy/__init__.py", None),
        ("base head", "tool", "head/env/bin/tool.py", None),
        # a worktree inside the working tree has its own files
        ("head/inner head", "pkg", "head/inner/src/pkg/__init__.py", None),
        ("head/inner head", "pkg", "head/src/pkg/__init__.py", "which is head"),
        ("head head/inner", "pkg", "head/src/pkg/__init__.py", None),
        # a link does not hide where a file lies
        ("base head", "linked", "base/linked/__init__.py", "which is head"),
        # this plugin's own code measures both sides
        ("base head", "pytest_gpukern.plugin", "head/pytest_gpukern/plugin.py", None),
        ("base head", "__main__", "head/pytest_gpukern/plugin.py", None),
    ],
)
def test_a_module_is_a_sides_own_or_nobodys_or_the_complaint_says_where_it_lies(
    trees, tmp_path, sides, name, file, said
):
    files(tmp_path / "head/inner", "src/pkg/__init__.py")
    files(tmp_path / "head", "env/pyvenv.cfg", "pytest_gpukern/plugin.py")
    (tmp_path / "base/linked").symlink_to(tmp_path / "head/src/pkg")
    text = misplaced(
        [loaded(name, tmp_path / file)], *(Tree(side, tmp_path / side) for side in sides.split())
    )
    loaded_from = f"{name} was loaded from {tmp_path / file}, "
    assert text is None if said is None else loaded_from + said.format(tmp_path) in text
