"""Makes the pictures of the boards in docs/images: `python -m tools.board_pictures`.

Two clusters run under load beside each other, and a real Prometheus scrapes each: one of `fairlead
up` with teams and node pools, and a real control plane with the controllers of `fairlead
controller`. `fairlead doctor snapshot` draws the boards from the answers, and Chromium photographs
the pages. `--data DIR` keeps what was scraped: a second run with it only draws.

It needs `make kubernetes` and Chromium.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from tests.kubernetes.controlplane import control_plane
from tests.kubernetes.operating import http_client, install_kinds, virtual_nodes
from tests.kubernetes.prometheus_server import prometheus, scrape_at, scrape_of
from tests.kubernetes.replicas import leader, replicas

from fairlead.api.resources import JOBS, NAMESPACES, NODE_POOLS, TEAMS
from fairlead.cli.connection.connect import Choice, find_connection
from fairlead.kube.client import HttpClient
from fairlead.kube.protocol import HttpOptions

ROOT = Path(__file__).resolve().parents[1]
IMAGES = ROOT / "docs" / "images"
CHROMIUM = "chromium"
FAIRLEAD = Path(sys.executable).with_name("fairlead")
INTERVAL = "5s"
#: Board, cluster, and the height of the picture in pixels, which ends below a row.
PICTURES = (
    ("jobs", "embedded", 750),
    ("teams", "embedded", 684),
    ("fleet", "embedded", 652),
    ("control-plane", "real", 752),
)
WIDTH = 1200
#: Name, nodes of the share, and how much of the load is the team's.
SHARES = (("vision", 8, 0.5), ("speech", 6, 0.3), ("robotics", 4, 0.2))
GPUS = 8
#: Of each cluster: nodes, and jobs per second, which keep most of them busy.
EMBEDDED, REAL = (24, 0.11), (64, 0.16)
WAVE_SECONDS = 600.0
JOBS_MAX = 2_000


def teams() -> Iterator[dict[str, Any]]:
    """Yield the teams; together they own three quarters of the nodes."""
    for name, nodes, _ in SHARES:
        limits = {"gpus": nodes * GPUS * 3}
        spec = {"namespaces": [name], "shares": [{"nodes": nodes}], "limits": limits}
        yield {"metadata": {"name": name}, "spec": spec}


def pools() -> Iterator[dict[str, Any]]:
    """Yield two pools of simulated machines that come and go with the load."""
    resources = {"cpu": "96", "memory": "1Ti", "nvidia.com/gpu": str(GPUS)}
    labels = {"fairlead.dev/node-type": "virtual"}
    for name, most, price in (("h100", 10, "98.00"), ("spot", 6, "39.00")):
        spec = {
            "provider": {"type": "Simulated"}, "mode": "Active", "max": most,
            "pricePerHour": price, "template": {"resources": resources, "labels": labels},
            "scaleDown": {"idleSeconds": 90},
        }  # fmt: skip
        yield {"metadata": {"name": name}, "spec": spec}


def job(number: int, rng: random.Random) -> dict[str, Any]:
    """Return a job: most are small and short, a few take many nodes."""
    members = rng.choices((1, 2, 4, 8, 12), (40, 25, 20, 12, 3))[0]
    gpus = GPUS if members > 1 else rng.choice((1, 2, 4, 8))
    seconds = min(rng.lognormvariate(4.2, 0.8), 400)
    requests = {"cpu": "4", "nvidia.com/gpu": str(gpus)}
    container = {
        "name": "main", "image": "registry.example/train:1", "command": ["train"],
        "resources": {"requests": requests, "limits": requests},
    }  # fmt: skip
    template = {
        "metadata": {"annotations": {"fairlead.dev/simulate-seconds": f"{seconds:.0f}"}},
        "spec": {"containers": [container],
                 "nodeSelector": {"fairlead.dev/node-type": "virtual"}},
    }  # fmt: skip
    role = {"name": "worker", "count": members, "template": template}
    return {"metadata": {"name": f"train-{number}"}, "spec": {"roles": [role]}}


async def submit(
    client: HttpClient, seconds: float, namespaces: dict[str, float], rate: float
) -> None:
    """Create jobs in waves, so that the queue grows and drains; `rate` is their mean per second."""
    rng, ends = random.Random(7), time.monotonic() + seconds
    for number in range(JOBS_MAX):
        now = time.monotonic()
        if now >= ends:
            return
        wave = 1 + 0.8 * math.sin(2 * math.pi * (ends - now) / WAVE_SECONDS)
        await asyncio.sleep(rng.expovariate(rate * wave))
        (namespace,) = rng.choices(list(namespaces), list(namespaces.values()))
        await client.create(JOBS, job(number, rng), namespace=namespace)


@asynccontextmanager
async def embedded(directory: Path) -> AsyncGenerator[tuple[HttpClient, dict[str, Any]]]:
    """Run `fairlead up` with teams and pools; give a client, and the scrape of its page."""
    data = directory / "cluster"
    environment = {k: v for k, v in os.environ.items() if not k.startswith("FAIRLEAD_")}
    up = ["up", "--data", data, "--nodes", str(EMBEDDED[0]), "--listen", "127.0.0.1:0", "--detach"]
    await asyncio.to_thread(subprocess.run, [FAIRLEAD, *up], env=environment, check=True)
    try:
        connection = find_connection(Choice(str(data / "kubeconfig")), {})
        client = HttpClient(connection, HttpOptions())
        for name, _, _ in SHARES:
            await client.create(NAMESPACES, {"metadata": {"name": name}})
        for team in teams():
            await client.create(TEAMS, team)
        for pool in pools():
            await client.create(NODE_POOLS, pool)
        scrape = {
            "job_name": "fairlead", "scheme": "https",
            "authorization": {"credentials": connection.token},
            "tls_config": {"insecure_skip_verify": True},
            "static_configs": [{"targets": [connection.server.removeprefix("https://")]}],
        }  # fmt: skip
        yield client, scrape
        await client.close()
    finally:
        down = [FAIRLEAD, "down", "--data", data]
        await asyncio.to_thread(subprocess.run, down, env=environment, check=False)


async def run_embedded(directory: Path, seconds: float) -> None:
    """Scrape an embedded cluster under load."""
    async with embedded(directory) as (client, scrape):
        with prometheus(directory / "embedded", [scrape], interval=INTERVAL):
            await submit(client, seconds, {name: part for name, _, part in SHARES}, EMBEDDED[1])


async def run_real(directory: Path, seconds: float) -> None:
    """Scrape a real control plane under load."""
    planes = directory / "plane"
    planes.mkdir()
    with control_plane(planes) as plane:
        client = http_client(plane)
        await install_kinds(client)
        async with virtual_nodes(client, REAL[0]), replicas(plane) as world:
            await world.start()
            replica = await leader(client, world)
            jobs = [scrape_of(plane), scrape_at("kube-etcd", plane.etcd_url),
                    scrape_at("fairlead", f"http://127.0.0.1:{replica.port}")]  # fmt: skip
            with prometheus(directory / "real", jobs, interval=INTERVAL):
                await submit(client, seconds, {"default": 1.0}, REAL[1])
        await client.close()


async def measure(directory: Path, seconds: float) -> None:
    """Run both clusters; what was scraped is in the directories `embedded` and `real`."""
    begin = time.time()
    async with asyncio.TaskGroup() as group:
        group.create_task(run_embedded(directory, seconds))
        group.create_task(run_real(directory, seconds))
    (directory / "measured.json").write_text(json.dumps({"begin": begin, "end": time.time()}))


def draw(directory: Path) -> None:
    """Write the picture of each board from what was scraped."""
    measured = json.loads((directory / "measured.json").read_text())
    until = f"{max(time.time() - measured['end'], 0):.0f}s"
    since = f"{time.time() - measured['begin']:.0f}s"
    IMAGES.mkdir(exist_ok=True)
    for board, cluster, height in PICTURES:
        page, picture = directory / f"{board}.html", IMAGES / f"fairlead-{board}.png"
        with prometheus(directory / cluster, []) as server, page.open("wb") as file:
            subprocess.run(
                [FAIRLEAD, "doctor", "snapshot", server.url, "--board", board, "--since", since,
                 "--until", until], stdout=file, check=True,
            )  # fmt: skip
        subprocess.run(
            [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
             f"--window-size={WIDTH},{height}", f"--screenshot={picture}", page.as_uri()],
            check=True, capture_output=True,
        )  # fmt: skip
        print(f"{picture.relative_to(ROOT)}: {picture.stat().st_size:,} bytes")


def main() -> None:
    """Measure, unless that was done, and draw."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=25.0, help="of load; default: 25")
    parser.add_argument("--data", type=Path, help="a directory that is kept")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="boards-") as temporary:
        directory = options.data or Path(temporary)
        directory.mkdir(parents=True, exist_ok=True)
        if not (directory / "measured.json").exists():
            asyncio.run(measure(directory, options.minutes * 60))
        draw(directory)


if __name__ == "__main__":
    main()
