"""How soon Cancel in JupyterLab's side bar stops a compile of SmolLM2, and how often the status moves meanwhile.

    make extension && .venv/bin/python tests/benchmarks/cancel.py

In a real browser, with the whole model compiled by inductor: cancelled in each of several phases of the compile, of
which each has its own way to hold on to the interpreter. Run nothing beside it. The exit status is 1 if a cancel took
more than three seconds until the cell had ended, the status changed less than twice a second, or the model did not run
eager afterwards.
"""

from __future__ import annotations

import argparse
import re
import shutil
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))  # this file is run as a program

from playwright.sync_api import sync_playwright  # noqa: E402

from tests.browser.conftest import BROWSERS, Server  # noqa: E402
from tests.browser.lab import Lab  # noqa: E402
from tests.browser.test_extension_kernel import open_side_bar, says, status  # noqa: E402

SETUP = """\
import torch
from tests import models
model, _ = models.smollm2()
ids = torch.ones(1, 128, dtype=torch.long)
with torch.no_grad():
    expected = model(input_ids=ids, use_cache=False).logits
%load_ext nbcompile"""
WORK = """\
%%compile_regional model --compare full -n 1 -r 1
with torch.no_grad():
    y = model(input_ids=ids, use_cache=False).logits"""
CHECK = """\
with torch.no_grad():
    same = torch.equal(model(input_ids=ids, use_cache=False).logits, expected)
print("eager:", same and all(part._compiled_call_impl is None for part in model.modules()))"""
PHASES = ("Dynamo", "AOT autograd", "Inductor", "Kernel compile")
MOST_SECONDS, LEAST_CHANGES = 3.0, 2.0


def measure(lab: Lab, phase: str) -> tuple[float, float, bool]:
    """Seconds until a cancelled cell had ended, changes of the status a second before, and whether all is eager."""
    bar = open_side_bar(lab)
    lab.watch(status(lab))
    lab.start(1)
    says(lab, bar.locator(".nbcompile-work"), re.compile(f"full: cold start.*{phase}", re.DOTALL), 300)
    begun, before = time.monotonic(), len(lab.seen())
    lab.page.wait_for_timeout(1500)
    changes = (len(lab.seen()) - before) / (time.monotonic() - begun)
    begun = time.monotonic()
    bar.get_by_role("button", name="Cancel").click()
    says(lab, bar.locator(".nbcompile-message"), "Compile was interrupted")
    lab.cell(1).locator(".jp-InputPrompt", has_text=re.compile(r"\[\d+\]:")).wait_for()
    seconds = time.monotonic() - begun
    lab.run(2)
    return seconds, changes, "eager: True" in lab.output(2).inner_text()


def main() -> int:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    browser_file = next((found for name in BROWSERS if (found := shutil.which(name))), None)
    if browser_file is None:
        print(f"no browser: none of {', '.join(BROWSERS)} can be run", file=sys.stderr)
        return 1
    met = True
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder, sync_playwright() as playwright:
        server = Server(Path(folder), "jupyterlab", extension=True)
        try:
            browser = playwright.chromium.launch(executable_path=browser_file, args=["--no-sandbox", "--disable-gpu"])
            page = browser.new_page(viewport={"width": 1200, "height": 1000})
            page.set_default_timeout(60_000)
            lab = Lab(page, server)
            lab.write("cancel.ipynb", SETUP, WORK, CHECK)
            lab.open("cancel.ipynb")
            lab.run(0, 180)
            for phase in PHASES:
                seconds, changes, eager = measure(lab, phase)
                print(
                    f"{phase}: ended after {seconds:.2f} s, {changes:.1f} changes a second, eager: {eager}", flush=True
                )
                met = met and seconds <= MOST_SECONDS and changes >= LEAST_CHANGES and eager
            print(f"errors in the console: {lab.errors()}")
            browser.close()
        finally:
            server.stop()
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
