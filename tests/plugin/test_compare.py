"""Checks `gpukern compare` on runs and baselines in any combination, by the gate's rule."""

import csv
import io
import json
import shutil
from collections import Counter

import pytest
from made_up_runs import whole_run

from pytest_gpukern.cli import main as cli
from pytest_gpukern.values.result import Verdict
from pytest_gpukern.values.verdict_table import VerdictKind

from .conftest import FIRST, SECOND

KEY = "kernel/event/cold"


@pytest.fixture
def compare(capsys):
    def run(*arguments):
        capsys.readouterr()
        status = cli.main(["compare", *map(str, arguments)])
        return status, *capsys.readouterr()

    return run


@pytest.fixture
def rows(compare, tmp_path):
    """Compares, and returns the status with the rows of the table, those of B's other sessions apart."""

    def run(*arguments):
        status, shown, complaints = compare(*arguments, "-o", tmp_path / "compared.csv")
        assert (shown, complaints) == ("", "")
        found = list(csv.DictReader(io.StringIO((tmp_path / "compared.csv").read_text())))
        return status, [row for row in found if row["role"] == "measured"], found

    return run


def edit(path, change):
    """Changes the results of a run file, as plain JSON, and the further sessions that a test gives them."""
    content = whole_run(path)
    change(content)
    path.write_text(json.dumps(content))


RUN, FOLDER, FILE = "{}.json", "{}", "{}/doubling.fake-gpu.json"


@pytest.mark.parametrize(("a", "b"), [(RUN, FOLDER), (FOLDER, FILE), (FILE, RUN)])
def test_what_became_slower_is_found_in_runs_files_and_folders(files, compare, a, b):
    a, b = files / a.format("before"), files / b.format("after")
    status, shown, complaints = compare(a, b)
    assert (status, complaints) == (0, ""), "one session of A gates nothing"
    are = "are right" if b.name == "after.json" else "recorded"  # nothing ran for a record
    pytest.LineMatcher(shown.splitlines()).fnmatch_lines(
        [
            "gpukern: measured with the same device, driver and libraries",
            f"PASSED: 2 cases {are}, 1 slower",
            f"compared with A, {a}",
            "  variant * time * verdict",
            "  numba.first* 1.100 µs * SLOWER +10.0 %",
            "  numba.second* 1.000 µs * SAME",
            f"slower * {FIRST}: +10.0 %",
            "gpukern: 2 passed · of 2 times: 1 same, 1 slower",
        ]
    )
    _, shown, _ = compare(a, b, "-k", "first")
    assert f"SLOWER {FIRST} ({KEY}): +10.0 % (90 %: " in shown
    assert "second" not in shown
    assert compare(a, b, "-k", "third")[::2] == (
        1,
        f"gpukern compare: no case with 'third' in its id in {b}\n",
    )


def test_each_form_of_the_report_tells_of_it(files, compare, rows, capsys):
    status, (first, second), _ = rows(files / "before", files / "after.json")
    assert status == 0
    assert (first["case"], first["verdict"], second["verdict"]) == (FIRST, "SLOWER", "SAME")
    ratio, low, high = (float(first[name]) for name in ("ratio", "ratio_low", "ratio_high"))
    assert ratio == pytest.approx(1.1)
    assert low < ratio < high
    assert float(first["median_ns"]) == pytest.approx(1100)
    both = files / "before", files / "after.json"
    assert compare(*both, "-o", files / "compared.json") == (0, "", "")
    told = compare(*both)[1]
    assert compare(*both, "-o", files / "compared.pdf")[0] == 2
    capsys.readouterr()
    assert cli.main(["report", str(files / "compared.json")]) == 0
    assert capsys.readouterr().out == told


def test_the_threshold_is_that_of_the_command_line(files, compare, capsys):
    status, shown, _ = compare(files / "before", files / "after", "--threshold=20%")
    assert status == 0
    assert shown.endswith(": 2 same\n")
    with pytest.raises(SystemExit) as end:
        compare("before", "after", "--threshold=2")
    assert end.value.code == 2
    assert "more than 0 and less than 100 %" in capsys.readouterr().err


def test_what_differs_between_the_machines_comes_first(files, compare):
    def of(driver, numba):
        def change(content):
            for fingerprint in [each["fingerprint"] for each in content["results"]]:
                fingerprint["driver_version"] = driver
                fingerprint["libraries"]["numba"] = numba

        return change

    edit(files / "before.json", of("580.1", "0.98"))
    edit(files / "after.json", of("590.1", "0.99"))
    _, shown, _ = compare(files / "before.json", files / "after.json")
    assert shown.splitlines()[:2] == ["gpukern: driver 580.1 → 590.1", "numba 0.98 → 0.99"]


def of_sessions(*factors, uuids=()):
    """Returns an edit of a run file: sessions with times scaled by these factors, on these devices."""

    def change(content):
        devices = list(uuids) or ["GPU-a"] * len(factors)
        sessions = []
        for number, (factor, uuid) in enumerate(zip(factors, devices, strict=True)):
            for result in json.loads(json.dumps(content["results"])):
                on = {**result["fingerprint"], "device_uuid": uuid}
                summary = result["measurements"][0]["summary"]
                summary.update({name: factor * summary[name] for name in ("median_ns", "low_ns", "high_ns")})
                role = "further" if number else "measured"
                sessions.append({**result, "session": f"0000000{number}", "fingerprint": on, "role": role})
        first = len(content["results"])
        content["results"], content["sessions"] = sessions[:first], sessions[first:]

    return change


@pytest.mark.parametrize(
    ("old", "new", "status", "words"),
    [
        ((1, 1, 1), (1, 1), 1, "2 fresh sessions confirmed at least"),
        ((1, 1, 1), (1,), 0, "; not confirmed: B has 1 of 2 sessions"),
        ((1, 1), (1, 1, 1), 0, "reported, not gated: 2 of 3 sessions recorded"),
    ],
)
def test_the_status_follows_the_gate(files, compare, rows, old, new, status, words):
    edit(files / "before.json", of_sessions(*old))
    edit(files / "after.json", of_sessions(*new))
    found, shown, _ = compare(files / "before.json", files / "after.json")
    assert found == status
    card = [
        f"SLOWER  {FIRST}",
        "  kernel    1.00 → 1.10 µs, +10.0 % *, threshold 2 %",
        "  repeat    pytest *",
    ]
    passed = ["PASSED: 2 cases are right, 1 slower"]
    pytest.LineMatcher(shown.splitlines()).fnmatch_lines(card if status else passed)
    _, (first, _), _ = rows(files / "before.json", files / "after.json")
    assert (first["verdict"], words in first["reason"]) == ("SLOWER", True)
    assert compare(files / "before.json", files / "after.json", "--fail-on=host")[0] == status
    assert compare(files / "before.json", files / "after.json", "--fail-on=undecided")[0] == 1


def test_what_fails_the_command_is_told_with_its_reason_whatever_kind_it_is_of(files, compare, monkeypatch):
    kinds = [
        kind for kind in VerdictKind if kind.row.always_fails or (kind.row.fail_on and kind.row.shows_reason)
    ]
    assert len(kinds) > 3
    for kind in kinds:
        verdict = Verdict(kind, "the moon is full")
        monkeypatch.setattr("pytest_gpukern.cli.compare.judge", lambda *_, verdict=verdict: verdict)
        asked = [f"--fail-on={kind.row.fail_on}"] if kind.row.fail_on else []
        status, shown, _ = compare(files / "before.json", files / "after.json", *asked)
        assert status == 1
        card = [f"{kind}  2 tests: {FIRST}, {SECOND}", "  what      the moon is full"]
        pytest.LineMatcher(shown.splitlines()).fnmatch_lines(card)


def test_a_hosts_time_is_reported_and_fails_only_where_the_command_line_says_so(
    host, pytester, compare, rows
):
    host("--gpu-benchmark", "--gpukern-report=before.json")
    shutil.copy("before.json", "after.json")
    edit(pytester.path / "before.json", of_sessions(1, 1, 1))
    edit(pytester.path / "after.json", of_sessions(9, 9, 9))
    sides = pytester.path / "before.json", pytester.path / "after.json"
    status, (first, *_), _ = rows(*sides)
    assert "a host time fails no test by default (--fail-on=host)" in first["reason"]
    assert status == 0
    assert compare(*sides, "--fail-on=host")[0] == 1
    with pytest.raises(SystemExit):
        compare(*sides, "--fail-on=tail")


def test_the_sessions_of_b_are_judged_together_and_by_those_of_their_device(files, rows):
    """The change is of means of logarithms, and of A the sessions of B's device count if they are enough."""
    edit(files / "before.json", of_sessions(1, 1, 1.3, 5, uuids=["GPU-a"] * 3 + ["GPU-b"]))
    edit(files / "after.json", of_sessions(1, 1.3, 1.3, uuids=["GPU-a"] * 3))
    _, (_, second), found = rows(files / "before.json", files / "after.json")
    assert float(second["ratio"]) == pytest.approx(1.3 ** (1 / 3))
    assert [row["role"] for row in found if row["case"] == SECOND] == ["measured", "further", "further"]


@pytest.fixture
def other_model(files):
    """Gives a folder of baselines the file of another device model, with the same times."""

    def add(folder):
        text = (files / folder / "doubling.fake-gpu.json").read_text().replace('"fake-gpu"', '"other-gpu"')
        (files / folder / "doubling.other-gpu.json").write_text(text)

    return add


def test_each_device_model_of_b_is_judged_by_itself(files, compare, rows, other_model):
    other_model("before")
    _, shown, _ = compare(files / "before", files / "after.json")
    assert shown.endswith(": 1 same, 1 slower\n"), "a run by its own"
    other_model("after")
    _, found, _ = rows(files / "before", files / "after")
    assert [(row["run"].split(".")[1], row["case"], row["verdict"]) for row in found] == [
        ("fake-gpu", FIRST, "SLOWER"),
        ("fake-gpu", SECOND, "SAME"),
        ("other-gpu", FIRST, "SLOWER"),
        ("other-gpu", SECOND, "SAME"),
    ]
    _, shown, _ = compare(files / "before", files / "after")
    assert shown.count("doubling.other-gpu.json\n") == shown.count("doubling.fake-gpu.json\n") == 1


def test_what_only_another_device_model_measured_is_uncomparable(files, rows, other_model):
    other_model("before")
    (files / "before" / "doubling.fake-gpu.json").unlink()
    _, found, _ = rows(files / "before", files / "after.json")
    told = [("UNCOMPARABLE", "recorded on other-gpu, now fake-gpu")] * 2
    assert [(row["verdict"], row["reason"]) for row in found] == told


def test_sessions_of_several_devices_are_not_taken_for_those_of_the_first(files, compare):
    """As where the second device is slower: that is no change of the code."""

    shutil.copy(files / "before.json", files / "two.json")
    edit(files / "before.json", of_sessions(1, 1, 1, uuids=["GPU-a"] * 3))
    edit(files / "two.json", of_sessions(1, 1.1, 1.1, uuids=["GPU-a", "GPU-b", "GPU-b"]))
    status, shown, _ = compare(files / "before.json", files / "two.json")
    assert (status, "SLOWER" in shown) == (0, False)


def test_cases_and_measurements_on_one_side_only_are_named(files, compare, rows):
    def rename(content):
        content["results"][0]["case"]["id"] = "doubling/numba.brand_new/n=8"
        content["results"][1]["measurements"][0]["cache"] = "hot"

    edit(files / "after.json", rename)
    status, shown, _ = compare(files / "before", files / "after.json")
    assert status == 0
    assert shown.splitlines()[-2:] == [
        "gpukern: 2 passed · of 2 times: 2 new",
        f"gpukern: only in A: {FIRST}, {SECOND} ({KEY})",
    ]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            lambda result: result["measurements"][0].update(invalid="throttled"),
            ["INVALID", "throttled"],
        ),
        (
            lambda result: result["measurements"][0]["summary"].update(median_ns=None),
            ["INVALID", "a time that is not finite, or not in its interval"],
        ),
        (
            lambda result: result.update(correctness="INCORRECT", diagnosis="y[3]\nis 0", measurements=[]),
            ["INCORRECT", "y[3]"],
        ),
    ],
    ids=["invalid", "infinite", "incorrect"],
)
def test_what_cannot_be_trusted_in_b_is_as_bad_as_slower(files, compare, change, words):
    edit(files / "before.json", lambda content: change(content["results"][1]))
    status, shown, _ = compare(files / "before", files / "before.json")
    assert status == 1
    kind, what = words
    assert f"\n{kind}  {SECOND}\n  what      {what}\n" in shown
    assert compare(files / "before", files / "before.json", "-o", files / "compared.json")[0] == 1


def test_what_cannot_be_trusted_in_a_is_not_compared_with(files, compare):
    edit(
        files / "before.json", lambda content: content["results"][0]["measurements"][0].update(invalid="hot")
    )
    status, shown, _ = compare(files / "before.json", files / "after.json")
    assert status == 0
    assert shown.endswith(": 1 same, 1 new\n")


def test_what_cannot_be_read_is_named(files, compare):
    (files / "after.json").write_text("{")
    shutil.rmtree(files / "before")
    (files / "before").mkdir()
    for b, words in (("after.json", "cannot be read"), ("none.json", "cannot be read")):
        status, shown, complaints = compare(files / "before.json", files / b)
        assert (status, shown) == (3, "")
        assert complaints.startswith(f"gpukern compare: {files / b}: {words}")
    assert f"{files / 'before'}: holds no baseline files" in compare(files / "before", files / "after")[2]


def test_a_run_with_sessions_of_its_own_is_compared_by_those_that_stand_for_the_time(files, rows):
    """Two confirmed the slowdown, and the session that raised the suspicion, at 1.1 µs, does not count."""

    def confirmed(content):
        (first,) = (each for each in content["results"] if each["case"]["id"] == FIRST)
        told = {"kind": "SLOWER", "reason": "confirmed", "ratio": 1.05}
        first["verdicts"] = {KEY: told}
        content["sessions"] = [
            {**first, "session": f"0000000{number}", "role": role, "verdicts": {}}
            for number, role in enumerate(("further", "confirming", "confirming", "further"))
        ]

    edit(files / "after.json", confirmed)
    *_, found = rows(files / "before.json", files / "after.json")
    assert Counter(row["case"] for row in found) == {FIRST: 3, SECOND: 1}
