"""The handwritten digits that come with scikit-learn: fetched once, then read by each training."""

from __future__ import annotations

import argparse
import json
import os
import time

import numpy as np
from numpy.typing import NDArray

Images = NDArray[np.float32]
Labels = NDArray[np.int64]
_TEST_SHARE = 0.25
_SIDE = 8


def fetch(path: str) -> None:
    """Write the 1,797 images of 8 x 8 pixels and their labels to a file."""
    from sklearn.datasets import load_digits  # noqa: PLC0415 - the trainings do not need it

    images, labels = load_digits(return_X_y=True)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    np.savez(path, images=(images / 16.0).astype(np.float32), labels=labels)


class Run:
    """One training: its options, its data, and the file of its metrics."""

    def __init__(self, framework: str, description: str) -> None:
        parser = argparse.ArgumentParser(description=description)
        parser.add_argument("--data", default="data/digits.npz", help="what digits.py has written")
        parser.add_argument("--epochs", type=int, default=4, help="passes over the training images")
        parser.add_argument(
            "--rows", type=int, default=16_000, help="training images, with shifted ones"
        )
        parser.add_argument("--seed", type=int, default=0, help="seed of everything that is random")
        parser.add_argument("--out", required=True, help="where the metrics go, as JSON")
        args = parser.parse_args()
        self.framework = framework
        self.epochs: int = args.epochs
        self.seed: int = args.seed
        self._out: str = args.out
        self._started = time.time()
        with np.load(args.data) as data:
            images, labels = data["images"], data["labels"]
        order = np.random.default_rng(self.seed).permutation(len(images))
        test, train = np.split(order, [int(_TEST_SHARE * len(order))])
        self.test, self.test_labels = images[test], labels[test]
        self.train, self.train_labels = _more(images[train], labels[train], args.rows, self.seed)

    def end(self, accuracy: float) -> None:
        """Write the metrics, and say how it went."""
        ended = time.time()
        metrics = {
            "framework": self.framework,
            "seed": self.seed,
            "accuracy": round(accuracy, 4),
            "started": self._started,
            "ended": ended,
            "devices": os.environ.get("CUDA_VISIBLE_DEVICES"),
        }
        os.makedirs(os.path.dirname(self._out) or ".", exist_ok=True)
        with open(self._out, "w", encoding="utf-8") as file:
            json.dump(metrics, file)
        took = ended - self._started
        print(f"{self.framework}, seed {self.seed}: accuracy {accuracy:.3f} in {took:.1f} s")


def _more(images: Images, labels: Labels, rows: int, seed: int) -> tuple[Images, Labels]:
    """Draw `rows` images at random, and shift each by up to one pixel."""
    rng = np.random.default_rng(seed)
    chosen = rng.integers(len(images), size=rows)
    grid = images[chosen].reshape(rows, _SIDE, _SIDE)
    for axis in (1, 2):
        steps = rng.integers(-1, 2, size=rows)
        for step in (-1, 1):
            moved = steps == step
            grid[moved] = np.roll(grid[moved], step, axis=axis)
    return grid.reshape(rows, _SIDE * _SIDE), labels[chosen]


if __name__ == "__main__":
    fetch("data/digits.npz")
