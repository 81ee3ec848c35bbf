"""Train a small neural network; the wildcard `size` is its number of neurons."""

# ruff: noqa: F821 - Snakemake puts `snakemake` in front of its scripts

from typing import Any

from sklearn.neural_network import MLPClassifier
from trained import train

EPOCHS = 6


def fit(images: Any, labels: Any) -> MLPClassifier:
    """Pass over the images a few times."""
    network = MLPClassifier((int(snakemake.wildcards.size),), random_state=1)
    for _ in range(EPOCHS):
        network.partial_fit(images, labels, classes=range(10))
    return network


train(snakemake, fit)
