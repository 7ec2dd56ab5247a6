"""Tests on a real machine what the timers can resolve (`gpukern selftest`) and what the gate says (`--gate`).

Start with `command`. Fresh child processes take the readings (`session`); `processes` starts them one after
another; `recording` holds and stores what they found. All conclusions are computed from that recording alone
(`timer_results`, `gate_results`), so a recorded run can be judged again without a GPU.
"""
