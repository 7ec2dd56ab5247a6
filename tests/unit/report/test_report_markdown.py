"""Runs → Markdown for pull requests and for the summary of a step."""

import pytest
from made_up_results import measured, result, verdict
from markdown_it import MarkdownIt
from msgspec import structs

from pytest_gpukern.report.markdown import LONGEST_COMMENT, comment, summary
from pytest_gpukern.report.run import Failure, RunResults
from pytest_gpukern.values.result import GateFailure

HOSTILE = (
    "a|b\\|`c` @octocat #12 [x](http://e.com) www.e.com ![i](y) "
    "<script>ran()</script> *b* _i_ ~s~ &lt; --> $m$"
)
SLOWER = structs.replace(verdict("SLOWER", 1.1, "it grew"), ratio_low=1.08, ratio_high=1.12)


def grew(text):
    return GateFailure("SLOWER", text, "kernel/event/cold")


def failed(*reasons):
    return Failure(str(reasons[0]), reasons)


def rendered(markdown):
    return MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"]).render(markdown)


@pytest.fixture
def slower():
    return result("cupy.exp", measured(1100.0), verdicts=[SLOWER])


def test_nothing_in_a_name_or_a_reason_is_markup(slower):
    case = structs.replace(slower.case, id=HOSTILE)
    hostile = structs.replace(slower, case=case, verdicts={"kernel/event/cold": SLOWER})
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
    assert html.count("<td>") == 2 * 6
    for part in html.split("@octocat")[:-1]:
        assert part.rpartition("<code")[2].find("</code>") < 0, "in code alone, where GitHub notifies nobody"
    assert "www.e.com" not in comment(run)


def test_with_5000_failures_a_comment_and_a_summary_keep_their_limits(slower):
    end = "\u202e\x1b[2J\n| x |\udc80"
    ids = [f"{number}|{'µ' * 300}{end}" for number in range(5000)]
    many = [structs.replace(slower, nodeid=f"{n}", case=structs.replace(slower.case, id=n)) for n in ids]
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
