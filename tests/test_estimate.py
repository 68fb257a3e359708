"""How long a setting would take to compile, told from what others took."""

from __future__ import annotations

from typing import Any

import pytest

from nbcompile.estimate import cold_seconds
from nbcompile.report import RegionTime, Strategy, Trial

REGIONAL = {"strategy": "regional", "backend": "inductor", "mode": "default", "dynamic": None, "rest": "auto"}
FULL = {"strategy": "full", "backend": "inductor", "mode": "default", "dynamic": None}


def trial(settings: dict[str, Any], cold: float | None, **more: Any) -> Trial:
    return Trial(settings, Strategy(cold_seconds=cold, **more))


def test_of_what_is_not_known_there_is_no_estimate() -> None:
    eager = trial({"strategy": "eager"}, 0.5)
    failed = trial(REGIONAL, 3.0, failure="no kernels today")
    assert cold_seconds(REGIONAL, [eager, failed, trial(FULL, None)], {}) is None
    assert cold_seconds(FULL, [eager], {}) is None
    assert cold_seconds(REGIONAL, [trial(FULL, 60.0)], {}) is None  # what is shared cannot be told from the whole


def test_the_whole_is_its_blocks_one_by_one_but_for_their_kernels() -> None:
    # GIVEN a block that took 3 s, of which 2 s were for kernels, and a part outside the blocks
    regions = [
        RegionTime("layers", "Block", 3.0, {"dynamo": 1.0, "kernels": 2.0}, 1),
        RegionTime("norm", "Norm", 0.5, {"dynamo": 0.5}, 1),
    ]
    known = [trial(REGIONAL, 4.0, regions=regions)]
    # THEN thirty blocks are 29 times that second more
    assert cold_seconds(FULL, known, {"layers": 30}) == pytest.approx(4.0 + 29.0)
    # AND half of that if the blocks already needed two graphs, which took as long together
    known[0].figures.regions[0].graphs = 2
    assert cold_seconds(FULL, known, {"layers": 30}) == pytest.approx(4.0 + 14.0)


def test_marked_blocks_are_traced_one_by_one_and_lowered_once() -> None:
    phases = {"dynamo": 1.0, "inductor": 0.5, "codegen": 0.25, "kernels": 2.0}
    known = [trial(REGIONAL, 4.0, regions=[RegionTime("layers", "Block", 3.75, phases, 1)])]
    hierarchical = {**FULL, "strategy": "hierarchical"}
    assert cold_seconds(hierarchical, known, {"layers": 30}) == pytest.approx(4.0 + 29.0)
    assert cold_seconds(FULL, known, {"layers": 30}) == pytest.approx(4.0 + 29 * 1.75)


def test_what_a_value_costs_is_learnt_from_another_strategy() -> None:
    slow = {"mode": "max-autotune-no-cudagraphs"}
    known = [trial(REGIONAL, 5.0), trial(FULL, 60.0)]
    # GIVEN nothing that was measured with a mode THEN autotuning is taken to be dear
    assert cold_seconds({**FULL, **slow}, known, {}) == pytest.approx(240.0)
    # WHEN a trial that differs in nothing else was measured THEN its ratio holds
    known.append(trial({**REGIONAL, **slow}, 6.0))
    assert cold_seconds({**FULL, **slow}, known, {}) == pytest.approx(72.0)
    # AND what lies nearest is what it is told from
    known.append(trial({**REGIONAL, "rest": "compile"}, 8.0))
    assert cold_seconds({**REGIONAL, **slow, "rest": "compile"}, known, {}) == pytest.approx(9.6)
