"""The benchmark of Accelerate's compilation guide, on this machine: strategies over model sizes and batch sizes."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from . import conclusions, warmup
from .cellrun import Run
from .cells import PRESETS, TASKS, Cell, Factory, digest, free_bytes, given_cells, machine, preset_cells
from .conclusions import Conclusion
from .errors import ReportError, UsageError
from .plugin import TorchDynamoPlugin
from .progress import Progress, watched
from .report import FILE_ENDING, Report, load_report, write_file
from .space import STRATEGIES

#: Finished cells of sweeps that were given no folder: a call that was interrupted goes on when it is made again.
_finished: dict[str, Report] = {}

#: What is measured of a user's own models unless they say something else.
_TASKS = ("inference", "training")


@dataclass
class Sweep:
    """What a sweep has measured. It shows itself in a notebook; ``print`` shows its table and conclusions.

    Attributes:
        reports: one for each cell, in the order in which they were measured.
        notes: what was left out, and why.
    """

    reports: list[Report] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def conclusions(self) -> list[Conclusion]:
        """The five conclusions of the guide, each with this machine's figures and whether they bear it out."""
        return conclusions.conclusions(self.reports)

    def table(self) -> str:
        """Every figure, a row for each cell and strategy, as text."""
        from .render.sweep import render_table

        return render_table(self.reports)

    def to_text(self) -> str:
        """The table, the conclusions and the notes as text."""
        from .render.sweep import render_text

        return render_text(self.reports, self.conclusions, self.notes)

    def to_html(self, file: str | os.PathLike[str] | None = None, *, overwrite: bool = False) -> str | Path:
        """All of it as HTML without any script, or, given a file, its path once a whole page is written to it.

        Raises:
            UsageError: the file exists and ``overwrite`` is false.
        """
        from .render.sweep import render_html, render_page

        if file is None:
            return render_html(self.reports, self.conclusions, self.notes)
        page = render_page(self.reports, self.conclusions, self.notes)
        return write_file(Path(file), page, overwrite=overwrite)

    def figure(self) -> Any:
        """Compile time and speed of every cell as one ``plotly.graph_objects.Figure``.

        Raises:
            UsageError: plotly is missing, or nothing was measured.
        """
        from .render.sweep_charts import figure

        return figure(self.reports, self.conclusions)

    def save(self, folder: str | os.PathLike[str], *, overwrite: bool = False) -> Path:
        """Write each report to a file of its own in ``folder``, which :meth:`load` and :func:`sweep` read again.

        Raises:
            UsageError: one of the files exists and ``overwrite`` is false. Those before it are written.
        """
        path = Path(folder)
        path.mkdir(parents=True, exist_ok=True)
        for report in self.reports:
            report.save(path / _file_name(report.settings["sweep"]), overwrite=overwrite)
        return path

    @classmethod
    def load(cls, folder: str | os.PathLike[str]) -> Sweep:
        """Read what :meth:`save` or :func:`sweep` has written to a folder, here or elsewhere.

        Raises:
            UsageError: there is no cell of a sweep in it, or there are some of more than one machine or setting.
            ReportError: a file is damaged.
        """
        found = [load_report(file) for file in sorted(Path(folder).glob(f"*{FILE_ENDING}"))]
        reports = [report for report in found if _is_cell(report)]
        if not reports:
            raise UsageError(f"{folder} holds no cell of a sweep: sweep(..., folder=...) and Sweep.save write them")
        kinds = {digest(_setting(report)) for report in reports}
        if len(kinds) > 1:
            raise UsageError(
                f"{folder} holds cells of {len(kinds)} machines or settings, of which none can stand beside another; "
                "move them to folders of their own, or make the call of sweep that wrote them: it chooses its own"
            )
        order = sorted(reports, key=lambda r: (r.model.get("parameters") or 0, *_place(r.settings["sweep"])))
        return cls(order)

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        from .render.sweep import mime_bundle

        return mime_bundle(self.reports, self.conclusions, self.notes)

    def __str__(self) -> str:
        return self.to_text()

    def __repr__(self) -> str:
        return f"<Sweep of {len(self.reports)} cells>"


def sweep(
    preset: str | None = None,
    *,
    models: Mapping[str, Factory] | None = None,
    batches: Sequence[int] | None = None,
    tasks: Sequence[str] | None = None,
    strategies: Sequence[str] | None = None,
    rounds: int = 5,
    folder: str | os.PathLike[str] | None = None,
    resume: bool = True,
    backend: str | None = None,
    mode: str | None = None,
    dynamic: bool | None = None,
    timeout: float = 1800.0,
    progress: Callable[[str], None] | None = None,
) -> Sweep:
    """Measure cold start and steady state of all strategies over model sizes and batch sizes.

    A **cell** is a model at a batch size, doing one thing. In each cell every strategy has a process of its own with an
    empty compiler cache. What the compiler does once a process is done before its cold start and told apart, as
    :func:`nbcompile.compare` does. Steady rounds of all strategies are interleaved: the processes stay alive and are
    asked for a round in turn. So none runs in a process that another strategy's compile has warmed or filled, and a
    drift of the machine hits all alike. Where a device has no room for that, each strategy's rounds are interleaved
    with eager ones in its own process, and the report says so. Run nothing beside it.

    Args:
        preset: ``"cpu"``: two small Llama shapes in float32, a forward under ``no_grad`` and a training step, at batch
            1 and 4, for a machine of two cores. ``"document"``: the shapes of Llama 1B, 3B, 8B and 13B in
            float16 on a CUDA device, batch 1 and 4, sequence 128, a forward that records gradients: what the table
            measures that accelerate has published. The weights are random.
        models: your own, in place of a preset: by name a function that is called with a batch size and gives the model
            and the keyword arguments of one call. It is called in this process, and what it gives is pickled. A class
            that is defined in the notebook itself cannot be handed to another process.
        batches: batch sizes; by default the preset's.
        tasks: any of ``"inference"`` (forward under ``no_grad``), ``"forward"`` (the same, recording gradients) and
            ``"training"`` (forward, loss and backward, without an optimizer); by default the preset's, and for your own
            models inference and training.
        strategies: those that are held against eager; by default all that :func:`nbcompile.compare` has.
        rounds: timed rounds of half a second for each strategy.
        folder: where each finished cell is written as a report, at once. The same call goes on with what is there, and
            leaves alone what another machine, other versions or other settings have left. Without it, finished cells
            are kept for the life of this process.
        resume: whether to take finished cells as they are. A strategy that had failed is not tried again either.
        backend, mode, dynamic: as for :func:`nbcompile.compile_regions`, the same for all strategies.
        timeout: seconds until a process that does not answer is given up.
        progress: called with a line of text as the work goes on.

    Returns:
        The figures of all cells. A strategy that fails, by lack of memory for one, is a line in its cell, and a cell
        for which the memory that is free cannot be enough is a note.

    Raises:
        UsageError: a wrong argument, or a preset whose device is not there.
        KeyboardInterrupt: the processes are ended; finished cells are kept.
    """
    settings = _settings(backend, mode, dynamic)
    names = _strategies(strategies)
    _check(preset, models, batches, tasks, rounds, timeout)
    with watched(progress, "sweep") as tell, tempfile.TemporaryDirectory(prefix="nbcompile-sweep-") as scratch:
        cells = list(_cells(preset, models, batches, tasks, Path(scratch)))
        work = _Work(names, settings, rounds, timeout, tell, None if folder is None else Path(folder), resume)
        try:
            return work.measure(cells)
        except KeyboardInterrupt as interrupt:
            interrupt.add_note(
                f"{work.done} of {len(cells)} cells are finished and kept; the same call goes on with the next one"
            )
            raise


class _Work:
    """The cells of one sweep, one after the other."""

    def __init__(
        self,
        strategies: Sequence[str],
        settings: Mapping[str, Any],
        rounds: int,
        timeout: float,
        tell: Progress,
        folder: Path | None,
        resume: bool,
    ) -> None:
        self._strategies, self._settings, self._rounds = strategies, settings, rounds
        self._timeout, self._tell, self._folder, self._resume = timeout, tell, folder, resume
        self.done = 0
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)

    def measure(self, cells: Sequence[Cell]) -> Sweep:
        """Measure what is not there yet."""
        begun = warmup.latest()
        if begun is not None and begun.state == "running":  # it would take a core from the first cell
            self._tell("waiting for the compiler's start-up ahead of time")
            begun.wait()
        result = Sweep()
        for number, cell in enumerate(cells, 1):
            prefix, identity = f"[{number}/{len(cells)}] ", self._identity(cell)
            report = self._found(identity) if self._resume else None
            if report is not None:
                self._tell(f"{prefix}{cell.title}: measured before")
            elif (report := self._new(cell, identity, prefix, result.notes)) is None:
                continue
            result.reports.append(report)
            self.done += 1
        self._tell(f"{len(result.reports)} of {len(cells)} cells measured")
        return result

    def _new(self, cell: Cell, identity: dict[str, Any], prefix: str, notes: list[str]) -> Report | None:
        free = free_bytes(cell.device)
        if free is not None and cell.needed_bytes > free:
            left_out = (
                f"{cell.title}: left out, as it takes about {cell.needed_bytes / 1e9:.1f} GB of memory and "
                f"{free / 1e9:.1f} GB are free on {cell.device}"
            )
            self._tell(f"{prefix}{left_out}")
            notes.append(left_out)
            return None
        together = free is None or cell.needed_bytes * len(self._strategies) <= free
        run = Run(
            *(cell, self._strategies, self._settings, self._rounds, self._timeout, self._tell, prefix),
            together=together,
        )
        report = run.measure()
        report.settings = {**report.settings, "sweep": identity}
        self._keep(report, identity)
        return report

    def _identity(self, cell: Cell) -> dict[str, Any]:
        """All that the cell's figures depend on, as JSON."""
        return {
            "model": cell.model,
            "batch": cell.batch,
            "task": cell.task,
            "facts": dict(cell.facts),
            "strategies": list(self._strategies),
            "settings": dict(self._settings),
            "rounds": self._rounds,
            "machine": machine(cell.device),
        }

    def _found(self, identity: dict[str, Any]) -> Report | None:
        if self._folder is None:
            return _finished.get(digest(identity))
        try:
            report = load_report(self._folder / _file_name(identity))
        except (OSError, ReportError):  # not there yet, or not whole: it is measured, and the file replaced
            return None
        return report if report.settings.get("sweep") == identity else None

    def _keep(self, report: Report, identity: dict[str, Any]) -> None:
        if self._folder is None:
            _finished[digest(identity)] = report
        else:
            report.save(self._folder / _file_name(identity), overwrite=True)


def _cells(
    preset: str | None,
    models: Mapping[str, Factory] | None,
    batches: Sequence[int] | None,
    tasks: Sequence[str] | None,
    scratch: Path,
) -> Iterator[Cell]:
    if preset is not None:
        chosen = PRESETS[preset]
        if chosen.device == "cuda" and not torch.cuda.is_available():
            raise UsageError(
                f"the preset {preset!r} measures on a CUDA device, and torch {torch.__version__} finds none here; "
                "preset='cpu' is for a machine without one"
            )
        yield from preset_cells(
            replace(chosen, batches=tuple(batches or chosen.batches), tasks=tuple(tasks or chosen.tasks))
        )
        return
    for name, factory in (models or {}).items():
        built = [given_cells(name, factory, batch, tuple(tasks or _TASKS), scratch) for batch in batches or (1,)]
        yield from (cell for alike in zip(*built, strict=True) for cell in alike)


def _settings(backend: str | None, mode: str | None, dynamic: bool | None) -> dict[str, Any]:
    """The settings as JSON, refused as a compilation would refuse them."""
    if backend is not None and not isinstance(backend, str):
        raise UsageError(
            f"a sweep takes the name of a backend, which processes of their own can be told, not {backend!r}"
        )
    TorchDynamoPlugin(backend=backend, mode=mode, dynamic=dynamic)
    given = {"backend": backend, "mode": mode, "dynamic": dynamic}
    return {name: value for name, value in given.items() if value is not None}


def _strategies(strategies: Sequence[str] | None) -> list[str]:
    """Eager, which all are held against, and those that are asked for."""
    known = STRATEGIES
    if strategies is None:
        strategies = known
    if isinstance(strategies, str) or not strategies:
        raise UsageError(f"strategies takes a list of names out of {', '.join(known)}, not {strategies!r}")
    for name in strategies:
        if name not in known:
            raise UsageError(f"there is no strategy {name!r}; those that exist: {', '.join(known)}")
    return list(dict.fromkeys(["eager", *strategies]))


def _check(
    preset: str | None,
    models: object,
    batches: Sequence[int] | None,
    tasks: Sequence[str] | None,
    rounds: object,
    timeout: object,
) -> None:
    presets = ", ".join(map(repr, PRESETS))
    if (preset is None) == (models is None):
        raise UsageError(f"a sweep takes either a preset, one of {presets}, or models={{name: factory}}")
    if preset is not None and preset not in PRESETS:
        raise UsageError(f"there is no preset {preset!r}; those that exist: {presets}")
    if models is not None and not (
        isinstance(models, Mapping) and models and all(isinstance(n, str) and callable(f) for n, f in models.items())
    ):
        raise UsageError(
            "models takes a dictionary with a name and, for each, a function that is called with a batch size and "
            "gives a model and the keyword arguments of one call"
        )
    if batches is not None and not (_listed(batches) and all(type(b) is int and b >= 1 for b in batches)):
        raise UsageError(f"batches takes a list of whole numbers from 1 on, not {batches!r}")
    if tasks is not None and not (_listed(tasks) and all(task in TASKS for task in tasks)):
        raise UsageError(f"tasks takes a list of names out of {', '.join(TASKS)}, not {tasks!r}")
    if type(rounds) is not int or rounds < 1:
        raise UsageError(f"rounds takes a whole number from 1 on, not {rounds!r}")
    if isinstance(timeout, bool) or not isinstance(timeout, (int, float)) or not timeout > 0:
        raise UsageError(f"timeout takes a number of seconds above 0, not {timeout!r}")


def _listed(value: object) -> bool:
    return isinstance(value, (list, tuple)) and len(value) > 0


def _file_name(identity: Mapping[str, Any]) -> str:
    """The file of a cell: readable, and another one for another machine or setting."""
    model = re.sub(r"[^A-Za-z0-9.]+", "-", str(identity["model"]))[:40].strip("-.")
    return f"{model or 'model'}-b{identity['batch']}-{identity['task']}-{digest(identity)}{FILE_ENDING}"


def _is_cell(report: Report) -> bool:
    about = report.settings.get("sweep")
    return (
        isinstance(about, dict)
        and isinstance(about.get("model"), str)
        and type(about.get("batch")) is int
        and about.get("task") in TASKS
    )


def _setting(report: Report) -> dict[str, Any]:
    """What cells that stand beside each other have in common."""
    about = report.settings["sweep"]
    return {name: about.get(name) for name in ("strategies", "settings", "rounds", "machine")}


def _place(about: Mapping[str, Any]) -> tuple[str, int, int]:
    return about["model"], list(TASKS).index(about["task"]), about["batch"]
