"""Do five repeats of the same comparison agree? One process, each strategy compiled once, the steady part five times.

    make repeats                                            # SmolLM2: what is judged, also by `make bench`
    make repeats REPEATS_ARGS='--model tiny-llama'

One forward of 1x128 tokens, no gradient. Eager, eager once more under another name, regional and full are timed as
``nbcompile.compare`` does by default. Judged are the five verdicts against eager, which have to be the same (of eager
against eager: level), and the five medians as parts of eager's in the same rounds, of which the verdicts are made. The
seconds are printed too, with how far they lie apart: in them is what the machine did between one repeat and the next.

Run nothing beside it. The exit status is 1 if verdicts differ or a part of eager's time is off by more than the limit.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))  # this file is run as a program

import torch  # noqa: E402

from nbcompile import compiler, measure  # noqa: E402
from nbcompile.compare import Measurement  # noqa: E402
from nbcompile.compiler import Compilation  # noqa: E402
from nbcompile.plugin import TorchDynamoPlugin  # noqa: E402
from nbcompile.progress import Progress  # noqa: E402
from nbcompile.regions import plan_regions  # noqa: E402
from nbcompile.render.advice import recommendation  # noqa: E402
from nbcompile.report import Report, Strategy  # noqa: E402
from tests.benchmarks import subjects  # noqa: E402
from tests.benchmarks.measuring import say  # noqa: E402

LIMIT = 0.05
AGAIN = "eager again"
VERDICTS = ("faster", "level", "slower")


def repeats(
    model: Any, step: Any, strategies: list[str], number: int, plugin: TorchDynamoPlugin
) -> list[dict[str, Strategy]]:
    """The figures of each repeat. What compiling took is that of the one time that it was done."""
    found, figures = [], Measurement(model, step, Progress.of(None))
    with compiler.taken_off(model):
        figures.reference()
        figures.start_up(plugin)
        for name in strategies:
            say(f"compiling: {name}")
            plan = plan_regions(model) if name == "regional" else None
            figures.cold(name, Compilation(model, plugin, strategy=name, plan=plan))
        compiled = {name: figures.figures[name] for name in ("eager", *strategies)}
        for turn in range(number):
            for name, cold in compiled.items():
                figures.figures[name] = Strategy(cold.cold_seconds, cold.cold_repeats, failure=cold.failure)
            figures.figures[AGAIN] = Strategy()
            begin = time.perf_counter()
            names = ["eager", AGAIN, *(name for name in strategies if name in figures.compilations)]
            # what is not compiled runs eager
            figures.note(measure.interleaved({name: figures.under(name) for name in names}, figures.step))
            figures.told()
            line = [f"{name} {(figures.figures[name].steady_seconds or 0) * 1e3:.1f} ms" for name in names]
            line += [f"{name} {figures.figures[name].verdict}" for name in names[1:]]
            say(f"repeat {turn + 1} of {number}, {time.perf_counter() - begin:.0f} s: {', '.join(line)}")
            found.append(dict(figures.figures))
    return found


def off(values: list[float]) -> float:
    """How far the farthest lies from their median, as part of it."""
    middle = statistics.median(values)
    return max(abs(value / middle - 1) for value in values)


@dataclass
class Agreement:
    """What became of one strategy in all repeats; ``None`` where it was not measured in each."""

    name: str
    seconds_off: float | None
    ratio_off: float | None
    verdicts: list[str]

    @classmethod
    def of(cls, name: str, every: list[Strategy]) -> Agreement:
        seconds = [one.steady_seconds for one in every if one.steady_seconds is not None]
        ratios = [one.steady_ratio for one in every if one.steady_ratio is not None]
        whole = len(every)
        return cls(
            name,
            off(seconds) if len(seconds) == whole else None,
            off(ratios) if len(ratios) == whole else None,
            [one.verdict for one in every],
        )

    @property
    def same_verdict(self) -> bool:
        """Whether there is one verdict; of eager against eager it has to be level."""
        return len(set(self.verdicts)) == 1 and self.verdicts[0] in (("level",) if self.name == AGAIN else VERDICTS)


def told(name: str, every: list[Strategy], agreement: Agreement) -> list[str]:
    """Lines on one strategy."""
    if agreement.seconds_off is None:
        return [f"{name}: not measured; {every[0].failure}"]
    seconds = ", ".join(f"{(one.steady_seconds or 0) * 1e3:.2f}" for one in every)
    lines = [f"{name}: {seconds} ms; at most {100 * agreement.seconds_off:.1f} % off their median"]
    if agreement.ratio_off is not None:
        ratios = [
            f"{one.steady_ratio:.3f} [{one.steady_ratio_low:.3f}, {one.steady_ratio_high:.3f}] {one.verdict}"
            for one in every
        ]
        lines.append(f"    of eager's: {'; '.join(ratios)}; at most {100 * agreement.ratio_off:.1f} % off their median")
    rounds, disturbed = ([getattr(one, field) for one in every] for field in ("steady_repeats", "disturbed_rounds"))
    processor = ", ".join(f"{(one.steady_cpu_seconds or 0) * 1e3:.1f}" for one in every)
    return [*lines, f"    rounds {rounds}, disturbed {disturbed}, CPU {processor} ms"]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=tuple(subjects.MODELS), default="smollm2")
    parser.add_argument("--repeats", type=int, default=5, help="how often the steady part is measured (default 5)")
    parser.add_argument("--strategies", nargs="+", default=["regional", "full"], help="compiled ones, beside eager")
    parser.add_argument("--backend", default="inductor", help="the compiler's backend (default inductor)")
    parser.add_argument("--out", type=Path, help="write how far they agree to this file as JSON, too")
    arguments = parser.parse_args()
    subject = subjects.load(arguments.model, "forward")
    plugin = TorchDynamoPlugin(backend=arguments.backend)
    with torch.no_grad():
        found = repeats(
            subject.model,
            lambda: subject.call(subject.model),
            arguments.strategies,
            arguments.repeats,
            plugin,
        )
    agreements = []
    for name in found[0]:
        every = [figures[name] for figures in found]
        agreement = Agreement.of(name, every)
        print("\n".join(told(name, every, agreement)))
        if name != "eager":
            agreements.append(agreement)
    for turn, figures in enumerate(found, 1):
        shown = {name: one for name, one in figures.items() if name != AGAIN}
        print(f"repeat {turn}: {recommendation(Report(strategies=shown))}")
    if arguments.out is not None:
        arguments.out.write_text(
            json.dumps([{**vars(one), "same_verdict": one.same_verdict} for one in agreements], indent=1) + "\n"
        )
    agree = all(one.same_verdict and one.ratio_off is not None and one.ratio_off <= LIMIT for one in agreements)
    print("They agree." if agree else f"They do NOT agree (limit: {LIMIT:.0%} and the same verdicts).")
    return 0 if agree else 1


if __name__ == "__main__":
    sys.exit(main())
