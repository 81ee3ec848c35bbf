"""What a job finds in its environment, and how it gets on with what was there."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grn.rules.environment import TABLE, Setting, derive, explain_lines, job_environment

THREAD_CAPS = [
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "BLIS_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "NUMEXPR_MAX_THREADS",
    "NUMBA_NUM_THREADS",
    "RAYON_NUM_THREADS",
    "POLARS_MAX_THREADS",
    "LOKY_MAX_CPU_COUNT",
    "TF_NUM_INTRAOP_THREADS",
    "TF_NUM_INTEROP_THREADS",
    "PYTHON_CPU_COUNT",
]
SWITCHES = ["XLA_PYTHON_CLIENT_PREALLOCATE", "TF_FORCE_GPU_ALLOW_GROWTH"]
OLD_FRACTION = "XLA_PYTHON_CLIENT_MEM_FRACTION"
NEW_FRACTION = "XLA_CLIENT_MEM_FRACTION"


def share(**differences: Any) -> dict[str, Any]:
    """Build a grant of a quarter of one device, with 2 threads."""
    device = {"uuid": "GPU-a", "index": 3, "model": "M", "total_mib": 16384, "booked_mib": 4096}
    grant: dict[str, Any] = {
        "lease": "L1",
        "gpus": 1,
        "mask": "3",
        "devices": [device],
        "memory_mib": 4096,
        "fraction": 0.25,
        "threads": 2,
        "cpus": None,
        "probe": False,
        "extra": {},
    }
    return grant | differences


def no_device(**differences: Any) -> dict[str, Any]:
    """Build a grant for a job that asked for no device."""
    none: dict[str, Any] = {
        "gpus": None,
        "mask": None,
        "devices": [],
        "memory_mib": None,
        "fraction": None,
    }
    return share(**(none | differences))


def decision(name: str, settings: list[Setting]) -> Setting:
    """Find the one decision about a variable."""
    (found,) = [each for each in settings if each.name == name]
    return found


def test_a_share_is_told_in_full() -> None:
    """A job finds its lease, its devices, its memory and its CPUs."""
    env, warnings = job_environment(share(extra={"GRN_SIM_DIR": "/sim"}), {"HOME": "/h"}, {})
    expected = {
        "HOME": "/h",
        "CUDA_VISIBLE_DEVICES": "3",
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "GRN_LEASE": "L1",
        "GRN_DEVICES": "GPU-a",
        "GRN_MEM_MIB": "4096",
        "GRN_MEM_FRACTION": "0.25",
        "GRN_CPUS": "2",
        "GRN_SIM_DIR": "/sim",
        "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
        "TF_FORCE_GPU_ALLOW_GROWTH": "true",
        OLD_FRACTION: "0.25",
        "CUPY_GPU_MEMORY_LIMIT": str(4 * 1024**3),
        **dict.fromkeys(THREAD_CAPS, "2"),
    }
    assert env == expected
    assert warnings == []


def test_the_users_mask_and_order_give_way() -> None:
    """A mask has narrowed the request already; in the job the grant's devices count, by bus."""
    env, warnings = job_environment(
        share(), {"CUDA_VISIBLE_DEVICES": "3,2", "CUDA_DEVICE_ORDER": "FASTEST_FIRST"}, {}
    )
    assert env["CUDA_VISIBLE_DEVICES"] == "3"
    assert env["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
    assert warnings == []


@pytest.mark.parametrize(
    "before", [{}, {"CUDA_VISIBLE_DEVICES": ""}, {"CUDA_VISIBLE_DEVICES": "1"}]
)
def test_no_wish_for_a_device_leaves_the_mask_as_it_was(before: dict[str, str]) -> None:
    """A job that asked for nothing sees what its caller sees, set or unset."""
    env, warnings = job_environment(no_device(), before, {})
    assert {name: env[name] for name in env if name.startswith("CUDA")} == before
    assert not {*SWITCHES, OLD_FRACTION} & set(env)
    assert warnings == []


def test_zero_devices_hide_all() -> None:
    """`gpus=0` sets the mask, and it is empty."""
    env, _ = job_environment(no_device(gpus=0, mask=""), {"CUDA_VISIBLE_DEVICES": "1"}, {})
    assert env["CUDA_VISIBLE_DEVICES"] == ""


def test_a_job_without_a_device_inherits_no_device_figures() -> None:
    """Figures of an outer lease do not leak into a lease without devices."""
    outer, _ = job_environment(share(), {}, {})
    env, _ = job_environment(no_device(lease="L2"), outer, {})
    assert (env["GRN_LEASE"], env["GRN_DEVICES"]) == ("L2", "")
    assert (env["GRN_MEM_MIB"], env["GRN_MEM_FRACTION"]) == ("0", "0")


def test_cpus_that_were_declared_are_the_share() -> None:
    """Declared CPUs are told and cap the threads."""
    env, _ = job_environment(share(cpus=4, threads=4), {}, {})
    assert (env["GRN_CPUS"], env["OMP_NUM_THREADS"]) == ("4", "4")


def test_zero_cpus_still_leave_one_thread() -> None:
    """A thread cap is never 0, which libraries read as "all"."""
    env, _ = job_environment(share(cpus=0, threads=0), {}, {})
    assert (env["GRN_CPUS"], env["OMP_NUM_THREADS"]) == ("0", "1")


def test_a_larger_thread_count_of_the_user_stays_with_one_warning() -> None:
    """The user's own number is kept; the other variables are still the share."""
    env, warnings = job_environment(share(), {"OMP_NUM_THREADS": "6"}, {})
    assert env["OMP_NUM_THREADS"] == "6"
    assert {env[name] for name in THREAD_CAPS if name != "OMP_NUM_THREADS"} == {"2"}
    (warning,) = warnings
    assert "OMP_NUM_THREADS=6" in warning
    assert "share is 2" in warning


@pytest.mark.parametrize(
    ("value", "warned"), [("1", 0), ("2", 0), ("4,2", 1), ("1,8", 0), ("many", 0)]
)
def test_only_a_larger_count_warns(value: str, warned: int) -> None:
    """Smaller, equal and unreadable values stay without a word; the outermost level counts."""
    env, warnings = job_environment(share(), {"OMP_NUM_THREADS": value}, {})
    assert env["OMP_NUM_THREADS"] == value
    assert len(warnings) == warned


@pytest.mark.parametrize(("user", "others"), [("1", "1"), ("2", "2"), ("6", "4")])
def test_a_smaller_number_for_openmp_holds_where_it_would_without_us(
    user: str, others: str
) -> None:
    """Libraries that fall back on it are not told more than the user, nor more than the share."""
    env, _ = job_environment(share(threads=4), {"OMP_NUM_THREADS": user}, {})
    names = ("OPENBLAS", "MKL", "BLIS", "NUMEXPR")
    assert {env[f"{name}_NUM_THREADS"] for name in names} == {others}
    assert env["NUMBA_NUM_THREADS"] == "4"


def test_a_variable_that_is_set_and_empty_counts_as_unset() -> None:
    """Libraries ignore an empty value, so the share is set."""
    env, _ = job_environment(
        share(), {"OMP_NUM_THREADS": "", OLD_FRACTION: "", NEW_FRACTION: ""}, {}
    )
    assert (env["OMP_NUM_THREADS"], env[OLD_FRACTION]) == ("2", "0.25")


@pytest.mark.parametrize(
    ("name", "value"), [("NUMEXPR_NUM_THREADS", "6"), ("NUMEXPR_MAX_THREADS", "1")]
)
def test_numexpr_never_gets_more_threads_than_its_maximum(name: str, value: str) -> None:
    """One of the pair from the user makes the other fit it."""
    env, _ = job_environment(share(), {name: value}, {})
    assert env[name] == value
    assert int(env["NUMEXPR_NUM_THREADS"]) <= int(env["NUMEXPR_MAX_THREADS"])


@pytest.mark.parametrize(
    ("name", "value"),
    [("XLA_PYTHON_CLIENT_PREALLOCATE", "true"), ("TF_FORCE_GPU_ALLOW_GROWTH", "false")],
)
def test_the_users_other_switch_stays_with_one_warning(name: str, value: str) -> None:
    """Whoever wants preallocation keeps it, and is told what it does to the sharing."""
    env, warnings = job_environment(share(), {name: value}, {})
    assert env[name] == value
    assert len(warnings) == 1
    assert f"{name}={value}" in warnings[0]


@pytest.mark.parametrize("value", ["false", "False", "0"])
def test_another_spelling_of_our_switch_is_no_reason_to_warn(value: str) -> None:
    """Values that mean the same stay as they are."""
    env, warnings = job_environment(share(), {"XLA_PYTHON_CLIENT_PREALLOCATE": value}, {})
    assert env["XLA_PYTHON_CLIENT_PREALLOCATE"] == value
    assert warnings == []


@pytest.mark.parametrize(
    ("user", "value", "verdict", "warned"),
    [
        (".1", ".1", "kept", 0),
        ("0.25", "0.25", "kept", 0),
        (".9", "0.25", "merged", 1),
        ("nan", "0.25", "merged", 1),
        ("lots", "0.25", "merged", 1),
    ],
)
def test_the_smaller_memory_fraction_wins(user: str, value: str, verdict: str, warned: int) -> None:
    """A ceiling is never raised, whoever set it."""
    before = {OLD_FRACTION: user}
    settings = derive(share(), before, {})
    found = decision(OLD_FRACTION, settings)
    assert (found.value, found.verdict) == (value, verdict)
    assert len(job_environment(share(), before, {})[1]) == warned


def test_with_the_new_name_of_the_fraction_the_old_one_is_not_set() -> None:
    """With both names set JAX would not start."""
    env, warnings = job_environment(share(), {NEW_FRACTION: "0.2"}, {})
    assert env[NEW_FRACTION] == "0.2"
    assert OLD_FRACTION not in env
    assert warnings == []


def test_the_new_name_of_the_fraction_is_a_ceiling_as_well() -> None:
    """Under whichever name the user sets it, the smaller value wins, with a warning."""
    env, warnings = job_environment(share(), {NEW_FRACTION: "0.9"}, {})
    assert env[NEW_FRACTION] == "0.25"
    assert OLD_FRACTION not in env
    assert len(warnings) == 1


@pytest.mark.parametrize(
    "grant",
    [
        share(probe=True),
        share(memory_mib=None, fraction=None),
        share(memory_mib=16384, fraction=1.0),
        no_device(),
    ],
)
def test_only_a_share_has_a_memory_ceiling(grant: dict[str, Any]) -> None:
    """A probe and a whole device are not held down."""
    env, _ = job_environment(grant, {}, {})
    assert OLD_FRACTION not in env


def test_a_whole_device_is_told_what_was_booked() -> None:
    """Without a figure in the request the devices' bookings are told, the smallest if they differ."""
    devices = [
        {"uuid": "GPU-a", "total_mib": 16384, "booked_mib": 16000},
        {"uuid": "GPU-b", "total_mib": 8192, "booked_mib": 8192},
    ]
    env, _ = job_environment(share(memory_mib=None, fraction=None, devices=devices), {}, {})
    assert env["GRN_DEVICES"] == "GPU-a,GPU-b"
    assert env["GRN_MEM_MIB"] == "8192"
    assert env["GRN_MEM_FRACTION"] == "0.9765"


@pytest.mark.parametrize(
    ("fraction", "text"),
    [
        (0.0003, "0.0003"),
        (1 / 3, "0.3333"),
        (2 / 3, "0.6666"),
        (0.00001, "0.0001"),
        (0.99999, "0.9999"),
    ],
)
def test_a_fraction_is_cut_and_never_grows_nor_vanishes(fraction: float, text: str) -> None:
    """Four decimals, not rounded up, and never 0 for a share."""
    env, _ = job_environment(share(fraction=fraction), {}, {})
    assert env["GRN_MEM_FRACTION"] == env[OLD_FRACTION] == text


def test_both_names_of_the_fraction_are_told_of() -> None:
    """Who has set both is told why JAX will not start; neither vanishes, and neither exceeds."""
    before = {NEW_FRACTION: "0.2", OLD_FRACTION: "0.9"}
    env, warnings = job_environment(share(), before, {})
    assert {name: env[name] for name in before} == before
    (warning,) = warnings
    assert "does not start" in warning


@pytest.mark.parametrize(
    ("inherited", "asked"), [(OLD_FRACTION, NEW_FRACTION), (NEW_FRACTION, OLD_FRACTION)]
)
@pytest.mark.parametrize("grant", [share(), no_device()], ids=["share", "no device"])
def test_a_fraction_of_the_request_replaces_the_inherited_one_of_the_other_name(
    inherited: str, asked: str, grant: dict[str, Any]
) -> None:
    """The shell's name and the request's, both set, would keep JAX from starting."""
    before = {inherited: "0.2"}
    env, warnings = job_environment(grant, before, {asked: "0.1"})
    assert inherited not in env
    assert (env[asked], warnings) == ("0.1", [])
    gone = decision(inherited, derive(grant, before, {asked: "0.1"}))
    assert gone.value is None
    assert asked in gone.reason
    # An empty value of the request is no value that could stand for the other.
    assert job_environment(grant, before, {asked: ""})[0][inherited] == "0.2"


def test_composed_strings_are_left_alone_and_named() -> None:
    """What the user composes stays as it is; what nobody set is not mentioned."""
    flags = "--xla_gpu_autotune_level=0"
    settings = derive(share(), {"XLA_FLAGS": flags}, {})
    found = decision("XLA_FLAGS", settings)
    assert (found.value, found.verdict) == (flags, "untouched")
    assert not [each for each in settings if "ALLOC_CONF" in each.name]


def test_the_requests_env_outranks_defaults() -> None:
    """A value that the request names wins over the environment and over the share."""
    env, warnings = job_environment(
        share(), {"OMP_NUM_THREADS": "3"}, {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "", "X": ""}
    )
    assert (env["OMP_NUM_THREADS"], env["MKL_NUM_THREADS"], env["X"]) == ("1", "", "")
    assert warnings == []


@pytest.mark.parametrize(
    "name", ["CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "GRN_LEASE", "GRN_SIM_DIR"]
)
def test_the_requests_env_never_outranks_authority(name: str) -> None:
    """Another device, order or lease is refused with a warning."""
    grant = share(extra={"GRN_SIM_DIR": "/sim"})
    plain, _ = job_environment(grant, {}, {})
    env, warnings = job_environment(grant, {}, {name: "7"})
    assert env == plain
    assert decision(name, derive(grant, {}, {name: "7"})).verdict == "refused"
    assert len(warnings) == 1
    assert f"{name}=7" in warnings[0]


def test_the_requests_env_cannot_raise_a_ceiling() -> None:
    """A larger fraction is refused; a smaller one is kept."""
    found = decision(OLD_FRACTION, derive(share(), {}, {OLD_FRACTION: "0.9"}))
    assert (found.value, found.verdict) == ("0.25", "refused")
    assert job_environment(share(), {}, {OLD_FRACTION: "0.1"})[0][OLD_FRACTION] == "0.1"


@pytest.mark.parametrize("mask", ["", "1"])
def test_a_job_without_a_wish_may_choose_its_own_mask(mask: str) -> None:
    """Where we have no claim the request's env counts, also when it is empty."""
    env, _ = job_environment(
        no_device(), {"CUDA_VISIBLE_DEVICES": "0"}, {"CUDA_VISIBLE_DEVICES": mask}
    )
    assert env["CUDA_VISIBLE_DEVICES"] == mask


TWO = [{"uuid": f"GPU-{i}", "total_mib": 16384, "booked_mib": 4096} for i in "ab"]
VALUES = st.sampled_from(
    [
        *("", "0", "1", "2", "6", "4,2", "x", "true", "false", "0.1", "0.9", "1G", "10%", ",", "="),
        *("0=1G", "1=9G,0=1M", "torch", "go,r", "per_process_memory_fraction:0.9", "a:[1,2],b:3"),
    ]
)
ENVIRONS = st.dictionaries(
    st.sampled_from([*(row.name for row in TABLE), NEW_FRACTION, "X"]), VALUES
)
GRANTS = st.sampled_from(
    [
        share(),
        share(probe=True),
        share(memory_mib=None, fraction=None),
        no_device(),
        no_device(mask=""),
        share(mps="/m", compute=30, processes=2, devices=TWO),
    ]
)


@given(GRANTS, ENVIRONS)
def test_deriving_twice_changes_nothing(grant: dict[str, Any], environ: dict[str, str]) -> None:
    """A job inside a lease that is told its share again is told the same."""
    once, _ = job_environment(grant, environ, {})
    assert job_environment(grant, once, {})[0] == once


@given(GRANTS, ENVIRONS, ENVIRONS)
def test_one_decision_per_variable_and_nothing_unset(
    grant: dict[str, Any], environ: dict[str, str], explicit: dict[str, str]
) -> None:
    """No variable is decided twice, none vanishes without a word, and no input is changed."""
    before = dict(environ)
    settings = derive(grant, environ, explicit)
    names = [each.name for each in settings]
    assert len(names) == len(set(names))
    unset = {each.name for each in settings if each.value is None}
    assert unset <= {OLD_FRACTION, NEW_FRACTION}
    assert set(job_environment(grant, environ, explicit)[0]) == ({*environ, *names} - unset)
    assert environ == before


def test_every_variable_has_one_row_that_says_who_reads_it_and_when() -> None:
    """The table is complete documentation."""
    names = [row.name for row in TABLE]
    assert len(names) == len(set(names))
    assert {*THREAD_CAPS, *SWITCHES, OLD_FRACTION} <= set(names)
    assert all(row.reader and row.when and row.says and (row.why or row.idle) for row in TABLE)


def test_the_explanation_is_aligned() -> None:
    """Each line shows name, value, reason and verdict under their headings."""
    settings = [
        Setting("A", None, "why", "untouched"),
        Setting("LONG_NAME", "", "a longer reason", "set"),
        Setting("B", "a\nb", "c", "kept"),
    ]
    assert explain_lines(settings) == [
        "NAME       VALUE    REASON           VERDICT",
        "A          (unset)  why              untouched",
        "LONG_NAME  ''       a longer reason  set",
        r"B          'a\nb'   c                kept",
    ]


def test_the_table_needs_no_heavy_module() -> None:
    """It stands in front of every job, so it loads none of the slow modules."""
    code = (
        "import grn.rules.environment\n"
        "print(sorted({'typing', 'dataclasses', 'enum', 're', 'inspect'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-S", "-c", f"import sys; sys.path[:0] = {sys.path!r}; {code}"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == "[]"
