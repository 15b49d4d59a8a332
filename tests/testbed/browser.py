"""A real browser for the tests of pages: Chromium with its driver, from the system, and selenium.

Where one is missing, what needs it is skipped, unless BIDRO_REQUIRE_BROWSER=1.
"""

import os
import shutil
from contextlib import contextmanager
from pathlib import Path

import pytest

AXE = Path(__file__).parents[2] / "out/axe/node_modules/axe-core/axe.min.js"


def missing(words):
    (pytest.fail if os.environ.get("BIDRO_REQUIRE_BROWSER") == "1" else pytest.skip)(words)


@contextmanager
def chromium():
    found = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    driver = shutil.which("chromedriver")
    try:
        from selenium import webdriver
    except ImportError:
        webdriver = None
    parts = {"chromium": found, "chromedriver": driver, "selenium": webdriver}
    if gone := [name for name, part in parts.items() if not part]:
        missing(f"the page is tested in a browser, and there is no {' and no '.join(gone)} here")
    options = webdriver.ChromeOptions()
    options.binary_location = found
    for flag in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    # With both paths given selenium looks for no driver, and so downloads none.
    started = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
    started.set_script_timeout(60)
    try:
        yield started
    finally:
        started.quit()


def shown_as(browser, width, height=900, scheme="light"):
    """Let pages be shown at a size, light or dark, without motion."""
    size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    feature = {"name": "prefers-color-scheme", "value": scheme}
    still = {"name": "prefers-reduced-motion", "value": "reduce"}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [feature, still]})
    # Tab can leave the page for the browser's own buttons; the next page has the focus all the same.
    browser.execute_cdp_cmd("Emulation.setFocusEmulationEnabled", {"enabled": True})


def axe(browser):
    """(how many rules the page passes, those that it violates)."""
    if not AXE.exists():
        missing(
            "axe-core, by which accessibility is tested, is not here; `make browser` installs it with npm"
        )
    browser.execute_script(AXE.read_text(encoding="utf-8"))
    run = (
        "const done = arguments[0]; axe.run(document, { resultTypes: ['violations'] }).then((r) => done("
        "[r.passes.length, r.violations.map((v) => [v.impact, v.id, v.nodes[0].html.slice(0, 200)])]));"
    )
    return browser.execute_async_script(run)
