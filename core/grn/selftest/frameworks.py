"""A small allocation by a framework, as a job: `python -m grn.selftest.frameworks torch 512`.

Speaks as `grn.selftest.worker` does. A framework that has no CUDA (a build for the CPU) is
`unavailable` and no failure.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys

from grn.selftest.worker import describe, say, wait_for_end

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

__all__ = ["FRAMEWORKS", "installed", "main"]


class UnavailableError(Exception):
    """The framework cannot use a device here, by the way it was built."""


def _torch(size: int) -> tuple[object, str]:
    torch: Any = importlib.import_module("torch")
    if getattr(torch.version, "cuda", None) is None:
        raise UnavailableError(f"PyTorch {torch.__version__} was built without CUDA")
    held = torch.empty(size, dtype=torch.uint8, device="cuda")
    held.fill_(1)
    torch.cuda.synchronize()
    return held, torch.__version__


def _cupy(size: int) -> tuple[object, str]:
    cupy: Any = importlib.import_module("cupy")
    held = cupy.empty(size, dtype=cupy.uint8)
    held.fill(1)
    cupy.cuda.Device().synchronize()
    return held, cupy.__version__


def _jax(size: int) -> tuple[object, str]:
    jax: Any = importlib.import_module("jax")
    if jax.default_backend() not in ("gpu", "cuda"):
        raise UnavailableError(f"JAX {jax.__version__} has no CUDA backend here")
    held = jax.numpy.ones((size,), dtype=jax.numpy.uint8)
    held.block_until_ready()
    return held, jax.__version__


FRAMEWORKS: dict[str, tuple[str, Callable[[int], tuple[object, str]]]] = {
    "torch": ("PyTorch", _torch),
    "cupy": ("CuPy", _cupy),
    "jax": ("JAX", _jax),
}
"""Module -> its name, and what allocates so many bytes with it."""


def installed(module: str) -> bool:
    """Whether this Python has a module; it is not imported."""
    spec = importlib.util.find_spec(module)
    return spec is not None and spec.origin is not None  # else a mere folder of that name


def main() -> int:
    """Hold memory by a framework; return the exit status."""
    module, mib = sys.argv[1], int(sys.argv[2])
    _, allocate = FRAMEWORKS[module]
    try:
        held, version = allocate(mib << 20)
    except UnavailableError as error:
        say("unavailable", reason=str(error))
        return 0
    say("holds", **describe(), mib=mib, version=version)
    wait_for_end()
    del held
    return 0


if __name__ == "__main__":
    sys.exit(main())
