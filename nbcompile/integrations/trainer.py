"""A callback for transformers' ``Trainer`` that compiles its model block by block, and reports.

>>> trainer = Trainer(model=model, args=arguments, train_dataset=data, callbacks=[CompileCallback()])
>>> trainer.train()
"""

from __future__ import annotations

import warnings
from typing import Any

from .. import compiler
from ..errors import CompilationWarning
from ..plugin import TorchDynamoPlugin
from ..ranks import gather_report
from ..report import Report

try:
    from transformers import TrainerCallback
except ImportError as _error:
    raise ImportError(f"CompileCallback needs transformers: run `pip install transformers` ({_error})") from _error


class CompileCallback(TrainerCallback):
    """Compiles the model when the training begins, once the trainer has wrapped it for its way of training.

    Beside ``TrainingArguments(torch_compile=True)`` it does nothing but warn: the trainer then compiles the whole
    model, and that is left as it is.

    Args:
        plugin: the settings; ``use_regional_compilation=False`` compiles the model as a whole.
        rest: what becomes of the parts outside the blocks, see :func:`nbcompile.compile_regions`.

    Attributes:
        report: of all ranks, once the training has ended; ``None`` before that and on every rank but the first.

    Raises:
        UsageError: when the training begins; what :func:`nbcompile.compile_regions` raises.
    """

    def __init__(self, plugin: TorchDynamoPlugin | None = None, *, rest: str = "auto") -> None:
        self.plugin = TorchDynamoPlugin() if plugin is None else plugin
        self.rest = rest
        self.report: Report | None = None

    def on_train_begin(self, args: Any, state: Any, control: Any, model: Any = None, **others: Any) -> None:
        """Compile the model in place."""
        if args.torch_compile:
            warnings.warn(
                "TrainingArguments(torch_compile=True) compiles the whole model; CompileCallback leaves it at that. "
                "Leave torch_compile out to have it compiled block by block",
                CompilationWarning,
                stacklevel=2,
            )
        elif self.plugin.use_regional_compilation:
            compiler.compile_regions(model, plugin=self.plugin, rest=self.rest)
        else:
            compiler.compile_model(model, plugin=self.plugin)

    def on_train_end(self, args: Any, state: Any, control: Any, model: Any = None, **others: Any) -> None:
        """Gather the report, from all ranks."""
        if not args.torch_compile:
            self.report = gather_report(model)
