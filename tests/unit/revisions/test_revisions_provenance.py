"""Checks whether the modules of a side are its own."""

from __future__ import annotations

import pytest

from pytest_gpukern.processes.messages import LoadedModule
from pytest_gpukern.processes.sessions import ChildRun
from pytest_gpukern.revisions.sides import Tree, combined_hash, misplaced, own_files


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
    files(
        tmp_path,
        "flat/__init__.py",
        "module.py",
        "src/inner/__init__.py",
        "src/native.so",
        "lib/below/__init__.py",
        "python/listed/__init__.py",
        "cuda/name/space.py",
    )
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


def test_a_side_that_loaded_its_own_files_is_fine(trees):
    base, head = trees
    modules = [
        loaded("pkg", base.top / "src/pkg/__init__.py"),
        loaded("test_kernel", base.top / "tests/test_kernel.py"),
        loaded("numpy", "/opt/lib/site-packages/numpy/__init__.py"),
    ]
    assert misplaced(modules, base, head) is None


def test_a_module_of_the_base_that_lies_in_the_working_tree_is_named_with_the_remedy(trees):
    base, head = trees
    file = head.top / "src/pkg/kernel.py"
    modules = [loaded("pkg", head.top / "src/pkg/__init__.py"), loaded("pkg.kernel", file)]
    text = misplaced(modules[::-1], base, head)
    assert text.splitlines()[:2] == [
        "base did not run its own code:",
        f"  pkg.kernel was loaded from {file}, which is head (and 1 more of pkg)",
    ]
    assert 'pythonpath = ["src"]' in text
    assert "pip uninstall pkg" in text


def test_an_installed_copy_of_the_projects_package_is_an_error_on_either_side(trees, tmp_path):
    file = tmp_path / "site-packages/pkg/__init__.py"
    for side, other in (trees, trees[::-1]):
        text = misplaced([loaded("pkg", file)], side, other)
        assert f"pkg was loaded from {file}, not from {side.top}/src/pkg" in text


def test_a_copy_in_an_environment_inside_the_tree_is_not_the_trees_own_code(trees):
    base, head = trees
    environment = files(head.top, ".venv/lib/site-packages/pkg/__init__.py") / ".venv/lib/site-packages"
    assert "not from" in misplaced([loaded("pkg", environment / "pkg/__init__.py")], head, base)


def test_an_environment_inside_the_working_tree_serves_both_sides(trees):
    base, head = trees
    files(head.top, ".venv/lib/site-packages/numpy/__init__.py", "env/pyvenv.cfg", "env/bin/tool.py")
    modules = [
        loaded("numpy", head.top / ".venv/lib/site-packages/numpy/__init__.py"),
        loaded("tool", head.top / "env/bin/tool.py"),
    ]
    assert misplaced(modules, base, head) is None


def test_a_worktree_that_lies_inside_the_working_tree_has_its_own_files(tmp_path):
    head = Tree("head", files(tmp_path, "pkg/__init__.py"))
    base = Tree("base", files(tmp_path / "tmp/base", "pkg/__init__.py"))
    assert misplaced([loaded("pkg", base.top / "pkg/__init__.py")], base, head) is None
    assert misplaced([loaded("pkg", head.top / "pkg/__init__.py")], base, head) is not None
    assert misplaced([loaded("pkg", head.top / "pkg/__init__.py")], head, base) is None


def test_a_link_from_the_base_into_the_working_tree_does_not_hide_where_a_file_lies(trees):
    base, head = trees
    (base.top / "linked").symlink_to(head.top / "src/pkg")
    assert "which is head" in misplaced([loaded("linked", base.top / "linked/__init__.py")], base, head)


def test_this_plugins_own_code_measures_both_sides(trees):
    base, head = trees
    own = files(head.top, "pytest_gpukern/plugin.py") / "pytest_gpukern/plugin.py"
    assert misplaced([loaded("pytest_gpukern.plugin", own), loaded("__main__", own)], base, head) is None


def test_equal_files_of_two_trees_have_one_hash_and_a_changed_one_another(trees):
    base, head = trees

    def of(side, sha256):
        modules = (
            loaded("pkg", side.top / "src/pkg/__init__.py"),
            loaded("pkg.kernel", side.top / "src/pkg/kernel.py", sha256),
            loaded("elsewhere", "/somewhere/else.py"),
        )
        return own_files([ChildRun(modules=modules)], side)

    assert combined_hash(of(base, "1")) == combined_hash(of(head, "1"))
    assert len(of(base, "1")) == 2
    assert combined_hash(of(base, "1")) != combined_hash(of(head, "2"))
