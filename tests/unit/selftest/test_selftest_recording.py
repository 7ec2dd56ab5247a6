"""The file of a self-test: written whole, read back, and refused by field where it is damaged."""

from __future__ import annotations

import dataclasses
import json

import pytest
from made_up_selftest import readings, recording, session

from pytest_gpukern.selftest.recording import (
    SCHEMA,
    RecordingError,
    read_recording,
    read_session,
    write_json,
    write_recording,
)
from pytest_gpukern.selftest.targets import conclude


@pytest.fixture
def path(tmp_path):
    file = tmp_path / "new" / "run.json"
    made = recording()
    write_recording(file, made, conclude(made).to_json())
    return file


def change(path, *keys, value):
    """Puts a value somewhere into the file."""
    data = json.loads(path.read_text())
    place = data
    for key in keys[:-1]:
        place = place[key]
    place[keys[-1]] = value
    path.write_text(json.dumps(data))


def test_what_was_written_is_read_back_and_concludes_the_same(path):
    found = read_recording(path)
    assert found == recording()
    assert conclude(found) == conclude(recording())


def test_conclusions_are_in_the_file_and_are_computed_again(path):
    assert json.loads(path.read_text())["conclusions"]["reached"] is True
    change(path, "conclusions", value={"reached": "of course"})
    assert read_recording(path) == recording()


def test_a_range_that_is_not_finite_is_null(tmp_path):
    nothing = session(readings=tuple(dataclasses.replace(each, median_ns=0.0) for each in readings()))
    made = recording(nothing, session())
    write_recording(tmp_path / "run.json", made, conclude(made).to_json())
    ranges = [
        row["range"] for row in json.loads((tmp_path / "run.json").read_text())["conclusions"]["repeats"]
    ]
    assert set(ranges) == {None}


def test_eight_sessions_fit_a_small_file(tmp_path):
    file = tmp_path / "run.json"
    made = recording(*[session()] * 8)
    write_recording(file, made, conclude(made).to_json())
    assert file.stat().st_size < 200_000


def test_without_suites_there_are_none(tmp_path):
    made = recording(suites=None)
    write_recording(tmp_path / "run.json", made, {})
    assert read_recording(tmp_path / "run.json").suites is None


@pytest.mark.parametrize(
    ("keys", "value", "where", "problem"),
    [
        (("sessions", 1, "readings", 0, "median_ns"), "fast", "sessions[1].readings[0].median_ns", "'fast'"),
        (("sessions", 0, "spins", 2, "typo"), 1.0, "sessions[0].spins[2].typo", "is no known field"),
        (("sessions",), {}, "sessions", "instead of list"),
        (("sessions",), [], "sessions", "is empty"),
        (("asked_sessions",), True, "asked_sessions", "True instead of int"),
        (("suites", "exit_status"), None, "suites.exit_status", "None instead of int"),
        (("schema",), None, "schema", "no self-test"),
        (("schema",), True, "schema", "no self-test"),
        (("schema",), SCHEMA + 1, "schema", "this reads up to"),
    ],
)
def test_a_damaged_file_is_refused_with_file_and_field(path, keys, value, where, problem):
    change(path, *keys, value=value)
    with pytest.raises(RecordingError, match=problem) as error:
        read_recording(path)
    assert error.value.where == where
    assert str(error.value).startswith(f"{path}: {where}: ")


def test_a_missing_field_is_named(path):
    data = json.loads(path.read_text())
    del data["sessions"][0]["walls"][1]["seconds"]
    path.write_text(json.dumps(data))
    with pytest.raises(RecordingError, match=r"sessions\[0\]\.walls\[1\]\.seconds: is missing"):
        read_recording(path)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("", "is empty"),
        ("{", "is no complete JSON"),
        ("[1]", r"holds \[1\] instead"),
        ('{"a": NaN}', "holds NaN"),
    ],
)
def test_what_is_no_json_object_is_refused(tmp_path, content, problem):
    file = tmp_path / "run.json"
    file.write_text(content)
    with pytest.raises(RecordingError, match=problem):
        read_recording(file)


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(RecordingError, match=r"gone\.json: cannot be read"):
        read_recording(tmp_path / "gone.json")


def test_a_folder_that_cannot_be_made_is_an_error_with_a_remedy(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(RecordingError, match="choose another file with --output"):
        write_json(tmp_path / "file" / "run.json", {})


def test_a_session_is_read_alone(tmp_path):
    file = tmp_path / "session.json"
    file.write_text('{"problem": "no device"}')
    assert read_session(file) == session(
        default_timer="", ticks_ns={}, fixed_costs_ns={}, truth_step_ns=None, setup_s=None, elapsed_s=None,
        spins=(), nodes=(), preparations=(), readings=(), walls=(), rivals=(), problem="no device",
    )  # fmt: skip
