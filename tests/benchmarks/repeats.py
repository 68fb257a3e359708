"""Do five repeats of the same comparison agree? One process, each strategy compiled once, the steady part five times.

    make repeats                                            # SmolLM2: what is judged
    make repeats REPEATS_ARGS='--model tiny-llama'

One forward of 1x128 tokens, no gradient. Eager, eager once more under another name, regional and full are timed as
``nbcompile.compare`` does by default. For each the five steady times are printed, the largest distance of one from
their median, and the five verdicts against eager; and what each comparison recommends. Eager against eager has to be
level each time.

Run nothing beside it. The exit status is 1 if verdicts differ or a time lies further off than the limit.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
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
from tests.benchmarks.bench import MODELS, load_model, say  # noqa: E402

LIMIT = 0.05
AGAIN = "eager again"


def repeats(model: Any, step: Any, strategies: list[str], number: int) -> list[dict[str, Strategy]]:
    """The figures of each repeat. What compiling took is that of the one time that it was done."""
    found, figures = [], Measurement(model, step, Progress.of(None))
    with compiler.taken_off(model):
        figures.reference()
        figures.start_up(TorchDynamoPlugin())
        for name in strategies:
            say(f"compiling: {name}")
            plan = plan_regions(model) if name == "regional" else None
            figures.cold(name, Compilation(model, TorchDynamoPlugin(), strategy=name, plan=plan))
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
            told = [f"{name} {(figures.figures[name].steady_seconds or 0) * 1e3:.1f} ms" for name in names]
            told += [f"{name} {figures.figures[name].verdict}" for name in names[1:]]
            say(f"repeat {turn + 1} of {number}, {time.perf_counter() - begin:.0f} s: {', '.join(told)}")
            found.append(dict(figures.figures))
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", choices=MODELS, default=MODELS[0])
    parser.add_argument("--repeats", type=int, default=5, help="how often the steady part is measured (default 5)")
    parser.add_argument("--strategies", nargs="+", default=["regional", "full"], help="compiled ones, beside eager")
    arguments = parser.parse_args()
    model, call = load_model(arguments.model, None, "forward")
    with torch.no_grad():
        found = repeats(model, lambda: call(model), arguments.strategies, arguments.repeats)
    agree = True
    for name in found[0]:
        every = [figures[name] for figures in found]
        times = [one.steady_seconds for one in every if one.steady_seconds is not None]
        if not times:
            print(f"{name}: {every[0].failure}")
            continue
        middle = statistics.median(times)
        off = max(abs(one / middle - 1) for one in times)
        verdicts = [one.verdict for one in every]
        expected = {"level"} if name == AGAIN else set(verdicts[:1])
        agree = agree and off <= LIMIT and set(verdicts) == expected
        print(
            f"{name}: {', '.join(f'{one * 1e3:.2f}' for one in times)} ms; at most {100 * off:.1f} % off their median"
        )
        if name != "eager":
            ratios = [
                f"{one.steady_ratio:.3f} [{one.steady_ratio_low:.3f}, {one.steady_ratio_high:.3f}] {one.verdict}"
                for one in every
                if one.steady_ratio is not None
            ]
            print("    of eager's: " + "; ".join(ratios))
        print(
            f"    rounds {[one.steady_repeats for one in every]}, disturbed {[one.disturbed_rounds for one in every]}, "
            f"CPU {', '.join(f'{(one.steady_cpu_seconds or 0) * 1e3:.1f}' for one in every)} ms"
        )
    for turn, figures in enumerate(found, 1):
        shown = {name: one for name, one in figures.items() if name != AGAIN}
        print(f"repeat {turn}: {recommendation(Report(strategies=shown))}")
    print("They agree." if agree else f"They do NOT agree (limit: {LIMIT:.0%} and the same verdicts).")
    return 0 if agree else 1


if __name__ == "__main__":
    sys.exit(main())
