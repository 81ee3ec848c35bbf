"""The machine misbehaves: others use the devices, a device is lost, the disk is full."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from grn import ondemand, paths
from grn.devices import simfolder
from grn.errors import BrokerUnavailable
from tests.env import PATIENCE_S, ROOT, eventually

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.env import BrokerEnv
    from tests.talker import Talker

    NewEnv = Callable[..., BrokerEnv]

NO_LIMIT = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)


# -- other people's memory --------------------------------------------------------------------------


def test_other_peoples_memory_is_not_handed_out(new_env: NewEnv):
    """What processes outside GRN hold is not free; a waiter is told in numbers, and starts after."""
    env = new_env("sim:2x49152MiB")
    simfolder.add_foreign(env.sim_dir, 1, 18432, "server")
    talker = env.talker()
    first = talker.acquire("t", memory_mib=40960)
    assert [device["index"] for device in first["devices"]] == [0]
    second = talker.ask("t", memory_mib=40960)
    reason = talker.next(second)["reason"]
    assert "device 1: 30720 MiB free of 49152, 18432 used by others" in reason
    assert "1 leased" in reason
    simfolder.remove_foreign(env.sim_dir, "server")
    grant = talker.granted(second)
    assert [device["index"] for device in grant["devices"]] == [1]


def test_memory_that_others_take_later_is_seen(new_env: NewEnv):
    """Others may come after a grant: books never go negative, and new requests wait."""
    env = new_env()
    talker = env.talker()
    talker.acquire("t", memory_mib=6000)
    simfolder.add_foreign(env.sim_dir, 0, 8000, "late")
    eventually(lambda: _books(talker) == (0, 8000, 6000))
    request = talker.ask("t", memory_mib=1)
    assert not talker.decided([request])
    simfolder.remove_foreign(env.sim_dir, "late")
    talker.granted(request)


def test_two_brokers_jobs_are_foreign_to_each_other(new_env: NewEnv):
    """A process with another broker's marker is foreign here, whatever its lease's id looks like."""
    env, other = new_env(), new_env()
    theirs = other.talker()
    other.environ["GRN_SIM_DIR"] = env.sim_dir
    grant = theirs.acquire("t", memory_mib=4000)
    grant["extra"] = {"GRN_SIM_DIR": env.sim_dir}
    job = other.job(theirs, grant, "--memory=4000MiB")
    job.wait_holding()
    eventually(lambda: _books(env) == (6000, 4000, 0))
    assert job.finish() == 0
    eventually(lambda: _books(env) == (10000, 0, 0))


def _books(asked: BrokerEnv | Talker) -> tuple[int, int, int]:
    (device,) = asked.status()["devices"]
    return device["free_mib"], device["foreign_mib"], device["booked_mib"]


# -- a lost device ----------------------------------------------------------------------------------


def test_a_lost_device_is_not_granted_and_keeps_its_leases(new_env: NewEnv):
    """Leases on a lost device stay, nothing new goes there, and other devices go on."""
    env = new_env("sim:2x10000MiB")
    talker = env.talker()
    grants = {g["devices"][0]["index"]: g for g in (_whole(talker), _whole(talker))}
    simfolder.set_device(env.sim_dir, 0, state="lost", reason="fell off the bus")
    waiting = talker.ask("t", memory_mib=5000)
    eventually(lambda: talker.status()["devices"][0]["state"] == "lost")
    assert {lease["id"] for lease in talker.status()["leases"]} == {
        grant["lease"] for grant in grants.values()
    }
    (waiter,) = talker.status()["waiters"]
    assert "device 0: lost (fell off the bus)" in waiter["reason"]
    talker.release(grants[1])
    assert [device["index"] for device in talker.granted(waiting)["devices"]] == [1]

    talker.release(grants[0])
    second = talker.ask("t", memory_mib=8000)
    assert not talker.decided([second])
    simfolder.set_device(env.sim_dir, 0, state="ok", reason=None)
    assert [device["index"] for device in talker.granted(second)["devices"]] == [0]


def test_all_devices_removed_is_survived(new_env: NewEnv):
    """When the devices vanish under the broker, it answers, grants nothing, and leaves in order."""
    env = new_env()
    talker = env.talker()
    os.rename(env.sim_dir, env.sim_dir + ".gone")
    request = talker.ask("t", memory_mib=1000)
    assert not talker.decided([request])
    eventually(lambda: talker.status()["devices"][0]["state"] == "lost")
    os.rename(env.sim_dir + ".gone", env.sim_dir)
    talker.granted(request)


def _whole(talker: Talker) -> dict[str, Any]:
    return talker.acquire("t", memory_mib="whole")


# -- a full disk ------------------------------------------------------------------------------------


def test_a_disk_that_cannot_be_written(new_env: NewEnv):
    """While the journal cannot be written new requests are refused with that reason, leases stay."""
    env = new_env()
    talker = env.talker()
    held = [talker.acquire("t", memory_mib=10) for _ in range(60)]
    journal = os.stat(paths.beside(env.socket).journal).st_size
    resource.prlimit(env.pid, resource.RLIMIT_FSIZE, (journal - 2000, resource.RLIM_INFINITY))
    _refused_until_written(env, talker, held)
    resource.prlimit(env.pid, resource.RLIMIT_FSIZE, NO_LIMIT)
    _grants_again(env, talker, held)


@pytest.fixture
def small_disk(tmp_path: Any) -> Iterator[str]:
    """Mount a file system of 256 KiB, where that is allowed."""
    folder = str(tmp_path / "small")
    os.mkdir(folder, 0o700)
    mount = ["mount", "-t", "tmpfs", "-o", "size=256k,mode=700", "none", folder]
    if os.geteuid() or subprocess.run(mount, check=False, capture_output=True).returncode:
        pytest.skip("only root can mount a small disk")
    yield folder
    subprocess.run(["umount", "--lazy", folder], check=True)


def test_a_full_disk(new_env: NewEnv, small_disk: str):
    """On a full disk new requests are refused; when there is room again, they are granted."""
    env = new_env(socket_path=f"{small_disk}/sock")
    talker = env.talker()
    held = [talker.acquire("t", memory_mib=10) for _ in range(60)]
    filler = f"{small_disk}/filler"
    _fill(filler)
    _refused_until_written(env, talker, held)
    os.unlink(filler)
    _grants_again(env, talker, held)


@pytest.mark.parametrize("pages", range(4))
def test_a_broker_that_finds_no_room_says_so(new_env: NewEnv, small_disk: str, pages: int):
    """Whoever wanted it reads which file could not be written, not that it died without a word."""
    env = new_env(start=False, socket_path=f"{small_disk}/sock")
    env.environ["GRN_DEVICES"] = "sim:1x8GiB"  # described beside the socket, on the same disk
    filler = f"{small_disk}/filler"
    _fill(filler)
    os.truncate(filler, os.stat(filler).st_size - pages * resource.getpagesize())
    command = [sys.executable, "-m", "grn", "run", "--", "true"]
    ran = env.popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True)
    said = ran.communicate(timeout=PATIENCE_S)[1]
    assert ran.returncode == 125
    assert "No space left on device" in said
    assert f"{small_disk}/s" in said
    os.unlink(filler)
    env.start()
    assert env.talker().acquire("t", memory_mib=10)["op"] == "granted"


def test_a_broker_that_died_on_a_full_disk(
    new_env: NewEnv, small_disk: str, monkeypatch: pytest.MonkeyPatch
):
    """What it had to say found no room: then that is what its starter says."""
    env = new_env(start=False, socket_path=f"{small_disk}/sock")
    monkeypatch.setattr(ondemand, "_command", lambda *_: [sys.executable, "-c", "1 / 0"])
    for number in range(2):
        with pytest.raises(BrokerUnavailable) as told:
            ondemand.ensure_broker(env.settings)
        assert ("its disk is full: make room there" in str(told.value)) is bool(number)
        _fill(f"{small_disk}/filler")
        os.truncate(paths.beside(env.socket).log, 0)
        _fill(f"{small_disk}/more")


def _fill(path: str) -> None:
    with open(path, "wb", buffering=0) as file:
        try:
            while file.write(bytes(4096)):
                pass
        except OSError:
            return


def _refused_until_written(env: BrokerEnv, talker: Talker, held: list[dict[str, Any]]) -> None:
    """Ask until the journal is at its end; then see that leases go on and can be given back."""

    def refusal() -> dict[str, Any] | None:
        answer = talker.final(talker.ask("t", memory_mib=10))
        if answer["op"] == "granted":  # the last page of the file had room for it
            held.append(answer)
            return None
        return answer

    told = eventually(refusal)
    assert told["code"] == "disk"
    assert "journal" in told["message"]
    assert "nothing new is granted" in told["message"]
    status = talker.status()
    assert {lease["id"] for lease in status["leases"]} == {grant["lease"] for grant in held}
    assert any("journal" in warning for warning in status["warnings"])
    given = held.pop()
    assert talker.release(given)["outcome"] == "ok"
    assert len(env.log_lines("journal-failed")) >= 1


def _grants_again(env: BrokerEnv, talker: Talker, held: list[dict[str, Any]]) -> None:
    def granted() -> dict[str, Any] | None:
        answer = talker.final(talker.ask("t", memory_mib=10))
        return answer if answer["op"] == "granted" else None

    held.append(eventually(granted))
    assert not any("journal" in warning for warning in talker.status()["warnings"])
    env.restart()
    assert {lease["id"] for lease in env.status()["leases"]} == {g["lease"] for g in held}
