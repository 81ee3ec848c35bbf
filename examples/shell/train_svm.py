"""Train a support vector machine on handwritten digits, in an approximate kernel space."""

from __future__ import annotations

import argparse
import time

from sklearn.kernel_approximation import Nystroem
from sklearn.linear_model import SGDClassifier
from sklearn.pipeline import make_pipeline

import digits


def main() -> None:
    """Train once, with what the command line says."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--features", type=int, default=400, help="size of the kernel space")
    parser.add_argument(
        "--rows", type=int, default=24_000, help="training images after augmentation"
    )
    parser.add_argument("--seed", type=int, default=0, help="seed of everything that is random")
    args = parser.parse_args()

    started = time.perf_counter()
    train, test, train_labels, test_labels = digits.load(args.seed)
    images, labels = digits.augment(train, train_labels, args.rows, args.seed)
    machine = make_pipeline(
        Nystroem(n_components=args.features, gamma=0.1, random_state=args.seed),
        SGDClassifier(max_iter=5, tol=None, random_state=args.seed),
    ).fit(images, labels)
    accuracy = machine.score(test, test_labels)
    print(
        f"svm, {args.features} features, seed {args.seed}: accuracy {accuracy:.3f}"
        f" in {time.perf_counter() - started:.1f} s"
    )


if __name__ == "__main__":
    main()
