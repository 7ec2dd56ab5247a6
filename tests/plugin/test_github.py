"""What a run tells GitHub Actions, and the comment that is made of its file."""

import re

import pytest

from pytest_gpukern.cli import main as cli

from .conftest import FIRST, GPU_PROBLEM


@pytest.fixture
def step(monkeypatch, pytester):
    """A step of GitHub Actions: its summary, in which an earlier command wrote."""
    summary = pytester.path / "summary.md"
    summary.write_text("# Before\n")
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(summary))
    monkeypatch.setenv("GITHUB_WORKSPACE", str(pytester.path))
    return summary


def test_a_failure_is_told_at_its_variant_in_the_summary_and_in_the_comment_of_the_stored_run(
    recorded, step, monkeypatch, pytester
):
    monkeypatch.setenv("FIRST_TAKES_NS", "1100")
    told = recorded("--gpukern-report=run.json").outlines
    (error,) = [line for line in told if line.startswith("::")]
    line = GPU_PROBLEM.strip().splitlines().index("def first(x, y):")  # its decorator's, counted from 1
    place = f"file=test_doubling.py,line={line}"
    assert error.startswith(f"::error {place},title=SLOWER {FIRST}::kernel 1.00 → 1.10 µs, +10.0 %25")
    text = step.read_text()
    assert text.startswith("# Before\n### gpukern: FAILED&#58; 1 kernel +10.0\N{NO-BREAK SPACE}%\n")
    row = "| **+10.0 %**<br>&#91;+10.0, +10.0&#93; | 1.00 → 1.10 µs |"
    assert row in text.replace("\N{NO-BREAK SPACE}", " ")
    assert cli.main(["report", "run.json", "-o", "comment.md"]) == 0
    comment = (pytester.path / "comment.md").read_text(encoding="utf-8")
    assert comment == "<!-- gpukern -->\n" + text.removeprefix("# Before\n")
    assert "numba.first" in comment
    assert "numba.second" not in comment


def test_a_run_of_other_tests_tells_github_nothing(pytester, step):
    pytester.makepyfile("def test_other():\n    assert False")
    assert "::error" not in pytester.runpytest_inprocess().stdout.str()
    assert step.read_text() == "# Before\n"


def test_a_summary_that_cannot_be_written_fails_the_run_with_the_reason(recorded, step, monkeypatch):
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(step.parent / "missing/summary.md"))
    result = recorded()
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["*missing/summary.md: cannot be written*"])


def test_no_text_of_a_test_begins_a_command_or_colours_a_terminal(pytester, step, capsys):
    pytester.makepyfile(
        r"""
        import pytest

        TEXT = "a::b\n::stop-commands::x\r::error::y\n\u3000 ::add-mask::z ##vso[x]q ##[error]r\x1b[31m\x9b1m"

        pytestmark = pytest.mark.gpu_benchmark(timer="host")

        def test_skipped(gpu_benchmark):
            pytest.skip(TEXT)

        def test_wrong(gpu_benchmark):
            gpu_benchmark.pedantic(lambda: None, check=lambda _: TEXT)
        """
    )
    pytester.runpytest_inprocess("--gpu-benchmark", "--gpukern-simulator=never", "--gpukern-report=run.json")
    assert cli.main(["report", "run.json"]) == 0
    told = capsys.readouterr().out.splitlines()
    commands = [line.partition("=")[0] for line in told if line.lstrip().startswith("::")]
    assert commands == ["::error file"]
    assert not [line for line in told if re.search("##|\x1b|\x9b", line)]
    assert any("skipped: a::b" in line for line in told)
