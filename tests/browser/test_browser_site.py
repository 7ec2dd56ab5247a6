"""The site of the documentation in a browser: axe finds nothing, and the keyboard reaches what scrolls."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

if not os.environ.get("GPUKERN_NEEDS_BROWSER"):
    pytest.importorskip("axe_playwright_python", reason="axe-playwright-python is not installed")
from axe_playwright_python.sync_playwright import Axe

ROOT = Path(__file__).parents[2]
PAGES = ("index", "tutorials/first-test", "reference/problems")
SCREENS = (((1440, 900), "light"), ((390, 844), "dark"))
"""Colours follow the scheme alone, and what scrolls the width alone."""
STOPS = "all => all.map((pre) => [pre.scrollWidth > pre.clientWidth, pre.tabIndex === 0])"


def test_axe_finds_nothing_and_the_keyboard_reaches_code_that_scrolls_and_no_other(browser, tmp_path):
    build = [sys.executable, "-m", "sphinx", "-q", "-d", tmp_path / "doctrees", "docs", tmp_path / "site"]
    subprocess.run(build, cwd=ROOT, check=True)
    scrolling = 0
    for (width, height), scheme in SCREENS:
        context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=scheme)
        page = context.new_page()
        for name in PAGES:
            page.goto((tmp_path / f"site/{name}.html").as_uri())
            page.evaluate("new Promise(requestAnimationFrame).then(() => new Promise(requestAnimationFrame))")
            complaints = Axe().run(page)
            assert complaints.violations_count == 0, f"{name}, {width}: {complaints.generate_report()}"
            stops = page.locator("pre").evaluate_all(STOPS)
            assert [wide for wide, _ in stops] == [reached for _, reached in stops]
            scrolling += sum(wide for wide, _ in stops)
        context.close()
    assert scrolling
