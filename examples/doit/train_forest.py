"""Train a random forest with scikit-learn; an epoch is five trees more."""

from __future__ import annotations

from sklearn.ensemble import RandomForestClassifier

from digits import Run


def main() -> None:
    """Train once, with what the command line says."""
    run = Run("forest", __doc__ or "")
    forest = RandomForestClassifier(0, warm_start=True, random_state=run.seed)
    for epoch in range(run.epochs):
        forest.set_params(n_estimators=5 * (epoch + 1)).fit(run.train, run.train_labels)
    run.end(forest.score(run.test, run.test_labels))


if __name__ == "__main__":
    main()
