"""A real browser for pages of the HTML report: Debian's Chromium, without a window.

`make browser` installs it. Where it is missing, tests are skipped, or fail if GPUKERN_NEEDS_BROWSER is set.
"""

from __future__ import annotations

import os
import shutil

import pytest

from pytest_gpukern.report.html import page as page_of

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


@pytest.fixture(scope="session")
def browser():
    """One browser for all tests."""
    from playwright.sync_api import sync_playwright

    if BROWSER is None:
        (pytest.fail if os.environ.get("GPUKERN_NEEDS_BROWSER") else pytest.skip)(
            "no Chromium on PATH: make browser installs it"
        )
    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=BROWSER, args=["--no-sandbox"])
        yield launched
        launched.close()


@pytest.fixture
def show(browser, tmp_path):
    """Opens the page of runs, or a made one; the test fails if it complains or asks for anything."""
    contexts, complaints, file = [], [], tmp_path / "report.html"

    def open_page(*runs, made=b"", width=1280, height=900, scheme="light", place=""):
        file.write_bytes(made or page_of(runs))
        context = browser.new_context(
            viewport={"width": width, "height": height}, color_scheme=scheme, reduced_motion="reduce"
        )
        contexts.append(context)
        context.set_default_timeout(20_000)
        page = context.new_page()
        page.on("console", lambda message: complaints.append(f"console: {message.text}"))
        page.on("pageerror", lambda error: complaints.append(f"error: {error}"))
        page.on("dialog", lambda dialog: complaints.append(f"dialog: {dialog.message}"))
        page.on("request", lambda request: _expect_own(request.url, file, complaints))
        page.add_init_script("window.ran = () => { document.documentElement.dataset.ran = 'yes'; };")
        page.goto(f"{file.as_uri()}{place}")
        return page

    open_page.complaints = complaints
    yield open_page
    for context in contexts:
        context.close()
    assert complaints == []


def _expect_own(url, file, complaints):
    if url.partition("#")[0] != file.as_uri() and not url.startswith("data:"):
        complaints.append(f"request: {url}")
