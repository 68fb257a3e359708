"""The command line: ``python -m nbcompile doctor``, ``report FILE`` and ``sweep --preset cpu --out FOLDER``."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from . import __version__
from .errors import NbcompileError, UsageError


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command.

    Returns:
        The exit status: 0 done, 1 the doctor found something missing, 2 the command failed, 130 interrupted.
    """
    args = _parser().parse_args(arguments)
    try:
        return int(args.run(args))
    except (NbcompileError, OSError) as error:
        print(f"nbcompile: {error}", file=sys.stderr)
        return 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m nbcompile", description="Compile PyTorch models block by block, and see what it was worth."
    )
    parser.add_argument("--version", action="version", version=f"nbcompile {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)

    doctor = commands.add_parser("doctor", help="check what compiling needs: torch, the compiler, the cache, packages")
    doctor.add_argument("--json", action="store_true", help="print the checks as JSON")
    doctor.add_argument("--clean-cache", action="store_true", help="empty the compiler's cache folder before that")
    doctor.set_defaults(run=_doctor)

    report = commands.add_parser("report", help="print a saved report, or write it as a web page")
    report.add_argument("file", metavar="FILE", help="a file that report.save() wrote (.nbcompile.json)")
    report.add_argument("--html", metavar="OUT", help="write the report to OUT, a web page without any script")
    report.add_argument("--overwrite", action="store_true", help="let --html replace a file that exists")
    report.set_defaults(run=_report)

    sweep = commands.add_parser(
        "sweep",
        help="the compilation guide's benchmark: strategies over model sizes and batch sizes",
        description="Measure cold start and steady state of every strategy over model sizes and batch sizes, and hold "
        "the guide's five conclusions against the figures. Finished cells are kept in the folder; the same command "
        "goes on with the next one. Run nothing beside it.",
    )
    sweep.add_argument(
        "--preset",
        required=True,
        metavar="NAME",
        help="cpu: two small Llama shapes, for a machine of two cores; "
        "document: Llama 1B, 3B, 8B and 13B in float16 on a CUDA device, as in the published table",
    )
    sweep.add_argument("--out", required=True, metavar="FOLDER", help="where the reports and sweep.html are written")
    sweep.add_argument("--strategies", type=_names, metavar="A,B", help="those held against eager (default: all)")
    sweep.add_argument("--batches", type=_numbers, metavar="N,N", help="batch sizes (default: the preset's)")
    sweep.add_argument("--rounds", type=int, default=5, metavar="N", help="timed rounds of each strategy (default: 5)")
    sweep.add_argument(
        "--training",
        action=argparse.BooleanOptionalAction,
        help="measure a training step too, or leave it out (default: as the preset)",
    )
    sweep.add_argument(
        "--resume", action=argparse.BooleanOptionalAction, default=True, help="go on with what is in the folder"
    )
    sweep.set_defaults(run=_sweep)
    return parser


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def _numbers(text: str) -> list[int]:
    return [int(number) for number in _names(text)]


def _doctor(args: argparse.Namespace) -> int:
    from .doctor import clean_cache, examine

    if args.clean_cache:
        print(clean_cache(), file=sys.stderr)
    diagnosis = examine()
    print(json.dumps(diagnosis.to_dict(), indent=1) if args.json else diagnosis)
    return 0 if diagnosis.ok else 1


def _sweep(args: argparse.Namespace) -> int:
    from . import sweep
    from .cells import PRESETS

    tasks = None
    if args.training is not None and args.preset in PRESETS:
        tasks = [task for task in PRESETS[args.preset].tasks if task != "training"] + ["training"] * args.training
    try:
        result = sweep(
            args.preset,
            batches=args.batches,
            tasks=tasks,
            strategies=args.strategies,
            rounds=args.rounds,
            folder=args.out,
            resume=args.resume,
            progress=lambda line: print(line, file=sys.stderr, flush=True),
        )
    except KeyboardInterrupt as interrupt:
        print(f"nbcompile: interrupted; {'; '.join(getattr(interrupt, '__notes__', []))}", file=sys.stderr)
        return 130
    print(result)
    print(f"\nwrote {result.to_html(Path(args.out, 'sweep.html'), overwrite=True)}")
    return 0


def _report(args: argparse.Namespace) -> int:
    from .report import load_report

    report = load_report(args.file)
    if args.html is None:
        print(report.to_text())
        return 0
    try:
        report.to_html(args.html, overwrite=args.overwrite)
    except UsageError:
        raise UsageError(f"{args.html} exists already; add --overwrite to replace it, or choose another name") from None
    print(f"wrote {args.html}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
