"""The plan of purchases beside Karpenter's own scheduling benchmark, on the same instance.

Karpenter's `BenchmarkScheduling` (of its Go module, built here) has pods of five kinds, 400
instance types and three zones: plain pods, pods spread by zone, by host, pods with affinity to
those of their label in a zone, and pods that share no host. Fairlead gets the same kinds, sizes,
labels, instance types and prices; the draws are its own. Pods with affinity are a gang in one zone
for each label here, every other pod is a job of one member. Both have one core, and CPU seconds are
compared, Karpenter's with the start of its process (0.1 s). Without Go the group says so.
"""

from __future__ import annotations

import gc
import json
import os
import random
import re
import resource
import shutil
import subprocess
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from bench.harness import Report
from fairlead.api.cluster.node_pool import (
    NodePool,
    NodePoolSpec,
    NodeTemplate,
    PoolDomain,
    Provider,
    ProviderType,
)
from fairlead.api.jobs.job import Job
from fairlead.api.jobs.topology import Topology
from fairlead.api.meta import ObjectMeta
from fairlead.api.names import HOSTNAME
from fairlead.decide.fleet.buying.demand import Demand, Offer, demand_of, template_of
from fairlead.model.cluster import ClusterState
from fairlead.model.gang.gangs import GangRequest, JobKey
from fairlead.testing.builders import make_anti_affinity, make_job, make_role, make_spread

MODULE, VERSION = "sigs.k8s.io/karpenter", "v1.8.0"
PACKAGE = "pkg/controllers/provisioning/scheduling"
CACHE = Path.home() / ".cache" / "fairlead" / f"karpenter-{VERSION}"
SIZES = (500, 1_000)
TYPES, ZONES, ZONE = 400, 3, "topology.kubernetes.io/zone"
LABELS = "abcdefg"
_CPUS, _MEMORIES = (100, 250, 500, 1000, 1500), (100, 256, 512, 1024, 2048, 4096)
#: What a kubelet keeps of each node there.
_KEPT_MILLIS, _KEPT_MIB = 100, 10


def run(report: Report) -> None:
    """Run both for each size; one line where Karpenter's benchmark cannot be built."""
    binary, why = _benchmark()
    if binary is None:
        print(f"  karpenter: not measured: {why}", flush=True)
        return
    for count in SIZES:
        theirs, nodes = _theirs(binary, count)
        state, gangs = _instance(count)
        offers = _offers()
        gc.collect()
        start = time.process_time()
        demand = demand_of(state, gangs, offers, {})
        ours = time.process_time() - start
        assert len(demand.served) == len(gangs), "every pod has a node, as Karpenter's have"
        print(
            f"  {count} pods: {ours:.2f} s, {_nodes(demand)} nodes, {_price(demand, offers):.1f} an"
            f" hour; Karpenter {theirs:.2f} s, {nodes} nodes", flush=True,
        )  # fmt: skip
        report.add(f"karpenter.plan_{count}_ratio", ours / theirs, "x Karpenter")


def _nodes(demand: Demand) -> int:
    return sum(purchase.count for purchase in demand.purchases.values())


def _price(demand: Demand, offers: list[Offer]) -> float:
    prices = {offer.key: offer.price_micros for offer in offers}
    return sum(prices[key] * each.count for key, each in demand.purchases.items()) / 1e6


# Karpenter's


def _benchmark() -> tuple[Path | None, str]:
    """Return its compiled benchmark, or why there is none. It is built once, in minutes."""
    binary = CACHE / "scheduling.test"
    if binary.exists():
        return binary, ""
    go = shutil.which("go")
    if go is None:
        return None, "Go is not installed"
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "karpenter"
        try:
            found = _go(go, "mod", "download", "-json", f"{MODULE}@{VERSION}", cwd=folder)
            shutil.copytree(json.loads(found)["Dir"], source)
            for each in (source, *source.rglob("*")):  # the cache of modules is read-only
                each.chmod(each.stat().st_mode | 0o200)
            CACHE.mkdir(parents=True, exist_ok=True)
            part = CACHE / f"{os.getpid()}.part"
            _go(go, "test", "-c", "-tags=test_performance", "-o", str(part), f"./{PACKAGE}",
                cwd=str(source))  # fmt: skip
            part.rename(binary)
        except subprocess.CalledProcessError as error:
            return None, f"{MODULE} {VERSION} cannot be built: {str(error.stderr)[-200:]}"
    return binary, ""


def _go(go: str, *arguments: str, cwd: str) -> str:
    done = subprocess.run([go, *arguments], cwd=cwd, capture_output=True, text=True, check=True)
    return done.stdout


def _theirs(binary: Path, count: int) -> tuple[float, int]:
    """Return the CPU seconds of one scheduling of so many pods, and the nodes that it makes."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    arguments = ("-test.run=XXX", f"-test.bench=BenchmarkScheduling{count}$", "-test.benchtime=1x")
    done = subprocess.run(
        [binary, *arguments], env={**os.environ, "GOMAXPROCS": "1"}, cwd=binary.parent,
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    nodes = re.search(r"([\d.]+) nodes", done.stdout)
    assert nodes is not None, done.stdout
    seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return seconds, int(float(nodes[1]))


# The same instance


def _offers() -> list[Offer]:
    """Return 400 instance types in three zones: n CPUs, 2n GiB and 10n pods."""
    offers: list[Offer] = []
    for size in range(1, TYPES + 1):
        template = NodeTemplate(
            {
                "cpu": f"{size * 1000 - _KEPT_MILLIS}m", "memory": f"{size * 2048 - _KEPT_MIB}Mi",
                "pods": size * 10,
            }
        )  # fmt: skip
        price = 0.1 * size + 0.1 * size * 2 * (1 << 30) / 1e9
        pool = NodePool(
            ObjectMeta(name=f"type-{size}"),
            NodePoolSpec(Provider(ProviderType.SIMULATED), template, max=100_000),
        )
        for zone in range(1, ZONES + 1):
            domain = PoolDomain(f"zone-{zone}", {ZONE: f"zone-{zone}"})
            offers.append(
                Offer(pool.metadata.name, domain.name, template_of(pool, domain), 100_000, 100_000,
                      price_micros=int(price * 1e6))
            )  # fmt: skip
    return offers


def _instance(count: int) -> tuple[ClusterState, list[tuple[JobKey, GangRequest]]]:
    rng, fifth = random.Random(42), count // 5
    jobs = [_pod(f"plain-{i}", rng) for i in range(fifth)]
    for key, name in ((ZONE, "zone"), (HOSTNAME, "host")):
        jobs += [
            _pod(f"{name}-{i}", rng, spreads=[make_spread(key, mine=rng.choice(LABELS))])
            for i in range(fifth)
        ]
    jobs += _together(fifth, rng)
    apart = make_anti_affinity(app="nginx")
    jobs += [_pod(f"apart-{i}", rng, {"app": "nginx"}, affinity=apart) for i in range(fifth)]
    state, gangs = ClusterState.of([], jobs), list[tuple[JobKey, GangRequest]]()
    for job in jobs:
        gang = state.jobs[job.metadata.key].gang
        assert isinstance(gang, GangRequest)
        gangs.append((job.metadata.key, gang))
    return state, gangs


def _together(count: int, rng: random.Random) -> list[Job]:
    """Return a gang for each label, whose pods are in one zone: a role for each size."""
    sizes: dict[str, Counter[tuple[str, str]]] = {}
    for _ in range(count):
        sizes.setdefault(rng.choice(LABELS), Counter())[_size(rng)] += 1
    zone = Topology(ZONE, required=True)
    return [
        make_job(
            f"together-{label}", topology=zone,
            roles=[
                make_role(f"r{i}", count=count, cpu=cpu, memory=memory)
                for i, ((cpu, memory), count) in enumerate(sorted(counts.items()))
            ],
        )
        for label, counts in sorted(sizes.items())
    ]  # fmt: skip


def _size(rng: random.Random) -> tuple[str, str]:
    cpu, memory = rng.choice(_CPUS), rng.choice(_MEMORIES)
    return f"{cpu}m", f"{memory}Mi"


def _pod(name: str, rng: random.Random, labels: dict[str, str] | None = None, **rules: Any) -> Job:
    cpu, memory = _size(rng)
    mine = labels or {"mine": rng.choice(LABELS)}
    return make_job(name, gpus=0, cpu=cpu, memory=memory, pod_labels=mine, **rules)
