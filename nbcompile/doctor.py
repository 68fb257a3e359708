"""Checks of what compiling needs: plain data, and its text.

Nothing is changed or created: a check looks, starts at most ``c++ --version``, and says what it found. One looks for
half a second at what other processes do.
"""

from __future__ import annotations

import contextlib
import html
import importlib.metadata
import os
import platform
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from . import cache, cores, warmup
from .cache import cache_folder
from .render.units import size as readable_size

OLDEST_PYTHON = (3, 11)
OLDEST_TORCH = (2, 11)
#: Triton generates no code for GPUs older than this.
OLDEST_CAPABILITY = (7, 0)

#: Another process that uses less of a core than this is not worth a word; so many are named.
_NOTED_SHARE, _NAMED = 0.05, 4

_WORDS = {True: "ok", False: "missing", None: "note"}
#: The names under which Triton is published.
_TRITON = ("triton", "pytorch-triton", "pytorch-triton-rocm", "triton-windows")
_PACKAGES = {
    "plotly": "for charts that can be zoomed and hovered over",
    "ipywidgets": "for buttons in a notebook",
    "transformers": "for language models; not needed otherwise",
    "accelerate": "for its Accelerator; not needed otherwise",
    "jupyterlab": "for notebooks in a browser; not needed otherwise",
}


@dataclass(frozen=True)
class Check:
    """One thing that was looked at.

    Attributes:
        name: what was looked at.
        ok: true if it is as compiling needs it, false if compiling cannot work so, ``None`` if it does not decide that.
        found: what is there.
        remedy: what to do about it; ``""`` if there is nothing to do.
    """

    name: str
    ok: bool | None
    found: str
    remedy: str = ""


@dataclass(frozen=True)
class Diagnosis:
    """All checks of an environment. Printing it shows aligned lines, a notebook shows a table."""

    checks: tuple[Check, ...]

    @property
    def ok(self) -> bool:
        """Whether nothing is missing that compiling needs."""
        return all(check.ok is not False for check in self.checks)

    def to_dict(self) -> dict[str, Any]:
        """The checks as JSON-ready data."""
        return {"ok": self.ok, "checks": [asdict(check) for check in self.checks]}

    def __str__(self) -> str:
        width = max((len(check.name) for check in self.checks), default=0)
        lines = []
        for check in self.checks:
            lines.append(f"{_WORDS[check.ok]:<7}  {check.name:<{width}}  {check.found}")
            if check.remedy:
                lines.append(f"{'':<7}  {'':<{width}}  -> {check.remedy}")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        cell = '<td style="text-align:left;vertical-align:top">{}</td>'
        rows = []
        for check in self.checks:
            found = html.escape(check.found)
            if check.remedy:
                found += f"<br><i>{html.escape(check.remedy)}</i>"
            word = f"<b>{_WORDS[check.ok]}</b>" if check.ok is False else _WORDS[check.ok]
            rows.append("<tr>" + "".join(map(cell.format, (word, html.escape(check.name), found))) + "</tr>")
        return f"<table><tbody>{''.join(rows)}</tbody></table>"


def examine() -> Diagnosis:
    """Look at everything that compiling needs in this environment. Imports torch; changes nothing."""
    folder = cache_folder()
    found_cache = check_cache(folder)  # before torch, which creates the folder as it is imported
    with _left_as_found(folder):
        checks = [check_python(), check_torch()]
        if "torch" in sys.modules:  # else its import failed, and nothing can be asked of it
            checks += [check_torch_compile(), check_device()]
        checks += [check_cxx(), check_triton(), found_cache, check_start_up(), check_competition(), *check_quota()]
    checks += [check_package(name, purpose) for name, purpose in _PACKAGES.items()]
    return Diagnosis((*checks, check_lab_extension()))


def check_python() -> Check:
    """The version of Python."""
    ok = sys.version_info >= OLDEST_PYTHON
    remedy = "" if ok else f"nbcompile needs Python {_dotted(OLDEST_PYTHON)} or newer"
    return Check("Python", ok, f"{platform.python_version()} ({platform.python_implementation()})", remedy)


def check_torch() -> Check:
    """The version of torch, and whether it can be imported."""
    try:
        import torch
    except (ImportError, OSError) as error:  # OSError: a shared library that it links to is missing
        remedy = "install it as https://pytorch.org/get-started says for this machine"
        if _version("torch") is None:
            return Check("torch", False, "not installed: nothing can be compiled", remedy)
        return Check("torch", False, f"installed, but its import fails: {_first_line(str(error))}", remedy)
    version = str(torch.__version__)
    numbers = tuple(int(number) for number in re.findall(r"\d+", version)[:2])
    ok = numbers >= OLDEST_TORCH
    remedy = "" if ok else f"nbcompile needs torch {_dotted(OLDEST_TORCH)} or newer: pip install -U torch"
    return Check("torch", ok, version, remedy)


def check_torch_compile() -> Check:
    """Whether ``torch.compile`` works on this Python, and is not switched off."""
    for variable in ("TORCHDYNAMO_DISABLE", "TORCH_COMPILE_DISABLE"):
        if os.environ.get(variable) == "1":
            remedy = f"unset {variable} and restart the kernel"
            return Check("torch.compile", False, f"switched off by the environment variable {variable}", remedy)
    try:
        # Private, but the only place that knows; torch.compile itself asks it.
        from torch._dynamo.eval_frame import check_if_dynamo_supported
    except ImportError:
        return Check("torch.compile", None, "this version of torch does not tell whether it supports this Python")
    try:
        check_if_dynamo_supported()
    except RuntimeError as error:
        return Check("torch.compile", False, _first_line(str(error)), "use a Python that this torch supports")
    return Check("torch.compile", True, "supported on this Python")


def check_device() -> Check:
    """The device that models would run on."""
    import torch

    if torch.cuda.is_available():
        capability = torch.cuda.get_device_capability()
        count = torch.cuda.device_count()
        more = f", and {count - 1} more" if count > 1 else ""
        found = f"{torch.cuda.get_device_name()}, compute capability {_dotted(capability)}{more}"
        if torch.version.hip is None and capability < OLDEST_CAPABILITY:
            remedy = f"the inductor backend needs {_dotted(OLDEST_CAPABILITY)} or newer: use the CPU or another backend"
            return Check("device", False, found, remedy)
        return Check("device", True, found)
    if torch.backends.mps.is_available():
        return Check("device", True, "Apple GPU (mps)")
    instructions = torch.backends.cpu.get_cpu_capability()
    return Check(
        "device",
        True,
        f"CPU ({platform.machine()}), {cores.usable()} cores, {torch.get_num_threads()} threads, vector instructions: "
        f"{'none in use' if instructions == 'DEFAULT' else instructions}",
    )


def check_cxx() -> Check:
    """The C++ compiler that inductor would start."""
    candidates = _cxx_candidates()
    failures = []
    for name in candidates:
        path = shutil.which(name)
        if path is None:
            failures.append(f"{name} is not on the PATH")
            continue
        line, worked = _compiler_version(path)
        if worked:
            return Check("C++ compiler", True, f"{path}: {line}")
        failures.append(f"{path} does not run: {line}")
    remedy = {
        "darwin": "xcode-select --install",
        "win32": "install the Build Tools for Visual Studio and start Jupyter from its developer prompt",
    }.get(sys.platform, "apt install g++, or conda install -c conda-forge gxx; or set CXX to the compiler to use")
    others = [name for name in ("g++", "clang++") if name not in candidates and shutil.which(name)]
    if others:
        remedy = f"set the environment variable CXX={others[0]}, which is installed, and restart the kernel"
    return Check("C++ compiler", False, "; ".join(failures), remedy)


def check_triton() -> Check:
    """Triton, which inductor generates code for on a GPU and nowhere else."""
    version = next(filter(None, map(_version, _TRITON)), None)
    torch = sys.modules.get("torch")
    on_gpu = torch is not None and torch.cuda.is_available()
    if version is not None:
        return Check("Triton", True, version)
    if on_gpu:
        return Check("Triton", False, "not installed", "pip install triton, in the version that this torch names")
    return Check("Triton", None, "not installed; only a GPU needs it")


def check_cache(folder: Path | None = None) -> Check:
    """The compiler's cache folder: where, how large, how old, and whether it can be written to."""
    folder = cache_folder() if folder is None else folder
    wrong = cache.obstacle(folder)
    if not folder.is_dir():
        if wrong:
            return Check("cache", False, f"{folder} {wrong}", cache.REMEDY)
        return Check("cache", True, f"{folder}: empty, the first compile creates it")
    files, size, oldest = _contents(folder)
    found = f"{folder}: {_plural(files, 'file')}, {readable_size(size)}"
    if oldest is not None:
        found += f", the oldest from {_readable_age(time.time() - oldest)} ago"
    if wrong:
        return Check("cache", False, f"{found}; it {wrong}", cache.REMEDY)
    return Check("cache", True, found)


def clean_cache() -> str:
    """Empty the compiler's cache folder; in words what was removed."""
    folder = cache_folder()
    files, size, left = cache.clean()
    words = f"{folder}: {_plural(files, 'file')} removed, {size / 1e6:,.1f} MB; the next compile of each model is cold"
    return f"{words}. Left, as not the compiler's: {', '.join(left)}" if left else words


def check_start_up() -> Check:
    """The compiler's start-up ahead of time: how it goes, in the process that asks."""
    begun = warmup.latest()
    if begun is None:
        why = f"switched off by {warmup.SWITCH}" if warmup.switched_off() else "not begun in this process"
        return Check("start-up ahead", None, f"{why}; the first compile does it itself")
    startup = sys.modules.get(f"{__package__}.startup")  # it imports torch
    own = startup.ahead().state if startup is not None else "not begun"
    return Check("start-up ahead", None, f"{begun}; the part of this process: {own}")


def check_competition(seconds: float = 0.5) -> Check:
    """What else uses the cores, over so many seconds: a timing that is taken beside it may be many times too long.

    Processes are named by their name and number alone. What this process has started is its own work and left out.
    """
    name, total = "competition", cores.cores()
    if not cores.processes():
        return Check(name, None, "this system does not tell what other processes do")
    busy = [(process, used) for process, used in cores.competing(seconds) if used >= _NOTED_SHARE]
    if not busy:
        return Check(name, True, f"no other process that can be seen uses {_NOTED_SHARE:.0%} of a core or more")
    told = [f"{_printable(process.name)} (pid {process.pid}) {used:.0%} of a core" for process, used in busy[:_NAMED]]
    if len(busy) > _NAMED:
        told.append(f"{len(busy) - _NAMED} more")
    found = f"{', '.join(told)}; of {_plural(total, 'core')} others use {sum(used for _, used in busy):.1f}"
    return Check(name, None, found, "stop them, or wait for them, before you measure: beside them a step can be slower")


def check_quota() -> list[Check]:
    """Whether a quota holds this process back, where there is one."""
    held = cores.throttling()
    if held is None or not held.periods:
        return []
    found = f"held back in {held.held_back:,} of {held.periods:,} periods, {held.seconds:.3g} s in all"
    remedy = "give the container more CPU, or use fewer threads: torch.set_num_threads(...)" if held.held_back else ""
    return [Check("CPU quota", None if held.held_back else True, found, remedy)]


def check_package(name: str, purpose: str) -> Check:
    """A package that is used where it is installed. It is not imported."""
    version = _version(name)
    if version is None:
        return Check(name, None, f"not installed; {purpose}", f"pip install {name}")
    return Check(name, True, version)


def check_lab_extension() -> Check:
    """The JupyterLab extension of this package."""
    folder = Path(sys.prefix, "share", "jupyter", "labextensions", "nbcompile")
    if folder.is_dir():
        return Check("lab extension", True, str(folder))
    return Check("lab extension", None, "not part of this version; nothing depends on it")


@contextlib.contextmanager
def _left_as_found(folder: Path) -> Iterator[None]:
    """Remove the empty cache folder that importing parts of torch creates, if it was not there before."""
    created = [path for path in (folder, *folder.parents) if not path.exists()]
    try:
        yield
    finally:
        with contextlib.suppress(OSError):  # not created after all, or no longer empty: then it stays
            for path in created:
                path.rmdir()


def _cxx_candidates() -> list[str]:
    """The compilers that inductor would try, in its order."""
    if sys.platform == "win32":
        return [os.environ.get("CXX", "cl")]
    config = sys.modules.get("torch._inductor.config")
    configured = getattr(getattr(config, "cpp", None), "cxx", None)
    if configured is None:
        configured = os.environ.get("CXX", "clang++" if sys.platform == "darwin" else "g++")
    if isinstance(configured, str):
        configured = (configured,)
    # None stands for a compiler that inductor downloads if it was asked to; that is for inductor to do, not for a check
    return [str(name) for name in configured if name is not None]


def _compiler_version(path: str) -> tuple[str, bool]:
    """The first line that a compiler says about itself, and whether it ran."""
    argument = "/help" if os.path.basename(path).lower() in ("cl", "cl.exe") else "--version"
    try:
        done = subprocess.run(
            [path, argument], capture_output=True, text=True, errors="replace", timeout=20, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return _first_line(str(error)), False
    line = _first_line(done.stdout) or _first_line(done.stderr)
    return (line, True) if done.returncode == 0 else (line or f"exit status {done.returncode}", False)


def _contents(folder: Path) -> tuple[int, int, float | None]:
    """Number of files below a folder, their bytes, and when the oldest was written."""
    files, size, oldest = 0, 0, None
    for parent, _, names in os.walk(folder):
        for name in names:
            try:
                status = os.lstat(os.path.join(parent, name))
            except OSError:  # another process removed it meanwhile
                continue
            files += 1
            size += status.st_size
            oldest = status.st_mtime if oldest is None else min(oldest, status.st_mtime)
    return files, size, oldest


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _dotted(numbers: tuple[int, ...]) -> str:
    return ".".join(map(str, numbers))


def _first_line(text: str) -> str:
    return text.strip().partition("\n")[0].strip()


def _printable(name: str) -> str:
    """A process's name, which that process chooses itself."""
    return "".join(letter if letter.isprintable() else "?" for letter in name)[:40]


def _plural(number: int, word: str) -> str:
    return f"{number} {word}" if number == 1 else f"{number} {word}s"


def _readable_age(seconds: float) -> str:
    for length, word in ((86400, "day"), (3600, "hour"), (60, "minute")):
        if seconds >= length:
            return _plural(int(seconds // length), word)
    return "less than a minute"
