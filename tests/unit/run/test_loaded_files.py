"""Checks what a source is taken to import, and that reading sources hides nothing that others open."""

from __future__ import annotations

import pytest
from repositories import Repository

from pytest_gpukern.run.loaded_files import BETWEEN, OpenedFiles, Project


@pytest.fixture
def imports(tmp_path, monkeypatch):
    """Returns which modules a file imports or may import, and why there may be more."""
    repository = Repository(tmp_path / "project")
    monkeypatch.chdir(repository.top)
    monkeypatch.syspath_prepend(repository.top)

    def ask(content, name="first.py"):
        (repository.top / "lib").mkdir()
        for path, text in {"lib/__init__.py": "", "lib/kernel.py": "", name: content}.items():
            (repository.top / path).write_text(text)
        repository.commit()
        files, unsure = Project.around(repository.top).imported(name)
        return files - {name}, unsure

    return ask


KERNEL = {"lib/__init__.py", "lib/kernel.py"}


@pytest.mark.parametrize(
    "source",
    [
        "import_module('lib.kernel')",
        "pytest.importorskip('lib.kernel')",
        "pydoc.locate('lib.kernel.run')",
        "run([sys.executable, '-O', '-m', 'lib.kernel', '2'])",
        "NAMES = ('lib.kernel:run',)",
        "CODE = 'from lib import (kernel)'",
        "sys.modules['lib.kernel']",
        "model.eval(); importance = model.exec()",
    ],
)
def test_a_name_in_the_source_is_enough(imports, source):
    files, unsure = imports(source)
    assert files == (KERNEL if "kernel" in source else set())
    assert not unsure


@pytest.mark.parametrize(
    "source",
    [
        "import_module(name)",
        "load = importlib.import_module",
        "dict(map(import_module, NAMES))",
        "lazy_import(name)",
        "exec(f'from lib.k_{n} import run', space)",
        "eval(text)",
        "pydoc.locate(name)",
        "hydra.utils.instantiate(settings)",
        "entry_points(group='kernels')",
        "lazy.attach_stub(__name__, __file__)",
        "spec_from_file_location('kernels.k', path)",
        "SourceFileLoader('k', path).load_module()",
        "runpy.run_path('kernels/k.py')",
        "sys.modules[f'lib.{name}']",
        "from runpy import run_path as run",
    ],
)
def test_what_imports_without_a_name_in_the_source_is_unsure(imports, source):
    assert imports(source)[1].startswith("first.py")


@pytest.mark.parametrize(
    ("name", "text", "names"),
    [
        ("k.yaml", "_target_: lib.kernel.run\n", True),
        ("k.ini", "[kernels]\nfirst = lib.kernel:run\n", True),
        ("lib/__init__.pyi", "from .kernel import run\n", True),
        ("k.j2", "from lib import other, kernel\n", True),
        ("k.csv", "lib, kernel, 0.5\n", False),
        ("pyproject.toml", "[project.scripts]\nk = 'lib.kernel:main'\n", False),
    ],
)
def test_data_may_name_modules(imports, name, text, names):
    assert (imports(text, name)[0] >= {"lib/kernel.py"}) == names


def test_what_others_open_while_the_project_reads_is_seen(tmp_path):
    repository = Repository(tmp_path / "project")
    repository.write(read="", prefetched="")
    repository.commit()
    opened = OpenedFiles(Project.around(repository.top), repository.top)
    if opened.why_blind:
        pytest.skip(opened.why_blind)
    opened.enter()
    with opened.looking_away():
        opened.project.imported("read.py")
        (repository.top / "prefetched.py").read_text()
    assert opened.carried()["opened"][BETWEEN] == ["prefetched.py"]
    opened.close()
