"""Runs → Markdown for pull requests and for the summary of a step."""

import dataclasses

import pytest
from made_up_results import measured, result, verdict
from markdown_it import MarkdownIt

from pytest_gpukern.report.markdown import LONGEST_COMMENT, MARKER, comment, summary
from pytest_gpukern.report.run import Failure, RunResults, Skip
from pytest_gpukern.values.fingerprint import Fingerprint
from pytest_gpukern.values.result import Correctness, Finding, GateFailure, SessionRole
from pytest_gpukern.values.verdict_table import VerdictKind

HOSTILE = (
    "a|b\\|`c` @octocat #12 [x](http://e.com) www.e.com ![i](y) "
    "<script>ran()</script> *b* _i_ ~s~ &lt; --> $m$"
)
TIED = "\N{NO-BREAK SPACE}"
SLOWER = dataclasses.replace(verdict("SLOWER", 1.1, "it grew"), ratio_low=1.08, ratio_high=1.12)


def grew(text):
    return GateFailure("SLOWER", text, "kernel/event/cold")


GREW = grew("it grew")


def failed(*reasons):
    return Failure(str(reasons[0]), reasons)


def rendered(markdown):
    return MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"]).render(markdown)


def rows(markdown):
    """The rows of the failures."""
    return [line for line in markdown.splitlines() if line.startswith("| **")]


@pytest.fixture
def slower():
    return result("cupy.exp", measured(1100.0), verdicts=[SLOWER])


def test_a_failed_time_has_its_verdict_first_then_the_change_and_from_what_to_what(slower):
    run = RunResults([slower], failures={slower.nodeid: failed(GREW)})
    text = comment(run)
    assert text.startswith(f"{MARKER}\n### gpukern: FAILED&#58; 1 kernel +10.0{TIED}%\n\n| verdict | case |")
    (row,) = rows(text)
    case = "<code>vector&#95;exp/<wbr>cupy.exp/<wbr>n=1000</code>"
    change = "**+10.0 %**<br>&#91;+8.0, +12.0&#93; | 1.00 → 1.10 µs"
    assert row.replace(TIED, " ") == f"| **SLOWER** | {case} | {change} |  |"
    assert "<br>\nit grew" in text.partition("Evidence")[2]
    assert "pytest 'test" in text.partition("commands to repeat")[2]
    assert "0 passed, 1 failed by the gate · baseline&#58; 1 slower · NVIDIA H200, driver 580.159" in text
    assert "NVIDIA H200, driver 580.159" in text


def test_the_simulator_is_not_named_as_a_card_where_a_call_launched_nothing_in_it():
    simulator = Fingerprint(device_name="CUDA simulator", is_simulated=True)
    idle = result("test_sum", fingerprint=simulator, simulated=False)
    assert "CUDA simulator" not in comment(RunResults([idle]))


def test_what_failed_comes_first_then_changes_with_the_largest_first(slower):
    def faster(name, ratio):
        found = dataclasses.replace(SLOWER, kind=VerdictKind.FASTER, ratio=ratio)
        return result(name, measured(), verdicts=[found], findings=(Finding("resources", f"grew in {name}"),))

    same = result("pycuda.exp", measured(), verdicts=[verdict("SAME", 1.0)])
    run = RunResults(
        [faster("numba.little", 0.95), faster("numba.much", 0.5), slower, same],
        failures={slower.nodeid: failed(GREW, GateFailure("memory", "1 MiB is kept"))},
    )
    text = comment(run)
    assert [line.split("**")[1] for line in rows(text)] == ["SLOWER", "MEMORY"]
    folded = text.partition("2 faster, 2 resources, 1 same</summary>")[2].splitlines()
    assert [line.split(" | ")[0] for line in folded if line.startswith("| ")][1:] == [
        *("| FASTER", "| resources", "| resources")
    ]
    (faster,) = [line for line in folded if line.startswith("| FASTER")]
    assert "2 timings of vector&#95;exp" in faster
    assert f"−5.0{TIED}% to −50.0{TIED}%" in faster


@pytest.mark.parametrize("bad", [None, 0.0, -1.0])
def test_the_times_of_two_revisions_are_those_of_their_pairs_that_have_both(bad):
    paired = dataclasses.replace(SLOWER, pairs=((1000.0, 1100.0), (2000.0, 2200.0), (bad, 5.0)))
    made = result("cupy.exp", measured(9.0), verdicts=[paired])
    (line,) = rows(comment(RunResults([made], failures={made.nodeid: failed(GREW)})))
    assert "| 1.41 → 1.56 µs".replace(" ", TIED).replace(f"|{TIED}", "| ") in line


def test_the_time_of_a_confirmed_slowdown_is_that_of_the_sessions_that_decided(slower):
    fresh = dataclasses.replace(
        slower, role=SessionRole.CONFIRMING, measurements=(measured(1320.0),), session="00000002"
    )
    run = RunResults([slower], {slower.nodeid: (fresh,)}, failures={slower.nodeid: failed(GREW)})
    (line,) = rows(comment(run))
    assert "| 1.20 → 1.32 µs".replace(" ", TIED).replace(f"|{TIED}", "| ") in line


def test_a_wrong_output_and_a_test_without_a_result_are_failures_too():
    wrong = result("cupy.bad", correctness=Correctness.INCORRECT, diagnosis="y is wrong\n  at 3")
    failures = {wrong.nodeid: Failure("INCORRECT: y"), "test_a.py::test_b": Failure("KeyError")}
    text = comment(RunResults([wrong], failures=failures))
    first, second = rows(text)
    assert first == "| **INCORRECT** | <code>vector&#95;exp/<wbr>cupy.bad/<wbr>n=1000</code> |  |  |  |"
    assert second == "| **FAILED** | <code>test&#95;a.py&#58;&#58;test&#95;b</code> |  |  |  |"
    assert "FAILED&#58; 1 wrong result, 1 failed test" in text
    assert "**INCORRECT** Y is wrong." in text
    assert "<br>\nat 3" in text


def test_a_run_in_which_nothing_failed_or_changed_is_a_title_and_counts():
    run = RunResults([result("cupy.exp", measured(), verdicts=[verdict("SAME", 1.0)])])
    assert comment(run).splitlines()[1] == "### gpukern: PASSED&#58; 1 case is right, none is slower"
    assert rows(comment(run)) == []
    skipped = RunResults(skips=[Skip("test_a.py::test_b", "no GPU")])
    assert comment(skipped).splitlines()[1] == "### gpukern: NOTHING RAN"


def test_nothing_in_a_name_or_a_reason_is_markup(slower):
    case = dataclasses.replace(slower.case, id=HOSTILE)
    hostile = dataclasses.replace(slower, case=case, verdicts={"kernel/event/cold": SLOWER})
    run = RunResults(
        [hostile],
        failures={hostile.nodeid: failed(grew(HOSTILE), GateFailure(HOSTILE, HOSTILE))},
        compared_with=HOSTILE,
        since_record=(HOSTILE,),
    )
    html = rendered(comment(run))
    tags = {"<code>", "<h3>", "<p>", "<strong>", "<table>", "<thead>", "<tbody>", "<tr>", "<th>", "<td>"}
    tags |= {"<br>", "<wbr>", "<details>", "<summary>", "<pre>", '<code class="language-sh">'}
    found = {f"<{part.split('>')[0]}>" for part in html.split("<")[1:] if not part.startswith(("/", "!"))}
    assert found == tags
    assert html.count("<td>") == 2 * 5
    for part in html.split("@octocat")[:-1]:
        assert part.rpartition("<code")[2].find("</code>") < 0, "in code alone, where GitHub notifies nobody"
    assert "www.e.com" not in comment(run)


@pytest.mark.parametrize("end", ["", "\u202e\x1b[2J\n| x |\udc80"])
def test_with_5000_failures_a_comment_and_a_summary_keep_their_limits(slower, end):
    ids = [f"{number}|{'µ' * 300}{end}" for number in range(5000)]
    many = [
        dataclasses.replace(slower, nodeid=f"{n}", case=dataclasses.replace(slower.case, id=n)) for n in ids
    ]
    failures = {each.nodeid: failed(grew(f"{'@' * 9000}{end}")) for each in many[:2500]}
    run = RunResults(many, failures=failures)
    assert 50_000 < len(comment(run).encode()) <= LONGEST_COMMENT
    text = summary(run, most=2**20)
    assert 1_000_000 < len(text.encode()) <= 2**20
    assert "More does not fit: `gpukern report` tells it." in text
    assert "2500 kernels up to +10.0" in text
    assert "2500 failed by the gate" in text, "counts are never cut"


def test_texts_that_are_long_once_escaped_keep_the_limit(slower):
    failures = {slower.nodeid: failed(GateFailure("SLOWER", "it grew"))}
    run = RunResults([slower], problems=["@" * 500] * 20, failures=failures)
    assert len(comment(run)) <= LONGEST_COMMENT
    assert "it grew" in comment(run)


def test_a_test_that_is_invalid_tells_no_change_of_another_timer():
    made = result("cupy.exp", measured(), verdicts=[verdict("SAME", 1.01)])
    fell = GateFailure("INVALID", "clocks fell", "kernel/event/cold")
    run = RunResults([made], failures={made.nodeid: failed(fell)})
    (row,) = rows(comment(run))
    assert row == "| **INVALID** | <code>vector&#95;exp/<wbr>cupy.exp/<wbr>n=1000</code> |  |  |  |"
