"""Checks the baseline file: its form, reading it and naming its damage."""

from __future__ import annotations

import collections.abc
import dataclasses
import json
import types
import typing
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from made_up_records import H200, KERNEL, case_of, measurement_of, path_in, record, result_of, sessions
from msgspec import structs

from pytest_gpukern.baseline import record as record_
from pytest_gpukern.baseline.codec import load, parse, render
from pytest_gpukern.baseline.record import Baseline
from pytest_gpukern.gate.comparability import Conditions, SessionTime
from pytest_gpukern.gate.judge import Basis, judge
from pytest_gpukern.values.fingerprint import Fingerprint, Provenance
from pytest_gpukern.values.result import DeviceWork, KernelFacts
from pytest_gpukern.values.untrusted_json import FileError
from pytest_gpukern.values.verdict_table import VerdictKind

STAMP = "2026-11-20T10:00:00Z"
NOWHERE = Path("vector_exp.nvidia-h200.json")


@pytest.fixture
def folder(tmp_path):
    """Returns a folder with one recorded case."""
    report = record("create", result_of(case_of(tmp_path)))
    assert report.written == [path_in(tmp_path)]
    return tmp_path


# --- what the file looks like and how it is read --------------------------------------------------


def test_a_recorded_case_is_found_again_with_its_times_and_conditions(folder):
    (time,) = sessions(folder)
    assert (time.median_ns, time.low_ns, time.high_ns, time.n) == (50_000.0, 49_950.0, 50_050.0, 11)
    assert time.conditions == Conditions(1, {"n": 1000}, H200)
    found = judge([measurement_of()], Basis([time], time.conditions, threshold=0.02))
    assert found.kind is VerdictKind.SAME


def test_the_file_is_versioned_and_rounded_and_a_measurement_is_a_line(folder):
    text = path_in(folder).read_text()
    content = json.loads(text)
    assert list(content) == ["schema", "problem", "device_model", "fingerprints", "sessions", "records"]
    assert content["schema"] == 3
    assert text.endswith("}\n")
    (line,) = [line.strip() for line in text.splitlines() if f'"{KERNEL}"' in line]
    assert json.loads(f"{{{line}}}")[KERNEL] == {
        "n": 11,
        "median_ns": 50_000.0,
        "low_ns": 49_950.0,
        "high_ns": 50_050.0,
        "mean_ns": 50_000.0,
        "quantiles_ns": [49_775.0, 49_875.0, 50_000.0, 50_125.0, 50_225.0],
    }
    (epoch,) = content["records"]["vector_exp-numba-n=1000"]["epochs"]
    (session,) = epoch["sessions"]
    assert session["first_call_ns"] == 123457000  # six significant digits
    assert epoch["correctness"]["out"] == {"max_abs": 1e-7, "max_rel": 2.12346e-7, "max_ulp": 1}
    entry = content["sessions"][session["session"]]
    assert content["fingerprints"][entry["fingerprint"]]["driver_version"] == "580.159"


def test_what_a_session_was_recorded_on_and_what_a_call_launches_are_kept(tmp_path):
    seen = [structs.replace(SEEN, grid=(n, 1, 1)) for n in (63, 1)]
    work = tuple(DeviceWork("kernel", kernel.name, 1.0, 1.0, kernel=kernel) for kernel in seen)
    copy = DeviceWork("memcpy", "memcpy HtoD", 1.0, 1.0, 8.0)
    timed = dataclasses.replace(measurement_of(), work=(copy, *work), order=(0, 1, 2, 1))
    provenance = Provenance("beef", True, "main", "https://ci/1")
    record(
        "create",
        by_both_timers(case_of(tmp_path), measurements=(timed,), kernels=tuple(seen), provenance=provenance),
    )
    baseline = load(path_in(tmp_path))
    (entry,) = baseline.sessions.values()
    assert entry.provenance == provenance
    launches = baseline.cases["vector_exp-numba-n=1000"].epochs[0].launches
    assert ([kernel.grid[0] for kernel in launches.kernels], launches.order) == ([63, 1], (0, 1, 0))


CUPTI = "kernel/cupti/cold"
SEEN = KernelFacts("f(int)", 40, 128, 3072, grid=(63, 1, 1), block=(256, 1, 1), symbol="_Z1fi")


def by_both_timers(case, **changes):
    """Returns a result with CUPTI's time, the events' beside it, and what is known of the kernel."""
    clocks = {"clocks": {"sm_mhz": 1980.0, "memory_mhz": 3201}}
    main = dataclasses.replace(measurement_of(timer="cupti"), observations=clocks)
    other = dataclasses.replace(measurement_of(53_000.0), beside=True, fixed_cost_ns=2900.123456)
    other = dataclasses.replace(other, invalid_samples=12, jitter_ns=9.23760430)
    facts = structs.replace(SEEN, blocks_per_sm=6, occupancy=0.75, machine_code_sha256="beef")
    grids = [structs.replace(facts, grid=(n, 1, 1)) for n in (63, 1, 63)]
    found = {"measurements": (main, other), "kernels": tuple(grids), "compile_ns": 3e8}
    return result_of(case, **{**found, **changes})


def test_both_timers_and_each_grid_of_a_kernel_are_recorded_with_what_is_known_of_them(tmp_path):
    record("create", by_both_timers(case_of(tmp_path), duration_s=12.3456))
    (session,) = load(path_in(tmp_path)).cases["vector_exp-numba-n=1000"].epochs[-1].sessions
    main, other = session.times[CUPTI], session.times[KERNEL]
    assert (main.median_ns, main.fixed_cost_ns, main.sm_mhz, main.memory_mhz) == (50_000.0, None, 1980, 3201)
    assert (other.median_ns, other.fixed_cost_ns, other.sm_mhz) == (53_000.0, 2900.12, None)
    assert (other.invalid_samples, other.jitter_ns) == (12, 9.2376)
    for key, median_ns in ((CUPTI, 50_000.0), (KERNEL, 53_000.0)):
        (time,) = sessions(tmp_path, key=key)
        assert (time.key, time.median_ns) == (key, median_ns)
        first, second = time.kernels
        assert first == KernelFacts("f(int)", 40, 128, 3072, "beef", grid=(63, 1, 1), block=(256, 1, 1))
        assert second == structs.replace(first, grid=(1, 1, 1))
    assert (session.compile_ns, session.duration_s) == (3e8, 12.3)


@given(st.lists(st.floats(1, 9), min_size=3, max_size=3), st.none() | st.permutations(range(5)))
def test_a_time_is_taken_if_its_bounds_and_quantiles_ascend(bounds, quantiles):
    low, median, high = bounds
    timed = SessionTime(7, median, low, high, quantiles and tuple(map(float, quantiles)))
    session = record_.RecordedSession("s", {KERNEL: timed})
    case = record_.Record({}, (record_.Epoch(STAMP, 1, {}, (session,)),))
    entry = record_.SessionEntry(STAMP, "f")
    content = render(Baseline("a", H200, {"f": Fingerprint()}, {"s": entry}, {"a": case}))
    if low <= median <= high and quantiles in (None, sorted(range(5))):
        assert parse(content, NOWHERE).cases == {"a": case}
    else:
        with pytest.raises(FileError, match=r"records\['a'\]\.epochs\[0\]\.sessions\[0\]\.times"):
            parse(content, NOWHERE)


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
def test_what_is_on_record_is_read_and_written_the_same_in_whatever_order_it_stands(path):
    content = path.read_bytes()
    baseline = parse(content, path)
    assert render(baseline) == content
    assert parse(json.dumps(json.loads(content), sort_keys=True).encode(), path) == baseline


texts = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12)
scalars = st.none() | st.booleans() | st.integers(-(2**63), 2**63) | texts
values = {str: texts, int: st.integers(1, 10**9), float: st.floats(1e-9, 1e15), bool: st.booleans()}


def made(kind, least=0):
    """Any value of a type that the model has, so that a field that is added later is tried as well."""
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if kind == record_.Moment:
        return st.datetimes().map(lambda moment: moment.isoformat() + "+00:00")
    if kind == record_.Key:
        return st.sampled_from([KERNEL, "kernel/host/hot", "end_to_end/host/cold"])
    if kind is SessionTime:
        return st.builds(time, st.lists(st.floats(1e-3, 1e15), min_size=8, max_size=8))
    if origin is typing.Annotated:
        return made(inner[0], kind.__metadata__[0].min_length or 0)
    if hasattr(kind, "__struct_fields__") or dataclasses.is_dataclass(kind):
        return st.builds(
            kind, **{n: made(t) for n, t in typing.get_type_hints(kind, include_extras=True).items()}
        )
    if origin in (types.UnionType, typing.Union):
        return scalars if len(inner) > 2 else st.none() | made(inner[0])
    if origin in (dict, collections.abc.Mapping):
        return st.dictionaries(made(inner[0]), made(inner[1]), min_size=least, max_size=2)
    if origin is tuple and inner[-1] is ...:
        return st.lists(made(inner[0]), min_size=least, max_size=2).map(tuple)
    return st.tuples(*map(made, inner)) if origin is tuple else values[kind]


def time(numbers):
    low, median, high, *points = *sorted(numbers[:3]), *sorted(numbers[3:])
    return SessionTime(7, median, low, high, tuple(points), mean_ns=numbers[0], jitter_ns=numbers[1])


def whole(made, session, fingerprint):
    """A baseline whose sessions are those of its records."""
    names = {s.session for each in made.cases.values() for epoch in each.epochs for s in epoch.sessions}
    table = dict.fromkeys(names, structs.replace(session, fingerprint="f"))
    return structs.replace(made, sessions=table, fingerprints={"f": fingerprint})


baselines = st.builds(whole, made(Baseline), made(record_.SessionEntry), made(Fingerprint))


@settings(max_examples=50, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much])
@given(baselines)
def test_what_is_written_is_read_back_and_written_the_same(baseline):
    content = render(baseline)
    assert parse(content, NOWHERE) == baseline
    assert render(parse(content, NOWHERE)) == content
