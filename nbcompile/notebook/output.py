"""One output of a cell, replaced in place: what a saved notebook keeps of it is its last state and nothing else."""

from __future__ import annotations

import os
from binascii import b2a_hex
from typing import TYPE_CHECKING, Any

from ..parallel import draws

if TYPE_CHECKING:
    from ..report import Report
    from ..sweep import Sweep


class CellOutput:
    """An output that is published once and replaced from then on; nowhere but on the first of several ranks.

    Where the front end cannot replace an output (a terminal) each state is printed below the one before.

    Attributes:
        there: whether anything has been published.
        in_kernel: whether a kernel sends it to a front end, which can replace it.
    """

    def __init__(self, shell: Any, *, quiet: bool = False) -> None:
        self._shell = shell
        # Not IPython.display: that publishes through the process's first shell, which need not be this one. Kept, as
        # a `with capture_output():` of the user's, around something else, must not receive what belongs here.
        self._publisher = shell.display_pub
        self._quiet = quiet or not draws()
        self._id = b2a_hex(os.urandom(16)).decode("ascii")
        self.there = False
        self.in_kernel = getattr(self._publisher, "pub_socket", None) is not None

    def line(self, text: str) -> None:
        """Show a line of plain text."""
        self.publish({"text/plain": text}, {})

    def report(self, report: Report | Sweep) -> None:
        """Show a report, or all those of a sweep, in all forms."""
        if not self._quiet:
            data, metadata = self._shell.display_formatter.format(report)
            self.publish(data, metadata)

    def end(self, text: str) -> None:
        """Replace a state that would otherwise stand there for ever; shows nothing if there is none."""
        if self.there:
            self.line(text)

    def publish(self, data: dict[str, Any], metadata: dict[str, Any]) -> None:
        """Show data by MIME type, in place of what was shown before."""
        if self._quiet:
            return
        # Noted before it is sent: an interrupt in between costs a state; a state that is shown twice would stay twice.
        there, self.there = self.there, True
        self._publisher.publish(data=data, metadata=metadata, transient={"display_id": self._id}, update=there)
