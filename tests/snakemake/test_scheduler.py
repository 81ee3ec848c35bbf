"""The scheduler: a job that would only wait for a device leaves its core to others."""

from __future__ import annotations

import logging
import subprocess
import sys
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from tests.env import eventually

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from tests.env import BrokerEnv
    from tests.snakemake.conftest import Flow

    NewFlow = Callable[..., Flow]

official = pytest.importorskip(
    "snakemake_interface_scheduler_plugins.tests", reason="needs Snakemake 9.10 or newer"
)
foreseeing = pytest.importorskip("grn_plugins.snakemake.foreseeing")
scheduler = pytest.importorskip("grn_plugins.snakemake.scheduler")


class TestOfficial(official.TestSchedulerBase):  # type: ignore[misc,name-defined]
    """The interface's own test of a scheduler."""

    __test__ = True

    def get_scheduler_cls(self) -> Any:
        """Return what is tested."""
        import snakemake_scheduler_plugin_grn

        return snakemake_scheduler_plugin_grn.Scheduler

    def get_scheduler_settings(self) -> None:
        """There are none."""


# -- by itself ------------------------------------------------------------------------------------


class Job:
    """A job as the scheduler sees it."""

    def __init__(self, name: str, *, gpu: int = 0, priority: int = 0, threads: int = 1) -> None:
        self.name = name
        self.priority = priority
        self.is_norun = False
        self.input: list[Any] = []
        self.scheduler_resources = {"_cores": threads, "gpu": gpu, "_job_count": 1}

    def __repr__(self) -> str:
        return self.name


class Scene:
    """A scheduler, and a broker that lets so many jobs start at once."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, room: int) -> None:
        self.room = room
        self.asked: list[int] = []
        plugin = SimpleNamespace(name="grn", executor=object)
        self.running: set[Job] = set()
        workflow = SimpleNamespace(
            exec_mode=SimpleNamespace(name="DEFAULT"),
            executor_plugin=plugin,
            scheduler=SimpleNamespace(running=self.running),
        )
        self.workflow = workflow
        dag = SimpleNamespace(workflow=workflow)
        self.scheduler = scheduler.Scheduler(dag, None, logging.getLogger("test"))
        monkeypatch.delenv("GRN_NEGOTIATE", raising=False)
        monkeypatch.setattr(foreseeing, "wishes", self._wishes)
        monkeypatch.setattr(foreseeing, "at_once", self._at_once)
        monkeypatch.setattr(foreseeing, "asked_by_this_process", lambda: self.arrived)
        self.arrived = 0

    @staticmethod
    def _wishes(jobs: Sequence[Job], workflow: Any) -> dict[int, Any]:
        del workflow
        return {id(job): {"type": job.name} for job in jobs if foreseeing.wants_device(job)}

    def _at_once(self, asked: Sequence[Any], *, within_s: float) -> list[bool]:
        del within_s
        self.asked.append(len(asked))
        if self.room < 0:
            raise foreseeing.CannotTellError("no broker")
        return [number < self.room for number in range(len(asked))]

    def select(self, ready: Sequence[Job], *, cores: int, later: Sequence[Job] = ()) -> list[Job]:
        """Select, as Snakemake would have it done."""
        resources = {"_cores": cores, "_job_count": sys.maxsize}
        chosen = self.scheduler.select_jobs(ready, [*ready, *later], resources, {})
        self.running |= set(chosen)
        return list(chosen)


GPU = [Job(f"gpu{number}", gpu=1) for number in range(6)]
CPU = [Job(f"cpu{number}") for number in range(6)]


def test_what_would_wait_leaves_its_core(monkeypatch: pytest.MonkeyPatch) -> None:
    """The GPU jobs that can start go first; the other cores go to jobs without a GPU."""
    scene = Scene(monkeypatch, room=2)
    chosen = scene.select([*CPU, *GPU], cores=4)
    assert chosen[:2] == GPU[:2]
    assert len(chosen) == 4
    assert not set(chosen[2:]) & set(GPU)


def test_priorities_come_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """A job without a GPU of a higher priority goes before a GPU job that could start."""
    scene = Scene(monkeypatch, room=6)
    urgent = Job("urgent", priority=1)
    scene.room = 2
    assert scene.select([*GPU, urgent], cores=1, later=CPU) == [urgent]


def test_cores_are_kept_for_jobs_that_come_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """While some jobs without a GPU are still to come, GPU jobs that would wait are kept back."""
    scene = Scene(monkeypatch, room=2)
    assert scene.select(GPU, cores=4, later=CPU) == GPU[:2]


def test_with_gpu_jobs_alone_nothing_is_kept_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody else could use the cores: they wait where they are granted soonest."""
    scene = Scene(monkeypatch, room=2)
    target = Job("all")
    target.is_norun = True
    assert len(scene.select(GPU, cores=4, later=[target])) == 4
    assert scene.asked == []


def test_something_is_selected_when_nothing_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """If no GPU job could start and nothing else is ready, one is handed out to wait; no second."""
    scene = Scene(monkeypatch, room=0)
    assert len(scene.select(GPU, cores=4, later=CPU)) == 1
    assert scene.select(GPU[1:], cores=3, later=CPU) == []


def test_room_is_not_given_away_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Jobs that were handed out and have not reached the broker are asked about again."""
    scene = Scene(monkeypatch, room=2)
    assert scene.select([*GPU, CPU[0]], cores=5, later=CPU) == [*GPU[:2], CPU[0]]
    assert scene.select(GPU[2:], cores=2, later=CPU) == []
    assert scene.asked == [6, 2 + 4]
    scene.arrived = 2  # the broker knows them: it counts them itself
    assert len(scene.select(GPU[2:], cores=2, later=CPU)) == 2
    assert scene.asked[-1] == 4


@pytest.mark.parametrize("case", ["no GPU jobs", "elsewhere", "child", "no broker"])
def test_it_selects_as_snakemake_does(monkeypatch: pytest.MonkeyPatch, case: str) -> None:
    """Where nobody negotiates or nobody can tell, all that the cores allow is handed out."""
    scene = Scene(monkeypatch, room=-1 if case == "no broker" else 0)
    if case == "elsewhere":
        scene.workflow.executor_plugin.name = "slurm"
    if case == "child":
        scene.workflow.exec_mode.name = "SUBPROCESS"
    ready = CPU if case == "no GPU jobs" else [*GPU, *CPU[:2]]
    assert len(scene.select(ready, cores=5, later=CPU)) == 5
    assert len(scene.asked) == (case == "no broker")


# -- in Snakemake ---------------------------------------------------------------------------------

TWELVE = """
    rule all:
        input: expand("gpu{n}", n=range(4)), expand("cpu{n}", n=range(6))
    rule gpu:
        output: "gpu{n}"
        priority: 10
        resources: gpu=1, gpu_share=100
        shell: "echo x >> begun; while [ ! -e gate ]; do sleep 0.05; done; touch {output}"
    rule cpu:
        output: "cpu{n}"
        shell: "touch {output}"
    """


def test_jobs_without_a_gpu_are_not_held_up(new_flow: NewFlow) -> None:
    """They all end while all devices are taken and more GPU jobs are ready; also under the hook."""
    flows = [new_flow(TWELVE), new_flow(TWELVE)]
    runs = [
        flows[0].run("--scheduler", "grn", cores=3),
        flows[1].run("--scheduler", "grn", executor="", cores=3, GRN_NEGOTIATE="1"),
    ]
    for flow, run in zip(flows, runs, strict=True):
        eventually(
            lambda flow=flow: len(list(flow.folder.glob("cpu*"))) == 6,
            what=f"all jobs without a GPU have ended:\n{run.text}",
        )
        eventually(lambda flow=flow: len(flow.lines("begun")) == 2, what="two have a device")
        flow.write("gate", "")
    for flow, run in zip(flows, runs, strict=True):
        run.ok()
        assert len(flow.lines("begun")) == 4


def test_a_broken_grn_does_not_keep_snakemake_from_starting(
    new_env: Callable[..., BrokerEnv], tmp_path: Path
) -> None:
    """`--version` works; who wants the scheduler is told what is wrong."""
    env = new_env(start=False)
    broken = tmp_path / "broken" / "grn_plugins"
    broken.mkdir(parents=True)
    (broken / "__init__.py").write_text("raise RuntimeError('half installed')\n")
    (tmp_path / "Snakefile").write_text("rule all:\n    shell: 'true'\n")
    environ = {**env.environ, "PYTHONPATH": str(broken.parent)}
    snakemake = [sys.executable, "-m", "snakemake"]
    told = subprocess.run(
        [*snakemake, "--version"], env=environ, capture_output=True, timeout=120, check=True
    )
    assert told.stderr == b""
    failed = subprocess.run(
        [*snakemake, "-j1", "--scheduler", "grn"],
        env=environ,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert failed.returncode == 1
    assert "half installed" in failed.stderr + failed.stdout
