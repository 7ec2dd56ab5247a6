"""Checks where we look for compute-sanitizer, its command line, and the set-up of a process under it."""

import functools
import itertools
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from pytest_gpukern.gpu import programs
from pytest_gpukern.sanitizer import child_setup
from pytest_gpukern.sanitizer.tool import Tool, ToolMissingError, environment_under, find_tool
from pytest_gpukern.values.options import sanitizing_tool


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """Puts programs that tell where they lie into folders; only those of the test are found."""
    monkeypatch.setattr(programs, "wheel_folders", lambda: [tmp_path / "nvidia"])

    def put(folder, *, says="Version 2025.3.1.0 (build 1)", status=0, mode=0o755):
        program = tmp_path / folder / "compute-sanitizer"
        program.parent.mkdir(parents=True, exist_ok=True)
        program.write_text(f"#!/bin/sh\necho 'NVIDIA (R) Compute Sanitizer'; echo '{says}'; exit {status}\n")
        program.chmod(mode)
        return program

    return put


def test_a_wheel_goes_before_the_toolkit_and_that_before_the_path(machine, tmp_path):
    environ = {"PATH": f"{tmp_path / 'path'}:/usr/bin:/bin", "CUDA_HOME": str(tmp_path / "cuda")}
    places = ["path", "cuda/bin", "nvidia/cuda_sanitizer_api/bin", "nvidia/cu13/bin"]
    for folder in places:
        program = machine(folder)
        assert find_tool(environ) == Tool(str(program), "2025.3.1.0")


def test_what_cannot_be_executed_is_passed_over(machine, tmp_path):
    machine("nvidia/cu13/bin", mode=0o644)
    assert find_tool({"PATH": f"{machine('path').parent}:/bin"}).path == str(
        tmp_path / "path/compute-sanitizer"
    )


def test_a_missing_or_broken_program_is_an_error_with_the_remedy(machine, tmp_path):
    with pytest.raises(
        ToolMissingError, match=r"^compute-sanitizer is not installed; pip install nvidia-cuda-"
    ):
        find_tool({"PATH": str(tmp_path)})
    path = {"PATH": f"{tmp_path / 'path'}:/bin"}
    machine("path", status=3)
    with pytest.raises(ToolMissingError, match="--version ended with status 3, and said NVIDIA"):
        find_tool(path)
    machine("path", says="nothing of the kind")
    with pytest.raises(ToolMissingError, match="ended with status 0, and said NVIDIA"):
        find_tool(path)


def test_the_wheels_of_this_environment_are_known_by_their_package(tmp_path, monkeypatch):
    (tmp_path / "nvidia" / "cu13").mkdir(parents=True)
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    monkeypatch.delitem(sys.modules, "nvidia", raising=False)
    assert programs.wheel_folders() == [tmp_path / "nvidia"]
    monkeypatch.setattr(sys, "path", [])
    assert programs.wheel_folders() == []


@pytest.mark.parametrize(
    ("name", "own"),
    [
        ("memcheck", ("--report-api-errors", "no", "--padding", "512")),
        ("racecheck", ("--racecheck-report", "all")),
        ("initcheck", ()),
        ("synccheck", ()),
    ],
)
def test_each_tool_is_told_to_save_records_to_end_with_a_status_and_what_it_needs(name, own):
    command = Tool("/x/compute-sanitizer", "1").command(name, Path("/t"))
    assert command[:3] == ("/x/compute-sanitizer", "--tool", name)
    pairs = set(itertools.pairwise(command))
    assert {("--error-exitcode", "86"), ("--save", "/t/records.xml"), ("--log-file", "/t/log")} <= pairs
    assert "--xml" in command
    assert command[len(command) - len(own) :] == own


def test_a_process_knows_its_tool():
    environ = environment_under("racecheck", {"PYCUDA_DEFAULT_NVCC_FLAGS": "-O1 -lineinfo"})
    assert (sanitizing_tool(environ), sanitizing_tool({})) == ("racecheck", None)
    assert environ["PYCUDA_DEFAULT_NVCC_FLAGS"] == "-O1 -lineinfo"


def test_a_process_under_a_tool_ends_with_one_that_is_killed():
    script = "import sys; from pytest_gpukern.session.child import end_after; end_after(int(sys.argv[1]))"
    asking = subprocess.Popen(["sleep", "60"])
    waiting = subprocess.Popen([sys.executable, "-c", script, str(asking.pid)])
    asking.kill()
    asking.wait()
    assert waiting.wait(30) == 70


def jit(*args, **kwargs):
    """Acts as Numba's: takes a function, or options and then a function."""
    if (args and callable(args[0])) or "func_or_sig" in kwargs:
        return args, kwargs
    return lambda function: (args, kwargs, function)


def written():
    """Has a source."""


def made(name="<string>"):
    """Returns a function made from a text, as Numba makes those of its ufuncs."""
    names = {}
    exec(compile("def made(): pass", name, "exec"), names)
    return names["made"]


PART, FROM_TEXT = functools.partial(written), made()


@pytest.mark.parametrize(
    ("compiled", "passed_on"),
    [
        (lambda jit: jit(written, device=True), ((written,), {"device": True, "lineinfo": True})),
        (lambda jit: jit("void()")(written), (("void()",), {"lineinfo": True}, written)),
        (lambda jit: jit()(written), ((), {"lineinfo": True}, written)),
        (lambda jit: jit(func_or_sig=written), ((), {"func_or_sig": written, "lineinfo": True})),
        (lambda jit: jit(debug=True)(written), ((), {"debug": True}, written)),
        (lambda jit: jit(written, lineinfo=False), ((written,), {"lineinfo": False})),
        (lambda jit: jit(PART), ((PART,), {})),
        (lambda jit: jit(FROM_TEXT), ((FROM_TEXT,), {})),
        (lambda jit: jit("void()", device=True)(FROM_TEXT), (("void()",), {"device": True}, FROM_TEXT)),
    ],
)
def test_numbas_kernels_get_lines_if_they_have_a_source_and_say_nothing_else(compiled, passed_on):
    assert compiled(child_setup.with_lines(jit)) == passed_on


def test_libraries_are_prepared_where_they_are_there(monkeypatch):
    allocators = []
    there = {
        "cupy": SimpleNamespace(cuda=SimpleNamespace(set_allocator=allocators.append)),
        "numba.cuda": SimpleNamespace(jit=lambda f, **options: options),
    }
    monkeypatch.setattr(child_setup, "installed", there.__contains__)
    monkeypatch.setattr(child_setup.importlib, "import_module", there.__getitem__)
    child_setup.prepare_libraries()
    assert allocators == [None]
    assert there["numba.cuda"].jit(written) == {"lineinfo": True}


def test_a_library_that_does_not_import_is_left_alone(monkeypatch):
    def broken(name):
        raise OSError(f"{name}: undefined symbol")

    monkeypatch.setattr(child_setup, "installed", lambda name: name == "cupy")
    monkeypatch.setattr(child_setup.importlib, "import_module", broken)
    child_setup.prepare_libraries()
