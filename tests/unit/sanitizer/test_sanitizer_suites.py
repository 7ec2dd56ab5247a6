"""Checks the suites' broken variants that tools of compute-sanitizer judge, by their decorators."""

import ast
from collections import Counter
from pathlib import Path

from pytest_gpukern.problems.discovery import declared_variants
from pytest_gpukern.values.options import SANITIZERS

SUITES = Path(__file__).parents[3] / "suites"
JUDGED = {
    f"{path.parent.name}/{declared.backend}.{declared.function}": declared.arguments
    for path in sorted(SUITES.glob("*/wrong*.py"))
    for declared in declared_variants(ast.parse(path.read_text(encoding="utf-8")), path)
    if "detected_by" in declared.arguments
}


def test_every_tool_has_something_to_reject():
    assert set(Counter(arguments["detected_by"] for arguments in JUDGED.values())) == set(SANITIZERS)


def test_what_a_tool_judges_needs_a_gpu_and_says_for_what():
    assert all(arguments.get("needs_gpu") for arguments in JUDGED.values())


def test_races_are_judged_by_racecheck_and_not_by_luck():
    racing = {name for name, arguments in JUDGED.items() if "race" in arguments["needs_gpu"]}
    assert racing == {name for name, arguments in JUDGED.items() if arguments["detected_by"] == "racecheck"}
    assert {"matmul/numba.missing_barriers", "monte_carlo_pi/numba.racing_counter"} <= racing
