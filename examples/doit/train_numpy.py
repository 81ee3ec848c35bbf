"""Train a network with one hidden layer, written out in numpy."""

from __future__ import annotations

import numpy as np

from digits import Images, Labels, Run

HIDDEN, BATCH, RATE = 256, 128, 0.2


class Network:
    """Weights of two layers, and a step of gradient descent."""

    def __init__(self, seed: int) -> None:
        rng = np.random.default_rng(seed)
        self.first = rng.normal(0, 0.1, (64, HIDDEN)).astype(np.float32)
        self.second = rng.normal(0, 0.1, (HIDDEN, 10)).astype(np.float32)

    def hidden(self, images: Images) -> Images:
        """Return the hidden layer."""
        return np.maximum(images @ self.first, 0)

    def step(self, images: Images, labels: Labels) -> None:
        """Learn from one batch."""
        hidden = self.hidden(images)
        scores = np.exp(hidden @ self.second)
        scores /= scores.sum(axis=1, keepdims=True)
        scores[np.arange(len(labels)), labels] -= 1
        error = scores / len(labels)
        back = (error @ self.second.T) * (hidden > 0)
        self.second -= RATE * hidden.T @ error
        self.first -= RATE * images.T @ back

    def accuracy(self, images: Images, labels: Labels) -> float:
        """Return the share of images that are told right."""
        return float(((self.hidden(images) @ self.second).argmax(axis=1) == labels).mean())


def main() -> None:
    """Train once, with what the command line says."""
    run = Run("numpy", __doc__ or "")
    network = Network(run.seed)
    for _ in range(run.epochs):
        for at in range(0, len(run.train), BATCH):
            network.step(run.train[at : at + BATCH], run.train_labels[at : at + BATCH])
    run.end(network.accuracy(run.test, run.test_labels))


if __name__ == "__main__":
    main()
