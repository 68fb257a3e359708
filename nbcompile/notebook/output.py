"""The one output of a cell: a line that tells how far it is, and in its place the report when that is there."""

from __future__ import annotations

import os
from binascii import b2a_hex
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..report import Report


class CellOutput:
    """An output that is replaced in place, so that a saved notebook keeps the last state and nothing else.

    Where the front end cannot replace an output (a terminal) each state is printed below the one before.
    """

    def __init__(self, shell: Any, *, quiet: bool = False) -> None:
        self._shell = shell
        self._quiet = quiet
        self._id = b2a_hex(os.urandom(16)).decode("ascii")
        self._there = False

    def line(self, text: str) -> None:
        """Show a line of plain text."""
        self._publish({"text/plain": text}, {})

    def report(self, report: Report) -> None:
        """Show a report in all its forms."""
        if not self._quiet:
            data, metadata = self._shell.display_formatter.format(report)
            self._publish(data, metadata)

    def end(self, text: str) -> None:
        """Replace a line of progress that would otherwise stand there for ever; shows nothing if there is none."""
        if self._there:
            self.line(text)

    def _publish(self, data: dict[str, Any], metadata: dict[str, Any]) -> None:
        if self._quiet:
            return
        # Not IPython.display: that publishes through the process's first shell, which need not be this one.
        self._shell.display_pub.publish(
            data=data, metadata=metadata, transient={"display_id": self._id}, update=self._there
        )
        self._there = True
