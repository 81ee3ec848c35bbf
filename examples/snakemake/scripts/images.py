"""Write training and test images: the digits of scikit-learn, made more by small shifts and noise."""

# ruff: noqa: F821 - Snakemake puts `snakemake` in front of its scripts

import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

ROWS = 16_000
SEED = 1

images, labels = load_digits(return_X_y=True)
train, test, train_labels, test_labels = train_test_split(
    images / 16.0, labels, test_size=0.25, random_state=SEED, stratify=labels
)

rng = np.random.default_rng(SEED)
chosen = rng.integers(len(train), size=ROWS)
grid = train[chosen].reshape(ROWS, 8, 8)
for axis in (1, 2):
    steps = rng.integers(-1, 2, size=ROWS)
    for step in (-1, 1):
        moved = steps == step
        grid[moved] = np.roll(grid[moved], step, axis=axis)
grid += rng.normal(0.0, 0.05, size=grid.shape)

np.savez(
    snakemake.output[0],
    train=grid.reshape(ROWS, 64),
    train_labels=train_labels[chosen],
    test=test,
    test_labels=test_labels,
)
