"""Every variable that a job is told, or that is left alone on purpose: a row each.

The order is that of `grn run --explain` and of `docs/environment.md`, which a test compares with
this table. Left out on purpose: `XLA_FLAGS` and other strings that a user composes (the rows say so),
`JAVA_TOOL_OPTIONS`, `MAKEFLAGS`, and the variables that pin threads to cores (`OMP_PROC_BIND`,
`KMP_AFFINITY`), which put every job on the same first cores. Masks for other makers' devices
(`ROCR_VISIBLE_DEVICES` and `HIP_VISIBLE_DEVICES`, one of the two) belong beside the CUDA mask once a
backend hands such devices out.
"""

from __future__ import annotations

from grn.rules import environment_values as values
from grn.rules.environment_values import ALSO_TELL, EXTRAS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Literal

    from grn.rules.environment_values import Facts, Ours

    Kind = Literal["authority", "ceiling", "default", "composed"]
    Combine = Callable[[Facts, str, str], str]

__all__ = ["TABLE", "Row"]


class Row:
    """One variable: who reads it and when, its class, our value (None: we have none), and why.

    `says` is our value in words. `combine` makes one value of the user's and ours, for ceilings and
    composed strings. `idle` says why there is no value of ours; `warning` what the user should know.
    """

    __slots__ = (
        "combine", "idle", "kind", "name", "ours", "reader", "says", "warning", "when", "why",
    )  # fmt: skip

    def __init__(
        self,
        name: str,
        *,
        kind: Kind,
        reader: str,
        when: str,
        ours: Ours,
        why: str,
        says: str,
        combine: Combine = values.smaller,
        idle: str = "",
        warning: Callable[[Facts], str] | None = None,
    ) -> None:
        self.name = name
        self.kind = kind
        self.reader = reader
        self.when = when
        self.ours = ours
        self.why = why
        self.says = says
        self.combine = combine
        self.idle = idle
        self.warning = warning


def _told(name: str, ours: Ours, why: str) -> Row:
    return Row(
        name,
        kind="authority",
        reader="the job, and GRN inside it",
        when="any time",
        ours=ours,
        why=why,
        says=why,
    )


def _mps(
    name: str, kind: Kind, ours: Ours, why: str, says: str, combine: Combine = values.smaller
) -> Row:
    return Row(
        name,
        kind=kind,
        reader="the CUDA driver, as a client of MPS",
        when="first cuInit",
        ours=ours,
        why=why,
        says=f"{says}; only where an MPS daemon answers",
        combine=combine,
        idle="no MPS daemon limits this lease",
    )


def _thread_cap(
    name: str,
    reader: str,
    when: str,
    ours: Ours = values.threads,
    says: str = "the share of the cores",
) -> Row:
    return Row(
        name,
        kind="default",
        reader=reader,
        when=when,
        ours=ours,
        why="this job's share of the CPUs",
        says=says,
    )


def _blas_cap(name: str, reader: str) -> Row:
    says = "the share of the cores, or your smaller `OMP_NUM_THREADS`"
    return _thread_cap(name, reader, "load", values.blas_threads, says)


def _extra_cap(name: str, reader: str, extra: str) -> Row:
    return Row(
        name,
        kind="default",
        reader=reader,
        when="start",
        ours=values.threads_if_asked(extra),
        why=f"this job's share of the CPUs, as {ALSO_TELL} asks",
        says=f"the share of the cores, where `{ALSO_TELL}` names `{extra}`",
        idle=f"{ALSO_TELL} does not name {extra}",
    )


TABLE = (
    Row(
        "CUDA_VISIBLE_DEVICES",
        kind="authority",
        reader="the CUDA driver; PyTorch also reads it itself",
        when="first cuInit",
        ours=values.mask,
        why="the devices of this lease",
        says="the devices of the lease; empty with `--gpus 0`, left alone with `--gpus none`",
    ),
    Row(
        "CUDA_DEVICE_ORDER",
        kind="authority",
        reader="the CUDA driver",
        when="first cuInit",
        ours=values.order,
        why="the numbers in the mask count by bus",
        says="`PCI_BUS_ID`, beside the mask",
    ),
    _told("GRN_LEASE", values.lease, "the lease, which marks the job's processes"),
    _told("GRN_DEVICES", values.uuids, "full UUIDs of the devices"),
    _told("GRN_MEM_MIB", values.booked_mib, "booked on each device"),
    _told("GRN_MEM_FRACTION", values.booked_fraction, "the booking as a part of the device"),
    _told("GRN_CPUS", values.cpus, "this job's share of the CPUs"),
    _mps(
        "CUDA_MPS_PIPE_DIRECTORY",
        "authority",
        values.mps_folder,
        "where the MPS daemon answers that limits this lease",
        "the daemon's folder",
    ),
    _mps(
        "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT",
        "ceiling",
        values.mps_memory,
        "this job's share of the device, divided by its processes",
        "`0=4096M`: the booking divided by `--processes`, by the job's own ordinals",
        values.smaller_limits,
    ),
    _mps(
        "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE",
        "ceiling",
        values.mps_compute,
        "the multiprocessors that were booked, divided by the job's processes",
        "`--compute` divided by `--processes`",
    ),
    Row(
        "XLA_PYTHON_CLIENT_PREALLOCATE",
        kind="default",
        reader="jaxlib",
        when="backend start",
        ours=values.with_device("false"),
        why="JAX would take 75 % of the device at once",
        says="`false`",
    ),
    Row(
        "TF_FORCE_GPU_ALLOW_GROWTH",
        kind="default",
        reader="TensorFlow",
        when="device creation",
        ours=values.with_device("true"),
        why="TensorFlow would take the whole device at once",
        says="`true`",
    ),
    Row(
        # Every jaxlib reads the old name; the new one beside it is a ValueError.
        values.JAX_FRACTION,
        kind="ceiling",
        reader="jaxlib",
        when="backend start",
        ours=values.jax_share,
        why="this job's share of the device",
        says="the share of the device; nothing where you set the newer name",
        warning=values.about_both_fractions,
    ),
    Row(
        values.JAX_FRACTION_NEW,
        kind="ceiling",
        reader="newer jaxlib",
        when="backend start",
        ours=values.jax_share_new,
        why="this job's share of the device",
        says="nothing; your value is lowered to the share",
    ),
    Row(
        "CUPY_GPU_MEMORY_LIMIT",
        kind="ceiling",
        reader="CuPy's memory pool",
        when="import",
        ours=values.cupy_limit,
        why="this job's share of the device, in bytes",
        says="the booking in bytes",
        combine=values.smaller_size,
    ),
    _thread_cap("OMP_NUM_THREADS", "OpenMP, PyTorch; MKL, OpenBLAS if theirs is unset", "load"),
    _blas_cap("OPENBLAS_NUM_THREADS", "OpenBLAS"),
    _blas_cap("MKL_NUM_THREADS", "MKL, PyTorch"),
    _blas_cap("BLIS_NUM_THREADS", "BLIS"),
    _thread_cap("VECLIB_MAXIMUM_THREADS", "Accelerate (macOS)", "load"),
    _thread_cap(
        "NUMEXPR_NUM_THREADS",
        "numexpr",
        "import",
        values.numexpr_threads,
        "the same, at most your own maximum",
    ),
    _thread_cap(
        "NUMEXPR_MAX_THREADS",
        "numexpr",
        "import",
        values.numexpr_max,
        "the share of the cores, at least your own number",
    ),
    _thread_cap("NUMBA_NUM_THREADS", "numba", "import"),
    _thread_cap("RAYON_NUM_THREADS", "Rust programs with rayon", "first use"),
    _thread_cap("POLARS_MAX_THREADS", "Polars", "import"),
    _thread_cap("LOKY_MAX_CPU_COUNT", "joblib", "n_jobs=-1"),
    _thread_cap("TF_NUM_INTRAOP_THREADS", "TensorFlow", "session start"),
    _thread_cap(
        "TF_NUM_INTEROP_THREADS",
        "TensorFlow",
        "session start",
        values.interop_threads,
        "2, or 1 with a share of one core",
    ),
    _thread_cap("PYTHON_CPU_COUNT", "Python 3.13 and newer", "interpreter start"),
    Row(
        ALSO_TELL,
        kind="composed",
        reader="GRN",
        when="the job's start",
        ours=values.also_tell,
        why="what the broker's setting names",
        says="what the setting `also_tell` names, or yours: what else to tell, of"
        f" {', '.join(f'`{e}`' for e in EXTRAS)}",
        idle="it names what else the job is told",
        warning=values.about_extras,
    ),
    _extra_cap("JULIA_NUM_THREADS", "Julia", "julia"),
    _extra_cap("GOMAXPROCS", "Go programs", "go"),
    _extra_cap("R_DATATABLE_NUM_THREADS", "R's data.table", "r"),
    _extra_cap("RCPP_PARALLEL_NUM_THREADS", "R's RcppParallel", "r"),
    _extra_cap("MC_CORES", "R's parallel", "r"),
    Row(
        values.TORCH_OPTIONS,
        kind="composed",
        reader="newer PyTorch",
        when="allocator start",
        ours=values.torch_fraction,
        why=f"this job's share of the device, as {ALSO_TELL} asks",
        says="`per_process_memory_fraction`, merged into yours by key, where"
        f" `{ALSO_TELL}` names `torch`: a PyTorch that does not know that key does not start",
        combine=values.with_fraction,
        idle="a string that you compose",
    ),
    Row(
        values.TORCH_OPTIONS_OLD,
        kind="composed",
        reader="PyTorch; outranks the newer name",
        when="allocator start",
        ours=values.none,
        why="",
        says="nothing: older versions refuse keys that they do not know",
        idle="a string that you compose",
        warning=values.about_old_options,
    ),
    Row(
        "XLA_FLAGS",
        kind="composed",
        reader="XLA",
        when="backend start",
        ours=values.none,
        why="",
        says="nothing",
        idle="a string that you compose",
    ),
)
