"""`grn selftest`: whether GRN does on this machine's devices what it promises.

The tests of the project run on simulated devices and behind a stand-in driver. This package asks the
real ones, within three minutes and about 3 GiB of device memory: it starts small programs through
`grn run`, and compares three accounts of each: what the broker's books say, what the program saw, and
what the driver lists.

    suite     the order of the checks, the time they may take, the result of each
    checks    the checks themselves, one function each; `bench` is what they have at hand
    listed    whether the driver has a process where it should be
    ground    the broker that is tested: one of our own, or the one that has the devices
    jobs      one `grn run` and what its program says (`lines`)
    driver    what the driver lists, asked in a process of its own
    verdict   how a check ends
    report    the text to paste into a bug report, and the JSON

The programs that run as jobs: `python -m grn.selftest.worker` (through `cuda`, which needs nothing but
libcuda) and `python -m grn.selftest.frameworks` (PyTorch, CuPy, JAX, where they are installed).

Must not: touch profiles of the user's, signal what it did not start, take memory outside of a lease.
"""
