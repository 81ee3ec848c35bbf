"""A value in a memory file: how calls and results travel, whatever their size.

Design note. A pipe would need a reader while the body runs, and a result must not be handed out
before its process is gone; so it is written where it can be read later. Large buffers (arrays) are
written once, beside the pickle (protocol 5), and are mapped where they are needed. A mapping in
Python before 3.13 keeps a descriptor for as long as an array of it lives: a caller that collects
many results would run out of them, so there, and only there, it gets a copy.

    0          64      …        …              …
    | header   | head  | pickle | buffer sizes | buffers, each aligned |

Promises: the header is written last; a parcel whose writer died on the way reads as none.
"""

from __future__ import annotations

import mmap
import os
import pickle
import struct
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import IO, Any

    Dump = Callable[[IO[bytes], Callable[[pickle.PickleBuffer], bool]], None]

__all__ = ["Parcel", "create", "read", "write"]

_MAGIC = b"grn call"
_HEADER = struct.Struct("<8sIIQQ")  # magic, kind, buffers, bytes of the head, bytes of the pickle
_HEADER_BYTES = 64
_SIZE = struct.Struct("<Q")
_ALIGNMENT = 64
_WORTH_IT = 4096  # smaller buffers stay in the pickle
_MOST_AT_ONCE = 1 << 30  # Linux transfers at most 2 GiB - 4 KiB in one call


def create(name: str) -> int:
    """Return a new, empty memory file."""
    return os.memfd_create(name, os.MFD_CLOEXEC)


def write(fd: int, kind: int, head: bytes, dump: Dump) -> None:
    """Write a parcel; `dump(file, keep)` pickles into the file, and gives large buffers to `keep`.

    What an earlier attempt has left is overwritten. What `dump` raises passes through.
    """
    os.ftruncate(fd, 0)
    kept: list[memoryview] = []

    def keep(buffer: pickle.PickleBuffer) -> bool:
        raw = buffer.raw()
        if raw.nbytes >= _WORTH_IT:
            kept.append(raw)
        return raw.nbytes < _WORTH_IT

    with open(fd, "wb", closefd=False) as file:
        file.seek(_HEADER_BYTES)
        file.write(head)
        dump(file, keep)
        end = file.tell()
        file.writelines(_SIZE.pack(raw.nbytes) for raw in kept)
    _write_buffers(fd, _buffers_at(end, len(kept)), kept)
    pickled = end - _HEADER_BYTES - len(head)
    os.pwrite(fd, _HEADER.pack(_MAGIC, kind, len(kept), len(head), pickled), 0)


def _write_buffers(fd: int, at: int, kept: list[memoryview]) -> None:
    for raw in kept:
        done = 0
        while done < raw.nbytes:
            done += os.pwrite(fd, raw[done : done + _MOST_AT_ONCE], at + done)
        at = _aligned(at + raw.nbytes)
    if kept:
        os.ftruncate(fd, at)


def _buffers_at(pickle_end: int, count: int) -> int:
    return _aligned(pickle_end + _SIZE.size * count)


def _aligned(offset: int) -> int:
    return -(-offset // _ALIGNMENT) * _ALIGNMENT


class Parcel:
    """What was read: its kind, its head, and a value that can be loaded once."""

    def __init__(self, fd: int, pages: mmap.mmap, header: tuple[int, int, int, int]) -> None:
        self.kind, self._count, head_bytes, self._pickled = header
        self._fd = fd
        self._pages = pages
        self._pickle_at = _HEADER_BYTES + head_bytes
        self.head = pages[_HEADER_BYTES : self._pickle_at]

    def load(self, *, mapped: bool) -> Any:
        """Load the value; `mapped`: its arrays may stay in the file's pages, else they are copied.

        The descriptor may be closed afterwards.
        """
        with memoryview(self._pages) as view:
            end = self._pickle_at + self._pickled
            buffers = [
                view[at : at + size] if mapped else self._copy(at, size)
                for at, size in self._places(end)
            ]
            with view[self._pickle_at : end] as stream:
                value = pickle.loads(stream, buffers=buffers)  # noqa: S301 - from our own process
        if not (mapped and buffers):
            self._pages.close()
        return value

    def _places(self, at: int) -> list[tuple[int, int]]:
        sizes = [
            _SIZE.unpack_from(self._pages, at + index * _SIZE.size)[0]
            for index in range(self._count)
        ]
        places = []
        at = _buffers_at(at, self._count)
        for size in sizes:
            places.append((at, size))
            at = _aligned(at + size)
        return places

    def _copy(self, at: int, size: int) -> bytearray:
        copy = bytearray(size)
        with memoryview(copy) as view:
            done = 0
            while done < size:
                done += os.preadv(self._fd, [view[done : done + _MOST_AT_ONCE]], at + done)
        return copy


def read(fd: int) -> Parcel | None:
    """Return the parcel in a memory file; None if it was not written to its end."""
    if os.fstat(fd).st_size < _HEADER_BYTES:
        return None
    pages = _map(fd)
    magic, *header = _HEADER.unpack_from(pages)
    if magic != _MAGIC:
        pages.close()
        return None
    kind, count, head_bytes, pickled = header
    return Parcel(fd, pages, (kind, count, head_bytes, pickled))


def _map(fd: int) -> mmap.mmap:
    # Private and writable: whoever gets an array may change it, and changes no other's.
    protection = mmap.PROT_READ | mmap.PROT_WRITE
    if sys.version_info >= (3, 13):
        return mmap.mmap(fd, 0, mmap.MAP_PRIVATE, protection, trackfd=False)
    return mmap.mmap(fd, 0, mmap.MAP_PRIVATE, protection)


MAPPING_IS_FREE = sys.version_info >= (3, 13)
"""Whether a mapping keeps no descriptor, so that a result's arrays may stay in it."""
