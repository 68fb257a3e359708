"""What to do, in a sentence: which setting is best for how many calls, from a report that ranks them itself."""

from __future__ import annotations

import math

from ..errors import UsageError
from ..report import Report, Trial
from .units import clean, count, seconds

#: More changes of the best setting than this are not told.
_MOST_CROSSINGS = 6


def recommendation(report: Report) -> str:
    """What is best for how many calls: of a tuning for those it was for, and where another setting is better.

    ``""`` if nothing was held against eager.
    """
    return _tuned(report) if report.tuning else _compared(report)


def _compared(report: Report) -> str:
    measured = [trial for trial in report.trials() if trial.total_seconds(1) is not None]
    if len(measured) < 2 or not any(map(is_eager, measured)):
        return ""
    crossings = report.crossings()
    if len(crossings) == 1 and is_eager(crossings[0][1]):
        return "Compiling does not pay here: nothing runs faster than eager by more than the spread."
    found, ends = [], [start for start, _ in crossings[1:]]
    for (start, trial), end in zip(crossings, [*ends, 0], strict=True):
        name = "do not compile" if is_eager(trial) else clean(trial.name, 40)
        if start == 1:
            found.append(f"Up to {number_of_calls(end - 1)}: {name}" if end else f"For any number of calls: {name}")
        else:
            found.append(f"From {number_of_calls(start)} on: {name}")
    return f"{'. '.join(found)}."


def _tuned(report: Report) -> str:
    calls = report.tuned_calls
    try:
        best = report.best(calls)
    except UsageError:
        return "Nothing was measured, so nothing can be recommended."
    choice = "do not compile" if is_eager(best) else clean(best.name, 80)
    words = [f"For {number_of_calls(calls)}: {choice}, {seconds(best.total_seconds(calls))} in total"]
    candidates = report.candidates()
    if not is_eager(best) and is_eager(candidates[0]):
        words[0] += f"; eager {seconds(candidates[0].total_seconds(calls))}"
    words += _other_numbers(report, calls)
    within = [
        trial
        for trial in report.tuning
        if trial.outcome == "measured"
        and all(trial is not candidate for candidate in candidates)
        and (trial.total_seconds(calls) or math.inf) < (best.total_seconds(calls) or 0.0)
    ]
    if within:
        words.append(f"What {clean(within[0].name, 80)} gains is within the spread, which counts as none")
    return f"{'. '.join(words)}."


def _other_numbers(report: Report, calls: int) -> list[str]:
    """For which other numbers of calls something else is the best."""
    crossings = report.crossings()[:_MOST_CROSSINGS]
    starts = [start for start, _ in crossings[1:]]
    found = []
    for (start, trial), end in zip(crossings, [*starts, None], strict=True):
        name = "do not compile" if is_eager(trial) else clean(trial.name, 80)
        if end is not None and end <= calls:
            found.append(f"Up to {number_of_calls(end - 1)}: {name}")
        elif start > calls:
            found.append(f"From {number_of_calls(start)} on: {name}")
    return found


def is_eager(trial: Trial) -> bool:
    """Whether a trial is the one that compiles nothing."""
    return trial.settings.get("strategy") == "eager"


def number_of_calls(number: int) -> str:
    """A number of calls in words."""
    return f"{count(number)} call{'s' * (number != 1)}"
