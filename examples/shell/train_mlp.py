"""Train a small neural network on handwritten digits and print its accuracy."""

from __future__ import annotations

import argparse
import time

from sklearn.neural_network import MLPClassifier

import digits


def main() -> None:
    """Train once, with what the command line says."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hidden", type=int, default=128, help="neurons in the hidden layer")
    parser.add_argument(
        "--rows", type=int, default=60_000, help="training images after augmentation"
    )
    parser.add_argument("--epochs", type=int, default=4, help="passes over the training images")
    parser.add_argument("--seed", type=int, default=0, help="seed of everything that is random")
    args = parser.parse_args()

    started = time.perf_counter()
    train, test, train_labels, test_labels = digits.load(args.seed)
    images, labels = digits.augment(train, train_labels, args.rows, args.seed)
    network = MLPClassifier((args.hidden,), random_state=args.seed)
    for _ in range(args.epochs):
        network.partial_fit(images, labels, classes=range(10))
    accuracy = network.score(test, test_labels)
    print(
        f"mlp, {args.hidden} neurons, seed {args.seed}: accuracy {accuracy:.3f}"
        f" in {time.perf_counter() - started:.1f} s"
    )


if __name__ == "__main__":
    main()
