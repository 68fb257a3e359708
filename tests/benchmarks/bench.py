"""Regional compilation beside torch.compile, accelerate and others: every figure that is judged, on the CPU.

    make bench                                  # all parts
    make bench BENCH_ARGS='--part cold'         # one; several: --part cold,dispatch
    make bench BENCH_ARGS='--quick'             # small models, one round: does everything work?
    make bench BENCH_ARGS='--part generate'     # not among the judged: 32 tokens from 32, with the KV cache

Run nothing beside it. For each judged figure it prints the value, the limit, and whether it is met; the exit status is
1 if one is not met or could not be measured.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("must be 1 or more")
    return number


def main() -> int:
    if str(ROOT) not in sys.path:  # run as a program
        sys.path.insert(0, str(ROOT))
    from tests.benchmarks import measuring, parts, verdicts

    told = "\n".join(f"  {name:16}{part.minutes:>3} min  {part.summary}" for name, part in parts.PARTS.items())
    total = sum(parts.PARTS[name].minutes for name in parts.DEFAULT)
    parser = argparse.ArgumentParser(
        description=__doc__,
        epilog=f"parts, with about what they take on two quiet cores:\n{told}\n\n"
        f"Without --part: {', '.join(parts.DEFAULT)}; about {total} minutes.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--part", default=",".join(parts.DEFAULT), help="names, separated by commas")
    parser.add_argument("--task", choices=("forward", "generate"), help="generate: the same as --part generate")
    parser.add_argument("--quick", action="store_true", help="small models and one round; the limits only inform")
    parser.add_argument("--repeats", type=positive, help="rounds of processes (default 3, with --quick 1)")
    parser.add_argument("--backend", help="the compiler's backend (default: as each library chooses, inductor)")
    parser.add_argument(
        "--timeout", type=float, default=1800.0, help="seconds until a worker is given up (default 1800)"
    )
    parser.add_argument("--out", type=Path, help="write the figures to this file as JSON, too")
    arguments = parser.parse_args()
    names = ["generate"] if arguments.task == "generate" else arguments.part.split(",")
    for name in names:
        if name not in parts.PARTS:
            parser.error(f"there is no part {name!r}; those that exist: {', '.join(parts.PARTS)}")
    bench = measuring.Bench(
        quick=arguments.quick, repeats=arguments.repeats, backend=arguments.backend, timeout=arguments.timeout
    )
    load = os.getloadavg()[0]
    if load > 0.5:
        measuring.say(
            f"caution: the load average is {load:.1f}; something else is running, and the figures will suffer"
        )
    checks: list[verdicts.Check] = []
    begin = time.monotonic()
    try:
        for name in names:
            measuring.say(f"== {name}: {parts.PARTS[name].summary}")
            result = parts.PARTS[name].measure(bench)
            checks += result.checks
            print("\n".join(["", *result.lines, *([verdicts.verdicts(result.checks)] if result.checks else []), ""]))
            sys.stdout.flush()
    except KeyboardInterrupt:
        measuring.say("\ninterrupted; what was not finished is not judged")
        return 130
    finally:
        if arguments.out is not None:
            arguments.out.write_text(json.dumps(bench.measured, indent=1) + "\n")
            measuring.say(f"written: {arguments.out}")
    if len(names) > 1:
        print("All judged figures\n" + verdicts.verdicts(checks))
    measuring.say(f"\n{(time.monotonic() - begin) / 60:.1f} minutes")
    if arguments.quick:
        measuring.say("The limits are meant for the real models and for several rounds; here they only inform.")
        return 0 if all(check.value is not None for check in checks) else 1
    return 0 if all(check.met for check in checks) else 1


if __name__ == "__main__":
    sys.exit(main())
