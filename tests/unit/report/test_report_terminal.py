"""Results → tables, skips and the last line."""

from __future__ import annotations

import dataclasses

import pytest
from made_up_results import CEILINGS, COPY_IN, EXP_KERNEL, error, measured, result, verdict

from pytest_gpukern.report.forms import RunReport
from pytest_gpukern.report.progress import Progress, SessionProgress, telling_now_and_then
from pytest_gpukern.report.terminal import render, skip_lines, tables, totals
from pytest_gpukern.values.result import Correctness, OutputError, Result

HOST = {"scope": "end_to_end", "timer": "host", "cache": "hot"}
END = {"scope": "end_to_end", "timer": "host"}


def lines_of(*results, width=160):
    return tables(results, width=width)


def text_of(*results, width=160):
    return "\n".join(line.text for line in lines_of(*results, width=width))


def row_with(text, *results, width=160):
    (line,) = [line for line in lines_of(*results, width=width) if text in line.text]
    return line


def cells(line):
    return [cell.strip() for cell in line.text.split("  ") if cell.strip()]


def test_a_measured_case_is_a_row_of_all_its_figures():
    row = row_with("cupy.exp", result("cupy.exp", measured(traffic_bytes=8e7), verdicts=[verdict("SAME")]))
    assert cells(row) == [
        "cupy.exp",
        "n=1000",
        "kernel",
        "48.60 µs",
        "0.25 %",
        "1.65 TB/s",
        "0.5 ULP",
        "SAME",
    ]


def test_a_second_scope_is_a_row_that_does_not_repeat_the_case():
    both = result("cupy.exp", measured(), measured(9.1e6, **END), verdicts=[verdict("SAME"), verdict("NEW")])
    first, second = lines_of(both)[2:4]
    assert cells(first)[:3] == ["cupy.exp", "n=1000", "kernel"]
    assert cells(second) == ["end_to_end¹", "9.100 ms", "0.25 %", "NEW"]
    assert first.text.index("kernel") == second.text.index("end_to_end")
    assert "¹ timed by host, cold L2" in text_of(both)


def test_the_commonest_timer_and_cache_stand_in_the_title():
    results = [result("host.numpy", measured(**HOST)), result("cupy.exp", measured())]
    results.append(result("numba.exp", measured()))
    lines = lines_of(*results)
    assert lines[0].text == "vector_exp · n=1000 · event, cold L2"
    assert lines[0].markup == {"bold": True}
    assert "end_to_end¹" in row_with("host.numpy", *results).text
    assert "¹ timed by host, hot" in text_of(*results)
    assert "¹" not in row_with("cupy.exp", *results).text


def test_each_problem_has_its_table_and_plain_tests_are_grouped_by_module():
    text = text_of(
        result("cupy.exp", problem="vector_exp"),
        result("test_saxpy", measured(), problem="tests/test_mine.py", point={}),
        result("cupy.log", problem="vector_exp"),
    )
    first, second = text.split("\n\n")[:2]
    assert first.startswith("vector_exp · n=1000\n")
    assert "cupy.exp" in first
    assert "cupy.log" in first
    assert second.startswith("tests/test_mine.py · event, cold L2\n")
    assert "test_saxpy" in second


def test_rows_are_grouped_by_point_and_then_by_variant_however_workers_mix_them():
    small, large = {"n": 10}, {"n": 1000}
    mixed = [("cupy.a", small), ("host.b", large), ("host.b", small), ("cupy.a", large)]
    texts = [line.text.split() for line in lines_of(*(result(label, point=p) for label, p in mixed))]
    found = [tuple(words[:2]) for words in texts if words and "." in words[0]]
    assert found == [("cupy.a", "n=10"), ("host.b", "n=10"), ("cupy.a", "n=1000"), ("host.b", "n=1000")]


def test_a_size_that_was_reduced_shows_what_was_asked_and_what_ran():
    assert "n=1000→250" in text_of(result(measured_point={"n": 250}))


def test_the_rate_is_operations_where_there_is_no_traffic_or_much_more_work_than_traffic():
    few = measured(1000.0, traffic_bytes=1e6, flops=1e6)
    many = measured(1000.0, traffic_bytes=1e6, flops=1e8)
    alone = measured(1000.0, flops=1e6)
    assert "1.00 TB/s" in text_of(result("a.b", few))
    assert "100 TFLOP/s" in text_of(result("a.b", many))
    assert "1.00 TFLOP/s" in text_of(result("a.b", alone))


def test_energy_and_power_are_columns_with_a_line_that_says_what_they_are_of():
    told = result("cupy.exp", measured(energy_mj=14.23, mean_power_w=612.4))
    other = result("numba.exp", measured())
    assert cells(row_with("cupy.exp", told, other))[4:6] == ["14.2 mJ", "612 W"]
    assert "calls back to back, nothing flushed" in text_of(told, other)
    assert "energy" not in text_of(other)


def test_why_there_is_no_energy_is_said_once_for_all_rows():
    untold = [result(f"cupy.{name}", measured(energy_untold="no counter")) for name in "abc"]
    text = text_of(*untold, result("cupy.d", measured(energy_untold="too short")))
    assert "  3 rows: no energy told: no counter\n  cupy.d kernel: no energy told: too short\n" in text
    assert "back to back" not in text


def test_speedup_is_against_the_named_variant_in_the_same_scope_if_it_has_it():
    against = {"speedup_against": "numba.slow"}
    slow = result("numba.slow", measured(100.0), measured(900.0, **END), **against)
    fast = result("cupy.exp", measured(25.0), measured(300.0, **END), **against)
    kernel, end = lines_of(slow, fast)[4:6]
    assert "4.00×" in cells(kernel)
    assert "3.00×" in cells(end)
    assert "speed-up against numba.slow" in lines_of(slow, fast)[0].text


def test_speedup_falls_back_to_the_only_scope_of_the_named_variant():
    host = result("host.numpy", measured(1200.0, **HOST), speedup_against="host.numpy")
    fast = result("cupy.exp", measured(100.0), speedup_against="host.numpy")
    assert "12.0×" in cells(row_with("cupy.exp", host, fast))
    assert "1.00×" in cells(row_with("  host.numpy", host, fast))


@pytest.mark.parametrize(
    "host",
    [
        result("host.numpy", measured(1200.0, **HOST), point={"n": 7}),
        result("host.numpy", measured(1200.0, **HOST), measured_point={"n": 7}),
        result("host.numpy", measured(1200.0, **HOST), correctness=Correctness.INCORRECT),
        result("host.numpy", measured(1200.0, invalid="no", **HOST)),
        result("host.numpy", measured(1200.0, "transfer"), measured(12.0, "end_to_end")),
    ],
    ids=["another point", "another size run", "incorrect", "invalid", "two other scopes"],
)
def test_speedup_is_a_dash_where_the_named_variant_has_no_comparable_time(host):
    fast = result("cupy.exp", measured(100.0), speedup_against="host.numpy")
    assert "–" in cells(row_with("cupy.exp", host, fast))


def test_of_a_reference_with_several_parameter_values_the_fastest_counts():
    slow = result("numba.slow", measured(400.0), parameters={"block": 64})
    best = result("numba.slow", measured(200.0), parameters={"block": 128})
    fast = result("cupy.exp", measured(100.0), speedup_against="numba.slow")
    assert "2.00×" in cells(row_with("cupy.exp", slow, best, fast))


def test_the_error_is_the_worst_over_outputs_in_a_unit_that_all_have():
    def shown(*errors):
        named = {f"y{i}": e for i, e in enumerate(errors)}
        return cells(row_with("cupy.exp", result("cupy.exp", errors=named)))[-1]

    assert shown(error(ulp=0.5), error(ulp=3.0)) == "3 ULP"
    assert shown(error(ulp=5.2e7)) == "1.0e-07 abs"
    assert shown(error(ulp=0.5), error(ulp=None, rel=1e-3)) == "1.0e-03"
    assert shown(error(ulp=None, rel=None, absolute=0.25)) == "2.5e-01 abs"
    assert shown(OutputError(3, 0, 0.0, 0.0, None), error(ulp=0.5)) == "0.5 ULP"
    assert shown(OutputError(3, 0, 0.0, 0.0, None)) == "exact"
    assert shown(OutputError(3, 3, None, None, None)) == "–"


def test_a_case_without_measurement_says_checked_or_simulated_in_place_of_the_time():
    assert cells(row_with("cupy.exp", result("cupy.exp"))) == ["cupy.exp", "n=1000", "checked", "0.5 ULP"]
    assert "simulated" in cells(row_with("cupy.exp", result("cupy.exp", simulated=True)))


@pytest.mark.parametrize("measurements", [(), (measured(),)])
@pytest.mark.parametrize("simulated", [False, True])
def test_what_nothing_checked_says_so_and_is_counted(measurements, simulated):
    unchecked = result(
        "cupy.exp", *measurements, correctness=Correctness.UNCHECKED, errors={}, simulated=simulated
    )
    assert "unchecked" in cells(row_with("cupy.exp", unchecked))
    assert totals(RunReport([unchecked])).startswith("gpukern: 0 passed, 1 unchecked")


def test_a_time_that_the_simulator_took_is_never_shown():
    text = text_of(result("cupy.exp", measured(traffic_bytes=8e7), simulated=True))
    assert "simulated" in text
    assert "µs" not in text
    assert "B/s" not in text


def test_an_incorrect_case_says_so_in_red_without_a_time():
    wrong = result("cupy.exp", measured(), correctness=Correctness.INCORRECT, diagnosis="y[3] is 7\nmore")
    row, note = lines_of(wrong)[2:4]
    assert cells(row)[-1] == "INCORRECT"
    assert "µs" not in row.text
    assert row.markup == note.markup == {"red": True}
    assert note.text == "  cupy.exp n=1000: INCORRECT: y[3] is 7"


@pytest.mark.parametrize(
    ("kind", "colour"),
    [("SLOWER", "red"), ("INVALID", "red"), ("FASTER", "green"), ("UNDECIDED", "yellow"), ("SAME", None)],
)
def test_the_colour_of_a_row_is_that_of_its_verdict(kind, colour):
    row = row_with("cupy.exp  ", result("cupy.exp", measured(), verdicts=[verdict(kind)]))
    assert row.markup == ({colour: True} if colour else {})


def test_a_verdict_shows_its_ratio_unless_it_is_the_same_or_new():
    def shown(kind, ratio):
        return cells(row_with("cupy.exp  ", result("cupy.exp", measured(), verdicts=[verdict(kind, ratio)])))[
            -1
        ]

    assert shown("SLOWER", 1.053) == "SLOWER +5.3 %"
    assert shown("FASTER", 0.96) == "FASTER −4.0 %"
    assert shown("UNDECIDED", 1.012) == "UNDECIDED +1.2 %"
    assert shown("SAME", 1.001) == "SAME"
    assert shown("NEW", None) == "NEW"
    assert shown("UNCOMPARABLE", None) == "UNCOMPARABLE"


def test_an_invalid_measurement_is_invalid_even_without_a_baseline():
    text = text_of(result("cupy.exp", measured(invalid="faster than memory allows")))
    assert "kernel: INVALID: faster than memory allows" in text


@pytest.mark.parametrize("kind", ["SLOWER", "UNDECIDED", "UNCOMPARABLE", "INVALID"])
def test_the_reason_of_a_verdict_that_needs_one_stands_under_the_table(kind):
    text = text_of(result("cupy.exp", measured(), verdicts=[verdict(kind, reason="the moon is full")]))
    assert f"  cupy.exp n=1000 kernel: {kind}: the moon is full" in text


@pytest.mark.parametrize("kind", ["SLOWER", "INVALID"])
def test_a_reason_that_the_failure_above_told_is_not_repeated(kind):
    failed = result("cupy.exp", measured(), verdicts=[verdict(kind, 1.1, reason="the moon is full")])
    lines = render(RunReport([failed]), width=120, told={failed.nodeid})
    assert "moon" not in "".join(line.text for line in lines)
    assert any(kind in line.text for line in lines)
    other = render(RunReport([failed]), width=120, told={"another"})
    assert any(line.text.endswith(f"{kind}: the moon is full") for line in other)


def test_warnings_and_notes_of_several_rows_share_a_line():
    text = text_of(
        result("cupy.exp", measured(warnings=("bimodal",)), measured(1e6, **END, warnings=("bimodal",))),
        result("numba.exp", measured(warnings=("bimodal",)), notes=("a peer was busy",)),
    )
    assert text.count("bimodal") == 1
    assert "  3 rows: bimodal" in text
    assert "  numba.exp kernel: a peer was busy" in text


def full_house():
    against = {"speedup_against": "host.numpy", "point": {"n": 10_000_000, "batch": 64}}
    long = {"parameters": {"block": 128, "items_per_thread": 4}}
    return [
        result(
            "host.numpy", measured(12.3e6, **HOST, traffic_bytes=8e7), verdicts=[verdict("SAME")], **against
        ),
        result(
            "numba.grid_stride_vectorized_with_a_long_name",
            measured(traffic_bytes=8e7),
            measured(9.1e6, **END, traffic_bytes=8e7),
            verdicts=[verdict("UNDECIDED", 1.012, "+1.2 % (90 %: −1.1 … +3.5 %)"), verdict("UNCOMPARABLE")],
            **against,
            **long,
        ),
    ]


@pytest.mark.parametrize("width", [80, 100, 120, 160])
def test_every_line_fits_the_terminal_and_no_number_is_lost(width):
    lines = lines_of(*full_house(), width=width)
    assert max(len(line.text) for line in lines) <= width
    text = "\n".join(line.text for line in lines)
    for figure in ("48.60 µs", "9.100 ms", "0.25 %", "1.65 TB/s", "253×", "0.5 ULP", "UNDECIDED +1.2 %"):
        assert figure in text


def test_what_a_very_narrow_terminal_cannot_show_is_named():
    text = text_of(*full_house(), width=50)
    assert "left out for want of width: speed-up, error" in text
    assert "48.60 µs" in text


def test_skips_are_grouped_by_reason_with_up_to_three_ids():
    skips = [(f"vector_exp/cupy.exp/n={n}", "no GPU: no driver") for n in range(5)]
    skips.insert(1, ("matmul/pycuda.tiled/n=1", "library missing: pycuda"))
    first, second, empty = [line.text for line in skip_lines(skips, width=200)]
    assert first == (
        "5 skipped: no GPU: no driver "
        "(vector_exp/cupy.exp/n=0, vector_exp/cupy.exp/n=1, vector_exp/cupy.exp/n=2, …)"
    )
    assert second == "1 skipped: library missing: pycuda (matmul/pycuda.tiled/n=1)"
    assert empty == ""


def test_the_last_line_counts_every_result_once_and_every_verdict_in_a_fixed_order():
    results = [
        result("a.new", measured(), verdicts=[verdict("NEW")]),
        result("a.same", measured(), measured(**END), verdicts=[verdict("SAME"), verdict("SAME")]),
        result("a.slower", measured(), verdicts=[verdict("SLOWER")]),
        result("a.wrong", correctness=Correctness.INCORRECT),
        result("a.simulated", simulated=True),
        result("a.unchecked", measured(), correctness=Correctness.UNCHECKED),
    ]
    skips = [("x", "no GPU: none"), ("y", "no GPU: lost"), ("z", "library missing: cupy")]
    gated = frozenset([results[2].nodeid])
    report = RunReport(results, skips=skips, failed=gated | {"b", "c"}, failed_by_the_gate=gated)
    assert totals(report) == (
        "gpukern: 2 passed, 1 incorrect, 1 failed by the gate, 1 failed otherwise, 1 simulated, 1 unchecked, "
        "3 skipped (2 no GPU, 1 library missing) · baseline: 2 same, 1 slower, 1 new"
    )


def test_the_report_ends_with_the_last_line_and_a_run_without_anything_has_none():
    lines = render(RunReport([result()], skips=[("x", "no GPU")]), width=120)
    assert lines[-1].text == "gpukern: 1 passed, 1 skipped (no GPU)"
    assert render(RunReport(), width=120) == []


def test_progress_is_reported_every_ten_seconds_and_no_more():
    progress = Progress(started_s=100.0)
    case = result("cupy.exp", measured(), point={"n": 10_000_000})
    assert progress.update(case, 1, 98, 109.9) is None
    assert progress.update(case, 2, 98, 110.0) == (
        "gpukern: 2 of 98 · vector_exp/cupy.exp/n=10000000 48.60 µs · 10 s"
    )
    assert progress.update(case, 3, 98, 115.0) is None
    assert progress.update(None, 37, 98, 230.0) == "gpukern: 37 of 98 · 2 min 10 s"


def test_a_further_session_is_told_of_at_its_start_and_every_ten_seconds():
    progress = SessionProgress(5)
    assert progress.update(2, 0, 120, 1.0) == "gpukern: session 2 of 5: 0 of 120"
    assert progress.update(2, 39, 120, 10.9) is None
    assert progress.update(2, 40, 120, 11.0) == "gpukern: session 2 of 5: 40 of 120"
    assert progress.update(3, 0, 120, 11.5) == "gpukern: session 3 of 5: 0 of 120"


@pytest.mark.parametrize("every_s", [3600.0, 0.0])
def test_how_far_a_session_is_is_told_once_it_is_due(every_s):
    told = []
    progress = telling_now_and_then(told.append, "memcheck", every_s)
    progress(3, 120)
    progress(4, 120)
    assert told == ([] if every_s else ["memcheck: 3 of 120", "memcheck: 4 of 120"])


def test_the_first_call_is_shown_apart_from_the_measurements():
    compiled = result("numba.exp", measured(), first_call_ns=312e6)
    assert "312 ms" in cells(row_with("numba.exp", compiled))
    narrow = text_of(
        result("numba.grid_stride_vectorized", measured(traffic_bytes=8e7), first_call_ns=312e6), width=60
    )
    assert "· first call 312 ms" in narrow


def undecided(detectable):
    reason = f"no significant change; a slowdown is caught from {detectable}"
    return dataclasses.replace(verdict("UNDECIDED", 1.01, reason), detectable=detectable)


def test_many_undecided_rows_share_one_line_with_what_would_have_been_seen():
    seen = (1.039, 1.041, 1.225, 1.044)
    results = [result(f"a.v{i}", measured(), verdicts=[undecided(d)]) for i, d in enumerate(seen)]
    text = text_of(*results, width=200)
    assert "4 rows: UNDECIDED: a slowdown is caught from +3.9 % to +22.5 % on, depending on the row" in text
    assert "no significant change" not in text
    few = text_of(*results[:3], width=200)
    assert few.count("no significant change") == 3


# two timers a scope


def by_both(cupti_ns=48_600.0, event_ns=51_600.0, fixed_cost_ns=2900.0, **changes):
    """Measurements of a kernel by CUPTI, and by events beside it."""
    other = measured(event_ns, beside=True, fixed_cost_ns=fixed_cost_ns)
    return measured(cupti_ns, timer="cupti", **changes), other


def test_a_scope_is_one_row_with_the_other_timers_time_beside_it():
    both = result("cupy.exp", *by_both(), verdicts=[verdict("SAME")])
    assert cells(row_with("cupy.exp", both)) == [
        *("cupy.exp", "n=1000", "kernel", "48.60 µs", "0.25 %", "event 51.6 µs", "0.5 ULP", "SAME")
    ]
    assert lines_of(both)[0].text == "vector_exp · cupti, cold L2"
    assert totals(RunReport([both])) == "gpukern: 1 passed · baseline: 1 same"


def test_where_only_the_other_timer_was_judged_its_time_is_the_one_shown():
    both = result("cupy.exp", *by_both())
    both = dataclasses.replace(both, verdicts={"kernel/event/cold": verdict("SLOWER", 1.05)})
    row = row_with("cupy.exp  ", both)
    assert cells(row)[3:6] == ["51.60 µs", "0.25 %", "cupti 48.6 µs"]
    assert cells(row)[-1] == "SLOWER +5.0 %"
    assert lines_of(both)[0].text == "vector_exp · event, cold L2"
    assert totals(RunReport([both])) == "gpukern: 1 passed · baseline: 1 slower"


def test_a_time_that_is_shown_may_lie_beside_one_that_is_invalid():
    main, other = by_both()
    odd = dataclasses.replace(other, invalid="ran elsewhere")
    both = result("cupy.exp", main, odd, verdicts=[verdict("SAME"), verdict("INVALID")])
    assert "48.60 µs" in row_with("cupy.exp  ", both).text
    assert row_with("cupy.exp  ", both).markup == {"red": True}
    assert "kernel: INVALID: by event: ran elsewhere" in text_of(both)
    assert "baseline: 1 invalid" in totals(RunReport([both]))


def test_speedup_compares_times_of_one_timer_where_there_are():
    against = {"speedup_against": "numba.slow"}
    slow = result("numba.slow", *by_both(100_000.0, 104_000.0), **against)
    without_cupti = result("cupy.exp", measured(52_000.0), **against)
    assert "2.00×" in cells(row_with("cupy.exp", slow, without_cupti))


def test_what_timers_read_for_nothing_is_said_once_a_table():
    text = text_of(result("a.b", *by_both()), result("a.c", *by_both(fixed_cost_ns=3140.0)))
    assert (
        text.count("  by event an empty kernel reads 2.90 … 3.14 µs more than it takes; not subtracted") == 1
    )
    one = text_of(result("a.b", *by_both()), result("a.c", *by_both()))
    assert "reads 2.90 µs more than it takes" in one
    assert "empty kernel" not in text_of(result("a.b", *by_both(fixed_cost_ns=None)))


# what else is known of a measurement


def test_samples_that_were_not_used_are_counted_under_the_table():
    def note(count, **changes):
        return text_of(result("a.b", measured(invalid_samples=count, **changes)))

    assert "  a.b n=1000 kernel: 12 samples were taken while the device was disturbed, and not used" in note(
        12
    )
    assert "1 sample was taken" in note(1)
    assert "not used" not in note(0)
    assert "not used" not in note(12, invalid="could not be measured cleanly")


def test_gaps_between_the_kernels_of_a_call_are_said():
    def note(busy_ns, scope="kernel"):
        return text_of(result("a.b", measured(1e5, scope, timer="cupti", busy_ns=busy_ns)))

    assert (
        "  a.b n=1000 kernel: kernels ran 80 % of the time between the first's start and the last's end"
        in note(8e4)
    )
    assert "kernels ran" not in note(9.95e4)
    assert "kernels ran" not in note(None)
    assert "kernels ran" not in note(8e4, "end_to_end")


def test_of_two_ceilings_the_nearer_is_shown():
    def shown(dtype="float32", **changes):
        made = result("cupy.exp", measured(timer="cupti", **changes), ceilings=CEILINGS, dtype=dtype)
        return row_with("cupy.exp", made).text

    traffic, flops = 0.97 * 4e12 * 48.6e-6, 0.81 * 60e12 * 48.6e-6
    assert "97 % copy" in shown(traffic_bytes=traffic)
    assert "97 % copy" in shown(traffic_bytes=traffic, flops=flops)
    assert "81 % FMA" in shown(traffic_bytes=traffic / 2, flops=flops)
    assert "FMA" not in shown(dtype="float64", flops=flops)
    assert "FMA" not in shown(dtype=None, flops=flops)
    assert "FMA" not in shown(dtype="a_dtype_of_tomorrow", flops=flops)
    assert "copy" not in shown(traffic_bytes=traffic, cache="hot")
    assert "0.034 % copy" in shown(traffic_bytes=traffic * 0.00035)


def test_copies_to_and_from_the_host_have_their_own_ceiling():
    work = (COPY_IN, EXP_KERNEL, dataclasses.replace(COPY_IN, name="memcpy DtoH, pageable", size_bytes=4e6))
    device = measured(1.3e6, "end_to_end", timer="cupti", beside=True, work=work)
    made = result("cupy.exp", measured(2e6, **END), device, ceilings=CEILINGS)
    assert "60 % host copy" in row_with("cupy.exp", made).text  # 16 MB at 20 GB/s, 4 MB at 10 GB/s: 1.2 ms
    pinned = dataclasses.replace(COPY_IN, name="memcpy HtoD, pinned")
    device = dataclasses.replace(device, work=(pinned,))
    assert "host copy" not in text_of(dataclasses.replace(made, measurements=(made.measurements[0], device)))
    managed = dataclasses.replace(device, work=(dataclasses.replace(COPY_IN, name="memcpy HtoD, managed"),))
    assert "host copy" not in text_of(dataclasses.replace(made, measurements=(made.measurements[0], managed)))


def test_without_ceilings_and_on_the_host_no_share_is_shown():
    assert "of ceiling" not in text_of(result("cupy.exp", measured(traffic_bytes=8e7)))
    host = result("host.numpy", measured(traffic_bytes=8e7, **HOST), ceilings=CEILINGS)
    assert "of ceiling" not in text_of(host)


def test_numbers_that_did_not_survive_the_journey_are_dashes_at_worst():
    infinite = float("inf")
    odd = result(
        "a.b",
        *by_both(infinite, infinite, infinite, busy_ns=infinite, work=(EXP_KERNEL,), traffic_bytes=1.0),
        ceilings=CEILINGS,
    )
    crossed = Result.from_json(odd.to_json())
    assert "–" in cells(row_with("a.b  ", crossed))
    assert "event –" in text_of(crossed)
