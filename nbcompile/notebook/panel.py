"""The way to a panel, and what its buttons do: no widgets here, so that it can be told what is missing for them."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from ..errors import NbcompileError, UsageError
from ..render.units import clean
from .choices import Choices, Names, Tree
from .lookup import modules_in

if TYPE_CHECKING:
    from torch import nn

    from ..progress import Progress
    from ..report import Report
    from .controls import Panel


#: What to say of a compile without a step.
PREPARED = "The model is prepared; it compiles at its next call."
_LONGEST_MESSAGE = 600  # characters of a failure's first line


def restored(class_name: str) -> str:
    """What to say of a model that was restored."""
    return f"{class_name} runs eager again, as if it had never been compiled."


def failure_in_words(title: str, error: BaseException) -> tuple[str, str]:
    """What to say of work that failed, in one sentence; and the whole message if that is longer."""
    text, as_before = str(error).strip(), "The model is as it was before."
    if isinstance(error, KeyboardInterrupt):
        return f"{title} was interrupted. {as_before}", ""
    if isinstance(error, NbcompileError):
        return f"{title} failed: {text} — {as_before}", ""
    first = f"{type(error).__name__}: {text.splitlines()[0] if text else 'no message'}"
    long = len(first) > _LONGEST_MESSAGE or "\n" in text
    return f"{title} failed. {clean(first, _LONGEST_MESSAGE)} — {as_before}", text * long


def panel(model: nn.Module, step: Callable[[], Any] | None = None) -> Panel:
    """A panel of controls for a model, to be shown in a notebook: as the last expression of a cell, or by ``display``.

    Args:
        model: the model to compile, in place.
        step: runs the model once, as in ``lambda: model(**batch)``. Without it the panel can compile and restore, but
            not measure.

    Raises:
        UsageError: ``model`` is no module that can be compiled, ``step`` cannot be called, or there is no notebook.
    """
    return make(model, step)


def make(
    model: nn.Module,
    step: Callable[[], Any] | None = None,
    *,
    shell: Any = None,
    model_name: str | None = None,
    step_name: str | None = None,
) -> Panel:
    """A panel; the names are how the user's code calls model and step, looked up among the variables if left out."""
    missing = [name for name in ("IPython", "ipywidgets") if find_spec(name) is None]
    if missing:
        raise UsageError(f"a panel needs {' and '.join(missing)}: pip install 'nbcompile[notebook]'")
    from IPython import get_ipython

    from ..regions import check_model
    from .controls import Panel

    check_model(model)
    if step is not None and not callable(step):
        raise UsageError(
            "step is to be a function that runs the model once, such as lambda: model(**batch), "
            f"not {type(step).__name__}"
        )
    shell = shell if shell is not None else get_ipython()
    if shell is None:
        raise UsageError("a panel needs a notebook; in a program use nbcompile.compile_regions, compare and tune")
    found = names_in(shell.user_ns, model, step)
    return Panel(model, step, Names(model_name or found.model, step_name or found.step), shell)


def carry_out(
    action: str,
    model: nn.Module,
    choices: Choices,
    tree: Tree,
    step: Callable[[], Any] | None,
    progress: Progress,
    unfinished: Report | None = None,
) -> Report | None:
    """Do what the button for ``action`` says. If it fails, what was compiled before is on the model.

    Args:
        unfinished: a tuning that was interrupted; another one goes on from it, as long as it fits the model.

    Returns:
        The report of what was compiled or measured; ``None`` for restore.
    """
    keywords = choices.keywords(action, tree)
    if action == "restore":
        from ..compiler import restore

        restore(model)
        return None
    if action == "compile":
        return _compile(model, choices.strategy, keywords, step, progress)
    assert step is not None  # or the button would be disabled
    if action == "compare":
        from ..compare import compare

        return compare(model, step, ["eager", *choices.compare], progress=progress, **keywords)
    from ..tune import misfit, tune

    resume = None if unfinished is None or misfit(model, unfinished) else unfinished
    return tune(model, step, resume=resume, progress=progress, **keywords)


def known_report(model: nn.Module) -> Report | None:
    """What is known of a model that was compared or tuned already, ``None`` if nothing is."""
    from ..compiler import current, latest_tuning, report

    return None if current(model) is None and latest_tuning(model) is None else report(model)


def _compile(
    model: nn.Module,
    strategy: str,
    keywords: dict[str, Any],
    step: Callable[[], Any] | None,
    progress: Progress,
) -> Report:
    from .. import describe
    from ..compiler import compile_model, compile_regions, current, replacing, report

    with replacing(model):
        progress(f"{strategy}: preparing")
        (compile_regions if strategy == "regional" else compile_model)(model, **keywords)
        if step is not None:
            what = "eager, its code is compiled beside it" if keywords.get("background") else "compiling"
            progress(f"{strategy}: first call ({what})")
            if progress.seen:
                compilation = current(model)
                assert compilation is not None  # just made
                progress.compiling(describe.compiling(compilation))
            step()
            progress.compiled()
            if keywords.get("background"):
                return report(model)
            progress(f"{strategy}: second call")
            step()  # may compile once more, as gradients or sizes turn out otherwise
        return report(model)


def names_in(namespace: dict[str, Any], model: nn.Module, step: object) -> Names:
    """How the user's own code names the model and the step, as far as variables tell."""
    models = modules_in(namespace)
    name = next((name for name, value in models.items() if value is model), "model")
    found = (key for key, value in namespace.items() if step is not None and value is step and not key.startswith("_"))
    return Names(name, next(found, ""))
