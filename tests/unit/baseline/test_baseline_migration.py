"""Files of schema 1, which the first releases wrote, are read and rewritten in the present form."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_up_records import case_of, record, result_of

from pytest_gpukern.baseline import codec
from pytest_gpukern.baseline.codec import SCHEMA, as_stored, load, parse, render
from pytest_gpukern.baseline.store import Store
from pytest_gpukern.values.untrusted_json import FileError

OLD = Path(__file__).parents[2] / "data" / "baseline-schema-1.json"
CONTENT = json.loads(OLD.read_text())
CASE = min(CONTENT["cases"])
NAME = "discount_streamed"


def edited(change):
    content = json.loads(OLD.read_text())
    change(content["cases"][CASE]["epochs"][0]["sessions"][0])
    return json.dumps(content).encode()


def test_nothing_that_an_old_file_says_is_lost():
    baseline = load(OLD)
    for case_id, old in CONTENT["cases"].items():
        (epoch,) = baseline.cases[case_id].epochs
        (was,) = old["epochs"]
        (session,), (said,) = epoch.sessions, was["sessions"]
        assert baseline.cases[case_id].point == old["point"]
        assert (epoch.opened, epoch.measured_point) == (was["opened"], was["measured_point"])
        assert (session.recorded, session.fingerprint) == (said["recorded"], said["fingerprint"])
        assert (session.first_call_ns, session.compile_ns) == (said["first_call_ns"], said["compile_ns"])
        assert as_stored(session.correctness["cv"]) == said["correctness"]["cv"]
        assert [as_stored(kernel) for kernel in session.kernels] == said["kernels"]
        for key, time in said["measurements"].items():
            found = session.measurements[key]
            assert {name: getattr(found, name) for name in time} == {
                **time,
                "quantiles_ns": tuple(time["quantiles_ns"]),
            }
    assert baseline.fingerprints == CONTENT["fingerprints"]


def test_it_is_rewritten_in_the_present_form_with_the_next_write(tmp_path):
    path = tmp_path / f"{NAME}.nvidia-h200.json"
    path.write_bytes(OLD.read_bytes())
    before = load(path)
    assert record("create", result_of(case_of(tmp_path, name=NAME))).written == (path,)
    content = json.loads(path.read_text())
    assert content["schema"] == SCHEMA
    after = load(path)
    assert {case_id: after.cases[case_id] for case_id in before.cases} == before.cases


def test_comparing_leaves_an_old_file_as_it_is(tmp_path):
    path = tmp_path / f"{NAME}.nvidia-h200.json"
    path.write_bytes(OLD.read_bytes())
    store = Store("compare")
    assert store.baseline(case_of(tmp_path, name=NAME), "nvidia-h200").cases.keys() == CONTENT["cases"].keys()
    assert path.read_bytes() == OLD.read_bytes()


def test_unknown_fields_of_an_old_file_are_kept():
    def change(session):
        session["weather"] = "fine"
        session["measurements"]["end_to_end/host/cold"]["watts"] = 350

    baseline = parse(edited(change), OLD)
    assert parse(render(baseline), OLD) == baseline
    (session,) = baseline.cases[CASE].epochs[0].sessions
    assert session.extra == {"weather": "fine"}
    assert session.measurements["end_to_end/host/cold"].extra == {"watts": 350}


@pytest.mark.parametrize(
    ("change", "where"),
    [
        (
            lambda session: session["measurements"]["end_to_end/host/cold"].update(median_ns="abc"),
            "times['end_to_end/host/cold'].median_ns: expected a number",
        ),
        (
            lambda session: session["measurements"]["end_to_end/host/cold"].update(quantiles_ns=[1]),
            "times['end_to_end/host/cold'].q05_ns: is missing",
        ),
        (lambda session: session["measurements"].update(x=3), "times['x']: expected a list"),
        (lambda session: session.update(measurements=[]), "times: expected an object"),
        (lambda session: session.pop("measurements"), "times: is missing"),
        (lambda session: session.pop("fingerprint"), "fingerprint: is missing"),
    ],
)
def test_a_damaged_field_of_an_old_file_is_named_as_the_present_form_has_it(change, where):
    with pytest.raises(FileError) as caught:
        parse(edited(change), OLD)
    assert f"records['{CASE}'].epochs[0].sessions[0].{where}" in str(caught.value)


def ways(value, way=()):
    yield way
    steps = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for step, inner in steps:
        yield from ways(inner, (*way, step))


anything = st.sampled_from([None, True, -1, 0, 2.5, "", "text", [], [1], {}, {"a": [None]}, {"a": {"b": 1}}])


@settings(max_examples=300)
@given(st.sampled_from(sorted(filter(None, ways(CONTENT)), key=str)), anything)
def test_an_old_file_with_any_value_replaced_loads_or_raises_a_baseline_error(way, value):
    content = json.loads(OLD.read_text())
    place = content
    for step in way[:-1]:
        place = place[step]
    place[way[-1]] = value
    try:
        found = parse(json.dumps(content).encode(), OLD)
    except FileError:
        return
    assert parse(render(found), OLD) == found


COMMITTED = sorted(Path(__file__).parents[3].glob("suites/*/baselines/*.json"))


@pytest.mark.parametrize("path", COMMITTED, ids=lambda path: path.stem)
def test_both_ways_of_reading_find_the_same_and_the_quick_one_is_taken_for_what_we_wrote(path, monkeypatch):
    content = path.read_bytes()
    assert codec._quickly(content) is not None
    quick = parse(content, path)
    assert render(quick) == content
    monkeypatch.setattr(codec, "_quickly", lambda content: None)
    assert parse(content, path) == quick


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b'"problem": "matmul"', b'"problem": "x", "problem": "matmul"'),
        (b'"problem": "matmul"', b'"future": 1, "problem": "matmul"'),
        (b'"problem": "matmul"', b'"problem" : "x", "problem": "matmul"'),
        (b'"registers": ', b'"future": null, "registers": '),
        (b'"registers": ', b'"registers": 7, "registers": '),
        (b'"max_abs": ', b'"bits": null, "max_abs": '),
    ],
)
def test_a_key_that_stands_twice_or_is_not_known_is_never_read_quickly(old, new):
    (path,) = [path for path in COMMITTED if path.stem.startswith("matmul.")]
    assert codec._quickly(path.read_bytes().replace(old, new, 1)) is None
