"""Run a notebook in a real kernel without a browser, and print the comparison it made. ``make demo`` runs this.

Shows each cell as it starts and how long it took, with a sign of life in between. The executed notebook and a web page
of it are written to ``out/``, also when a cell failed, so that one can look at what happened. ``--save`` also puts the
outputs of a run that succeeded into the notebook itself: that is how the tutorials are saved.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import re
import shutil
import signal
import sys
import time
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError
from nbconvert import HTMLExporter

from nbcompile.errors import ReportError
from nbcompile.report import MIME_TYPE, Report

ROOT = Path(__file__).resolve().parents[1]
WIDGET_MIME_TYPE = "application/vnd.jupyter.widget-view+json"
INTERRUPTED = 130  # what a shell reports for a program that Ctrl-C ended


class Progress:
    """Prints what the kernel does: the callbacks of :class:`NotebookClient`, and a heartbeat."""

    def __init__(self, notebook: Any, *, every: float = 15.0) -> None:
        self._numbers = {
            index: number
            for number, index in enumerate((i for i, cell in enumerate(notebook.cells) if _runs(cell)), start=1)
        }
        self._every = every
        self._began = time.monotonic()
        self._cell_began = self._began
        self._cell: Any = None
        self._title = ""

    def cell_starts(self, cell: Any, cell_index: int) -> None:
        if _runs(cell):
            self._cell, self._cell_began = cell, time.monotonic()
            self._title = f"[{self._numbers[cell_index]}/{len(self._numbers)}]"
            self._say(f"{self._title} {first_line(cell.source)}")

    def cell_ends(self, cell: Any, cell_index: int, execute_reply: Any) -> None:
        """Called whether the cell succeeded or not."""
        if self._cell is not None:
            outcome = "done" if execute_reply["content"]["status"] == "ok" else "FAILED"
            self._say(f"{' ' * len(self._title)} {outcome} after {time.monotonic() - self._cell_began:.1f} s")
            self._cell = None

    async def beat(self) -> None:
        """While a cell runs, say every so often that it does, and the last line it has shown."""
        while True:
            await asyncio.sleep(self._every)
            if self._cell is not None and time.monotonic() - self._cell_began > 0.9 * self._every:
                latest = last_line(self._cell)
                running = f"running for {time.monotonic() - self._cell_began:.0f} s"
                self._say(f"{' ' * len(self._title)} {running}{': ' if latest else ''}{latest}")

    def _say(self, text: str) -> None:
        print(f"{time.monotonic() - self._began:6.1f} s  {text}", flush=True)


async def execute(notebook: Any, folder: Path, progress: Progress, *, timeout: int) -> None:
    """Run every cell in a kernel of its own, which is stopped in the end, whatever happens.

    Raises:
        asyncio.CancelledError: interrupted by Ctrl-C or a request to terminate.
        CellExecutionError, CellTimeoutError, DeadKernelError: what went wrong in the kernel.
    """
    client = NotebookClient(
        notebook,
        timeout=timeout,
        kernel_name="python3",
        resources={"metadata": {"path": str(folder)}},
        extra_arguments=["--IPKernelApp.log_level=ERROR"],  # it warns of every kernel that listens on TCP
        store_widget_state=False,  # megabytes of it, and only for progress bars, see drop_widgets
        on_cell_start=progress.cell_starts,
        on_cell_executed=progress.cell_ends,
    )
    task = asyncio.current_task()
    assert task is not None
    stopped = False

    def stop() -> None:
        nonlocal stopped
        stopped = True
        client.shutdown_kernel = "immediate"  # a kernel that compiles does not answer a polite request for minutes
        task.cancel()

    def take_over_signals(notebook: Any) -> None:
        """nbclient stops the kernel on a signal, which then looks like a crash; end the run instead."""
        loop = asyncio.get_running_loop()
        with contextlib.suppress(NotImplementedError):  # Windows has no such handlers; Ctrl-C works there without
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.add_signal_handler(number, stop)

    client.on_notebook_start = take_over_signals
    heartbeat = asyncio.create_task(progress.beat())
    try:
        await client.async_execute()
    except DeadKernelError:  # nbclient turns a cancelled cell into this
        if stopped:
            raise asyncio.CancelledError from None
        raise
    finally:
        heartbeat.cancel()


def find_report(notebook: Any) -> Report | None:
    """The last report among the outputs that compares strategies, else the last one, else ``None``."""
    reports = []
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            data = output.get("data", {}).get(MIME_TYPE)
            if data is not None:
                reports.append(Report.from_dict(data))
    compared = [report for report in reports if len(report.strategies) > 1]
    return (compared or reports or [None])[-1]


def drop_widgets(notebook: Any) -> None:
    """Remove outputs that are widgets, such as progress bars: without a kernel they would say "loading" for ever."""
    for cell in notebook.cells:
        if "outputs" in cell:
            cell.outputs = [o for o in cell.outputs if WIDGET_MIME_TYPE not in o.get("data", {})]


def write(notebook: Any, folder: Path, name: str) -> tuple[Path, Path]:
    """Write the notebook and a web page of it; returns both paths."""
    drop_widgets(notebook)
    folder.mkdir(parents=True, exist_ok=True)
    executed, page = folder / f"{name}.ipynb", folder / f"{name}.html"
    nbformat.write(notebook, executed)
    page.write_text(HTMLExporter().from_notebook_node(notebook)[0], encoding="utf-8")
    return executed, page


def save(notebook: Any, source: Path) -> None:
    """Write the executed notebook over its source, without the times at which its cells ran: they only make a diff."""
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)
    nbformat.write(notebook, source)


def first_line(source: str) -> str:
    """A cell's first line that says something, shortened."""
    lines = [line.strip() for line in source.splitlines() if line.strip()]
    return _short(lines[0]) if lines else "(empty)"


def last_line(cell: Any) -> str:
    """The last line of text that a cell has shown so far, ``""`` if there is none."""
    for output in reversed(cell.get("outputs", [])):
        text = output.get("text") or output.get("data", {}).get("text/plain") or ""
        lines = [line.strip() for line in re.split(r"[\r\n]+", text) if line.strip()]
        if lines:
            return _short(lines[-1])
    return ""


def missing_compiler() -> str:
    """What to do if there is no C++ compiler, which the inductor backend needs on a CPU; ``""`` if there is one."""
    wanted = [name for name in (os.environ.get("CXX"), "g++", "clang++", "c++", "cl") if name]
    if any(shutil.which(name.split()[0]) for name in wanted):
        return ""
    return "no C++ compiler found, and compiling for the CPU needs one: install g++ or clang++, or set CXX to yours"


def _runs(cell: Any) -> bool:
    return cell.cell_type == "code" and bool(cell.source.strip())


def _short(text: str, length: int = 90) -> str:
    return text if len(text) <= length else text[: length - 3] + "..."


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("notebook", type=Path)
    parser.add_argument("--out", type=Path, default=ROOT / "out", help="folder for the results (default out/)")
    parser.add_argument("--save", action="store_true", help="save the outputs in the notebook itself, too")
    parser.add_argument("--timeout", type=int, default=1800, help="seconds until a cell is given up (default 1800)")
    arguments = parser.parse_args()
    if problem := missing_compiler():
        print(problem, file=sys.stderr)
        return 1
    # All that the notebooks load is installed: do not try a network.
    os.environ.update({"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"})

    source: Path = arguments.notebook
    try:
        notebook = nbformat.read(source, as_version=4)
    except OSError as error:
        print(f"cannot read the notebook: {error}", file=sys.stderr)
        return 1
    print(f"{source} in a kernel of {sys.executable}", flush=True)
    failure, status = "", 0
    try:
        asyncio.run(execute(notebook, source.resolve().parent, Progress(notebook), timeout=arguments.timeout))
    except (asyncio.CancelledError, KeyboardInterrupt):
        print("\ninterrupted; the kernel is stopped, nothing was written", file=sys.stderr)
        return INTERRUPTED
    except (CellExecutionError, CellTimeoutError, DeadKernelError) as error:
        failure, status = str(error).strip(), 1
        if not sys.stderr.isatty():
            failure = re.sub(r"\x1b\[[0-9;]*m", "", failure)  # a traceback comes coloured, which a log cannot show

    executed, page = write(notebook, arguments.out, source.stem)
    try:
        report = find_report(notebook)
    except ReportError as error:
        report, failure, status = None, failure or f"the notebook's report cannot be read: {error}", 1
    if report is not None:
        print("\n" + report.to_text())
    elif not failure:
        failure, status = "the notebook ran, but none of its outputs holds a report", 1
    if failure:
        print(f"\n{failure}\n\n{source} FAILED; what it had shown until then:", file=sys.stderr)
    elif arguments.save:
        save(notebook, source)
    print(f"\nexecuted notebook: {_shown(executed)}\nas a web page:     {_shown(page)}", flush=True)
    return status


def _shown(path: Path) -> str:
    with contextlib.suppress(ValueError):
        return str(path.resolve().relative_to(Path.cwd()))
    return str(path)


if __name__ == "__main__":
    sys.exit(main())
