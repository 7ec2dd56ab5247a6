"""The baseline file, what may be written to it, and what happens when it cannot be read or written."""

from __future__ import annotations

import dataclasses
import errno
import json
import os
import stat
import threading
from datetime import timedelta
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from made_up_records import (
    H200,
    KERNEL,
    START,
    case_of,
    measurement_of,
    path_in,
    record,
    result_of,
    sessions,
    store_of,
)

from pytest_gpukern.baseline.codec import COLUMNS, MIGRATIONS, load, parse, render
from pytest_gpukern.baseline.merge import Refusal
from pytest_gpukern.baseline.record import (
    Baseline,
    Epoch,
    OutputAccuracy,
    Record,
    RecordedSession,
    RecordedTime,
    SessionEntry,
)
from pytest_gpukern.baseline.store import Store, WriteReport
from pytest_gpukern.gate.comparability import Conditions
from pytest_gpukern.gate.judge import Basis, judge
from pytest_gpukern.values import atomic_file as file
from pytest_gpukern.values.result import Correctness, KernelFacts, OutputError, VerdictKind
from pytest_gpukern.values.untrusted_json import FileError

NOWHERE = Path("vector_exp.nvidia-h200.json")


@pytest.fixture
def folder(tmp_path):
    """A folder with one recorded case."""
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
    assert line == f'"{KERNEL}": [11, 50000, 49950, 50050, 49775, 49875, 50125, 50225]'
    assert content["columns"][:4] == ["n", "median_ns", "low_ns", "high_ns"]
    (epoch,) = content["records"]["vector_exp-numba-n=1000"]["epochs"]
    (session,) = epoch["sessions"]
    assert session["first_call_ns"] == 123457000  # six significant digits
    assert epoch["correctness"]["out"] == {"max_abs": 1e-7, "max_rel": 2.12346e-7, "max_ulp": 1}
    assert content["fingerprints"][session["fingerprint"]]["driver"] == "580.159"


def test_a_fingerprint_is_stored_once_however_many_sessions_share_it(folder):
    first, second = case_of(folder, "cupy"), case_of(folder, "pycuda")
    other = result_of(second, fingerprint={"driver": "590"})
    record("create", result_of(first), result_of(first), other)
    content = json.loads(path_in(folder).read_text())
    assert sorted(each["driver"] for each in content["fingerprints"].values()) == ["580.159", "590"]


def test_a_fingerprint_that_no_session_needs_any_more_is_dropped(folder):
    for driver in "abcde":
        record("update", result_of(case_of(folder), fingerprint={"driver": driver}))
    content = json.loads(path_in(folder).read_text())
    drivers = sorted(each["driver"] for each in content["fingerprints"].values())
    assert drivers == ["580.159", "c", "d", "e"]


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
    """A result with CUPTI's time, the events' beside it, and what is known of the kernel."""
    main = dataclasses.replace(measurement_of(timer="cupti"), state={"sm_mhz": 1980.0, "memory_mhz": 3201})
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


def test_a_kernels_name_is_kept_short(tmp_path):
    facts = by_both_timers(case_of(tmp_path)).kernels[0]
    long = dataclasses.replace(facts, name=f"g<{'int, ' * 40}int>(float*)")
    record("create", by_both_timers(case_of(tmp_path), kernels=(long,)))
    assert stored(tmp_path)[0].kernels[0].name == "g<…>(…)"


def test_what_is_not_known_is_not_in_the_file(folder):
    text = path_in(folder).read_text()
    assert not any(f'"{name}"' in text for name in ("compile_ns", "kernels", "bits", "canaries", "reason"))


def test_a_timer_that_a_record_lacks_is_added_without_touching_the_other(folder):
    report = record("create", by_both_timers(case_of(folder)))
    assert report.added == ("vector_exp-numba-n=1000",)
    first, second = stored(folder)
    assert set(first.measurements) == {KERNEL}
    assert set(second.measurements) == {CUPTI}


def test_no_number_of_a_session_is_recorded_if_the_one_beside_it_is_invalid(tmp_path):
    result = by_both_timers(case_of(tmp_path))
    main, other = result.measurements
    odd = dataclasses.replace(other, invalid="ran outside the timed stream")
    report = record("create", dataclasses.replace(result, measurements=(main, odd)))
    (refusal,) = report.refused
    assert refusal.reason == "kernel/event/cold is INVALID: ran outside the timed stream"


KERNEL_FACTS = {"name": "f", "registers": 1, "local_bytes": 0, "shared_bytes": 0}


@pytest.mark.parametrize(
    ("change", "where"),
    [
        (lambda session: session["times"][KERNEL].append("fast"), ".times[{}].sm_mhz"),
        (lambda session: session["times"][KERNEL].extend([1, 2, -1]), ".times[{}].invalid_samples"),
        (lambda session: session["times"][KERNEL].extend(range(20)), ".times[{}]"),
        (lambda session: session["times"].update({KERNEL: {}}), ".times[{}]"),
        (lambda session: session.update(session="0123abcd"), ".session"),
        (lambda session: session.update(kernels=[{**KERNEL_FACTS, "grid": [1, 2]}]), ".kernels[0].grid"),
        (lambda session: session.update(kernels=[{**KERNEL_FACTS, "block": [1, 2, "x"]}]), ".block[2]"),
        (lambda session: session.update(compile_ns=-1), ".compile_ns"),
        (lambda session: session.update(kernels={}), ".kernels"),
        (lambda session: session.update(kernels=[{"name": "f"}]), ".kernels[0].registers"),
    ],
)
def test_a_damaged_optional_field_is_named(folder, change, where):
    content = json.loads(path_in(folder).read_text())
    change(content["records"]["vector_exp-numba-n=1000"]["epochs"][0]["sessions"][0])
    path_in(folder).write_text(json.dumps(content))
    with pytest.raises(FileError) as caught:
        load(path_in(folder))
    assert caught.value.where.endswith(where.format(repr(KERNEL)))


def test_an_id_that_is_not_ascii_is_stored_readably(tmp_path):
    record("create", result_of(case_of(tmp_path, "größe→1")))
    assert "größe→1" in path_in(tmp_path).read_text(encoding="utf-8")
    assert sessions(tmp_path, case_of(tmp_path, "größe→1"))


def broken(folder, *way, value):
    """The recorded file with one value replaced, or removed if `value` is …"""
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
        (
            (*TIME, COLUMNS.index("median_ns")),
            "abc",
            f"{SESSION_WHERE}.times['{KERNEL}'].median_ns: expected a number",
        ),
        ((*TIME, COLUMNS.index("median_ns")), 0, "median_ns: expected a number that is positive, found 0"),
        ((*TIME, COLUMNS.index("median_ns")), True, "median_ns: expected a number"),
        ((*TIME, COLUMNS.index("median_ns")), 10**400, "is out of range"),
        ((*TIME, COLUMNS.index("low_ns")), 50_001, "expected low_ns ≤ median_ns ≤ high_ns"),
        ((*TIME, COLUMNS.index("n")), 1.5, "n: expected a whole number of at least 1, found 1.5"),
        ((*TIME, 4), None, "q05_ns: is missing"),
        ((*TIME, 4), 60_000, "expected q05_ns ≤ q25_ns ≤ q50_ns ≤ q75_ns ≤ q95_ns, found [60000.0"),
        ((*TIME, COLUMNS.index("high_ns")), None, "high_ns: is missing"),
        ((*SESSION, "times"), {}, "times: expected at least one measurement"),
        ((*SESSION, "times", "kernel"), [], "expected a key of the form scope/timer/cache"),
        ((*SESSION, "recorded"), "yesterday", "recorded: expected a time such as 2026-11-20T10:00:00Z"),
        ((*SESSION, "recorded"), "2026-11-20T10:00:00", "recorded: expected a time such as"),
        ((*SESSION, "fingerprint"), "gone", "fingerprint: expected one of the keys under fingerprints"),
        ((*EPOCH, "correctness", "out", "max_abs"), -1, "['out'].max_abs: expected a number that is not"),
        ((*EPOCH, "sessions"), [], "sessions: expected a list with at least one entry, found []"),
        ((*EPOCH, "problem_version"), "1", "problem_version: expected a whole number"),
        ((*EPOCH, "reason"), 3, "reason: expected a text, found 3"),
        ((*CASE, "epochs"), None, "epochs: expected a list"),
        ((*CASE, "point"), [], "point: expected an object, found []"),
        (("fingerprints",), [], "fingerprints: expected an object"),
        (("problem",), "", "problem: expected a text"),
        (("schema",), "1", "schema: expected a whole number"),
        (("schema",), ..., "schema: is missing"),
        (("records",), ..., "records: is missing"),
        (("columns",), ["n", "n"], "columns: expected names that are all different"),
        (("columns",), "n", "columns: expected a list"),
        (
            ("sessions",),
            {"0123abcd": {"recorded": "2026-11-20T10:00:00Z", "fingerprint": "no"}},
            "fingerprint",
        ),
        (("sessions",), ..., "sessions: is missing"),
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
        (b"", "is empty"),
        (b" \n", "is empty"),
        (b"[]", "expected an object, found []"),
        (b'{"schema": 1', "is no complete JSON: "),
        (b"\xff\xfe{}", "is not UTF-8 text"),
        (b'{"schema": 1, "x": "\\ud800"}', "is not UTF-8 text"),
        (b'{"schema": 1, "schema": 1}', "holds the key 'schema' twice"),
        (b'{"schema": NaN}', "holds NaN, which is no JSON number"),
        (b'{"schema": -Infinity}', "holds -Infinity"),
        (b'{"schema": 1e999}', "holds the number 1e999, which is out of range"),
        (b'{"schema": 1, "x": ' + b"[" * 60 + b"]" * 60 + b"}", "nested too deeply"),
        (b'{"schema": ' + b"9" * 5000 + b"}", "is out of range"),
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


VALID = render(
    Baseline(
        "vector_exp",
        H200,
        {"f1": {"driver": "580"}},
        {
            "a": Record(
                {"n": 1},
                (
                    Epoch(
                        "2026-11-20T10:00:00Z",
                        1,
                        (
                            RecordedSession(
                                "2026-11-20T10:00:00Z",
                                "f1",
                                1.0,
                                {"out": OutputAccuracy(0.0, None, 1.0)},
                                {
                                    KERNEL: RecordedTime(
                                        9, 2.0, 1.0, 3.0, 1.0, 1.5, 2.5, 3.0, 1980.0, 3201.0, None, 0.5
                                    )
                                },
                                4.0,
                                (
                                    KernelFacts(
                                        "f(int)", 40, 0, 1024, "beef", grid=(1, 2, 3), block=(4, 5, 6)
                                    ),
                                ),
                                "s1",
                            ),
                        ),
                    ),
                ),
            )
        },
        {"s1": SessionEntry("2026-11-20T10:00:00Z", "f1", {"copy": 1.0})},
    )
)


def loads_or_says_why(content):
    try:
        found = parse(content, NOWHERE)
    except FileError:
        return
    assert parse(render(found), NOWHERE) == found


@settings(max_examples=300)
@given(st.lists(st.tuples(st.integers(0, len(VALID) - 1), st.integers(0, 255)), min_size=1, max_size=4))
def test_flipped_bytes_load_or_raise_a_baseline_error(flips):
    content = bytearray(VALID)
    for position, byte in flips:
        content[position] = byte
    loads_or_says_why(bytes(content))


@settings(max_examples=100)
@given(st.integers(0, len(VALID) - 2))
def test_a_truncated_file_raises_a_baseline_error(length):
    with pytest.raises(FileError):
        parse(VALID[:length], NOWHERE)


def ways(value, way=()):
    yield way
    steps = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for step, inner in steps:
        yield from ways(inner, (*way, step))


@settings(max_examples=300)
@given(st.sampled_from(sorted(ways(json.loads(VALID)), key=str)), plain)
def test_a_replaced_value_loads_or_raises_a_baseline_error(way, value):
    content = json.loads(VALID)
    place = content
    for step in way[:-1]:
        place = place[step]
    if way:
        place[way[-1]] = value
    loads_or_says_why(json.dumps(content if way else value).encode())


@settings(max_examples=50)
@given(st.binary(max_size=60))
def test_any_bytes_load_or_raise_a_baseline_error(content):
    loads_or_says_why(content)


# --- which sessions a case is compared with -------------------------------------------------------


def test_another_timer_of_the_same_scope_is_offered_so_that_it_can_be_called_uncomparable(folder):
    (time,) = sessions(folder, key="kernel/host/cold")
    assert time.key == KERNEL
    basis = Basis([time], time.conditions, threshold=0.02, jitter_ns=0)
    found = judge([measurement_of(timer="host")], basis)
    assert found.reason == "recorded as kernel/event/cold, now kernel/host/cold"


def test_another_scope_is_new_not_uncomparable(folder):
    assert sessions(folder, key="end_to_end/event/cold") == ()


def test_a_case_recorded_only_on_other_devices_names_them(folder):
    record("create", result_of(case_of(folder)), model_key="nvidia-a100")
    found = sessions(folder, model_key="nvidia-l4")
    now = Conditions.of(case_of(folder), device_model="nvidia-l4")
    verdict = judge([measurement_of()], Basis(found, now, threshold=0.02, jitter_ns=0))
    assert verdict.reason == "recorded on nvidia-a100 and nvidia-h200, now nvidia-l4"


def test_a_name_that_begins_another_is_not_taken_for_its_device(folder):
    record("create", result_of(case_of(folder, name="vector_exp.wide")))
    assert sessions(folder, case_of(folder, name="vector_exp.wide"))
    assert [time.conditions.device_model for time in sessions(folder, model_key="nvidia-l4")] == [H200]


def test_an_overriding_folder_replaces_the_one_beside_the_suite(folder, tmp_path_factory):
    elsewhere = tmp_path_factory.mktemp("elsewhere") / "deep"
    report = record("create", result_of(case_of(folder)), directory_override=elsewhere)
    assert report.written == (path_in(elsewhere),)
    assert store_of("compare", directory_override=elsewhere).sessions_for(case_of("/no"), H200, KERNEL)


@pytest.mark.parametrize(
    "name", ["", ".", "..", ".hidden", "a/b", "../a", "a\\b", "a..b", "a.", "a b", "a\0b", "a\n", "x" * 300]
)
def test_a_name_that_could_leave_the_folder_is_refused(tmp_path, name):
    case = case_of(tmp_path, name=name)
    with pytest.raises(FileError, match="baseline name"):
        sessions(tmp_path, case)
    report = record("create", result_of(case))
    assert "baseline name" in report.refused[0].reason
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("key", ["", "../h200", "a.b", "h200/x"])
def test_a_device_key_that_could_leave_the_folder_is_refused(tmp_path, key):
    with pytest.raises(FileError, match="device model key"):
        sessions(tmp_path, model_key=key)


# --- modes ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["compare", "off"])
def test_compare_and_off_write_nothing(folder, mode):
    before = path_in(folder).read_bytes()
    changed = [result_of(case_of(folder), 1.0), result_of(case_of(folder, "cupy"))]
    assert record(mode, *changed) == WriteReport()
    assert path_in(folder).read_bytes() == before


def test_off_reads_nothing_not_even_a_damaged_file(folder):
    path_in(folder).write_text("damaged")
    assert sessions(folder, mode="off") == ()


def test_an_unknown_mode_is_refused():
    with pytest.raises(ValueError, match="overwrite"):
        Store("overwrite")


def test_create_leaves_a_recorded_case_untouched_and_adds_a_missing_one(folder):
    before = json.loads(path_in(folder).read_text())
    case, missing = case_of(folder), case_of(folder, "cupy")
    report = record("create", result_of(case, 99_999.0), result_of(missing))
    assert (report.kept, report.added, report.updated) == ((case.id,), (missing.id,), ())
    after = json.loads(path_in(folder).read_text())
    assert after["records"][case.id] == before["records"][case.id]
    assert sessions(folder, missing)


def test_what_would_be_written_is_known_before_further_sessions_are_spent_on_it(folder):
    case, missing = case_of(folder), case_of(folder, "cupy")
    both = (measurement_of(), measurement_of(70_000.0, scope="end_to_end"))
    create, update, compare = (store_of(mode) for mode in ("create", "update", "compare"))
    assert not create.would_write(result_of(case), model_key=H200)
    assert create.would_write(result_of(case, measurements=both), model_key=H200)
    assert create.would_write(result_of(missing), model_key=H200)
    assert update.would_write(result_of(case), model_key=H200)
    assert not update.would_write(result_of(case, simulated=True), model_key=H200)
    assert not compare.would_write(result_of(missing), model_key=H200)


def test_what_somebody_else_refuses_is_in_the_report(folder):
    store = store_of("update")
    store.refuse(case_of(folder), "session 3: failed")
    assert store.flush().refused == (Refusal(case_of(folder).id, "session 3: failed"),)


def test_create_does_not_even_rewrite_a_file_that_lacks_nothing(folder):
    path = path_in(folder)
    path.write_bytes(path.read_bytes() + b"\n")
    report = record("create", result_of(case_of(folder)))
    assert report.written == ()
    assert path.read_bytes().endswith(b"\n\n")


def test_create_adds_a_missing_scope_and_not_the_recorded_one_again(folder):
    case = case_of(folder)
    both = (measurement_of(99_999.0), measurement_of(70_000.0, scope="end_to_end"))
    report = record("create", result_of(case, measurements=both))
    assert report.added == (case.id,)
    assert [time.median_ns for time in sessions(folder)] == [50_000.0]
    assert [time.median_ns for time in sessions(folder, key="end_to_end/event/cold")] == [70_000.0]


def test_create_does_not_mix_problem_versions_or_points_in_an_epoch(folder):
    scope = (measurement_of(scope="end_to_end"),)
    newer = result_of(case_of(folder, version=2), measurements=scope)
    smaller = result_of(case_of(folder, ran=500), measurements=scope)
    for result, words in ((newer, "with problem version 1, now 2"), (smaller, "now {'n': 500}")):
        report = record("create", result)
        assert words in report.refused[0].reason
        assert "--gpukern-baseline=update" in report.refused[0].reason
        assert report.written == ()


def test_several_results_of_a_case_become_the_sessions_of_one_epoch(tmp_path):
    case = case_of(tmp_path)
    record("create", *[result_of(case, 50_000.0 + i) for i in range(5)])
    assert [time.median_ns for time in sessions(tmp_path)] == [50_000.0 + i for i in range(5)]
    content = load(path_in(tmp_path))
    assert len(content.cases[case.id].epochs) == 1


def test_update_opens_an_epoch_with_its_reason_for_what_was_measured_only(folder):
    case, other = case_of(folder), case_of(folder, "cupy")
    record("create", result_of(other))
    before = load(path_in(folder)).cases[other.id]
    report = record("update", result_of(case, 40_000.0), reason="new algorithm")
    assert (report.updated, report.added) == ((case.id,), ())
    content = load(path_in(folder))
    assert content.cases[other.id] == before
    assert [epoch.reason for epoch in content.cases[case.id].epochs] == [None, "new algorithm"]
    assert [time.median_ns for time in sessions(folder)] == [40_000.0]


def test_the_first_epoch_and_the_newest_three_are_kept(folder):
    for i in range(1, 7):
        record("update", result_of(case_of(folder), 1000.0 * i))
    record_ = load(path_in(folder)).cases[case_of(folder).id]
    medians = [epoch.sessions[0].measurements[KERNEL].median_ns for epoch in record_.epochs]
    assert medians == [50_000, 4000, 5000, 6000]
    assert record_.anchor(KERNEL) == record_.epochs[0]
    assert record_.current(KERNEL) == record_.epochs[-1]
    assert record_.current("kernel/host/hot") is None


def test_updating_one_scope_often_never_loses_the_other(folder):
    case = case_of(folder)
    record("create", result_of(case, measurements=(measurement_of(70_000.0, scope="end_to_end"),)))
    record("update", result_of(case, measurements=(measurement_of(60_000.0, scope="end_to_end"),)))
    for i in range(1, 7):
        record("update", result_of(case, 1000.0 * i))
    assert [time.median_ns for time in sessions(folder)] == [6000.0]
    assert [time.median_ns for time in sessions(folder, key="end_to_end/event/cold")] == [60_000.0]


def test_an_update_after_a_new_problem_version_is_comparable_again(folder):
    record("update", result_of(case_of(folder, version=2)))
    (time,) = sessions(folder)
    assert time.conditions.problem_version == 2
    assert [epoch.problem_version for epoch in load(path_in(folder)).cases[case_of(folder).id].epochs] == [
        1,
        2,
    ]


@pytest.mark.parametrize("mode", ["create", "update", "append"])
def test_of_more_than_twenty_sessions_an_epoch_keeps_the_newest(tmp_path, mode):
    record(mode, *[result_of(case_of(tmp_path), 50_000.0 + i) for i in range(22)])
    assert [time.median_ns for time in sessions(tmp_path)] == [50_000 + i for i in range(2, 22)]


def test_sessions_at_different_points_do_not_share_an_epoch(tmp_path):
    report = record("create", result_of(case_of(tmp_path)), result_of(case_of(tmp_path, ran=10)))
    assert len(sessions(tmp_path)) == 1
    assert "differ in problem version or measured point" in report.refused[0].reason


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"simulated": True}, "the simulator's times say nothing about speed"),
        ({"correctness": Correctness.INCORRECT, "diagnosis": "out[3] is 0"}, "INCORRECT: out[3] is 0"),
        ({"measurements": (measurement_of(invalid="throttled"),)}, f"{KERNEL} is INVALID: throttled"),
        ({"measurements": (measurement_of(0.0),)}, f"{KERNEL} has a median of 0 ns"),
        ({"measurements": (measurement_of(float("inf")),)}, "not finite"),
        ({"measurements": (measurement_of(), measurement_of())}, "two measurements of the same scope"),
        ({"fingerprint": {"name": "\ud800"}}, "cannot be stored as text"),
    ],
)
@pytest.mark.parametrize("mode", ["create", "update", "append"])
def test_what_must_not_become_a_baseline_is_refused_with_its_reason(folder, mode, changes, reason):
    before = path_in(folder).read_bytes()
    good, bad = case_of(folder, "cupy"), case_of(folder, "pycuda")
    report = record(mode, result_of(good), result_of(bad, **changes))
    assert [each.case_id for each in report.refused] == [bad.id]
    assert reason in report.refused[0].reason
    assert report.added == (good.id,)
    assert path_in(folder).read_bytes() != before
    assert bad.id not in load(path_in(folder)).cases


def test_a_result_without_measurements_is_refused(tmp_path):
    report = record("create", dataclasses.replace(result_of(case_of(tmp_path)), measurements=()))
    assert report.refused == (Refusal(case_of(tmp_path).id, "nothing was measured"),)


def test_an_error_that_is_not_finite_is_stored_as_unknown(tmp_path):
    errors = {"out": OutputError(1, 0, float("inf"), float("nan"), None)}
    record("create", result_of(case_of(tmp_path), errors=errors))
    (session,) = load(path_in(tmp_path)).cases[case_of(tmp_path).id].epochs[0].sessions
    assert session.correctness["out"] == OutputAccuracy(None, None, None)


def test_numpy_scalars_and_tuples_in_a_point_compare_equal_after_storing(tmp_path):
    np = pytest.importorskip("numpy")
    case = dataclasses.replace(case_of(tmp_path), measured_point={"n": np.int64(3), "shape": (1, 2)})
    record("create", result_of(case))
    now = Conditions.of(case, device_model=H200)
    basis = Basis(sessions(tmp_path, case), now, threshold=0.02, jitter_ns=0)
    verdict = judge([measurement_of()], basis)
    assert verdict.kind is VerdictKind.SAME


def test_a_second_flush_has_nothing_left_to_write(tmp_path):
    store = store_of("update")
    store.add(result_of(case_of(tmp_path)), model_key=H200)
    assert store.flush().written
    assert store.flush() == WriteReport()


def test_the_store_reads_what_it_has_just_written(tmp_path):
    store = store_of("create")
    assert store.sessions_for(case_of(tmp_path), H200, KERNEL) == ()
    store.add(result_of(case_of(tmp_path)), model_key=H200)
    store.flush()
    assert len(store.sessions_for(case_of(tmp_path), H200, KERNEL)) == 1


def test_times_are_stored_in_utc(tmp_path):
    clock = START.astimezone(tz=None) + timedelta(0)
    store = Store("create", now=lambda: clock)
    store.add(result_of(case_of(tmp_path)), model_key=H200)
    store.flush()
    assert load(path_in(tmp_path)).cases[case_of(tmp_path).id].epochs[0].opened == "2026-11-20T10:00:00Z"


# --- writing --------------------------------------------------------------------------------------


def leftovers(folder):
    return [path.name for path in folder.iterdir() if path.suffix != ".json"]


@pytest.mark.parametrize("step", ["write", "fsync", "replace"])
@pytest.mark.parametrize(
    ("code", "remedy"),
    [(errno.ENOSPC, "Free some space"), (errno.EROFS, "read-only: choose"), (errno.EACCES, "Check the perm")],
)
def test_a_failed_write_leaves_the_old_file_and_no_other_and_the_rest_is_written(
    folder, monkeypatch, step, code, remedy
):
    before = path_in(folder).read_bytes()
    fail_once = iter([OSError(code, os.strerror(code))])

    def failing(original):
        def call(*arguments, **keywords):
            for error in fail_once:
                raise error
            return original(*arguments, **keywords)

        return call

    owner, name = {
        "write": (file, "_write"),
        "fsync": (os, "fsync"),
        "replace": (Path, "replace"),
    }[step]
    monkeypatch.setattr(owner, name, failing(getattr(owner, name)))
    # saxpy sorts first, so its file is the one that fails
    report = record("update", result_of(case_of(folder, name="saxpy")), result_of(case_of(folder)))
    (error,) = report.errors
    assert error.path == path_in(folder, "saxpy")
    assert os.strerror(code) in str(error)
    assert remedy in str(error)
    assert report.written == (path_in(folder),)
    assert (report.added, report.updated) == ((), (case_of(folder).id,))
    assert path_in(folder).read_bytes() != before
    assert not path_in(folder, "saxpy").exists()
    assert leftovers(folder) == []


def test_an_interrupted_write_leaves_the_old_file_and_no_other(folder, monkeypatch):
    before = path_in(folder).read_bytes()

    def interrupt(_descriptor):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupt)
    with pytest.raises(KeyboardInterrupt):
        record("update", result_of(case_of(folder)))
    assert path_in(folder).read_bytes() == before
    assert leftovers(folder) == []


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write to read-only folders")
def test_a_read_only_folder_is_an_error_naming_it(folder):
    folder.chmod(0o555)
    try:
        report = record("update", result_of(case_of(folder)))
    finally:
        folder.chmod(0o755)
    assert "Permission denied" in str(report.errors[0])


def test_a_file_made_read_only_is_not_replaced(folder):
    path = path_in(folder)
    before = path.read_bytes()
    path.chmod(0o444)
    report = record("update", result_of(case_of(folder)))
    assert "is read-only. Make it writable: chmod u+w" in str(report.errors[0])
    assert path.read_bytes() == before


def test_permissions_of_a_file_are_kept_and_a_new_one_follows_the_umask(folder):
    path = path_in(folder)
    path.chmod(0o660)
    record("update", result_of(case_of(folder)))
    assert stat.S_IMODE(path.stat().st_mode) == 0o660
    old = os.umask(0o027)
    try:
        record("create", result_of(case_of(folder, name="saxpy")))
    finally:
        os.umask(old)
    assert stat.S_IMODE(path_in(folder, "saxpy").stat().st_mode) == 0o640


def test_a_link_stays_a_link(folder, tmp_path_factory):
    target = tmp_path_factory.mktemp("shared") / "stored.json"
    path_in(folder).rename(target)
    path_in(folder).symlink_to(target)
    record("update", result_of(case_of(folder), 1000.0))
    assert path_in(folder).is_symlink()
    assert [time.median_ns for time in sessions(folder)] == [1000.0]


def test_a_folder_that_is_a_file_is_an_error(tmp_path):
    (tmp_path / "baselines").write_text("")
    report = record("create", result_of(case_of(tmp_path / "baselines")))
    assert "cannot be written" in str(report.errors[0])


def test_a_damaged_file_is_reported_and_left_as_it_was(folder):
    path_in(folder).write_text("{")
    report = record("create", result_of(case_of(folder)), result_of(case_of(folder, name="saxpy")))
    assert "is no complete JSON" in str(report.errors[0])
    assert report.written == (path_in(folder, "saxpy"),)
    assert path_in(folder).read_text() == "{"


def test_what_another_run_wrote_in_the_meantime_is_merged(tmp_path):
    first, second = store_of("create"), store_of("create")
    for store, variant in ((first, "numba"), (second, "cupy")):
        assert store.sessions_for(case_of(tmp_path, variant), H200, KERNEL) == ()
        store.add(result_of(case_of(tmp_path, variant)), model_key=H200)
    first.flush()
    second.flush()
    assert len(load(path_in(tmp_path)).cases) == 2


def test_runs_that_write_at_once_lose_nothing(tmp_path):
    stores = [store_of("create") for _ in range(8)]
    for i, store in enumerate(stores):
        store.add(result_of(case_of(tmp_path, f"v{i}")), model_key=H200)
    threads = [threading.Thread(target=store.flush) for store in stores]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(load(path_in(tmp_path)).cases) == 8
    assert leftovers(tmp_path) == []


def test_a_lock_held_too_long_is_an_error_not_a_hang(folder, monkeypatch):
    monkeypatch.setattr(file, "_WAIT_S", 0.1)
    with file.locked(folder):
        report = record("update", result_of(case_of(folder)))
    assert "another run has been writing baselines here for 0.1 s" in str(report.errors[0])
