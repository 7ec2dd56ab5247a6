"""The head of a report after the machine or its software changed."""

from __future__ import annotations

from made_up_past import BEFORE, now, past, session
from msgspec import structs

from pytest_gpukern.findings.common_shift import Compared, shift_among
from pytest_gpukern.report.head import changes_since, head, machine_as_recorded
from pytest_gpukern.values.difference import Difference
from pytest_gpukern.values.result import Finding

UPGRADED = structs.replace(BEFORE, driver_version="590.10", cuda_driver_version="13.1")
CANARIES = {"copy": 128_000.0, "fma": 200_000.0, "launch": 1_300.0}


def compared(ratio=1.0, label="numba.saxpy", *, recorded=None, kind="SAME", **changes):
    recorded = recorded or past(session(canaries=CANARIES))
    return Compared(now(ratio, kind, label=label, **changes), recorded)


def lines(*entries):
    return head(entries, shift_among(entries))


def test_an_unchanged_machine_without_a_shift_has_no_head():
    assert lines(*[compared() for _ in range(8)]) == []
    assert lines() == []


def test_where_an_output_is_wrong_only_the_others_are_as_recorded():
    entries = [compared(fingerprint=UPGRADED) for _ in range(8)]
    for wrong, words in ((False, "outputs as recorded"), (True, "outputs of all others as recorded")):
        assert head(entries, None, wrong=wrong)[0].endswith(f"; {words}")


def test_outputs_come_before_times_and_what_is_beyond_the_shift_after_them():
    slower = {name: 1.03 * ns for name, ns in CANARIES.items()}
    entries = [compared(1.03, canaries=slower, fingerprint=UPGRADED) for _ in range(9)]
    entries.append(
        compared(
            1.05,
            "numba.exp",
            kind="SLOWER",
            canaries=slower,
            fingerprint=UPGRADED,
            findings=(Finding("accuracy", "y: error 2 → 12 ULP"), Finding("resources", "exp: registers")),
        )
    )
    changed, times, beyond = lines(*entries)
    assert changed.startswith("since the record: driver")
    assert changed.endswith("; outputs changed in 1 of 10 cases, see above")
    assert times.startswith("times: all kernels 3.0 % slower (median of 10")
    assert times.endswith("so is the copy (+3.0 %), FMA +3.0 %, launch +3.0 %: the machine, not your change")
    assert beyond == "beyond it: vector_exp/numba.exp/n=1000 +1.9 % (of +5.0 %)"


def test_a_kernel_that_stayed_while_all_others_became_faster_is_beyond_the_shift():
    entries = [compared(0.95) for _ in range(9)] + [compared(1.0, "numba.exp")]
    assert lines(*entries)[-1] == "beyond it: vector_exp/numba.exp/n=1000 +5.3 % (of 0.0 %)"


def test_the_most_changed_are_named_and_the_others_counted():
    ratios = (1.02, 1.5, 0.5, 1.04, 1.2)
    entries = [compared(ratio, f"numba.v{ratio}") for ratio in ratios]
    entries += [compared(1.1, f"numba.w{i}") for i in range(9)]
    shown = lines(*entries)[-1]
    named = [f"vector_exp/numba.v{ratio}/n=1000" for ratio in (0.5, 1.5, 1.2)]
    assert [name in shown for name in named] == [True] * 3
    assert shown.endswith(" and 2 more")


def test_without_a_common_shift_no_case_is_named_a_second_time():
    entries = [compared(ratio, fingerprint=UPGRADED) for ratio in (1.02, 1.5)]
    changed, times = lines(*entries)
    assert changed.startswith("since the record: ")
    assert times == "times: 2 kernels compared, too few for a common shift"


def test_a_clock_that_moved_for_most_kernels_is_a_change():
    entries = [compared(sm_mhz=1725.0), compared(sm_mhz=1725.0), compared()]
    assert changes_since(entries) == {Difference("clock", "1980", "1725 MHz"): 3}
    assert changes_since(entries[1:]) == {}


def test_what_changed_for_some_cases_only_is_counted():
    libraries = {"cupy": "14.0", "numba": "0.68"}
    entries = [compared(fingerprint=structs.replace(BEFORE, libraries=libraries)), compared()]
    assert changes_since(entries) == {Difference("numba", "0.67", "0.68"): 1}
    assert "numba 0.67 → 0.68 (1 of 2 cases)" in lines(*entries)[0]


def test_host_variants_tell_of_the_host():
    fingerprint = structs.replace(UPGRADED, cpu_count=48)
    entry = compared(label="host.saxpy", timer="host", fingerprint=fingerprint, clocks={})
    assert changes_since([entry]) == {Difference("CPUs", "96", "48"): 1}


def test_a_shift_that_sessions_have_anyway_is_said_to_be_no_common_one():
    sessions = [session(session=f"s{number}", scale=scale) for number, scale in enumerate((0.99, 1.0, 1.01))]
    entries = [compared(1.01, recorded=past(*sessions), fingerprint=UPGRADED) for _ in range(8)]
    assert lines(*entries)[1] == (
        "times: no common shift: the median of 8 is +1.0 %, "
        "below the 5.1 % that counts, since sessions shift by that anyway"
    )


def test_without_a_common_shift_the_limits_are_said_and_canaries_that_moved():
    known = [{name: scale * ns for name, ns in CANARIES.items()} for scale in (0.9999, 1.0, 1.0001)]
    recorded = past(*(session(session=f"s{number}", canaries=of) for number, of in enumerate(known)))
    slower = {**CANARIES, "copy": 1.0074 * CANARIES["copy"]}
    entries = [compared(1.0049, recorded=recorded, canaries=slower, fingerprint=UPGRADED) for _ in range(8)]
    assert lines(*entries)[1] == (
        "times: no common shift: the median of 8 is +0.49 %, below the 0.50 % that counts, "
        "but canaries moved: copy +0.74 % (slower: beyond ±0.50 %)"
    )


def test_a_shift_that_only_half_of_the_times_share_is_said_to_be_none():
    entries = [compared(ratio) for ratio in (0.9, 0.9, 0.9, 1.02, 1.05, 1.06, 1.07, 1.08)]
    shift = shift_among(entries)
    (text,) = [text for text in head([*entries, compared(fingerprint=UPGRADED)], shift) if "shift" in text]
    assert text == (
        "times: no common shift: the median of 8 is +3.5 %, "
        "but its 95 % interval includes 0: −10.0 % … +8.0 %"
    )


def test_the_machine_is_as_recorded_almost_or_not_and_what_differs_is_named():
    def answer(*entries):
        return machine_as_recorded(entries, shift_among(entries))

    shifted = {name: 1.03 * ns for name, ns in CANARIES.items()}
    there = structs.replace(UPGRADED, device_uuid="GPU-9")
    slow = [compared(1.03, canaries=shifted, fingerprint=there) for _ in range(9)]
    upgraded = [compared(fingerprint=UPGRADED) for _ in range(9)]
    assert answer(*[compared() for _ in range(8)]) == answer() == "yes"
    other = structs.replace(BEFORE, device_uuid="GPU-9")
    assert answer(*[compared(fingerprint=other) for _ in range(8)]) == "almost: another card of the model"
    assert answer(*upgraded).startswith("almost: driver 580.65.06 → 590.10, CUDA")
    no = "no: all kernels +3.0 %, another card of the model, driver"
    assert answer(*slow).startswith(no)
    recorded = past(*[session(canaries={"copy": ns}) for ns in (1e5, 1.001e5, 0.999e5, 1e5)])
    moved = [compared(recorded=recorded, canaries={"copy": 1.05e5}) for _ in range(8)]
    assert answer(*moved) == "no: copy +5.0 %"
