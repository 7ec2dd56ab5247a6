"""Checks the baseline file: its form, reading it, naming its damage, and older files."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from made_up_records import (
    H200,
    KERNEL,
    case_of,
    measurement_of,
    path_in,
    record,
    result_of,
    sessions,
)

from pytest_gpukern.baseline import codec
from pytest_gpukern.baseline.codec import MIGRATIONS, SCHEMA, as_stored, load, parse, render
from pytest_gpukern.baseline.record import (
    Baseline,
    Epoch,
    OutputAccuracy,
    Record,
    RecordedSession,
    RecordedTime,
    SessionEntry,
)
from pytest_gpukern.gate.comparability import Conditions
from pytest_gpukern.gate.judge import Basis, judge
from pytest_gpukern.values.result import KernelFacts
from pytest_gpukern.values.untrusted_json import FileError
from pytest_gpukern.values.verdict_table import VerdictKind

NOWHERE = Path("vector_exp.nvidia-h200.json")


@pytest.fixture
def folder(tmp_path):
    """Returns a folder with one recorded case."""
    report = record("create", result_of(case_of(tmp_path)))
    assert report.written == (path_in(tmp_path),)
    return tmp_path


# --- what the file looks like and how it is read --------------------------------------------------


def test_a_recorded_case_is_found_again_with_its_times_and_conditions(folder):
    (time,) = sessions(folder)
    assert (time.median_ns, time.low_ns, time.high_ns, time.n) == (50_000.0, 49_950.0, 50_050.0, 11)
    assert time.conditions == Conditions(1, {"n": 1000}, H200)
    found = judge([measurement_of()], Basis([time], time.conditions, threshold=0.02, jitter_ns=0))
    assert found.kind is VerdictKind.SAME


def test_the_file_is_sorted_versioned_rounded_and_a_measurement_is_a_line(folder):
    text = path_in(folder).read_text()
    content = json.loads(text)
    assert content["schema"] == 2
    assert list(content) == sorted(content)
    assert text.endswith("}\n")
    (line,) = [line.strip() for line in text.splitlines() if f'"{KERNEL}"' in line]
    unknown = "null, " * 6
    assert line == f'"{KERNEL}": [11, 50000, 49950, 50050, 49775, 49875, 50125, 50225, {unknown}50000]'
    assert content["columns"][:4] == ["n", "median_ns", "low_ns", "high_ns"]
    (epoch,) = content["records"]["vector_exp-numba-n=1000"]["epochs"]
    (session,) = epoch["sessions"]
    assert session["first_call_ns"] == 123457000  # six significant digits
    assert epoch["correctness"]["out"] == {"max_abs": 1e-7, "max_rel": 2.12346e-7, "max_ulp": 1}
    assert content["fingerprints"][session["fingerprint"]]["driver"] == "580.159"


def test_unknown_fields_are_kept_when_the_file_is_rewritten(folder):
    path = path_in(folder)
    content = json.loads(path.read_text())
    record_ = content["records"]["vector_exp-numba-n=1000"]
    places = [content, record_, record_["epochs"][0], record_["epochs"][0]["sessions"][0]]
    places.append(places[-2]["correctness"]["out"])
    for place in places:
        place["from_the_future"] = {"x": [1, 2.5, None]}
    content["columns"].insert(2, "watts")
    places[-2]["times"][KERNEL].insert(2, 350)
    path.write_text(json.dumps(content))
    record("create", result_of(case_of(folder, "cupy")))
    assert path.read_text().count('"from_the_future": {"x": [1, 2.5, null]}') == len(places)
    content = json.loads(path.read_text())
    assert content["columns"][-1] == "watts"
    row = content["records"]["vector_exp-numba-n=1000"]["epochs"][0]["sessions"][0]["times"][KERNEL]
    assert (row[1], row[-1]) == (50_000, 350)


CUPTI = "kernel/cupti/cold"
SEEN = KernelFacts("f(int)", 40, 128, 3072, grid=(63, 1, 1), block=(256, 1, 1), symbol="_Z1fi")


def by_both_timers(case, **changes):
    """Returns a result with CUPTI's time, the events' beside it, and what is known of the kernel."""
    clocks = {"clocks": {"sm_mhz": 1980.0, "memory_mhz": 3201}}
    main = dataclasses.replace(measurement_of(timer="cupti"), observations=clocks)
    other = dataclasses.replace(measurement_of(53_000.0), beside=True, fixed_cost_ns=2900.123456)
    facts = dataclasses.replace(SEEN, blocks_per_sm=6, occupancy=0.75, machine_code_sha256="beef")
    grids = [dataclasses.replace(facts, grid=(n, 1, 1)) for n in (63, 1, 63)]
    found = {"measurements": (main, other), "kernels": tuple(grids), "compile_ns": 3e8}
    return result_of(case, **{**found, **changes})


def stored(folder):
    return load(path_in(folder)).cases["vector_exp-numba-n=1000"].epochs[-1].sessions


def test_both_timers_are_recorded_with_clocks_and_what_a_timer_reads_for_nothing(tmp_path):
    record("create", by_both_timers(case_of(tmp_path)))
    (session,) = stored(tmp_path)
    main, other = session.measurements[CUPTI], session.measurements[KERNEL]
    assert (main.median_ns, main.fixed_cost_ns, main.sm_mhz, main.memory_mhz) == (50_000.0, None, 1980, 3201)
    assert (other.median_ns, other.fixed_cost_ns, other.sm_mhz) == (53_000.0, 2900.12, None)
    for key, median_ns in ((CUPTI, 50_000.0), (KERNEL, 53_000.0)):
        (time,) = sessions(tmp_path, key=key)
        assert (time.key, time.median_ns) == (key, median_ns)


def test_a_kernel_is_recorded_once_for_each_grid_that_it_is_launched_with(tmp_path):
    record("create", by_both_timers(case_of(tmp_path)))
    (session,) = stored(tmp_path)
    first, second = session.kernels
    assert first == KernelFacts("f(int)", 40, 128, 3072, "beef", grid=(63, 1, 1), block=(256, 1, 1))
    assert second == dataclasses.replace(first, grid=(1, 1, 1))
    assert session.compile_ns == 3e8


def test_a_session_keeps_how_long_its_test_took_in_three_digits(tmp_path):
    record("create", result_of(case_of(tmp_path), duration_s=12.3456))
    (session,) = stored(tmp_path)
    assert session.duration_s == 12.3
    assert path_in(tmp_path).read_text().count('"duration_s": 12.3,') == 1


def broken(folder, *way, value):
    """Returns the recorded file with one value replaced, or removed if `value` is …"""
    content = json.loads(path_in(folder).read_text())
    place = content
    for step in way[:-1]:
        place = place[step]
    if value is ...:
        del place[way[-1]]
    else:
        place[way[-1]] = value
    return json.dumps(content).encode()


CASE = ("records", "vector_exp-numba-n=1000")
EPOCH = (*CASE, "epochs", 0)
SESSION = (*EPOCH, "sessions", 0)
TIME = (*SESSION, "times", KERNEL)
SESSION_WHERE = "records['vector_exp-numba-n=1000'].epochs[0].sessions[0]"


@pytest.mark.parametrize(
    ("way", "value", "words"),
    [
        ((*TIME, 1), "abc", f"{SESSION_WHERE}.times['{KERNEL}'].median_ns: expected a number"),
        ((*TIME, 1), 0, "median_ns: expected a number that is positive, found 0"),
        ((*TIME, 1), 10**400, "is out of range"),
        ((*TIME, 2), 50_001, "expected low_ns ≤ median_ns ≤ high_ns"),
        ((*TIME, 4), None, "q05_ns: is missing"),
        ((*TIME, 4), 60_000, "expected q05_ns ≤ q25_ns ≤ q50_ns ≤ q75_ns ≤ q95_ns, found [60000.0"),
        (TIME, [1] * 30, "15 values at most, one per column"),
        ((*SESSION, "times"), {}, "times: expected at least one measurement"),
        ((*SESSION, "times", "kernel"), [], "expected a key of the form scope/timer/cache"),
        ((*SESSION, "recorded"), "yesterday", "recorded: expected a time such as 2026-11-20T10:00:00Z"),
        ((*SESSION, "fingerprint"), "gone", "fingerprint: expected one of the keys under fingerprints"),
        ((*SESSION, "session"), "0123abcd", "session: expected one of the keys under sessions"),
        ((*SESSION, "duration_s"), -1, "duration_s: expected a number that is not negative, found -1"),
        ((*SESSION, "duration_s"), "8 s", "duration_s: expected a number that is not negative, found '8 s'"),
        ((*SESSION, "duration_s"), math.nan, "holds NaN, which is not a JSON number"),
        ((*SESSION, "kernels"), [{"name": "f"}], "kernels[0].registers: is missing"),
        ((*EPOCH, "sessions"), [], "sessions: expected a list with at least one entry, found []"),
        ((*EPOCH, "problem_version"), "1", "problem_version: expected a whole number"),
        (("schema",), ..., "schema: is missing"),
        (("columns",), ["n", "n"], "columns: expected names that are all different"),
        (
            ("sessions",),
            {"0123abcd": {"recorded": "2026-11-20T10:00:00Z", "fingerprint": "no"}},
            "fingerprint",
        ),
    ],
)
def test_a_damaged_field_is_an_error_naming_file_field_and_remedy(folder, way, value, words):
    content = broken(folder, *way, value=value)
    with pytest.raises(FileError) as caught:
        parse(content, NOWHERE)
    message = str(caught.value)
    assert words in message
    assert message.startswith(str(NOWHERE))
    assert "--gpukern-baseline=create" in message


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b" \n", "is empty"),
        (b"[]", "expected an object, found []"),
        (b'{"schema": 1', "is not complete JSON: "),
        (b'{\n<<<<<<< HEAD\n "schema": 1,', "merge conflict. Take one side with git checkout --ours FILE"),
        (b'{"schema": 1, "x": "\\ud800"}', "is not UTF-8 text"),
        (b'{"schema": 1, "schema": 1}', "holds the key 'schema' twice"),
        (b'{"schema": NaN}', "holds NaN, which is not a JSON number"),
        (b'{"schema": ' + b"[" * 200_000 + b"]" * 200_000 + b"}", "nested too deeply"),
    ],
)
def test_a_file_that_is_no_baseline_is_an_error_in_words(content, words):
    with pytest.raises(FileError) as caught:
        parse(content, NOWHERE)
    assert words in str(caught.value)


def test_a_newer_file_asks_for_an_upgrade_and_is_left_alone(folder):
    path = path_in(folder)
    path.write_text('{"schema": 7, "cases": "whatever"}')
    with pytest.raises(FileError, match=r"newer pytest-gpukern \(schema 7, this one reads 2\)"):
        sessions(folder)
    report = record("update", result_of(case_of(folder)))
    assert [error.where for error in report.errors] == ["schema"]
    assert (report.written, report.updated) == ((), ())
    assert path.read_text() == '{"schema": 7, "cases": "whatever"}'


def test_an_older_file_is_migrated_when_read(folder, monkeypatch):
    content = json.loads(path_in(folder).read_text())
    content["schema"] = 0
    content["cases"] = content.pop("records")
    old = json.dumps(content).encode()
    with pytest.raises(FileError, match="schema 0 is unknown"):
        parse(old, NOWHERE)

    def rename(data):
        return {**{k: v for k, v in data.items() if k != "cases"}, "records": data["cases"]}

    monkeypatch.setitem(MIGRATIONS, 0, rename)
    monkeypatch.setitem(MIGRATIONS, 1, lambda data: data)
    assert parse(old, NOWHERE) == load(path_in(folder))
    with pytest.raises(FileError, match="damaged content of schema 0: KeyError: 'cases'"):
        parse(b'{"schema": 0}', NOWHERE)


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


# --- round trip and random damage -----------------------------------------------------------------

texts = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12)
numbers = st.floats(min_value=0, max_value=1e15)
plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=5,
)
objects = st.dictionaries(texts, plain, max_size=3)
moments = st.datetimes().map(lambda moment: moment.isoformat() + "+00:00")


unknown_in_a_row = st.dictionaries(st.just("zz_future"), plain.filter(lambda value: value is not None))
unknown = st.dictionaries(st.sampled_from(["zz_future", "zz_comment"]), plain, max_size=1)


@st.composite
def recorded_times(draw):
    low, median, high = sorted(draw(st.tuples(numbers, numbers, numbers)))
    median = median or 1.0
    points = sorted(draw(st.tuples(*[numbers] * 5)))
    q05, q25, q50, q75, q95 = (max(median, q) if i > 2 else min(median, q) for i, q in enumerate(points))
    return RecordedTime(
        median_ns=median,
        low_ns=low,
        high_ns=max(high, median),
        n=draw(st.integers(1, 10**6)),
        q05_ns=q05,
        q25_ns=q25,
        q50_ns=draw(st.none() | st.just(q50)),
        q75_ns=q75,
        q95_ns=q95,
        fixed_cost_ns=draw(st.none() | numbers),
        sm_mhz=draw(st.none() | numbers),
        memory_mhz=draw(st.none() | numbers),
        invalid_samples=draw(st.none() | st.integers(0, 10**6)),
        jitter_ns=draw(st.none() | numbers),
        mean_ns=draw(st.none() | numbers),
        extra=draw(unknown_in_a_row),
    )


accuracies = st.builds(
    OutputAccuracy,
    st.none() | numbers,
    st.none() | numbers,
    st.none() | numbers,
    st.none() | texts,
    extra=unknown,
)
whole = st.integers(0, 10**9)
recorded_kernels = st.builds(
    KernelFacts,
    name=texts,
    registers=whole,
    local_bytes=whole,
    shared_bytes=whole,
    machine_code_sha256=st.none() | texts,
    grid=st.none() | st.tuples(whole, whole, whole),
    block=st.none() | st.tuples(whole, whole, whole),
    extra=unknown,
)
keys = st.sampled_from([KERNEL, "kernel/host/hot", "end_to_end/host/cold"])
recorded_sessions = st.builds(
    RecordedSession,
    recorded=moments,
    fingerprint=st.sampled_from(["f1", "f2"]),
    first_call_ns=st.none() | numbers,
    correctness=st.dictionaries(texts, accuracies, max_size=2),
    measurements=st.dictionaries(keys, recorded_times(), min_size=1, max_size=2),
    compile_ns=st.none() | numbers,
    kernels=st.lists(recorded_kernels, max_size=2).map(tuple),
    session=st.none() | st.sampled_from(["s1", "s2"]),
    duration_s=st.none() | numbers,
    extra=unknown,
)
entries = st.builds(
    SessionEntry,
    recorded=moments,
    fingerprint=st.sampled_from(["f1", "f2"]),
    canaries=st.dictionaries(texts, st.none() | numbers, max_size=2),
    extra=unknown,
)
epochs = st.builds(
    Epoch,
    opened=moments,
    reason=st.none() | texts,
    problem_version=st.integers(0, 10**6),
    measured_point=objects,
    sessions=st.lists(recorded_sessions, min_size=1, max_size=3).map(tuple),
    extra=unknown,
)
records = st.builds(
    Record, point=objects, epochs=st.lists(epochs, min_size=1, max_size=3).map(tuple), extra=unknown
)
baselines = st.builds(
    Baseline,
    problem=texts,
    device_model=texts,
    fingerprints=st.fixed_dictionaries({"f1": objects, "f2": objects}),
    cases=st.dictionaries(texts, records, max_size=2),
    sessions=st.fixed_dictionaries({"s1": entries, "s2": entries}),
    extra=unknown,
)


@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(baselines)
def test_what_is_written_is_read_back_and_written_the_same(baseline):
    content = render(baseline)
    assert parse(content, NOWHERE) == baseline
    assert render(parse(content, NOWHERE)) == content


# --- files of schema 1, which the first releases wrote ---------------------------------------------

OLD = Path(__file__).parents[2] / "data" / "baseline-schema-1.json"
CONTENT = json.loads(OLD.read_text())
OLD_CASE = min(CONTENT["cases"])
NAME = "discount_streamed"


def edited(change):
    content = json.loads(OLD.read_text())
    change(content["cases"][OLD_CASE]["epochs"][0]["sessions"][0])
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


def test_unknown_fields_of_an_old_file_are_kept():
    def change(session):
        session["weather"] = "fine"
        session["measurements"]["end_to_end/host/cold"]["watts"] = 350

    baseline = parse(edited(change), OLD)
    assert parse(render(baseline), OLD) == baseline
    (session,) = baseline.cases[OLD_CASE].epochs[0].sessions
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
    assert f"records['{OLD_CASE}'].epochs[0].sessions[0].{where}" in str(caught.value)


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
