"""Optuna's trials: in the threads of a study, and in worker processes that share one."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.python.conftest import Scripts

pytest.importorskip("optuna")

STUDY = """
import collections, grn, json, optuna, os, sys
from concurrent.futures import ProcessPoolExecutor
from tests.python.bodies import told

optuna.logging.set_verbosity(optuna.logging.ERROR)

@grn.job(memory=5000)
def train(rate, number):
    if number % 10 == 3:
        import optuna  # here, or each call's process would import it

        raise optuna.TrialPruned
    if number % 10 == 7:
        raise ZeroDivisionError(number)
    return rate, told()["CUDA_VISIBLE_DEVICES"]

def objective(trial):
    loss, device = train(trial.suggest_float("rate", 1e-4, 1, log=True), trial.number)
    trial.set_user_attr("device", device)
    return loss

def in_block(trial):
    with grn.lease(memory=5000) as lease:
        trial.set_user_attr("device", lease.env["CUDA_VISIBLE_DEVICES"])
        rate = trial.suggest_float("rate", 0, 1)
        if trial.number % 10 == 3:
            raise optuna.TrialPruned
        if trial.number % 10 == 7:
            raise ZeroDivisionError(trial.number)
        return rate

@grn.job(memory=5000)
def whole(trial):
    trial.set_user_attr("device", told()["CUDA_VISIBLE_DEVICES"])
    return trial.suggest_float("rate", 0, 1)

WORK = {"job": objective, "block": in_block, "whole": whole}
JOURNAL = "study.journal"

def storage():
    backend = optuna.storages.journal.JournalFileBackend(JOURNAL)
    return optuna.storages.JournalStorage(backend)

def worker(work, trials):
    study = optuna.load_study(study_name="one", storage=storage())
    study.optimize(WORK[work], n_trials=trials, catch=ZeroDivisionError)

if __name__ == "__main__":
    kind, work, trials = sys.argv[1], sys.argv[2], int(sys.argv[3])
    if kind == "threads":
        study = optuna.create_study()
        study.optimize(WORK[work], n_trials=trials, n_jobs=4, catch=ZeroDivisionError)
    else:
        study = optuna.create_study(study_name="one", storage=storage())
        with ProcessPoolExecutor(4) as pool:
            list(pool.map(worker, [work] * 4, [trials // 4] * 4))
    told = [(each.state.name, each.params, each.user_attrs) for each in study.trials]
    print(json.dumps(told))
"""


@pytest.fixture
def study(scripts: Callable[..., Scripts]) -> Callable[..., list[Any]]:
    """Return a function that runs a study on four workers, after which every device is free."""
    made = scripts("sim:4x8000MiB")

    def run(kind: str, work: str, trials: int) -> list[Any]:
        done = made.run(STUDY, kind, work, str(trials), PYTHONWARNINGS="ignore")
        status = made.env.status()
        assert not status["leases"]
        assert not status["waiters"]
        result: list[Any] = json.loads(done.stdout)
        return result

    return run


@pytest.mark.parametrize(
    ("kind", "work", "trials"),
    [("threads", "job", 50), ("threads", "block", 50), ("processes", "job", 20)],
)
def test_every_trial_runs_on_a_device(
    study: Callable[..., list[Any]], kind: str, work: str, trials: int
) -> None:
    """Those that raise are failed, those that are pruned are pruned, and nothing leaks."""
    ended = study(kind, work, trials)
    by_state = {name: [each for each in ended if each[0] == name] for name, _, _ in ended}
    tenth = trials // 10
    assert {name: len(each) for name, each in by_state.items()} == {
        "COMPLETE": trials - 2 * tenth,
        "PRUNED": tenth,
        "FAIL": tenth,
    }
    devices = {attributes["device"] for _, _, attributes in by_state["COMPLETE"]}
    assert devices <= {"0", "1", "2", "3"}
    assert all("rate" in parameters for _, parameters, _ in ended)


def test_an_objective_may_be_a_job_where_the_study_has_a_storage(
    study: Callable[..., list[Any]],
) -> None:
    """What the trial suggests and notes in the job's process is in the study."""
    for state, parameters, attributes in study("processes", "whole", 8):
        assert state == "COMPLETE"
        assert "rate" in parameters
        assert attributes["device"] in {"0", "1", "2", "3"}


def test_a_trial_that_would_be_lost_with_its_copy_is_refused(
    scripts: Callable[..., Scripts],
) -> None:
    """A study in the caller's memory hears nothing of another process: that is an error, with the way out."""
    done = scripts().run(STUDY, "threads", "whole", "12", status=1)
    assert "UsageError: whole would get a copy of trial" in done.stderr
    assert "call a job with the values" in done.stderr
