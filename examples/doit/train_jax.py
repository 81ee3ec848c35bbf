"""Train a network with one hidden layer in JAX, on a GPU if there is one."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from digits import Run

BATCH, RATE = 128, 0.2
Weights = tuple[jax.Array, jax.Array]


def scores(weights: Weights, images: jax.Array) -> jax.Array:
    """Return ten scores for each image."""
    return jax.nn.relu(images @ weights[0]) @ weights[1]


def loss(weights: Weights, images: jax.Array, labels: jax.Array) -> jax.Array:
    """Return the cross entropy."""
    likely = jax.nn.log_softmax(scores(weights, images))
    return -jnp.mean(likely[jnp.arange(len(labels)), labels])


@jax.jit
def step(weights: Weights, images: jax.Array, labels: jax.Array) -> Weights:
    """Learn from one batch."""
    slopes = jax.grad(loss)(weights, images, labels)
    return weights[0] - RATE * slopes[0], weights[1] - RATE * slopes[1]


def main() -> None:
    """Train once, with what the command line says."""
    run = Run("jax", __doc__ or "")
    first, second = jax.random.split(jax.random.key(run.seed))
    weights = (
        0.1 * jax.random.normal(first, (64, 256)),
        0.1 * jax.random.normal(second, (256, 10)),
    )
    images, labels = jnp.asarray(run.train), jnp.asarray(run.train_labels)
    for _ in range(run.epochs):
        for at in range(0, len(images) - BATCH + 1, BATCH):
            weights = step(weights, images[at : at + BATCH], labels[at : at + BATCH])
    told = scores(weights, jnp.asarray(run.test)).argmax(axis=1)
    run.end(float((told == run.test_labels).mean()))


if __name__ == "__main__":
    main()
