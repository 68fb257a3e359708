"""The compiler's cache folder: where it is, and whether it can be used."""

from __future__ import annotations

import getpass
import os
import re
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

from .errors import UsageError

REMEDY = "set TORCHINDUCTOR_CACHE_DIR to a folder that can be written to and restart the kernel"


def cache_folder() -> Path:
    """Where inductor keeps what it compiled. Unlike torch's own function for it this creates nothing."""
    folder = os.environ.get("TORCHINDUCTOR_CACHE_DIR")
    if folder is None:
        utils = sys.modules.get("torch._inductor.runtime.cache_dir_utils")
        default = getattr(utils, "default_cache_dir", None)  # private: it may go, or be renamed
        folder = _default_cache_folder() if default is None else str(default())
    return Path(os.path.abspath(folder))


def _default_cache_folder() -> str:
    try:
        user = getpass.getuser()
    except (KeyError, ImportError, OSError):  # a container whose user has no name
        user = f"uid_{os.getuid()}" if hasattr(os, "getuid") else "unknown_user"
    return os.path.join(tempfile.gettempdir(), "torchinductor_" + re.sub(r'[\\/:*?"<>|]', "_", user))


def obstacle(folder: Path) -> str:
    """Why a folder cannot be the cache, as the end of a sentence about it; ``""`` if it can. Creates nothing."""
    if folder.is_dir():
        return "" if os.access(folder, os.W_OK | os.X_OK) else "cannot be written to"
    if folder.exists():
        return "is not a folder"
    above = next(parent for parent in folder.parents if parent.exists())
    if not above.is_dir() or not os.access(above, os.W_OK | os.X_OK):
        return f"does not exist and cannot be created in {above}"
    return ""


def require_folder() -> None:
    """Refuse to go on with a cache folder that cannot be used, before torch's compiler is imported.

    Importing ``torch._dynamo`` creates the folder. Where that fails the import fails half way, and cannot be repeated
    in the process (seen with torch 2.13). Once it has been imported this does nothing.

    Raises:
        UsageError: the folder cannot be created or written to.
    """
    if "torch._dynamo" in sys.modules:
        return
    folder = cache_folder()
    wrong = obstacle(folder)
    if wrong:
        raise UsageError(
            f"the compiler's cache folder {folder} {wrong}. Set TORCHINDUCTOR_CACHE_DIR to a folder that can be "
            "written to (os.environ['TORCHINDUCTOR_CACHE_DIR'] = ...) and call again"
        )


def mend(pid: int | None = None, *, since: float = 0.0) -> list[Path]:
    """Remove what a process that was ended has left half done in the cache folder: the files that it removed.

    The compiler takes any library that lies where it looks; one that was cut off fails to load, every time.

    Args:
        pid: also remove what this process was about to move to its place.
        since: look at files only that were changed since then; seconds since the epoch.
    """
    removed = []
    for parent, _, names in os.walk(cache_folder()):
        for name in names:
            file = Path(parent, name)
            half = pid is not None and name.startswith(f".{pid}.") and name.endswith(".tmp")
            try:
                if not half and not (name.endswith(".so") and file.stat().st_mtime >= since - 1 and cut(file)):
                    continue
                file.unlink()
            except OSError:  # someone else has removed it, or it cannot be removed
                continue
            removed.append(file)
    return removed


def cut(library: Path) -> bool:
    """Whether a library for Linux is shorter than its own head says.

    Raises:
        OSError: it cannot be read.
    """
    size = library.stat().st_size
    with open(library, "rb") as file:
        head = file.read(64)
    if sys.platform != "linux":
        return size == 0
    if len(head) < 64 or head[:4] != b"\x7fELF":
        return True
    if head[4] != 2:  # of 64 bits are all that the compiler makes
        return False
    order: Any = "little" if head[5] == 1 else "big"
    # the table of sections comes last, and each is where the table says; see elf(5)
    table, each, number = (int.from_bytes(head[a:b], order) for a, b in ((40, 48), (58, 60), (60, 62)))
    return table == 0 or size < table + each * number


def is_cut_short(error: BaseException | None) -> bool:
    """Whether an error, or what caused it, is of the loader about a library that is not whole."""
    while error is not None:
        text = str(error)
        if any(words in text for words in ("file too short", "invalid ELF header", "cannot read file data")):
            return True
        error = error.__cause__ or error.__context__
    return False


#: What the compiler makes in its cache folder; a folder may hold other things, too, which are nobody's here to remove.
_MADE = re.compile(
    r"[0-9a-z]{2}|\.?triton|fxgraph|aotautograd|cache|locks|dynamo|bundled_autotune|precompiled_headers|pgo|aot_compiled"
    r"|nbcompile-(compiled|background)|nbcompile-start-up\.json(\.\d+)?|\.\d+\.\d+\.tmp"
)


def clean() -> tuple[int, int, list[str]]:
    """Remove what the compiler keeps in its cache folder; what is loaded in a process stays in use there.

    Returns:
        The number of files removed, their size in bytes, and the names in the folder that are not the compiler's, or
        could not be removed.
    """
    folder = cache_folder()
    files, size, left = 0, 0, []
    if not folder.is_dir():
        return 0, 0, []
    for entry in sorted(folder.iterdir()):
        if entry.is_symlink() or not _MADE.fullmatch(entry.name):
            left.append(entry.name)
            continue
        inside = [entry] if entry.is_file() else [path for path in entry.rglob("*") if path.is_file()]
        for path in inside:
            try:
                length = path.lstat().st_size
                path.unlink()
            except OSError:
                continue
            files, size = files + 1, size + length
        if entry.is_dir():
            shutil.rmtree(entry, ignore_errors=True)
        if entry.exists():
            left.append(entry.name)
    return files, size, left
