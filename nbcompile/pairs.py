"""Times of two things held against each other round by round, so that a drift of the machine cancels: arithmetic only.

Two medians of rounds that were taken over a minute differ by what the machine did in that minute. The ratio of two
rounds that were taken one right after the other does not. So each round of a candidate is divided by the reference's
round beside it, and the median of these ratios is the answer. How far it can be trusted is told by two of the ratios
themselves: the interval between the k-th smallest and the k-th largest of n holds the true median in all but
``2 * sum(binomial(n, i) for i < k) / 2**n`` of cases, whatever the times' distribution (the sign test's interval:
W. R. Thompson, Annals of Mathematical Statistics 7 (1936), 122).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count, cycle, islice

#: How often the interval has to hold the true median, where there are enough rounds for that: five.
CONFIDENCE = 0.9


@dataclass(frozen=True)
class Ratio:
    """A candidate's time as part of the reference's: the median over pairs of rounds, and the interval around it."""

    median: float
    low: float
    high: float


def turns(names: Sequence[str]) -> Iterator[list[str]]:
    """Orders in which to take a round of each, without end.

    Every second turn goes the other way round, and each pair of turns begins one name later: none always comes first or
    always follows the same one, and over two turns all lie equally far from the middle, so that a drift hits all alike.
    """
    for turn in count():
        first = turn // 2 % max(1, len(names))
        order = list(islice(cycle(names), first, first + len(names)))
        yield order[::-1] if turn % 2 else order


def ratio(ours: Sequence[tuple[int, float]], reference: Sequence[tuple[int, float]]) -> Ratio | None:
    """A candidate's rounds held against the reference's nearest ones; ``None`` with fewer than two rounds of either.

    Args:
        ours: when each round was taken, as a place in the order of all rounds, and the seconds of a call in it.
        reference: the same of the reference. Of two rounds that are equally near both count, half each.
    """
    if len(ours) < 2 or len(reference) < 2:
        return None
    found = []
    for place, seconds in ours:
        nearest = min(abs(place - other) for other, _ in reference)
        beside = [taken for other, taken in reference if abs(place - other) == nearest]
        theirs = statistics.fmean(beside)
        if not (theirs > 0 and seconds > 0):
            return None
        found.append(seconds / theirs)
    low, high = interval(found)
    return Ratio(statistics.median(found), low, high)


def interval(values: Sequence[float]) -> tuple[float, float]:
    """Between which two of the values the median lies with :data:`CONFIDENCE`; of fewer than five the whole range."""
    ordered, outside, rank = sorted(values), 0.0, 0
    while rank < len(ordered) // 2:
        outside += 2 * math.comb(len(ordered), rank) / 2 ** len(ordered)
        if rank and 1 - outside < CONFIDENCE:
            break
        rank += 1
    return ordered[max(0, rank - 1)], ordered[len(ordered) - max(1, rank)]
