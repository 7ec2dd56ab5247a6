"""Results → tables, skips and the last line."""

from __future__ import annotations

import re

import pytest
from made_up_results import CEILINGS, COPY_IN, COPY_OUT, EXP_KERNEL, error, measured, result, verdict
from msgspec import structs

from pytest_gpukern.report.run import Failure, RunResults, Skip
from pytest_gpukern.report.summary import totals
from pytest_gpukern.report.terminal import render, skip_lines
from pytest_gpukern.values.note import About, Note
from pytest_gpukern.values.result import Correctness, Finding, GateFailure, HostCopy, OutputError, Result

HOST = {"scope": "end_to_end", "timer": "host", "cache": "hot"}
END = {"scope": "end_to_end", "timer": "host"}


def lines_of(*results, width=160, verbose=True):
    return render(RunResults(results), width=width, verbose=verbose)


def text_of(*results, width=160, verbose=True):
    return "\n".join(line.text for line in lines_of(*results, width=width, verbose=verbose))


def table_of(*results, width=160):
    """The lines of the first table, its title first."""
    lines = lines_of(*results, width=width)
    return lines[next(i for i, line in enumerate(lines) if line.text.startswith("vector_exp · ")) :]


def row_with(text, *results, width=160, verbose=True):
    lines = lines_of(*results, width=width, verbose=verbose)
    (line,) = [line for line in lines if text in line.text and line.text.startswith("  ")]
    return line


def cells(line):
    return [cell.strip() for cell in line.text.split("  ") if cell.strip()]


@pytest.mark.parametrize(
    ("autotuned", "size"),
    [
        (
            {"softmax": {"BLOCK": "1024", "num_warps": "8", "num_ctas": "1", "num_stages": "3"}},
            "n=1000 (BLOCK=1024 num_warps=8)",
        ),
        ({"softmax": {"num_warps": "4", "num_stages": "2"}}, "n=1000 (num_warps=4 num_stages=2)"),
        (
            {"rows": {"num_warps": "4"}, "sums": {"num_warps": "8"}},
            "n=1000 (rows: num_warps=4, sums: num_warps=8)",
        ),
    ],
    ids=["usual settings are left out", "unusual ones are not", "several kernels"],
)
def test_a_row_shows_what_an_autotuner_chose(autotuned, size):
    tuned = result("triton.tuned", measured(), autotuned=autotuned)
    assert cells(row_with("triton.tuned", tuned))[:2] == ["triton.tuned", size]


def test_a_second_scope_is_a_row_that_does_not_repeat_the_case():
    both = result("cupy.exp", measured(), measured(9.1e6, **END), verdicts=[verdict("SAME"), verdict("NEW")])
    first, second, legend = table_of(both)[2:5]
    assert cells(first)[:3] == ["cupy.exp", "n=1000", "48.60 µs"]
    assert cells(second) == ["9.100 ms¹", "0.25 %", "NEW"]
    assert first.text.index("48.60 µs") == second.text.index("9.100 ms")
    assert legend.text == "  ¹ end_to_end by host, cold L2"


def test_rows_are_grouped_by_point_and_then_by_variant_however_workers_mix_them():
    small, large = {"n": 10}, {"n": 1000}
    mixed = [("cupy.a", small), ("host.b", large), ("host.b", small), ("cupy.a", large)]
    texts = [line.text.split() for line in lines_of(*(result(label, point=p) for label, p in mixed))]
    found = [tuple(words[:2]) for words in texts if words and "." in words[0]]
    assert found == [("cupy.a", "n=10"), ("host.b", "n=10"), ("cupy.a", "n=1000"), ("host.b", "n=1000")]


def test_the_rate_is_operations_where_there_is_no_traffic_or_much_more_work_than_traffic():
    few = measured(1000.0, traffic_bytes=1e6, flops=1e6)
    many = measured(1000.0, traffic_bytes=1e6, flops=1e8)
    alone = measured(1000.0, flops=1e6)
    assert "1.00 TB/s" in text_of(result("a.b", few))
    assert "100 TFLOP/s" in text_of(result("a.b", many))
    assert "1.00 TFLOP/s" in text_of(result("a.b", alone))


def host(*measurements, **changes):
    return result("host.numpy", *measurements, **changes)


def slow(ns, block):
    return result("numba.slow", measured(ns), parameters={"block": block})


@pytest.mark.parametrize(
    ("references", "speedup"),
    [
        ([host(measured(400.0), measured(900.0, **END))], "4.00×"),  # in the same scope
        ([host(measured(1200.0, **HOST))], "12.0×"),  # or its only one
        ([slow(400.0, 64), slow(200.0, 128)], "2.00×"),  # of several parameter values the fastest
        ([result("numba.slow", measured(400.0, timer="cupti"))], "4.00×"),  # also by another timer
        # no comparable time: another point, incorrect, invalid, two other scopes
        ([host(measured(1200.0, **HOST), point={"n": 7})], "–"),
        ([host(measured(1200.0, **HOST), correctness=Correctness.INCORRECT)], "–"),
        ([host(measured(1200.0, invalid="no", **HOST))], "–"),
        ([host(measured(1200.0, "transfer"), measured(12.0, "end_to_end"))], "–"),
    ],
)
def test_a_speedup_is_against_the_named_variant(references, speedup):
    case = references[0].case
    fast = result("cupy.exp", measured(100.0), speedup_against=f"{case.backend}.{case.variant}")
    assert speedup in cells(row_with("cupy.exp", *references, fast))
    titled = f"speed-up against {fast.speedup_against}" in text_of(*references, fast)
    assert titled, "a dash is a speed-up too"


def test_each_scope_has_its_speedup_and_the_named_variant_one_of_its_own():
    against = {"speedup_against": "numba.slow"}
    slow = result("numba.slow", measured(100.0), measured(900.0, **END), **against)
    fast = result("cupy.exp", measured(25.0), measured(300.0, **END), **against)
    found = [cells(line) for line in table_of(slow, fast)[2:6]]
    assert all(
        speedup in row for speedup, row in zip(("1.00×", "1.00×", "4.00×", "3.00×"), found, strict=True)
    )


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


def test_what_was_not_timed_on_a_gpu_says_checked_or_simulated_in_place_of_the_time():
    assert cells(row_with("cupy.exp", result("cupy.exp"))) == ["cupy.exp", "n=1000", "checked", "0.5 ULP"]
    text = text_of(result("cupy.exp", measured(traffic_bytes=8e7), simulated=True))
    assert "simulated" in text
    assert "µs" not in text
    assert "B/s" not in text


@pytest.mark.parametrize("measurements", [(), (measured(),)])
@pytest.mark.parametrize("simulated", [False, True])
def test_what_nothing_checked_says_so_and_is_counted(measurements, simulated):
    unchecked = result("cupy.exp", *measurements, correctness=Correctness.UNCHECKED, simulated=simulated)
    assert "unchecked" in cells(row_with("cupy.exp", unchecked))
    assert totals(RunResults([unchecked])).startswith("1 unchecked")


@pytest.mark.parametrize(
    ("kind", "ratio", "colour", "text"),
    [
        ("SLOWER", 1.053, "Red", "SLOWER +5.3 %"),
        ("INVALID", None, "Red", "INVALID"),
        ("FASTER", 0.96, "Green", "FASTER −4.0 %"),
        ("UNDECIDED", 1.012, "Yellow", "UNDECIDED +1.2 %: spread"),
        ("SAME", 1.001, None, "SAME"),
        ("NEW", None, None, "NEW"),
        ("UNCOMPARABLE", None, None, "UNCOMPARABLE"),
    ],
)
def test_a_row_has_its_verdicts_colour_and_its_ratio_unless_it_is_the_same_or_new(kind, ratio, colour, text):
    row = row_with("cupy.exp  ", result("cupy.exp", measured(), verdicts=[verdict(kind, ratio)]))
    coloured = [part for part, markup in row.parts() if markup]
    assert coloured == ([text] if colour else [])
    assert (colour in row.markup) == bool(colour)
    assert cells(row)[-1] == text


@pytest.mark.parametrize("simulated", [False, True])
def test_a_finding_is_told_of_a_test_without_a_time_too(simulated):
    found = (Finding("memory", "1 MiB left"),)
    text = text_of(result("test_left", simulated=simulated, findings=found), verbose=False)
    assert "memory       vector_exp/test_left/n=1000: 1 MiB left" in text


def test_notes_of_several_cases_share_a_line():
    noisy, busy = Note("bimodal: 40 % of the samples", About.NOISE), Note("a peer was busy")
    results = [
        result("cupy.exp", measured(notes=(noisy,)), notes=(busy,)),
        result("numba.exp", measured(notes=(noisy,)), notes=(busy,)),
    ]
    text = text_of(*results)
    both = "vector_exp/cupy.exp/n=1000, vector_exp/numba.exp/n=1000"
    assert "note 2 cases (vector_exp/cupy.exp/n=1000, …): a peer was" in text_of(*results, verbose=False)
    assert f"note 2 cases ({both}): a peer was busy\n" in text
    assert text.count("  2 rows: bimodal") == text.count("bimodal") == 1


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


@pytest.mark.parametrize("width", [80, 120, 200])
def test_a_case_is_one_row_whose_names_are_shortened_and_whose_numbers_are_not(width):
    lines = table_of(*full_house(), width=width)
    in_table = [line.text for line in lines[: [line.text for line in lines].index("")]]
    assert max(map(len, in_table)) <= width
    title, _, host, case, second, *_ = [line.text for line in lines]
    assert title.startswith("vector_exp · n=10000000 batch=64 · ")
    assert host.startswith("  host.numpy ")
    assert case.startswith("  numba")
    assert re.search(r"long_name +block=128 items_per_thread=4 ", case) or "…" in case
    for figure in ("=128", "=4 ", "48.60 µs", "UNDECIDED +1.2 %"):
        assert figure in case
    assert "9.100 ms" in second


def test_variants_that_differ_in_the_middle_stay_apart_as_long_as_a_column_can_go():
    names = [f"numba.gufunc_sliced_{axis}_from_host" for axis in "ti"]
    sizes = [{"block": size, "most_blocks": 1056} for size in (64, 128)]
    cases = [
        result(name, measured(traffic_bytes=8e7), parameters=each, first_call_ns=1e9)
        for name in names
        for each in sizes
    ]
    lines = [line.text for line in table_of(*cases, width=70)]
    assert len({line.split()[0] for line in lines[2:6]}) == 2
    assert all("48.60 µs" in line for line in lines[2:6])
    assert "columns left out: first call, " in "\n".join(lines)
    assert "first call" in text_of(*cases, width=120).partition("\n")[2]


def test_skips_are_grouped_by_reason_with_up_to_three_ids():
    skips = [Skip(f"vector_exp/cupy.exp/n={n}", "no GPU: no driver", "no GPU") for n in range(5)]
    skips.insert(1, Skip("matmul/pycuda.tiled/n=1", "library missing: pycuda"))
    first, second = [line.text for line in skip_lines(skips, width=200)]
    assert first == (
        "5 skipped: no GPU: no driver "
        "(vector_exp/cupy.exp/n=0, vector_exp/cupy.exp/n=1, vector_exp/cupy.exp/n=2, …)"
    )
    assert second == "1 skipped: library missing: pycuda (matmul/pycuda.tiled/n=1)"


def test_the_last_line_counts_every_result_once_and_every_verdict_in_a_fixed_order():
    results = [
        result("a.new", measured(), verdicts=[verdict("NEW")]),
        result("a.same", measured(), measured(**END), verdicts=[verdict("SAME"), verdict("SAME")]),
        result("a.slower", measured(), verdicts=[verdict("SLOWER")]),
        result("a.wrong", correctness=Correctness.INCORRECT),
        result("a.simulated", simulated=True),
        result("a.unchecked", measured(), correctness=Correctness.UNCHECKED),
    ]
    skips = [Skip(test, f"no GPU: {test}", "no GPU") for test in "xy"]
    skips.append(Skip("z", "library missing: cupy"))
    others = {name: Failure("broke") for name in ("b", "c", results[3].nodeid)}
    report = RunResults(
        results,
        skips=skips,
        rejected=["d"],
        failures={results[2].nodeid: Failure("SLOWER", (GateFailure("SLOWER", "it grew"),)), **others},
    )
    assert totals(report) == (
        "2 passed, 1 broken case rejected, 1 incorrect, 1 failed by the gate, 2 failed otherwise, "
        "1 simulated, 1 unchecked, 3 skipped (2 no GPU, 1 library missing: cupy) "
        "· of 4 times: 2 same, 1 slower, 1 new"
    )


def test_the_report_ends_with_the_last_line_and_a_run_without_anything_has_none():
    lines = render(RunResults([result()], skips=[Skip("x", "no GPU")]), width=120)
    assert lines[-1].text == "gpukern: 1 passed, 1 skipped (no GPU)"
    assert render(RunResults(), width=120) == []


BACKENDS = ("numba", "cupy", "pycuda", "skcuda", "torch", "host")


def suites_on_a_gpu():
    """Some 600 results as the suites have them on a GPU: few that need a reader, and much that does not."""
    bimodal = Note("bimodal: 40 % of the samples gather 3 % below the others", About.NOISE)
    sizes = Note("not checked at n=257, n=258: too large for the variant", About.SIZES)
    for i in range(600):
        host = i % 6 == 5
        timing = HOST if host else {"timer": "cupti"}
        kind = {7: "FASTER", 8: "NEW"}.get(i, "UNDECIDED" if host and i < 246 else "SAME")
        judged = structs.replace(
            verdict(kind, 0.95 if kind == "FASTER" else 1.001), false_alarm=0.0 if host else 0.001
        )
        yield result(
            f"{BACKENDS[i % 6]}.a_variant_with_a_long_name_{i}",
            measured(40e3 + i, **timing, traffic_bytes=8e7, notes=(bimodal,) if i % 9 == 0 else ()),
            verdicts=[judged],
            problem=f"problem_{i // 100}",
            parameters={"block": 64 << i % 4},
            notes=(sizes,) if i % 7 == 0 else (),
            ceilings=CEILINGS,
        )


SKIPS = [
    Skip(f"a/numba.v{i}/n=1", reason.format(i), *kind)
    for count, reason, *kind in (
        (45, "pycuda is not installed"),
        (28, "torch is not installed"),
        (2, "detected by tool {0}: --gpukern-sanitize={0}"),
        (6, "not in the simulator: feature {0}", "not in the simulator"),
        (5, "only at n={0}: --gpukern-size=huge"),
        (9, "reason {0} of its own, which takes more than a line" * 2),
    )
    for i in range(count)
]


@pytest.mark.parametrize("width", [80, 120, 200])
def test_a_green_run_of_600_cases_prints_at_most_60_lines_pytests_own_included(width):
    lines = render(RunResults([*suites_on_a_gpu()], skips=SKIPS), width=width)
    dots, pytests_own = -(-695 // 72), 3
    commands = 2  # how to record what is new, and what is faster
    assert len(lines) + dots + pytests_own + commands <= 60
    assert len(lines) <= 25


def test_every_skip_is_counted_once_however_little_room_there_is():
    for room in range(1, 30):
        lines = [line.text for line in skip_lines(SKIPS, width=80, room=room)]
        assert len(lines) <= room
        assert sum(int(found[1]) for found in map(re.compile(r"(\d+) skipped").match, lines) if found) == 95


@pytest.mark.parametrize("width", [100, 200])
def test_after_an_upgrade_the_summary_has_at_most_twenty_lines(width):
    results = [*suites_on_a_gpu(), result("numba.s", simulated=True)]
    for i, kind in enumerate(("INVALID", "SLOWER", "UNCOMPARABLE") * 6):
        odd = structs.replace(verdict(kind, 1.0), false_alarm=0.1)
        results.append(result(f"{BACKENDS[i % 6]}.odd_{i}", measured(), verdicts=[odd]))
    changed = "since the record: driver 580.65.06 → 590.10, CUDA 13.0 → 13.1; outputs as recorded"
    times = f"times: all kernels 3.0 % slower {'(median of 9, 95 %: 3.0 … 3.0 %), ' * 5}not your change"
    report = RunResults(results, skips=SKIPS, since_record=[changed, times])
    lines = [line.text for line in render(report, width=width)]
    summary, commands = lines[lines.index("") + 1 :], 3
    assert len(summary) + commands <= 25
    assert times[:50] in "\n".join(summary)
    assert sum(int(found[1]) for found in map(re.compile(r"(\d+) skipped").match, summary) if found) == 95


# what a timer costs


def test_what_timers_read_for_nothing_is_said_once_a_table():
    def told(*costs_ns):
        times = [measured(fixed_cost_ns=cost_ns) for cost_ns in costs_ns]
        return text_of(*(result(f"a.{number}", time) for number, time in enumerate(times)))

    several = "by event an empty kernel reads 2.90 µs … 3.14 µs more than it takes; not subtracted"
    assert told(2900.0, 3140.0).count(several) == 1
    assert "reads 2.90 µs more than it takes" in told(2900.0, 2900.0)
    assert "empty kernel" not in told(None)


# what else is known of a measurement


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"invalid_samples": 12}, "12 samples were taken while the device was disturbed, and not used"),
        ({"invalid_samples": 1}, "1 sample was taken while the device was disturbed, and not used"),
        ({"invalid_samples": 0}, ""),
        ({"invalid_samples": 12, "invalid": "could not be measured cleanly"}, ""),
        ({"busy_ns": 8e4}, "kernels ran 80 % of the time between the first's start and the last's end"),
        ({"busy_ns": 9.95e4}, ""),
        ({"busy_ns": None}, ""),
        ({"busy_ns": 8e4, "scope": "end_to_end"}, ""),
    ],
)
def test_samples_not_used_and_gaps_between_kernels_are_told_under_the_table(changes, told):
    text = text_of(result("a.b", measured(1e5, timer="cupti", **changes)))
    assert (f"  a.b n=1000 kernel: {told}" in text) == bool(told)
    assert ("not used" in text, "kernels ran" in text) == ("not used" in told, "kernels ran" in told)


TRAFFIC, FLOPS = 0.97 * 4e12 * 48.6e-6, 0.81 * 60e12 * 48.6e-6


@pytest.mark.parametrize(
    ("dtype", "declared", "ceiling"),
    [
        ("float32", {"traffic_bytes": TRAFFIC}, "97 % copy"),
        ("float32", {"traffic_bytes": TRAFFIC, "flops": FLOPS}, "97 % copy"),
        ("float32", {"traffic_bytes": TRAFFIC / 2, "flops": FLOPS}, "81 % FMA"),
        ("float32", {"traffic_bytes": TRAFFIC * 0.00035}, "0.034 % copy"),
        ("float32", {"traffic_bytes": TRAFFIC, "cache": "hot"}, ""),
        ("float64", {"flops": FLOPS}, ""),
        (None, {"flops": FLOPS}, ""),
        ("a_dtype_of_tomorrow", {"flops": FLOPS}, ""),
    ],
)
def test_of_two_ceilings_the_nearer_is_shown(dtype, declared, ceiling):
    made = result("cupy.exp", measured(timer="cupti", **declared), ceilings=CEILINGS, dtype=dtype)
    text = row_with("cupy.exp", made).text
    assert ceiling in text
    assert ceiling or not re.search("copy|FMA", text)


def test_copies_to_and_from_the_host_have_their_own_ceiling():
    work = (COPY_IN, EXP_KERNEL, structs.replace(COPY_OUT, size_bytes=4e6))
    made = result("cupy.exp", measured(2e6, work=work, **END), ceilings=CEILINGS)
    assert "60 % host copy" in row_with("cupy.exp", made).text  # 16 MB at 20 GB/s, 4 MB at 10 GB/s: 1.2 ms
    for ns in (2e8, 1.0e5):  # a call that hardly copies, and one faster than the copies that were measured
        assert "host copy" not in text_of(
            structs.replace(made, measurements=(measured(ns, work=work, **END),))
        )
    for memory in ("pinned", "managed"):
        other = structs.replace(COPY_IN, host_copy=HostCopy("HtoD", memory))
        seen = measured(2e6, work=(other,), **END)
        assert "host copy" not in text_of(structs.replace(made, measurements=(seen,)))


def test_a_kernel_above_the_measured_copy_is_at_the_limit():
    made = result("cupy.exp", measured(1000.0, traffic_bytes=2e7), ceilings=CEILINGS)
    assert "≥ 100 % copy" in row_with("cupy.exp", made).text


def test_without_ceilings_and_on_the_host_no_share_is_shown():
    host = result("host.numpy", measured(traffic_bytes=8e7, **HOST), ceilings=CEILINGS)
    assert "of ceiling" not in text_of(host, result("cupy.exp", measured(traffic_bytes=8e7)))


def test_numbers_that_did_not_survive_the_journey_are_dashes_at_worst():
    infinite = float("inf")
    seen = {"busy_ns": infinite, "device_ns": infinite, "work": (EXP_KERNEL,), "traffic_bytes": 1.0}
    times = [
        measured(infinite, scope, timer, fixed_cost_ns=infinite, **seen)
        for scope, timer in (("kernel", "cupti"), ("end_to_end", "host"))
    ]
    crossed = Result.from_json(result("a.b", *times, ceilings=CEILINGS).to_json())
    assert "–" in cells(row_with("a.b  ", crossed))
    assert render(RunResults([crossed]), width=160, verbose=True)


def test_a_single_sample_has_no_uncertainty():
    one = measured()
    one = structs.replace(one, summary=structs.replace(one.summary, n=1))
    row = row_with("cupy.exp", result("cupy.exp", one)).text
    assert " –" in row
    assert "%" not in row
