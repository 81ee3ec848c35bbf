"""Frameworks read the share of the device as it is meant, and start with every combination.

None of it needs a device: what a framework would ask of one is looked at before it is asked.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.libraries.conftest import Look

OLD, NEW = "XLA_PYTHON_CLIENT_MEM_FRACTION", "XLA_CLIENT_MEM_FRACTION"
JAX = """
from jaxlib import xla_client
options = xla_client.generate_pjrt_gpu_plugin_options()
found = [options.get("memory_fraction"), options.get("preallocate")]
"""
TORCH = """
import torch
read = getattr(torch._C, "_accelerator_getAllocatorSettings", None)
found = read() if read else None
"""
RECOMMENDED = "expandable_segments:True"


@pytest.mark.parametrize(
    ("user", "expected"),
    [
        ({}, [0.25, False]),
        ({OLD: "0.1"}, [0.1, False]),
        ({OLD: "0.9"}, [0.25, False]),
        ({NEW: "0.1"}, [0.1, False]),
        ({NEW: "0.9"}, [0.25, False]),
        ({NEW: ""}, [0.25, False]),
        ({"XLA_PYTHON_CLIENT_PREALLOCATE": "true"}, [0.25, True]),
    ],
)
def test_jax(look: Look, user: dict[str, str], expected: list[Any]) -> None:
    """Under whichever name the user sets it, JAX starts, and takes no more than the share."""
    assert look(JAX, "jaxlib", user=user) == expected


def test_jax_starts(look: Look) -> None:
    """It computes on the CPU with all that a job is told."""
    code = "import os; os.environ['JAX_PLATFORMS'] = 'cpu'\n"
    code += "import jax.numpy as jnp; found = float(jnp.arange(4).sum())"
    assert look(code, "jax", "jaxlib") == 6.0


@pytest.mark.parametrize(
    ("user", "expected"),
    [
        ({}, ""),
        ({"PYTORCH_ALLOC_CONF": RECOMMENDED}, RECOMMENDED),
        ({"GRN_ALSO_TELL": "torch"}, "per_process_memory_fraction:0.25"),
        (
            {"GRN_ALSO_TELL": "torch", "PYTORCH_ALLOC_CONF": RECOMMENDED},
            f"{RECOMMENDED},per_process_memory_fraction:0.25",
        ),
        (
            {"GRN_ALSO_TELL": "torch", "PYTORCH_CUDA_ALLOC_CONF": RECOMMENDED},
            RECOMMENDED,
        ),
    ],
)
def test_pytorch(look: Look, user: dict[str, str], expected: str) -> None:
    """Its allocator reads the user's options, with our key only where that was asked for."""
    found = look(TORCH, "torch", user=user)
    if found is None:
        pytest.skip("this PyTorch does not tell its allocator's settings")
    assert found == expected
