"""The kernel's word that a name leads elsewhere, and its silence about everything else."""

from __future__ import annotations

import os
import select
import socket
from typing import TYPE_CHECKING

import pytest

from grn.broker.namewatch import NameWatch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


@pytest.fixture
def folder(tmp_path: Path) -> str:
    """Make a folder with a bound socket and a file that is held open."""
    inner = tmp_path / "above" / "inner"
    inner.mkdir(parents=True)
    return str(inner)


@pytest.fixture
def watch(folder: str) -> Iterator[NameWatch]:
    """Watch the two."""
    with (
        socket.socket(socket.AF_UNIX) as listener,
        open(f"{folder}/file", "w", encoding="ascii"),
    ):
        listener.bind(f"{folder}/sock")
        listener.listen()
        made = NameWatch()
        made.renew(files(folder), folder, awaited=False)
        yield made
        made.close()


def files(folder: str) -> list[str]:
    """Name the watched files."""
    return [f"{folder}/sock", f"{folder}/file", f"{folder}/not-there"]


def told(watch: NameWatch, within_s: float = 5.0) -> bool:
    """Whether something is told; it is told before the system call that does it returns."""
    return bool(select.select([watch], [], [], within_s)[0])


CHANGES: dict[str, Callable[[str], None]] = {
    "socket removed": lambda folder: os.unlink(f"{folder}/sock"),
    "socket renamed": lambda folder: os.rename(f"{folder}/sock", f"{folder}/x"),
    "open file removed": lambda folder: os.unlink(f"{folder}/file"),
    "file replaced": lambda folder: os.rename(f"{folder}/sock", f"{folder}/file"),
    "folder renamed": lambda folder: os.rename(folder, f"{folder}2"),
    "folder above renamed": lambda folder: os.rename(
        os.path.dirname(folder), f"{os.path.dirname(folder)}2"
    ),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
def test_a_name_that_leads_elsewhere_is_told(
    watch: NameWatch, folder: str, change: Callable[[str], None]
) -> None:
    """Whatever takes the name away, and only once."""
    assert not told(watch, 0)
    change(folder)
    assert told(watch)
    watch.drain()
    assert not told(watch, 0)


def test_everything_else_is_silent(watch: NameWatch, folder: str) -> None:
    """Clients, writes, and other files in the folder wake nobody."""
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(f"{folder}/sock")
    with open(f"{folder}/file", "a", encoding="ascii") as file:
        file.write("x")
    os.rename(_made(f"{folder}/other"), f"{folder}/another")
    os.unlink(f"{folder}/another")
    assert not told(watch, 0)


def test_what_is_awaited_is_told(watch: NameWatch, folder: str) -> None:
    """Where names are missing, the last folder that exists tells what is made in it."""
    missing = f"{folder}/deep/deeper"
    watch.renew([f"{missing}/sock"], missing, awaited=True)
    _made(f"{folder}/file2")
    assert told(watch)
    watch.renew([f"{missing}/sock"], missing, awaited=False)
    assert not told(watch, 0)
    _made(f"{folder}/file3")
    assert not told(watch, 0)


def test_what_a_name_led_to_before_is_forgotten(watch: NameWatch, folder: str) -> None:
    """After a renewal only the new file matters."""
    os.rename(f"{folder}/file", f"{folder}/old")
    _made(f"{folder}/file")
    watch.renew(files(folder), folder, awaited=False)
    os.unlink(f"{folder}/old")
    assert not told(watch, 0)
    os.unlink(f"{folder}/file")
    assert told(watch)


def _made(path: str) -> str:
    with open(path, "w", encoding="ascii"):
        return path
