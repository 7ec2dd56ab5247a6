"""The HTML report does in a browser what its readers need."""

from __future__ import annotations

import math
import os
import random
import re
import time
from datetime import UTC, datetime
from urllib.parse import urlencode

import made_up_results
import made_up_runs as made_up
import made_up_times
import pytest
from msgspec import structs

from pytest_gpukern.findings.cards import Card, CardFigures, Kernel
from pytest_gpukern.findings.fleet import judged, split_sessions
from pytest_gpukern.report.conclusion import cards, headline
from pytest_gpukern.report.fleet import FORMS, FleetReport, terminal
from pytest_gpukern.report.run import RunResults, Skip
from pytest_gpukern.values.note import About, Note

if not os.environ.get("GPUKERN_NEEDS_BROWSER"):
    pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    pytest.importorskip("axe_playwright_python", reason="axe-playwright-python is not installed")
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Error, expect

SIZES = {"desk": (1280, 900), "tablet": (820, 1100), "phone": (390, 844)}
SCREENS = [("desk", "light"), ("phone", "dark"), ("tablet", "light")]
LONG_S = 20.0
"""Far more than a page of 2,000 cases takes on an idle machine: that is 1 s."""


@pytest.fixture(scope="module")
def run():
    return made_up.gpu_run(48)


@pytest.mark.parametrize(("size", "scheme"), SCREENS)
def test_every_plot_is_drawn_nothing_is_wider_than_the_screen_and_axe_finds_nothing(show, run, size, scheme):
    width, height = SIZES[size]
    page = show(run, made_up.gpu_run(12), width=width, height=height, scheme=scheme)
    page.evaluate(OPEN_ALL)
    expect(page.locator(f"{ROOFLINE} .mark").first).to_be_visible()
    assert page.evaluate(WITHIN)
    expect_no_complaint_of_axe(page)
    page.goto(f"{page.url}{place_of(slower(run))}")
    expect(page.locator("h1")).to_contain_text("saxpy")
    distribution, sessions = "Distribution of the samples", "Recorded sessions and this run"
    assert page.locator("figcaption").all_inner_texts() == [distribution, sessions, distribution]
    assert page.locator("figure .drawing").count() == 3
    page.evaluate(OPEN_ALL)
    assert page.evaluate(WITHIN)
    expect_no_complaint_of_axe(page)
    ground = page.evaluate("getComputedStyle(document.documentElement).backgroundColor")
    assert (ground == "rgb(255, 255, 255)") == (scheme == "light")


def test_a_click_on_a_column_sorts_and_a_second_one_turns_it_around(show, run):
    page = show(run)
    times = [row.measurements[0].summary.median_ns for row in run.results if row.measurements]
    page.get_by_role("button", name="recorded → now").click()
    assert page.locator("th[aria-sort=ascending] button").inner_text() == "recorded → now"
    fastest = page.locator(".cases tbody tr").first.inner_text()
    page.get_by_role("button", name="recorded → now").click()
    slowest = page.locator(".cases tbody tr").first.inner_text()
    assert f"{min(times) / 1e3:.3f}"[:3] in fastest.split("\t")[3]
    assert slowest.split("\t")[3] != fastest.split("\t")[3]


def test_search_and_filters_leave_the_rows_that_match(show, run):
    page = show(run)
    rows = page.locator(".cases tbody tr")
    everything = rows.count()
    page.locator("#search").fill("NUMBA tiled")
    expect(page.get_by_role("status").first).to_contain_text(" of ")
    assert 0 < rows.count() < everything
    assert all("numba.tiled" in text for text in rows.all_inner_texts())
    page.locator("#search").fill("")
    page.select_option("select[name=state]", "SLOWER")
    assert rows.count() == len(run.failures) - sum(not each.by_the_gate for each in run.failures.values())
    page.select_option("select[name=backend]", "skcuda")
    assert all("skcuda" in text for text in rows.all_inner_texts())
    left = rows.all_inner_texts()
    page.reload()  # the address has search, filters and order
    assert rows.all_inner_texts() == left
    page.select_option("select[name=backend]", "")
    marks = page.locator(f"{ROOFLINE} .mark")
    expect(marks).not_to_have_count(2)
    page.select_option("select[name=state]", "FASTER")
    expect(marks).to_have_count(2)  # plots show what the filter leaves


def test_a_card_says_from_what_to_what_since_when_why_and_what_to_do(show, run):
    page = show(run)
    assert page.locator("h1").inner_text() == str(headline(run, cards(run)))
    worst = next(card for card in cards(run) if card.kind == "SLOWER")
    text = page.locator(".card", has_text=f"SLOWER {worst.name} ").inner_text()
    change, commands = worst.change, (worst.repeat, worst.accept)
    for part in (change.times, change.percent, *worst.since, *worst.why, *commands):
        assert part in text, part
    page.locator("summary", has_text="To record and to accept").click()
    expect(page.get_by_role("button", name="Copy: 3 cases are new; to record")).to_be_visible()
    picture = page.locator(".card svg[role=img]").first
    expect(picture).to_have_attribute("aria-label", re.compile("^Recorded sessions took"))


def test_variants_of_a_size_are_ranked_without_invalid_ones_and_the_bar_of_a_far_slower_one_is_cut_off(show):
    times = {"numba.a": 1e4, "cupy.b": 2e4, "torch.c": 3e4, "pycuda.d": 9e6}
    made = [
        made_up_results.result(name, made_up_results.measured(ns * size), point={"n": size})
        for name, ns in times.items()
        for size in (10, 20)
    ]
    wrong = made_up_results.measured(1.0, invalid="clocks fell")
    made.append(made_up_results.result("numba.wrong", wrong, point={"n": 20}))
    call = made_up_results.measured(8e5, "end_to_end", "host")
    made[1] = structs.replace(made[1], measurements=(*made[1].measurements, call))
    page = show(RunResults(made))
    best = page.locator(".best tbody tr").inner_text().split("\t")
    calls = ["800.0 µs", "copies and host 75 %, kernel 25 %", "numba.a", "800.0 µs"]
    assert best == ["vector_exp n=20", "numba.a", "200.0 µs", *calls]
    expect(page.locator("p", has_text="Without a time that counts")).to_contain_text("numba.wrong INVALID")
    rows = page.locator(".bars tbody tr")
    ranked = ["numba.a", "cupy.b", "torch.c", "pycuda.d"]
    assert [text.split()[0] for text in rows.all_inner_texts()] == ranked
    assert "900×" in rows.last.inner_text()
    expect(page.locator(".bars i.far")).to_have_count(1)
    page.get_by_label("size").select_option("n=10")
    assert "100.0 µs" in rows.first.inner_text()
    page.get_by_label("size").select_option("n=20")
    page.get_by_label("what is timed").select_option("end to end")
    assert [text.split()[0] for text in rows.all_inner_texts()] == ["numba.a"]
    page.get_by_label("what is timed").select_option("kernel")
    page.locator("#search").fill("cupy")
    expect(rows).to_have_count(1)


def test_a_series_without_a_step_says_what_this_run_changed(show):
    timed = made_up_results.measured(1e3)
    case = made_up_results.result("cupy.exp", timed, verdicts=[made_up_results.verdict("SLOWER", 1.1)])
    days = [made_up_times.recorded(900 + n, recorded=f"2026-11-0{n}", session=f"s{n}") for n in range(1, 9)]
    page = show(RunResults([case], history={case.nodeid: made_up_times.record_of({timed.key: days})}))
    series = page.locator(".trends figure p").inner_text()
    assert re.fullmatch("no step; this run: SLOWER .10.0 %, too new to be a step", series)
    days = page.locator(".trends svg text").all_text_contents()[-2:]
    assert days[0] == "2026-11-01" < days[1], "each day is told once, under its sessions"


@pytest.mark.parametrize("size", SIZES)
def test_a_label_of_the_roofline_lies_on_no_other_label_and_on_no_mark(show, run, size):
    width, height = SIZES[size]
    page = show(run, width=width, height=height)
    texts = page.locator(f"{ROOFLINE} .labels text").all_text_contents()
    assert "copy 4.10 TB/s" in texts
    assert any(text.startswith("saxpy n=10000000") for text in texts)
    assert len(texts) == len({*texts})
    assert page.evaluate(OVERLAPS) == []


def test_a_link_opens_its_case_and_the_way_back_keeps_the_filter(show, run):
    page = show(run)
    page.select_option("select[name=state]", "SLOWER")
    page.locator(".cases tbody a").first.click()
    expect(page.locator("nav a[rel=up]")).to_be_visible()
    case = page.locator("h1").inner_text()
    reloaded = page.url
    page.go_back()
    expect(page.locator("#search")).to_be_visible()
    assert page.locator("select[name=state]").input_value() == "SLOWER"
    page.goto(reloaded)
    page.reload()
    assert page.locator("h1").inner_text() == case
    assert page.evaluate("document.activeElement.tagName") == "H1"


def test_the_keyboard_does_all_of_it(show, run):
    page = show(run)
    page.keyboard.press("/")
    page.keyboard.type("saxpy")
    while page.evaluate("!document.activeElement.closest('.cases tbody')"):
        page.keyboard.press("Tab")
    first = page.evaluate("document.activeElement.getAttribute('href')")
    page.keyboard.press("Enter")
    expect(page.locator("nav a[rel=up]")).to_be_visible()
    assert page.url.endswith(first)
    page.keyboard.press("ArrowRight")
    expect(page).not_to_have_url(re.compile(f"{re.escape(first)}$"))
    page.keyboard.press("Escape")
    expect(page.locator("#search")).to_be_visible()
    assert page.locator("#search").input_value() == "saxpy"


def test_a_case_has_what_its_reader_needs(show, run):
    result = slower(run)
    text = show(run, place=place_of(result)).locator("main").inner_text()
    (verdict,) = result.verdicts.values()
    kernel = ("Grid Size", "75 %", "40 registers a thread", "000000000000")
    for part in (verdict.reason, "clock 1980 → 1755 MHz", *kernel, "a faster tile", "--gpu-benchmark"):
        assert part in text, part


def test_a_case_shows_its_level_since_when_the_recorded_level_and_two_humps(show):
    samples = [1e3 + i % 3 for i in range(30)] + [1.1e3 + i % 3 for i in range(60)]
    timed = structs.replace(made_up_results.measured(1.1e3), samples_ns=tuple(samples))
    noted = structs.replace(timed.summary, notes=(Note("33 % of the samples", About.MODES),))
    slower = made_up_results.verdict("SLOWER", 1.1)
    case = made_up_results.result("cupy.exp", structs.replace(timed, summary=noted), verdicts=[slower])
    days = [made_up_times.recorded(1000 + n, recorded=f"2026-11-0{n}", session=f"s{n}") for n in range(1, 9)]
    history = {case.nodeid: made_up_times.record_of({timed.key: days})}
    page = show(RunResults([case], history=history), place=f"#{urlencode({'case': case.case.id})}")
    assert page.locator("h1 + p").inner_text().startswith("1.00 → 1.10 µs +10.0 %")
    since = "new in this run; all 8 recorded sessions of 1 to 8 Nov were at the old level"
    assert page.locator("h1 + p + p").inner_text() == since
    humps, sessions = page.locator(".plots svg.drawing").all()
    assert {"33 % at 1.00 µs", "67 % at 1.10 µs"} < {*humps.locator("text").all_text_contents()}
    assert "recorded 1.00 µs" in humps.text_content()
    labels = sessions.locator("text").all_text_contents()
    assert labels[:2] == ["1.00 µs", "1.10 µs"], "the levels of the head"
    assert [text for text in labels if text.startswith("2026-11-0")] == ["2026-11-01"]
    assert sessions.locator(".level").count() == 2


@pytest.mark.parametrize("place", ["", "case"])
def test_each_heading_says_what_it_means_and_leads_to_the_list_of_all(show, run, place):
    page = show(run, place=place and place_of(slower(run)))
    headings = page.locator("thead th")
    assert headings.count() > 10
    assert page.evaluate(UNEXPLAINED) == []
    page.locator("th .meaning").last.click()
    expect(page.locator("#meanings dd").first).to_be_visible()
    assert page.evaluate("document.activeElement.parentElement.id") == "meanings"


def test_a_colour_means_a_backend_and_nothing_else(show, run):
    page = show(run)
    legend = dict(page.evaluate(LEGEND))
    assert len(legend) == len({*legend.values()}) > 2
    for variant, kind in page.evaluate(BARS):
        assert legend.get(variant.partition(".")[0], kind) == kind, variant
    coloured = page.locator("[class~=c0], [class~=c1], [class~=c2], [class~=c3]")
    inside = page.locator(".roofline, .legend, .bars").locator(coloured)
    assert coloured.count() == inside.count()


def test_a_click_on_a_plot_opens_the_case(show, run):
    page = show(run)
    mark = page.locator(f"{ROOFLINE} .mark").last
    name = mark.locator("title").text_content().partition(" kernel: ")[0]
    mark.click()
    expect(page.locator("nav a[rel=up]")).to_be_visible()
    assert page.locator("h1").inner_text().endswith(name)


def test_texts_of_a_run_never_run(show):
    run = made_up.hostile_run()
    page = show(run)
    page.evaluate(OPEN_ALL)
    for each in run.results:
        page.goto(f"{page.url.partition('#')[0]}{place_of(each)}")
        expect(page.locator("nav a[rel=up]")).to_be_visible()
        assert made_up.HOSTILE.split()[-1] in page.locator("main").inner_text()
    assert page.evaluate("document.documentElement.dataset.ran") is None
    assert page.locator("img").count() == 0
    links = page.locator("a").evaluate_all("all => all.map((each) => each.getAttribute('href'))")
    assert all(re.match("#", link) for link in links)


@pytest.mark.parametrize("way", ["innerHTML = '<img onerror=ran()>'", "setAttribute('onclick', 'ran()')"])
def test_the_page_refuses_markup_and_script_of_its_own_making(show, run, way):
    page = show(run)
    with pytest.raises(Error, match=r"Trusted(HTML|Script)"):
        page.evaluate(f"document.querySelector('main').{way}")
    (refusal,) = show.complaints
    assert "Trusted" in refusal
    show.complaints.clear()


def test_several_runs_are_chosen_at_the_top(show, run):
    older = made_up.gpu_run(12, created=made_up.CREATED.replace(year=2025))
    page = show(older, run)
    choice = page.locator("header select")
    assert choice.locator("option").all_inner_texts()[0].startswith("2026")
    choice.select_option("1")
    expect(page.locator(".cases tbody tr")).to_have_count(24)
    page.locator(".cases tbody a").first.click()
    expect(page.locator("nav a[rel=up]")).to_be_visible()
    assert "run=1" in page.url


def test_a_run_without_results_is_shown_with_what_went_wrong(show):
    empty = RunResults(problems=("the run measured nothing on a GPU",), skips=(Skip("a case", "no GPU"),))
    text = show(empty).locator("main").inner_text()
    assert text.startswith("FAILED: 1 problem of the run")
    assert "the run measured nothing on a GPU" in text


def test_paper_is_light_and_has_no_controls(show, run):
    page = show(run, scheme="dark")
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    page.emulate_media(media="print")
    assert page.evaluate("getComputedStyle(document.documentElement).backgroundColor") == "rgb(255, 255, 255)"
    assert not page.locator("form.filter").is_visible()
    assert page.locator("details:not([open])").count() == 0
    assert page.evaluate(WITHIN)
    # A printer leaves backgrounds out.
    page.evaluate("for (const each of document.querySelectorAll('*')) each.style.background = 'none'")
    assert page.locator(".badge.filled").first.evaluate("(each) => getComputedStyle(each).color") != WHITE
    for marks in (".bars i", ".limits i"):
        assert page.locator(marks).first.evaluate(DRAWN) > 5, marks


def test_a_page_of_2000_cases_is_usable_soon(show):
    page = show(made_up.gpu_run(2000, samples=10))
    began = time.monotonic()
    page.reload()
    expect(page.locator(".cases tbody tr").first).to_be_visible()
    page.locator("#search").fill("matmul")
    expect(page.get_by_role("status").first).to_contain_text(" of ")
    assert time.monotonic() - began < LONG_S
    assert page.locator(".cases tbody tr").count() == 300
    page.locator("button.more").click()
    assert page.locator(".cases tbody tr").count() == 600


# --- the page of a fleet --------------------------------------------------------------------------

CLASSES = ("memory", "compute", "short", "power-limited", "copies")


def session_of(host, index, number):
    """Returns a session of a card: host0001 GPU 0 is slow, and host0003 GPU 2 has other bits."""
    noise, slow = random.Random(f"{host} {index} {number}"), 0.06 * ((host, index) == (1, 0))
    times = {
        f"{name} {n}": 1e5 * math.exp(slow + noise.gauss(0, 0.001)) for name in CLASSES for n in range(6)
    }
    names = ("sm_mhz", "memory_mhz", "power_w", "temperature_c", "limited_s.sw_power_cap", "corrected_errors")
    link = {f"pcie.{kind}": 5 for kind in ("generation", "width", "max_generation", "max_width")}
    return CardFigures(
        Card(f"GPU-{host:04x}{index:04x}-5d35-7ffe", f"host{host:04}", f"{index}", "NVIDIA H200", "580"),
        f"{number}",
        datetime(2026, 11, 26, number, tzinfo=UTC),
        times,
        {kernel: Kernel(kernel.split()[0]) for kernel in times},
        {"saxpy out": "other" if (host, index) == (3, 2) else "usual"},
        facts=link | {"power_limit_w": 700.0} | dict.fromkeys(names, 1000.0 + index),
    )


@pytest.fixture(scope="module")
def fleet():
    sessions = [
        session_of(host, index, number) for host in range(12) for index in range(8) for number in range(3)
    ]
    return FleetReport(judged(*split_sessions(sessions), expected=[f"host{host:04}" for host in range(13)]))


@pytest.mark.parametrize(("size", "scheme"), [*SCREENS, ("paper", "dark")])
def test_the_page_of_a_fleet_says_which_hosts_and_why(show, fleet, size, scheme):
    width, height = SIZES.get(size, (1440, 900))
    page = show(made=FORMS[".html"](fleet), width=width, height=height, scheme=scheme)
    assert page.locator("h1").inner_text() == "Drain 2 hosts: host0001, host0003"
    slow = page.locator(".told li", has_text="SLOW").inner_text().splitlines()[0]
    assert slow.startswith("SLOW host0001 GPU 0: all kernels 6.")
    assert slow in terminal(fleet, 300)
    assert page.locator(".strip > span").count() == 13
    assert page.locator(".strip b").all_inner_texts() == ["host0001", "host0003", "host0012"]
    assert page.locator(".shifts .mark.bad").count() == len(CLASSES)
    assert page.evaluate(UNEXPLAINED) == []
    if size == "paper":
        page.evaluate("dispatchEvent(new Event('beforeprint'))")
        page.emulate_media(media="print")
    assert page.evaluate(WITHIN)
    rows = [text.split("\t") for text in page.locator("table").first.locator("tbody tr").all_inner_texts()]
    assert [row[:3] for row in rows[:2]] == [
        ["CORRUPT", "host0003 GPU 2", "00030002"],
        ["SLOW", "host0001 GPU 0", "00010000"],
    ]
    if size == "desk":
        assert page.evaluate("document.querySelector('.wide').scrollWidth <= innerWidth")
    expect_no_complaint_of_axe(page)


def test_the_first_line_and_a_line_a_finding_are_copied_for_a_ticket(show, fleet):
    page = show(made=FORMS[".html"](fleet))
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.get_by_role("button", name="Copy: for a ticket").click()
    expect(page.get_by_text("Copied")).to_be_visible()
    copied = page.evaluate("navigator.clipboard.readText()").splitlines()
    assert copied == ["Drain 2 hosts: host0001, host0003", *map(str, fleet.rows)]


ROOFLINE = ".roofline"


def slower(run):
    """Returns a case of a run that is SLOWER."""
    return next(each for each in run.results if any(v.kind == "SLOWER" for v in each.verdicts.values()))


def expect_no_complaint_of_axe(page):
    complaints = Axe().run(page, options={"rules": {"target-size": {"enabled": True}}})
    assert complaints.violations_count == 0, complaints.generate_report()


def place_of(result):
    return f"#{urlencode({'case': result.case.id})}"


WHITE = "rgb(255, 255, 255)"
DRAWN = """(each) => Math.max(...[null, '::before']
  .map((of) => parseFloat(getComputedStyle(each, of).borderTopWidth) || 0))"""
UNEXPLAINED = """[...document.querySelectorAll('thead th')].filter((each) => !each.querySelector('[title]'))
  .map((each) => each.textContent)"""
LEGEND = """[...document.querySelectorAll('figure:has(.roofline) .legend span')]
  .map((each) => [each.textContent, each.querySelector('.mark').classList[1]])"""
BARS = """[...document.querySelectorAll('.bars tbody tr')]
  .map((each) => [each.textContent, each.querySelector('i').classList[0]])"""
OPEN_ALL = "document.querySelectorAll('details').forEach((each) => { each.open = true; })"
WITHIN = """document.documentElement.scrollWidth <= innerWidth
  && [...document.querySelectorAll('figure .drawing')].every((drawing) => {
    const [outer, figure] = [drawing, drawing.closest('figure')].map((each) => each.getBoundingClientRect());
    const marks = [...drawing.querySelectorAll('.mark, .bin')].map((each) => each.getBoundingClientRect());
    const inside = ({ left, right, top, bottom }) =>
        left >= outer.left && right <= outer.right && top >= outer.top && bottom <= outer.bottom;
    return marks.length && marks.every(inside) && outer.right <= figure.right + 1;
})"""
OVERLAPS = """(() => {
    const boxes = (selector) => [...document.querySelectorAll(`.roofline ${selector}`)].map(
        (each) => [each.textContent, each.getBoundingClientRect()]
    );
    const labels = boxes('.labels text');
    const apart = (a, b) => a.right <= b.left || b.right <= a.left || a.bottom <= b.top || b.bottom <= a.top;
    return labels.flatMap(([text, box], i) => {
        const others = [...labels.slice(i + 1), ...boxes('.mark')];
        return others.filter(([, other]) => !apart(box, other)).map(([name]) => [text, name]);
    });
})()"""
