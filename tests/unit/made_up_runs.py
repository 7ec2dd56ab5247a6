"""A run on a GPU that never was, of any number of cases, for tests of what is made of whole runs."""

from __future__ import annotations

import dataclasses
import json
import random
from datetime import UTC, datetime, timedelta

import made_up_results as made_up
from made_up_times import record_of, recorded
from msgspec import structs

from pytest_gpukern.findings.common_shift import CanaryChange, Shift
from pytest_gpukern.report.run import Advice, Failure, RunResults, Skip
from pytest_gpukern.report.run_file import read_run, run_text
from pytest_gpukern.values.atomic_file import write_named
from pytest_gpukern.values.difference import Difference
from pytest_gpukern.values.note import About, Note
from pytest_gpukern.values.result import (
    Correctness,
    DeviceWork,
    Finding,
    GateFailure,
    KernelFacts,
    Measurement,
    OutputError,
    Summary,
    Verdict,
)
from pytest_gpukern.values.stored import plain
from pytest_gpukern.values.verdict_table import VerdictKind

CREATED = datetime(2026, 11, 20, 10, tzinfo=UTC)
CARDS = ("GPU-11111111-aaaa", "GPU-22222222-bbbb")
CEILINGS = {
    "device_copy_bytes_per_s": 4.1e12,
    "pageable_to_device_bytes_per_s": 20e9,
    "device_to_pageable_bytes_per_s": 10e9,
    "float32_flop_per_s": 54e12,
    "float64_flop_per_s": 31e12,
}
VARIANTS = (
    "numba.grid_stride",
    "numba.tiled",
    "cupy.elementwise",
    "cupy.fused",
    "pycuda.raw",
    "skcuda.cublas",
)
PROBLEMS = {
    "saxpy": (12, 2),
    "stencil": (16, 40),
    "matmul": (0.4, 700),
    "exp": (8, 16),
    "scan": (16, 6),
    "histogram": (4, 3),
}
"""Problem → bytes and flops of an element."""
SIZES = (10_000, 100_000, 1_000_000, 10_000_000)
KINDS = ["SAME"] * 14 + ["SLOWER", "FASTER", "UNDECIDED", "NEW", "UNCOMPARABLE", "INVALID"]
HOSTILE = '</script><script>ran()</script><img src=x onerror=ran()>" onload="ran() javascript:ran()'
"""What runs if a page takes it for markup, for a link or for code."""


def gpu_run(cases: int = 96, *, samples: int = 120, name: str = "", **changes) -> RunResults:
    """A run of that many cases with a record, of every verdict; `name` ends the names of all problems."""
    draw = random.Random(4)
    results, history = [], {}
    for number in range(cases):
        result, recorded = _case(draw, number, samples, name)
        results.append(result)
        history[result.nodeid] = recorded
    slower = [each for each in results if any(v.kind is VerdictKind.SLOWER for v in each.verdicts.values())]
    failures = {
        each.nodeid: Failure(verdict.explained, (GateFailure("SLOWER", verdict.explained, key),))
        for each in slower
        for key, verdict in each.verdicts.items()
    }
    failures |= {
        each.nodeid: Failure(f"INCORRECT: {each.diagnosis}")
        for each in results
        if each.correctness is Correctness.INCORRECT
    }
    canaries = {"copy": CanaryChange(1.012, moved=True), "fma": CanaryChange(1.001, moved=False)}
    filled = {
        "results": tuple(results),
        "history": history,
        "failures": failures,
        "shift": Shift(cases, 1.011, 1.008, 1.014, canaries, 0.004),
        "since_record": (
            "since the record: driver 580.65.06 → 580.95.05, numba 0.67 → 0.68; outputs as recorded",
            "times: all kernels 1.1 % slower (median of 82), so is the copy (+1.2 %): the machine",
        ),
        "skips": (Skip("matmul/torch.mm/n=100", "torch is not installed: pip install torch"),) * 3,
        "compared_with": "baseline",
        "closing": (
            Advice("3 cases are new; to record", "pytest --gpu-benchmark --gpukern-baseline=create"),
        ),
        "created": CREATED,
        "version": "0.1.0",
    }
    return RunResults(**{**filled, **changes})


def hostile_run() -> RunResults:
    """A run whose every text would run as script in a page that took it for markup."""
    run = gpu_run(12, name=HOSTILE)
    results = tuple(
        structs.replace(
            each,
            nodeid=f"{each.nodeid}{HOSTILE}",
            notes=(Note(HOSTILE),),
            diagnosis=HOSTILE,
            errors={HOSTILE: made_up.error()},
            findings=(Finding(HOSTILE, HOSTILE),),
            kernels=(structs.replace(each.kernels[0], name=HOSTILE),) if each.kernels else (),
            fingerprint=structs.replace(each.fingerprint, device_name=HOSTILE, libraries={HOSTILE: HOSTILE}),
            verdicts={key: structs.replace(v, reason=HOSTILE) for key, v in each.verdicts.items()},
        )
        for each in run.results
    )
    return dataclasses.replace(
        run,
        results=results,
        failures={HOSTILE: Failure(HOSTILE)},
        since_record=(HOSTILE,),
        skips=(Skip(HOSTILE, HOSTILE),),
        closing=(HOSTILE,),
        problems=(HOSTILE,),
        compared_with=HOSTILE,
        version=HOSTILE,
    )


def _case(draw, number, samples, name):
    label = VARIANTS[number % len(VARIANTS)]
    size = SIZES[(number // len(VARIANTS)) % len(SIZES)] * (1 + number // 576)
    problem = list(PROBLEMS)[(number // (len(VARIANTS) * len(SIZES))) % len(PROBLEMS)]
    per_byte, per_flop = PROBLEMS[problem]
    traffic, flops = per_byte * size, per_flop * size
    efficiency = draw.uniform(0.3, 0.97)
    ns = (
        2_500
        + max(traffic / CEILINGS["device_copy_bytes_per_s"], flops / CEILINGS["float32_flop_per_s"])
        * 1e9
        / efficiency
    )
    kind = VerdictKind(KINDS[number % len(KINDS)])
    ratio = {"SLOWER": draw.uniform(1.03, 1.2), "FASTER": draw.uniform(0.8, 0.97)}.get(
        kind, draw.gauss(1.0, 0.004)
    )
    kernel = _measured(draw, ns * ratio, "kernel", "cupti", samples, traffic, flops)
    kernel = structs.replace(
        kernel, invalid="clocks fell from 1980 to 1200 MHz; cool the device" if kind == "INVALID" else None
    )
    whole = _measured(draw, ns * 3 + 20_000, "end_to_end", "host", samples // 3, None, None)
    verdict = Verdict(
        kind,
        f"{100 * (ratio - 1):+.1f} % against 5 sessions of 2026-10-01, threshold 2 %",
        None if kind in ("NEW", "UNCOMPARABLE", "INVALID") else ratio,
        None if kind in ("NEW", "UNCOMPARABLE", "INVALID") else ratio - 0.006,
        None if kind in ("NEW", "UNCOMPARABLE", "INVALID") else ratio + 0.006,
        differences=(Difference("clock", "1980", "1755 MHz"),) if kind == "SLOWER" else (),
        threshold=0.02,
        false_alarm=1e-5,
    )
    wrong = number % 41 == 40
    facts = KernelFacts(
        f"{problem}_kernel<float>",
        32 + number % 40,
        0,
        2048 * (number % 3),
        f"code:{number:064x}",
        grid=(size // 256 + 1, 1, 1),
        block=(256, 1, 1),
        symbol=f"_Z{number}",
        blocks_per_sm=8,
        occupancy=0.75,
        limited_by="40 registers a thread",
    )
    work = (DeviceWork("kernel", facts.name, 1.0, ns * ratio, kernel=facts),)
    result = made_up.result(
        label,
        *([] if wrong else [structs.replace(kernel, work=work), whole]),
        problem=f"{problem}{name}",
        point={"n": size},
        parameters={"block": 256} if number >= 576 else {},
        fingerprint=structs.replace(made_up.FINGERPRINT, device_uuid=CARDS[0]),
        correctness=Correctness.INCORRECT if wrong else Correctness.PASSED,
        diagnosis="12 of 1000 elements are wrong, the first at index 7:\nexpected 1.5, got nan"
        if wrong
        else None,
        errors={"y": OutputError(size, 12 if wrong else 0, 1e-7, 2.3e-7, 0.5, determinism="bitwise")},
        verdicts=(),
        ceilings=CEILINGS,
        dtype="float32",
        kernels=(facts,),
        speedup_against="cupy.elementwise",
        notes=(Note("bimodal: two groups of samples, 3 % apart", About.NOISE),) if number % 9 == 0 else (),
        findings=(Finding("resources", "kernel takes 40 registers instead of 32"),)
        if number % 17 == 5
        else (),
        session="now",
        canaries={"copy": 1.2e6, "fma": 8e5, "launch": 1_900.0},
        first_call_ns=2.4e8,
        compile_ns=2.3e8,
    )
    if not wrong:
        result = structs.replace(result, verdicts={kernel.key: verdict})
    return result, _history(draw, kernel.key, ns)


def _measured(draw, median_ns, scope, timer, count, traffic, flops) -> Measurement:
    samples = [median_ns * draw.lognormvariate(0, 0.006) for _ in range(count)]
    samples[count // 3] *= 1.4
    half = 0.002
    return Measurement(
        scope,
        timer,
        "cold",
        1,
        Summary(median_ns, median_ns * (1 - half), median_ns * (1 + half), count),
        "GPU time of its kernels",
        tuple(samples),
        stopped=f"{count} samples",
        traffic_bytes=traffic,
        flops=flops,
    )


def _history(draw, key, ns):
    """Two epochs of three sessions each, the newer on both cards."""
    times = []
    for number in range(6):
        epoch, card = int(number > 2), CARDS[int(number == 4)]
        median = ns * (1.05 if epoch == 0 else 1.0) * draw.gauss(1, 0.004)
        moment = (CREATED - timedelta(days=60 - 10 * number)).isoformat()
        known = {"recorded": moment, "epoch": epoch, "session": f"s{number}", "device": card}
        times.append(recorded(median, 0.002, **known))
    opened = [(CREATED - timedelta(days=days)).isoformat() for days in (60, 30)]
    return record_of({key: times}, [(opened[0], None), (opened[1], "a faster tile")])


def write_run_file(path, run):
    """Writes a run as `--gpukern-report=RUN.json` does."""
    write_named(path, run_text(run), "--gpukern-report")


def whole_run(path):
    """Plain JSON of a run file in which each result is whole; it may be changed and written again."""
    run = read_run(path)
    sessions = [_whole(session) for of_test in run.sessions.values() for session in of_test]
    return {**json.loads(path.read_text()), "results": _whole(run.results), "sessions": sessions}


def _whole(value):
    if hasattr(value, "__struct_fields__"):
        return {name: _whole(getattr(value, name)) for name in value.__struct_fields__}
    if isinstance(value, dict):
        return {key: _whole(of) for key, of in value.items()}
    return [*map(_whole, value)] if isinstance(value, (list, tuple)) else plain(value)
