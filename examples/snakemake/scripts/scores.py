"""Measure how many test images each model of a kind recognises. Needs no device."""

# ruff: noqa: F821 - Snakemake puts `snakemake` in front of its scripts

import json
import pickle

import numpy as np

with np.load(snakemake.input.images) as images:
    test, labels = images["test"], images["test_labels"]

scores = []
for path in snakemake.input.models:
    with open(path, "rb") as file:
        run = pickle.load(file)  # noqa: S301 - written by this workflow
    scores.append({"accuracy": run.pop("model").score(test, labels), **run})
with open(snakemake.output[0], "w", encoding="utf-8") as file:
    json.dump(scores, file)
