"""Declares broken host variants of `discount`, which need NumPy alone and are rejected everywhere."""

from __future__ import annotations

import threading

import numpy as np

from .problem import discount


@discount.wrong("host", expected_fault="not written")
def last_time_step_missing(mult, discount, cv):
    """Stops one time step early."""
    return lambda: np.multiply(mult, discount[:-1], out=cv[:-1])


@discount.wrong("host", expected_fault="wrong values")
def single_precision(mult, discount, cv):
    """Computes in float32 and stores float64."""
    return lambda: np.copyto(cv, mult.astype(np.float32) * discount.astype(np.float32))


@discount.wrong("host", expected_fault="input modified")
def input_overwritten(mult, discount, cv):
    """Scales `discount` in place before copying it out."""

    def launch():
        np.multiply(discount, mult, out=discount)
        cv[...] = discount

    return launch


@discount.wrong("host", expected_fault="stale result")
def computed_while_preparing(mult, discount, cv):
    """Computes before the timed region and only copies in it."""
    answer = mult * discount
    return lambda: np.copyto(cv, answer)


@discount.wrong("host", expected_fault="wrong shape", allocates=True)
def axes_swapped(mult, discount):
    """Returns (i, t, k)."""
    return lambda: (mult * discount).transpose(1, 0, 2)


@discount.wrong("host", expected_fault="wrong dtype", allocates=True)
def output_in_half_precision(mult, discount):
    """Returns float16."""
    return lambda: (mult * discount).astype(np.float16)


@discount.wrong("host", expected_fault="wrong type", allocates=True)
def output_as_list(mult, discount):
    """Returns nested lists."""
    return lambda: (mult * discount).tolist()


@discount.wrong("host", expected_fault="launch failed")
def shapes_do_not_broadcast(mult, discount, cv):
    """Multiplies (k, i) by (t, i, k), which NumPy refuses."""
    return lambda: np.multiply(mult.T, discount, out=cv)


@discount.wrong("host", expected_fault="not written")
def gaps_filled(mult, discount, cv):
    """Computes only where there is no number yet: nothing at all, once the output was written."""
    return lambda: np.multiply(mult, discount, out=cv, where=np.isnan(cv))


@discount.wrong("host", expected_fault="still running")
def last_time_step_deferred(mult, discount, cv):
    """Leaves the last time step to a thread that waits for the next call, or for some seconds."""
    next_call = [threading.Event()]

    def launch():
        next_call[0].set()
        np.multiply(mult, discount[:-1], out=cv[:-1])
        called = next_call[0] = threading.Event()

        def finish():
            called.wait(5)
            np.multiply(mult, discount[-1:], out=cv[-1:])

        threading.Thread(target=finish, name="last time step").start()

    return launch


@discount.wrong("host", expected_fault="wrong values")
def all_zero(cv):
    """Fills the output with zeros: right enough for a tolerance that is absolute."""
    return lambda: cv.fill(0.0)


@discount.wrong("host", expected_fault="wrong values")
def mean_of_all_inputs(cv):
    """A constant answer: the product of two means of 0.5, right on average."""
    return lambda: cv.fill(0.25)


@discount.wrong("host", expected_fault="not written")
def nothing_after_the_first_call(mult, discount, cv):
    """Writes once, and then trusts that the answer is still there."""
    calls = []

    def launch():
        if not calls:
            np.multiply(mult, discount, out=cv)
        calls.append(True)

    return launch


@discount.wrong("host", expected_fault="stale result")
def cached_by_id(mult, discount, cv):
    """Remembers the product by the identity of its operands, which stays when their contents change."""
    answers = {}

    def launch():
        key = id(mult), id(discount)
        if key not in answers:
            answers[key] = mult * discount
        np.copyto(cv, answers[key])

    return launch


@discount.wrong("host", expected_fault="stale result")
def cached_by_one_operand(mult, discount, cv):
    """Remembers the product by the contents of `mult`, which say nothing about `discount`."""
    answers = {}

    def launch():
        key = mult.tobytes()
        if key not in answers:
            answers[key] = mult * discount
        np.copyto(cv, answers[key])

    return launch


@discount.wrong("host", expected_fault="wrong values")
def infinities_clamped(mult, discount, cv):
    """Clamps to the finite range, as against overflow: where infinity is the answer, it is wrong."""
    largest = np.finfo(np.float64).max
    return lambda: np.clip(mult * discount, -largest, largest, out=cv)


@discount.wrong("host", expected_fault="wrong values")
def subnormals_flushed(mult, discount, cv):
    """Flushes subnormal results to zero, which float64 on a GPU does not."""

    def launch():
        np.multiply(mult, discount, out=cv)
        cv[np.abs(cv) < np.finfo(np.float64).tiny] = 0.0

    return launch
