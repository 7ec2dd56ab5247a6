"""Tests the self-test on a real device: its timers read what is known."""

import subprocess
import sys


def test_the_timers_of_this_machine_read_what_is_known():
    command = [sys.executable, "-m", "pytest_gpukern", "selftest"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    sys.stdout.write(f"\n{done.stdout}{done.stderr}")
    assert done.returncode == 0
    assert "7 passed" in done.stdout
    assert done.stdout.count(" ns allowed") == 6 + 2 + 2 + 2 + 2
