"""Run the benchmark groups: all, or those of `--only`.

`--runs 5` repeats them and writes the mean and the spread of each figure to
`bench/out/runs.json`, which is what bounds are set from. `--compare FILE` shows the figures beside
those of an earlier `latest.json`, of another commit say.
"""

from __future__ import annotations

import argparse
import importlib
import json
import pkgutil
import sys
import time
from pathlib import Path

from bench import groups
from bench.harness import OUT, Report, compare, slowness, spread_of


def main() -> int:
    """Run, print, write `bench/out/latest.json`; exit 1 when a bound is missed."""
    names = sorted(module.name for module in pkgutil.iter_modules(groups.__path__))
    parser = argparse.ArgumentParser(prog="bench", description=__doc__)
    parser.add_argument("--only", choices=names, nargs="+", help="these groups")
    parser.add_argument("--runs", type=int, default=1, help="how often to run")
    parser.add_argument("--compare", type=Path, metavar="FILE", help="an earlier latest.json")
    given = parser.parse_args()
    earlier = json.loads(given.compare.read_text()) if given.compare else []
    print(f"this core is {slowness():.2f} x as slow as the reference core", flush=True)
    chosen = given.only or names
    reports = [_run(chosen) for _ in range(given.runs)]
    report = reports[-1]
    good = report.write()
    print(f"written to {OUT}")
    if given.runs > 1:
        spreads = {spread.name: spread for spread in spread_of([r.figures for r in reports])}
        lines = [f"{s.name:44} mean {s.mean:.6g}  spread {s.spread:.3g}" for s in spreads.values()]
        print("\n".join(lines))
        rows = [{"name": s.name, "mean": s.mean, "spread": s.spread} for s in spreads.values()]
        (OUT.parent / "runs.json").write_text(json.dumps(rows, indent=1) + "\n")
    for name, before, now in compare(earlier, report.figures):
        print(f"{name:44} {before:>14,.4g} -> {now:>14,.4g}   {now / before:6.2f} x")
    missed = [figure.name for figure in report.figures if figure.ok is False]
    if missed:
        print(f"bounds missed: {', '.join(missed)}", file=sys.stderr)
    return 0 if good else 1


def _run(names: list[str]) -> Report:
    report = Report()
    for name in names:
        start = time.monotonic()
        importlib.import_module(f"bench.groups.{name}").run(report)
        print(f"--- {name}: {time.monotonic() - start:.0f} s", flush=True)
    return report


if __name__ == "__main__":
    sys.exit(main())
