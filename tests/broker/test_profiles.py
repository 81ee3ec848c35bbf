"""What a broker keeps of runs, beyond how much to book."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

from grn.broker.store import FILE_NAME
from tests.env import eventually

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from tests.env import BrokerEnv
    from tests.talker import Talker

    NewEnv = Callable[..., BrokerEnv]


def measured(env: BrokerEnv, talker: Talker, mib: int, **end: Any) -> dict[str, Any]:
    """Let a job of type `t` hold so much and end; return the profile of its type."""
    grant = talker.acquire("t")
    job = env.job(talker, grant, f"--memory={mib}MiB")
    job.wait_holding()
    eventually(lambda: talker.status()["leases"][0]["peak_mib"] == mib)
    assert job.finish() == 0
    talker.release(grant, **end)
    profile: dict[str, Any] = talker.profiles()[0]
    return profile


def test_a_profile_tells_when_it_was_learnt(new_env: NewEnv) -> None:
    """A peak has the time of day at which its run ended."""
    env = new_env(sample_fast="0.05")
    began = time.time()
    profile = measured(env, env.talker(), 3000)
    (peak,) = profile["peaks"]
    assert (peak["mib"], peak["source"], peak["censored"]) == (3000, "sampled", False)
    assert began <= peak["at"] == profile["first_at"] == profile["last_at"] <= time.time()


def test_a_profile_tells_how_long_how_much_was_held(new_env: NewEnv) -> None:
    """The memory of the last run is kept, up to its maximum."""
    env = new_env(sample_fast="0.05")
    quantiles = measured(env, env.talker(), 3000)["quantiles_mib"]
    assert len(quantiles) == 11
    assert quantiles["100"] == 3000


def test_a_job_that_survived_an_oom_teaches_a_lower_bound(new_env: NewEnv) -> None:
    """Its peak counts where it is the largest, and never pushes a larger one out."""
    env = new_env(sample_fast="0.05")
    talker = env.talker()
    first = measured(env, talker, 2000, said_oom=True)
    assert first["peaks"][0]["censored"]
    assert measured(env, talker, 1000, said_oom=True)["peaks_mib"] == [2000]


def test_a_damaged_store_is_warned_of(new_env: NewEnv) -> None:
    """`status` says that what was learnt is lost, and where the damaged file is."""
    env = new_env(start=False)
    folder = env.environ["GRN_STATE_DIR"]
    os.mkdir(folder, 0o700)
    path = os.path.join(folder, FILE_NAME)
    with open(path, "wb") as file:
        file.write(b"no database" * 500)
    env.start()
    (warning,) = [text for text in env.status()["warnings"] if "profile store" in text]
    assert f"{path}.corrupt-1" in warning
