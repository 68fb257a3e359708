"""Reports to draw in tests. The figures are made up: round numbers whose sums and ratios can be checked by eye."""

from __future__ import annotations

from nbcompile.report import (
    OUTCOMES,
    Event,
    GraphBreak,
    Group,
    Rank,
    Recompile,
    RegionCheck,
    RegionTime,
    Report,
    Rest,
    Strategy,
    Trial,
    Variant,
)

#: What must never reach a page as it stands: tags, entities, formulas, templates, escapes, half characters.
HOSTILE = (
    "<script>alert(1)</script><img src=x onerror=alert(2)>\"'&amp;$\\href{javascript:a}{b}$%{x}\x1b[31m\ud800\u202e\n"
)


def sample_report() -> Report:
    """A model of thirty blocks, compared under all four strategies."""
    phases = {"dynamo": 0.5, "aot_autograd": 0.25, "inductor": 1.0, "codegen": 0.25, "kernels": 2.0}
    return Report(
        created="2001-02-03T04:05:06Z",
        environment={"torch": "9.9.9", "python": "3.99", "cpu": "a processor", "threads": 2},
        model={"class_name": "SampleForCausalLM", "parameters": 135_000_000, "dtype": "float32", "device": "cpu"},
        settings={"backend": "inductor", "mode": "default", "fullgraph": False, "dynamic": None},
        groups=[
            Group(
                path="model.layers",
                class_name="SampleLayer",
                instances=30,
                compiled=26,
                eager=4,
                variants=[Variant("sliding window", 20, 1, 3.0), Variant("full attention", 6, 1, 1.0)],
                compile_seconds=4.0,
                recompiles=[
                    Recompile("model.layers.1", "layer_idx differs between blocks", "L['self'].layer_idx == 0", 0.5),
                    Recompile("model.layers.2", "layer_idx differs between blocks", "L['self'].layer_idx == 1", 0.5),
                    Recompile("model.layers.3", "layer_idx differs between blocks", "L['self'].layer_idx == 2", None),
                ],
                graph_breaks=[GraphBreak("model.layers.0", "call of print", "model.py:12")],
                phases=phases,
                blocks=[f"model.layers.{index}" for index in range(30)],
                reason="30 siblings of one class",
                graphs=2,
                eager_reason="recompile limit reached",
            )
        ],
        rest=[
            Rest("model.embed_tokens", "Embedding", "eager", "a single kernel gains nothing"),
            Rest("lm_head", "Head", "compile", "several kernels", True, 1.0, {"inductor": 0.5, "kernels": 0.5}, 1),
        ],
        strategies={
            "regional": Strategy(
                cold_seconds=5.0,
                cold_repeats=3,
                steady_seconds=0.05,
                steady_spread=0.004,
                steady_repeats=20,
                peak_bytes=1_500_000_000,
                max_abs_diff=2.5e-6,
                break_even_calls=100,
                graphs=3,
                regions=[
                    RegionTime("model.layers", "SampleLayer", 4.0, phases, 2),
                    RegionTime("lm_head", "Head", 1.0, {"inductor": 0.5, "kernels": 0.5}, 1),
                ],
                checks=[
                    RegionCheck("model.layers.0", "SampleLayer", 0.0, 0.0, 2.0),
                    RegionCheck("model.layers.1", "SampleLayer", 0.25, 0.5, 2.0, True),
                    RegionCheck("lm_head", "Head", note="not comparable: it draws random numbers"),
                ],
                first_drift="model.layers.1",
                cold_cpu_seconds=8.0,
                steady_cpu_seconds=0.1,
                steady_ratio=0.5,
                steady_ratio_low=0.48,
                steady_ratio_high=0.53,
                disturbed_rounds=1,
                dispatch_seconds=2e-5,
                dispatch_spread=1e-6,
                dispatch_repeats=15,
                dispatch_calls=30,
            ),
            "eager": Strategy(
                cold_seconds=0.2,
                cold_repeats=3,
                steady_seconds=0.1,
                steady_spread=0.01,
                steady_repeats=20,
                peak_bytes=1_000_000_000,
                max_abs_diff=0.0,
            ),
            "full": Strategy(
                cold_seconds=40.0,
                cold_repeats=3,
                steady_seconds=0.04,
                steady_spread=0.002,
                steady_repeats=20,
                peak_bytes=2_000_000_000,
                max_abs_diff=3e-6,
                break_even_calls=665,
                graphs=1,
                regions=[
                    RegionTime(
                        "",
                        "SampleForCausalLM",
                        40.0,
                        {"dynamo": 8.0, "aot_autograd": 4.0, "inductor": 10.0, "codegen": 3.0, "kernels": 14.0},
                        1,
                    )
                ],
            ),
            "hierarchical": Strategy(
                cold_seconds=12.0,
                cold_repeats=3,
                steady_seconds=0.099,
                steady_spread=0.01,
                steady_repeats=20,
                graphs=1,
                regions=[RegionTime("", "SampleForCausalLM", 12.0, {"dynamo": 6.0, "kernels": 6.0}, 1)],
                notes=["experimental"],
            ),
        },
        timeline=[Event("model.layers", "dynamo", 0.0, 0.5)],
        notes=["the cache was empty"],
    )


def _trial(strategy: str, cold: float | None, steady: float | None, outcome: str = "measured", **more: str) -> Trial:
    compiled = {} if strategy == "eager" else {"backend": "inductor", "mode": "default", "dynamic": None}
    rest = {"rest": "auto"} if strategy == "regional" else {}
    figures = Strategy() if cold is None else Strategy(cold, 1, steady, 0.001, 9)
    if compiled and cold is not None:
        figures.regions = [
            RegionTime("model.layers", "SampleLayer", cold, {"inductor": cold / 2, "kernels": cold / 2}, 1)
        ]
    reason = "" if outcome == "measured" else f"{outcome} for a reason"
    return Trial({"strategy": strategy, **compiled, **rest, **more}, figures, outcome, reason)


def tuned_report() -> Report:
    """A tuning for 1000 calls with an entry of every outcome.

    Eager (1/8 s a call) is the best up to 79 calls, regional (5 s, then 1/16 s) up to 3001, full (1/32 s) beyond.
    """
    return Report(
        created="2001-02-03T04:05:06Z",
        environment={"torch": "9.9.9", "cpu": "a processor", "threads": 2, "device": "cpu"},
        model={"class_name": "SampleForCausalLM", "parameters": 135_000_000, "dtype": "float32", "device": "cpu"},
        settings={"calls": 1000, "budget": 180.0},
        tuning=[
            _trial("eager", 0.125, 0.125),
            _trial("regional", 5.0, 0.0625),
            _trial("full", 98.75, 0.03125),
            _trial("regional", 6.0, 0.07, "stopped", rest="compile"),
            _trial("regional", 4.0, 0.01, "wrong", backend="hasty"),
            _trial("regional", None, None, "failed", backend="broken"),
            _trial("full", None, None, "skipped", mode="max-autotune"),
        ],
        notes=["the cache was empty"],
    )


def paired_report() -> Report:
    """Six settings whose rounds were paired with eager's: two level with each other, one with eager, one slower.

    The last but one has ends that cannot be an interval's, so that its spread decides.
    """
    bands = {
        "regional": (4.0, 0.5, 0.48, 0.53),
        "full": (40.0, 0.49, 0.46, 0.52),  # level with regional, and dearer
        "regional, rest=compile": (6.0, 0.4, 0.39, 0.41),  # clearly faster than both
        "full, mode=max-autotune": (90.0, 0.99, 0.9, 1.1),
        "full, backend=wrong-way": (50.0, 0.45, 0.5, 0.4),
        "full, backend=slow": (1.0, 1.25, 1.2, 1.3),
    }
    found = [Trial({"strategy": "eager"}, Strategy(0.125, 1, 0.125, 0.01, 8))]
    for name, (cold, ratio, low, high) in bands.items():
        strategy, _, other = name.partition(", ")
        axis, _, value = other.partition("=")
        figures = Strategy(cold, 1, 0.125 * ratio, 0.01, 8, steady_ratio=ratio)
        figures.steady_ratio_low, figures.steady_ratio_high = low, high
        found.append(Trial({"strategy": strategy, **({axis: value} if axis else {})}, figures))
    return Report(settings={"calls": 100_000}, model={"class_name": "Paired"}, tuning=found)


def hostile_tuning(long_times: int = 5000) -> Report:
    """A tuning whose every string is an attack and whose every number is at its limit.

    Long strings are the attack so many times over.
    """
    text, long = HOSTILE, HOSTILE * long_times
    figures = [
        Strategy(cold, 1, steady, 1e-300, -5, notes=[long]) for cold in (0.0, 1e308) for steady in (5e-324, 1e99)
    ]
    trials = [
        Trial(
            {"strategy": text + str(number), "backend": text, "mode": text, "dynamic": None, "rest": text},
            found,
            outcome,
            long,
        )
        for number, found in enumerate(figures * 10)
        for outcome in OUTCOMES
    ]
    return Report(
        settings={"calls": -(10**400), "budget": text}, tuning=[Trial({"strategy": "eager"}, figures[1]), *trials]
    )


def many_regions(number: int) -> Report:
    """A report of ``number`` groups, each compiled in as many seconds as its index, plus one."""
    return Report(
        model={"class_name": "Wide"},
        groups=[
            Group(f"stage{index}.blocks", "Block", 2, 2, compile_seconds=index + 1.0, phases={"dynamo": index + 1.0})
            for index in range(number)
        ],
    )


def hostile_report(long_times: int = 5000) -> Report:
    """Every string an attack, every number at its limit; the loader would let all of it pass.

    Long strings are the attack so many times over; written as JSON with those of the default it takes gigabytes.
    """
    text, long = HOSTILE, HOSTILE * long_times
    odd = {"dynamo": -1.0, text: 3.0, "kernels": 1e308, "inductor": 1e99}
    strategies = {
        text + str(index): Strategy(
            cold_seconds=3.0,
            cold_repeats=10**400,
            steady_seconds=10.0 ** -(index % 12),
            steady_spread=1e308 if index % 2 else -1.0,
            steady_repeats=-5,
            peak_bytes=10**400,
            max_abs_diff=1e308,
            break_even_calls=10**400 if index % 2 else 7,
            graphs=-(10**400),
            regions=[RegionTime(text + str(region), long, 1.0, odd, 10**400) for region in range(50)],
            checks=[RegionCheck(text + str(region), long, 1e308, -1.0, 1e99, True, long) for region in range(50)],
            first_drift=text + "7",
            failure=long,
            notes=[long, text],
        )
        for index in range(40)
    }
    strategies["eager"] = Strategy(cold_seconds=0.0, steady_seconds=1e-300, steady_spread=1e-300)
    return Report(
        created=long,
        environment={text: long, "torch": {text: [text, 10**400, 1e308]}, "cpu": [[[[[text]]]]], "device": None},
        model={"class_name": text, "parameters": 10**400, "dtype": [text], "device": {text: text}},
        settings={text: text, "options": {text: {text: {text: text}}}, "mode": True},
        groups=[
            Group(
                path=text,
                class_name=long,
                instances=10**400,
                compiled=-3,
                eager=1,
                variants=[Variant(text, -1, 10**400, 1e308), Variant(long, 0)],
                compile_seconds=1e308,
                recompiles=[Recompile(text, long, text, 1e308), Recompile(text, long, text, None)],
                graph_breaks=[GraphBreak(text, text, long)],
                phases=odd,
                blocks=[text],
                reason=text,
                graphs=-1,
                eager_reason=text,
                failure=long,
            )
        ]
        * 30,
        rest=[Rest(text, text, text, long, True, -1.0, odd, -1)],
        strategies=strategies,
        notes=[long, text] * 200,
    )


def several_ranks(*, slow: float | None = 9.0) -> Report:
    """A report of three ranks: the second one compiled again alone, the third took ``slow`` seconds."""
    both = [Recompile("layers.0", f"x changed its size in dimension 1 from 16 to {size}", "guard") for size in (24, 32)]
    alone = Recompile("layers.3", "x changed its dtype", "guard")
    return Report(
        ranks=[
            Rank(0, "a", 4, 4, 0, 2, 5.0, 1.5, [both[0]]),
            Rank(1, "a", 4, 3, 1, 3, 6.0, 1.5, [both[1], alone]),
            Rank(2, "b", 4, 4, 0, 2, slow, 2.5, [both[0]]),
        ]
    )
