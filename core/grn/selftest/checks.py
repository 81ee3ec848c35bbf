"""The checks, one function each: it returns a sentence and its numbers, or raises how it ended.

Each starts jobs as a user would, and compares what the broker's books, the job itself and the driver
say. What a check started is ended by who called it.
"""

from __future__ import annotations

import os
import signal
import time
from typing import TYPE_CHECKING, Any

from grn import procs
from grn.rules.mask import mask_style
from grn.selftest.bench import expect, place
from grn.selftest.cuda import bare
from grn.selftest.frameworks import FRAMEWORKS, installed
from grn.selftest.jobs import look_without_lease
from grn.selftest.listed import confirm
from grn.selftest.verdict import FailedError, SkippedError

if TYPE_CHECKING:
    from grn.selftest.bench import Bench
    from grn.selftest.driver import Look
    from grn.selftest.jobs import Program

    Told = tuple[str, dict[str, Any]]

__all__ = ["framework", "kill", "lands", "masks", "out_of_memory", "peak", "share"]

_MOST_DEVICES = 8
_HELD_S = 2.0
_LOOK_WITHIN_S = 20.0
_GIVEN_BACK_WITHIN_S = 10.0
_FRAMEWORK_MIB = 512
_FRAMEWORK_BOUND_MIB = 2048
_FRAMEWORK_WITHIN_S = 45.0
_LEAST_FOR_FRAMEWORK_S = 15.0
_SLACK_MIB = 16  # figures are rounded, and others' change a little


def lands(bench: Bench) -> Told:
    """On each device: a job runs on the one that was booked, says CUDA, and says the driver."""
    before = bench.look()
    devices = bench.devices()[:_MOST_DEVICES]
    jobs: list[tuple[dict[str, Any], int, Program]] = []
    for device in devices:
        size = bench.size_on(device)
        if size:
            booked = size + bench.extra_mib
            job = bench.start("lands", memory_mib=booked, mib=size, mask=device["uuid"])
            jobs.append((device, size, job))
    if not jobs:
        raise SkippedError("no device has room")
    numbers: dict[str, Any] = {}
    texts = []
    for device, size, job in jobs:
        sees = job.hear("sees", bench.patience_s)
        _check_seen(bench, device, sees)
        job.hear("holds", bench.patience_s)
        words, numbers[device["uuid"]] = confirm(bench, before, device, sees["pid"], size)
        texts.append(f"{place(device)}: {words}")
    full = len(devices) - len(jobs)
    texts += [f"{full} without room left out"] if full else []
    return "; ".join(texts), numbers


def _check_seen(bench: Bench, device: dict[str, Any], sees: dict[str, Any]) -> None:
    """Compare what was booked, what the job was told, and what CUDA shows it."""
    told = sees["told"]
    mask = f"CUDA_VISIBLE_DEVICES={told['CUDA_VISIBLE_DEVICES']}"
    expect(
        told["GRN_DEVICES"] == device["uuid"],
        f"{place(device)} was asked for and {told['GRN_DEVICES']} was given",
    )
    expect(
        sees["uuids"] == [bare(device["uuid"])],
        f"booked was {place(device)}, and with {mask} CUDA shows the job"
        f" {_named(bench, sees['uuids'])}",
    )


def _named(bench: Bench, uuids: list[str]) -> str:
    known = {bare(device["uuid"]): place(device) for device in bench.devices()}
    return ", ".join(known.get(uuid, uuid) for uuid in uuids) or "no device"


def peak(bench: Bench) -> Told:
    """A known amount is measured as that and the context of the process."""
    device, size = bench.roomiest()
    booked = size + bench.extra_mib
    job = bench.start("peak", memory_mib=booked, mib=size, mask=device["uuid"])
    sees = job.hear("sees", bench.patience_s)
    job.hear("holds", bench.patience_s)
    return _measure(bench, job, sees["told"]["GRN_LEASE"], size, ("context", bench.extra_mib))


def _measure(bench: Bench, job: Program, lease: str, size: int, rest: tuple[str, int]) -> Told:
    """Compare the peak of a job that holds `size` with that; `rest` is what else it may hold."""
    since = time.monotonic()
    entry = bench.until(lambda: _measured(bench, lease, size)) or bench.lease(lease)
    seen_s = time.monotonic() - since
    time.sleep(max(0.0, min(_HELD_S - seen_s, bench.left_s)))
    most = job.finish()["peak_mib"]
    if most is None:
        raise FailedError(f"{size} MiB were held for {seen_s:.1f} s and nothing was measured")
    source = entry.get("peak_source") or "source unknown"
    name, bound = rest
    words = f"{most} MiB measured for {size} MiB"
    if most < size:
        raise FailedError(f"{words}: {size - most} MiB too little ({source})")
    more = f"{name} {most - size} MiB, at most {bound} expected ({source})"
    if most > size + bound:
        raise FailedError(f"{words}: {more}")
    numbers = {"size_mib": size, "peak_mib": most, f"{name}_mib": most - size, "bound_mib": bound}
    return f"{words}: {more}", {**numbers, "source": source}


def _measured(bench: Bench, lease: str, size: int) -> dict[str, Any]:
    entry = bench.lease(lease)
    return entry if (entry.get("measured_mib") or 0) >= size else {}


def share(bench: Bench) -> Told:
    """Two jobs hold memory of one device at the same time."""
    alone = bench.given_alone()
    device, size = bench.roomiest(jobs=2, but=alone)
    before = bench.look()
    booked = size + bench.extra_mib
    jobs = [
        bench.start("share", memory_mib=booked, mib=size, mask=device["uuid"]) for _ in range(2)
    ]
    seen = []
    for job in jobs:
        seen.append(job.hear("sees", bench.patience_s))
        job.hear("holds", bench.patience_s)
    leases = [bench.lease(sees["told"]["GRN_LEASE"]) for sees in seen]
    expect(
        all(lease.get("devices") == [device["uuid"]] for lease in leases),
        f"two jobs hold memory of {place(device)}, and the books have leases on"
        f" {[lease.get('devices') for lease in leases]}",
    )
    texts = [confirm(bench, before, device, sees["pid"], size)[0] for sees in seen]
    numbers = {"device": device["uuid"], "leases": 2, "size_mib": size}
    return f"{place(device)} has two of {size} MiB: {'; '.join(texts)}", numbers


def kill(bench: Bench) -> Told:
    """A job that is killed outright gives its memory back, and its lease ends."""
    device, size = bench.roomiest()
    uuid = device["uuid"]
    before = bench.look()
    job = bench.start("kill", memory_mib=size + bench.extra_mib, mib=size, mask=uuid)
    sees = job.hear("sees", bench.patience_s)
    job.hear("holds", bench.patience_s)
    pid, lease = sees["pid"], sees["told"]["GRN_LEASE"]
    confirm(bench, before, device, pid, size)
    held = bench.look()
    expect(procs.parent(pid) == job.process.pid, f"process {pid} is not the job's")
    os.kill(pid, signal.SIGKILL)
    since = time.monotonic()
    ended = bench.until(lambda: not bench.lease(lease), _GIVEN_BACK_WITHIN_S)
    lease_s = time.monotonic() - since
    given = bench.until(lambda: not _kept(bench, held, uuid, pid, size), _GIVEN_BACK_WITHIN_S)
    back_s = time.monotonic() - since
    problems = [] if ended else ["its lease is still there"]
    problems += [] if given else [_kept(bench, held, uuid, pid, size)]
    late = time.monotonic() - since
    expect(ended and given, f"{late:.0f} s after the job was killed {' and '.join(problems)}")
    outcome = job.finish()["outcome"]
    expect(outcome == "killed", f"the job was killed, and its outcome is {outcome!r}")
    numbers = {"lease_ended_s": round(lease_s, 2), "size_mib": size}
    words = f"the lease ended within {lease_s:.1f} s"
    if held is None or bench.driver is None:
        return f"{words} (the driver was not asked: {bench.driver_problem})", numbers
    numbers["memory_back_s"] = round(back_s, 2)
    return f"{words}, its memory was back within {back_s:.1f} s", numbers


def _kept(bench: Bench, held: Look | None, uuid: str, pid: int, size: int) -> str:
    """Say what of a dead job is still on the device; '' if nothing is."""
    look = bench.look()
    if look is None or held is None:
        return ""
    if look.where(pid):
        exists = "which does not exist any more" if procs.start_time(pid) is None else "still"
        return f"the driver lists its process {pid}, {exists}"
    used, used_then = look.used(uuid), held.used(uuid)
    if used is None or used_then is None:
        return ""
    limit = used_then - size + _grown(held, look, uuid, pid) + _SLACK_MIB
    return "" if used <= limit else f"{used} MiB are in use, {used_then} were while it lived"


def _grown(held: Look, look: Look, uuid: str, pid: int) -> int:
    """Return how many MiB more others hold than they did then."""
    then = sum(mib or 0 for who, mib in (held.devices[uuid].uses or {}).items() if who != pid)
    now = sum(mib or 0 for mib in (look.devices[uuid].uses or {}).values())
    return max(0, now - then)


def masks(bench: Bench) -> Told:
    """Devices appear to a program in the order of its mask, by number and by UUID."""
    devices = sorted(bench.devices(), key=lambda device: device["index"])
    whole = [device for device in devices if device["uuid"].startswith("GPU-")]
    # Of MIG slices CUDA shows a process one, whatever its mask names.
    chosen = [*reversed(whole[:_MOST_DEVICES])] or devices[:1]
    if not chosen:
        raise SkippedError(bench.why_none())
    spellings = {"UUIDs": [device["uuid"] for device in chosen]}
    if chosen == devices[:1] and not whole:
        said = "numbers cannot name a MIG slice"
    elif mask_style(bench.told.get("CUDA_VISIBLE_DEVICES")) == "uuid":
        said = "numbers are not used on this machine"
    else:
        said = ""
        spellings["numbers"] = [str(device["index"]) for device in chosen]
    expected = [bare(device["uuid"]) for device in chosen]
    order = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", **_folder(bench)}
    for entries in spellings.values():
        mask = ",".join(entries)
        told = {**order, "CUDA_VISIBLE_DEVICES": mask}
        seen = look_without_lease(bench.ground, bench.kind, told, bench.at_most(_LOOK_WITHIN_S))
        expect(
            seen == expected,
            f"with CUDA_DEVICE_ORDER=PCI_BUS_ID and the mask {mask} CUDA shows"
            f" {_named(bench, seen)}; expected was {_named(bench, expected)}",
        )
    texts = [f"{len(chosen)} by {' and by '.join(spellings)}", said, _leased_order(bench, whole)]
    return "; ".join(filter(None, texts)), {"devices": len(chosen), "spellings": list(spellings)}


def _folder(bench: Bench) -> dict[str, str]:
    folder = bench.told.get("GRN_SIM_DIR")
    return {} if folder is None or bench.kind == "cuda" else {"GRN_SIM_DIR": folder}


def _leased_order(bench: Bench, whole: list[dict[str, Any]]) -> str:
    """Look at the order in a lease of two devices, where there are two."""
    free = [device for device in whole if bench.size_on(device)]
    if len(free) < 2:  # noqa: PLR2004 - an order
        return ""
    mask = ",".join(device["uuid"] for device in free[:2])
    job = bench.start("masks", memory_mib=1, mib=0, mask=mask, gpus=2)
    sees = job.hear("sees", bench.patience_s)
    given = sees["told"]["GRN_DEVICES"].split(",")
    expect(
        sees["uuids"] == [bare(uuid) for uuid in given],
        f"a lease has {_named(bench, [bare(uuid) for uuid in given])}, and CUDA shows its job"
        f" {_named(bench, sees['uuids'])}",
    )
    return "and in a lease of two"


def out_of_memory(bench: Bench) -> Told:
    """A job that asks for more than the device has is known to have run out of memory."""
    device, _ = bench.roomiest()
    wish = device["total_mib"] + 1024
    job = bench.start("oom", memory_mib=bench.extra_mib or 64, mib=wish, mask=device["uuid"])
    try:
        job.hear("holds", bench.patience_s)
    except FailedError:
        status = job.finish()
    else:
        raise FailedError(f"{place(device)} has {device['total_mib']} MiB and gave {wish} MiB")
    words = job.last_words()
    expect(
        status["outcome"] == "oom",
        f"a job asked for {wish} MiB of {device['total_mib']}; its outcome is"
        f" {status['outcome']!r}, its last words: {words}",
    )
    return f"{wish} MiB of {device['total_mib']}: {words}", {"asked_mib": wish}


def framework(bench: Bench, module: str) -> Told:
    """What a framework allocates is measured as that and what the framework needs itself."""
    name, _ = FRAMEWORKS[module]
    if not installed(module):
        raise SkippedError("not installed in this Python")
    if bench.kind == "sim":
        raise SkippedError(f"{name} knows no simulated devices")
    if bench.left_s < _LEAST_FOR_FRAMEWORK_S:
        raise SkippedError("no time left")
    device, _ = bench.roomiest()
    booked = _FRAMEWORK_MIB + _FRAMEWORK_BOUND_MIB
    if device["free_mib"] < booked:
        raise SkippedError(f"{booked} MiB are needed, {device['free_mib']} are free")
    words = ("grn.selftest.frameworks", module, str(_FRAMEWORK_MIB))
    job = bench.start(module, memory_mib=booked, mib=0, mask=device["uuid"], words=words)
    said = job.hear("holds", min(_FRAMEWORK_WITHIN_S, bench.left_s))
    rest = ("besides", _FRAMEWORK_BOUND_MIB)
    text, numbers = _measure(bench, job, said["told"]["GRN_LEASE"], _FRAMEWORK_MIB, rest)
    return f"{name} {said['version']}: {text}", {**numbers, "version": said["version"]}
