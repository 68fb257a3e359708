"""The compiler's cache in one file, for a machine that starts empty: what was compiled here, to be loaded there.

The file holds torch's own cache artifacts (``torch.compiler.save_cache_artifacts``), and the C++ kernels that belong to
them, which torch leaves out. Both are code: whoever loads the file runs it.

It is a zip archive: ``header.json`` says what it was made for and has a checksum of each other part.
"""

from __future__ import annotations

import contextlib
import datetime
import hashlib
import json
import os
import platform
import re
import subprocess
import tempfile
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from . import cache
from .errors import UsageError

_FORMAT = 1
_HEADER, _ARTIFACTS, _KERNELS = "header.json", "artifacts", "kernels/"
#: Names of kernels as the compiler gives them; anything else in their place is refused.
_KERNEL = re.compile(r"kernels/([a-z0-9]{2}/[A-Za-z0-9_.-]+\.so)")
#: What has to be the same where a cache is loaded, with words for it.
_SAME = {
    "torch": "torch",
    "python": "Python",
    "system": "operating system",
    "device": "device",
    "processor": "processor",
    "vectors": "vector instructions",
    "compiler": "C++ compiler",
}


def save_cache(file: str | os.PathLike[str], *, overwrite: bool = False) -> dict[str, Any]:
    """Write what has been compiled in this process to a file, for :func:`load_cache` on a machine like this one.

    The file holds code. It holds none of the model's weights and none of your data.

    Args:
        file: where to write. It is there when it is whole: another process never sees half of it.
        overwrite: replace a file that exists.

    Returns:
        The header of the file: what it was made for, and how many graphs and kernels are in it.

    Raises:
        UsageError: nothing has been compiled in this process, the file exists, or it cannot be written.
    """
    import torch

    path = Path(file)
    if path.exists() and not overwrite:
        raise UsageError(f"{path} exists; save_cache(..., overwrite=True) replaces it")
    saved = torch.compiler.save_cache_artifacts()
    if saved is None:
        raise UsageError(
            "nothing has been compiled in this process that could be saved; run the compiled model once, then save"
        )
    content, info = saved
    kernels = {f"{_KERNELS}{name}": data for name, data in _loaded_kernels()}
    graphs = sum(len(keys) for kind, keys in vars(info).get("artifacts", {}).items() if kind == "inductor")
    header = {
        "format": _FORMAT,
        "created": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "made_for": made_for(),
        "graphs": graphs,
        "kernels": len(kernels),
        "checksums": {
            name: hashlib.sha256(data).hexdigest() for name, data in {**kernels, _ARTIFACTS: content}.items()
        },
    }
    try:
        descriptor, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.absolute().parent)
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror or error}") from error
    try:
        with os.fdopen(descriptor, "wb") as stream, zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr(_HEADER, json.dumps(header, indent=1))
            for name, data in {_ARTIFACTS: content, **kernels}.items():
                archive.writestr(name, data)
        os.chmod(temporary, 0o666 & ~_umask())
        os.replace(temporary, path)
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror or error}") from error
    finally:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
    return header


def load_cache(file: str | os.PathLike[str]) -> dict[str, Any]:
    """Put into the compiler's cache what :func:`save_cache` has written, so that the next compile finds it there.

    **The file is code**: pickles and machine code, which run in this process when they are used. Load only a file that
    you have made, or that comes from someone you would run a program of. So nothing is ever loaded unasked.

    Args:
        file: what to load.

    Returns:
        The header of the file.

    Raises:
        UsageError: there is no such file, it is damaged, or it was made for another torch, device, processor or
            compiler; the message says which. Nothing has been loaded then.
    """
    import torch

    path = Path(file)
    header, parts = _read(path)
    here = made_for()
    differing = [
        f"{words} {header['made_for'].get(name)!r}, here {here[name]!r}"
        for name, words in _SAME.items()
        if header["made_for"].get(name) != here[name]
    ]
    if differing:
        raise UsageError(f"{path} was made for another machine or installation: {'; '.join(differing)}")
    cache.require_folder()
    folder = cache.cache_folder()
    try:
        for name, data in parts.items():
            found = _KERNEL.fullmatch(name)
            if found is not None:
                _place(folder / found[1], data)
    except OSError as error:
        raise UsageError(
            f"the compiler's cache folder {folder} cannot be written to: {error.strerror or error}; {cache.REMEDY}"
        ) from error
    if torch.compiler.load_cache_artifacts(parts[_ARTIFACTS]) is None:
        raise UsageError(f"{path} is damaged: torch cannot read the artifacts in it")
    return header


def made_for() -> dict[str, str]:
    """What compiled code depends on, of this machine and installation."""
    import torch

    device = "cpu"
    if torch.cuda.is_available():
        device = f"{torch.cuda.get_device_name()}, CUDA {torch.version.cuda or torch.version.hip}"
    return {
        "torch": str(torch.__version__),
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "device": device,
        "processor": _processor(),
        "vectors": torch.backends.cpu.get_cpu_capability(),
        "compiler": _compiler(),
    }


def _read(path: Path) -> tuple[dict[str, Any], dict[str, bytes]]:
    """A file's header and its other parts, each checked."""
    damaged = f"{path} is damaged or cut off, or no file of nbcompile.save_cache"
    try:
        with zipfile.ZipFile(path) as archive:
            header = json.loads(archive.read(_HEADER))
            if header["format"] != _FORMAT:
                raise UsageError(f"{path} has the format {header['format']!r}; this nbcompile reads {_FORMAT}")
            parts = {name: archive.read(name) for name in header["checksums"]}
            if not isinstance(header["made_for"], dict) or _ARTIFACTS not in parts:
                raise UsageError(damaged)
    except FileNotFoundError:
        raise UsageError(f"there is no file {path}") from None
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror or error}") from error
    except UsageError:
        raise
    # What zipfile says of an archive that is damaged, encrypted or packed in another way, and what a header of another
    # shape leads to. Whatever it is, it is the file's fault.
    except (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError, ValueError, LookupError, TypeError) as error:
        raise UsageError(f"{damaged}: {error}") from error
    for name, data in parts.items():
        if hashlib.sha256(data).hexdigest() != header["checksums"][name]:
            raise UsageError(f"{damaged}: the checksum of {name} is another")
        if name != _ARTIFACTS and not _KERNEL.fullmatch(name):
            raise UsageError(f"{damaged}: it has a part {name!r}")
    return header, parts


def _place(library: Path, data: bytes) -> None:
    if library.exists() and not cache.cut(library):
        return
    library.parent.mkdir(parents=True, exist_ok=True)
    descriptor, temporary = tempfile.mkstemp(prefix=f".{os.getpid()}.", suffix=".tmp", dir=library.parent)
    try:
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(data)
        os.chmod(temporary, 0o755)
        os.replace(temporary, library)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise


def _loaded_kernels() -> Iterator[tuple[str, bytes]]:
    """The C++ kernels of the cache folder that this process has loaded: the system tells what is mapped."""
    folder = cache.cache_folder()
    found: dict[str, None] = {}
    with contextlib.suppress(OSError), open("/proc/self/maps", encoding="utf-8", errors="surrogateescape") as maps:
        for line in maps:
            name = line.rstrip("\n").partition("/")[2]
            if name.endswith(".so"):
                found[f"/{name}"] = None
    for name in found:
        with contextlib.suppress(OSError, ValueError):
            inside = Path(name).relative_to(folder.resolve()).as_posix()
            if _KERNEL.fullmatch(_KERNELS + inside):
                yield inside, Path(name).read_bytes()


def _processor() -> str:
    with contextlib.suppress(OSError), open("/proc/cpuinfo", encoding="utf-8") as file:
        for line in file:
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _compiler() -> str:
    """The C++ compiler's own word for its version, ``"none"`` if there is none."""
    try:
        from torch._inductor.cpp_builder import get_cpp_compiler

        command = get_cpp_compiler()
        done = subprocess.run([command, "--version"], capture_output=True, text=True, timeout=30, check=True)
    except Exception:  # torch has errors of its own for it
        return "none"
    return done.stdout.partition("\n")[0].strip()


def _umask() -> int:
    value = os.umask(0o022)
    os.umask(value)
    return value
