"""Is what a tuning recommends the best there is? Held against an exhaustive search of the same space, on the CPU.

    make tuning                                             # SmolLM2, a budget of 180 s: what is judged
    make tuning TUNING_ARGS='--model tiny-llama --budget 60 --rounds 4'

One forward of 1x128 tokens, no gradient. First ``nbcompile.tune`` has its budget. Then every setting of the space is
compiled with an empty cache, whatever it takes and however hopeless it looks, and timed in rounds interleaved with all
others, more of them and longer than the tuning had. For each number of calls the setting that the tuning recommends is
looked up among **these** figures, and its total time held against the least there. A model on the CPU of a machine that
others use drifts by more than the limit from one minute to the next: so what counts is one run, side by side.

Run nothing beside it. The exit status is 1 if a ratio is above its limit.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))  # this file is run as a program

import torch  # noqa: E402

import nbcompile  # noqa: E402
from nbcompile import compiler, measure, ranking  # noqa: E402
from nbcompile.compare import Measurement  # noqa: E402
from nbcompile.compiler import Compilation  # noqa: E402
from nbcompile.plugin import TorchDynamoPlugin  # noqa: E402
from nbcompile.progress import Progress  # noqa: E402
from nbcompile.regions import plan_regions  # noqa: E402
from nbcompile.report import Report, Trial  # noqa: E402
from nbcompile.space import default_space, settings_of  # noqa: E402
from tests.benchmarks import subjects  # noqa: E402
from tests.benchmarks.measuring import say  # noqa: E402

CALLS = (10, 1_000, 100_000)
LIMIT = 1.05


def exhaustive(model: Any, step: Any, rounds: int, seconds: float) -> dict[str, Trial]:
    """Every setting of the default space, compiled cold and timed in the same rounds as all others."""
    found = Measurement(model, step, Progress.of(say))
    trials = {}
    with compiler.taken_off(model):
        found.reference()
        found.start_up(TorchDynamoPlugin())
        for setting in settings_of(default_space("cpu")):
            trial = trials[Trial(setting.values).name] = Trial(setting.values)
            if setting.plugin is None:
                continue
            values = setting.values
            plan = plan_regions(model, rest=setting.rest) if values["strategy"] == "regional" else None
            made = Compilation(model, setting.plugin, strategy=values["strategy"], plan=plan, rest=setting.rest)
            found.cold(trial.name, made)
        timed = measure.Rounds(found.step, seconds=seconds)
        names = [name for name in trials if name == "eager" or name in found.compilations]
        for turn in range(rounds):
            for name in names[turn % len(names) :] + names[: turn % len(names)]:
                with found.under(name)():
                    timed.take(name)
            say(f"round {turn + 1}/{rounds}: " + ", ".join(f"{n} {timed.times[n][-1] * 1e3:.0f} ms" for n in names))
    for name, trial in trials.items():
        trial.figures = found.figures[name]
        if (timing := timed.timing(name)) is not None:
            trial.figures.steady_seconds, trial.figures.steady_spread = timing.median, timing.spread
            trial.figures.steady_repeats = timing.rounds
    return trials


def judge(report: Report, trials: dict[str, Trial]) -> list[tuple[int, str, str, float]]:
    """For each number of calls: what is recommended, what is best, and the ratio of their total times."""
    found = []
    for calls in CALLS:
        recommended = report.best(calls).name
        totals = {name: total for name, trial in trials.items() if (total := ranking.total(trial.figures, calls))}
        best = min(totals, key=lambda name: totals[name])
        found.append((calls, recommended, best, float(totals[recommended] / totals[best])))
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", choices=tuple(subjects.MODELS), default="smollm2")
    parser.add_argument("--budget", type=float, default=180.0, help="seconds of the tuning (default 180)")
    parser.add_argument("--rounds", type=int, default=12, help="interleaved rounds of the search (default 12)")
    parser.add_argument("--round-seconds", type=float, default=1.5, help="length of a round (default 1.5)")
    parser.add_argument("--out", type=Path, help="write the tuning's report and the search's figures here, as JSON")
    arguments = parser.parse_args()
    subject = subjects.load(arguments.model, "forward")
    model = subject.model

    def step() -> Any:
        return subject.call(model)

    with torch.no_grad():
        begin = time.perf_counter()
        report = nbcompile.tune(model, step, calls=1000, budget=arguments.budget, progress=say)
        tuned = time.perf_counter() - begin
        begin = time.perf_counter()
        trials = exhaustive(model, step, arguments.rounds, arguments.round_seconds)
        searched = time.perf_counter() - begin
    print(report)
    print(f"\nThe tuning took {tuned:.0f} s of {arguments.budget:g}, the exhaustive search {searched:.0f} s. It found:")
    for name, trial in trials.items():
        f = trial.figures
        cold, steady = f.cold_seconds, f.steady_seconds
        if cold is None or steady is None:
            print(f"  {name}: {f.failure}")
        else:
            print(f"  {name}: cold {cold:.2f} s, steady {steady * 1e3:.1f} ms (IQR {(f.steady_spread or 0) * 1e3:.1f})")
    results = judge(report, trials)
    for calls, recommended, best, ratio in results:
        met = "met    " if ratio <= LIMIT else "NOT met"
        print(f"{met}  {calls:,} calls: recommended {recommended}, best {best}, total time {ratio:.3f} (<= {LIMIT:g})")
    if arguments.out is not None:
        searched_figures = {name: vars(trial.figures) for name, trial in trials.items()}
        arguments.out.write_text(
            json.dumps({"report": report.to_dict(), "search": searched_figures}, indent=1, default=str) + "\n"
        )
    print(f"median ratio {statistics.median(ratio for *_, ratio in results):.3f}")
    return 0 if all(ratio <= LIMIT for *_, ratio in results) else 1


if __name__ == "__main__":
    sys.exit(main())
