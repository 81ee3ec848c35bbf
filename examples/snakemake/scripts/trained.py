"""What both trainings do around the training: read the images, note when and where, keep the model."""

from __future__ import annotations

import os
import pickle
import time
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable


def train(snakemake: Any, fit: Callable[[Any, Any], Any]) -> None:
    """Fit a model and write it, with the device on which that was and the time that it took."""
    began = time.time()
    with np.load(snakemake.input[0]) as images:
        model = fit(images["train"], images["train_labels"])
    kept = {
        "name": snakemake.rule,
        "size": int(snakemake.wildcards.size),
        "model": model,
        "device": os.environ.get("CUDA_VISIBLE_DEVICES", "none"),
        "booked_mib": int(os.environ.get("GRN_MEM_MIB", "0")),
        "began": began,
        "ended": time.time(),
    }
    with open(snakemake.output[0], "wb") as file:
        pickle.dump(kept, file)
