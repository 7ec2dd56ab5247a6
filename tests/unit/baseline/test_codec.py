"""Checks the baseline file: its form, reading it and naming its damage."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_up_records import H200, KERNEL, case_of, measurement_of, path_in, record, result_of, sessions
from msgspec import structs

from pytest_gpukern.baseline import record as record_
from pytest_gpukern.baseline.codec import load, parse, render
from pytest_gpukern.baseline.record import Baseline, Record, trimmed
from pytest_gpukern.values.fingerprint import Provenance
from pytest_gpukern.values.result import Summary
from pytest_gpukern.values.untrusted_json import FileError

STAMP = "2026-11-20T10:00:00Z"
NOWHERE = Path("vector_exp.nvidia-h200.json")


@pytest.fixture
def folder(tmp_path):
    """Returns a folder with one recorded case."""
    report = record("create", result_of(case_of(tmp_path)))
    assert report.written == [path_in(tmp_path)]
    return tmp_path


# --- what the file looks like and how it is read --------------------------------------------------


def test_the_file_is_versioned_and_rounded_and_a_case_is_a_line(folder):
    record("create", result_of(case_of(folder, "cupy"), provenance=Provenance("beef")))
    assert load(path_in(folder)).of("vector_exp-cupy-n=1000").sessions[0].provenance.commit == "beef"
    text = path_in(folder).read_text()
    content = json.loads(text)
    assert list(content) == ["schema", "problem", "device_model", "processes", "records"]
    assert content["schema"] == 4
    assert text.endswith("}\n")
    lines = [line.strip(" ,") for line in text.splitlines() if '{"case": "' in line]
    cases = [json.loads(line) for line in lines]
    assert [case["case"] for case in cases] == ["vector_exp-cupy-n=1000", "vector_exp-numba-n=1000"]
    (epoch,) = cases[1]["epochs"]
    (session,) = epoch["sessions"]
    (timed,) = session["measurements"]
    assert f"{timed['scope']}/{timed['timer']}/{timed['cache']}" == KERNEL
    assert timed["summary"] == {"median_ns": 50_000.0, "low_ns": 49_950.0, "high_ns": 50_050.0, "n": 11}
    assert timed["mean_ns"] == 50_000.0
    assert timed["quantiles_ns"] == [49_775.0, 49_875.0, 50_000.0, 50_125.0, 50_225.0]
    assert session["first_call_ns"] == 123457000  # six significant digits
    assert epoch["shared"]["errors"]["out"]["max_rel"] == 2.12346e-7
    process = content["processes"][session["session"]]
    assert (process["fingerprint"]["driver_version"], process["recorded"]) == ("580.159", STAMP)


@given(st.lists(st.floats(1, 9), min_size=3, max_size=3), st.none() | st.permutations(range(5)))
def test_a_time_is_taken_if_its_bounds_and_quantiles_ascend(bounds, quantiles):
    low, median, high = bounds
    timed = structs.replace(
        measurement_of(),
        summary=Summary(median, low, high, 7),
        samples_ns=(),
        quantiles_ns=quantiles and tuple(map(float, quantiles)),
    )
    session = structs.replace(trimmed(result_of(case_of("")), recorded=STAMP), measurements=(timed,))
    kept = Record(session.case.id, (record_.Epoch(STAMP, (session,)),), H200)
    content = render(Baseline("a", H200, {kept.case: kept}))
    if low <= median <= high and quantiles in (None, sorted(range(5))):
        assert parse(content, NOWHERE).cases == {kept.case: kept}
    else:
        with pytest.raises(FileError, match=r"records\[0\]\.epochs\[0\]\.sessions\[0\]\.measurements"):
            parse(content, NOWHERE)


def test_two_records_of_one_case_are_refused(folder):
    content = json.loads(path_in(folder).read_text())
    content["records"] *= 2
    with pytest.raises(FileError, match=r"records\[1\]\.case.*: a case has two records"):
        parse(json.dumps(content).encode(), NOWHERE)


def test_a_missing_file_is_an_error_for_load_and_no_record_for_the_store(tmp_path):
    with pytest.raises(FileError, match="cannot be read: No such file"):
        load(tmp_path / "gone.json")
    assert sessions(tmp_path) == ()


def test_a_file_copied_for_another_device_or_problem_is_an_error(folder):
    path_in(folder, model_key="nvidia-a100").write_bytes(path_in(folder).read_bytes())
    with pytest.raises(FileError, match="device_model: the file is named for 'nvidia-a100' but holds"):
        sessions(folder, model_key="nvidia-a100")
    path_in(folder, name="saxpy").write_bytes(path_in(folder).read_bytes())
    with pytest.raises(FileError, match="problem: the file is named for 'saxpy'"):
        sessions(folder, case_of(folder, name="saxpy"))


# --- round trip --------------------------------------------------------

COMMITTED = sorted(Path(__file__).parents[3].glob("suites/*/baselines/*.*-*.json"))


@pytest.mark.parametrize("path", COMMITTED, ids=lambda path: path.stem)
def test_what_we_wrote_is_read_and_written_the_same(path):
    content = path.read_bytes()
    stored = parse(content, path)
    assert render(stored) == content
    assert parse(content.replace(b'": ', b'" :  ', 1), path) == stored, "spaces change nothing"
    assert parse(json.dumps(json.loads(content), sort_keys=True).encode(), path) == stored, "nor does order"
    kernels = [kernel for record in stored.cases.values() for of in record.sessions for kernel in of.kernels]
    older = {
        kernel.machine_code_sha256 for kernel in kernels if ":" not in (kernel.machine_code_sha256 or ":")
    }
    assert older == set(), "hashes of an older form, with which nothing can compare"
