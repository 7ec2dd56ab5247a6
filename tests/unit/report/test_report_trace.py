"""Checks nvprof's table of activities."""

from __future__ import annotations

import pytest
from made_up_results import result
from test_report_device_work import split

from pytest_gpukern.report.details import gpu_trace
from pytest_gpukern.values.result import DeviceActivity, Trace

COPY = DeviceActivity(
    *("memcpy", "memcpy HtoD", 2_000, 12_500, 0, 1, 7),
    size_bytes=1_638_400,
    source="Pageable",
    target="Device",
)
MEMSET = DeviceActivity("memset", "memset", 13_000, 13_640, 0, 1, 7, size_bytes=4, source="Device")
KERNEL = DeviceActivity(
    *("kernel", "tile::matmul(float*)", 1_234_567, 1_370_347, 0, 1, 13),
    grid=(10, 10, 1),
    block=(32, 32, 1),
    registers=29,
    static_shared_bytes=8192,
    dynamic_shared_bytes=0,
)
TITLES = [
    *("Start", "Duration", "Grid Size", "Block Size", "Regs", "SSMem", "DSMem", "Size", "Throughput"),
    *("SrcMemType", "DstMemType", "Device", "Context", "Stream", "Name"),
]


def traced(*activities):
    return result("cupy.matmul", trace=Trace("end_to_end", activities))


def texts(*results, width=200):
    return [line.text for line in gpu_trace(results, width)]


def test_the_table_has_nvprofs_columns_in_their_order():
    title, header, *rows, empty, _, _ = texts(traced(COPY, MEMSET, KERNEL))
    assert title == "vector_exp/cupy.matmul/n=1000 · end_to_end"
    assert split(header) == TITLES
    nothing, where = ["–"] * 5, ["NVIDIA H200 (0)", "1", "7"]
    assert [split(row) for row in rows] == [
        [
            *("2.0000 µs", "10.500 µs", *nothing, "1.56 MiB", "156 GB/s", "Pageable", "Device", *where),
            "[CUDA memcpy HtoD]",
        ],
        ["13.000 µs", "640.00 ns", *nothing, "4 B", "6.25 MB/s", "Device", "–", *where, "[CUDA memset]"],
        [
            *("1.2346 ms", "135.78 µs", "(10 10 1)", "(32 32 1)", "29", "8.00 KiB", "0 B", *["–"] * 4),
            *("NVIDIA H200 (0)", "1", "13", "tile::matmul(float*)"),
        ],
    ]
    assert empty == ""


@pytest.mark.parametrize("width", range(50, 190, 10))
def test_a_narrow_terminal_loses_columns_and_says_which(width):
    _, header, *rest = texts(traced(COPY, MEMSET, KERNEL), width=width)
    kept = split(header)
    assert kept == [title for title in TITLES if title in kept]
    assert {"Start", "Duration", "Name"} <= set(kept)
    assert len(header) <= width
    told = " ".join(rest[4:])
    left_out = [title for title in TITLES if title not in kept]
    assert all(title in told.partition("Regs: ")[0] for title in left_out)
    assert ("columns left out" in told) == bool(left_out)
