"""Checks `gpukern compare` on runs and baselines in any combination, by the gate's rule."""

import json
import shutil

import pytest

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


def edit(path, change):
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


RUN, FOLDER, FILE = "{}.json", "{}", "{}/doubling.fake-gpu.json"


@pytest.mark.parametrize(("a", "b"), [(RUN, FOLDER), (FOLDER, FILE), (FILE, RUN)])
def test_what_became_slower_is_found_in_runs_files_and_folders(files, compare, a, b):
    status, shown, complaints = compare(files / a.format("before"), files / b.format("after"))
    assert (status, complaints) == (0, ""), "one session of A gates nothing"
    pytest.LineMatcher(shown.splitlines()).fnmatch_lines(
        [
            "measured with the same device, driver and libraries",
            "",
            "  measured * A * B * sessions * change * 90 % interval * verdict",
            FIRST,
            f"  {KEY} * 1.00 µs * 1.10 µs * 1, 1 * +10.0 % * SLOWER",
            SECOND,
            f"  {KEY} * 1.00 µs * 1.00 µs * 1, 1 * 0.0 % * SAME",
            "",
            f"SLOWER: {FIRST} ({KEY}): +10.0 % *, threshold 2 %*",
            "2 measurements compared: 1 same, 1 slower",
        ]
    )


def test_for_machines(files, compare):
    status, shown, _ = compare(files / "before", files / "after.json", "--json")
    assert shown.isascii()
    found = json.loads(shown)
    first, second = found["measurements"]
    assert status == 0
    assert (first["case"], first["key"], first["verdict"]) == (FIRST, KEY, "SLOWER")
    assert first["fails"] is False
    assert first["ratio"] == pytest.approx(1.1)
    assert first["ratio_low"] < first["ratio"] < first["ratio_high"]
    assert (first["a_ns"], first["b_ns"]) == pytest.approx((1000, 1100))
    assert second["verdict"] == "SAME"
    assert found["differences"] == []


def test_the_threshold_is_that_of_the_command_line(files, compare, capsys):
    status, shown, _ = compare(files / "before", files / "after", "--threshold=20%")
    assert status == 0
    assert "2 measurements compared: 2 same" in shown
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
    assert shown.splitlines()[:3] == ["driver 580.1 → 590.1", "numba 0.98 → 0.99", ""]


def of_sessions(*factors, uuids=()):
    """Returns an edit of a run file: sessions with times scaled by these factors, on these devices."""

    def change(content):
        devices = list(uuids) or ["GPU-a"] * len(factors)
        results = []
        for number, (factor, uuid) in enumerate(zip(factors, devices, strict=True)):
            for result in json.loads(json.dumps(content["results"])):
                on = {**result["fingerprint"], "device_uuid": uuid}
                summary = result["measurements"][0]["summary"]
                summary.update({name: factor * summary[name] for name in ("median_ns", "low_ns", "high_ns")})
                results.append({**result, "session": f"0000000{number}", "fingerprint": on})
        content["results"] = results

    return change


@pytest.mark.parametrize(
    ("old", "new", "status", "words"),
    [
        ((1, 1, 1), (1, 1), 1, "2 fresh sessions confirmed at least"),
        ((1, 1, 1), (1,), 0, "; not confirmed: B has 1 of 2 sessions"),
        ((1, 1), (1, 1, 1), 0, "reported, not gated: 2 of 3 sessions recorded"),
    ],
)
def test_the_status_follows_the_gate(files, compare, old, new, status, words):
    edit(files / "before.json", of_sessions(*old))
    edit(files / "after.json", of_sessions(*new))
    found, shown, _ = compare(files / "before.json", files / "after.json")
    assert found == status
    assert f"SLOWER: {FIRST} ({KEY}): +10.0 %" in shown
    assert words in shown
    assert compare(files / "before.json", files / "after.json", "--fail-on=host")[0] == status
    assert compare(files / "before.json", files / "after.json", "--fail-on=undecided")[0] == 1


def test_what_fails_the_command_is_told_with_its_reason_whatever_kind_it_is_of(files, compare, monkeypatch):
    kinds = [kind for kind in VerdictKind if kind.row.always_fails or (kind.row.fail_on and kind.row.told)]
    assert len(kinds) > 3
    for kind in kinds:
        verdict = Verdict(kind, "the moon is full")
        monkeypatch.setattr("pytest_gpukern.cli.compare.judge", lambda *_, verdict=verdict: verdict)
        asked = [f"--fail-on={kind.row.fail_on}"] if kind.row.fail_on else []
        status, shown, _ = compare(files / "before.json", files / "after.json", *asked)
        assert (status, f"{kind}: {FIRST} ({KEY}): the moon is full" in shown) == (1, True)


def test_a_hosts_time_is_reported_and_fails_only_where_the_command_line_says_so(host, pytester, compare):
    host("--gpu-benchmark", "--gpukern-report=before.json")
    shutil.copy("before.json", "after.json")
    edit(pytester.path / "before.json", of_sessions(1, 1, 1))
    edit(pytester.path / "after.json", of_sessions(9, 9, 9))
    status, shown, _ = compare(pytester.path / "before.json", pytester.path / "after.json")
    assert "a host time fails no test by default (--fail-on=host)" in shown
    assert status == 0
    sides = pytester.path / "before.json", pytester.path / "after.json"
    assert compare(*sides, "--fail-on=host")[0] == 1
    with pytest.raises(SystemExit):
        compare(*sides, "--fail-on=tail")


def test_the_times_shown_are_those_that_are_judged(files, compare):
    """Their ratio is the change: means of logarithms, of the sessions of B's device where A has enough."""
    edit(files / "before.json", of_sessions(1, 1, 1.3, 5, uuids=["GPU-a"] * 3 + ["GPU-b"]))
    edit(files / "after.json", of_sessions(1, 1.3, 1.3, uuids=["GPU-a"] * 3))
    _, shown, _ = compare(files / "before.json", files / "after.json", "--json")
    row = json.loads(shown)["measurements"][1]
    assert row["ratio"] == pytest.approx(1.3 ** (1 / 3))
    assert row["b_ns"] / row["a_ns"] == pytest.approx(row["ratio"])
    assert (row["a_sessions"], row["b_sessions"]) == (3, 3)


@pytest.fixture
def other_model(files):
    """Gives a folder of baselines the file of another device model, on which the first variant takes 2 µs."""

    def add(folder):
        text = (files / folder / "doubling.fake-gpu.json").read_text().replace('"fake-gpu"', '"other-gpu"')
        other = files / folder / "doubling.other-gpu.json"
        other.write_text(text)

        def slower(content):
            for epoch in content["records"][FIRST]["epochs"]:
                for session in epoch["sessions"]:
                    (row,) = session["times"].values()
                    row["quantiles_ns"] = [2 * ns for ns in row["quantiles_ns"]]
                    row.update({name: 2 * row[name] for name in ("median_ns", "low_ns", "high_ns")})

        edit(other, slower)

    return add


def test_each_device_model_of_b_is_judged_by_itself(files, compare, other_model):
    other_model("before")
    _, shown, _ = compare(files / "before", files / "after.json")
    assert shown.endswith("2 measurements compared: 1 same, 1 slower\n"), "a run by its own"
    other_model("after")
    _, shown, _ = compare(files / "before", files / "after", "--json")
    found = [(row["case"], row["device_model"], row["verdict"]) for row in json.loads(shown)["measurements"]]
    assert found == [
        (FIRST, "fake-gpu", "SLOWER"),
        (FIRST, "other-gpu", "SLOWER"),
        (SECOND, "fake-gpu", "SAME"),
        (SECOND, "other-gpu", "SAME"),
    ]
    _, shown, _ = compare(files / "before", files / "after")
    assert "other-gpu" in shown.split("\n\n")[1]


def test_what_only_another_device_model_measured_is_uncomparable(files, compare, other_model):
    other_model("before")
    (files / "before" / "doubling.fake-gpu.json").unlink()
    _, shown, _ = compare(files / "before", files / "after.json")
    assert "recorded on other-gpu, now fake-gpu" in shown
    assert shown.endswith("2 measurements compared: 2 uncomparable\n")


def test_sessions_of_several_devices_are_not_taken_for_those_of_the_first(files, compare):
    """As where the second device is slower: that is no change of the code."""

    shutil.copy(files / "before.json", files / "two.json")
    edit(files / "before.json", of_sessions(1, 1, 1, uuids=["GPU-a"] * 3))
    edit(files / "two.json", of_sessions(1, 1.1, 1.1, uuids=["GPU-a", "GPU-b", "GPU-b"]))
    status, shown, _ = compare(files / "before.json", files / "two.json")
    assert (status, "SLOWER" in shown) == (0, False)


def test_cases_and_measurements_on_one_side_only_are_named(files, compare):
    def rename(content):
        content["results"][0]["case"]["id"] = "doubling/numba.brand_new/n=8"
        content["results"][1]["measurements"].append(
            {**content["results"][1]["measurements"][0], "cache": "hot"}
        )

    edit(files / "after.json", rename)
    status, shown, _ = compare(files / "before", files / "after.json")
    assert status == 0
    pytest.LineMatcher(shown.splitlines()).fnmatch_lines(
        [
            f"only in B: doubling/numba.brand_new/n=8, {SECOND} (kernel/event/hot)",
            f"only in A: {FIRST}",
            "1 measurement compared: 1 same",
        ]
    )


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            lambda result: result["measurements"][0].update(invalid="throttled"),
            f"INVALID: {SECOND} ({KEY}): thr",
        ),
        (
            lambda result: result["measurements"][0]["summary"].update(median_ns=None),
            f"INVALID: {SECOND} ({KEY}): a time that is not finite",
        ),
        (
            lambda result: result.update(correctness="INCORRECT", diagnosis="y[3]\nis 0", measurements=[]),
            f"INCORRECT in B: {SECOND}: y[3] is 0",
        ),
    ],
    ids=["invalid", "infinite", "incorrect"],
)
def test_what_cannot_be_trusted_in_b_is_as_bad_as_slower(files, compare, change, words):
    edit(files / "before.json", lambda content: change(content["results"][1]))
    status, shown, _ = compare(files / "before", files / "before.json")
    assert status == 1
    assert words in shown
    assert compare(files / "before", files / "before.json", "--json")[0] == 1


def test_what_cannot_be_trusted_in_a_is_not_compared_with(files, compare):
    edit(
        files / "before.json", lambda content: content["results"][0]["measurements"][0].update(invalid="hot")
    )
    status, shown, _ = compare(files / "before.json", files / "after.json")
    assert status == 0
    assert "1 measurement compared: 1 same" in shown


def test_what_cannot_be_read_is_named(files, compare):
    (files / "after.json").write_text("{")
    shutil.rmtree(files / "before")
    (files / "before").mkdir()
    for b, words in (("after.json", "cannot be read"), ("none.json", "cannot be read")):
        status, shown, complaints = compare(files / "before.json", files / b)
        assert (status, shown) == (3, "")
        assert complaints.startswith(f"gpukern compare: {files / b}: {words}")
    assert f"{files / 'before'}: holds no baseline files" in compare(files / "before", files / "after")[2]


def test_a_run_with_sessions_of_its_own_is_compared_by_those_that_stand_for_the_time(files, compare):
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
    _, shown, _ = compare(files / "before.json", files / "after.json", "--json")
    found = json.loads(shown)["measurements"]
    assert {row["case"]: row["b_sessions"] for row in found} == {FIRST: 3, SECOND: 1}
