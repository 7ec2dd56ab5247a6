"""What compute-sanitizer wrote, read; and what a session under it comes to."""

import pytest
from made_up_sanitizer import HAZARD, INTERNAL, KERNEL, LAUNCH, OUT_OF_BOUNDS, UNSUPPORTED, log, xml

from pytest_gpukern.sanitizer.finding import Finding, Place
from pytest_gpukern.sanitizer.judgement import ERRORS_FOUND, Evidence, State, judge
from pytest_gpukern.sanitizer.log import read_log
from pytest_gpukern.sanitizer.xml_report import ReportError, findings_in


def test_an_access_out_of_bounds_is_read_with_kernel_thread_block_and_both_stacks():
    (found,) = findings_in(xml(OUT_OF_BOUNDS))
    assert (found.kind, found.text) == ("Precise", "Invalid __global__ write of size 4 bytes")
    assert found.kernel == KERNEL
    assert (found.block, found.thread) == ((1, 0, 0), (63, 0, 0))
    assert found.device == (Place(found.kernel, "/project/on_numba.py", 31),)
    assert [place.function for place in found.host] == ["cuLaunchKernel", "launch", "test_add", "main"]
    assert found.host[2] == Place("test_add", "/project/test_add.py", 12)
    assert found.record.startswith("<record>")


def test_a_stack_is_innermost_first_in_whatever_order_it_was_written():
    frames = OUT_OF_BOUNDS[OUT_OF_BOUNDS.index("<frame>") : OUT_OF_BOUNDS.index("</hostStack>")]
    backwards = "\n".join(reversed(frames.strip().splitlines()))
    (found,) = findings_in(xml(OUT_OF_BOUNDS.replace(frames, backwards)))
    assert found.host == findings_in(xml(OUT_OF_BOUNDS))[0].host


def test_a_hazard_is_read_with_its_block_its_first_thread_and_both_places():
    (found,) = findings_in(xml(HAZARD))
    assert (found.kernel, found.block, found.thread) == ("tiled()", (2, 1, 0), (0, 1, 0))
    assert [place.line for place in found.device] == [7, 9]
    assert found.host == ()


def test_elements_in_another_order_and_nested_otherwise_are_found_too():
    turned = """
    <records><record><where><line>3</line><file>a.py</file><function>k</function></where><data>
      <blockId><z>0</z><y>5</y><x>4</x></blockId><threadId><x>1</x><y>2</y><z>3</z></threadId></data>
      <what><size>4</size><kind>read</kind></what><kind>Initcheck</kind></record></records>"""
    (found,) = findings_in(xml(turned))
    assert (found.kernel, found.block, found.thread) == ("k", (4, 5, 0), (1, 2, 3))
    assert found.device == (Place("k", "a.py", 3),)
    assert found.text == "4 read"


def test_a_record_of_which_nothing_is_known_is_a_finding_and_a_launch_is_none():
    (found,) = findings_in(xml("<record><new>thing</new></record>", LAUNCH))
    assert found == Finding(kind="record", text="record", record="<record><new>thing</new></record>")
    assert findings_in(xml()) == ()


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "not whole: no element found"),
        (xml(OUT_OF_BOUNDS)[:-30], "not whole"),
        ("<html/>", "begins with <html>"),
        ('<!DOCTYPE a [<!ENTITY b "c">]><ComputeSanitizerOutput/>', "declares entities"),
    ],
)
def test_what_is_no_whole_report_is_refused(text, complaint):
    with pytest.raises(ReportError, match=complaint):
        findings_in(text)


def test_a_finding_in_words_names_kernel_block_thread_and_place():
    (found,) = findings_in(xml(OUT_OF_BOUNDS))
    assert found.in_words("on_numba.py:31") == (
        "invalid __global__ write of 4 bytes in add_flat, block (1, 0, 0), thread (63, 0, 0), on_numba.py:31"
    )
    assert Finding(kind="Leak", text="Leaked 64 bytes").in_words() == "leaked 64 bytes"


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("========= COMPUTE-SANITIZER\n", None),
        ("========= ERROR SUMMARY: 0 errors\n", 0),
        ("========= ERROR SUMMARY: 1 error\n", 1),
        ("========= ERROR SUMMARY: 0 errors\n========= ERROR SUMMARY: 3 errors\n", 3),
        ("========= RACECHECK SUMMARY: 2 hazards displayed (1 error, 1 warning)\n", 2),
        ("the test printed ERROR SUMMARY: 0 errors\n", None),
    ],
)
def test_the_count_of_a_log_is_that_of_its_own_summaries(text, count):
    assert read_log(text).count == count


def judged(**changes):
    told = {"tool": "memcheck", "status": 0, "xml": xml(), "log": log(), **changes}
    return judge(Evidence(**told))


def test_a_variable_that_the_tool_clears_keeps_it_from_nothing():
    said = (
        "========= Warning: CUDA_ENABLE_X is not supported by compute-sanitizer, clearing it before target\n"
    )
    assert read_log(log(said=said)).blind == ()
    assert read_log(log(said=UNSUPPORTED)).blind


@pytest.mark.parametrize("status", [0, 1])
def test_a_session_is_clean_where_log_xml_and_status_say_so_whether_or_not_a_test_failed(status):
    assert judged(status=status).state is State.CLEAN
    assert judged(status=status, xml=None).state is State.CLEAN
    assert judged(tool="racecheck", log=log(tool="racecheck")).state is State.CLEAN


@pytest.mark.parametrize(
    "changes",
    [
        {"status": ERRORS_FOUND, "log": log(errors=1)},
        {"status": 0, "log": log(errors=1)},
        {"status": 0, "log": log()},
        {"status": -9, "log": "", "problem": "it ended by SIGKILL"},
        {"status": None, "log": ""},
        {"status": ERRORS_FOUND, "log": log(errors=1, said=UNSUPPORTED)},
    ],
)
def test_a_record_is_a_finding_whatever_else_is_said(changes):
    found = judged(xml=xml(OUT_OF_BOUNDS), **changes)
    assert found.state is State.FOUND
    assert len(found.findings) == 1


@pytest.mark.parametrize("records", [None, xml(), "<torn"])
def test_errors_that_only_the_summary_tells_of_are_a_finding(records):
    found = judged(xml=records, log=log(errors=3, said="========= Invalid something\n"))
    assert found.state is State.FOUND
    assert found.findings[0].text == "3 errors by memcheck's summary, none in its XML: Invalid something"


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"log": ""}, "memcheck ended with status 0 without its summary: it said nothing"),
        ({"log": "========= COMPUTE-SANITIZER\n"}, "without its summary: COMPUTE-SANITIZER"),
        ({"status": -11, "log": ""}, "memcheck ended by signal 11 without its summary"),
        ({"status": None}, "memcheck was ended for its silence"),
        ({"status": ERRORS_FOUND}, "with status 86, which means errors, and its summary tells of none"),
        ({"status": 255}, "memcheck ended with status 255"),
        ({"xml": "<torn"}, "memcheck: its XML is not whole"),
        ({"problem": "it ended by SIGSEGV while running a"}, "it ended by SIGSEGV while running a"),
        ({"log": log(said=UNSUPPORTED)}, "memcheck says: Error: Device not supported"),
        ({"xml": xml(INTERNAL), "log": log(errors=1)}, "Errors might go undetected"),
        ({"log": log(said="========= Error: process didn't terminate successfully\n")}, "didn't terminate"),
    ],
)
def test_a_session_for_which_nobody_vouches_is_not_checked_and_says_why(changes, reason):
    found = judged(**changes)
    assert found.state is State.UNCHECKED
    assert reason in found.reason
    assert not found.findings
