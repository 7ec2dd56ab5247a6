"""Checks how we read what compute-sanitizer wrote, and how we judge a session under it."""

import pytest
from recorded_sanitizer import MADE_UP_ADMISSION, TOOLS, log, recorded, records, xml

from pytest_gpukern.sanitizer.finding import Home, Place, ToolFinding, in_words
from pytest_gpukern.sanitizer.judge import findings_in, judge, read_log
from pytest_gpukern.sanitizer.tool import ERRORS_FOUND

OUT_OF_BOUNDS = records("memcheck")[0]
HOME = Home("test", Place(None, "/project/test_it.py", 7), "/project")


IN_WORDS = {
    "memcheck": "invalid __global__ write of 4 bytes, out of bounds, in stores_behind, block (1, 0, 0), "
    "thread (63, 0, 0), kernels.py:18",
    "racecheck": "RAW hazard in races: write by thread (31, 0, 0), kernels.py:24; "
    "read by thread (32, 0, 0), kernels.py:25; block (0, 0, 0)",
    "initcheck": "uninitialized __global__ memory read of 4 bytes in reads_unwritten, block (0, 0, 0), "
    "thread (0, 0, 0), kernels.py:31",
    "synccheck": "barrier error: divergent thread(s) in warp, in divides_a_warp, block (0, 0, 0), "
    "thread (0, 0, 0), kernels.py:37",
}


@pytest.mark.parametrize("tool", TOOLS)
def test_a_finding_in_words_names_kernel_block_thread_and_line(tool):
    assert in_words(findings_in(recorded(f"{tool}.xml"))[0], HOME) == IN_WORDS[tool]


@pytest.mark.parametrize(
    ("lines", "others", "places"),
    [
        ("<path>/project/kernels.py</path>\n          <line>", "<path>/tmp/k.cu</path><line>",
         [", k.cu:24", ", k.cu:25"]),
        ("line>", "other>", ["", ""]),
    ],
    ids=["no Python", "no lines"],
)  # fmt: skip
def test_a_hazard_outside_of_lines_of_python_names_both_threads_and_where_the_test_begins(
    lines, others, places
):
    (found,) = findings_in(xml(records("racecheck")[0].replace(lines, others)))
    assert in_words(found, HOME) == (
        "RAW hazard in races: write by thread (31, 0, 0){}; read by thread (32, 0, 0){}; block (0, 0, 0); "
        "test at test_it.py:7".format(*places)
    )


def test_a_record_of_which_nothing_is_known_is_a_finding():
    (found,) = findings_in(xml("<record><new>thing</new></record>"))
    assert found == ToolFinding("thing")
    assert not judged(xml=xml("<record/>")).is_in_a_kernel
    (found,) = findings_in(xml("<record><kind>New</kind><what><size>4</size><of>read</of></what></record>"))
    assert (found.text, in_words(found, HOME)) == ("4 read", "4 read, test at test_it.py:7")
    assert findings_in(recorded("clean.xml")) == ()


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "not whole: no element found"),
        (recorded("memcheck.xml")[:-30], "not whole"),
        ("<html/>", "begins with <html>"),
    ],
)
def test_what_is_no_whole_report_is_refused(text, complaint):
    with pytest.raises(ValueError, match=complaint):
        findings_in(text)


@pytest.mark.parametrize(
    ("text", "count"),
    [
        (recorded("clean.log"), 0),
        (recorded("racecheck-clean.log"), 0),
        (recorded("memcheck.log"), 1),
        (recorded("synccheck.log"), 16),
        (recorded("initcheck.log"), 127),
        (recorded("racecheck.log"), 257),
        ("========= COMPUTE-SANITIZER\n", None),
        (recorded("clean.log") + recorded("memcheck.log"), 1),
        ("the test printed ERROR SUMMARY: 0 errors\n", None),
        ("========= ERROR SUMMARY: 27 errors were not printed.\n", None),
    ],
)
def test_the_count_of_a_log_is_that_of_its_own_summaries_and_reports_admit_nothing(text, count):
    assert read_log(text) == (count, ())


@pytest.mark.parametrize(
    ("said", "blind"),
    [
        (" Error: anything at all", "Error: anything at all"),
        (" Warning: anything at all", "Warning: anything at all"),
        (" This device is not supported", "This device is not supported"),
        (" Something isn't tracked", "Something isn't tracked"),
        (" Error: it broke\n=========     for this reason", "Error: it broke for this reason"),
        (" COMPUTE-SANITIZER\n=========     cannot start", "COMPUTE-SANITIZER cannot start"),
        (" It goes well", None),
    ],
)
@pytest.mark.parametrize("name", ["clean.log", "racecheck.log"])
def test_any_other_line_that_speaks_of_what_is_amiss_is_an_admission(name, said, blind):
    banner, _, rest = recorded(name).partition("\n")
    assert read_log(f"{banner}\n========={said}\n{rest}")[1] == ((blind,) if blind else ())
    assert read_log(f"{banner}\n{rest}========={said}\n")[1] == ((blind,) if blind else ())


def judged(**changes):
    return judge(**{"tool": "memcheck", "status": 0, "xml": xml(), "log": log(), **changes})


@pytest.mark.parametrize("status", [0, 1])
@pytest.mark.parametrize("tool", TOOLS)
def test_a_session_is_clean_where_log_xml_and_status_say_so_whether_or_not_a_test_failed(tool, status):
    assert judged(status=status, tool=tool, log=log(tool=tool)).state == "clean"


@pytest.mark.parametrize("tool", TOOLS)
def test_what_was_recorded_of_a_fault_is_found_and_counted_as_the_tool_did(tool):
    found = judged(tool=tool, status=ERRORS_FOUND, xml=recorded(f"{tool}.xml"), log=recorded(f"{tool}.log"))
    assert found.state == "found"
    assert found.is_in_a_kernel
    assert found.count == {"memcheck": 1, "racecheck": 257, "initcheck": 127, "synccheck": 16}[tool]


@pytest.mark.parametrize(
    "changes",
    [
        {"status": ERRORS_FOUND, "log": log(errors=1)},
        {"status": 0, "log": log(errors=1)},
        {"status": 0, "log": log()},
        {"status": -9, "log": "", "problem": "it ended by SIGKILL"},
        {"status": None, "log": ""},
        {"status": ERRORS_FOUND, "log": log(errors=1, said=MADE_UP_ADMISSION)},
    ],
)
def test_a_record_is_a_finding_whatever_else_is_said(changes):
    found = judged(xml=xml(OUT_OF_BOUNDS), **changes)
    assert found.state == "found"
    assert len(found.findings) == 1


@pytest.mark.parametrize("saved", [None, xml(), "<torn"])
def test_errors_that_only_the_summary_tells_of_are_a_finding_in_no_kernel(saved):
    found = judged(xml=saved, log=recorded("memcheck.log"))
    assert found.state == "found"
    assert not found.is_in_a_kernel
    assert found.findings[0].text == (
        "memcheck's summary counts 1 errors, its XML has none: Invalid __global__ write of size 4 bytes"
    )


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"log": ""}, "memcheck ended with status 0 without its summary: it said nothing"),
        ({"log": "========= COMPUTE-SANITIZER\n"}, "without its summary: COMPUTE-SANITIZER"),
        ({"status": -11, "log": ""}, "memcheck ended by SIGSEGV without its summary"),
        ({"status": None}, "memcheck was stopped, since it said nothing for too long"),
        ({"status": ERRORS_FOUND}, "with status 86, which means errors, but its summary counts none"),
        ({"status": 255}, "memcheck ended with status 255"),
        ({"xml": None}, "memcheck saved no XML, but it saves one even if it finds nothing"),
        ({"xml": "<torn"}, "memcheck: its XML is not whole"),
        ({"problem": "it ended by SIGSEGV while running a"}, "it ended by SIGSEGV while running a"),
        ({"log": log(said=MADE_UP_ADMISSION)}, "memcheck says: Error: made up: this tool does not know"),
        ({"log": log(errors=1, said=MADE_UP_ADMISSION)}, "memcheck says: Error: made up"),
    ],
)
def test_a_session_for_which_nobody_vouches_is_not_checked_and_says_why(changes, reason):
    found = judged(**changes)
    assert found.state == "not checked"
    assert reason in found.reason
    assert not found.findings
