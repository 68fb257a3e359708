"""What the compiler did, told region by region.

The compiler keeps a record of every frame it compiled (``torch._dynamo.utils.get_compilation_metrics``) and of every
graph break. A record names its compile by an id and knows nothing of regions; this module gives each record to the
region that owns the id. An id becomes a region's when the region's backend is called under it, so a backward graph,
which is compiled later and in another place, still finds its region.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import torch._dynamo.utils

from . import breaks, causes
from .causes import Cause


@dataclass(frozen=True)
class Compile:
    """One compile of one frame, forward or backward.

    Attributes:
        block: path of the block whose call caused it.
        forward: false for a backward graph.
        start: seconds since the epoch.
        seconds: wall time.
        phases: exclusive seconds by phase, see ``report.PHASES``; they add up to ``seconds``.
        made_graph: whether code came out of it.
        recompile_reason: the guard that failed, as the compiler wrote it, if this was a recompile.
        failure: the compiler's message if it failed, its type first.
        hit_limit: whether the recompile limit forbade it.
        cause: why it was a recompile, once the call that it happened in has been looked at.
    """

    block: str
    forward: bool
    start: float
    seconds: float
    phases: dict[str, float]
    made_graph: bool
    recompile_reason: str = ""
    failure: str = ""
    hit_limit: bool = False
    cause: Cause | None = None


@dataclass(frozen=True)
class Break:
    """A graph break: the compiler's reason, and the innermost place in Python code."""

    block: str
    reason: str
    location: str
    remedy: str


@dataclass
class Log:
    """What happened to one variant."""

    compiles: list[Compile] = field(default_factory=list)
    breaks: list[Break] = field(default_factory=list)


class Owner(Protocol):
    """Whoever a compile belongs to."""

    log: Log


@dataclass(frozen=True)
class _Claim:
    at: float
    owner: weakref.ref[Any]
    block: str
    waited: float


_lock = threading.RLock()
#: By compile id who claimed it, oldest first: ``torch._dynamo.reset()`` starts the ids anew.
_claims: dict[str, list[_Claim]] = {}
_last_record: Any = None


def frames_seen() -> int:
    """How often the compiler has looked at a frame in this process; if it did not change, nothing was compiled.

    ``torch._dynamo.utils.counters`` is read as it is documented for users; checked on torch 2.11 and 2.13.
    """
    return torch._dynamo.utils.counters["frames"]["total"]


def breaks_seen() -> int:
    """How many graph breaks the compiler has noted in this process."""
    return len(torch._dynamo.utils.graph_break_reasons)


def current_compile_id() -> str:
    """The id of the compile that is going on in this thread, ``""`` outside of one. Checked on torch 2.11 and 2.13."""
    from torch._guards import CompileContext

    return str(CompileContext.current_compile_id() or "")


def claim(owner: Owner, block: str, waited: float = 0.0) -> None:
    """Say that the compile going on in this thread belongs to ``owner``, caused by a call of ``block``.

    Args:
        waited: seconds of it that were none of its own, spent on the compiler's start-up.
    """
    compile_id = current_compile_id()
    if compile_id:
        with _lock:
            _claims.setdefault(compile_id, []).append(_Claim(time.time(), weakref.ref(owner), block, waited))


def claimant(compile_id: str) -> Any:
    """Who claimed the newest compile with this id; ``None`` if nobody did, or who did is gone."""
    with _lock:
        claims = _claims.get(compile_id)
        return claims[-1].owner() if claims else None


def collect(owner: Owner | None = None, block: str = "", *, since: float = 0.0, breaks_before: int = 0) -> None:
    """Hand all new records to their owners.

    Args:
        owner: who gets records of forward compiles that nobody claimed: frames that never reached a backend.
        block: the block whose call has just ended.
        since: when that call began, in seconds since the epoch; earlier records are not the owner's.
        breaks_before: :func:`breaks_seen` when it began; later breaks are the owner's.
    """
    global _last_record
    with _lock:
        records = list(torch._dynamo.utils.get_compilation_metrics())
        new = records
        for index in range(len(records) - 1, -1, -1):
            if records[index] is _last_record:
                new = records[index + 1 :]
                break
        if records:
            _last_record = records[-1]
        for record in new:
            claim = _claim_on(record)
            found, caller = (None, "") if claim is None else (claim.owner(), claim.block)
            unclaimed = claim is None and record.is_forward is not False
            if unclaimed and owner is not None and _started(record) >= since:
                found, caller = owner, block
            if found is not None:
                found.log.compiles.append(_compile(record, caller, claim.waited if claim is not None else 0.0))
        if owner is not None:
            for reason in torch._dynamo.utils.graph_break_reasons[breaks_before:]:
                owner.log.breaks.append(_break(reason, block))


def forget_dead_owners() -> None:
    """Drop the claims of owners that are gone."""
    with _lock:
        for compile_id, claims in list(_claims.items()):
            alive = [claim for claim in claims if claim.owner() is not None]
            if alive:
                _claims[compile_id] = alive
            else:
                del _claims[compile_id]


def _claim_on(record: Any) -> _Claim | None:
    """Who claimed a compile: a forward one while it went on, a backward one at any time before it."""
    ended = (record.end_time_us or 0) / 1e6
    earliest = 0.0 if record.is_forward is False else _started(record)
    claims = [claim for claim in _claims.get(record.compile_id or "", ()) if earliest <= claim.at <= ended]
    return claims[-1] if claims else None


def _started(record: Any) -> float:
    """When a compile began, in seconds since the epoch."""
    return (record.start_time_us or 0) / 1e6


def _compile(record: Any, block: str, waited: float = 0.0) -> Compile:
    """A compile from the compiler's own record (a ``CompilationMetrics``)."""

    def seconds(name: str) -> float:
        return (getattr(record, name, None) or 0) / 1e6

    started, ended = seconds("start_time_us"), seconds("end_time_us")
    wall = max(ended - started, 0.0)
    phases = split(seconds, wall=wall, forward=record.is_forward is not False)
    start_up = min(waited, phases.get("aot_autograd", 0.0))  # the record counts it there
    if start_up > 0:
        phases["aot_autograd"] -= start_up
        phases["other"] = phases.get("other", 0.0) + start_up
    failure = ": ".join(str(part) for part in (record.fail_type, record.fail_reason) if part)
    hit_limit = "recompile limit" in failure.lower() or "RecompileLimit" in failure
    return Compile(
        block=block,
        forward=record.is_forward is not False,
        start=started,
        seconds=wall,
        phases=phases,
        made_graph=bool(record.graph_op_count) and not failure,
        recompile_reason=record.recompile_reason or "",
        failure="" if hit_limit else failure,
        hit_limit=hit_limit,
    )


def split(seconds: Callable[[str], float], *, wall: float, forward: bool) -> dict[str, float]:
    """Exclusive time per phase, from the compiler's nested totals.

    The records hold whole times: Dynamo's contains AOT autograd's, which contains Inductor's, which contains code
    generation's, which contains the wait for the C++ or Triton compilers. Each phase here is its own total less what
    is inside it. All of a backward graph's time is the phase ``backward``, its kernels too. Of a forward graph what the
    records do not name is ``other``; the phases add up to ``wall``.

    Args:
        seconds: looks a field of ``CompilationMetrics`` up and gives it in seconds.
    """
    if not forward:
        return {"backward": wall} if wall > 0 else {}
    kernels = seconds("triton_compile_time_us")  # the name is historical: it is the wait for C++ compilers too
    codegen = seconds("inductor_code_gen_cumulative_compile_time_us")
    inductor = seconds("inductor_cumulative_compile_time_us")
    backward = seconds("backward_cumulative_compile_time_us")
    aot = seconds("aot_autograd_cumulative_compile_time_us")
    dynamo = seconds("dynamo_cumulative_compile_time_us")
    phases = {
        "dynamo": dynamo - aot,
        "aot_autograd": aot - inductor - backward,
        "inductor": inductor - codegen,
        "codegen": codegen - kernels,
        "kernels": kernels,
        "backward": backward,
    }
    phases = {name: value for name, value in phases.items() if value > 0}
    named = sum(phases.values())
    if named > wall > 0:  # clocks of the parts may overlap by rounding; never claim more than was spent
        phases = {name: value * wall / named for name, value in phases.items()}
    elif wall > named:
        phases["other"] = wall - named
    return phases


def _break(reason: Any, block: str) -> Break:
    """A graph break from the compiler's record, at a line that is not this package's."""
    told = breaks.explain_break(str(reason.reason))
    stack = [frame for frame in reason.user_stack if "nbcompile" not in Path(frame.filename).parts[-2:]]
    location = causes.place_in([(frame.filename, frame.lineno or 0) for frame in stack])
    return Break(block, told.reason, location, told.remedy)
