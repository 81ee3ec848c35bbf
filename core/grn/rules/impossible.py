"""What this machine can never give, and why a request finds no room now: in words, with numbers.

Pure text over the books. Whether a device would do is decided in `placing`; here it is only said.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from grn.rules.model import DeviceState, LeaseState
from grn.rules.units import format_mib

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from grn.rules.ledger import Book, Ledger
    from grn.rules.model import Lease, Request
    from grn.rules.placing import Need

__all__ = ["impossible", "wanted", "why_not"]

DEVICES_NAMED = 8


def impossible(ledger: Ledger, request: Request, note: str) -> str | None:
    """Say why no state of the books can meet the request; `None` if one can.

    `note` is why there are no devices, or fewer than a mask names.
    """
    if not ledger.cpus.possible(request.cpus):
        return f"{request.cpus} CPUs asked, this machine offers {ledger.cpus.total}"
    if not ledger.ram.possible(request.ram_mib):
        total = ledger.ram.total or 0
        return f"{request.ram_mib} MiB of RAM asked, this machine offers {total} MiB"
    if not request.gpus:
        return None
    books = ledger.books
    if not books:
        return f"{_devices(request.gpus)} asked, this broker manages none{note}"
    allowed = [b for b in books if request.allowed is None or b.device.uuid in request.allowed]
    few = _too_few(books, allowed, request.gpus, note)
    return few or _too_small(ledger, allowed, request.gpus, request)


def _too_few(books: list[Book], allowed: list[Book], count: int, note: str) -> str | None:
    asked, managed = _devices(count), len(books)
    if len(allowed) < count and len(allowed) < managed:
        return (
            f"{asked} asked, the caller's CUDA_VISIBLE_DEVICES leaves {len(allowed)} of"
            f" {managed} that this broker manages ({_numbers(books)}; one that is"
            f" started by hand keeps to what is visible there){note}"
        )
    if len(allowed) < count:
        return f"{asked} asked, this broker manages {managed}{note}"
    whole = sum(1 for book in allowed if book.device.parent is None)
    if count > 1 and whole < count:
        return (
            f"{asked} asked: a process sees one MIG slice only, so slices do not add up, and"
            f" beside {len(allowed) - whole} of them there are {whole} whole devices"
        )
    return None


def _too_small(ledger: Ledger, allowed: list[Book], count: int, request: Request) -> str | None:
    wish = request.memory_mib
    if count > 1:
        allowed = [book for book in allowed if book.device.parent is None]
    largest = max(book.device.capacity_mib for book in allowed)
    if not largest:
        size = max(book.device.total_mib for book in allowed)
        return (
            f"{_devices(count)} asked, and nothing of any is handed out: headroom and what the driver"
            f" reserves take all of the {size} MiB"
        )
    if wish is None:
        return None
    if wish > largest:
        return (
            f"{wish} MiB ({format_mib(wish)}) per device asked, the largest device offers"
            f" {largest} MiB ({format_mib(largest)})"
        )
    large = sum(1 for book in allowed if book.device.capacity_mib >= wish)
    if large < count:
        return f"{_devices(count)} with {wish} MiB each asked, {large} of that size exist"
    total = ledger.ram.total
    both = wish * count + (request.ram_mib or 0)
    if total is not None and both > total and all(book.ram is not None for book in allowed):
        return f"{both} MiB asked of memory that device and host share, this machine offers {total} MiB"
    return None


def wanted(count: int, needs: list[Need], why_not: list[str]) -> str:
    """Say what a request wants and what each device, in `why_not`, has to say to that."""
    need = needs[0]
    if need.probe:
        what = f"{_devices(count)} alone (first run of this type)"
    elif need.alone:
        what = f"{_devices(count)} alone"
    else:
        what = f"{max(need.mib or 0 for need in needs)} MiB on {_devices(count)}"
    if need.compute:
        what += f" with {need.compute} % of the multiprocessors"
    rest = len(why_not) - DEVICES_NAMED
    more = f"; and {rest} more" if rest > 0 else ""
    return f"{what} wanted; {'; '.join(why_not[:DEVICES_NAMED])}{more}"


def why_not(book: Book, need: Need, leases: Mapping[str, Lease], *, kept: bool) -> str:
    """Say what a device has to offer. `kept`: it would do, but is kept for the head."""
    name = f"device {book.device.index}"
    if book.state is not DeviceState.OK:
        return f"{name}: {book.state}" + (f" ({book.reason})" if book.reason else "")
    if book.alone:
        lease = leases.get(book.alone)
        how = "measured alone" if lease and lease.state is LeaseState.PROBE else "leased whole"
        return f"{name}: {how} by lease {book.alone}"
    text = f"{name}: {book.free_mib} MiB free of {book.device.total_mib}"
    if book.foreign_mib:
        text += f", {book.foreign_mib} used by others"
    if book.bookings:
        text += f", {len(book.bookings)} leased"
    if need.compute:
        text += f", {book.compute_booked} % of its multiprocessors booked"
    return text + (", kept for the request at the head of the queue" if kept else "")


def _numbers(books: Iterable[Book]) -> str:
    numbers = list(dict.fromkeys(book.device.index for book in books))
    said = ", ".join(map(str, numbers[:DEVICES_NAMED]))
    more = ", …" if len(numbers) > DEVICES_NAMED else ""
    return f"device{'s' if len(numbers) > 1 else ''} {said}{more}"


def _devices(count: int) -> str:
    return "1 device" if count == 1 else f"{count} devices"
