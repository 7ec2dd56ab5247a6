"""Defines the problem `discount_streamed`: `discount` at its full size, 200 × 10 000 000 × 5.

Input and output are 80 GB each, so they pass through the device in slabs, and the time that counts starts and
ends with host data. Few hosts hold these arrays, so the whole is a huge size and a full run takes fewer i.
Slabs are pieces of the flat arrays: `mult` (400 MB) stays on the device and begins again with each time step.
"""

from __future__ import annotations

from pytest_gpukern import Axis, Problem, Tolerance, boundaries

from ..discount.problem import flops, make_inputs, outputs, reference, traffic_bytes

discount_streamed = Problem(
    "discount_streamed",
    version=1,
    axes={
        "t": Axis(smoke=(3,), full=(200,), huge=(200,)),
        "i": Axis(smoke=(32, 31), full=(39_062,), huge=(10_000_000,)),
        "k": Axis(smoke=(5,), full=(5,)),
        "fill": Axis(smoke=("random",), full=("random",)),
    },
    check_points=[{"t": 1, "i": n, "k": 1} for n in boundaries(minimum=1)],
    make_inputs=make_inputs,
    outputs=outputs,
    reference=reference,
    # A single multiplication is rounded once, the same way everywhere: nothing but bitwise equality is right.
    tolerance=Tolerance(rtol=0.0, atol=0.0),
    traffic_bytes=traffic_bytes,
    flops=flops,
    transfer_bytes=traffic_bytes,  # each array crosses the bus once, just as it crosses device memory once
    scopes=("end_to_end",),
    speedup_against="host.multiply",
    package=__package__,
)
