"""`make cluster` and what belongs to it.

    python -m tools.cluster up [--nodes 3] [--directory DIR] [--bare] [--examples]
    python -m tools.cluster demo [--directory DIR]
    python -m tools.cluster down [--directory DIR]
    python -m tools.cluster check

Exit codes: 0 done, 1 failed, 3 this machine cannot run a cluster (one line says why), 130 Ctrl-C.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from pathlib import Path

from tools.cluster.cluster import Cluster, FailedError, bring_up, find, runs, take_down
from tools.cluster.demo import demo as show
from tools.cluster.images import ImageError, version
from tools.cluster.install import install
from tools.cluster.layout import cache_directory
from tools.cluster.machine import CannotRunError, missing

BIN = Path(sys.executable).parent
FAILED, CANNOT_RUN, INTERRUPTED = 1, 3, 130


def default_directory() -> Path:
    """Return where the cluster is when none is named."""
    return Path(os.environ.get("CLUSTER") or cache_directory() / "cluster")


def up(options: argparse.Namespace) -> None:
    """Start a cluster and print how to use it."""
    began = time.monotonic()

    def say(text: str) -> None:
        print(f"{time.monotonic() - began:6.1f} s  {text}", flush=True)

    cluster = bring_up(options.directory, options.nodes, say)
    say(f"{cluster.layout.size} nodes are ready")
    if not options.bare:
        install(cluster, say, with_examples=options.examples)
    print_next(cluster, with_examples=options.examples)


def print_next(cluster: Cluster, *, with_examples: bool) -> None:
    """Print the kubeconfig and the first commands."""
    image = f"fairlead{'-examples' if with_examples else ''}:{version()}"
    print(f"""
kubeconfig  {cluster.layout.kubeconfig}
registry    {cluster.layout.registry}
logs        {cluster.layout.directory}/*/*.log

    export KUBECONFIG={cluster.layout.kubeconfig} PATH={BIN}:{cluster.binaries}:$PATH
    fairlead nodes
    fairlead run --image {image} --nodes 3 --cpus 100m -- hostname
    make cluster-down""")


def demo(options: argparse.Namespace) -> None:
    """Run the demo on a cluster of its own, or on the one that runs in the directory."""
    began = time.monotonic()

    def say(text: str) -> None:
        print(f"{time.monotonic() - began:6.1f} s  {text}", flush=True)

    found = find(options.directory.resolve())
    was_there = found is not None and runs(found)
    cluster = bring_up(options.directory, found.size if found and was_there else 3, say)
    try:
        install(cluster, say, with_examples=True)
        show(cluster, say)
    finally:
        if not was_there:
            take_down(options.directory, say)
    print(f"Done in {time.monotonic() - began:.0f} s{'' if was_there else '; nothing is left'}.")


def down(options: argparse.Namespace) -> None:
    """End a cluster and remove it."""
    began = time.monotonic()

    def say(text: str) -> None:
        print(f"{time.monotonic() - began:6.1f} s  {text}", flush=True)

    there = take_down(options.directory, say)
    print(f"{'removed the' if there else 'there is no'} cluster in {options.directory}")


def check(_: argparse.Namespace) -> None:
    """Say whether this machine can run a cluster."""
    if reason := missing():
        raise CannotRunError(reason)
    print("this machine can run a cluster")


def parse() -> argparse.Namespace:
    """Return the command and its options."""
    parser = argparse.ArgumentParser(prog="python -m tools.cluster", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    commands = parser.add_subparsers(required=True)
    for function in (up, demo, down, check):
        command = commands.add_parser(function.__name__, help=function.__doc__)
        command.set_defaults(function=function)
        command.add_argument("--directory", type=Path, default=default_directory())
        if function is up:
            command.add_argument("--nodes", type=int, default=3)
            command.add_argument("--bare", action="store_true", help="without Fairlead")
            command.add_argument(
                "--examples", action="store_true", help="with an image for the examples"
            )
    return parser.parse_args()


def main() -> int:
    """Run a command and return the exit code."""
    options = parse()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        options.function(options)
    except CannotRunError as reason:
        print(f"this machine cannot run a cluster: {reason}", file=sys.stderr)
        return CANNOT_RUN
    except (FailedError, ImageError, RuntimeError, TimeoutError) as error:
        print(f"failed: {error}", file=sys.stderr)
        return FAILED
    except KeyboardInterrupt:
        print("\ninterrupted: what was started is taken down", file=sys.stderr)
        return INTERRUPTED
    return 0


if __name__ == "__main__":
    sys.exit(main())
