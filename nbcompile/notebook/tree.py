"""The regions of a model as check boxes: groups, and their blocks below them once a group is opened."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import ipywidgets as widgets

from ..render.units import escape_html
from .choices import Branch, Tree

if TYPE_CHECKING:
    from ..regions import PlannedRest


class RegionTree:
    """Check boxes for the blocks of a model. ``changed`` is called with the paths of the blocks that are unchecked."""

    def __init__(self, tree: Tree, changed: Callable[[frozenset[str]], None]) -> None:
        self._changed = changed
        self.left_out: set[str] = set()
        self.branches = [_BranchBoxes(branch, self.left_out, self._tell) for branch in tree.branches]
        self._rest = widgets.HTML()
        content = [branch.widget for branch in self.branches] or [_faint(tree.reason)]
        # not a fixed height: few groups should not leave a gap, a thousand blocks should not fill the page
        inner = widgets.VBox([*content, self._rest], layout=widgets.Layout(max_height="340px", overflow="auto"))
        self.widget = widgets.Accordion([inner], selected_index=None)
        self._count(tree)
        self._tree = tree

    def show_rest(self, rest: Sequence[PlannedRest]) -> None:
        """Tell what becomes of the parts outside the blocks."""
        lines = [f"{part.path} ({part.class_name}): {part.decision}, {part.reason}" for part in rest]
        lines = [f"rest: {line}" for line in lines]
        if any(part.decision == "compile" and part.path in self.left_out for part in rest):
            lines.append("rest=compile compiles the unchecked blocks too, each alone.")
        self._rest.value = "".join(f'<div class="nbc-faint">{escape_html(line)}</div>' for line in lines)

    def _tell(self) -> None:
        self._count(self._tree)
        self._changed(frozenset(self.left_out))

    def _count(self, tree: Tree) -> None:
        chosen, groups = len(tree.blocks) - len(self.left_out), len(tree.branches)
        words = f"{chosen} of {len(tree.blocks)} blocks in {groups} group{'s' * (groups != 1)}"
        self.widget.set_title(0, f"Regions: {words}" if tree.blocks else "Regions: none")


class _BranchBoxes:
    """The box of a group, and those of its blocks, made when they are first asked for: a model can have hundreds."""

    def __init__(self, branch: Branch, left_out: set[str], changed: Callable[[], None]) -> None:
        self.branch, self._left_out, self._changed = branch, left_out, changed
        self._setting = False
        self.all = widgets.Checkbox(True, indent=False, layout=widgets.Layout(width="auto"))
        self.opener = widgets.ToggleButton(
            False, description="show blocks", layout=widgets.Layout(width="110px", height="24px")
        )
        self.boxes: dict[str, Any] = {}
        self._below = widgets.VBox([], layout=widgets.Layout(margin="0 0 0 24px", display="none"))
        head = widgets.HBox([self.all, self.opener])
        head.add_class("nbc-row")
        self.widget = widgets.VBox([head, self._below], layout=widgets.Layout(flex="0 0 auto"))
        self.all.observe(self._all_chosen, "value")
        self.opener.observe(self._opened, "value")
        self._label()

    def _all_chosen(self, change: dict[str, Any]) -> None:
        if not self._setting:
            self._choose(self.branch.blocks, change["new"])

    def _block_chosen(self, change: dict[str, Any]) -> None:
        if not self._setting:
            self._choose([path for path, box in self.boxes.items() if box is change["owner"]], change["new"])

    def _choose(self, paths: Sequence[str], chosen: bool) -> None:
        if chosen:
            self._left_out.difference_update(paths)
        else:
            self._left_out.update(paths)
        self._label()
        self._changed()

    def _label(self) -> None:
        """Let every box show what is chosen; the group's is checked as long as any block is."""
        kept = [path for path in self.branch.blocks if path not in self._left_out]
        some = f" ({len(kept)} chosen)" if len(kept) < len(self.branch.blocks) else ""
        self._setting = True
        try:
            self.all.value = bool(kept)
            self.all.description = self.branch.label + some
            for path, box in self.boxes.items():
                box.value = path not in self._left_out
        finally:
            self._setting = False

    def _opened(self, change: dict[str, Any]) -> None:
        self.opener.description = "hide blocks" if change["new"] else "show blocks"
        if change["new"] and not self.boxes:
            for path in self.branch.blocks:
                box = widgets.Checkbox(path not in self._left_out, description=path, indent=False)
                box.observe(self._block_chosen, "value")
                self.boxes[path] = box
            self._below.children = tuple(self.boxes.values())
        self._below.layout.display = None if change["new"] else "none"


def _faint(text: str) -> Any:
    return widgets.HTML(f'<div class="nbc-faint">{escape_html(text, 900)}</div>')
