"""The magics of this package, ``%%compile_regional`` and others: they parse, call the core and show the report."""

from __future__ import annotations

import argparse
import ast
import contextlib
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from IPython.core.error import UsageError as MagicUsageError
from IPython.core.magic import Magics, cell_magic, line_magic, magics_class, no_var_expand
from IPython.core.magic_arguments import argument, magic_arguments, parse_argstring

from .. import warmup
from ..errors import NbcompileError, UsageError
from ..interrupts import delivered_safely
from ..ongoing import working
from . import bridge, live
from .again import Again
from .choices import DYNAMIC
from .idle import WhileIdle
from .live import Live
from .lookup import evaluate_model, evaluate_step, is_compiled, model_in_body, only_model, unquote
from .step import Step

if TYPE_CHECKING:
    from torch.nn import Module

    from ..report import Report
    from ..sweep import Sweep

_EXAMPLES = {
    "--options": '{"max_autotune": True}',
    "--space": '{"strategy": ["eager", "regional"]}',
    "--models": '{"mine": factory}',
}
_LINE_MAGICS = ("nbcompile", "compile_sweep")
_COMMANDS = {
    "panel": "controls to compile, compare, tune and take back, in the notebook",
    "plan": "which parts of the model would be compiled, and why; compiles nothing",
    "report": "what compiled so far, how long it took, why again, what fell back to eager",
    "restore": "make the model as if it had never been compiled",
    "marks": "on or off: let each cell in which a model is compiled again say so, and why",
    "doctor": "check what compiling needs: torch, the compiler, the cache, packages",
}


def _output_arguments(magic: Any) -> Any:
    """The options of every cell magic that shows a report."""
    options = (
        argument("-q", dest="quiet", action="store_true", help="Quiet: show nothing."),
        argument("-o", dest="output", action="store_true", help="Return the Report, as the cell's result."),
        argument("-v", dest="verbose", action="store_true", help="Show more: all tables as text below the figure."),
        argument("--html", metavar="FILE", help="Also write the report to FILE, a web page without any script."),
        argument("--overwrite", action="store_true", help="Let --html replace a file that exists."),
    )
    for option in reversed(options):  # as decorators written one below the other are applied
        magic = option(magic)
    return magic


@magics_class
class NbcompileMagics(Magics):
    """The magics of this package. ``%%compile_regional?``, and so on, show their manuals."""

    shell: Any  # IPython declares it optional; a registered magic always has one
    again: Again  # set by load()
    idle: WhileIdle | None = None

    @no_var_expand
    @cell_magic
    @magic_arguments("%compile_regional")  # a cell magic: the usage line of IPython's manual adds only one %
    @argument(
        "model",
        nargs="?",
        metavar="MODEL",
        help="""The model to compile: a variable or any expression that gives a torch.nn.Module; put one with spaces
        in quotes. Left out: the one model that the cell's body uses.""",
    )
    @argument(
        "--backend",
        metavar="NAME",
        help="""The compiler: a name from torch.compiler.list_backends(exclude_tags=()), or a variable that holds a
        callable. Default: inductor.""",
    )
    @argument("--mode", metavar="NAME", help="A key of torch._inductor.list_mode_options(), such as max-autotune.")
    @argument(
        "--fullgraph",
        action="store_true",
        help="Fail where the compiler would have to return to Python inside a block.",
    )
    @argument(
        "--dynamic",
        choices=tuple(DYNAMIC),
        default="auto",
        help="Compile for sizes that change: true, false, or auto: once a size has changed. Default: auto.",
    )
    @argument(
        "--options",
        metavar="DICT",
        help="""Options of the backend, a dictionary in Python or JSON, in quotes if it has spaces:
        --options '{"max_autotune": True}', or a variable that holds one. Not together with --mode.""",
    )
    @argument(
        "--rest",
        choices=("auto", "compile", "eager"),
        default="auto",
        help="What to do with the parts outside the repeated blocks. Default: auto: compile them where it pays.",
    )
    @argument(
        "--cuda-graph",
        action="store_true",
        help="""Record the whole step as a CUDA graph and replay it: for calls without gradients whose shapes come
        again. Where that cannot be, the model runs as without it and the report says why.""",
    )
    @argument(
        "--background",
        action="store_true",
        help="""Do not wait for the compiler: the body runs once, eager, and a process of its own compiles beside the
        cells that follow. Blocks go over to compiled code between two steps. Nothing is measured.""",
    )
    @argument(
        "--compare",
        metavar="NAMES",
        default="eager",
        help="""What to measure beside regional compilation, separated by commas: eager, full, hierarchical, or
        none. Compiling the full model can take minutes. Without eager there is no speed-up to tell. Default: eager.""",
    )
    @argument(
        "--check",
        choices=("regions",),
        help="""regions: hold each block against eager, forward and gradients, on the inputs that it really received,
        and name the first that drifts. Takes one more run of the cell, with each block called three times.""",
    )
    @argument(
        "-n",
        dest="calls",
        type=int,
        metavar="CALLS",
        help="Calls per timed round. Default: chosen automatically.",
    )
    @argument("-r", dest="rounds", type=int, metavar="ROUNDS", help="Timed rounds. Default: 8, up to 12 to decide.")
    @_output_arguments
    def compile_regional(self, line: str, cell: str) -> Report | None:
        """Compile a model block by block, run the cell's body with it, and show what it was worth.

        The body is one step: it is run many times, compiled and for comparison uncompiled, and timed; as with
        %timeit, each run takes effect, so a training step trains. What it assigns stays, as in any cell, and the model
        stays compiled afterwards (%nbcompile restore takes it back; %nbcompile report shows the figures again).
        The last value that it computes is compared with that of the uncompiled model.

            %%compile_regional model
            with torch.no_grad():
                out = model(**batch)
        """
        __tracebackhide__ = True  # a traceback is about the user's cell
        with _plain_errors():
            args = _parse(self.compile_regional, line)
            settings = self._settings(args)
            page = _writable(args.html, args.overwrite)
            step, model = self._step_and_model(args, cell, "%%compile_regional MODEL")
        return self._shown(
            "compile", args, page, step, model, lambda output: self._measure(model, step, args, settings, output)
        )

    @no_var_expand
    @cell_magic
    @magic_arguments("%tune")
    @argument(
        "model",
        nargs="?",
        metavar="MODEL",
        help="""The model to tune: a variable or any expression that gives a torch.nn.Module; put one with spaces in
        quotes. Left out: the one model that the cell's body uses.""",
    )
    @argument(
        "--calls",
        type=int,
        metavar="N",
        default=1000,
        help="How often the body will run in all: what compiling costs has to be won back within it. Default: 1000.",
    )
    @argument(
        "--budget",
        type=float,
        metavar="SECONDS",
        default=180.0,
        help="How long tuning may take; a compile that has begun is not cut short. Default: 180.",
    )
    @argument(
        "--space",
        metavar="DICT",
        help="""What to try: a dictionary from strategy, backend, mode, dynamic and rest to lists of values, in quotes
        if it has spaces: --space '{"strategy": ["regional"]}', or a variable that holds one. Default: what can gain
        something on this machine.""",
    )
    @argument(
        "--resume", action="store_true", help="Go on with the latest tuning of this model; it may have been stopped."
    )
    @argument("--apply", action="store_true", help="Leave the model compiled with what is recommended.")
    @_output_arguments
    def tune(self, line: str, cell: str) -> Report | None:
        """Find out how a model is best compiled, or whether at all, for a number of runs of the cell's body.

        The body is one step: it is run many times under each setting, and each run takes effect. The model is left as
        it was, but for --apply. An interrupt shows what was measured until then; --resume goes on from there, and
        %nbcompile report shows it again. With -o, report.best(calls=N) ranks anew without measuring.

            %%tune model --calls 1000 --budget 180
            with torch.no_grad():
                out = model(**batch)
        """
        __tracebackhide__ = True
        with _plain_errors():
            args = _parse(self.tune, line)
            page = _writable(args.html, args.overwrite)
            space = None if args.space is None else _dictionary("--space", args.space, self.shell.user_ns)
            step, model = self._step_and_model(args, cell, "%%tune MODEL")
        return self._shown("tune", args, page, step, model, lambda output: self._tune(model, step, args, space, output))

    def _tune(
        self, model: Module, step: Step, args: argparse.Namespace, space: dict[str, Any] | None, output: Live
    ) -> Report:
        from ..compiler import latest_tuning
        from ..tune import tune

        resume = latest_tuning(model) if args.resume else None
        if args.resume and resume is None:
            raise UsageError("there is no tuning of this model to go on with; leave --resume out")
        report = tune(model, step, args.calls, args.budget, space, resume=resume, progress=output.progress)
        if args.apply:
            report.apply(model)
        return report

    @no_var_expand
    @line_magic
    @magic_arguments()
    @argument(
        "--preset",
        metavar="NAME",
        help="""cpu: two small Llama shapes, for a machine of two cores. document: Llama 1B to 13B in half precision on
        a CUDA device.""",
    )
    @argument(
        "--models",
        metavar="NAME",
        help="""In place of a preset, your own models: a variable that holds a dictionary from names to functions, each
        called with a batch size, which give a model and the keyword arguments of one call.""",
    )
    @argument("--batches", metavar="N,N", help="Batch sizes, separated by commas. Default: the preset's; else 1.")
    @argument(
        "--tasks",
        metavar="NAMES",
        help="Any of inference, forward and training, separated by commas. Default: the preset's.",
    )
    @argument("--strategies", metavar="NAMES", help="What is held against eager, separated by commas. Default: all.")
    @argument("--backend", metavar="NAME", help="The compiler. Default: inductor.")
    @argument("--mode", metavar="NAME", help="A key of torch._inductor.list_mode_options().")
    @argument("-r", dest="rounds", type=int, metavar="ROUNDS", default=5, help="Timed rounds. Default: 5.")
    @argument(
        "--folder",
        metavar="FOLDER",
        help="Where each finished cell of the sweep is written at once, so that a later kernel goes on with it.",
    )
    @argument("--afresh", action="store_true", help="Measure anew what is measured already.")
    @_output_arguments
    def compile_sweep(self, line: str) -> Sweep | None:
        """Run the benchmark of Accelerate's guide here: strategies over model sizes and batch sizes.

        Each strategy compiles in a process of its own with an empty cache. The output shows how far it is, and then
        chart, table and whether these figures bear the guide's conclusions out. After an interrupt the same line goes
        on where it was stopped. Run nothing beside it.

            %compile_sweep --preset cpu
        """
        __tracebackhide__ = True
        with _plain_errors():
            args = _parse(self.compile_sweep, line)
            page = _writable(args.html, args.overwrite)
            keywords = self._sweep_keywords(args)
        from ..sweep import sweep

        output = Live(self.shell, quiet=args.quiet)
        try:
            with output.working, delivered_safely(), working("sweep", output.progress):
                result = sweep(**keywords, progress=output.progress)
        except BaseException as error:
            notes = getattr(error, "__notes__", [])
            output.end(f"stopped: {notes[-1]}" if isinstance(error, KeyboardInterrupt) and notes else "stopped")
            if isinstance(error, NbcompileError):
                raise MagicUsageError(str(error)) from None
            raise
        self._conclude(args, page, output, result)
        return result if args.output else None

    def _sweep_keywords(self, args: argparse.Namespace) -> dict[str, Any]:
        """The keywords for the core, which says what is wrong with them."""
        keywords: dict[str, Any] = {"rounds": args.rounds, "resume": not args.afresh}
        for name in ("preset", "backend", "mode"):
            keywords[name] = None if (value := getattr(args, name)) is None else unquote(value)
        for name in ("tasks", "strategies", "batches"):
            given = getattr(args, name)
            keywords[name] = None if given is None else [part.strip() for part in unquote(given).split(",")]
        if keywords["batches"] is not None:
            if not all(batch.isdecimal() for batch in keywords["batches"]):
                raise UsageError(f"--batches takes whole numbers from 1 on, separated by commas, not {args.batches!r}")
            keywords["batches"] = [int(batch) for batch in keywords["batches"]]
        if args.models is not None:
            keywords["models"] = _dictionary("--models", args.models, self.shell.user_ns)
        if args.folder is not None:
            keywords["folder"] = os.path.expanduser(unquote(args.folder))
        return keywords

    def _step_and_model(self, args: argparse.Namespace, cell: str, usage: str) -> tuple[Step, Module]:
        """The cell's body as a step, and the model that is meant."""
        step = Step(self.shell, cell)
        if args.model is None:
            return step, model_in_body(step.names, self.shell.user_ns, usage)
        return step, evaluate_model(args.model, self.shell)

    def _shown(
        self,
        kind: str,
        args: argparse.Namespace,
        page: Path | None,
        step: Step,
        model: Module,
        measure: Callable[[Live], Report],
    ) -> Report | None:
        """Measure, and show the report in the cell's one output; if that is cut short, what there is of it."""
        __tracebackhide__ = True
        output = Live(self.shell, quiet=args.quiet)
        before = _known(model)
        try:
            with output.working, delivered_safely(), working(kind, output.progress):
                report = measure(output)
        except BaseException as error:
            _show_so_far(model, before, error, output)
            _raise_from_cell(error, step)
        self._conclude(args, page, output, report)
        return report if args.output else None

    def _conclude(self, args: argparse.Namespace, page: Path | None, output: Live, found: Report | Sweep) -> None:
        """Show what was found, as the options say."""
        __tracebackhide__ = True
        if args.output:
            output.end(repr(found))  # it is shown as the cell's result
        else:
            output.report(found)
        if args.verbose and not args.quiet and "text/html" in self.shell.display_formatter.active_types:
            print(found.to_text())  # a terminal has shown that already
        if page is not None:
            with _plain_errors():
                _write_page(found, page, args.overwrite)

    def _measure(
        self, model: Module, step: Step, args: argparse.Namespace, settings: dict[str, Any], output: Live
    ) -> Report:
        if args.background:
            return self._begin_in_background(model, step, args, settings, output)
        from ..compare import compare

        return compare(
            model,
            step,
            _strategies(args.compare),
            **settings,
            rounds=args.rounds,
            calls=args.calls,
            keep="regional",
            check=args.check,
            progress=output.progress,
        )

    def _begin_in_background(
        self, model: Module, step: Step, args: argparse.Namespace, settings: dict[str, Any], output: Live
    ) -> Report:
        """Run the cell once, eager, while the helper gets ready. What the model is is settled when the body has run."""
        from ..compiler import compile_regions, replacing, report

        with replacing(model):
            compile_regions(model, background=True, **settings)
            output.progress("regional: the step runs eager, its code is compiled beside it")
            step()
        return report(model)

    def _settings(self, args: argparse.Namespace) -> dict[str, Any]:
        """The keywords for the core; what was not given is left out, so that the core's defaults hold."""
        if args.calls is not None and args.calls < 1:
            raise UsageError(f"-n takes a number of calls, 1 or more, not {args.calls}")
        if args.rounds is not None and args.rounds < 1:
            raise UsageError(f"-r takes a number of rounds, 1 or more, not {args.rounds}")
        settings: dict[str, Any] = {"rest": args.rest, "dynamic": DYNAMIC[args.dynamic]}
        if args.fullgraph:
            settings["fullgraph"] = True
        if args.cuda_graph:
            settings["cuda_graph"] = True
        if args.backend is not None:
            value = self.shell.user_ns.get(unquote(args.backend))
            settings["backend"] = value if callable(value) else unquote(args.backend)
        if args.mode is not None:
            settings["mode"] = unquote(args.mode)
        if args.options is not None:
            settings["options"] = _dictionary("--options", args.options, self.shell.user_ns)
        return settings

    @no_var_expand
    @line_magic
    @magic_arguments()
    @argument("command", nargs="?", metavar="COMMAND", help=f"One of {', '.join(_COMMANDS)}.")
    @argument(
        "model",
        nargs="?",
        metavar="MODEL",
        help="""A variable or an expression that gives a torch.nn.Module. Left out: the only model there is; for report
        and restore, the only one that was compiled. For marks: on or off.""",
    )
    @argument(
        "--rest",
        choices=("auto", "compile", "eager"),
        default="auto",
        help="For plan: what to do with the parts outside the repeated blocks. Default: auto.",
    )
    @argument(
        "step",
        nargs="?",
        metavar="STEP",
        help="""For panel: a function that runs the model once, or an expression that gives one. Left out: the panel
        compiles and restores, and cannot measure.""",
    )
    def nbcompile(self, line: str) -> None:
        """Look at a model's compilation, take it back, or check the environment.

        %nbcompile plan MODEL       which parts would be compiled, and why; compiles nothing
        %nbcompile report MODEL     what compiled so far, and how it ran
        %nbcompile panel MODEL STEP controls for all of it
        %nbcompile restore MODEL    as if never compiled
        %nbcompile marks on         let cells in which a model is compiled again say so; off: no longer
        %nbcompile doctor           check what compiling needs
        """
        with _plain_errors():
            args = _parse(self.nbcompile, line)
            if args.command is None:
                print(_short_help())
            elif args.command not in _COMMANDS:
                raise UsageError(f"there is no command {args.command!r}. Those that exist: {', '.join(_COMMANDS)}")
            elif args.step is not None and args.command != "panel":
                raise UsageError(f"{args.command} takes one model and nothing else: leave {args.step!r} out")
            else:
                getattr(self, f"_{args.command}")(args)

    def _panel(self, args: argparse.Namespace) -> None:
        from .panel import make

        model = self._model(args)
        named = [None if word is None else unquote(word) for word in (args.model, args.step)]
        step = None if args.step is None else evaluate_step(args.step, self.shell)
        make(model, step, shell=self.shell, model_name=named[0], step_name=named[1])._ipython_display_()

    def _plan(self, args: argparse.Namespace) -> None:
        from ..regions import plan_regions

        self._show(plan_regions(self._model(args), rest=args.rest))

    def _report(self, args: argparse.Namespace) -> None:
        from ..compiler import report

        self._show(report(self._model(args, prefer_compiled=True)))

    def _restore(self, args: argparse.Namespace) -> None:
        from ..compiler import restore

        model = self._model(args, prefer_compiled=True)
        restore(model)
        print(f"{type(model).__name__} runs uncompiled again")

    def _marks(self, args: argparse.Namespace) -> None:
        if args.model not in ("on", "off"):
            said = "nothing" if args.model is None else repr(args.model)
            raise UsageError(f"marks takes on or off, not {said}: %nbcompile marks on")
        self.again.switch(args.model == "on")

    def _doctor(self, args: argparse.Namespace) -> None:
        from ..doctor import clean_cache, examine

        if args.model == "clean":
            print(clean_cache())
            return
        if args.model is not None:
            raise UsageError(
                f"doctor checks the environment, not a model: leave {args.model!r} out, or say `doctor clean`, which "
                "empties the compiler's cache folder"
            )
        self._show(examine())

    def _model(self, args: argparse.Namespace, *, prefer_compiled: bool = False) -> Module:
        if args.model is not None:
            return evaluate_model(args.model, self.shell)
        usage = f"%nbcompile {args.command} MODEL"
        return only_model(self.shell.user_ns, usage, prefer=is_compiled if prefer_compiled else None)

    def _show(self, value: object) -> None:
        data, metadata = self.shell.display_formatter.format(value)
        data["text/plain"] = str(value)  # the table, where repr() is one line
        self.shell.display_pub.publish(data=data, metadata=metadata)


def load(shell: Any) -> None:
    """Register the magics with ``shell``; in a kernel, begin what the first compile would wait for."""
    magics = NbcompileMagics(shell)
    magics.again = Again(shell, live.install(shell))
    shell.register_magics(magics)
    bridge.load(shell)
    if getattr(shell, "kernel", None) is not None and not warmup.switched_off():
        with contextlib.suppress(NbcompileError):  # what is wrong with the cache folder, the first compile says
            warmup.warm_up()
            magics.idle = WhileIdle(shell)


def unload(shell: Any) -> None:
    """Remove from ``shell`` what :func:`load` registered; a magic that has replaced one of ours since stays."""
    bridge.unload()
    live.uninstall(shell)
    manager = shell.magics_manager
    instance = manager.registry.pop(NbcompileMagics.__name__, None)
    if isinstance(instance, NbcompileMagics):
        instance.again.switch(False)
        if instance.idle is not None:
            instance.idle.forget()
    for kind, names in NbcompileMagics.magics.items():
        for name in names:
            if getattr(manager.magics[kind].get(name), "__self__", None) is instance:
                manager.magics[kind].pop(name, None)


@contextlib.contextmanager
def _plain_errors() -> Iterator[None]:
    """Errors that are about how something was asked for become IPython's, which shows them without a traceback."""
    __tracebackhide__ = True
    try:
        yield
    except NbcompileError as error:
        raise MagicUsageError(str(error)) from None


def _parse(magic: Any, line: str) -> argparse.Namespace:
    name = f"{'%' if magic.__name__ in _LINE_MAGICS else '%%'}{magic.__name__}"
    try:
        args: argparse.Namespace = parse_argstring(magic, line)
    except (MagicUsageError, ValueError) as error:  # ValueError: a quote that is never closed
        raise UsageError(f"{error}. {name}? shows the options that exist") from None
    return args


def _strategies(names: str) -> tuple[str, ...]:
    beside = [name.strip() for name in unquote(names).split(",")]
    beside = [name for name in beside if name not in ("", "none", "regional")]
    first = ["eager"] if "eager" in beside else []
    return tuple(dict.fromkeys([*first, "regional", *beside]))


def _dictionary(option: str, text: str, namespace: dict[str, Any]) -> dict[str, Any]:
    text = unquote(text)
    value = namespace.get(text)
    if value is None:
        for read in (ast.literal_eval, json.loads):  # nothing is run: these only read values
            try:
                value = read(text)
                break
            except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
                continue
    if not isinstance(value, dict):
        raise UsageError(
            f"{option} takes a dictionary in Python or JSON, or a variable that holds one, not {text!r}; put it in "
            f"quotes if it has spaces: {option} '{_EXAMPLES[option]}'"
        )
    return value


def _writable(file: str | None, overwrite: bool) -> Path | None:
    """The file to write to, refused before anything is measured rather than minutes later."""
    if file is None:
        return None
    path = Path(os.path.expanduser(unquote(file)))
    if path.is_dir() or not path.parent.is_dir():
        wrong = "is a folder" if path.is_dir() else f"cannot be written: there is no folder {str(path.parent)!r}"
        raise UsageError(f"--html {path} {wrong}; name a file in a folder that exists")
    if path.exists() and not overwrite:
        raise UsageError(f"{path} exists already; add --overwrite to replace it, or choose another name")
    return path


def _write_page(report: Report | Sweep, path: Path, overwrite: bool) -> None:
    try:
        report.to_html(path, overwrite=overwrite)
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror or error}; name another file") from None


def _known(model: Module) -> tuple[object, object]:
    """The compilation and the tuning that a model has at present, only to tell them from later ones."""
    from ..compiler import current, latest_tuning

    return current(model), latest_tuning(model)


def _show_so_far(model: Module, before: tuple[object, object], error: BaseException, output: Live) -> None:
    """Show what a cell that was cut short has compiled or measured, if anything; never what an earlier cell has."""
    from ..compiler import latest_tuning, report

    compilation, tuning = _known(model)
    tuned = latest_tuning(model)
    if tuned is not None and tuning is not before[1]:
        output.report(tuned)
        return
    if compilation is before[0]:
        output.end("stopped")
        return
    if not isinstance(error, UsageError):  # those are raised before anything happens
        # Nothing may be compiled, which is a UsageError; and no other error in here may take the place of the user's.
        with contextlib.suppress(Exception):
            output.report(report(model))
            return
    output.end("stopped")


def _raise_from_cell(error: BaseException, step: Step) -> NoReturn:
    """Raise what the user's own line raised, without the frames of the code that called it."""
    __tracebackhide__ = True
    if isinstance(error, NbcompileError):
        raise MagicUsageError(str(error)) from None
    traceback = step.traceback_of(error)
    raise error if traceback is None else error.with_traceback(traceback)


def _short_help() -> str:
    lines = {f"%nbcompile {name}": text for name, text in _COMMANDS.items()}
    lines["%%compile_regional?"] = "the manual of the cell magic that compiles and compares"
    lines["%%tune?"] = "the manual of the cell magic that finds the best setting"
    lines["%compile_sweep?"] = "the manual of the benchmark over model sizes and batch sizes"
    width = max(map(len, lines))
    return "\n".join(f"{name:<{width}}  {text}" for name, text in lines.items())
