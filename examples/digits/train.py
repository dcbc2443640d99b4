"""Data-parallel training of a small network on scikit-learn's digits, over MPI, with checkpoints.

Every rank holds the whole network and a part of the data. A step computes the gradient on the
rank's own mini-batch, averages it over all ranks with one Allreduce, and applies it, so that all
ranks stay equal. Rank 0 writes a checkpoint every few steps, atomically; a restarted job goes on
from it. The batch of a step depends only on the seed and the step, so a run with an interruption
ends like one without.
"""

from __future__ import annotations

import argparse
import os
import time
from importlib.metadata import distribution
from pathlib import Path

import numpy as np
from mpi4py import MPI

from fairlead.member.progress import checkpoint_directory, report

SEED = 7
HIDDEN = 64
CLASSES = 10
TEST_FRACTION = 0.2

Weights = list[np.ndarray]


def load_data() -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return x (N, 64) in 0..1 and labels (N,), for training and for the test, the same on all
    ranks.

    Of scikit-learn only the file is read: its import takes longer than all else before step 1.
    """
    file = distribution("scikit-learn").locate_file("sklearn/datasets/data/digits.csv.gz")
    table = np.loadtxt(str(file), delimiter=",")
    table = table[np.random.default_rng(SEED).permutation(len(table))]
    x, y = table[:, :64] / 16.0, table[:, 64].astype(int)
    cut = int(len(y) * (1 - TEST_FRACTION))
    return x[:cut], y[:cut], x[cut:], y[cut:]


def initial_weights() -> Weights:
    """Return [W1 (64, H), b1 (H,), W2 (H, 10), b2 (10,)], the same on all ranks."""
    rng = np.random.default_rng(SEED)
    return [
        rng.normal(0, np.sqrt(2 / 64), (64, HIDDEN)), np.zeros(HIDDEN),
        rng.normal(0, np.sqrt(2 / HIDDEN), (HIDDEN, CLASSES)), np.zeros(CLASSES),
    ]  # fmt: skip


def forward(weights: Weights, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the hidden layer (N, H) and class probabilities (N, 10)."""
    hidden = np.maximum(x @ weights[0] + weights[1], 0)
    logits = hidden @ weights[2] + weights[3]
    exponent = np.exp(logits - logits.max(axis=1, keepdims=True))
    return hidden, exponent / exponent.sum(axis=1, keepdims=True)


def gradient(weights: Weights, x: np.ndarray, y: np.ndarray) -> tuple[float, np.ndarray]:
    """Return the mean cross-entropy and its gradient, flattened in the order of the weights."""
    hidden, probability = forward(weights, x)
    loss = float(-np.log(probability[np.arange(len(y)), y] + 1e-12).mean())
    error = probability
    error[np.arange(len(y)), y] -= 1
    error /= len(y)
    back = (error @ weights[2].T) * (hidden > 0)
    parts = [x.T @ back, back.sum(axis=0), hidden.T @ error, error.sum(axis=0)]
    return loss, np.concatenate([part.ravel() for part in parts])


def save(path: Path, step: int, weights: Weights, velocity: np.ndarray) -> None:
    """Write a checkpoint so that a crash at any instant leaves the old one or the new one."""
    temporary = path.with_suffix(".new.npz")
    with temporary.open("wb") as file:
        np.savez(file, *weights, step=step, velocity=velocity)
        file.flush()
        os.fsync(file.fileno())
    temporary.rename(path)


def load(path: Path) -> tuple[int, Weights, np.ndarray]:
    """Return (step, weights, velocity) of a checkpoint."""
    with np.load(path) as data:
        return int(data["step"]), [data[f"arr_{i}"] for i in range(4)], data["velocity"]


def main() -> None:
    """Train to `--steps` and print the accuracy on the test part."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--batch", type=int, default=32, help="samples per rank and step")
    parser.add_argument("--rate", type=float, default=0.05)
    parser.add_argument("--checkpoint-every", type=int, default=50, metavar="STEPS")
    parser.add_argument("--step-seconds", type=float, default=0.0, help="slow down, for a demo")
    options = parser.parse_args()

    world = MPI.COMM_WORLD
    train_x, train_y, test_x, test_y = load_data()
    mine = slice(world.rank, None, world.size)
    x, y = train_x[mine], train_y[mine]

    path = checkpoint_directory() / "digits.npz"
    weights, step = initial_weights(), 0
    velocity = np.zeros(sum(part.size for part in weights))
    if world.bcast(path.exists() if world.rank == 0 else None):
        step, weights, velocity = load(path)
        print(f"rank {world.rank}: resumed from the checkpoint of step {step}", flush=True)

    total = np.empty_like(velocity)
    while step < options.steps:
        rng = np.random.default_rng((SEED, step, world.rank))
        batch = rng.integers(0, len(y), options.batch)
        loss, own = gradient(weights, x[batch], y[batch])
        world.Allreduce(own, total, MPI.SUM)
        velocity = 0.9 * velocity - options.rate * total / world.size
        offset = 0
        for part in weights:
            part += velocity[offset : offset + part.size].reshape(part.shape)
            offset += part.size
        step += 1
        if step % options.checkpoint_every == 0 or step == options.steps:
            mean_loss = world.allreduce(loss) / world.size
            if world.rank == 0:
                save(path, step, weights, velocity)
                report(step, checkpoint=True)
                print(f"step {step} loss {mean_loss:.4f} checkpoint saved", flush=True)
            world.Barrier()
        if options.step_seconds:
            time.sleep(options.step_seconds)

    if world.rank == 0:
        _, probability = forward(weights, test_x)
        accuracy = float((probability.argmax(axis=1) == test_y).mean())
        print(
            f"accuracy {accuracy:.4f} on {len(test_y)} test digits after {step} steps", flush=True
        )


if __name__ == "__main__":
    main()
