"""Take the README's pictures anew, from a real run: `make pictures`, some minutes on two cores.

SmolLM2 is compared in JupyterLab as the quick start does it, then the panel is opened on what was measured. It needs a
browser, as the browser tests do, and the built extension. Nothing else should run: the figures are in the pictures.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
from pathlib import Path

from playwright.sync_api import sync_playwright

from tests.browser.conftest import BROWSERS, EXTENSION, Server
from tests.browser.lab import Lab

HERE = Path(__file__).parent

SETUP = """\
%load_ext nbcompile
import torch
from tests.models import smollm2
model, _ = smollm2()
batch = {"input_ids": torch.randint(0, 49152, (1, 128)), "use_cache": False}
def step():
    with torch.no_grad():
        return model(**batch).logits"""
COMPARE = """\
%%compile_regional model --compare eager,full
with torch.no_grad():
    logits = model(**batch).logits"""
PANEL = "%nbcompile panel model step"


def take(browser: str, folder: Path) -> None:
    """Run the three cells in JupyterLab, and keep pictures of the second one's charts and of the third."""
    with tempfile.TemporaryDirectory(prefix="nbcompile-pictures-", ignore_cleanup_errors=True) as work:
        server = Server(Path(work), "jupyterlab", extension=True)
        try:
            with sync_playwright() as playwright:
                chromium = playwright.chromium.launch(executable_path=browser, args=["--no-sandbox", "--disable-gpu"])
                page = chromium.new_page(viewport={"width": 1300, "height": 2200}, device_scale_factor=1.5)
                page.set_default_timeout(60_000)
                lab = Lab(page, server)
                lab.write("pictures.ipynb", SETUP, COMPARE, PANEL)
                lab.open("pictures.ipynb")
                lab.run(0, 300)
                page.wait_for_timeout(5000)  # a user takes a moment, too, and start-up goes on in it
                lab.run(1, 1200)
                lab.run(2, 300)
                page.wait_for_timeout(2000)
                lab.cell(2).screenshot(path=folder / "panel.png")
                compared = lab.cell(1)
                compared.scroll_into_view_if_needed()
                whole, regions = compared.bounding_box(), compared.get_by_text("Regions", exact=True).bounding_box()
                assert whole is not None
                assert regions is not None
                charts = {**whole, "height": regions["y"] - whole["y"] - 8}
                page.screenshot(path=folder / "chart.png", clip=charts)  # type: ignore[arg-type]
                chromium.close()
        finally:
            server.stop()


def main() -> None:
    """Parse the command line and take the pictures."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--browser", default=next(filter(None, map(shutil.which, BROWSERS)), None))
    parser.add_argument("--out", type=Path, default=HERE)
    given = parser.parse_args()
    if given.browser is None:
        parser.error(f"no browser among {', '.join(BROWSERS)}; name one by --browser")
    if not (EXTENSION / "package.json").is_file():
        parser.error("the JupyterLab extension is not built: make extension")
    take(given.browser, given.out)


if __name__ == "__main__":
    main()
