"""What the devices say, taken into the books: use, strangers, health, and who uses what.

A reading may leave things open. What nobody can say stays as it was last known: unknown is not
nothing. Where the driver does not say what a process holds, the rise of a device's total stands in
while one lease is alone there; a lease that had company even once is unmeasured.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from grn.rules import events as ev
from grn.rules.health import DeviceHealth, job_fault_xids
from grn.rules.interference import noted
from grn.rules.model import LONGEST_GAP_S, DeviceState, LeaseState
from grn.rules.records import health_record, main_record

if TYPE_CHECKING:
    from grn.rules.ledger import Book, Booking
    from grn.rules.machine import Machine
    from grn.rules.model import Lease

__all__ = ["sampled", "trusted", "unseen", "warnings"]

_XIDS_KEPT = 8


def sampled(machine: Machine, event: ev.Sampled) -> list[ev.Effect]:
    """Take a look at all devices in: end what has drained, learn from what runs."""
    effects: list[ev.Effect] = []
    machine.looked_s = event.now
    for reading in event.readings:
        effects += _take(machine, reading, event.now)
    unread = {
        book.device.uuid
        for book in machine.ledger.books
        if book.state in (DeviceState.LOST, DeviceState.STALE)
    }
    unread.update(r.uuid for r in event.readings if r.state is not DeviceState.OK)
    looked_at = {reading.uuid for reading in event.readings if reading.busy is not None}
    for lease in list(machine.leases.values()):
        lease.left_over = event.left_over.get(lease.id, ())
        if lease.state is LeaseState.DRAINING:
            _sum_up(machine, lease)
            effects += machine.learning.left_behind(lease)
            effects += _drained(machine, lease, unread)
            continue
        if unread and not unread.isdisjoint(lease.uuids):
            if lease.unread_since is None:
                lease.unread_since = event.now
            continue
        lease.had_gap |= event.late and event.now - lease.granted_s > LONGEST_GAP_S
        if lease.unread_since is not None:
            lease.had_gap |= event.now - lease.unread_since > LONGEST_GAP_S
            lease.unread_since = None
        _sum_up(machine, lease)
        if not looked_at.isdisjoint(lease.uuids):
            noted(lease, machine.ledger)
        was = lease.state
        effects += machine.learning.sampled(lease, event.now)
        if lease.state is not was:  # no longer alone: a successor must not restore it so
            effects.append(ev.Record(main_record(lease)))
    if any(isinstance(effect, ev.Learnt) for effect in effects):
        machine.dirty = True
    return effects


def unseen(machine: Machine, lease: Lease) -> bool:
    """Whether a device of the lease cannot be read, or nobody can say what the lease holds there."""
    books = [b for uuid in lease.uuids if (b := machine.ledger.by_uuid.get(uuid)) is not None]
    return any(b.state is not DeviceState.OK or b.bookings[lease.id].unseen for b in books)


def kept_by_left_over(machine: Machine, lease: Lease) -> bool:
    """Whether processes of an ended lease keep it by living on, and not by what they hold only.

    After an end that nobody saw they are the job itself, which may allocate at any moment.
    """
    return bool(lease.left_over) and (lease.orphaned or unseen(machine, lease))


def _take(machine: Machine, reading: ev.Reading, now: float) -> list[ev.Effect]:
    book = machine.ledger.by_uuid.get(reading.uuid)
    if book is None:
        return []
    before = (book.state, book.free_mib, book.usage_known)
    effects = _take_health(machine, book, reading, now)
    _take_use(book, reading)
    if reading.state is DeviceState.OK:
        book.usage_known = reading.used_mib is not None
        book.used_mib = reading.used_mib
        book.strangers = reading.strangers
        book.hides_processes = reading.hidden
        if reading.leases is not None:
            effects += _take_figures(machine, book, reading, reading.leases)
        else:
            _take_total(machine, book, reading)
        effects += _take_holders(machine, book, reading)
        _note_fullness(machine, book, reading)
    machine.dirty |= before != (book.state, book.free_mib, book.usage_known)
    return effects


def _drained(machine: Machine, lease: Lease, unread: set[str]) -> list[ev.Effect]:
    """End a lease that has drained.

    Where no figures by process are to be had, or the device is gone, the proof is that no process
    of the lease lives: what is held there is somebody else's.
    """
    nobody = lease.main is None and not lease.left_over
    for uuid in lease.uuids:
        book = machine.ledger.by_uuid.get(uuid)
        if book is None:
            continue
        booking = book.bookings[lease.id]
        vague = booking.by_delta or booking.unseen or book.state is DeviceState.LOST
        if nobody and vague:
            machine.ledger.measure(lease.id, uuid, 0)
        elif uuid in unread or booking.unseen:
            return []
    return machine.end_if_drained(lease)


def _sum_up(machine: Machine, lease: Lease) -> None:
    """Say of the lease what holds for any of its devices; figures that had gaps are no figures."""
    unseen = by_delta = had_company = False
    held = 0
    for uuid in lease.uuids:
        book = machine.ledger.by_uuid.get(uuid)
        if book is None:
            continue
        booking = book.bookings[lease.id]
        unseen |= booking.unseen
        by_delta |= booking.by_delta
        had_company |= booking.had_company
        held = max(held, booking.measured_mib)
    lease.unseen = unseen
    if held > lease.peak_mib:  # the source of a peak is that of the reading which made it
        lease.by_delta = by_delta
    if had_company:
        lease.samples = lease.peak_mib = 0
        lease.history.clear()


# -- health ---------------------------------------------------------------------------------------


def _take_health(machine: Machine, book: Book, reading: ev.Reading, now: float) -> list[ev.Effect]:
    uuid = book.device.uuid
    effects: list[ev.Effect] = []
    health = machine.health.get(uuid)
    if health is None and (reading.xids or reading.health is not None):
        health = machine.health[uuid] = DeviceHealth()
    if health is not None:
        well, before = reading.state is DeviceState.OK, health.kept()
        said = health.see(now, reading.xids, reading.health, read_well=well)
        index = book.device.index
        effects += [
            ev.Said("warning", f"device-trouble uuid={uuid} index={index} reason={x!r}")
            for x in said
        ]
        if health.kept() != before:
            effects.append(ev.Record(health_record(uuid, health)))
    if reading.state is DeviceState.OK and health is not None and not health.usable:
        book.state, book.reason = DeviceState.UNHEALTHY, health.reason
    else:
        book.state, book.reason = reading.state, reading.reason
    faults = job_fault_xids(reading.xids)
    for lease_id in book.bookings if faults else ():
        lease = machine.leases[lease_id]
        lease.xids = (*lease.xids, *faults)[-_XIDS_KEPT:]
    return effects


def _take_use(book: Book, reading: ev.Reading) -> None:
    """Take in how busy the device is, if that was looked at."""
    if reading.state is not DeviceState.OK:
        book.utilisation = None
        for booking in book.bookings.values():
            booking.utilisation = None
    elif reading.busy is not None:
        book.utilisation = reading.busy.percent
        known = reading.busy.leases
        for lease_id, booking in book.bookings.items():
            booking.utilisation = None if known is None else known.get(lease_id, 0)


def trusted(machine: Machine, event: ev.Trusted) -> list[ev.Effect]:
    """Let devices in again that errors kept out: somebody has looked at them.

    What their next reading says counts all the same.
    """
    del event
    effects: list[ev.Effect] = []
    for uuid, health in machine.health.items():
        if health.kept() is None:
            continue
        health.operator()
        effects.append(ev.Record(health_record(uuid, health)))
        effects.append(ev.Said("warning", f"device-errors-forgotten uuid={uuid}"))
    return effects


# -- who holds what -------------------------------------------------------------------------------


def _take_figures(
    machine: Machine, book: Book, reading: ev.Reading, held: dict[str, int]
) -> list[ev.Effect]:
    """Take in what each lease holds, as the driver says by process."""
    effects: list[ev.Effect] = []
    if reading.foreign_mib is not None:
        # What leases hold on a device that they were not given is foreign to its books.
        strays = sum(mib for lease_id, mib in held.items() if lease_id not in book.bookings)
        book.foreign_mib = max(0, reading.foreign_mib) + strays
        book.baseline_mib = book.foreign_mib
    for lease_id, booking in book.bookings.items():
        booking.unseen = booking.by_delta = booking.had_company = False
        machine.ledger.measure(lease_id, reading.uuid, held.get(lease_id, 0))
    for lease_id in held:
        effects += _note_stray(machine, book, lease_id)
    return effects


def _take_holders(machine: Machine, book: Book, reading: ev.Reading) -> list[ev.Effect]:
    """Take in who is there and what the driver recorded: known even where figures are not."""
    for lease_id in book.bookings:
        lease = machine.leases[lease_id]
        lease.holders = reading.holders.get(lease_id, ())
        lease.together |= len(lease.holders) > 1
        recorded = reading.accounted.get(lease_id, 0)
        lease.accounted_mib = max(lease.accounted_mib, recorded)
    effects: list[ev.Effect] = []
    for lease_id in reading.holders:
        effects += _note_stray(machine, book, lease_id)
    return effects


def _note_stray(machine: Machine, book: Book, lease_id: str) -> list[ev.Effect]:
    lease = machine.leases.get(lease_id)
    uuid = book.device.uuid
    if lease is None or lease_id in book.bookings or uuid in lease.strays:
        return []
    lease.strays = (*lease.strays, uuid)
    text = f"stray lease={lease.id} uuid={uuid} reason={_stray_text(machine, lease, uuid)!r}"
    return [ev.Said("warning", text)]


def _take_total(machine: Machine, book: Book, reading: ev.Reading) -> None:
    """Make the best of a reading that does not say what leases hold."""
    used = reading.used_mib
    others = max(0, reading.foreign_mib or 0)  # those who are seen, at least
    for booking in book.bookings.values():
        booking.had_company |= len(book.bookings) > 1 or (used or 0) < book.baseline_mib
    if used is not None and used < book.baseline_mib:
        book.baseline_mib = used  # others gave memory back: how much, and since when, nobody knows
    alone = next(iter(book.bookings.items())) if len(book.bookings) == 1 else None
    if used is not None and not book.bookings:
        book.foreign_mib = book.baseline_mib = used
    elif used is not None and alone is not None and _delta_holds(alone[1]):
        book.foreign_mib = max(book.baseline_mib, others)
        alone[1].by_delta, alone[1].unseen = True, False
        machine.ledger.measure(alone[0], reading.uuid, max(0, used - book.foreign_mib))
    else:
        if used is not None:
            book.foreign_mib = max(0, used - book.booked_mib, min(others, used))
        for booking in book.bookings.values():
            booking.by_delta, booking.unseen = False, True


def _delta_holds(booking: Booking) -> bool:
    """Whether the rise of the total is the lease's: it was alone here ever since it began."""
    return not booking.restored and not booking.had_company


def _note_fullness(machine: Machine, book: Book, reading: ev.Reading) -> None:
    """Remember how full a lease saw its device, and what others left of it, while it was in use.

    After its end the device is emptier. A job that never got any memory may have found none left.
    """
    if reading.used_mib is None:
        return
    nearly = reading.used_mib * 50 >= book.device.total_mib * 49
    room = book.device.total_mib - book.device.reserve_mib - book.foreign_mib
    left = room - book.measured_mib
    for lease_id, booking in book.bookings.items():
        lease = machine.leases[lease_id]
        if booking.measured_mib or not lease.peak_mib:
            booking.left_mib = max(0, left + booking.measured_mib)
        if booking.measured_mib:
            lease.device_nearly_full = nearly


# -- in words -------------------------------------------------------------------------------------


def warnings(machine: Machine) -> list[str]:
    """Say what a person should know about the devices and who uses them."""
    told = [
        _stray_text(machine, lease, uuid)
        for lease in machine.leases.values()
        for uuid in lease.strays
    ]
    for book in machine.ledger.books:
        if book.hides_processes:
            told.append(
                f"device {book.device.index}: its memory is used and the driver lists no process: run"
                " the broker in the host's pid namespace (containers: --pid=host). Until then sizes"
                " are taken from the device's total, while a job is alone there"
            )
        if book.strangers:
            pids = ", ".join(map(str, book.strangers[:8]))
            told.append(
                f"device {book.device.index}: the driver names process {pids}, which does not exist"
                " here: run the broker in the host's pid namespace (containers: --pid=host). Until"
                " then sizes are taken from the device's total, while a job is alone there"
            )
    return told


def _stray_text(machine: Machine, lease: Lease, uuid: str) -> str:
    books = machine.ledger.by_uuid
    given = ", ".join(str(books[u].device.index) for u in lease.uuids if u in books) or "none"
    name = lease.request.label or lease.type
    return (
        f"lease {lease.id} ({name!r}) uses device {books[uuid].device.index}, which it was not"
        f" given (it was given: {given}): does the job set its own CUDA_VISIBLE_DEVICES?"
    )
