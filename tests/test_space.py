"""What a tuning tries: which settings a space holds, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from nbcompile import UsageError
from nbcompile.report import Trial
from nbcompile.space import default_space, setting_of, settings_of


def names(space: Any) -> list[str]:
    return [Trial(setting.values).name for setting in settings_of(space)]


def test_a_setting_that_makes_no_difference_is_there_once() -> None:
    # GIVEN a space in which eager has modes and the full model a rest
    space = {
        "strategy": ["eager", "regional", "full"],
        "mode": ["default", "max-autotune-no-cudagraphs"],
        "rest": ["auto", "compile"],
        "dynamic": [None, False],
    }
    # THEN eager is one setting, full one for each mode and dynamic, regional one for each of all
    found = names(space)
    assert len(found) == len(set(found)) == 1 + 4 + 8
    assert found[0] == "eager"
    assert "full, mode=max-autotune-no-cudagraphs, dynamic=False" in found
    assert "regional, mode=max-autotune-no-cudagraphs, rest=compile" in found


def test_axes_that_are_not_named_keep_their_usual_value() -> None:
    assert names({}) == ["eager", "regional", "full"]
    # hierarchical has to be named, and has no rest either
    named = {"strategy": ["hierarchical"], "rest": ["auto", "compile"]}
    assert names(named) == ["eager", "hierarchical"]
    assert names({"strategy": ["full"]}) == ["eager", "full"]  # what all are held against is always there


def test_a_value_need_not_go_with_each_other_value() -> None:
    # a mode is inductor's alone
    found = names({"strategy": ["full"], "backend": ["inductor", "eager"], "mode": ["default", "reduce-overhead"]})
    assert found == ["eager", "full", "full, mode=reduce-overhead", "full, backend=eager"]
    with pytest.raises(UsageError, match="has no modes"):
        names({"backend": ["eager"], "mode": ["default", "reduce-overhead"]})


def test_a_callable_backend_goes_by_its_name() -> None:
    def mine(graph: Any, inputs: Any) -> Any:
        return graph

    def other(graph: Any, inputs: Any) -> Any:
        return graph

    settings = settings_of({"strategy": ["full"], "backend": [mine, mine]})
    assert settings[1].values["backend"] == "mine"
    assert settings[1].plugin is not None
    assert settings[1].plugin.backend is mine
    other.__name__ = "mine"
    with pytest.raises(UsageError, match="two backends of the space are called 'mine'"):
        settings_of({"strategy": ["full"], "backend": [mine, other]})


@pytest.mark.parametrize(
    ("space", "message"),
    [
        ([], "space takes a mapping"),
        ({"strategies": ["full"]}, "no axis 'strategies'; those that exist: strategy, backend, mode, dynamic, rest"),
        ({"mode": "default"}, "takes a list of values"),
        ({"mode": []}, "takes a list of values"),
        ({"strategy": ["regionl"]}, "no strategy 'regionl'; those that exist: eager, regional, full"),
        ({"rest": ["all"]}, "no rest 'all'; those that exist: auto, compile, eager"),
        ({"dynamic": [0]}, "no dynamic 0; those that exist: None, True, False"),
        ({"mode": [None]}, "a mode is a name, not None"),
        ({"mode": ["fast"]}, "no mode 'fast'"),
        ({"backend": ["inductr"]}, "no backend 'inductr'"),
        ({"backend": [3]}, "backend takes a name or a callable"),
        ({"strategy": [["full"]]}, "no strategy"),
    ],
)
def test_what_does_not_exist_is_refused(space: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        settings_of(space)


def test_a_space_can_be_too_large() -> None:
    def backend(number: int) -> Any:
        def compile_nothing(graph: Any, inputs: Any) -> Any:
            return graph

        compile_nothing.__name__ = f"backend{number}"
        return compile_nothing

    with pytest.raises(UsageError, match="the space has 301 settings; a tuning takes 256 at most"):
        settings_of({"strategy": ["full"], "backend": [backend(number) for number in range(300)]})


def test_the_default_space_holds_what_can_gain_something() -> None:
    # GIVEN a machine without CUDA THEN no mode is tried that records CUDA graphs, nor one that hardly compiles
    assert "reduce-overhead" not in default_space("cpu")["mode"]
    assert "max-autotune" not in default_space("cpu")["mode"]
    assert {"default", "max-autotune-no-cudagraphs"} <= set(default_space("cpu")["mode"])
    assert {"reduce-overhead", "max-autotune"} <= set(default_space("cuda")["mode"])
    assert "lite" not in default_space("cuda")["mode"]
    # AND all of it exists
    assert len(settings_of(default_space("cpu"))) == 1 + 2 * 2 + 2


def test_one_setting_is_checked_and_made_whole() -> None:
    assert setting_of({"strategy": "regional"}).values == {
        **{"strategy": "regional", "backend": "inductor", "mode": "default", "dynamic": None, "rest": "auto"}
    }
    assert setting_of({"strategy": "eager", "mode": "default"}).values == {"strategy": "eager"}
    for wrong in (
        {},
        {"strategy": "os.system"},
        {"strategy": "full", "mode": ["x"]},
        {"strategy": "full", "dynamic": 1},
    ):
        with pytest.raises(UsageError):
            setting_of(wrong)
