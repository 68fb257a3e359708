"""The extension's renderer in JupyterLab, in a real browser: outputs and files, with no kernel."""

from __future__ import annotations

import pytest

from tests.browser.lab import Lab
from tests.reports import sample_report

pytestmark = [pytest.mark.slow]


def test_file_is_opened_from_the_file_browser(lab_with_extension: Lab) -> None:
    # GIVEN a saved report
    lab = lab_with_extension
    sample_report().save(lab.server.notebooks / "run.nbcompile.json")
    # WHEN it is opened by a double click in the file browser
    lab.page.goto(f"{lab.server.url}/lab?reset")
    lab.page.locator(".jp-DirListing-item", has_text="run.nbcompile.json").dblclick()
    # THEN it is drawn
    lab.page.locator(".nbcompile-Report", has_text="SampleForCausalLM").wait_for()
