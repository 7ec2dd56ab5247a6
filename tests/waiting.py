"""Waits for what another process does."""

import time


def until(condition, within_s=20.0):
    """Waits a while; returns whether it holds by then."""
    give_up_s = time.monotonic() + within_s
    while not condition() and time.monotonic() < give_up_s:
        time.sleep(0.01)
    return condition()
