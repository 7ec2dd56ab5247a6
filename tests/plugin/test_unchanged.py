"""Checks `--gpukern-only-changed=RUN.json`: a test runs where anything that it loads changed, and only there.

One repository has a folder of tests for each way in which Python loads a file. One run vouches for them all.
"""

import _bisect
import json
import os
import shutil
import subprocess
import sys

import pytest
from repositories import Repository

from pytest_gpukern.run.loaded_files import _CACHED

TEST = """
import os
from pathlib import Path
import pytest
HERE = Path(__file__).parent
TOP = HERE.parents[1]
{loads}
@pytest.mark.gpu_benchmark(timer="host"{marker})
def test_it(gpu_benchmark):
    {body}
    gpu_benchmark.verify(gpu_benchmark(lambda: [3]), [3], rtol=0, atol=0)
"""
LOADED = {
    # folder of tests → what its module has, what its test does, a change that it must notice, further files
    "import": ("import helper", "pass", "helper.py"),
    "import_in_function": ("", "from lib import late", "lib/late.py"),
    "init": ("import inits.deep.end", "pass", "inits/deep/__init__.py", "inits/deep/end.py"),
    "relative": ("import rel.first", "pass", "rel/second.py", "rel/first.py"),
    "star": ("from stars import *", "pass", "stars/one.py", "stars/__init__.py"),
    "by_name": ("import importlib\nimportlib.import_module('named.one')", "pass", "named/one.py"),
    "missing": ("try:\n    import fast\nexcept ImportError:\n    fast = None", "pass", "fast.py"),
    "plugin": ("", "pass", "plugged.py", "tests/plugin/conftest.py"),
    "beside": ("", "pass", "tests/beside/deep/table.bin"),
    "variants": ("import problems.problem", "pass", "problems/on_numba.py", "problems/problem.py"),
    "opened": ("", "(TOP / 'data/opened.csv').read_text()", "data/opened.csv"),
    "opened_first": ("import reader", "pass", "data/first.csv", "reader.py"),
    "in_c": (
        "import sqlite3",
        "sqlite3.connect(f'file:{TOP}/database?mode=ro', uri=True).execute('pragma user_version')",
        "database",
    ),
    "in_a_process": (
        "import subprocess",
        "subprocess.run(['cat', TOP / 'include.cuh'], check=True)",
        "include.cuh",
    ),
    "by_path": (
        "import subprocess, sys",
        "subprocess.run([sys.executable, TOP / 'scripts/run.py'], check=True)",
        "scripts/run.py",
    ),
    "as_a_module": (
        "import subprocess, sys",
        "subprocess.run([sys.executable, '-m', 'scripts.module'], check=True)",
        "scripts/module.py",
    ),
    "path_added": (
        "",
        "import sys; sys.path.append(str(TOP / 'appended')); import kernels_there",
        "appended/kernels_there.py",
    ),
    "in_settings": (  # which another test may have imported
        "import lib.of_settings",
        "(TOP / 'settings/kernel.yaml').read_text()",
        "lib/of_settings.py",
        "settings/kernel.yaml",
    ),
    "in_a_template": (
        "import lib.of_template",
        "(TOP / 'templates/kernel.j2').read_text()",
        "lib/of_template.py",
        "templates/kernel.j2",
    ),
    "more_folders": (
        "",
        "[p.read_text() for p in TOP.rglob('*.cu')]",
        "sources/second/deep.cu",
        "sources/first/kernel.cu",
    ),
    "by_another_folder": ("", "open('tests/data.txt').read()", "tests/data.txt"),
    "linked": ("import link.module", "pass", "far/away/module.py"),
    "more_data": ("", "[p.read_text() for p in (TOP / 'many').glob('*')]", "many/b.csv", "many/a.csv"),
    "made": (  # as torch.classes
        "import sys\nmade = sys.modules['made'] = type(sys)('made')\nmade.__file__ = '_made.py'",
        "import maker",
        "maker.py",
    ),
    "declared": ("", "pass", "declared/deep/new.tsv", "declared/a.tsv"),
    "name_in_a_text": (  # which explains no file that is loaded by path
        "import subprocess, sys\nPATHS = [TOP / f'{of[:-2]}/k.py' for of in ('over.k', 'lib.k')]",
        "subprocess.run([sys.executable, next(filter(os.path.exists, PATHS))], check=True)",
        "over/k.py",
        "lib/k.py",
    ),
    "options_among_data": (
        "",
        "[f.read_text() for f in (TOP / 'cases').glob('*')]",
        "cases/b.json",
        "cases/a.toml",
    ),
    "imported_twice": ("import lib.twice", "pass", "lib/twice.py"),
    "twice_by_path": (
        "import subprocess, sys\nsubprocess.run([sys.executable, TOP / 'lib/twice.py'], check=True)",
        "pass",
        "tests/twice_by_path/deep/table.bin",
    ),
    "path_inside": (  # what it imports was loaded by another test
        "",
        "(HERE / 'deep/start.py').read_text()",
        "tests/path_inside/deep/start.py",
    ),
    "first_found": (
        "",
        "next(of for of in (TOP / 'lib/set.ting', HERE / 'set.ting') if of.exists()).read_text()",
        "lib/set.ting",
        "tests/first_found/set.ting",
    ),
}
"""Way of loading → a folder of tests that loads so."""
NOT_THERE = ("fast.py", "many/b.csv", "declared/deep/new.tsv", "lib/set.ting", "over/k.py", "cases/b.json")
NOT_THERE += ("sources/second/deep.cu",)
CONTENT = {
    "rel/first.py": "from . import second",
    "stars/__init__.py": "__all__ = ['one']",
    "tests/plugin/conftest.py": "import plugged",
    "reader.py": "DATA = open(__file__.replace('reader.py', 'data/first.csv')).read()",
    "database": "",
    "tests/path_inside/deep/start.py": "import helper",
    "settings/kernel.yaml": "kernel: lib.of_settings.run\n",
    "templates/kernel.j2": "from lib import (\n  of_template,\n)\nx = {{ 1 }}\n",
}
"""Of the files that are not `1`."""


DECIDES = """
import json, pathlib, subprocess
from pytest_gpukern.session.stash import UNCHANGED
from pytest_gpukern.session.unchanged import leave_out_unchanged

def pytest_collection_finish(session):
    plans, found = pathlib.Path("build/plans.json"), {}
    for name, (written, deleted, run) in json.loads(plans.read_text()).items() if plans.exists() else ():
        for path in written:
            file = pathlib.Path(path)
            file.parent.mkdir(exist_ok=True, parents=True)
            file.write_text((file.read_text() if file.exists() else "") + "\\n# changed\\n")
        for path in deleted:
            pathlib.Path(path).unlink()
        items = list(session.items)
        leave_out_unchanged(session.config, items, pathlib.Path(run))
        found[name] = [item.nodeid for item in items], session.config.stash[UNCHANGED].lines
        subprocess.run("git reset -q --hard vouched && git clean -qfd", shell=True, check=True)
    if found:
        pathlib.Path("build/found.json").write_text(json.dumps(found))
"""
"""A plugin of the project that decides for each change in turn, in one process."""


def pytest_in(folder, *options, **environ):
    """Runs pytest in a process that has nothing of this one, and returns what it printed."""
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "TMPDIR") if name in os.environ}
    kept |= {"CUDA_VISIBLE_DEVICES": "", "COLUMNS": "160", "GPUKERN_LOCK_DIR": str(folder.parent)}
    command = [sys.executable, "-m", "pytest", "-q", "--gpu-benchmark", "--gpukern-simulator=never", *options]
    done = subprocess.run(
        command, cwd=folder, env={**kept, **environ}, capture_output=True, text=True, check=False
    )
    return done.returncode, done.stdout + done.stderr


def write(folder, files):
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(content)


@pytest.fixture(scope="module")
def vouched(tmp_path_factory):
    """A repository with a folder of tests for each way, and the file of a run that vouches for them."""
    repository = Repository(tmp_path_factory.mktemp("vouched") / "project")
    top = repository.top
    (top / "far" / "away").mkdir(parents=True)
    (top / "link").symlink_to("far/away")
    files = {
        ".gitignore": "__pycache__\n.pytest_cache\nrun.json\nbuild\n",
        "pyproject.toml": '[tool.pytest.ini_options]\npythonpath = ["."]\n',
        "conftest.py": "pytest_plugins = ['everywhere']\n",
        "everywhere.py": DECIDES,
        "README.md": "",
    }
    for name, (loads, body, *others) in LOADED.items():
        marker = ", reads=['../../declared/*.tsv']" if name == "declared" else ""
        files[f"tests/{name}/test_{name}.py"] = TEST.format(loads=loads, body=body, marker=marker)
        files |= {path: CONTENT.get(path, "1") for path in others if path not in NOT_THERE}
    write(top, files)
    repository.commit()
    repository.git("tag", "vouched")
    status, output = pytest_in(top, "--gpukern-report=run.json")
    assert status == 0, output
    refused = json.loads((top / "run.json").read_text())["voucher"].get("refused", "")
    if refused.startswith("inotify"):
        pytest.skip(refused)
    return repository


@pytest.fixture
def project(vouched):
    """The same, put back after the test."""
    run = (vouched.top / "run.json").read_text()
    yield vouched
    vouched.git("update-index", "--no-assume-unchanged", "helper.py")
    vouched.git("reset", "-q", "--hard", "vouched")
    vouched.git("clean", "-qfd")
    (vouched.top / "run.json").write_text(run)


KEPT = ("plugin", "opened", "opened_first", "in_c", "in_a_process", "by_path", "more_data", "first_found")
KEPT += (
    "name_in_a_text",
    "options_among_data",
    "imported_twice",
    "in_settings",
    "in_a_template",
    "more_folders",
)
KEPT += ("by_another_folder", "path_added")
"""Ways to load what a module, fixture or plugin may have kept for other tests, which all run, too."""
FOR_ALL = ("pyproject.toml", "tests/new/conftest.py", "everywhere.py", "dev-requirements.txt", "uv.lock")
DELETED = {f"no {path}": path for path in ("helper.py", "data/opened.csv", "rel/second.py", "link")}
CHANGED = {way: [change] for way, (_, _, change, *_) in LOADED.items()} | {name: [name] for name in FOR_ALL}
CHANGED |= {"nothing": [], "something else": ["README.md", "docs/new.md"]}
EXPECTED = {way: {way} for way in LOADED} | {"nothing": set(), "something else": set()}
EXPECTED["import"] = {"import", "path_inside"}
EXPECTED |= {change: {*LOADED} for change in (*KEPT, *FOR_ALL, *DELETED)}
"""Change → the folders of the tests that run."""
BESIDE = "tests/beside/test_beside.py"
VOUCHING = {
    "old": ({"created": "2020-01-01T00:00:00Z"}, "days old"),
    "early": ({"created": "2199-01-01T00:00:00Z"}, "its clock was ahead"),
    "without": ({"voucher": None}, "it does not say what its tests load"),
    "partial": ({"voucher": {"refused": "it left out tests"}}, "it left out tests"),
    "elsewhere": ({"voucher": {"commit": "0" * 40}}, "is no ancestor of HEAD, or not here"),
    "library": ({"voucher": {"conditions": {}}}, "none there, "),
    "lax": ({"voucher": {"fail_on": []}}, "--gpukern-fail-on=slower did not fail it"),
    "foreign": ({"schema": 3}, "reads 7"),
    "gone": ({"voucher": {"tests": {f"{BESIDE}::test_gone": []}}}, "test_gone is gone"),
    "case": ({"voucher": {"tests": {"tests/star/test_star.py::gone": []}}}, "gone is gone", "stars/one.py"),
}
"""A run file → what is another in it, and why it does not vouch where `BESIDE`, or what is named, changed."""


@pytest.fixture(scope="module")
def decided(vouched):
    """Change, or run file → the folders of the tests that run, and what is said of them."""
    plans = {name: (files, [], "run.json") for name, files in CHANGED.items()}
    plans |= {name: ([], [path], "run.json") for name, path in DELETED.items()}
    whole = json.loads((vouched.top / "run.json").read_text())
    for name, (other, _, *changed) in VOUCHING.items():
        voucher = other.get("voucher", {})
        run = whole | other | {"voucher": whole["voucher"] | voucher if voucher is not None else None}
        write(vouched.top, {f"build/{name}.json": json.dumps(run)})
        plans[name] = changed or [BESIDE], [], f"build/{name}.json"
    write(vouched.top, {"build/plans.json": json.dumps(plans)})
    status, output = pytest_in(vouched.top, "--collect-only")
    assert status == 0, output
    (vouched.top / "build/plans.json").unlink()
    found = json.loads((vouched.top / "build/found.json").read_text())
    return {name: ({of.split("/")[1] for of in tests}, *lines) for name, (tests, lines) in found.items()}


@pytest.mark.parametrize("change", EXPECTED)
def test_what_loads_a_changed_file_runs_and_nothing_else(decided, change):
    assert decided[change][0] == EXPECTED[change]


@pytest.mark.parametrize("name", VOUCHING)
def test_everything_runs_where_the_run_cannot_vouch_and_the_reason_is_told(decided, name):
    runs, *told = decided[name]
    assert runs == {*LOADED}
    assert "no test was left out: " in " ".join(told)
    assert VOUCHING[name][1] in " ".join(told)


def again(project, *options, **environ):
    """Returns what a run printed that may leave out tests."""
    output = pytest_in(project.top, "--gpukern-only-changed=run.json", *options, **environ)[1]
    return " ".join(output.split())


def test_what_does_not_run_is_unchanged_and_never_passed(project):
    options = ("--gpukern-only-changed=run.json", "--gpukern-report=later.json")
    status, output = pytest_in(project.top, *options)
    assert f"{len(LOADED)} of {len(LOADED)} not run: nothing that they load differs from " in output
    assert "where they passed with these libraries, today" in " ".join(output.split())
    assert f"UNCHANGED: {len(LOADED)} tests" in output
    assert "PASSED" not in output
    later = json.loads((project.top / "later.json").read_text())
    assert status == 0
    assert len(later["unchanged"]["tests"]) == len(LOADED)
    assert later["voucher"] is None, "a run that left out tests vouches for nothing"


@pytest.mark.parametrize(
    ("options", "environ", "why"),
    [
        ([], {"NUMBA_OPT": "0"}, "variable NUMBA_OPT: none there, "),
        ([], {"HELION_INTERPRET": "1"}, "variable HELION_INTERPRET: none there, "),
        (["--gpukern-timer=host"], {}, "options: "),
        (["--gpukern-threshold=1%"], {}, "threshold: 0.02 there, 0.01 here"),
    ],
)
def test_everything_runs_under_other_conditions(project, options, environ, why):
    output = again(project, "tests/import", *options, **environ)
    assert f"no test was left out: run.json vouches for nothing: {why}" in output
    assert "1 passed" in output


@pytest.mark.parametrize(
    "options",
    [
        ["tests/beside"],
        ["-k", "test_beside", "-p", "no:cacheprovider"],
        [f"{BESIDE}::test_it", "-s", "--strict-markers"],
    ],
)
def test_what_a_run_asks_for_and_how_it_shows_it_does_not_matter(project, options):
    write(project.top, {"helper.py": "x = 2\n"})
    assert "1 of 1 not run" in again(project, *options, CI_MERGE_REQUEST_PROJECT_PATH="a/b")


def test_workers_and_a_comparison_with_a_base_leave_out_the_same(project):
    write(project.top, {"helper.py": "x = 1\n# changed\n"})
    chosen = [f"tests/{way}" for way in ("import", "path_inside", "star", "init")]
    for options in (["-n2"], ["--gpukern-against=HEAD", "--gpukern-sessions=2"]):
        output = again(project, *options, *chosen)
        assert "2 of 4 not run" in output
        assert "2 run: load helper.py (2)" in output


def vouches_for(project, *options):
    """Returns the folders of tests for which a run vouches, and why it vouches for none."""
    pytest_in(project.top, "--gpukern-report=run.json", *options)
    voucher = json.loads((project.top / "run.json").read_text())["voucher"]
    return {test.split("/")[1] for test in voucher.get("tests", ())}, voucher.get("refused", "")


DOUBTFUL = {
    "skips": ("", "pytest.skip('not here')"),
    "xfails": ("", "pytest.xfail('known')"),
    "dynamic": ("import importlib\nof = 'decoder'\nimportlib.import_module(f'json.{of}')", "pass"),
    "compiles": (
        "import _bisect, ctypes, shutil",
        "ctypes.CDLL(shutil.copy(_bisect.__file__, 'build/made.so'))",
    ),
}
"""Folder of tests → what its module has and its test does; nobody can vouch for it, or only for now."""


def with_tests(project, tests):
    """Commits further tests, and returns their folders behind those of three that were there."""
    for name, (loads, body) in tests.items():
        test = TEST.format(loads=loads, marker="", body=body)
        write(project.top, {f"tests/{name}/test_{name}.py": test})
    project.commit()
    return [f"tests/{name}" for name in ("init", "import", "import_in_function", *tests)]


def test_nobody_vouches_for_what_did_not_pass_or_git_does_not_have(project):
    write(project.top, {".gitattributes": "lib/*.py filter=lfs\n"})
    options = with_tests(project, DOUBTFUL)
    assert vouches_for(project, *options) == ({"init", "import", "dynamic", "compiles"}, "")
    project.git("update-index", "--assume-unchanged", "helper.py")
    output = again(project, *options)
    assert "2 of 7 not run" in output
    assert "tests/dynamic/test_dynamic.py:9 imports what its source does not name (1)" in output
    assert "git cannot tell whether helper.py changed (1)" in output
    assert "did not pass there, were not judged, or load what git cannot tell (3)" in output


def test_what_git_does_not_have_counts_for_all_since_a_module_may_keep_it(project, tmp_path):
    for library in (project.top / "build" / "fast.so", tmp_path / "outside.so"):
        shutil.copy(_bisect.__file__, library)
    write(project.top, {"build/data": "1"})
    tests = {
        "untracked": ("", "open('build/data').read()"),
        "inside": ("", "import ctypes; ctypes.CDLL('build/fast.so')"),
        "outside": ("", f"import ctypes; ctypes.CDLL('{tmp_path}/outside.so')"),
        "makes": ("", "open('build/new', 'w').close(); open('build/new').close()"),
    }
    options = with_tests(project, tests)
    vouches_for(project, *options)
    opened = json.loads((project.top / "run.json").read_text())["voucher"]["opened"]
    assert {of for of in opened if not of.endswith(".py")} == {
        "build/data",
        "build/fast.so",
        f"{tmp_path}/outside.so",
    }
    output = again(project, *options)
    assert "no test was left out: git cannot tell whether " in output


def test_what_a_controller_reads_for_any_of_its_workers_counts_for_all(project):
    reads = "def pytest_configure_node(node): node.workerinput['x'] = open(node.gateway.id).read()\n"
    write(project.top, {"conftest.py": f"pytest_plugins = ['everywhere']\n{reads}", "gw0": "1", "gw1": "1"})
    vouches_for(project, "-n2", *with_tests(project, {}))
    opened = json.loads((project.top / "run.json").read_text())["voucher"]["opened"]
    assert {"gw0", "gw1"} <= {*opened}
    assert "inits/deep/end.py" not in opened, "which workers open"


def test_the_hash_that_a_record_keeps_is_another_where_a_test_loads_a_changed_file(project):
    def hashes(name, *options):
        pytest_in(project.top, f"--gpukern-report={name}", *options)
        results = json.loads((project.top / name).read_text())["results"]
        return {of["nodeid"].split("/")[1]: of["files"] for of in results}

    before = hashes("run.json")
    ways = [
        f"tests/{way}" for way in ("import", "import_in_function", "init", "relative", "star", "variants")
    ]
    assert hashes("build/workers.json", "-n2", *ways) == hashes("build/alone.json", *ways)
    write(project.top, {"helper.py": "x = 2", "lib/twice.py": "x = 2", "README.md": "2"})
    now = hashes("build/now.json")
    changed = {way for way in LOADED if now[way] != before[way]}
    assert changed >= {"import", "path_inside", "imported_twice", "twice_by_path"}
    assert changed.isdisjoint({"beside", "by_name", "by_path", "init"}), "they run first: nothing is kept"
    assert None not in before.values()


RED = TEST.format(loads="", marker="", body="assert 0")


@pytest.mark.parametrize(
    ("files", "options", "why"),
    [
        ({"tests/fails/test_fails.py": RED}, [], "it was not green"),
        ({}, ["-k", "import"], "it left out tests"),
        ({"helper.py": "x = 2"}, ["tests/import"], "files differed from its commit"),
    ],
    ids=["red", "partial", "dirty"],
)
def test_a_run_that_is_not_green_whole_and_clean_vouches_for_nothing(project, files, options, why):
    write(project.top, files)
    assert vouches_for(project, *options) == (set(), why)


def test_the_value_is_the_file_of_a_run(pytester):
    pytester.makepyfile(test_any="def test_any(): pass")
    status, output = pytest_in(pytester.path, "--gpukern-only-changed", "test_any.py")
    assert status == pytest.ExitCode.USAGE_ERROR
    assert "name the run file of a run of everything, such as run.json. To select test_any.py, name" in output
    _, output = pytest_in(pytester.path, "--gpukern-only-changed=run.json", "--gpukern-baseline=create")
    assert "a run that leaves out tests writes no record" in output


def test_compiled_code_stands_for_its_module_whatever_that_is_called():
    for python in ("cpython-313", "cpython-311-pytest-9.2.0"):
        assert _CACHED.sub(r"\1.py", f"k/__pycache__/soft.v2.{python}.pyc") == "k/soft.v2.py"
