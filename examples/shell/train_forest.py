"""Train a random forest on handwritten digits and print its accuracy."""

from __future__ import annotations

import argparse
import time

from sklearn.ensemble import RandomForestClassifier

import digits


def main() -> None:
    """Train once, with what the command line says."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trees", type=int, default=20, help="number of trees")
    parser.add_argument(
        "--rows", type=int, default=8_000, help="training images after augmentation"
    )
    parser.add_argument("--seed", type=int, default=0, help="seed of split, augmentation and trees")
    args = parser.parse_args()

    started = time.perf_counter()
    train, test, train_labels, test_labels = digits.load(args.seed)
    images, labels = digits.augment(train, train_labels, args.rows, args.seed)
    forest = RandomForestClassifier(args.trees, random_state=args.seed).fit(images, labels)
    accuracy = forest.score(test, test_labels)
    print(
        f"forest, {args.trees} trees, seed {args.seed}: accuracy {accuracy:.3f}"
        f" in {time.perf_counter() - started:.1f} s"
    )


if __name__ == "__main__":
    main()
