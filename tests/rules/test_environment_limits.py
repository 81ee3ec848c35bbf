"""Limits that a job finds in its environment, in every notation, and what only counts on request."""

from __future__ import annotations

from typing import Any

import pytest

from grn.rules.environment import Setting, derive, job_environment

GIB = 1024**3
MEMORY = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"
COMPUTE = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"
FOLDER = "CUDA_MPS_PIPE_DIRECTORY"
CUPY = "CUPY_GPU_MEMORY_LIMIT"
TORCH, TORCH_OLD = "PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"


def share(count: int = 1, **differences: Any) -> dict[str, Any]:
    """Build a grant of a quarter of `count` devices of 16 GiB, with 4 threads."""
    devices = [
        {"uuid": f"GPU-{n}", "index": n, "total_mib": 16384, "booked_mib": 4096}
        for n in range(count)
    ]
    grant: dict[str, Any] = {
        "lease": "L1",
        "mask": ",".join(str(n) for n in range(count)),
        "devices": devices,
        "memory_mib": 4096,
        "fraction": 0.25,
        "threads": 4,
        "cpus": None,
    }
    return grant | differences


def told(
    grant: dict[str, Any], environ: dict[str, str], explicit: dict[str, str] | None = None
) -> tuple[dict[str, str], list[str]]:
    """Return the job's environment and the warnings."""
    return job_environment(grant, environ, explicit or {})


def decision(grant: dict[str, Any], name: str, environ: dict[str, str]) -> Setting:
    """Return what was decided about one variable."""
    (found,) = [each for each in derive(grant, environ, {}) if each.name == name]
    return found


# -- MPS --------------------------------------------------------------------------------------------


def test_where_no_daemon_answers_nothing_is_pretended() -> None:
    """Limits that nobody would hold are not set, and the user's own are left alone."""
    env, warnings = told(share(compute=30, processes=2), {MEMORY: "0=1G"})
    assert env[MEMORY] == "0=1G"
    assert COMPUTE not in env
    assert FOLDER not in env
    assert warnings == []


def test_a_daemon_holds_each_process_to_its_part() -> None:
    """Limits are per process: those of the lease are divided by the processes that were declared."""
    env, _ = told(share(2, mps="/run/mps", compute=30, processes=2), {FOLDER: "/elsewhere"})
    assert env[MEMORY] == "0=2048M,1=2048M"
    assert env[COMPUTE] == "15"
    assert env[FOLDER] == "/run/mps"


def test_the_ordinals_are_those_of_the_job() -> None:
    """Whatever device it is on the machine, in the job the first one is 0."""
    grant = share(mps="/m")
    grant["devices"][0]["index"] = 7
    assert told({**grant, "mask": "7"}, {})[0][MEMORY] == "0=4096M"


def test_compute_that_was_not_declared_is_not_limited() -> None:
    """Who books no multiprocessors may use those that are idle."""
    assert COMPUTE not in told(share(mps="/m"), {})[0]


def test_more_processes_than_percents_still_get_one_each() -> None:
    """A limit of 0 would be no limit, or an error."""
    env, _ = told(share(mps="/m", compute=2, processes=5000), {})
    assert (env[COMPUTE], env[MEMORY]) == ("1", "0=1M")


@pytest.mark.parametrize("alone", [{"probe": True}, {"memory_mib": None, "fraction": None}])
def test_who_is_alone_has_no_limit_of_memory(alone: dict[str, Any]) -> None:
    """A first run is measured, not held down; of the multiprocessors it has what it booked."""
    env, _ = told(share(mps="/m", compute=40, **alone), {})
    assert MEMORY not in env
    assert env[COMPUTE] == "40"


@pytest.mark.parametrize(
    ("user", "value", "warned"),
    [
        ("0=1G", "0=1G,1=4096M", 1),
        ("0=1G,1=2G", "0=1G,1=2G", 0),
        ("0=1GB,1=512MB", "0=1GB,1=512MB", 0),
        ("0=9G,1=1024K", "0=4096M,1=1024K", 1),
        ("0=1073741824, 1=9T", "0=1073741824,1=4096M", 1),
        ("lots", "0=4096M,1=4096M", 1),
        ("0=", "0=4096M,1=4096M", 1),
        ("2=1G", "2=1G,0=4096M,1=4096M", 1),
    ],
)
def test_the_smaller_limit_of_each_device_wins(user: str, value: str, warned: int) -> None:
    """A user's smaller limit stays, device by device; one that cannot be read binds nothing."""
    env, warnings = told(share(2, mps="/m"), {MEMORY: user})
    assert env[MEMORY] == value
    assert len(warnings) == warned


@pytest.mark.parametrize(("user", "value"), [("10", "10"), ("12.5", "12.5"), ("90", "30")])
def test_the_smaller_part_of_the_multiprocessors_wins(user: str, value: str) -> None:
    """Whoever wants less keeps it."""
    assert told(share(mps="/m", compute=30), {COMPUTE: user})[0][COMPUTE] == value


def test_the_requests_env_cannot_leave_the_daemon() -> None:
    """Another pipe directory would be a way around the limits."""
    env, warnings = told(share(mps="/m"), {}, {FOLDER: "/nowhere"})
    assert env[FOLDER] == "/m"
    assert len(warnings) == 1


# -- memory pools -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("user", "value"),
    [
        ("1000", "1000"),
        ("10%", "10%"),
        ("25%", "25%"),
        ("50%", str(4 * GIB)),
        ("0", str(4 * GIB)),
        (str(9 * GIB), str(4 * GIB)),
        ("much", str(4 * GIB)),
    ],
)
def test_the_smaller_limit_of_cupys_pool_wins(user: str, value: str) -> None:
    """Bytes and percentages are compared; 0, which is no limit, does not bind."""
    assert told(share(), {CUPY: user})[0][CUPY] == value


def test_a_whole_device_has_no_limit_for_pools() -> None:
    """Where all is one's own, nothing is held down."""
    assert CUPY not in told(share(memory_mib=None, fraction=None), {})[0]


# -- what is told on request ------------------------------------------------------------------------


def test_pytorch_is_only_limited_where_that_was_asked_for() -> None:
    """A PyTorch that does not know the key does not start, so it is never set by itself."""
    assert TORCH not in told(share(), {})[0]
    env, _ = told(share(), {"GRN_ALSO_TELL": "torch"})
    assert env[TORCH] == "per_process_memory_fraction:0.25"


@pytest.mark.parametrize(
    ("user", "value", "verdict"),
    [
        (
            "expandable_segments:True",
            "expandable_segments:True,per_process_memory_fraction:0.25",
            "merged",
        ),
        ("per_process_memory_fraction:0.1", "per_process_memory_fraction:0.1", "kept"),
        ("per_process_memory_fraction:0.9,a:1", "a:1,per_process_memory_fraction:0.25", "merged"),
        (
            "roundup_power2_divisions:[256:1,512:2],a:1",
            "roundup_power2_divisions:[256:1,512:2],a:1,per_process_memory_fraction:0.25",
            "merged",
        ),
    ],
)
def test_pytorchs_options_are_merged_by_key(user: str, value: str, verdict: str) -> None:
    """The user's options stay as they are; of two fractions the smaller wins."""
    found = decision(share(), TORCH, {TORCH: user, "GRN_ALSO_TELL": "torch"})
    assert (found.value, found.verdict) == (value, verdict)


def test_the_older_name_of_pytorchs_options_is_never_touched() -> None:
    """It outranks the newer one, and older versions refuse our key: the user is told instead."""
    before = {TORCH_OLD: "max_split_size_mb:64", "GRN_ALSO_TELL": "torch"}
    env, warnings = told(share(), before)
    assert env[TORCH_OLD] == before[TORCH_OLD]
    assert TORCH not in env
    (warning,) = warnings
    assert "outranks" in warning


@pytest.mark.parametrize(
    ("word", "names"),
    [
        ("julia", {"JULIA_NUM_THREADS"}),
        ("go", {"GOMAXPROCS"}),
        ("r", {"R_DATATABLE_NUM_THREADS", "RCPP_PARALLEL_NUM_THREADS", "MC_CORES"}),
    ],
)
def test_other_languages_are_told_on_request(word: str, names: set[str]) -> None:
    """Their thread counts are set where the user says so, in the environment or in the request."""
    plain, _ = told(share(), {})
    env, _ = told(share(), {"GRN_ALSO_TELL": word.upper()})
    assert {name for name in env if name not in plain} == {*names, "GRN_ALSO_TELL"}
    assert {env[name] for name in names} == {"4"}
    by_request, _ = told(share(), {}, {"GRN_ALSO_TELL": f"x, {word}"})
    assert names <= set(by_request)


def test_the_brokers_setting_tells_every_job() -> None:
    """What it names counts where the user names nothing; his own words replace it, without a fuss."""
    grant = share(extra={"GRN_ALSO_TELL": "go"})
    env, warnings = told(grant, {})
    assert (env["GRN_ALSO_TELL"], env["GOMAXPROCS"], warnings) == ("go", "4", [])
    for environ, explicit in (
        ({"GRN_ALSO_TELL": "julia"}, {}),
        ({}, {"GRN_ALSO_TELL": "julia"}),
    ):
        env, warnings = told(grant, environ, explicit)
        assert (env["GRN_ALSO_TELL"], env["JULIA_NUM_THREADS"], warnings) == ("julia", "4", [])
        assert "GOMAXPROCS" not in env


def test_their_own_counts_stay() -> None:
    """What a user set for another language is kept as any other count is."""
    env, warnings = told(share(), {"GRN_ALSO_TELL": "go,julia", "GOMAXPROCS": "9"})
    assert (env["GOMAXPROCS"], env["JULIA_NUM_THREADS"]) == ("9", "4")
    assert len(warnings) == 1
    assert told(share(), {"GOMAXPROCS": "9"})[1] == []


def test_an_unknown_word_is_told() -> None:
    """A spelling mistake is no silent nothing."""
    _, warnings = told(share(), {"GRN_ALSO_TELL": "torhc"})
    assert warnings == ["GRN_ALSO_TELL: torhc is none of go, julia, r, torch"]


@pytest.mark.parametrize(("threads", "value"), [(1, "1"), (2, "2"), (16, "2")])
def test_operations_beside_each_other_are_few(threads: int, value: str) -> None:
    """Each of TensorFlow's operations has threads of its own."""
    assert told(share(threads=threads), {})[0]["TF_NUM_INTEROP_THREADS"] == value


def test_the_threads_are_those_of_the_lease_also_if_more_cpus_were_declared() -> None:
    """A job that may run on fewer cores than it booked starts no more threads than that."""
    env, _ = told(share(cpus=8, threads=2), {})
    assert (env["OMP_NUM_THREADS"], env["GRN_CPUS"]) == ("2", "8")


def test_what_stays_as_it_is_has_a_reason() -> None:
    """Each variable that the user set is explained, also where we have no say."""
    names = {"XLA_FLAGS": "--x", "GOMAXPROCS": "3", COMPUTE: "20", CUPY: "5"}
    reasons = {each.name: each.reason for each in derive(share(), names, {})}
    assert reasons["GOMAXPROCS"] == "left as you set it: GRN_ALSO_TELL does not name go"
    assert reasons[COMPUTE] == "left as you set it: no MPS daemon limits this lease"
    assert reasons["XLA_FLAGS"] == "left as you set it: a string that you compose"
    assert reasons[CUPY].startswith("yours is within")
