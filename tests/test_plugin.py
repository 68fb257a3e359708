"""The settings: defaults, environment, what is refused, and what torch says to the keywords."""

from __future__ import annotations

import functools
import json
from typing import Any

import pytest
import torch

from nbcompile import TorchDynamoPlugin, UsageError
from nbcompile.plugin import backend_name, list_backends, list_modes

FIELDS = ("backend", "mode", "fullgraph", "dynamic", "options", "disable", "use_regional_compilation")


@pytest.fixture(autouse=True)
def _no_settings_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("BACKEND", "MODE", "USE_FULLGRAPH", "USE_DYNAMIC", "USE_REGIONAL_COMPILATION"):
        monkeypatch.delenv(f"ACCELERATE_DYNAMO_{name}", raising=False)


def my_backend(graph: torch.fx.GraphModule, inputs: Any) -> Any:
    return graph.forward


def with_options(graph: torch.fx.GraphModule, inputs: Any, *, options: Any = None) -> Any:
    return graph.forward


def with_anything(graph: torch.fx.GraphModule, inputs: Any, **kwargs: Any) -> Any:
    return graph.forward


# -- defaults and environment ------------------------------------------------------------------------------------------


def test_defaults() -> None:
    # GIVEN no setting and no variable WHEN a plugin is made
    plugin = TorchDynamoPlugin()
    # THEN every field has the default that is documented
    assert plugin.to_dict() == {
        "backend": "inductor",
        "mode": "default",
        "fullgraph": False,
        "dynamic": None,
        "options": None,
        "disable": False,
        "use_regional_compilation": True,
    }


@pytest.mark.parametrize(
    ("variable", "text", "field", "value"),
    [
        ("BACKEND", "AOT_EAGER", "backend", "aot_eager"),
        ("BACKEND", "", "backend", "inductor"),
        ("MODE", "reduce-overhead", "mode", "reduce-overhead"),
        ("MODE", "", "mode", "default"),
        ("USE_FULLGRAPH", "true", "fullgraph", True),
        ("USE_FULLGRAPH", "0", "fullgraph", False),
        ("USE_DYNAMIC", "Yes", "dynamic", True),
        ("USE_DYNAMIC", "off", "dynamic", False),
        ("USE_REGIONAL_COMPILATION", "False", "use_regional_compilation", False),
        ("USE_REGIONAL_COMPILATION", "1", "use_regional_compilation", True),
    ],
)
def test_environment_gives_a_default(
    variable: str, text: str, field: str, value: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    # GIVEN one of Accelerate's variables
    monkeypatch.setenv(f"ACCELERATE_DYNAMO_{variable}", text)
    # WHEN a plugin is made without that field THEN it has the variable's value, and all others their own default
    assert TorchDynamoPlugin().to_dict() == {
        "backend": "inductor",
        "mode": "default",
        "fullgraph": False,
        "dynamic": None,
        "options": None,
        "disable": False,
        "use_regional_compilation": True,
        field: value,
    }


@pytest.mark.parametrize(
    ("variable", "text", "given"),
    [
        ("BACKEND", "aot_eager", {"backend": "eager"}),
        ("MODE", "max-autotune", {"mode": "default"}),
        ("USE_FULLGRAPH", "true", {"fullgraph": False}),
        ("USE_DYNAMIC", "true", {"dynamic": False}),
        ("USE_REGIONAL_COMPILATION", "true", {"use_regional_compilation": False}),
    ],
)
def test_field_goes_before_environment(
    variable: str, text: str, given: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    # GIVEN a variable WHEN the field is given as well THEN the field counts, false or not
    monkeypatch.setenv(f"ACCELERATE_DYNAMO_{variable}", text)
    (name, value), *_ = given.items()
    assert getattr(TorchDynamoPlugin(**given), name) == value


@pytest.mark.parametrize("name", ["USE_FULLGRAPH", "USE_DYNAMIC", "USE_REGIONAL_COMPILATION"])
@pytest.mark.parametrize("text", ["maybe", "", "2"])
def test_bad_truth_value_in_the_environment(name: str, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN a variable that is neither true nor false
    monkeypatch.setenv(f"ACCELERATE_DYNAMO_{name}", text)
    # WHEN a plugin is made THEN the error names the variable, its text and what it takes
    with pytest.raises(UsageError) as caught:
        TorchDynamoPlugin()
    assert str(caught.value) == f"ACCELERATE_DYNAMO_{name} is {text!r}; it takes true or false"


def test_bad_backend_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN a misspelt backend WHEN a plugin is made THEN it is refused like one given by hand
    monkeypatch.setenv("ACCELERATE_DYNAMO_BACKEND", "INDUCTR")
    with pytest.raises(UsageError, match=r"no backend 'inductr'.*Did you mean 'inductor'"):
        TorchDynamoPlugin()


def test_bad_mode_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN a mode that does not exist WHEN a plugin is made THEN it is refused like one given by hand
    monkeypatch.setenv("ACCELERATE_DYNAMO_MODE", "fastest")
    with pytest.raises(UsageError, match=r"no mode 'fastest'.*reduce-overhead"):
        TorchDynamoPlugin()


def test_options_are_no_clash_with_a_mode_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN a mode in the environment WHEN options are given by hand THEN they count, and the mode is left out
    monkeypatch.setenv("ACCELERATE_DYNAMO_MODE", "max-autotune")
    plugin = TorchDynamoPlugin(options={"max_autotune": True})
    assert plugin.to_kwargs() == {"options": {"max_autotune": True}}


# -- backends ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["EAGER", "Eager", "eager"])
def test_backend_in_any_case(text: str) -> None:
    # GIVEN a name in some case WHEN it is taken THEN it is the name as torch writes it
    assert TorchDynamoPlugin(backend=text).backend == "eager"


def test_no_backend_compiles_nothing() -> None:
    # GIVEN Accelerate's word for "do not compile" WHEN it is taken THEN torch.compile is told to do nothing
    assert TorchDynamoPlugin(backend="no").to_kwargs() == {"backend": "eager", "disable": True}


def test_accelerates_enumeration() -> None:
    # GIVEN Accelerate's own enumeration of backends
    from accelerate.utils import DynamoBackend

    taken, refused = {}, []
    # WHEN each of them is given
    for backend in DynamoBackend:
        try:
            taken[backend.name] = TorchDynamoPlugin(backend=backend).backend
        except UsageError as error:
            refused.append((backend.value.lower(), str(error)))
    # THEN those that exist here become torch's names, and the message about any other names it
    assert {"NO": "eager", "EAGER": "eager", "AOT_EAGER": "aot_eager", "INDUCTOR": "inductor"}.items() <= taken.items()
    assert set(taken.values()) <= set(list_backends())
    assert refused
    assert all(message.startswith(f"there is no backend {name!r} in this environment.") for name, message in refused)


def test_enumeration_whose_members_are_no_strings() -> None:
    # GIVEN an enumeration of plain members whose values are names WHEN one is given THEN its value counts
    import enum

    class Choice(enum.Enum):
        FIRST = "AOT_EAGER"

    assert TorchDynamoPlugin(backend=Choice.FIRST).backend == "aot_eager"  # type: ignore[arg-type]


def test_unknown_backend_lists_those_that_exist() -> None:
    # GIVEN a backend that does not exist WHEN it is given
    with pytest.raises(UsageError) as caught:
        TorchDynamoPlugin(backend="aot_eagr")
    # THEN the message names it, the nearest one, and all that exist
    message = str(caught.value)
    assert message.startswith("there is no backend 'aot_eagr' in this environment. Did you mean 'aot_eager'")
    assert message.endswith(f"Those that exist: {', '.join(list_backends())}")


def test_list_of_backends_is_torchs() -> None:
    # GIVEN torch's list, those for debugging included WHEN it is asked for THEN it is that, in order
    assert list_backends() == sorted(torch.compiler.list_backends(exclude_tags=()))
    assert {"eager", "inductor", "aot_eager"} <= set(list_backends())


@pytest.mark.parametrize("backend", [5, 1.5, ["inductor"], {}])
def test_backend_of_another_type(backend: Any) -> None:
    # GIVEN neither a name nor a callable WHEN it is given THEN the message says what is taken
    with pytest.raises(UsageError) as caught:
        TorchDynamoPlugin(backend=backend)
    assert str(caught.value) == f"backend takes a name or a callable, not {type(backend).__name__}"


def test_callable_backend() -> None:
    # GIVEN a function WHEN it is given as backend THEN torch is handed the very function, and people its name
    plugin = TorchDynamoPlugin(backend=my_backend)
    assert plugin.to_kwargs() == {"backend": my_backend}
    assert plugin.to_dict()["backend"] == "my_backend"


def test_callable_without_a_name() -> None:
    # GIVEN a callable that has no name WHEN it is told THEN its type stands for it
    assert backend_name(functools.partial(my_backend)) == "partial"


# -- modes and options -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", list_modes())
def test_every_mode_of_torch(mode: str) -> None:
    # GIVEN a mode that torch lists WHEN it is given THEN it is taken
    assert TorchDynamoPlugin(mode=mode).mode == mode


@pytest.mark.parametrize("mode", ["max-autotun", 5, "", "Default"])
def test_unknown_mode_lists_those_that_exist(mode: Any) -> None:
    # GIVEN a mode that does not exist WHEN it is given THEN it is named, and those that exist
    with pytest.raises(UsageError) as caught:
        TorchDynamoPlugin(mode=mode)
    assert str(caught.value).startswith(f"there is no mode {mode!r}.")
    assert str(caught.value).endswith(f"Those that exist: {', '.join(list_modes())}")


def test_near_miss_of_a_mode_is_suggested() -> None:
    # GIVEN a misspelt mode WHEN it is given THEN the right one is named first
    with pytest.raises(UsageError, match="Did you mean 'max-autotune'"):
        TorchDynamoPlugin(mode="max-autotun")


@pytest.mark.parametrize("options", [{}, {"max_autotune": True}])
def test_mode_together_with_options(options: dict[str, Any]) -> None:
    # GIVEN a mode and options WHEN both are given THEN torch's rule is told with the remedy
    with pytest.raises(UsageError, match=r"mode or options, not both.*list_mode_options\('max-autotune'\)"):
        TorchDynamoPlugin(mode="max-autotune", options=options)


def test_mode_of_a_backend_without_modes() -> None:
    # GIVEN a backend that has no modes WHEN a mode is given THEN the message names both and the remedy
    with pytest.raises(UsageError, match=r"mode='max-autotune' is a setting of .* 'eager' has no modes.*out"):
        TorchDynamoPlugin(backend="eager", mode="max-autotune")


def test_default_mode_goes_with_every_backend() -> None:
    # GIVEN a backend that has no modes WHEN the default mode is given THEN nothing is handed on
    assert TorchDynamoPlugin(backend="eager", mode="default").to_kwargs() == {"backend": "eager"}


@pytest.mark.parametrize("name", ["max_autotune", "max-autotune", "triton.cudagraphs"])
def test_option_of_inductor(name: str) -> None:
    # GIVEN an option as inductor lists it, or with hyphens WHEN it is given THEN it is handed on as it is
    assert TorchDynamoPlugin(options={name: True}).to_kwargs() == {"options": {name: True}}


def test_option_of_torch_compile_itself() -> None:
    # GIVEN the option that torch.compile takes out before the backend sees it WHEN it is given THEN it is taken
    options = {"guard_filter_fn": torch.compiler.keep_tensor_guards_unsafe}
    assert TorchDynamoPlugin(options=options).to_kwargs() == {"options": options}


def test_unknown_option_is_named_with_the_nearest() -> None:
    # GIVEN a misspelt option WHEN it is given THEN the message names it, the nearest, and where all are listed
    with pytest.raises(UsageError) as caught:
        TorchDynamoPlugin(options={"max_autotun": True})
    message = str(caught.value)
    assert message.startswith("the inductor backend has no option 'max_autotun'. Did you mean 'max_autotune'")
    assert message.endswith("torch._inductor.list_options() lists those that exist")


def test_option_name_that_is_no_string() -> None:
    # GIVEN a key of another type WHEN it is given THEN it is an option that does not exist
    with pytest.raises(UsageError, match="no option 5"):
        TorchDynamoPlugin(options={5: True})  # type: ignore[dict-item]


def test_option_of_the_wrong_type() -> None:
    # GIVEN an option with a value of another type WHEN it is given THEN the type it takes is named
    with pytest.raises(UsageError) as caught:
        TorchDynamoPlugin(options={"max_autotune": "yes"})
    assert str(caught.value) == "the option 'max_autotune' takes bool, not 'yes'"


@pytest.mark.parametrize("options", [["max_autotune"], "max_autotune", 1])
def test_options_of_another_type(options: Any) -> None:
    # GIVEN options that are no dictionary WHEN they are given THEN the message says what is taken
    with pytest.raises(UsageError) as caught:
        TorchDynamoPlugin(options=options)
    assert str(caught.value) == f"options takes a dictionary, not {type(options).__name__}"


@pytest.mark.parametrize("backend", ["eager", my_backend])
def test_options_of_a_backend_that_takes_none(backend: Any) -> None:
    # GIVEN a backend without such a parameter WHEN options are given THEN the message names it and the remedy
    with pytest.raises(UsageError) as caught:
        TorchDynamoPlugin(backend=backend, options={"level": 1})
    assert str(caught.value) == (
        f"the backend {backend_name(backend)!r} takes no options; leave options out, or use backend='inductor'"
    )


@pytest.mark.parametrize("backend", [with_options, with_anything])
def test_options_of_a_callable_that_takes_them(backend: Any) -> None:
    # GIVEN a callable that names the keyword or takes any WHEN options are given THEN they are handed on unchecked
    assert TorchDynamoPlugin(backend=backend, options={"level": 1}).to_kwargs()["options"] == {"level": 1}


# -- truth values ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("field", ["fullgraph", "disable", "use_regional_compilation"])
@pytest.mark.parametrize("value", ["no", 1, []])
def test_truth_value_of_another_type(field: str, value: Any) -> None:
    # GIVEN something that Python would take for true or false WHEN it is given THEN it is refused, not guessed at
    with pytest.raises(UsageError) as caught:
        TorchDynamoPlugin(**{field: value})
    assert str(caught.value) == f"{field} takes True or False, not {value!r}"


@pytest.mark.parametrize("value", ["auto", 1, 0])
def test_dynamic_of_another_type(value: Any) -> None:
    # GIVEN neither true, false nor None WHEN it is given THEN the message says what is taken
    with pytest.raises(UsageError) as caught:
        TorchDynamoPlugin(dynamic=value)
    assert str(caught.value) == f"dynamic takes True, False or None, not {value!r}"


# -- what comes out ----------------------------------------------------------------------------------------------------


def test_keywords_of_the_defaults_are_none() -> None:
    # GIVEN the defaults WHEN the keywords are asked for THEN there are none: torch's defaults are the same
    assert TorchDynamoPlugin().to_kwargs() == {}


def test_keywords_of_every_setting() -> None:
    # GIVEN all settings at once WHEN the keywords are asked for THEN they are torch.compile's, and no others
    plugin = TorchDynamoPlugin(
        mode="reduce-overhead", fullgraph=True, dynamic=False, disable=True, use_regional_compilation=False
    )
    assert plugin.to_kwargs() == {"mode": "reduce-overhead", "fullgraph": True, "dynamic": False, "disable": True}


def test_keywords_hold_a_copy_of_the_options() -> None:
    # GIVEN options WHEN what to_kwargs() returned is changed THEN the plugin's are as they were
    plugin = TorchDynamoPlugin(options={"max_autotune": True})
    plugin.to_kwargs()["options"].clear()
    assert plugin.options == {"max_autotune": True}


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"backend": "EAGER", "fullgraph": True, "dynamic": True},
        {"mode": "max-autotune"},
        {"options": {"max-autotune": False, "triton.cudagraphs": False}},
        {"backend": my_backend, "dynamic": False},
        {"backend": "no"},
    ],
)
def test_torch_accepts_the_keywords(given: dict[str, Any]) -> None:
    # GIVEN settings that were taken WHEN their keywords go to torch.compile THEN torch takes them too
    assert callable(torch.compile(torch.nn.Linear(2, 2), **TorchDynamoPlugin(**given).to_kwargs()))


@pytest.mark.parametrize(
    "keywords",
    [{"mode": "fastest"}, {"options": {"max_autotun": True}}, {"options": {"max_autotune": "yes"}}],
)
def test_torch_refuses_what_is_refused_here(keywords: dict[str, Any]) -> None:
    # GIVEN a setting that is refused here WHEN torch is given it THEN torch refuses it as well: no check is stricter
    with pytest.raises(UsageError):
        TorchDynamoPlugin(**keywords)
    with pytest.raises(RuntimeError):
        torch.compile(torch.nn.Linear(2, 2), **keywords)


def test_callable_backend_is_called_with_a_graph() -> None:
    # GIVEN a callable backend WHEN a function compiled with the keywords is called
    graphs: list[torch.fx.GraphModule] = []

    def noting(graph: torch.fx.GraphModule, inputs: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    compiled = torch.compile(lambda x: x + 1, **TorchDynamoPlugin(backend=noting).to_kwargs())
    # THEN the backend has seen its graph, and the result is right
    assert compiled(torch.zeros(2)).tolist() == [1.0, 1.0]
    assert len(graphs) == 1


def test_dictionary_is_json() -> None:
    # GIVEN a callable backend and an option that is no plain value WHEN the dictionary is asked for
    plugin = TorchDynamoPlugin(backend=with_options, options={"level": 1, "dtype": torch.float32, "none": None})
    data = plugin.to_dict()
    # THEN every field is in it, plain values as they are and others as their text
    assert tuple(data) == FIELDS
    assert data["backend"] == "with_options"
    assert data["options"] == {"level": 1, "dtype": "torch.float32", "none": None}
    assert json.loads(json.dumps(data)) == data
