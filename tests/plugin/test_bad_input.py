"""Checks damaged files, wrong device strings and missing libraries: a clear error, or an explained skip."""

import json

import pytest

from .conftest import FIRST, refused


def test_a_damaged_baseline_is_refused_with_file_and_remedy_and_left_as_it_is(recorded, pytester):
    (path,) = (pytester.path / "baselines").iterdir()
    path.write_bytes(path.read_bytes()[:-100])
    before = path.read_bytes()
    for mode in (["compare"], ["create"], ["update", "--gpukern-reason=x"]):
        refused(recorded("--gpukern-baseline", *mode), f"{path}: cannot be read: *")
    assert path.read_bytes() == before


def test_escape_sequences_of_a_baseline_are_shown_and_not_sent(recorded, pytester, monkeypatch):
    (path,) = (pytester.path / "baselines").iterdir()
    content = json.loads(path.read_text())
    (first,) = (record for record in content["records"] if record["case"] == FIRST)
    content["records"].append({**first, "case": "\x1b[2Jgone"})
    for process in content["processes"].values():
        fingerprint = process["fingerprint"]
        fingerprint["driver_version"] = "\x1b]0;title\x07"
        fingerprint["libraries"] = {"\x1b[31mlibrary": "\x9b"}
    path.write_text(json.dumps(content))
    monkeypatch.setenv("FIRST_TAKES_NS", "2000")
    shown = recorded("-v").stdout.str()
    assert "SLOWER" in shown
    assert "\\u001b[31mlibrary" in shown
    assert "\\u001b[2Jgone" in shown
    assert not {"\x1b", "\x07", "\x9b"} & set(shown)


def test_a_damaged_baseline_found_by_the_workers_of_xdist_is_refused_the_same_way(host, pytester):
    host("--gpu-benchmark", "--gpukern-baseline=create", "-k", "add and 8")
    (path,) = (pytester.path / "baselines").iterdir()
    path.write_text("{")
    refused(
        host("--gpu-benchmark", "-n1"),
        f"{path}: cannot be read: *Restore the file from version control*",
    )


def test_a_damaged_baseline_of_another_device_or_of_a_plain_test_is_refused_before_anything_runs(
    gpu, pytester
):
    pytester.makepyfile(test_plain="def test_it(gpu_benchmark):\n    raise AssertionError('it ran')")
    folder = pytester.mkdir("baselines")
    (folder / "test_plain.fake-gpu.json").write_text("{")
    refused(gpu(), f"{folder}/test_plain.fake-gpu.json: cannot be read: *")
    (folder / "test_plain.fake-gpu.json").rename(folder / "doubling.another-gpu.json")
    refused(gpu(), f"{folder}/doubling.another-gpu.json: cannot be read: *")


def test_a_folder_of_baselines_that_is_a_file_is_refused(gpu, pytester):
    (pytester.path / "a file").write_text("")
    options = ("--gpukern-baseline=create", "--gpukern-baseline-dir=a file")
    refused(gpu(*options), f"{pytester.path}/a file/doubling.fake-gpu.json: cannot be read: Not a directory*")


def test_a_baseline_or_a_report_that_cannot_be_written_fails_the_run_and_nothing_else(recorded, pytester):
    (path,) = (pytester.path / "baselines").iterdir()
    path.chmod(0o444)
    before = path.read_bytes()
    pytester.mkdir("run.json")
    result = recorded("--gpukern-baseline=update", "--gpukern-reason=x", "--gpukern-report=run.json")
    result.assert_outcomes(passed=2)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines_random(
        [
            f"gpukern: {path}: is read-only. Make it writable: chmod u+w {path.name}.",
            "gpukern: *run.json: cannot be written: Is a directory. *--gpukern-report.",
        ]
    )
    assert path.read_bytes() == before


@pytest.fixture
def bad_variable(monkeypatch):
    """Sets CUDA_VISIBLE_DEVICES to something that CUDA does not understand."""
    from pytest_gpukern.gpu.errors import DeviceError

    def refuse(environ):
        raise DeviceError("CUDA_VISIBLE_DEVICES='7': the entry '7' is out of range")

    monkeypatch.setattr("pytest_gpukern.gpu.selection.missing_gpu_reason", refuse)
    monkeypatch.setattr("pytest_gpukern.run.device_session.missing_gpu_reason", refuse)


def test_a_bad_variable_is_refused_at_start_up(host, pytester, bad_variable):
    refused(pytester.runpytest_inprocess("--gpu-benchmark"), "CUDA_VISIBLE_DEVICES='7': the entry '7' is *")


def test_a_bad_variable_in_a_run_that_never_asked_is_an_error_without_a_traceback(
    host, pytester, bad_variable
):
    pytester.makepyfile(test_plain="def test_it(gpu_device): pass\ndef test_other(gpu_benchmark): pass")
    result = pytester.runpytest_inprocess("--continue-on-collection-errors")
    result.assert_outcomes(errors=3)
    result.stdout.fnmatch_lines(["CUDA_VISIBLE_DEVICES='7': the entry '7' is out of range"] * 3)
    assert "Traceback" not in result.stdout.str()
    assert "raise " not in result.stdout.str()


def test_without_the_cuda_library_gpu_variants_are_skipped_with_its_name(host, pytester, monkeypatch):
    why = "NVML lists 1 GPU, but CUDA library missing (libcuda.so.1)"
    monkeypatch.setattr("pytest_gpukern.gpu.selection.missing_gpu_reason", lambda environ: why)
    monkeypatch.setattr("pytest_gpukern.run.device_session.missing_gpu_reason", lambda environ: why)
    path = pytester.path / "test_doubling.py"
    path.write_text(path.read_text() + '\n@doubling.variant("numba")\ndef device(x, y): ...\n')
    result = host("--gpukern-axis=n=8", "--gpu-benchmark", "--gpukern-fail-on=no-gpu")
    result.assert_outcomes(passed=2, skipped=1)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines([f"1 skipped: no GPU: {why} (doubling/numba.device/n=8)"])
    result.stdout.fnmatch_lines(
        [f"gpukern: --gpukern-fail-on=no-gpu: nothing was measured on a GPU *({why})"]
    )


def test_a_module_that_needs_a_gpu_says_in_a_run_that_never_asked_what_would_run_it_and_no_other(pytester):
    pytester.makepyfile(
        test_gpu="raise OSError('libcuda.so.1: cannot open shared object file: No such file or directory')",
        test_disk="raise OSError('disk full')",
    )
    result = pytester.runpytest_inprocess()
    result.assert_outcomes(errors=2)
    result.stdout.fnmatch_lines(["* add gpukern_simulator = * or run pytest --gpukern-simulator=auto *"])
    assert result.stdout.str().count("--gpukern-simulator") == 1


def test_a_device_that_was_asked_for_is_an_error_where_there_is_no_gpu(pytester):
    pytester.makepyfile("def test_it(gpu_device): pass")
    result = pytester.runpytest_subprocess("--gpu-benchmark", "--gpukern-device=7")
    refused(result, "--gpukern-device=7 matches no device: *; drop it to run without a GPU")
