"""Sessions in a baseline: what they share, how they join an epoch, and which of them stay."""

from __future__ import annotations

import dataclasses
import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
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

from pytest_gpukern.baseline.codec import load
from pytest_gpukern.baseline.merge import Refusal
from pytest_gpukern.baseline.store import KnownCases, Store, WriteReport
from pytest_gpukern.values import atomic_file as file
from pytest_gpukern.values.result import KernelFacts, OutputError

CASE = "vector_exp-numba-n=1000"
HOST = "end_to_end/host/cold"
KERNELS = (KernelFacts("f(int)", 40, 128, 3072, "beef", grid=(63, 1, 1), block=(256, 1, 1), symbol="_Z1fi"),)


def session(folder, number, *medians_ns, variant="numba", **changes):
    """A result of the session with this number, and its canaries."""
    values = {"session": f"{number:08x}", "canaries": {"copy": 1000.123456, "launch": None}}
    return result_of(case_of(folder, variant), *medians_ns, **{**values, **changes})


def scopes(*medians_ns):
    """Measurements of the kernel, and of it end to end."""
    kernel, whole = medians_ns
    return (measurement_of(kernel), measurement_of(whole, "end_to_end", "host"))


def raw(folder):
    return json.loads(path_in(folder).read_text())


def epochs(folder, case_id=CASE):
    return load(path_in(folder)).cases[case_id].epochs


def ids(folder):
    return [[each.session for each in epoch.sessions] for epoch in epochs(folder)]


# --- what sessions share --------------------------------------------------------------------------


def test_what_holds_for_a_session_is_stored_once_for_all_its_cases(tmp_path):
    record("create", session(tmp_path, 1), session(tmp_path, 1, variant="cupy"), session(tmp_path, 2))
    content = raw(tmp_path)
    (fingerprint,) = content["fingerprints"]
    entry = {"canaries": {"copy": 1000.12, "launch": None}, "fingerprint": fingerprint}
    entry["recorded"] = "2026-11-20T10:00:00Z"
    assert content["sessions"] == {"00000001": entry, "00000002": entry}
    for record_ in content["records"].values():
        for each in record_["epochs"][0]["sessions"]:
            assert each.keys() == {"first_call_ns", "session", "times"}
    loaded = epochs(tmp_path)[0].sessions[0]
    assert (loaded.recorded, loaded.fingerprint) == (entry["recorded"], fingerprint)


def test_a_later_case_of_a_session_that_is_known_gets_its_time(tmp_path):
    record("create", session(tmp_path, 1))
    later = Store("create", now=lambda: START.replace(hour=11))
    later.add(session(tmp_path, 1, variant="cupy"), model_key=H200)
    later.flush()
    (found,) = epochs(tmp_path, "vector_exp-cupy-n=1000")[0].sessions
    assert found.recorded == "2026-11-20T10:00:00Z"


def test_two_processes_under_one_id_keep_what_is_their_own(tmp_path):
    record(
        "create", session(tmp_path, 1), session(tmp_path, 1, variant="cupy", fingerprint={"driver": "590"})
    )
    baseline = load(path_in(tmp_path))
    drivers = {
        case_id: baseline.fingerprints[epochs(tmp_path, case_id)[0].sessions[0].fingerprint]["driver"]
        for case_id in baseline.cases
    }
    assert drivers == {CASE: "580.159", "vector_exp-cupy-n=1000": "590"}


def test_correctness_and_kernels_that_all_sessions_agree_on_are_stored_once(tmp_path):
    record("create", *[session(tmp_path, number, kernels=KERNELS) for number in range(5)])
    assert path_in(tmp_path).read_text().count('"max_abs"') == 1
    assert path_in(tmp_path).read_text().count('"f(int)"') == 1
    for each in epochs(tmp_path)[0].sessions:
        assert each.correctness["out"].max_abs == 1e-7
        assert [kernel.grid for kernel in each.kernels] == [(63, 1, 1)]


def test_a_session_that_disagrees_has_its_own(tmp_path):
    other = {"out": OutputError(1000, 0, 3e-7, None, None, bits="5eed")}
    record("create", session(tmp_path, 1, kernels=KERNELS), session(tmp_path, 2, errors=other))
    first, second = epochs(tmp_path)[0].sessions
    assert (first.correctness["out"].max_abs, second.correctness["out"].max_abs) == (1e-7, 3e-7)
    assert (first.correctness["out"].bits, second.correctness["out"].bits) == (None, "5eed")
    assert (len(first.kernels), len(second.kernels)) == (1, 0)


def test_a_further_session_changes_no_line_of_those_that_are_there(tmp_path):
    record("create", session(tmp_path, 1, kernels=KERNELS))
    before = path_in(tmp_path).read_text().splitlines()
    record("append", session(tmp_path, 2, kernels=KERNELS))
    after = path_in(tmp_path).read_text().splitlines()
    without_commas = [line.rstrip(",") for line in after]
    position = -1
    for line in before:
        position = without_commas.index(line.rstrip(","), position + 1)
    assert len(after) - len(before) <= 8


def test_five_sessions_of_a_case_by_two_timers_fit_on_a_page(tmp_path):
    both = (measurement_of(50_123.4, timer="cupti"), measurement_of(53_123.4))
    record("create", *[session(tmp_path, n, kernels=KERNELS, measurements=both) for n in range(5)])
    text = path_in(tmp_path).read_text()
    entry = text[text.index(f'"{CASE}"') : text.index('"schema"')]
    assert len(entry.splitlines()) <= 51
    assert len(entry) <= 2000


def test_samples_that_were_not_used_and_the_timers_jitter_are_recorded(tmp_path):
    measurement = dataclasses.replace(measurement_of(), invalid_samples=12, jitter_ns=9.23760430)
    record("create", session(tmp_path, 1, measurements=(measurement,)))
    (each,) = epochs(tmp_path)[0].sessions
    assert (each.measurements[KERNEL].invalid_samples, each.measurements[KERNEL].jitter_ns) == (12, 9.2376)


def test_a_session_that_no_record_needs_any_more_is_dropped(tmp_path):
    for number in range(6):
        record("update", session(tmp_path, number))
    assert sorted(raw(tmp_path)["sessions"]) == ["00000000", "00000003", "00000004", "00000005"]


# --- append ---------------------------------------------------------------------------------------


def test_append_opens_the_first_epoch_of_a_case_that_has_none(tmp_path):
    report = record("append", session(tmp_path, 1))
    assert (report.added, report.appended) == ((CASE,), ())
    assert ids(tmp_path) == [["00000001"]]


def test_append_adds_to_the_current_epoch_and_to_no_other(tmp_path):
    record("create", session(tmp_path, 1))
    record("update", session(tmp_path, 2))
    report = record("append", session(tmp_path, 3), session(tmp_path, 4))
    assert (report.appended, report.added, report.updated) == ((CASE,), (), ())
    assert ids(tmp_path) == [["00000001"], ["00000002", "00000003", "00000004"]]


def test_append_adds_each_measurement_to_the_epoch_that_is_current_for_it(tmp_path):
    record("create", session(tmp_path, 1, measurements=scopes(50_000.0, 70_000.0)))
    record("update", session(tmp_path, 2, 40_000.0))  # of the kernel alone
    record("append", session(tmp_path, 3, measurements=scopes(41_000.0, 71_000.0)))
    assert [time.median_ns for time in sessions(tmp_path)] == [40_000, 41_000]
    assert [time.median_ns for time in sessions(tmp_path, key=HOST)] == [70_000, 71_000]


def test_append_takes_a_measurement_that_the_record_lacks_into_the_newest_epoch(tmp_path):
    record("create", session(tmp_path, 1))
    record("append", session(tmp_path, 2, measurements=scopes(50_000.0, 70_000.0)))
    assert len(sessions(tmp_path)) == 2
    assert [time.median_ns for time in sessions(tmp_path, key=HOST)] == [70_000]


@pytest.mark.parametrize(
    ("changes", "words"),
    [({"version": 2}, "with problem version 1, now 2"), ({"ran": 500}, "at {'n': 1000}, now {'n': 500}")],
)
def test_append_refuses_what_was_measured_otherwise_and_names_update(tmp_path, changes, words):
    record("create", session(tmp_path, 1))
    before = path_in(tmp_path).read_bytes()
    report = record("append", dataclasses.replace(session(tmp_path, 2), case=case_of(tmp_path, **changes)))
    (refusal,) = report.refused
    assert words in refusal.reason
    assert "--gpukern-baseline=update" in refusal.reason
    assert path_in(tmp_path).read_bytes() == before


@pytest.mark.parametrize("mode", ["append", "update"])
def test_a_session_counts_once(tmp_path, mode):
    record("create", session(tmp_path, 1))
    before = path_in(tmp_path).read_bytes()
    (refusal,) = record(mode, session(tmp_path, 1)).refused
    assert "already" in refusal.reason
    assert path_in(tmp_path).read_bytes() == before


def test_two_measurements_of_a_case_in_one_session_are_one_session(tmp_path):
    report = record("create", session(tmp_path, 1), session(tmp_path, 1), session(tmp_path, 2))
    assert ids(tmp_path) == [["00000001", "00000002"]]
    assert report.refused == (Refusal(CASE, "session 00000001 of it is recorded already"),)


def test_an_epoch_keeps_the_newest_twenty_of_every_measurement(tmp_path):
    whole = [session(tmp_path, n, measurements=scopes(50_000.0, 70_000.0 + n)) for n in range(3)]
    record("create", *whole)
    record("append", *[session(tmp_path, 100 + n, 50_000.0 + n) for n in range(20)])
    assert [time.median_ns for time in sessions(tmp_path)] == [50_000 + n for n in range(20)]
    assert [time.median_ns for time in sessions(tmp_path, key=HOST)] == [70_000, 70_001, 70_002]
    assert all(KERNEL not in each.measurements for each in epochs(tmp_path)[0].sessions[:3])


def test_a_reason_is_kept_with_the_epoch_that_update_opens(tmp_path):
    record("create", session(tmp_path, 1))
    record("update", session(tmp_path, 2), reason="new algorithm")
    record("append", session(tmp_path, 3), reason="more")
    assert [epoch.reason for epoch in epochs(tmp_path)] == [None, "new algorithm"]


# --- cases that are no more -----------------------------------------------------------------------


def known(folder, *case_ids):
    return KnownCases(str(folder), "vector_exp", frozenset(case_ids))


def test_recorded_cases_that_are_no_more_are_stale(tmp_path):
    record("create", session(tmp_path, 1), session(tmp_path, 1, variant="cupy"))
    store = store_of("compare")
    assert store.stale(known(tmp_path, CASE), H200) == ("vector_exp-cupy-n=1000",)
    assert store.stale(known(tmp_path, CASE, "vector_exp-cupy-n=1000"), H200) == ()
    assert store.stale(known(tmp_path), "nvidia-a100") == ()


def test_pruning_removes_them_and_what_only_they_referred_to(tmp_path):
    record("create", session(tmp_path, 1), session(tmp_path, 2, variant="cupy", fingerprint={"driver": "1"}))
    store = store_of("update")
    store.prune(known(tmp_path, CASE), H200)
    report = store.flush()
    assert (report.removed, report.written) == (("vector_exp-cupy-n=1000",), (path_in(tmp_path),))
    content = raw(tmp_path)
    assert list(content["records"]) == [CASE]
    assert list(content["sessions"]) == ["00000001"]
    assert [each["driver"] for each in content["fingerprints"].values()] == ["580.159"]


def test_pruning_where_nothing_is_stale_writes_nothing(tmp_path):
    record("create", session(tmp_path, 1))
    store = store_of("update")
    store.prune(known(tmp_path, CASE), H200)
    assert store.flush() == WriteReport()


# --- several writers, and one that is killed ------------------------------------------------------

APPEND = """
import sys
sys.path[:0] = [sys.argv[1], sys.argv[1] + "/baseline"]
from test_baseline_sessions import record, session
from pathlib import Path
folder, first = Path(sys.argv[2]), int(sys.argv[3])
sys.stdout.write("ready\\n"), sys.stdout.flush(), sys.stdin.readline()
for number in range(first, first + 8):
    report = record("append", session(folder, number))
    assert report.written and not report.errors, report
"""


def python(script, *arguments):
    command = [sys.executable, "-c", script, str(Path(__file__).parents[1]), *map(str, arguments)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def test_two_processes_that_append_at_once_lose_nothing(tmp_path):
    writers = [python(APPEND, tmp_path, first) for first in (100, 200)]
    for writer in writers:
        assert writer.stdout.readline() == "ready\n"
    for writer in writers:
        writer.stdin.write("go\n")
        writer.stdin.flush()
    for writer in writers:
        writer.communicate()
        assert writer.returncode == 0
    (found,) = ids(tmp_path)
    assert sorted(found) == sorted(f"{first + n:08x}" for first in (100, 200) for n in range(8))
    assert [path.name for path in tmp_path.iterdir()] == [path_in(tmp_path).name]


KILLED = """
import os, signal, sys
sys.path[:0] = [sys.argv[1], sys.argv[1] + "/baseline"]
from test_baseline_sessions import record, session
from pathlib import Path
os.fsync = lambda descriptor: os.kill(os.getpid(), signal.SIGKILL)
record("append", session(Path(sys.argv[2]), 2))
"""


def test_a_writer_that_is_killed_leaves_the_file_as_it_was_and_the_next_one_clears_up(tmp_path):
    record("create", session(tmp_path, 1))
    before = path_in(tmp_path).read_bytes()
    with python(KILLED, tmp_path) as writer:
        writer.communicate()
    assert writer.returncode == -signal.SIGKILL
    assert path_in(tmp_path).read_bytes() == before
    assert len(list(tmp_path.iterdir())) == 2, "it was killed in the middle"
    with file.locked(tmp_path):
        assert list(tmp_path.iterdir()) == [path_in(tmp_path)]
    record("append", session(tmp_path, 3))
    assert ids(tmp_path) == [["00000001", "00000003"]]
