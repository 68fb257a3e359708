"""The command line: ``python -m nbcompile doctor`` and ``python -m nbcompile report FILE``."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence

from . import __version__
from .errors import NbcompileError


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command. Returns the exit status: 0 done, 1 the doctor found something missing, 2 the command failed."""
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
    doctor.set_defaults(run=_doctor)

    report = commands.add_parser("report", help="print a saved report, or write it as a web page")
    report.add_argument("file", metavar="FILE", help="a file that report.save() wrote (.nbcompile.json)")
    report.add_argument("--html", metavar="OUT", help="write the report to OUT, a web page without any script")
    report.add_argument("--overwrite", action="store_true", help="let --html replace a file that exists")
    report.set_defaults(run=_report)
    return parser


def _doctor(args: argparse.Namespace) -> int:
    from .doctor import examine

    diagnosis = examine()
    print(json.dumps(diagnosis.to_dict(), indent=1) if args.json else diagnosis)
    return 0 if diagnosis.ok else 1


def _report(args: argparse.Namespace) -> int:
    from .errors import UsageError
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
