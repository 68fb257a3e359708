"""The errors and warnings a user of this package can meet."""


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


class ReportError(NbcompileError, ValueError):
    """A saved report cannot be read: it is broken, or of a schema that this version does not know."""


class CompilationWarning(UserWarning):
    """A region runs uncompiled, or its compilation cost more than it had to; the message says which and why."""
