"""One cell of a sweep, measured: a report of its strategies, of which each was compiled in a process of its own."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from . import describe, measure, pairs, ranking
from .cells import TASKS, Cell
from .processes import Worker, WorkerError
from .progress import Progress
from .report import Report, Strategy
from .rounds import HeardRounds

_ROUND_SECONDS = 0.5


class Run:
    """What it takes to measure a cell.

    Args:
        strategies: eager first.
        settings: further keywords of :func:`nbcompile.compare`, as JSON.
        rounds: timed rounds of each strategy.
        timeout: seconds until a process is given up that does not answer.
        together: whether the processes of all strategies live at once, so that their rounds can be interleaved. Where
            there is no room for that, each strategy's rounds are interleaved with eager ones in its own process.
    """

    def __init__(
        self,
        cell: Cell,
        strategies: Sequence[str],
        settings: Mapping[str, Any],
        rounds: int,
        timeout: float,
        tell: Progress,
        prefix: str,
        *,
        together: bool,
    ) -> None:
        self.cell, self.strategies, self.settings = cell, strategies, settings
        self.rounds, self.timeout, self.together = rounds, timeout, together
        self._tell, self._prefix = tell, prefix
        self._reports: dict[str, Report] = {}
        self._failures: dict[str, str] = {}
        self._heard = HeardRounds()

    def measure(self) -> Report:
        """Measure it. A strategy that fails is a line of the report, and so is one whose process dies."""
        with contextlib.ExitStack() as stack:
            living: dict[str, Worker] = {}
            for name in self.strategies:
                if name != "eager" and "eager" in self._failures:
                    self._failures[name] = "not measured, as eager failed"
                    continue
                worker = self._start(name)
                stack.callback(worker.stop)
                if not self._cold(name, worker):
                    worker.stop()
                elif self.together:
                    living[name] = worker
                else:
                    self._steady({name: worker, "eager": worker})
                    worker.stop()
            if self.together:
                self._steady(living)
        return self._report()

    def _start(self, name: str) -> Worker:
        job = {
            "strategy": name,
            "task": self.cell.task,
            "source": self.cell.source,
            "settings": self.settings,
            "threads": torch.get_num_threads(),
            "round_seconds": _ROUND_SECONDS,
        }
        self._say(f"{name}: building the model in a process of its own")
        return Worker(job, self.timeout)

    def _cold(self, name: str, worker: Worker) -> bool:
        """Take the strategy's report; whether its process can time rounds."""
        try:
            report = worker.report(lambda stage: self._say(stage if stage.startswith(name) else f"{name}: {stage}"))
        except WorkerError as error:
            self._failures[name] = str(error)
        else:
            self._reports[name] = report
            figures = report.strategies[name]
            if not figures.failure:
                return True
        self._say(f"{name}: failed")
        return False

    def _steady(self, workers: Mapping[str, Worker]) -> None:
        """Time rounds of all in turn, in changing order."""
        workers = dict(workers)
        with self._tell.quiet():
            for turn, order in zip(range(self.rounds), pairs.turns(list(workers)), strict=False):
                if not workers:
                    break
                self._say(f"steady state of {', '.join(sorted(workers))}: round {turn + 1} of {self.rounds}")
                for name in order:
                    if name not in workers:
                        continue
                    try:
                        self._heard.add(name, workers[name].time_round(name))
                    except WorkerError as error:
                        self._failures[name] = str(error)
                        dead = workers.pop(name)
                        workers = {other: worker for other, worker in workers.items() if worker is not dead}

    def _say(self, line: str) -> None:
        self._tell(f"{self._prefix}{self.cell.title}: {line}")

    def _report(self) -> Report:
        """All strategies' figures in one report, which has the regional compilation's groups if there is one."""
        measured = [name for name in self.strategies if name in self._reports]
        shown = next((name for name in ("regional", *measured[1:], *measured) if name in measured), None)
        if shown is None:
            report = describe.new_report(None)
        else:
            report = dataclasses.replace(self._reports[shown])
        report.strategies = {name: self._figures(name) for name in self.strategies}
        eager = report.strategies["eager"]
        for name, figures in report.strategies.items():
            cold, steady, theirs = figures.cold_seconds, figures.steady_seconds, eager.steady_seconds
            if name == "eager" or not ranking.gains(figures, eager):
                continue
            if cold is not None and steady is not None and theirs is not None:
                figures.break_even_calls = measure.break_even(cold, steady, theirs, 0.0)
        report.notes = self._notes()
        return report

    def _figures(self, name: str) -> Strategy:
        """A strategy's figures from its own process, with the steady times of the rounds that were interleaved."""
        report, failure = self._reports.get(name), self._failures.get(name, "")
        if report is None:
            return Strategy(failure=failure)
        found = report.strategies[name]
        # whatever a comparison says of its one round is not what was measured beside the other strategies
        fresh = {f.name: getattr(Strategy(), f.name) for f in dataclasses.fields(Strategy) if _of_rounds(f.name)}
        notes = [*found.notes, *(note for note in report.notes if note not in found.notes)]
        figures = dataclasses.replace(found, **fresh, notes=notes, failure=found.failure or failure)
        if (timing := self._heard.timing(name)) is not None:
            _take(figures, timing, self._heard.timing("eager"))
        return figures

    def _notes(self) -> list[str]:
        how = (
            "their steady rounds were interleaved, each in its own process"
            if self.together
            else "there was no room for all at once, so the rounds of each were interleaved with eager's in its process"
        )
        notes = [
            f"the step: {TASKS[self.cell.task]}",
            f"each strategy was compiled in a process of its own with an empty cache; {how}",
        ]
        if "llama" in self.cell.source:
            notes.append("the weights are random: times do not depend on them")
        return notes


def _of_rounds(field: str) -> bool:
    return field.startswith("steady_") or field in ("break_even_calls", "disturbed_rounds")


def _take(figures: Strategy, timing: measure.Timing, eager: measure.Timing | None) -> None:
    """Take steady times into a strategy's figures, held against eager's rounds beside them as a comparison does it."""
    figures.steady_seconds, figures.steady_spread, figures.steady_repeats = timing.median, timing.spread, timing.rounds
    figures.steady_cpu_seconds, figures.disturbed_rounds = timing.cpu, timing.disturbed
    if timing.ratio is not None and eager is not None:
        found = timing.ratio
        figures.steady_ratio, figures.steady_ratio_low, figures.steady_ratio_high = found.median, found.low, found.high
        figures.steady_seconds = eager.median * found.median
    if timing.disturbed:
        figures.notes.append(
            f"{timing.disturbed} of its {timing.rounds} steady rounds lacked the cores, though they were repeated: "
            "something else ran on the machine"
        )
