"""Two reports side by side in JupyterLab, in a real browser: documents, outputs and files, with no kernel."""

from __future__ import annotations

import copy
import json
from typing import Any

import nbformat
import pytest

from nbcompile.render.mime import mime_bundle
from nbcompile.report import Report
from tests.browser.lab import SCREENSHOTS, Lab
from tests.reports import hostile_report, sample_report

pytestmark = [pytest.mark.slow]

PAIR = ".nbcompile-Pair"


def _other_machine() -> Report:
    """The sample as an accelerator might have run it: faster, one strategy less, the head compiled no more."""
    report = copy.deepcopy(sample_report())
    report.environment.update(cpu="another processor", device="cuda")
    report.model["device"] = "cuda"
    report.settings["mode"] = "max-autotune"
    del report.strategies["hierarchical"]
    report.strategies["regional"].steady_seconds = 0.025
    report.strategies["full"].cold_seconds = 60.0
    report.groups[0].compiled, report.groups[0].eager, report.groups[0].eager_reason = 30, 0, ""
    report.groups[0].recompiles = []
    report.groups[0].compile_seconds = 2.0
    del report.rest[1]
    return report


def _saved(lab: Lab, name: str, *reports: Report) -> None:
    """A notebook with an output of each report, opened without a kernel."""
    cells = []
    for index, report in enumerate(reports):
        output = nbformat.v4.new_output("display_data", mime_bundle(report))
        cells.append(nbformat.v4.new_code_cell("report", outputs=[output], execution_count=index + 1))
    nbformat.write(nbformat.v4.new_notebook(cells=cells), lab.server.notebooks / name)
    lab.open(name, kernel=False)
    lab.page.locator(".jp-Dialog").get_by_role("button", name="No Kernel").click()
    lab.page.locator(".jp-Dialog").wait_for(state="detached")


def _write(lab: Lab, name: str, report: Report) -> None:
    report.save(lab.server.notebooks / name, overwrite=True)


def _open_file(lab: Lab, name: str) -> Any:
    """Open a file by a double click in the file browser; its document."""
    lab.page.locator(".jp-DirListing-item", has_text=name).dblclick()
    document = lab.page.locator(".jp-MimeDocument").locator("visible=true")
    document.locator(".nbcompile-head").wait_for()
    return document


def _shoot(lab: Lab, element: Any, name: str) -> None:
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    for theme in ("dark", "light"):
        lab.theme(theme)
        lab.page.locator("#jupyterlab-splash").wait_for(state="detached")
        element.screenshot(path=SCREENSHOTS / f"{name}-{theme}.png")


def _cut(value: Any) -> Any:
    """The same data, small enough for a file: texts of 20 000 characters at the most, five of each list."""
    if isinstance(value, dict):
        return {key: _cut(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_cut(item) for item in value[:5]]
    return value[:20_000] if isinstance(value, str) else value


def _choose(lab: Lab, label: str) -> None:
    """Choose an entry of the dialog, and compare."""
    dialog = lab.page.locator(".jp-Dialog")
    dialog.locator("label", has_text=label).click()
    dialog.get_by_role("button", name="Compare").click()
    dialog.wait_for(state="detached")


def test_outputs_of_a_notebook_are_laid_side_by_side(lab_with_extension: Lab) -> None:
    # GIVEN a notebook with saved reports of two machines
    lab = lab_with_extension
    _saved(lab, "pair.ipynb", sample_report(), _other_machine())
    # WHEN the first one's button is pressed, by key, and the other output is chosen
    button = lab.output(0).get_by_role("button", name="Compare with…")
    button.focus()
    lab.page.keyboard.press("Enter")
    lab.page.locator(".jp-Dialog label").first.wait_for()
    offered = lab.page.locator(".jp-Dialog label").all_inner_texts()
    assert [text.split("\n")[0] for text in offered] == ["cell [2]", "A file…"]
    _shoot(lab, lab.page.locator(".jp-Dialog-content"), "pair-choice")
    lab.page.keyboard.press("Enter")
    # THEN they stand side by side: first that the machines differ, then every figure with its difference
    pair = lab.output(0).locator(PAIR)
    pair.wait_for()
    cautions = pair.locator(".nbcompile-warnings").inner_text()
    assert cautions.startswith("These reports are of different machines (cpu, device)")
    assert "settings (mode)" in cautions
    assert [side.split(" · ")[0] for side in pair.locator("dd").all_inner_texts()] == ["cell [1]", "cell [2]"]
    names = [name.split("\n")[0] for name in pair.locator("th[scope=rowgroup]").all_inner_texts()]
    rows = pair.locator("[data-part=strategies] tbody tr")
    steady = rows.filter(has=lab.page.get_by_text("steady", exact=True)).nth(names.index("regional"))
    assert steady.inner_text().split("\t")[-4:] == [
        "50.0 ± 2.0 ms",
        "25.0 ± 2.0 ms",
        "0.500x",
        "▲ \u221225.0 ms, faster",
    ]
    assert "only in A" in pair.locator("th[scope=rowgroup]", has_text="hierarchical").inner_text()
    regions = pair.locator("[data-part=regions]")
    assert "26 → 30" in regions.locator("tr", has_text="model.layers").inner_text()
    assert "only in A" in regions.locator("tr", has_text="lm_head").inner_text()
    # and the report itself is still below
    assert lab.output(0).locator(".nbcompile-head").is_visible()
    _shoot(lab, pair, "pair-outputs")
    # WHEN it is closed THEN it is gone, and the focus is on the button that opened it
    pair.get_by_role("button", name="Close").click()
    pair.wait_for(state="detached")
    assert button.evaluate("element => element === document.activeElement")


def test_open_documents_are_laid_side_by_side_and_follow_their_files(lab_with_extension: Lab) -> None:
    # GIVEN two saved reports, both open
    lab = lab_with_extension
    _write(lab, "after.nbcompile.json", _other_machine())
    _write(lab, "before.nbcompile.json", sample_report())
    lab.page.goto(f"{lab.server.url}/lab?reset")
    _open_file(lab, "after.nbcompile.json")
    document = _open_file(lab, "before.nbcompile.json")
    # WHEN the toolbar's button is pressed and the other one chosen
    lab.page.locator(".jp-Toolbar").get_by_text("Compare with…").locator("visible=true").click()
    lab.page.locator(".jp-Dialog label").first.wait_for()
    offered = lab.page.locator(".jp-Dialog label").all_inner_texts()
    assert [text.split("\n")[0] for text in offered] == ["after.nbcompile.json", "A file…"]
    _choose(lab, "after.nbcompile.json")
    # THEN both are shown
    pair = document.locator(PAIR)
    pair.locator("dd", has_text="after.nbcompile.json").wait_for()
    assert pair.locator("dd").first.inner_text().startswith("before.nbcompile.json · SampleForCausalLM")
    assert document.locator(".nbcompile-compare").count() == 0
    _shoot(lab, lab.page, "pair-documents")
    # WHEN the other file is changed by its own document
    lab.page.evaluate(
        """async text => {
            const widgets = Array.from(window.jupyterapp.shell.widgets('main'));
            const {context} = widgets.find(widget => widget.context?.path === 'after.nbcompile.json');
            context.model.fromString(text);
        }""",
        (lab.server.notebooks / "after.nbcompile.json").read_text().replace("SampleForCausalLM", "RenamedModel"),
    )
    # THEN the comparison follows
    pair.locator("dd", has_text="RenamedModel").wait_for()
    assert "different models (class_name)" in pair.locator(".nbcompile-warnings").inner_text()


def test_a_file_is_chosen_by_its_path(lab_with_extension: Lab) -> None:
    # GIVEN a notebook with one report, a saved one in a folder, and a file that is none
    lab = lab_with_extension
    (lab.server.notebooks / "runs").mkdir(exist_ok=True)
    _write(lab, "runs/other.nbcompile.json", _other_machine())
    (lab.server.notebooks / "runs" / "broken.json").write_text(json.dumps({"schema": 7}))
    _saved(lab, "one.ipynb", sample_report())
    button = lab.output(0).get_by_role("button", name="Compare with…")

    def choose(name: str) -> None:
        button.click()  # nothing else is open, so the file dialog comes at once
        dialog = lab.page.locator(".jp-Dialog")
        dialog.locator(".jp-DirListing-item", has_text="runs").dblclick()
        dialog.locator(".jp-DirListing-item", has_text=name).click()
        dialog.locator(".jp-mod-accept").click()

    # WHEN the file is chosen that is no report THEN that is told
    choose("broken.json")
    told = lab.page.locator(".jp-Dialog", has_text="This report has schema 7")
    told.wait_for()
    assert "runs/broken.json" in told.inner_text()
    told.get_by_role("button", name="Close").click()
    told.wait_for(state="detached")
    assert lab.output(0).locator(PAIR).count() == 0
    # WHEN the other one is THEN it is shown, with its path
    choose("other.nbcompile.json")
    pair = lab.output(0).locator(PAIR)
    pair.wait_for()
    assert pair.locator("dd").nth(1).inner_text().startswith("runs/other.nbcompile.json · ")


def test_a_hostile_report_beside_an_honest_one_is_text(lab_with_extension: Lab) -> None:
    # GIVEN an honest saved report and one whose every string is an attack, both open
    lab = lab_with_extension
    alerts: list[str] = []
    lab.page.on("dialog", lambda dialog: (alerts.append(dialog.message), dialog.dismiss()))
    text = json.dumps(_cut(hostile_report().to_dict()))
    text = text.replace('"schema": 1', '"__proto__": {"polluted": 1}, "schema": 1')
    (lab.server.notebooks / "hostile.nbcompile.json").write_text(text)
    _write(lab, "honest.nbcompile.json", sample_report())
    lab.page.goto(f"{lab.server.url}/lab?reset")
    _open_file(lab, "hostile.nbcompile.json")
    document = _open_file(lab, "honest.nbcompile.json")
    # WHEN they are laid side by side
    lab.page.locator(".jp-Toolbar").get_by_text("Compare with…").locator("visible=true").click()
    _choose(lab, "hostile.nbcompile.json")
    pair = document.locator(PAIR)
    pair.locator("dd").first.wait_for()
    # THEN the attacks stand there as text, and nothing of them is an element
    assert "<script>alert(1)</script>" in pair.inner_text()
    assert pair.locator("script, img, a, iframe").count() == 0
    assert lab.page.evaluate("() => ({}).polluted === undefined")
    assert alerts == []
    _shoot(lab, pair, "pair-hostile")
