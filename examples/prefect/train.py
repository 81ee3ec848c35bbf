"""A flow: split a data set, train a grid of networks in parallel, pick the best, draw a figure."""

from __future__ import annotations

import argparse
import os
from typing import TypedDict

from prefect import flow, task
from sklearn.neural_network import MLPClassifier

import chart
import digits
from grn_plugins.prefect import GRNTaskRunner, gpu

GRID = [(hidden, rate) for hidden in (64, 128) for rate in (0.0003, 0.001, 0.003, 0.01)]


class Training(TypedDict):
    """What came of one network."""

    name: str
    curve: list[float]
    device: str
    process: int


@task
@gpu(0)  # no device: it starts at once, whatever the devices do
def split(rows: int, seed: int) -> digits.Digits:
    """Load and split the data."""
    return digits.load(rows, seed)


@task(retries=1)
def fit(data: digits.Digits, hidden: int, rate: float, epochs: int) -> Training:
    """Train one network; return its accuracy after each epoch."""
    network = MLPClassifier((hidden,), learning_rate_init=rate, random_state=0)
    curve = []
    for _ in range(epochs):
        network.partial_fit(data.train, data.train_labels, classes=range(10))
        curve.append(float(network.score(data.test, data.test_labels)))
    return {
        "name": f"{hidden} neurons, rate {rate}",
        "curve": curve,
        "device": os.environ["CUDA_VISIBLE_DEVICES"],
        "process": os.getpid(),
    }


@task
@gpu(0)
def draw(trainings: list[Training], best: str, path: str) -> str:
    """Write a figure with all curves."""
    curves = {each["name"]: each["curve"] for each in trainings}
    with open(path, "w", encoding="utf-8") as file:
        file.write(chart.svg(curves, best=best, title="Accuracy on digits not seen in training"))
    return path


@flow(task_runner=GRNTaskRunner(gpus=1))
def search(rows: int = 20_000, epochs: int = 6, seed: int = 0, path: str = "digits.svg") -> str:
    """Return the best setting."""
    data = split.submit(rows, seed)
    running = [fit.submit(data, hidden, rate, epochs) for hidden, rate in GRID]
    trainings = [each.result() for each in running]
    best = max(trainings, key=lambda each: each["curve"][-1])
    for each in trainings:
        mark = "  <- best" if each is best else ""
        print(f"{each['name']:24} {each['curve'][-1]:.3f}  on device {each['device']}{mark}")
    draw.submit(trainings, best["name"], path).result()
    return best["name"]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=20_000, help="training images")
    parser.add_argument("--epochs", type=int, default=6, help="passes over them")
    parser.add_argument("--figure", default="digits.svg", help="where the figure goes")
    given = parser.parse_args()
    print("best:", search(rows=given.rows, epochs=given.epochs, path=given.figure))
