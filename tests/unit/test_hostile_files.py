"""Files that somebody damaged or forged: each works, or is one clear error."""

from __future__ import annotations

import contextlib
import dataclasses
import json
from datetime import UTC, datetime
from pathlib import Path

import pytest
from made_up_results import CEILINGS, COPY_IN, EXP_KERNEL, error, measured, result, verdict
from made_up_runs import write_run_file
from mutations import Mutations

from pytest_gpukern.baseline.codec import load, parse
from pytest_gpukern.baseline.codec import render as render_baseline
from pytest_gpukern.baseline.record import RecordedCase, RecordedEpoch
from pytest_gpukern.cli import main as cli
from pytest_gpukern.findings.common_shift import CanaryChange, Compared, Shift, shift_among
from pytest_gpukern.findings.findings import explained
from pytest_gpukern.gate.comparability import SessionTime
from pytest_gpukern.gate.judge import Basis, confirm, judge
from pytest_gpukern.gate.spread import shared_spread, spread_key
from pytest_gpukern.gpu.kernel_facts import kernel_facts
from pytest_gpukern.gpu.lock import Holder, read_holder
from pytest_gpukern.processes.child_sessions import ChildRun, Heard
from pytest_gpukern.report.csv_table import csv_text
from pytest_gpukern.report.head import head
from pytest_gpukern.report.html import page
from pytest_gpukern.report.junit import properties
from pytest_gpukern.report.markdown import comment
from pytest_gpukern.report.progress import Progress, TimeLeft
from pytest_gpukern.report.run import Failure, Run
from pytest_gpukern.report.run_file import read_run
from pytest_gpukern.report.terminal import render, whole
from pytest_gpukern.values.fingerprint import Fingerprint
from pytest_gpukern.values.result import (
    CaseInfo,
    Correctness,
    GateFailure,
    SessionRole,
)
from pytest_gpukern.values.untrusted_json import FileError

REPOSITORY = Path(__file__).parents[2]
SEED = ""
LONGEST = 1200
"""Characters of an error about a file, its path left aside."""


def shortened(content):
    """A committed baseline with two cases of one epoch of two sessions."""
    data = json.loads(content)
    data["records"] = dict(list(data["records"].items())[:2])
    for record in data["records"].values():
        for epoch in record["epochs"]:
            epoch["sessions"] = [{"duration_s": 12.3, **session} for session in epoch["sessions"][:2]]
    return json.dumps(data, ensure_ascii=False).encode()


COMMITTED = [path.read_bytes() for path in sorted(REPOSITORY.glob("suites/*/baselines/*.json"))]


def case_of(baseline, name, record):
    epoch = record.epochs[-1]
    return CaseInfo(
        id=name,
        problem=baseline.problem,
        problem_version=epoch.problem_version,
        variant="exp",
        backend="cupy",
        point=record.point,
        measured_point=epoch.measured_point,
        parameters={},
        baseline_dir="baselines",
        baseline_name=baseline.problem,
    )


def use_baseline(baseline, path):
    """All that becomes of a baseline that was loaded."""
    again = render_baseline(baseline)
    assert parse(again, path) == baseline
    spreads = shared_spread(baseline.all_times())
    compared = []
    for name, record in baseline.cases.items():
        case = case_of(baseline, name, record)
        left_s = TimeLeft({name: baseline.duration_s(name) or 0.0}).left_s(1.0, 1, 3)
        Progress(None, in_place=True).show(name, 1, 2, left_s=left_s)
        made = []
        for key in sorted(record.keys):
            sessions = baseline.session_times(name, key)
            scope, timer, cache = key.split("/")
            first = sessions[0].median_ns
            clocks = {"clocks": {"sm_mhz": 1900.0}}
            fresh = [measured(first * f, scope, timer, cache, observations=clocks) for f in (1.01, 1.5)]
            basis = Basis(
                sessions,
                sessions[0].conditions,
                threshold=0.02,
                jitter_ns=30.0,
                shared=spreads.get(spread_key(key)),
                anchor=baseline.anchor_times(name, key),
            )
            suspicion = judge(fresh, basis)
            confirm(suspicion, fresh, basis)
            made.append((fresh[0], suspicion))
        found = dataclasses.replace(
            result("cupy.exp", *(each for each, _ in made), verdicts=[each for _, each in made]),
            case=case,
            kernels=kernel_facts((EXP_KERNEL,), (9, 0)),
            errors={each: error() for each in record.epochs[-1].correctness},
        )
        found = explained(found, lambda case, key: baseline.past(case.id, key))
        compared.append(Compared(found, baseline.past(name)))
        render(Run([found]), width=100, verbose=True)
    head(compared, shift_among(compared))


@contextlib.contextmanager
def about(number):
    """Tells of which file an error is, for `Mutations.file`."""
    try:
        yield
    except BaseException as problem:
        problem.add_note(f"file {number} of the seed {SEED!r}")
        raise


def fails_clearly(problem, path):
    """An error of ours names the file, what is wrong and what to do, on one line that is not endless."""
    text = str(problem)
    assert problem.path == path
    assert problem.problem
    assert problem.remedy
    assert text.startswith(f"{path}: ")
    assert len(text) <= len(str(path)) + LONGEST
    assert text.isprintable()


def is_harmless(text):
    """Whether a terminal that is sent a text does nothing but show it."""
    return all(char.isprintable() or char in "\n\u00a0" for char in text)


def runs(capsys, *arguments):
    """Runs a command on a file that can be read; what it printed."""
    status = cli.main([*map(str, arguments)])
    printed = capsys.readouterr()
    assert status in (0, 1), printed.err
    assert is_harmless(printed.out + printed.err)
    return printed.out


def commands_on(path):
    """The commands that read a baseline, each with its arguments."""
    return (
        ("baseline", "show", path),
        ("baseline", "list", path),
        ("compare", path, path),
        ("report", path, "-k", ""),
        ("baseline", "show", path, "--json"),
        ("baseline", "list", path, "--json"),
        ("compare", path, path, "--json"),
        ("baseline", "prune", path, "--case", "*", "--dry-run"),
    )


CREATED = datetime(2026, 11, 5, tzinfo=UTC)
RESULTS = [
    result(
        "cupy.exp",
        measured(
            timer="cupti",
            work=(EXP_KERNEL, COPY_IN),
            busy_ns=4e4,
            observations={"clocks": {"sm_mhz": 1980.0, "clock_events": ("sync_boost",)}},
            traffic_bytes=16e6,
            flops=8e6,
        ),
        measured(beside=True, fixed_cost_ns=2900.0, invalid_samples=3),
        measured(1e6, "end_to_end", "host", "cold", warnings=("odd",)),
        verdicts=[verdict("SLOWER", 1.05), verdict("SAME", 1.0), verdict("UNDECIDED", 1.01)],
        kernels=kernel_facts((EXP_KERNEL,), (9, 0), lambda kernel, registers: "beef"),
        compile_ns=3e8,
        first_call_ns=4e8,
        dtype="float32",
        ceilings=CEILINGS,
        notes=("a note",),
        session="s1",
        duration_s=2.5,
        canaries={"copy/cupti": 1e5},
        speedup_against="host.numpy",
    ),
    result("host.numpy", measured(2e6, "kernel", "host", "hot"), verdicts=[verdict("NEW")]),
    result("cupy.bad", correctness=Correctness.INCORRECT, diagnosis="3 elements are wrong"),
]


GREW = Failure("SLOWER", (GateFailure("SLOWER", "it grew"),))
SESSIONS = [
    dataclasses.replace(RESULTS[0], session=f"f{number}", role=role, verdicts={})
    for number, role in enumerate((SessionRole.CONFIRMING, SessionRole.FURTHER))
]
RUN = Run(
    RESULTS,
    {RESULTS[0].nodeid: SESSIONS},
    skips=[("copy/pycuda.copy", "library missing: pycuda")],
    failures={
        RESULTS[-1].nodeid: Failure("3 elements are wrong"),
        "test_x": GREW,
    },
    history={
        RESULTS[0].nodeid: RecordedCase(
            (RecordedEpoch("2026-11-01T00:00:00+00:00", "first"),),
            {"kernel/cupti/cold": (SessionTime(9, 5e4, 4e4, 6e4, session="a", device="b"),)},
        )
    },
    shift=Shift(8, 1.02, 1.01, 1.03, {"copy": CanaryChange(1.02, moved=True)}, 0.01),
    since_record=["since the record: driver 580 → 590"],
    heading=["gpukern: above"],
    closing=["gpukern: below"],
    problems=["a problem"],
    duration_s=30.0,
    spent_s={"checking": 20.0},
    created=CREATED,
)


def run_file(path):
    write_run_file(path, RUN)
    return path.read_bytes()


def use_run(run, path):
    """All that becomes of a run that was read."""
    again = path.with_name("again.json")
    write_run_file(again, run)
    assert read_run(again) == run
    whole(run, width=40, failures_shown=True)
    page([run])
    comment(run)
    csv_text([run])
    for each in run.results:
        properties(each)


def commands_on_run(path):
    """The commands that read a run, each with its arguments."""
    into = path.parent / "into" / "baselines"
    merge = ("baseline", "merge", path, "--into", into, "--all", "--write-in-ci")
    return (
        ("report", path),
        ("report", path, "-k", ""),
        ("compare", path, path),
        (*merge, "--reason=x"),
        (*merge, "--append"),
        ("compare", path, path, "--json"),
    )


def held(kind, read):
    """What a file holds that a command can work on."""
    return read.cases if kind == "a.b.json" else read.results


@pytest.mark.parametrize(
    ("name", "originals", "read", "use", "commands"),
    [
        ("a.b.json", lambda path: map(shortened, COMMITTED), load, use_baseline, commands_on),
        ("run.json", lambda path: [run_file(path)], read_run, use_run, commands_on_run),
    ],
    ids=["baseline", "run"],
)
def test_a_damaged_file_works_or_is_one_clear_error(tmp_path, capsys, name, originals, read, use, commands):
    path, loaded = tmp_path / name, 0
    files = Mutations(*originals(path), seed=SEED)
    for number in range(100):
        path.write_bytes(files.file(number))
        with about(number):
            try:
                found = read(path)
            except FileError as problem:
                fails_clearly(problem, path)
                continue
            loaded += 1
            use(found, path)
            if held(name, found):
                which = commands(path)
                runs(capsys, *which[loaded % len(which)])
            for written in tmp_path.glob("into/baselines/*.json"):
                load(written)
                written.unlink()
    assert 10 < loaded < 60  # enough of either to mean something
    known = {tmp_path / each for each in (name, "again.json", "into", "into/baselines")}
    assert set(tmp_path.rglob("*")) <= known


def test_a_damaged_line_of_a_child_session_is_taken_or_is_said_to_make_no_sense(tmp_path):
    file = tmp_path / "lines"
    told = [
        {"kind": "start", "nodeid": "test_a"},
        {"kind": "test", "nodeid": "a", "outcome": "passed", "text": "", "result": RESULTS[0].to_json()},
        {"kind": "modules", "modules": [["m", "m.py", "beef"]]},
        {"kind": "uncollected", "nodeid": "b", "text": "no"},
        {"kind": "listed", "nodeid": "a", "listed": {"name": "a"}},
        {"kind": "others", "nodeids": ["c"]},
        {"kind": "end", "status": 0},
    ]
    files = Mutations(*(json.dumps(line).encode() for line in told), seed=SEED)
    for number in range(200):
        file.write_bytes(files.file(number) + b"\n")
        heard = Heard(file, ChildRun())
        with about(number):
            heard.listen()
            assert all(isinstance(text, str) for told in heard.ran.outcomes.values() for text in told)
            assert heard.damage is None or len(heard.damage) < LONGEST


def test_a_damaged_entry_of_a_lock_names_a_holder_or_nobody(tmp_path):
    path = tmp_path / "gpu.lock"
    files = Mutations(json.dumps(dataclasses.asdict(Holder.here("GPU-1"))).encode(), seed=SEED)
    for number in range(200):
        path.write_bytes(files.file(number))
        with about(number):
            assert str(read_holder(path))


# what is not left to chance

NASTY = [
    *(
        b"",
        b" \n",
        b"\0",
        b"\xef\xbb\xbf{}",
        b"\xff\xfe{\x00}\x00",
        b"null",
        b"true",
        b"[]",
        b"{}",
        b'"text"',
    ),
    *(
        b"[" * 100_000,
        b"[" * 100_000 + b"]" * 100_000,
        b'{"a":' * 100_000,
        b"1" * 1_000_000,
        b'"' + b"x" * 1_000_000,
    ),
    *(
        b"-" * 100_000,
        b"{" + b'"a":1,' * 100_000 + b'"b":1}',
        b'{"schema": 1' + b"0" * 400 + b"}",
        b'{"schema": 1e400}',
    ),
    *(b'{"schema": NaN}', b'{"schema": "\\ud800"}', b'{"schema": "' + b"\\u001b[2J" * 1000 + b'"}'),
    b'{"' + b"\\u001b" * 100_000 + b'": 1, "schema": 2}',
]


@pytest.mark.parametrize("content", NASTY, ids=range(len(NASTY)))
@pytest.mark.parametrize("read", [load, read_run])
def test_what_is_no_file_of_ours_is_one_clear_error(tmp_path, content, read):
    path = tmp_path / "\x1b[2J.json"
    path.write_bytes(content)
    with pytest.raises(FileError) as caught:
        read(path)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) <= len(str(path)) + LONGEST


ELSEWHERE = [
    "../up",
    "a/../../up",
    "/tmp/up",
    "..",
    "a\0b",
    "a\nb",
    "\x1b[31m",
    "~/up",
    "\ud800",
    "CON:",
    "x" * 5000,
]


@pytest.mark.parametrize("name", ELSEWHERE, ids=range(len(ELSEWHERE)))
def test_names_of_a_run_file_lead_nowhere_else(tmp_path, capsys, monkeypatch, name):
    here = tmp_path / "here"
    here.mkdir()
    (tmp_path / "test_it.py").write_text("")
    monkeypatch.chdir(here)
    fingerprint = Fingerprint(device_name=name, device_model_key=name, cpu_model=name)
    case = dataclasses.replace(RESULTS[0].case, id=name, baseline_dir=name, baseline_name=name, problem=name)
    nodeids = (f"{name}::test_it", f"{name}/test_it.py::test_it", f"../test_it.py::{name}")
    forged = [
        dataclasses.replace(RESULTS[0], nodeid=nodeid, case=case, fingerprint=fingerprint, session=name)
        for nodeid in nodeids
    ]
    skips, failures = [(name, name)], {name: Failure(name)}
    forged_run = Run(forged, skips=skips, failures=failures, closing=[name], version=name)
    write_run_file(tmp_path / "run.json", forged_run)
    before = set(tmp_path.rglob("*"))
    for into in (None, here / "into"):
        folder = [] if into is None else ["--into", into]
        merge = ("baseline", "merge", tmp_path / "run.json", *folder, "--all", "--write-in-ci")
        runs(capsys, *merge, f"--reason={name}")
    new = {path for path in set(tmp_path.rglob("*")) - before if path.is_file()}
    assert all(path.parent == here / "into" for path in new)
    runs(capsys, "report", tmp_path / "run.json", "-k", "")


def test_escape_sequences_of_a_baseline_are_shown_and_not_sent(tmp_path, capsys):
    sequence = "\x1b]0;owned\x07\x1b[2J\x9b31m\u202e"
    data = json.loads(shortened(COMMITTED[0]))
    data["device_model"] += sequence
    for entry in data["fingerprints"].values():
        entry["driver_version"] = sequence
    data["records"] = {name + sequence: record for name, record in data["records"].items()}
    for record in data["records"].values():
        record["epochs"][0]["reason"] = sequence
    path = tmp_path / f"{sequence}.b.json"
    path.write_text(json.dumps(data))
    for arguments in commands_on(path):
        printed = runs(capsys, *arguments)
        assert "\\u001b" in printed or "1 measurement" in printed or "compared" in printed


def test_nothing_that_is_read_is_executed():
    for path in (REPOSITORY / "pytest_gpukern").rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        for name in ("pickle", "marshal", "shelve", "yaml.load(", "yaml.unsafe"):
            assert f"import {name}" not in text, path
            assert f"{name}(" not in text, path
            assert f"{name}.load" not in text, path
