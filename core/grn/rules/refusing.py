"""What this machine can never give, said at once and with numbers.

Pure: over the devices as they are described and the totals of the pools, whatever is leased now.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from grn.rules.units import format_mib

if TYPE_CHECKING:
    from collections.abc import Iterable

    from grn.rules.ledger import Book, Ledger
    from grn.rules.model import Request

__all__ = ["DEVICES_NAMED", "Refusals", "devices_text"]

DEVICES_NAMED = 8
"""So many devices are named one by one in a message."""


class Refusals:
    """Says of a request why it can never be met here."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self.renew("")

    def renew(self, note: str) -> None:
        """Take in which devices there are; `note` says why none, or fewer than a mask names."""
        books = self._ledger.books
        self._note = f" ({note})" if note else ""
        self._has_slices = any(book.device.parent is not None for book in books)
        self._shares_ram = any(book.ram is not None for book in books)
        self._smallest_mib = min((book.device.capacity_mib for book in books), default=0)

    def impossible(self, request: Request) -> str | None:
        """Say why this machine can never meet the request, with numbers; `None` if it can."""
        if not self._ledger.cpus.possible(request.cpus):
            total = self._ledger.cpus.total
            return f"{request.cpus} CPUs asked, this machine offers {total}"
        if not self._ledger.ram.possible(request.ram_mib):
            total = self._ledger.ram.total or 0
            return f"{request.ram_mib} MiB of RAM asked, this machine offers {total} MiB"
        if not request.gpus:
            return None
        return self._impossible_devices(request, request.gpus)

    def _impossible_devices(self, request: Request, count: int) -> str | None:
        books = self._ledger.books
        if not books:
            return f"{devices_text(count)} asked, this broker manages none{self._note}"
        wish = request.memory_mib
        if (
            request.allowed is None
            and count <= len(books)
            and (wish or 0) <= self._smallest_mib
            and not self._shares_ram
            and (count == 1 or not self._has_slices)
        ):
            return None  # as nearly always
        allowed = [
            book
            for book in books
            if (request.allowed is None or book.device.uuid in request.allowed)
        ]
        return self._too_few(allowed, count) or self._too_small(allowed, count, request)

    def _too_few(self, allowed: list[Book], count: int) -> str | None:
        asked, managed = devices_text(count), len(self._ledger.books)
        if len(allowed) < count and len(allowed) < managed:
            return (
                f"{asked} asked, the caller's CUDA_VISIBLE_DEVICES leaves {len(allowed)} of"
                f" {managed} that this broker manages ({_numbers(self._ledger.books)}; one that is"
                f" started by hand keeps to what is visible there){self._note}"
            )
        if len(allowed) < count:
            return f"{asked} asked, this broker manages {managed}{self._note}"
        whole = sum(1 for book in allowed if book.device.parent is None)
        if count > 1 and whole < count:
            return (
                f"{asked} asked: a process sees one MIG slice only, so slices do not add up, and"
                f" beside {len(allowed) - whole} of them there are {whole} whole devices"
            )
        return None

    def _too_small(self, allowed: list[Book], count: int, request: Request) -> str | None:
        wish = request.memory_mib
        if wish is None:
            return None
        if count > 1:
            allowed = [book for book in allowed if book.device.parent is None]
        largest = max(book.device.capacity_mib for book in allowed)
        if wish > largest:
            return (
                f"{wish} MiB ({format_mib(wish)}) per device asked, the largest device offers"
                f" {largest} MiB ({format_mib(largest)})"
            )
        large = sum(1 for book in allowed if book.device.capacity_mib >= wish)
        if large < count:
            return f"{devices_text(count)} with {wish} MiB each asked, {large} of that size exist"
        total = self._ledger.ram.total
        both = wish * count + (request.ram_mib or 0)
        if total is not None and both > total and all(book.ram is not None for book in allowed):
            return (
                f"{both} MiB asked of memory that device and host share, this machine offers"
                f" {total} MiB"
            )
        return None


def _numbers(books: Iterable[Book]) -> str:
    numbers = list(dict.fromkeys(book.device.index for book in books))
    said = ", ".join(map(str, numbers[:DEVICES_NAMED]))
    more = ", …" if len(numbers) > DEVICES_NAMED else ""
    return f"device{'s' if len(numbers) > 1 else ''} {said}{more}"


def devices_text(count: int) -> str:
    """Return "1 device", "2 devices" and so on."""
    return "1 device" if count == 1 else f"{count} devices"
