"""The report in a real browser, which draws it: `make test-browser`.

Needs the package `selenium`, and chromium with its driver where the system has them (Debian:
`apt-get install chromium chromium-driver`).
"""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
import shutil
import time

import pytest

import automap
from automap.api.plan import Plan
from tests.automap.report.samples import HOSTILE, pipelined, sample, streamed
from tests.steps import mlp


webdriver = pytest.importorskip("selenium.webdriver", reason="the package selenium is missing")
CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(not (CHROMIUM and DRIVER), reason="chromium or its driver is missing"),
]
# Nothing of the browser's own on the network, and no profile that another run has.
FLAGS = (
    "--headless --no-sandbox --disable-gpu --disable-background-networking "
    "--disable-component-update --no-first-run"
).split()
WIDE, PHONE = 1280, 390
# Text on the page's ground: what WCAG asks for of text of this size.
LEAST_CONTRAST = 4.5
MARKS = ".canvas [role=img]"


@pytest.fixture(scope="module")
def browser(tmp_path_factory) -> Iterator:
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    profile = tmp_path_factory.mktemp("profile")
    for flag in (*FLAGS, f"--user-data-dir={profile}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    service = webdriver.ChromeService(executable_path=DRIVER)
    driver = webdriver.Chrome(options=options, service=service)
    yield driver
    driver.quit()


@pytest.fixture(scope="module")
def plans() -> dict[str, Plan]:
    step, args = mlp()
    sharded = automap.plan(step, args, topology="v5e:2x4", preset="zero-3")
    one = automap.plan(step, args, topology="1xv100", preset="data-parallel")
    return {
        "sharded": sharded,
        "hosts": automap.plan(step, args, topology="2x4xv100", preset="megatron"),
        "read": sample(),
        "pipeline": pipelined(),
        "streams": streamed(one),
        "hostile": replace(sharded, warnings=(HOSTILE,), workload=_hostile(sharded)),
    }


def _hostile(plan: Plan):
    return replace(plan.workload, target=HOSTILE)


def _open(driver, plan: Plan, folder: Path, width: int = WIDE, scheme: str = "light") -> None:
    path = folder / "page.html"
    plan.report(path)
    metrics = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
    driver.get_log("performance"), driver.get_log("browser")
    driver.get(path.as_uri())
    _wait_until_drawn(driver)


def _wait_until_drawn(driver) -> None:
    until = time.monotonic() + 60
    while not driver.execute_script("return figures.every((f) => f.dataset.width)"):
        assert time.monotonic() < until, driver.get_log("browser")
        time.sleep(0.05)


@pytest.mark.parametrize("name", ["sharded", "hosts", "read", "pipeline", "streams", "hostile"])
@pytest.mark.parametrize(("width", "scheme"), [(WIDE, "light"), (PHONE, "dark")])
def test_every_picture_is_drawn_without_an_error_and_without_a_request(
    browser, plans, name, width, scheme, tmp_path
):
    _open(browser, plans[name], tmp_path, width, scheme)
    assert browser.get_log("browser") == []
    requests = [row["message"] for row in browser.get_log("performance")]
    sent = [text for text in requests if '"Network.requestWillBeSent"' in text]
    assert all("file://" in text for text in sent)
    empty = "return figures.filter((f) => !f.querySelector('svg *')).map((f) => f.dataset.chart)"
    assert browser.execute_script(empty) == []
    # No picture makes the page itself wider than the screen.
    assert browser.execute_script("return document.documentElement.scrollWidth") <= width
    assert browser.execute_script("return document.querySelectorAll('script').length") == 4


def _contrast(driver, selector: str) -> float:
    """The least contrast of an element's text with the page's ground, as WCAG defines it."""
    return driver.execute_script(
        """
        const channel = (x) => (x /= 255) <= 0.03928 ? x / 12.92 : ((x + 0.055) / 1.055) ** 2.4;
        const parts = (text) => text.match(/[0-9.]+/g).map(Number);
        const light = ([r, g, b]) =>
          0.2126 * channel(r) + 0.7152 * channel(g) + 0.0722 * channel(b);
        const ground = light(parts(getComputedStyle(document.body).backgroundColor));
        return Math.min(...[...document.querySelectorAll(arguments[0])].map((element) => {
          const ink = light(parts(getComputedStyle(element).color));
          return (Math.max(ink, ground) + 0.05) / (Math.min(ink, ground) + 0.05);
        }));
        """,
        selector,
    )


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_texts_stand_out_from_the_ground_and_the_button_changes_it(
    browser, plans, scheme, tmp_path
):
    _open(browser, plans["sharded"], tmp_path, scheme=scheme)
    for selector in ("p, h1, h2, td, th, figcaption, a, summary, .good", "figure svg"):
        assert _contrast(browser, selector) >= LEAST_CONTRAST
    ground = "return getComputedStyle(document.body).backgroundColor"
    before = browser.execute_script(ground)
    browser.find_element("id", "theme").click()
    assert browser.execute_script(ground) != before
    assert _contrast(browser, "p, h1, h2, td, th, a") >= LEAST_CONTRAST


def test_the_keyboard_reaches_every_picture_and_every_mark(browser, plans, tmp_path):
    from selenium.webdriver import ActionChains, Keys

    _open(browser, plans["sharded"], tmp_path)
    focused = "return document.activeElement.closest('figure')?.dataset.chart ?? null"
    reached = set()
    for _ in range(120):
        ActionChains(browser).send_keys(Keys.TAB).perform()
        chart = browser.execute_script(focused)
        if chart:
            reached.add(chart)
    drawn = (
        "return figures.filter((f) => f.querySelector('[role=img]')).map((f) => f.dataset.chart)"
    )
    assert reached == set(browser.execute_script(drawn)) >= {"time", "memory", "layers", "machine"}
    # The arrows go from mark to mark of one picture, and each says what it is.
    first = browser.find_element("css selector", f"figure[data-chart=layers] {MARKS}")
    browser.execute_script("arguments[0].focus()", first)
    said = browser.execute_script("return tip.textContent")
    assert "spec [" in said and "on a device" in said
    ActionChains(browser).send_keys(Keys.ARROW_RIGHT).perform()
    assert browser.execute_script("return tip.textContent") not in ("", said)
    ActionChains(browser).send_keys(Keys.ESCAPE).perform()
    assert browser.execute_script("return tip.hidden")


def test_a_choice_draws_the_picture_anew(browser, plans, tmp_path):
    _open(browser, plans["hosts"], tmp_path)
    marks = "return [...document.querySelectorAll('figure[data-chart=machine] rect[fill]')]"
    fills = f"{marks}.map((each) => each.getAttribute('fill')).join()"
    inputs = browser.find_elements("css selector", "figure[data-chart=machine] input")
    seen = set()
    for index in range(len(inputs)):
        # Drawn anew each time, and so are the choices.
        now = browser.find_elements("css selector", "figure[data-chart=machine] input")
        browser.execute_script("arguments[0].click()", now[index])
        seen.add(browser.execute_script(fills))
    assert len(seen) == max(len(inputs), 1)


def test_hostile_names_are_shown_and_run_nothing(browser, plans, tmp_path):
    _open(browser, plans["hostile"], tmp_path)
    assert "<img src=x" in browser.find_element("tag name", "h1").text
    assert browser.find_elements("tag name", "img") == []


def test_a_narrower_window_gets_narrower_pictures(browser, plans, tmp_path):
    _open(browser, plans["sharded"], tmp_path)
    metrics = {"width": PHONE, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    widths = "return figures.map((f) => f.querySelector('svg').getBoundingClientRect().width)"
    until = time.monotonic() + 60
    while max(browser.execute_script(widths)) > PHONE and time.monotonic() < until:
        time.sleep(0.05)
    assert max(browser.execute_script(widths)) <= PHONE
