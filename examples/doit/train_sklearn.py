"""Train a support vector machine with scikit-learn, in an approximate kernel space."""

from __future__ import annotations

from sklearn.kernel_approximation import Nystroem
from sklearn.linear_model import SGDClassifier

from digits import Run


def main() -> None:
    """Train once, with what the command line says."""
    run = Run("sklearn", __doc__ or "")
    kernel = Nystroem(n_components=400, gamma=0.1, random_state=run.seed)
    images = kernel.fit_transform(run.train)
    machine = SGDClassifier(random_state=run.seed)
    for _ in range(run.epochs):
        machine.partial_fit(images, run.train_labels, classes=range(10))
    run.end(machine.score(kernel.transform(run.test), run.test_labels))


if __name__ == "__main__":
    main()
