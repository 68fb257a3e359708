"""Several processes that train one model, and one report of all of them.

Each process (*rank*) compiles for itself, and each has a report of its own. What only shows side by side is which rank
compiled longer than the others, and which compiled again while the others did not: those wait for it, in the next
exchange of gradients or weights.
"""

from __future__ import annotations

import json
import socket
from typing import Any

from torch import nn

from . import compiler
from .errors import UsageError
from .parallel import this_rank
from .report import Group, Rank, Report, Rest


def gather_report(model: nn.Module, *, group: Any = None) -> Report | None:
    """One report of all ranks, on the first of them: its own, with every rank's figures side by side in ``ranks``.

    A collective: every rank of the process group has to call it. In a process that is not one of several it is
    :func:`nbcompile.report`, with no ranks.

    Args:
        group: the process group, by default all ranks.

    Returns:
        The report on the first rank of the group; ``None`` on the others, which thus draw nothing.

    Raises:
        UsageError: this package has not compiled the model: on the rank where that is so, and on the first one.
    """
    if this_rank() is None:
        return compiler.report(model)
    from torch import distributed

    number, size = distributed.get_rank(group), distributed.get_world_size(group)
    first = distributed.get_global_rank(group, 0) if group is not None else 0
    refused: UsageError | None = None
    try:
        own = compiler.report(model)
        own.ranks = [_figures(own)]
        told = own.to_json()
    except UsageError as error:  # told all the same: else the others would wait for this rank
        refused, told = error, json.dumps({"rank": this_rank(), "refused": str(error)})
    texts: list[Any] | None = [None] * size if number == 0 else None
    distributed.gather_object(told, texts, dst=first, group=group)
    if refused is not None:
        raise refused
    if texts is None:
        return None
    for said in map(json.loads, texts):
        if "refused" in said:
            raise UsageError(f"rank {said['rank']} has no report: {said['refused']}")
    own.ranks = [Report.from_json(text).ranks[0] for text in texts]
    return own


def _figures(report: Report) -> Rank:
    """What a rank tells the first one of its own report."""
    parts: list[Group | Rest] = [*report.groups, *report.rest]
    times = [part.compile_seconds for part in parts if part.compile_seconds is not None]
    return Rank(
        rank=this_rank() or 0,
        host=socket.gethostname(),
        instances=sum(group.instances for group in report.groups),
        compiled=sum(group.compiled for group in report.groups),
        eager=sum(group.eager for group in report.groups),
        graphs=sum(part.graphs for part in parts),
        compile_seconds=sum(times) if times else None,
        backward_seconds=sum(part.phases.get("backward", 0.0) for part in parts) if times else None,
        recompiles=[again for group in report.groups for again in group.recompiles],
    )
