"""Only some devices: a mask of your own narrows what your jobs are given."""

from __future__ import annotations

import os

import grn


@grn.job(memory="600MiB")
def where() -> str:
    """Return the device."""
    return os.environ["CUDA_VISIBLE_DEVICES"]


@grn.job(gpus=0)
def nowhere() -> str:
    """Return an empty mask: this job sees no device."""
    return os.environ["CUDA_VISIBLE_DEVICES"]


def main() -> None:
    """Run under a mask that leaves the second device, and without a device."""
    os.environ["CUDA_VISIBLE_DEVICES"] = "1"
    print("with a mask of 1:", where())
    del os.environ["CUDA_VISIBLE_DEVICES"]
    print(f"with gpus=0: {nowhere()!r}")
    with grn.lease(gpus=2, memory="600MiB") as lease:
        print("a lease of two:", lease.env["CUDA_VISIBLE_DEVICES"])


if __name__ == "__main__":
    main()
