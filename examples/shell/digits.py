"""The handwritten digits that come with scikit-learn, made more by small shifts and noise."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

Images = NDArray[np.float64]
Labels = NDArray[np.int64]


def load(seed: int) -> tuple[Images, Images, Labels, Labels]:
    """Split the 1,797 images of 8 x 8 pixels into training and test images and their labels."""
    images, labels = load_digits(return_X_y=True)
    train, test, train_labels, test_labels = train_test_split(
        images / 16.0, labels, test_size=0.25, random_state=seed, stratify=labels
    )
    return train, test, train_labels, test_labels


def augment(images: Images, labels: Labels, rows: int, seed: int) -> tuple[Images, Labels]:
    """Draw `rows` images at random; shift each by up to one pixel and add a little noise."""
    rng = np.random.default_rng(seed)
    chosen = rng.integers(len(images), size=rows)
    grid = images[chosen].reshape(rows, 8, 8)
    for axis in (1, 2):
        steps = rng.integers(-1, 2, size=rows)
        for step in (-1, 1):
            moved = steps == step
            grid[moved] = np.roll(grid[moved], step, axis=axis)
    grid += rng.normal(0.0, 0.05, size=grid.shape)
    return grid.reshape(rows, 64), labels[chosen]
