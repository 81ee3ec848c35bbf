"""`gpu_mem`: what was learnt of a rule, as a resource."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from grn.errors import UsageError
from grn_plugins.snakemake import gpu_mem, learnt

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.env import BrokerEnv
    from tests.snakemake.conftest import Flow

    NewEnv = Callable[..., BrokerEnv]

SNAKEFILE = "/flows/Snakefile"


@pytest.fixture(autouse=True)
def _anew() -> None:
    learnt._last.clear()


def use(env: BrokerEnv, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let this process be a client of the environment's broker."""
    for name, value in env.environ.items():
        if name.startswith("GRN_"):
            monkeypatch.setenv(name, value)


def said(*args: Any, attempt: int = 1, rule: str = "train", **more: Any) -> int:
    """Return what a rule's function says, in a Snakefile whose rules are those of SNAKEFILE."""
    rules = SimpleNamespace(get_rule=lambda name: SimpleNamespace(name=name, snakefile=SNAKEFILE))
    there: dict[str, Any] = {"workflow": rules, "gpu_mem": gpu_mem, "args": args, "more": more}
    exec("function = gpu_mem(*args, **more)", there)  # noqa: S102 - as Snakemake runs a Snakefile
    learnt._last.clear()
    value = there["function"]("wildcards", attempt=attempt, rulename=rule)
    assert isinstance(value, int)
    return value


def test_the_default_as_long_as_nothing_is_known(
    new_env: NewEnv, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a broker too, which is not started for that, nor is a file made."""
    env = new_env(start=False)
    use(env, monkeypatch)
    assert said(default=5000) == 5000
    assert said("2GiB") == 2048
    assert said(default=4000, gpus=2) == 8000
    assert not os.path.exists(env.socket)
    assert not os.path.exists(env.environ["GRN_STATE_DIR"])


def test_what_was_learnt_of_the_rule(new_env: NewEnv, monkeypatch: pytest.MonkeyPatch) -> None:
    """The most of all kinds of its jobs, from a broker that runs or from what the last one left."""
    env = new_env("sim:1x10000MiB")
    use(env, monkeypatch)
    for job_type, mib in {
        f"{SNAKEFILE}::train": 2000,
        f"{SNAKEFILE}::train batch=64": 3000,
        f"{SNAKEFILE}::train_more": 4000,
        "/other/Snakefile::train": 5000,
        "mine": 6000,
    }.items():
        env.client().profiles("set", type=job_type, memory_mib=mib)
    told = {
        "of the rule": said(default=100),
        "of two devices": said(default=100, gpus=2),
        "of another rule": said(default=100, rule="train_more"),
        "of an unknown rule": said(default=100, rule="trai"),
        "of a type": said(default=100, type="mine"),
    }
    assert list(told.values()) == [3000, 6000, 4000, 100, 6000], told
    for client in env._clients:
        client.close()
    env.stop()
    assert said(default=100) == 3000


def test_more_with_each_attempt_up_to_a_cap(
    new_env: NewEnv, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It grows by half, or as told, and never beyond the cap or the largest device."""
    env = new_env("sim:1x4000MiB,1x9000MiB")
    use(env, monkeypatch)
    assert [said(4000, attempt=n) for n in (1, 2, 3, 4)] == [4000, 6000, 9000, 9000]
    assert [said(4000, growth=2, cap=7000, attempt=n) for n in (1, 2)] == [4000, 7000]
    assert said(4000, growth=1, attempt=3) == 4000


@pytest.mark.parametrize(
    ("words", "name"),
    [
        ({"default": 0}, "default"),
        ({"default": "much"}, "default"),
        ({"cap": -1}, "cap"),
        ({"gpus": 0}, "gpus"),
        ({"growth": 0.5}, "growth"),
    ],
)
def test_what_makes_no_sense_is_named(words: dict[str, Any], name: str) -> None:
    """It is an error where it is written, which names the argument."""
    with pytest.raises(UsageError, match=name):
        gpu_mem(**words)


def test_without_its_parentheses() -> None:
    """Snakemake then gives it the wildcards: the error shows how it is written."""
    with pytest.raises(UsageError, match=r"gpu_mem_mb=gpu_mem\(default=8000\)"):
        gpu_mem({"sample": "a"})  # type: ignore[arg-type]


def test_in_a_snakefile(new_flow: Callable[..., Flow]) -> None:
    """Each rule has its own number, under any executor; no broker is started for it."""
    flow = new_flow(
        """
        from grn_plugins.snakemake import gpu_mem
        rule all:
            input: "a", "b"
        rule known:
            output: "a"
            resources: gpu_mem_mb=gpu_mem(default=700)
            shell: "echo {resources.gpu_mem_mb} > {output}"
        rule unknown:
            output: "b"
            retries: 1
            resources: gpu_mem_mb=gpu_mem(default=700)
            shell: "echo {resources.gpu_mem_mb} >> tries; [ -e tried ] && touch b || (touch tried; false)"
        """
    )
    snakefile = flow.folder / "Snakefile"
    flow.env.client().profiles("set", type=f"{snakefile}::known", memory_mib=1234)
    flow.run(executor="").ok()
    assert flow.lines("a") == [["1234"]]
    assert flow.lines("tries") == [["700"], ["1050"]]
