"""Data-parallel training with PyTorch: what torchrun starts, with checkpoints and progress.

A small network learns what a fixed random one computes. DistributedDataParallel averages the
gradients over all processes, by NCCL where there are GPUs, else by Gloo. Rank 0 writes a checkpoint
every few steps, atomically, and reports it; a restarted job goes on from it. The batch of a step
depends only on seed, step and rank, so a run with an interruption ends like one without.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path

import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

SEED = 7
INPUTS, HIDDEN, OUTPUTS = 32, 64, 4


def network(seed: int) -> nn.Sequential:
    """Return a network of two layers; the same one for the same seed."""
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(INPUTS, HIDDEN), nn.Tanh(), nn.Linear(HIDDEN, OUTPUTS))


def save(path: Path, state: dict[str, object]) -> None:
    """Write a checkpoint so that a crash at any instant leaves the old one or the new one."""
    temporary = path.with_suffix(".new")
    with temporary.open("wb") as file:
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())
    temporary.rename(path)


def report(step: int) -> None:
    """Tell Fairlead that the checkpoint of a step is saved."""
    if path := os.environ.get("FAIRLEAD_PROGRESS_FILE"):
        with open(path, "a") as file:
            file.write(json.dumps({"step": step, "checkpoint": True}) + "\n")


def main() -> None:
    """Train to `--steps` and print the loss on samples that no process has seen."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--batch", type=int, default=64, help="samples per process and step")
    parser.add_argument("--checkpoint-every", type=int, default=50, metavar="STEPS")
    parser.add_argument("--step-seconds", type=float, default=0.0, help="slow down, for a demo")
    options = parser.parse_args()

    has_gpu = torch.cuda.is_available()
    distributed.init_process_group("nccl" if has_gpu else "gloo")
    rank, size = distributed.get_rank(), distributed.get_world_size()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if has_gpu else torch.device("cpu")
    print(f"rank {rank} of {size} on {os.uname().nodename}", flush=True)

    teacher = network(SEED).to(device)
    model = DistributedDataParallel(
        network(SEED + 1).to(device), device_ids=[device.index] if has_gpu else None
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    path = Path(os.environ.get("FAIRLEAD_CHECKPOINT_DIR", "."), "torch.pt")
    step = 0
    if path.exists():
        state = torch.load(path, map_location=device)
        model.module.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        step = state["step"]
        print(f"rank {rank}: resumed from the checkpoint of step {step}", flush=True)
    distributed.barrier()

    def loss_on(seed: int) -> torch.Tensor:
        generator = torch.Generator().manual_seed(seed)
        x = torch.randn(options.batch, INPUTS, generator=generator).to(device)
        with torch.no_grad():
            y = teacher(x)
        return nn.functional.mse_loss(model(x), y)

    while step < options.steps:
        loss = loss_on(SEED + 1 + step * size + rank)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
        if rank == 0 and (step % options.checkpoint_every == 0 or step == options.steps):
            save(path, {"model": model.module.state_dict(), "optimizer": optimizer.state_dict(),
                        "step": step})  # fmt: skip
            report(step)
            print(f"step {step} loss {loss.item():.5f} checkpoint saved", flush=True)
        if options.step_seconds:
            time.sleep(options.step_seconds)

    if rank == 0:
        print(f"loss {loss_on(0).item():.5f} on unseen samples after {step} steps", flush=True)
    distributed.barrier()
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
