"""Make the state files of the release that is installed: `python -m tests.reliability.states FOLDER`.

Run once for each release, with that release; the files are kept, so that every later one must read
them, beside `expected.json`: what that release itself read. The journal is of the boot `kept` and its
processes are numbers that nobody has.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from grn.broker.journal import Journal
from grn.broker.store import FILE_NAME, ProfileStore
from grn.queue.entry import Spec
from grn.queue.places import Places
from grn.queue.store import NewJob, Store
from grn.rules.estimate import Margin
from grn.rules.profiles import from_record, to_record
from grn.rules.records import managed_from_record, managed_record
from tests.reliability import histories

BOOT = "kept"


def make(folder: str) -> None:
    """Write one file of each kind."""
    os.makedirs(folder, exist_ok=True)
    journal, _, _ = Journal.open(os.path.join(folder, "journal"), boot=BOOT)
    journal.append([managed_record("sim:4x16000MiB", ("0,1,2,3", None))])
    journal.append(histories.day(3, 80))
    journal.close()

    store = ProfileStore(os.path.join(folder, FILE_NAME), clock=lambda: 1_800_000_000.0)
    book = histories.fresh_machine().profiles
    for number, peak in enumerate((900, 1100, 1000)):
        book.of("train", "Simulated").succeeded(peak, 60.0 + number, "sampled")
    book.of("caf\udce9", "Other").set_mib = 4000
    store.put_many({(p.type, p.device_model): to_record(p) for p in book.all()})
    store.close()

    with Store(Places(folder)) as queue:
        spec = Spec(words=["python", "train.py"], environ={"A": "1"}, cwd="/", umask=0o22)
        first, _ = queue.add([NewJob("first", spec), NewJob("caf\udce9", spec, 5)])
        queue.add([NewJob("held", spec)], held=True)
        queue.cancel([first], "no longer wanted")
        queue.set_control(paused="yes")


def read(folder: str) -> dict[str, Any]:
    """Say what the release that is installed reads in such files."""
    journal, records, report = Journal.open(os.path.join(folder, "journal"), boot=BOOT)
    journal.close()
    store = ProfileStore(os.path.join(folder, FILE_NAME))
    profiles = {
        f"{job_type}|{model}": from_record(job_type, model, record).estimate_mib(Margin(0, 0))
        for (job_type, model), record in store.load(100).items()
    }
    store.close()
    with Store(Places(folder)) as queue:
        entries = queue.entries()
        controls = queue.controls()
    told = {
        "report": report,
        "managed": [x for x in map(managed_from_record, records) if x is not None],
        "leases": histories.books(records),
        "profiles": profiles,
        "jobs": [[x.id, x.name, x.state, x.priority, x.reason, x.spec.command] for x in entries],
        "controls": controls,
    }
    plain: dict[str, Any] = json.loads(json.dumps(told))
    return plain


if __name__ == "__main__":
    make(sys.argv[1])
    with open(os.path.join(sys.argv[1], "expected.json"), "w", encoding="ascii") as file:
        json.dump(read(sys.argv[1]), file, indent=1, sort_keys=True)
        file.write("\n")
