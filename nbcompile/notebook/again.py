"""Cells in which a model was compiled again say so in their own output, once ``%nbcompile marks on`` asks for it.

It has to be asked for: it is an output that no line of the cell made, and it is saved, copied and compared with the
cell. What it shows is a few lines of text. The report of the recompiles lies in the output's metadata: in its data, a
front end that knows reports would draw it at full size, where its mark on the cell is all that is wanted.
"""

from __future__ import annotations

import dataclasses
import sys
import weakref
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ..render.units import clean, middle
from ..report import MIME_TYPE, Group, Recompile, Report

if TYPE_CHECKING:
    from ..compiler import Compilation

_MOST_LINES = 5
_PATH = 48


class Again:
    """Looks at what was compiled before and after each cell.

    Args:
        reported: whether the running cell has shown a report: then there is nothing to add.
    """

    def __init__(self, shell: Any, reported: Callable[[], bool]) -> None:
        self._shell = shell
        self._reported = reported
        self._seen: weakref.WeakKeyDictionary[Compilation, tuple[int, Counter[Any]]] = weakref.WeakKeyDictionary()
        self.on = False

    def switch(self, on: bool) -> None:
        """Begin or stop with the running cell, of which only what it compiles from now on counts."""
        if on == self.on:
            return
        self.on = on
        if on:
            self._begin(None)
        change = self._shell.events.register if on else self._shell.events.unregister
        change("pre_run_cell", self._begin)
        change("post_run_cell", self._end)

    def _begin(self, info: object) -> None:
        """What was compiled between two cells, by a button say, is no cell's."""
        for compilation in _compilations():
            if self._changed(compilation):
                self._remember(compilation, compilation.report())

    def _end(self, result: object) -> None:
        for compilation in _compilations():
            if self._changed(compilation):
                report = compilation.report()
                before = self._remember(compilation, report)
                found = _only_new(report, before)
                if found.groups and not self._reported():
                    self._publish(found)

    def _changed(self, compilation: Compilation) -> bool:
        # a count first, as a whole report costs milliseconds and most cells compile nothing
        return compilation.compiles() != self._seen.get(compilation, (0,))[0]

    def _remember(self, compilation: Compilation, report: Report) -> Counter[Any]:
        """Note what there is by now; what there was before."""
        before = self._seen.get(compilation, (0, Counter[Any]()))[1]
        now = Counter(_key(group, again) for group in report.groups for again in group.recompiles)
        self._seen[compilation] = compilation.compiles(), now
        return before

    def _publish(self, found: Report) -> None:
        data = {"text/plain": told(found)}
        self._shell.display_pub.publish(data=data, metadata={MIME_TYPE: found.to_dict()})


def told(report: Report) -> str:
    """How often and why, in a few lines: recompiles with one reason are one line."""
    alike: dict[str, list[Recompile]] = {}
    for group in report.groups:
        for again in group.recompiles:
            alike.setdefault(clean(again.reason) or clean(again.guard), []).append(again)
    times = sum(len(members) for members in alike.values())
    lines = [f"{clean(report.model.get('class_name', 'the model'), 60)} was compiled again {_times(times)}:"]
    for reason, members in list(alike.items())[:_MOST_LINES]:
        blocks = list(dict.fromkeys(member.block for member in members))
        others = f" and {len(blocks) - 1} more" if len(blocks) > 1 else ""
        lines.append(f"  {middle(blocks[0], _PATH) or '(model)'}{others}: {reason}")
    if len(alike) > _MOST_LINES:
        lines.append(f"  and {len(alike) - _MOST_LINES} more: %nbcompile report shows them all")
    return "\n".join(lines)


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def _only_new(report: Report, before: Counter[Any]) -> Report:
    """A report of nothing but the recompiles that there were not before, for the output to stay small."""
    known = before.copy()
    groups = []
    for group in report.groups:
        new = []
        for again in group.recompiles:
            key = _key(group, again)
            if known[key] > 0:
                known[key] -= 1
            else:
                new.append(again)
        if new:
            groups.append(
                dataclasses.replace(group, recompiles=new, variants=[], graph_breaks=[], phases={}, blocks=[])
            )
    return Report(created=report.created, model=report.model, settings=report.settings, groups=groups)


def _key(group: Group, again: Recompile) -> tuple[Any, ...]:
    return (group.path, *dataclasses.astuple(again))


def _compilations() -> list[Compilation]:
    # whoever has compiled a model has loaded the compiler: it takes seconds and is never loaded to find none
    if "nbcompile.compiler" not in sys.modules:
        return []
    from ..compiler import compilations

    return compilations()
