"""Checks what each mode records, which sessions a case is compared with, and writing that fails."""

from __future__ import annotations

import errno
import json
import os
import signal
import stat
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import pytest
from hypothesis import given
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
from msgspec import structs

from pytest_gpukern.baseline.codec import load
from pytest_gpukern.baseline.merge import Refusal, WriteReport
from pytest_gpukern.baseline.store import KnownCases, Store, rewrite
from pytest_gpukern.cli.baseline import matching
from pytest_gpukern.values import atomic_file as file
from pytest_gpukern.values.fingerprint import Fingerprint
from pytest_gpukern.values.result import Correctness, KernelFacts, Verdict
from pytest_gpukern.values.untrusted_json import FileError
from pytest_gpukern.values.verdict_table import VerdictKind


@pytest.fixture
def folder(tmp_path):
    """Returns a folder with one recorded case."""
    report = record("create", result_of(case_of(tmp_path)))
    assert report.written == [path_in(tmp_path)]
    return tmp_path


# --- which sessions a case is compared with -------------------------------------------------------


def test_where_a_case_has_no_such_time_others_are_offered_so_that_they_can_be_called_uncomparable(folder):
    assert [time.key for time in sessions(folder, key="kernel/host/cold")] == [KERNEL]
    record("create", result_of(case_of(folder)), model_key="nvidia-a100")
    on_others = sessions(folder, model_key="nvidia-l4")
    assert [time.conditions.device_model for time in on_others] == ["nvidia-a100", H200]


def test_what_an_autotuner_chose_is_recorded_and_sets_sessions_apart(tmp_path):
    case = case_of(tmp_path)
    for warps in ("1", "1", "32"):
        record("append", result_of(case, autotuned={"softmax": {"num_warps": warps}}))
    choices = [each.choice.configurations for each in sessions(tmp_path)]
    assert choices[0] == choices[1] != choices[2]
    assert choices[2] == (("softmax", (("num_warps", "32"),)),)
    (path,) = tmp_path.rglob("*.json")
    kinds = [{each.choice for each in times} for times in load(path).all_times()]
    assert sorted(map(len, kinds)) == [1, 1], "also for the spread that all cases share"


def test_the_newest_choice_on_a_device_of_the_architecture_counts(tmp_path):
    case = case_of(tmp_path)
    assert store_of("compare").autotuned(case, (9, 0)) == {}
    for hour, (model, capability, warps) in enumerate(
        [(H200, (9, 0), "1"), ("nvidia-h100", (9, 0), "32"), ("nvidia-a100", (8, 0), "8")]
    ):
        store = Store("create", now=lambda hour=hour: START + timedelta(hours=hour))
        fingerprint = Fingerprint(device_model_key=model, compute_capability=capability)
        chosen = {"softmax": {"num_warps": warps}}
        store.add(result_of(case, autotuned=chosen, fingerprint=fingerprint), model_key=model)
        store.flush()
    store = store_of("compare")
    assert store.autotuned(case, (9, 0)) == {"softmax": {"num_warps": "32"}}
    assert store.autotuned(case, (8, 0)) == {"softmax": {"num_warps": "8"}}
    assert store.autotuned(case, (7, 5)) == store.autotuned(case_of(tmp_path, n=5), (9, 0)) == {}
    assert store_of("off").autotuned(case, (9, 0)) == {}


def test_a_name_that_begins_another_is_not_taken_for_its_device(folder):
    record("create", result_of(case_of(folder, name="vector_exp.wide")))
    assert sessions(folder, case_of(folder, name="vector_exp.wide"))
    assert [time.conditions.device_model for time in sessions(folder, model_key="nvidia-l4")] == [H200]


@pytest.mark.parametrize("name", ["", "..", ".hidden", "a/b", "a\\b", "a..b", "a.", "a\0b", "a\n", "x" * 201])
def test_a_name_that_could_leave_the_folder_is_refused(tmp_path, name):
    case = case_of(tmp_path, name=name)
    with pytest.raises(FileError, match="baseline name"):
        sessions(tmp_path, case)
    report = record("create", result_of(case))
    assert "baseline name" in report.refused[0].reason
    assert list(tmp_path.iterdir()) == []
    for key in (name, "a.b"):
        with pytest.raises(FileError, match="device model key"):
            sessions(tmp_path, model_key=key)


@pytest.mark.parametrize("name", ["a", "a.b", "a-b+c", "é" * 100, "x" * 200])
def test_every_other_name_is_that_of_a_file(tmp_path, name):
    record("create", result_of(case_of(tmp_path, name=name)))
    assert [path.name for path in tmp_path.iterdir()] == [f"{name}.{H200}.json"]


# --- modes ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["compare", "off"])
def test_compare_and_off_write_nothing(folder, mode):
    before = path_in(folder).read_bytes()
    changed = [result_of(case_of(folder), 1.0), result_of(case_of(folder, "cupy"))]
    assert record(mode, *changed) == WriteReport()
    assert path_in(folder).read_bytes() == before


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
    path_in(folder).write_text("{")
    assert not store_of("create").would_write(result_of(missing), model_key=H200)


def test_create_does_not_even_rewrite_a_file_that_lacks_nothing(folder):
    path = path_in(folder)
    path.write_bytes(path.read_bytes() + b"\n")
    report = record("create", result_of(case_of(folder)))
    assert report.written == []
    assert path.read_bytes().endswith(b"\n\n")


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"simulated": True}, "the simulator's times say nothing about speed"),
        ({"seed": 7}, "its inputs are those of --gpukern-seed=7, not the recorded ones"),
        ({"correctness": Correctness.INCORRECT, "diagnosis": "out[3] is 0"}, "INCORRECT: out[3] is 0"),
        ({"measurements": (measurement_of(invalid="throttled"),)}, f"{KERNEL} is INVALID: throttled"),
        ({"verdicts": {KERNEL: Verdict(VerdictKind.INVALID, "late")}}, f"{KERNEL} is INVALID: late"),
        ({"measurements": (structs.replace(measurement_of(), samples_ns=()),)}, f"{KERNEL} has no samples"),
        ({"measurements": (measurement_of(0.0),)}, f"{KERNEL} has a median of 0 ns"),
        ({"measurements": (measurement_of(float("inf")),)}, "not finite"),
        ({"measurements": (measurement_of(), measurement_of())}, "one under each scope, timer and cache"),
        ({"fingerprint": Fingerprint(device_name="\ud800")}, "cannot be stored as text"),
    ],
)
@pytest.mark.parametrize("mode", ["create", "update", "append"])
def test_what_must_not_become_a_baseline_is_refused_with_its_reason(folder, mode, changes, reason):
    before = path_in(folder).read_bytes()
    good, bad = case_of(folder, "cupy"), case_of(folder, "pycuda")
    report = record(mode, result_of(good), result_of(bad, **changes))
    assert [each.case_id for each in report.refused] == [bad.id]
    assert reason in report.refused[0].reason
    assert report.added == [good.id]
    assert path_in(folder).read_bytes() != before
    assert bad.id not in load(path_in(folder)).cases


def test_a_time_below_a_nanosecond_is_recorded_and_a_result_without_times_is_not(tmp_path):
    assert record("create", result_of(case_of(tmp_path), 0.25)).refused == []
    assert [time.median_ns for time in sessions(tmp_path)] == [0.25]
    report = record("update", structs.replace(result_of(case_of(tmp_path)), measurements=()))
    assert report.refused == [Refusal(case_of(tmp_path).id, "nothing was measured")]


# --- writing --------------------------------------------------------------------------------------


def leftovers(folder):
    return [path.name for path in folder.iterdir() if path.suffix != ".json"]


@pytest.mark.parametrize("step", ["write", "fsync", "replace"])
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EROFS, errno.EACCES])
def test_a_failed_write_leaves_the_old_file_and_no_other_and_the_rest_is_written(
    folder, monkeypatch, step, code
):
    before = path_in(folder).read_bytes()
    fail_once = iter([OSError(code, os.strerror(code))])

    def failing(original):
        def call(*arguments, **keywords):
            for error in fail_once:
                raise error
            return original(*arguments, **keywords)

        return call

    owner, name = {"write": (file, "_write"), "fsync": (os, "fsync"), "replace": (Path, "replace")}[step]
    monkeypatch.setattr(owner, name, failing(getattr(owner, name)))
    # saxpy sorts first, so its file is the one that fails
    report = record("update", result_of(case_of(folder, name="saxpy")), result_of(case_of(folder)))
    (error,) = report.errors
    assert error.path == path_in(folder, "saxpy")
    assert os.strerror(code) in str(error)
    assert "Check permissions and free space" in str(error)
    assert report.written == [path_in(folder)]
    assert (report.added, report.updated) == ([], [case_of(folder).id])
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


@pytest.mark.parametrize(("content", "said"), [("{", "cannot be read"), ('{"schema": 7}', "schema: is 7")])
def test_a_damaged_or_newer_file_is_reported_and_left_as_it_was(folder, content, said):
    path_in(folder).write_text(content)
    report = record("update", result_of(case_of(folder)), result_of(case_of(folder, name="saxpy")))
    assert said in str(report.errors[0])
    assert report.written == [path_in(folder, "saxpy")]
    assert path_in(folder).read_text() == content


def test_a_lock_held_too_long_is_an_error_not_a_hang(folder, monkeypatch):
    monkeypatch.setattr(file, "_WAIT_S", 0.1)
    with file.locked(folder):
        report = record("update", result_of(case_of(folder)))
    assert "another run has been writing baselines here for 0.1 s" in str(report.errors[0])


CASE = "vector_exp-numba-n=1000"
KERNELS = (KernelFacts("f(int)", 40, 128, 3072, "beef", grid=(63, 1, 1), block=(256, 1, 1), symbol="_Z1fi"),)


def session(folder, number, *medians_ns, variant="numba", **changes):
    """Returns a result of the session with this number, with its canaries."""
    values = {"session": f"{number:08x}", "canaries": {"copy": 1000.123456, "launch": None}}
    return result_of(case_of(folder, variant), *medians_ns, **{**values, **changes})


def raw(folder):
    return json.loads(path_in(folder).read_text())


def epochs(folder, case_id=CASE):
    return load(path_in(folder)).cases[case_id].epochs


def ids(folder):
    return [[each.session for each in epoch.sessions] for epoch in epochs(folder)]


# --- what sessions share --------------------------------------------------------------------------


def test_a_further_session_changes_the_line_of_its_case_and_adds_one_of_its_process(tmp_path):
    record("create", session(tmp_path, 1, kernels=KERNELS), session(tmp_path, 1, variant="cupy"))
    before = [line.rstrip(",") for line in path_in(tmp_path).read_text().splitlines()]
    record("append", session(tmp_path, 2, kernels=KERNELS))
    after = [line.rstrip(",") for line in path_in(tmp_path).read_text().splitlines()]
    assert len(after) == len(before) + 1
    changed = [line for line in before if line not in after]
    assert [line.strip()[:40] for line in changed] == ['{"case": "vector_exp-numba-n=1000", "epo']
    assert changed[0].removesuffix("]}]}") in "".join(after)


# --- append ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["create", "append"])
def test_what_was_measured_otherwise_joins_no_epoch_and_update_is_named(tmp_path, mode):
    record("create", session(tmp_path, 1))
    before = path_in(tmp_path).read_bytes()
    scope = (measurement_of(scope="end_to_end"),)
    report = record(mode, result_of(case_of(tmp_path, version=2), measurements=scope))
    (refusal,) = report.refused
    assert "with problem version 1, now 2" in refusal.reason
    assert "--gpukern-baseline=update" in refusal.reason
    assert report == WriteReport(refused=report.refused)
    assert path_in(tmp_path).read_bytes() == before


@pytest.mark.parametrize("mode", ["append", "update"])
def test_a_session_counts_once(tmp_path, mode):
    report = record("create", session(tmp_path, 1), session(tmp_path, 1), session(tmp_path, 2))
    assert ids(tmp_path) == [["00000001", "00000002"]]
    assert report.refused == [Refusal(CASE, "session 00000001 is recorded already")]
    before = path_in(tmp_path).read_bytes()
    report = record(mode, session(tmp_path, 1))
    (refusal,) = report.refused
    assert "already" in refusal.reason
    assert report == WriteReport(refused=report.refused)
    assert path_in(tmp_path).read_bytes() == before


# --- cases that are no more -----------------------------------------------------------------------


def known(folder, *case_ids):
    return KnownCases(str(folder), "vector_exp", frozenset(case_ids))


def test_they_are_named_by_file_and_removing_them_removes_what_only_they_referred_to(tmp_path):
    record(
        "create",
        session(tmp_path, 1),
        session(tmp_path, 2, variant="cupy", fingerprint=Fingerprint(driver_version="1")),
    )
    gone = "vector_exp-cupy-n=1000"
    found = store_of("compare").to_prune(known(tmp_path, CASE), H200)
    assert found == (path_in(tmp_path), (gone,))
    rewrite(found.file, lambda baseline: baseline.without(found.ids))
    content = raw(tmp_path)
    assert [each["case"] for each in content["records"]] == [CASE]
    assert list(content["processes"]) == ["00000001"]


IDS = [
    *(f"exp/{variant}/n={n}" for variant in ("cupy.a", "cupy.a2") for n in range(2)),
    *("test_x", "test_y[1-a]", "test_y[1-a/b]", "t*/a", "tz/a"),
]


@given(st.sets(st.sampled_from(IDS)))
def test_the_names_of_cases_are_patterns_that_match_these_alone(gone):
    assert set(matching(IDS, [*gone])) == gone


def test_of_records_that_come_with_the_package_only_those_of_this_very_device_count(tmp_path, monkeypatch):
    here, elsewhere = (Fingerprint(device_uuid=f"GPU-{where}") for where in ("here", "elsewhere"))
    record("create", session(tmp_path, 1, fingerprint=elsewhere), session(tmp_path, 2, fingerprint=here))
    record("create", session(tmp_path, 3, variant="cupy", fingerprint=elsewhere))

    def on_record():
        return set(store_of("compare").on_record(known(tmp_path), H200, {"GPU-here"}))

    assert on_record() == {CASE, "vector_exp-cupy-n=1000"}
    monkeypatch.setattr("pytest_gpukern.baseline.store.SUITES", (tmp_path,))
    assert on_record() == {CASE}


# --- several writers, and one that is killed ------------------------------------------------------

APPEND = """
import sys
sys.path[:0] = [sys.argv[1], sys.argv[1] + "/baseline"]
from test_store import record, session
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
from test_store import record, session
from pathlib import Path
os.fsync = lambda descriptor: os.kill(os.getpid(), signal.SIGKILL)
record("append", session(Path(sys.argv[2]), 2))
"""


def test_a_writer_that_is_killed_leaves_the_file_as_it_was(tmp_path):
    record("create", session(tmp_path, 1))
    before = path_in(tmp_path).read_bytes()
    with python(KILLED, tmp_path) as writer:
        writer.communicate()
    assert writer.returncode == -signal.SIGKILL
    assert path_in(tmp_path).read_bytes() == before
    assert len(list(tmp_path.iterdir())) == 2, "it was killed in the middle"
    record("append", session(tmp_path, 3))
    assert ids(tmp_path) == [["00000001", "00000003"]]


FOLDER = """
import sys
from pytest_gpukern.values.atomic_file import TemporaryFolder
folder = TemporaryFolder("session")
sys.stdout.write(f"{folder.name}\\n"), sys.stdout.flush(), sys.stdin.readline()
"""


def test_the_temporary_folder_of_a_killed_process_is_removed_and_no_other(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(file.tempfile, "tempdir", str(tmp_path))
    (tmp_path / "gpukern-being-made").mkdir()
    with python(FOLDER) as killed, python(FOLDER) as living:
        orphan, in_use = (Path(each.stdout.readline().strip()) for each in (killed, living))
        (orphan / "basetemp").mkdir()
        (tmp_path / "gpukern-link").symlink_to(orphan)
        killed.kill()
        killed.wait()
        with monkeypatch.context() as another_user:
            another_user.setattr(os, "geteuid", lambda: os.getuid() + 1)
            file.TemporaryFolder("run").cleanup()
        assert orphan.exists()
        sweepers = [python(FOLDER), python(FOLDER)]
        for each in sweepers:
            each.communicate("\n")
            assert each.returncode == 0
        left = {path.name for path in tmp_path.iterdir()}
        assert left == {"gpukern-being-made", "gpukern-link", in_use.name}
        living.communicate("\n")
    assert not in_use.exists()


# --- what the gate gets beside a case's own sessions ------------------------------------------------


def test_the_spread_is_shared_by_the_cases_of_all_files_that_were_read(tmp_path):
    for name in ("one", "other"):
        record("create", *(result_of(case_of(tmp_path, f"v{n % 5}", name), 5e4 + n) for n in range(10)))
    store = store_of("compare")
    assert store.shared_spread(H200) == {}
    for name, cases in (("one", 5), ("other", 10)):
        store.baseline(case_of(tmp_path, name=name), H200)
        assert store.shared_spread(H200)["kernel/event"].cases == cases
    assert store.shared_spread("nvidia-a100") == {}
