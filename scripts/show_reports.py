"""Pages of plans in a browser: how large they are, how long they take to open, and pictures of
them.

    python -m scripts.show_reports -o docs/reports/pages.md --pictures docs/pictures

Plans six steps, writes their reports (`automap.report.page`) and opens each in chromium (extra
`browser`, and the system's chromium and chromedriver). *Opens in*: from the request of the file to
the end of the page's first drawing, the least of three visits. *Drawn in*: until the last picture
is there. Pillow makes the pictures small.
"""

import base64
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
import io
from pathlib import Path
import platform
import shutil
from tempfile import TemporaryDirectory
import time
from typing import Any, Final

import click
from PIL import Image
from selenium import webdriver

import automap
from automap.program import load_target
from scripts.tables import made_by, markdown, replace_table


COMMAND: Final = "python -m scripts.show_reports -o docs/reports/pages.md --pictures docs/pictures"
FLAGS: Final = (
    "--headless --no-sandbox --disable-gpu --disable-background-networking --hide-scrollbars "
    "--disable-component-update --no-first-run"
).split()
VISITS: Final = 3
DRAWN: Final = "return figures.every((figure) => figure.dataset.width)"
OPENED: Final = "return performance.getEntriesByType('navigation')[0].loadEventEnd / 1000"


@dataclass(frozen=True, kw_only=True)
class Page:
    """A plan whose page is shown; `scheme`, `width` and `height` (pixels) are those of its picture,
    which begins at the section `section`.
    """

    name: str
    target: str
    arguments: tuple[tuple[str, str], ...] = ()
    options: tuple[tuple[str, Any], ...]
    scheme: str = "light"
    width: int = 1100
    height: int = 1500
    section: str = ""


PAGES: Final = (
    Page(
        name="t5_11b",
        target="models.t5:t5_11b",
        options=(("topology", "v5p:4x4x4"), ("budget", 15.0)),
    ),
    Page(
        name="moe",
        target="models.moe:moe_8x",
        options=(("topology", "2x8xh100"), ("preset", "expert-parallel")),
        section="machine",
    ),
    Page(
        name="gpt_dark",
        target="models.gpt:gpt_124m",
        arguments=(("batch", "128"),),
        options=(("topology", "v5e:4x4"), ("budget", 15.0)),
        scheme="dark",
        height=1900,
        section="memory",
    ),
    Page(
        name="pipeline",
        target="models.gpt:gpt_124m",
        arguments=(("batch", "32"),),
        options=(
            ("topology", "2x4xv100"),
            ("space", "pipeline"),
            ("stages", 4),
            ("microbatches", 16),
            ("budget", 15.0),
        ),
        height=1300,
        section="staged",
    ),
    Page(
        name="interleaved",
        target="models.gpt:gpt_124m",
        arguments=(("batch", "32"),),
        # Twice as many stages as devices: each device has several.
        options=(
            ("topology", "4xv100"),
            ("space", "pipeline"),
            ("stages", 8),
            ("microbatches", 8),
            ("budget", 15.0),
        ),
        height=750,
        section="staged",
    ),
    Page(
        name="streams_phone",
        target="models.inception:inception_small_forward",
        options=(("topology", "1xv100"), ("space", "streams"), ("strategy", "dos")),
        width=390,
    ),
)


@contextmanager
def browser(folder: str) -> Iterator[Any]:
    """Chromium without a screen, with a profile of its own."""
    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium") or ""
    for flag in (*FLAGS, f"--user-data-dir={folder}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    service = webdriver.ChromeService(executable_path=shutil.which("chromedriver"))
    driver = webdriver.Chrome(options=options, service=service)
    try:
        yield driver
    finally:
        driver.quit()


def planned(page: Page) -> automap.Plan:
    """The plan of a page."""
    step, args = load_target(page.target, dict(page.arguments))
    plan = automap.plan(step, args, **dict(page.options))
    # As the command calls it; in Python a plan has the name of its step.
    return replace(plan, workload=replace(plan.workload, target=page.target))


def visit(driver: Any, path: Path) -> tuple[float, float]:
    """Seconds until the page is open, and until its last picture is drawn."""
    begin = time.perf_counter()
    driver.get(path.as_uri())
    while not driver.execute_script(DRAWN):
        time.sleep(0.01)
    return driver.execute_script(OPENED), time.perf_counter() - begin


def picture(driver: Any, page: Page, file: Path) -> None:
    """A picture of the page as it is open, from its section on."""
    top = driver.execute_script(
        "return document.getElementById(arguments[0])?.offsetTop ?? 0", page.section
    )
    clip = {"x": 0, "y": top, "width": page.width, "height": page.height, "scale": 1}
    shot = driver.execute_cdp_cmd(
        "Page.captureScreenshot", {"captureBeyondViewport": True, "clip": clip}
    )
    image = Image.open(io.BytesIO(base64.b64decode(shot["data"])))
    image.convert("RGB").save(file, "WEBP", quality=80, method=6)


def measured(driver: Any, page: Page, folder: Path, pictures: Path | None) -> list[str]:
    """The row of a page."""
    plan, path = planned(page), folder / f"{page.name}.html"
    size = len(plan.report(path).encode())
    metrics = {"width": page.width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    features = [{"name": "prefers-color-scheme", "value": page.scheme}]
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
    visits = [visit(driver, path) for _ in range(VISITS)]
    if pictures is not None:
        picture(driver, page, pictures / f"report_{page.name}.webp")
    errors = driver.get_log("browser")
    return [
        f"{plan.workload.target} on {plan.topology['name']}",
        f"{page.width}, {page.scheme}",
        f"{len(plan.inputs):,}",
        f"{size / 2**20:.2f}",
        f"{min(opened for opened, _ in visits):.2f}",
        f"{min(drawn for _, drawn in visits):.2f}",
        str(len(errors)),
    ]


@click.command()
@click.option("-o", "--output", type=click.Path(path_type=Path, exists=True), required=True)
@click.option("--pictures", type=click.Path(path_type=Path, file_okay=False, exists=True))
def main(output: Path, pictures: Path | None) -> None:
    """Write the table of pages, and their pictures."""
    with TemporaryDirectory() as folder, TemporaryDirectory() as profile:
        with browser(profile) as driver:
            rows = [measured(driver, page, Path(folder), pictures) for page in PAGES]
            version = driver.capabilities["browserVersion"]
    header = ["plan", "width, px", "inputs", "MiB", "opens in, s", "drawn in, s", "errors"]
    machine = f"{platform.machine()}, 2 cores beside other programs, chromium {version}"
    replace_table(output, made_by(COMMAND, machine) + markdown(header, rows))


if __name__ == "__main__":
    main()
