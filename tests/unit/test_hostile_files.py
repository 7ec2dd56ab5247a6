"""Files that somebody damaged or forged: each works, or is one clear error."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import gzip
import json
import os
from datetime import UTC, datetime
from pathlib import Path

import made_up_records
import pytest
from made_up_results import CEILINGS, COPY_IN, EXP_KERNEL, error, measured, result, verdict
from made_up_runs import write_run_file
from mutations import Mutations

from pytest_gpukern.baseline.codec import load, parse
from pytest_gpukern.baseline.codec import render as render_baseline
from pytest_gpukern.baseline.record import RecordedCase, RecordedEpoch, SessionEntry
from pytest_gpukern.cli import main as cli
from pytest_gpukern.cli.exits import FINE, UNREADABLE
from pytest_gpukern.cli.init import init
from pytest_gpukern.findings.common_shift import CanaryChange, Compared, Shift, shift_among
from pytest_gpukern.findings.findings import explained
from pytest_gpukern.gate.comparability import SessionTime
from pytest_gpukern.gate.judge import Basis, confirm, judge
from pytest_gpukern.gate.spread import shared_spread, spread_key
from pytest_gpukern.gpu.kernel_facts import kernel_facts
from pytest_gpukern.report.csv_table import csv_text
from pytest_gpukern.report.head import head
from pytest_gpukern.report.html import page
from pytest_gpukern.report.junit import properties
from pytest_gpukern.report.markdown import comment
from pytest_gpukern.report.run import Failure, RunResults, Skip
from pytest_gpukern.report.run_file import read_run
from pytest_gpukern.report.terminal import render
from pytest_gpukern.values.fingerprint import Fingerprint, Provenance
from pytest_gpukern.values.note import About, Note
from pytest_gpukern.values.result import CaseInfo, Correctness, GateFailure, SessionRole
from pytest_gpukern.values.untrusted_json import MOST_BYTES, FileError, printable

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


COMMITTED = [path.read_bytes() for path in sorted(REPOSITORY.glob("suites/*/baselines/*.*-*.json"))]


def case_of(baseline, name, record):
    epoch = record.epochs[-1]
    return CaseInfo(
        id=name,
        problem=baseline.problem,
        problem_version=epoch.problem_version,
        variant="exp",
        backend="cupy",
        point=record.point,
        parameters={},
        baseline_dir="baselines",
        baseline_name=baseline.problem,
    )


def says_nothing(value):
    """Whether a value is a default that a file leaves out."""
    return not value or (isinstance(value, dict) and all(map(says_nothing, value.values())))


def holds(whole, part):
    """Whether all that one JSON value says stands in another: nothing of a file may be lost silently."""
    if isinstance(part, dict):
        return all(
            holds(whole[name], item) if name in whole else says_nothing(item) for name, item in part.items()
        )
    if isinstance(part, list):
        return len(whole) == len(part) and all(map(holds, whole, part))
    return whole == part


def use_baseline(baseline, path):
    """All that becomes of a baseline that was loaded."""
    again = render_baseline(baseline)
    assert parse(again, path) == baseline
    assert holds(json.loads(again), json.loads(path.read_bytes()))
    spreads = shared_spread(baseline.all_times())
    compared = []
    for name, record in baseline.cases.items():
        case = case_of(baseline, name, record)
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
        found = explained(found, functools.partial(baseline.past, name))
        compared.append(Compared(found, baseline.past(name)))
        render(RunResults([found]), width=100, verbose=True)
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
    assert text.startswith(printable(f"{path}: "))
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
        ("compare", path, path),
        ("report", path, "-k", ""),
        ("compare", path, path, "-k", ""),
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
        measured(
            1e6,
            "end_to_end",
            "host",
            "cold",
            notes=(Note("odd", About.NOISE),),
            device_ns=6e4,
            invalid_samples=3,
        ),
        measured(2e3, "launch", "host", "hot", fixed_cost_ns=2900.0),
        verdicts=[verdict("SLOWER", 1.05), verdict("UNDECIDED", 1.01), verdict("SAME", 1.0)],
        kernels=kernel_facts((EXP_KERNEL,), (9, 0), lambda kernel, registers: "beef"),
        compile_ns=3e8,
        first_call_ns=4e8,
        dtype="float32",
        ceilings=CEILINGS,
        notes=(Note("a note"),),
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
RUN = RunResults(
    RESULTS,
    {RESULTS[0].nodeid: SESSIONS},
    skips=[Skip("copy/pycuda.copy", "library missing: pycuda")],
    failures={RESULTS[-1].nodeid: Failure("3 elements are wrong"), "test_x": GREW},
    history={
        RESULTS[0].nodeid: RecordedCase(
            (RecordedEpoch("2026-11-01T00:00:00+00:00", "first"),),
            {"kernel/cupti/cold": (SessionTime(9, 5e4, 4e4, 6e4, session="a", device="b"),)},
        )
    },
    recorded_sessions={"a": SessionEntry("2026-11-01T00:00:00Z", "f", {"copy": 1e5}, Provenance("0" * 40))},
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
    written = {**json.loads(again.read_bytes()), "created": json.loads(path.read_bytes())["created"]}
    assert holds(written, json.loads(path.read_bytes()))
    page([run])
    comment(run)
    csv_text([run])
    for each in run.results:
        properties(RunResults([each]))


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
        ("compare", path, path, "-k", ""),
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


# what is not left to chance: one table of damages, each with what the error says

KEY = "kernel/cupti/cold"
CASE = ("records", "vector_exp/cupy.exp/n=1000")
EPOCH = (*CASE, "epochs", 0)
SESSION = (*EPOCH, "sessions", 0)
TIME = (*SESSION, "times", KEY)
ENTRY = ("sessions", "s1")
IN_SESSION = f"{CASE[0]}['{CASE[1]}'].epochs[0].sessions[0]"
FIRST = ("results", 0)
TIMED = (*FIRST, "measurements", 0)
KERNEL = (*TIMED, "work", 0, "kernel")
DEEP = b"[" * 200_000

NO_FILE_OF_OURS = {
    "empty": (b" \n", "is empty"),
    "nothing": (b"", "is empty"),
    "a NUL": (b"\0", "is not complete JSON"),
    "a byte order mark": (b"\xef\xbb\xbf{}", "is not complete JSON"),
    "UTF-16": (b"\xff\xfe{\x00}\x00", "is not UTF-8 text"),
    "null": (b"null", "expected `object`, found None"),
    "true": (b"true", "expected `object`, found True"),
    "a list": (b"[1]", "expected `object`, found [1]"),
    "a text": (b'"text"', "expected `object`, found 'text'"),
    "an empty object": (b"{}", "schema: is missing"),
    "cut": (b'{"schema": 1, ', "is not complete JSON: "),
    "deep": (b'{"schema": ' + DEEP + b"]" * len(DEEP) + b"}", "is nested too deeply"),
    "deep and cut": (DEEP, ""),
    "deep objects": (b'{"a":' * 100_000, ""),
    "a long number": (b"1" * 1_000_000, "is out of range"),
    "a long text that is cut": (b'"' + b"x" * 1_000_000, "is not complete JSON"),
    "many signs": (b"-" * 100_000, "is not complete JSON"),
    "many keys": (b"{" + b'"a":1,' * 100_000 + b'"b":1}', "holds the key 'a' twice in one object"),
    "a key twice": (b'{"schema": 1, "schema": 1}', "holds the key 'schema' twice"),
    "a huge number": (b'{"schema": 1' + b"0" * 400 + b"}", "is out of range"),
    "a number past a float's range": (b'{"schema": 1e400}', "holds the number 1e400, which is out of range"),
    "no number": (b'{"schema": NaN}', "holds NaN, which is not a JSON number"),
    "half of a pair": (b'{"schema": 1, "x": "\\ud800"}', "is not UTF-8 text"),
    "escape sequences": (b'{"schema": "' + b"\\u001b[2J" * 1000 + b'"}', "schema: "),
    "a key of escape sequences": (b'{"' + b"\\u001b" * 100_000 + b'": 1, "schema": 2}', ""),
    "an older schema": ((("schema",), 1), "schema: is 1, and this pytest-gpukern reads "),
    "a newer schema": ((("schema",), 99), "Upgrade pytest-gpukern"),
    "no schema": ((("schema",), ...), "schema: is missing"),
    "a schema of text": ((("schema",), "3"), "schema: is '3', and this pytest-gpukern reads "),
    "a field of a later release": ((("future",), 1), "future: is not a known field"),
    "a merge conflict": ((b"{", b"{\n<<<<<<< HEAD\n"), ""),
}
"""Name → damage, and words of the error. A damage is a whole file; bytes and what to put in their place; or
the way to a value and another one, where … takes it away."""

DAMAGED_BASELINES = {
    **NO_FILE_OF_OURS,
    "a merge conflict": ((b"{", b"{\n<<<<<<< HEAD\n"), "Take one side with git checkout --ours FILE"),
    "a time of text": (((*TIME, "median_ns"), "abc"), f"{IN_SESSION}.times['{KEY}'].median_ns: expected"),
    "no time": (((*TIME, "median_ns"), 0), "median_ns: expected `float` > 0.0, found 0"),
    "an endless time": (((*TIME, "median_ns"), 10**400), "is out of range"),
    "a time past 64 bits": (((*TIME, "median_ns"), 2**70), "holds the number 1180591620717411303424"),
    "bounds that cross": (((*TIME, "low_ns"), 50_001), "expected low_ns ≤ median_ns ≤ high_ns"),
    "an upper bound below": (((*TIME, "high_ns"), 48_599), "expected low_ns ≤ median_ns ≤ high_ns"),
    "a bound that is gone": (((*TIME, "low_ns"), ...), "low_ns: is missing"),
    "falling quantiles": (((*TIME, "quantiles_ns"), [5, 4, 3, 2, 1]), "expected ascending numbers"),
    "a list of times": ((TIME, [1] * 30), f"times['{KEY}']: expected `object`"),
    "no times": (((*SESSION, "times"), {}), "times: expected `object` of length >= 1"),
    "half a key": (((*SESSION, "times", "kernel"), {}), "times['kernel']: expected `str` matching regex"),
    "a session that is gone": (((*SESSION, "session"), "x"), "expected one of the keys under sessions"),
    "a duration that is no number": (((*SESSION, "duration_s"), float("nan")), "holds NaN"),
    "an unknown fact": (((*SESSION, "weather"), "fine"), f"{IN_SESSION}.weather: is not a known field"),
    "a version that is true": (((*EPOCH, "problem_version"), True), "expected `int`, found True"),
    "a deep point": (((*CASE, "point"), {"n": [[[[[[[[1]]]]]]]]}), "found [[1]]"),
    "no date": (((*ENTRY, "recorded"), "yesterday"), "found 'yesterday'"),
    "a fingerprint that is gone": (((*ENTRY, "fingerprint"), "x"), "one of the keys under fingerprints"),
    "provenance of a person": (((*ENTRY, "provenance"), {"user": "me"}), "user: is not a known field"),
    "a fingerprint with a host": ((("fingerprints", "f"), {"host": "a"}), "['f'].host: is not a known field"),
    "a case of both sides": ((b'"records": {', b'"records": {"a": {}, "a": {}, '), "the key 'a' twice"),
    "spaces between": ((b'"problem": "', b'"problem" : "x", "problem": "'), "the key 'problem' twice"),
    "no bits of both sides": ((b'"max_abs": ', b'"bits": null, "bits": null, "max_abs": '), "'bits' twice"),
    "a name that is escaped": ((b'"device_name": ', b'"device\\u005fname": "a", "device_name": '), "twice"),
}
DAMAGED_RUNS = {
    **NO_FILE_OF_OURS,
    "no results": ((("results",), ...), "results: is missing"),
    "no date": ((("created",), "yesterday"), "created: Invalid RFC3339 encoded datetime"),
    "a number for a result": (((*FIRST,), 7), "results[0]: expected `object`, found 7"),
    "an unknown condition": (((*FIRST, "fingerprint", "driver"), 1), "fingerprint.driver: is not a known"),
    "an unknown fact": (((*FIRST, "colour"), "red"), "results[0].colour: is not a known field"),
    "an unknown correctness": (((*FIRST, "correctness"), "MAYBE"), "correctness: Invalid enum value 'MAYBE'"),
    "a point that is a list": (((*FIRST, "case", "point"), []), "results[0].case.point: expected `object`"),
    "a block of text": (((*KERNEL, "block", 1), "x"), "work[0].kernel.block[1]: expected `int`, found 'x'"),
    "an unknown role": ((("sessions", 0, "role"), "best"), "sessions[0].role: Invalid enum value 'best'"),
    "a result of both sides": ((b'"nodeid": ', b'"nodeid": "x", "nodeid": '), "the key 'nodeid' twice"),
}


REMEDIES = ("--gpukern-baseline=create", "--gpukern-report", "Upgrade pytest-gpukern", "git checkout --ours")


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    """The contents of a good baseline and of a good run, by the function that reads them."""
    folder = tmp_path_factory.mktemp("good")
    case = dataclasses.replace(RESULTS[0].case, baseline_dir=str(folder))
    made_up_records.record("create", dataclasses.replace(RESULTS[0], case=case))
    (path,) = folder.iterdir()
    return {load: path.read_bytes(), read_run: run_file(folder / "run.json")}


def damaged(content, damage):
    """A good file with a damage of the tables above."""
    if isinstance(damage, bytes):
        return damage
    way, value = damage
    if isinstance(way, bytes):
        assert way in content
        return content.replace(way, value, 1)
    data = json.loads(content)
    place = data
    for step in way[:-1]:
        place = place[step]
    if value is ...:
        del place[way[-1]]
    else:
        place[way[-1]] = value
    return json.dumps(data).encode()


@pytest.mark.parametrize(
    ("read", "damage", "words"),
    [
        pytest.param(read, *row, id=f"{kind}: {name}")
        for kind, read, rows in (("baseline", load, DAMAGED_BASELINES), ("run", read_run, DAMAGED_RUNS))
        for name, row in rows.items()
    ],
)
def test_a_damage_is_one_clear_error_that_names_it(tmp_path, good, read, damage, words):
    path = tmp_path / "\x1b[2J.json"
    path.write_bytes(damaged(good[read], damage))
    with pytest.raises(FileError) as caught:
        read(path)
    fails_clearly(caught.value, path)
    assert words in str(caught.value)
    assert any(remedy in caught.value.remedy for remedy in REMEDIES)


STRANGE = {
    "a pipe": (os.mkfifo, "cannot be read"),
    "a device": (lambda path: path.symlink_to("/dev/zero"), "cannot be read"),
    "a link to itself": (lambda path: path.symlink_to(path), "cannot be read"),
    "a sparse file": (lambda path: [path.touch(), os.truncate(path, 10 << 30)], "holds more than 256 MiB"),
    "a gzip bomb": (lambda path: path.write_bytes(gzip.compress(b" " * (MOST_BYTES + 1), 1)), "holds more"),
    "50 MiB of brackets": (lambda path: path.write_bytes(b"[]," * 2**24), "is damaged"),
}


@pytest.mark.parametrize(("make", "words"), STRANGE.values(), ids=STRANGE)
def test_what_is_no_file_of_ours_neither_hangs_nor_fills_the_memory(tmp_path, make, words, capsys):
    path = tmp_path / "h-0.json"
    make(path)
    for read in (load, read_run):
        with pytest.raises(FileError, match=words) as caught:
            read(path)
        fails_clearly(caught.value, path)
    run_file(tmp_path / "i-0.json")
    assert cli.main(["fleet", str(tmp_path)]) in (1, 3)
    said = " ".join(capsys.readouterr().out.split())
    assert words in said[said.index("UNREADABLE") :]


@pytest.mark.parametrize("make", [os.mkfifo, lambda path: path.symlink_to("/dev/null")])
def test_what_is_no_regular_file_is_never_replaced_and_a_link_to_nothing_is_followed(tmp_path, make):
    path = tmp_path / "pyproject.toml"
    make(path)
    assert init(tmp_path) == UNREADABLE
    assert [*tmp_path.iterdir()] == [path]
    path.unlink()
    path.symlink_to("target")
    assert init(tmp_path) == FINE
    assert path.is_symlink()


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
    skips, failures = [Skip(name, name, name)], {name: Failure(name)}
    forged_run = RunResults(forged, skips=skips, failures=failures, closing=[name], version=name)
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
