"""Which of several processes that train one model this one is. Loads nothing."""

from __future__ import annotations

import sys
from typing import Any


def this_rank() -> int | None:
    """The rank of this process; ``None`` if it is not one of several that train together."""
    distributed: Any = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    return int(distributed.get_rank())


def draws() -> bool:
    """Whether this process shows what all have in common: of several ranks the first one alone."""
    return this_rank() in (None, 0)
