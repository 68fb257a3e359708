"""The errors and warnings a user of this package can meet."""

from __future__ import annotations

from types import TracebackType

#: Folders of torch's compiler, and the file in which each of its compiles begins.
_COMPILER = ("/torch/_dynamo/", "/torch/_inductor/", "/torch/_functorch/")
_BEGINNING = "/torch/_dynamo/convert_frame.py"


class NbcompileError(Exception):
    """Base of every error that this package raises on purpose."""


class UsageError(NbcompileError, ValueError):
    """The call cannot be carried out as given.

    The message says what is wrong, which values exist and what to do. Nothing has been compiled or changed.
    """


class NoRepeatedBlocksError(UsageError):
    """The model holds no repeated blocks, so there is nothing that regional compilation could share."""


class CompilationError(NbcompileError, RuntimeError):
    """A region could not be compiled although ``fullgraph=True`` asked for exactly that."""


class RankError(NbcompileError, RuntimeError):
    """A rank of a launched training failed; the message names the first that did, its own error and what to do.

    Attributes:
        rank: the number of that rank.
        traceback: its whole traceback; ``""`` if it was killed or crashed, without an error of its own.
    """

    def __init__(self, message: str, *, rank: int, traceback: str) -> None:
        super().__init__(message)
        self.rank, self.traceback = rank, traceback


class ReportError(NbcompileError, ValueError):
    """A saved report cannot be read: it is broken, or of a schema that this version does not know."""


class CompilationWarning(UserWarning):
    """A region runs uncompiled, or its compilation cost more than it had to; the message says which and why."""


def leave_out_compiler(interrupt: KeyboardInterrupt) -> None:
    """Cut an interrupt's traceback where it goes into a compile.

    That is forty frames and more of torch's own, of which none says anything to the user, and a notebook takes seconds
    to print them: the cell would seem to go on. Code of the user's that such frames call is no compile, and stays.
    """
    part = interrupt.__traceback__
    while part is not None and part.tb_next is not None:
        if _file(part.tb_next).startswith(_COMPILER) and _compiles(part.tb_next):
            part.tb_next = None
            interrupt.add_note("It came while the compiler worked; the compiler's own lines are left out here.")
            return
        part = part.tb_next


def _compiles(traceback: TracebackType | None) -> bool:
    while traceback is not None:
        if _file(traceback) == _BEGINNING:
            return True
        traceback = traceback.tb_next
    return False


def _file(traceback: TracebackType) -> str:
    """The file of a frame, from torch's folder on; ``""`` outside of torch."""
    _, torch, inside = traceback.tb_frame.f_code.co_filename.replace("\\", "/").rpartition("/torch/")
    return torch + inside
