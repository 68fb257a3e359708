"""Rounds that are timed in one process and taken into the figures in another: as JSON, and back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from . import cores, measure


class TellingRounds(measure.Rounds):
    """Rounds of which the latest can be told to another process."""

    def __init__(self, step: Callable[[], Any], *, seconds: float) -> None:
        super().__init__(step, seconds=seconds)
        self._latest: measure.Round | None = None

    def add(self, name: str, taken: measure.Round) -> None:
        super().add(name, taken)
        self._latest = taken

    def told(self) -> dict[str, Any]:
        """The latest round, which there must be, as JSON: all but its place, which only the other process knows."""
        taken = self._latest
        assert taken is not None
        use = taken.use
        return {
            "seconds": taken.seconds,
            "calls": taken.calls,
            "disturbed": taken.disturbed,
            "wall": use.wall if use is not None else None,
            "cpu": use.cpu if use is not None else None,
            "lost": use.lost if use is not None else None,
        }


def heard(told: Mapping[str, Any], place: int) -> measure.Round:
    """A round that another process has told, at its place in the order of those of all processes."""
    use = None
    if told["cpu"] is not None:
        use = cores.Use(wall=told["wall"], cpu=told["cpu"], lost=told["lost"])
    return measure.Round(place, float(told["seconds"]), use, int(told["calls"]), bool(told["disturbed"]))


class HeardRounds:
    """The rounds of several processes, in the order in which they were taken.

    Attributes:
        times: by name the seconds of a call in each round.
    """

    def __init__(self) -> None:
        self._rounds = measure.Rounds(_nothing)
        self._place = 0

    def add(self, name: str, told: Mapping[str, Any]) -> None:
        """Take in a round that was told."""
        self._place += 1
        self._rounds.add(name, heard(told, self._place))

    def timing(self, name: str) -> measure.Timing | None:
        """A strategy's figures, held against eager's rounds beside its own; ``None`` if it had no round."""
        return self._rounds.timing(name)


def _nothing() -> None:
    """What is never called: these rounds are timed elsewhere."""
