"""Runs the benchmarks and prints tables: `make bench`, or `python benchmarks/run.py [--rounds N] [NAME ...]`."""

from __future__ import annotations

import argparse
import os
import platform
import sys

import first_line
import frozen
import startup

# Name -> (what runs, rounds that keep the whole within a few minutes on two cores).
BENCHMARKS = {"startup": (startup.main, 15), "first-line": (first_line.main, 11), "frozen": (frozen.main, 7)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"some of: {', '.join(BENCHMARKS)} (default: all)")
    parser.add_argument("--rounds", type=int, help="rounds for each contestant")
    args = parser.parse_args()
    if unknown := set(args.names) - set(BENCHMARKS):
        parser.error(f"no benchmark {', '.join(sorted(unknown))}; there are {', '.join(BENCHMARKS)}")
    load = os.getloadavg()[0]
    print(f"Python {platform.python_version()}, {os.cpu_count()} cores, load {load:.1f}, Linux {platform.release()}")
    for name in args.names or BENCHMARKS:
        run, rounds = BENCHMARKS[name]
        print(run(args.rounds or rounds), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
