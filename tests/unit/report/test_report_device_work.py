"""What the device did in a call, as text."""

from __future__ import annotations

from made_up_results import COPY_IN, COPY_OUT, EXP_KERNEL, measured, result
from msgspec import structs

from pytest_gpukern.gpu.kernel_facts import kernel_facts
from pytest_gpukern.report.details import device_work
from pytest_gpukern.values.result import Correctness, DeviceWork

ALL = (COPY_IN, EXP_KERNEL, COPY_OUT)  # 1 ms, 48.6 µs and 0.5 ms
MEMSET = DeviceWork("memset", "memset", 1.0, 2000.0, 4096.0)


def end_to_end(host_ns=2e6, device_ns=1.6e6, work=ALL, **changes):
    """A case by the host's clock, split by CUPTI."""
    timed = measured(host_ns, "end_to_end", timer="host", work=work, device_ns=device_ns)
    return result("cupy.exp", timed, **changes)


def kernel(median_ns=48_600.0, work=(EXP_KERNEL,), **changes):
    return result("cupy.exp", measured(median_ns, timer="cupti", work=work), **changes)


def texts(made, width=160):
    return [line.text for line in device_work(made, width=width)]


def split(text):
    return [cell.strip() for cell in text.split("  ") if cell.strip()]


def test_an_end_to_end_time_is_copies_kernels_and_what_the_host_takes():
    title, header, *rows, empty = texts(end_to_end())
    assert title == "vector_exp/cupy.exp/n=1000 · end_to_end · 2.00 ms by host, what the device did by cupti"
    assert split(header) == ["Time(%)", "Time", "Calls", "Avg", "Size", "Throughput", "Name"]
    assert split(rows[0]) == [
        *("50.0 %", "1.00 ms", "2", "500 µs", "15.3 MiB", "16.0 GB/s", "memcpy HtoD, pageable")
    ]
    assert split(rows[1]) == [
        *("25.0 %", "500 µs", "1", "500 µs", "7.63 MiB", "16.0 GB/s", "memcpy DtoH, pageable")
    ]
    assert split(rows[2]) == ["2.4 %", "48.6 µs", "1", "48.6 µs", "exp_kernel"]
    assert rows[3] == "      grid 63×2, block 256, 40 registers, 3.00 KiB shared, 128 B local"
    assert split(rows[4]) == ["22.6 %", "451 µs", "host and launch"]
    assert (len(rows), empty) == (5, "")


def test_a_kernels_time_is_all_of_what_its_timer_saw():
    title, header, row, *_ = texts(kernel())
    assert title == "vector_exp/cupy.exp/n=1000 · kernel · 48.6 µs by cupti"
    assert split(header) == ["Time(%)", "Time", "Calls", "Avg", "Name"]
    assert split(row)[0] == "100.0 %"


def test_no_part_takes_more_than_all_of_a_call():
    _, _, row, *_ = texts(kernel(48_000.0))  # the median of other calls than the kernel's own
    assert split(row)[0] == "100.0 %"
    _, _, row, *_, note, _ = texts(end_to_end(host_ns=8e5, device_ns=1.6e6))
    assert split(row)[0] == "100.0 %"
    assert note == "  cupti saw other calls than host timed, of 1.60 ms"


def test_time_between_kernels_is_named_for_what_it_is():
    second = structs.replace(EXP_KERNEL, name="sum_kernel", time_ns=20_000.0)
    found = texts(kernel(80_000.0, (EXP_KERNEL, second, MEMSET)))
    assert split(found[-2]) == ["11.8 %", "9.40 µs", "between kernels and copies"]
    assert split(found[-3]) == ["2.5 %", "2.00 µs", "1", "2.00 µs", "4.00 KiB", "2.05 GB/s", "memset"]


def test_work_that_overlaps_is_not_taken_for_the_hosts_time():
    found = texts(end_to_end(host_ns=1.4e6, device_ns=1.1e6))
    assert split(found[-3]) == ["21.4 %", "300 µs", "host and launch"]
    assert found[-2] == "  work overlaps: 1.55 ms of it within 1.10 ms"


def test_a_kernels_facts_are_under_its_line_for_each_of_its_grids():
    of_small = structs.replace(EXP_KERNEL.kernel, block=(32, 1, 1), registers=16)
    small = structs.replace(EXP_KERNEL, time_ns=100.0, kernel=of_small)
    facts = kernel_facts((EXP_KERNEL, small), (9, 0), lambda kernel, registers: "0123456789abcdef")
    found = texts(kernel(work=(EXP_KERNEL, small), kernels=facts))
    assert found[3].endswith("128 B local, occupancy 75 % (40 registers a thread), machine code 0123456789ab")
    assert "occupancy 50 % (32 blocks a multiprocessor)" in found[5]


def test_long_names_lose_parameters_first_and_every_line_fits():
    name = "at::native::vectorized_elementwise_kernel<4, std::array<char*, 2ul>>(int, std::array<char*, 2ul>)"
    named = structs.replace(EXP_KERNEL.kernel, name=name)
    made = kernel(work=(structs.replace(EXP_KERNEL, kernel=named),))
    assert split(texts(made, 200)[2])[-1] == name
    assert split(texts(made, 120)[2])[-1] == name.partition("(")[0] + "(…)"
    assert split(texts(made, 100)[2])[-1] == "at::native::vectorized_elementwise_kernel<…>(…)"
    for width in (80, 100, 120):
        for each in (made, end_to_end()):
            assert max(len(text) for text in texts(each, width)) <= width


def test_by_events_only_simulated_or_incorrect_there_is_no_breakdown():
    wrong = kernel(correctness=Correctness.INCORRECT)
    assert texts(result("cupy.exp", measured())) == texts(kernel(simulated=True)) == texts(wrong) == []


def test_times_that_did_not_survive_the_journey_are_dashes():
    odd = end_to_end(float("inf"), float("inf"), (structs.replace(COPY_IN, time_ns=float("nan")),))
    crossed = type(odd).from_json(odd.to_json())
    (row,) = [text for text in texts(crossed) if "HtoD" in text]
    assert split(row)[:4] == ["–", "–", "2", "–"]
