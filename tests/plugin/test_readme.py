"""What the README shows runs, and what it names is there."""

import re
from pathlib import Path

import pytest

from pytest_gpukern.values.options import OPTIONS

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
PYTHON = re.findall(r"```python\n(.*?)```", README, re.DOTALL)


@pytest.mark.parametrize("number", range(len(PYTHON)))
def test_its_examples_pass_in_the_simulator(pytester, number):
    pytester.makepyfile(PYTHON[number])
    result = pytester.runpytest_subprocess("--gpukern-simulator=always", "-W", "error")
    assert result.ret == 0
    result.stdout.fnmatch_lines(["gpukern: * simulated*"])


def test_its_first_example_fails_as_it_says_when_the_kernel_is_wrong(pytester):
    pytester.makepyfile(PYTHON[0].replace("x * x * x", "x * x"))
    result = pytester.runpytest_subprocess("--gpukern-simulator=always")
    shown = re.search(r"```text\n(INCORRECT.*?)```", README, re.DOTALL).group(1).splitlines()
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines([line.replace("[", "[[]") for line in shown])


def test_every_option_is_in_it():
    for option in OPTIONS:
        assert option.cli in README, option.cli


def test_every_option_that_it_names_is_there():
    assert set(re.findall(r"--gpukern-[a-z-]*[a-z]", README)) <= {option.cli for option in OPTIONS}
