"""The handwritten digits that come with scikit-learn, made more by small shifts and noise."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

Images = NDArray[np.float64]
Labels = NDArray[np.int64]


class Digits(NamedTuple):
    """Images of 8 x 8 pixels and their labels, for training and for the test."""

    train: Images
    train_labels: Labels
    test: Images
    test_labels: Labels


def load(rows: int, seed: int) -> Digits:
    """Split the 1,797 images, and draw `rows` of those for training, each a little changed."""
    images, labels = load_digits(return_X_y=True)
    train, test, train_labels, test_labels = train_test_split(
        images / 16.0, labels, test_size=0.25, random_state=seed, stratify=labels
    )
    rng = np.random.default_rng(seed)
    chosen = rng.integers(len(train), size=rows)
    grid = train[chosen].reshape(rows, 8, 8)
    for axis in (1, 2):
        steps = rng.integers(-1, 2, size=rows)
        for step in (-1, 1):
            moved = steps == step
            grid[moved] = np.roll(grid[moved], step, axis=axis)
    grid += rng.normal(0.0, 0.05, size=grid.shape)
    return Digits(grid.reshape(rows, 64), train_labels[chosen], test, test_labels)
