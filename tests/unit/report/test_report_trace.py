"""Checks nvprof's table of activities, and the timeline for Perfetto."""

from __future__ import annotations

import dataclasses
import itertools
import json

import pytest
from made_up_results import result
from test_report_device_work import split

from pytest_gpukern.report.run import RunResults
from pytest_gpukern.report.trace import gpu_trace, timeline
from pytest_gpukern.values.result import DeviceActivity, HostCall, Trace

HOST, OTHER = "MainThread (7)", "thread 8"
COPY = DeviceActivity(
    *("memcpy", "memcpy HtoD", 2_000, 12_500, 0, 1, 7, 11),
    size_bytes=1_638_400,
    source="Pageable",
    target="Device",
)
MEMSET = DeviceActivity("memset", "memset", 13_000, 13_640, 0, 1, 7, 12, size_bytes=4, source="Device")
KERNEL = DeviceActivity(
    *("kernel", "tile::matmul(float*)", 1_234_567, 1_370_347, 0, 1, 13, 13),
    grid=(10, 10, 1),
    block=(32, 32, 1),
    registers=29,
    static_shared_bytes=8192,
    dynamic_shared_bytes=0,
)
LAUNCH = HostCall("runtime", "cudaLaunchKernel", 14_000, 18_000, HOST, 13)
CALLS = (
    HostCall("driver", "cuMemcpyHtoD_v2", 0, 12_800, HOST, 11),
    HostCall("driver", "cuMemsetD32Async", 12_900, 13_900, OTHER, 12),
    LAUNCH,
    HostCall("driver", "cuLaunchKernel", 14_500, 17_000, HOST, 13),
)
TITLES = [
    *("Start", "Duration", "Grid Size", "Block Size", "Regs", "SSMem", "DSMem", "Size", "Throughput"),
    *("SrcMemType", "DstMemType", "Device", "Context", "Stream", "Name"),
]


def traced(*activities, label="cupy.matmul", calls=CALLS):
    return result(label, trace=Trace("end_to_end", activities, calls))


def texts(*results, width=200):
    return [line.text for line in gpu_trace(results, width)]


# the table


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


def test_only_cases_with_a_trace_have_a_table():
    assert texts(traced())[1] == "  the device did nothing"
    assert texts(result("cupy.other")) == []
    assert [text for text in texts(result("cupy.other"), traced(KERNEL)) if "cupy" in text] == [
        "vector_exp/cupy.matmul/n=1000 · end_to_end"
    ]


# the timeline


def events_of(*results):
    """The events of a timeline by their phase, as they come out of a file."""
    made = json.loads(timeline([RunResults(results)]))
    assert made["displayTimeUnit"] == "ns"
    found = {"M": [], "X": [], "s": [], "f": []}
    for event in made["traceEvents"]:
        found[event["ph"]].append(event)
    return found


def rows_of(events):
    """(process, row) → its name."""
    return {
        (event["pid"], event["tid"]): event["args"]["name"]
        for event in events["M"]
        if event["name"] == "thread_name"
    }


def test_a_case_is_a_process_with_a_row_for_each_thread_and_each_stream_in_order():
    events = events_of(traced(COPY, MEMSET, KERNEL))
    processes = [event["args"]["name"] for event in events["M"] if event["name"] == "process_name"]
    assert processes == ["vector_exp/cupy.matmul/n=1000 · end_to_end"]
    rows = rows_of(events)
    order = {
        (event["pid"], event["tid"]): event["args"]["sort_index"]
        for event in events["M"]
        if event["name"] == "thread_sort_index"
    }
    assert [rows[row] for row in sorted(rows, key=order.get)] == [
        f"host: {HOST}",
        f"host: {OTHER}",
        "stream 7",
        "stream 13",
    ]


def test_streams_of_several_devices_are_told_apart():
    other = dataclasses.replace(KERNEL, device=1, context=2, stream=7)
    assert [name for name in rows_of(events_of(traced(COPY, other))).values() if "host" not in name] == [
        *("stream 7 of context 1, device 0", "stream 7 of context 2, device 1")
    ]


def test_a_slice_has_its_time_in_microseconds_its_row_and_its_columns():
    events = events_of(traced(COPY, MEMSET, KERNEL))
    rows = rows_of(events)
    slices = {event["name"]: event for event in events["X"]}
    kernel, copy = slices["tile::matmul(float*)"], slices["[CUDA memcpy HtoD]"]
    assert (kernel["ts"], kernel["dur"], kernel["cat"]) == (1234.567, 135.78, "kernel")
    assert rows[kernel["pid"], kernel["tid"]] == "stream 13"
    assert kernel["args"] == {
        "correlation": 13,
        "Start": "1.2346 ms",
        "Duration": "135.78 µs",
        "Grid Size": "(10 10 1)",
        "Block Size": "(32 32 1)",
        "Regs": "29",
        "SSMem": "8.00 KiB",
        "DSMem": "0 B",
        "Device": "NVIDIA H200 (0)",
        "Context": "1",
        "Stream": "13",
        "Name": "tile::matmul(float*)",
    }
    assert copy["args"]["Throughput"] == "156 GB/s"
    call = slices["cuMemsetD32Async"]
    assert (call["ts"], call["dur"], call["cat"]) == (12.9, 1.0, "driver API")
    assert rows[call["pid"], call["tid"]] == f"host: {OTHER}"
    assert call["args"] == {"correlation": 12}


def test_arrows_lead_from_the_outermost_call_of_the_host_to_what_it_launched():
    events = events_of(traced(COPY, MEMSET, KERNEL))
    assert len(events["s"]) == len(events["f"]) == 3
    slices = {(event["pid"], event["tid"], event["ts"]): event["name"] for event in events["X"]}
    ends = {event["id"]: event for event in events["f"]}
    arrows = {
        slices[begin["pid"], begin["tid"], begin["ts"]]: slices[end["pid"], end["tid"], end["ts"]]
        for begin in events["s"]
        for end in [ends[begin["id"]]]
    }
    assert arrows == {
        "cuMemcpyHtoD_v2": "[CUDA memcpy HtoD]",
        "cuMemsetD32Async": "[CUDA memset]",
        "cudaLaunchKernel": "tile::matmul(float*)",
    }
    assert all(end["bp"] == "e" for end in events["f"]), "else it ends in the slice behind"
    assert not events_of(traced(KERNEL, calls=()))["s"], "its call was not recorded"
    assert len({(each["name"], each["cat"]) for each in (*events["s"], *events["f"])}) == 1


def test_a_graph_has_an_arrow_to_each_of_its_kernels_and_rows_for_those_at_the_same_time():
    def kernel(start, end):
        return DeviceActivity("kernel", f"k{start}", start, end, 0, 1, 7, 5, grid=(1, 1, 1), block=(1, 1, 1))

    launch = HostCall("driver", "cuGraphLaunch", 0, 50, HOST, 5)
    kernels = [kernel(100, 300), kernel(150, 250), kernel(200, 400), kernel(260, 500), kernel(400, 500)]
    events = events_of(traced(*kernels, calls=(launch,)))
    assert len({event["id"] for event in events["s"]}) == len(events["s"]) == 5
    names = [name for name in rows_of(events).values() if name.startswith("stream")]
    assert names == ["stream 7", *["stream 7, at the same time"] * 2]
    by_row = {}
    for event in events["X"]:
        by_row.setdefault(event["tid"], []).append((event["ts"], event["ts"] + event["dur"]))
    for found in by_row.values():
        for (_, ended), (began, _) in itertools.pairwise(sorted(found)):
            assert ended <= began


def test_rows_and_arrows_of_several_cases_are_not_mixed_up():
    events = events_of(traced(COPY, KERNEL), result("cupy.none"), traced(COPY, KERNEL, label="numba.matmul"))
    assert len({event["pid"] for event in events["X"]}) == 2
    assert len({(event["pid"], event["tid"]) for event in events["X"]}) == 8
    assert len({event["tid"] for event in events["X"]}) == 8
    ends = {event["id"]: event for event in events["f"]}
    assert len(ends) == 4
    assert all(begin["pid"] == ends[begin["id"]]["pid"] for begin in events["s"])
