"""
How does a report look?

Plays the demo (a real job that hangs), writes the report on it, and takes its
pictures with Chromium.  Run it as ``nox -s pictures``, and look at them.
"""

from __future__ import annotations

import argparse
import base64
import os
import shutil
import sys
import tempfile

from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, sync_playwright

from distdebug.demo import SCENARIOS, play_demo
from distdebug.report import write_report


HERE = Path(__file__).parent
NAMES = ("chromium", "chromium-browser", "google-chrome")
# A page of documentation has many pictures, and few readers a fast network.
MOST_BYTES = 150_000

# Sharp on fine screens, too.
SCALE = 1.5
WIDE = {"width": 1200, "height": 860}
NARROW = {"width": 400, "height": 860}
PICTURES: dict[str, dict[str, Any]] = {
    "report-light": {"color_scheme": "light", "viewport": WIDE},
    "report-dark": {"color_scheme": "dark", "viewport": WIDE},
    "report-narrow": {"color_scheme": "light", "viewport": NARROW},
}


def main() -> int:
    """
    Take all pictures; 1 if one is too large.
    """
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scenario", default="dataloader", choices=SCENARIOS)
    parser.add_argument("--ranks", type=int, default=8)
    # It is seen in the pictures.
    folder = Path(tempfile.gettempdir(), "job")
    parser.add_argument("--folder", type=Path, default=folder)
    parser.add_argument("--output", type=Path, default=HERE.parent / "_static")
    options = parser.parse_args()
    if options.folder.exists():
        parser.error(f"there is a {options.folder} already")

    try:
        demo = play_demo(
            SCENARIOS[options.scenario],
            folder=options.folder,
            ranks=options.ranks,
            tell=print,
        )
        page = write_report(demo.diagnosis, options.folder / "report.html")
        taken = take_pictures(page, options.output)
    finally:
        shutil.rmtree(options.folder, ignore_errors=True)
    for path in taken:
        print(f"{path}: {path.stat().st_size:,} bytes")
    return int(any(path.stat().st_size > MOST_BYTES for path in taken))


def take_pictures(page: Path, output: Path) -> list[Path]:
    """
    Take the first screen of a page, in each way in which it looks.

    Args:
        page: The report.

        output: The folder for the pictures.

    Returns:
        The pictures.
    """
    output.mkdir(exist_ok=True)
    found = filter(None, map(shutil.which, NAMES))
    arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
    with sync_playwright() as tool:
        browser = tool.chromium.launch(
            executable_path=next(found), args=arguments
        )
        return [
            _take(browser, page, output / f"{name}.webp", options)
            for name, options in PICTURES.items()
        ]


def _take(
    browser: Browser, page: Path, path: Path, options: dict[str, Any]
) -> Path:
    with browser.new_context(device_scale_factor=SCALE, **options) as context:
        tab = context.new_page()
        tab.goto(page.as_uri())
        tools = context.new_cdp_session(tab)
        clip = {"x": 0, "y": 0, "scale": SCALE, **options["viewport"]}
        # A third of the size of a PNG; all browsers show it.
        form = {"format": "webp", "quality": 88}
        shot = tools.send("Page.captureScreenshot", {**form, "clip": clip})
    path.write_bytes(base64.b64decode(shot["data"]))
    return path


if __name__ == "__main__":
    sys.exit(main())
