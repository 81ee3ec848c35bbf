"""Where the socket and the state live, and which places are refused."""

from __future__ import annotations

import os
import socket
import stat
from typing import TYPE_CHECKING

import pytest

from grn import paths
from grn.errors import PathError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture(autouse=True)
def no_system_broker(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Whatever this machine has in /run and /tmp is left out."""
    monkeypatch.setattr(paths, "SYSTEM_SOCKET", str(tmp_path / "none" / "broker.sock"))
    (tmp_path / "t").mkdir()
    monkeypatch.setattr(paths, "_SHORT_ROOT", str(tmp_path / "t"))


@pytest.fixture(params=[0o000, 0o022, 0o077, 0o777], ids="umask-{:03o}".format)
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    """Run under a umask."""
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def mode(path: str) -> int:
    """Return the permission bits."""
    return stat.S_IMODE(os.lstat(path).st_mode)


def of_bytes(folder: Path, size: int) -> str:
    """Build a path of exactly this many bytes."""
    return f"{folder}/".ljust(size - 5, "x") + ".sock"


def test_the_variable_comes_first_and_is_used_as_it_is(tmp_path: Path) -> None:
    """$GRN_SOCKET outranks every other place."""
    environ = {"GRN_SOCKET": "/some/where.sock", "XDG_RUNTIME_DIR": str(tmp_path)}
    assert paths.socket_path(environ) == "/some/where.sock"


def test_an_explicit_path_outranks_the_variable() -> None:
    """What the command line says is stronger than the environment."""
    assert paths.socket_path({"GRN_SOCKET": "/a.sock"}, "/b.sock") == "/b.sock"


def test_a_relative_path_means_the_same_for_a_broker_in_another_folder() -> None:
    """A relative path is made absolute, since a broker works elsewhere."""
    assert paths.socket_path({"GRN_SOCKET": "a.sock"}) == f"{os.getcwd()}/a.sock"


def test_a_system_broker_comes_before_the_own_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The machine's broker is used where its socket exists; a mere file there is none."""
    place = tmp_path / "broker.sock"
    monkeypatch.setattr(paths, "SYSTEM_SOCKET", str(place))
    place.touch()
    environ = {"XDG_RUNTIME_DIR": str(tmp_path)}
    assert paths.socket_path(environ) == f"{tmp_path}/grn/broker.sock"
    place.unlink()
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(place))
        assert paths.socket_path(environ) == str(place)


def test_the_temp_folder_serves_where_there_is_no_runtime_folder(tmp_path: Path) -> None:
    """Without a usable runtime folder the socket is in a folder of ours in the temp folder."""
    expected = f"{tmp_path}/grn-{os.geteuid()}/broker.sock"
    for runtime in ("", "relative", str(tmp_path / "missing")):
        environ = {"XDG_RUNTIME_DIR": runtime, "TMPDIR": str(tmp_path)}
        assert paths.socket_path(environ) == expected


def test_another_users_runtime_folder_is_not_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After `su` the variable still names the other user's folder, which is left alone."""
    monkeypatch.setattr(os, "getuid", lambda: 12345)
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    environ = {"XDG_RUNTIME_DIR": str(tmp_path), "TMPDIR": str(tmp_path)}
    assert paths.socket_path(environ) == f"{tmp_path}/grn-12345/broker.sock"


def test_a_path_of_107_bytes_is_used_and_binds(tmp_path: Path) -> None:
    """The longest path that the kernel takes is not shortened."""
    wanted = of_bytes(tmp_path, 107)
    assert paths.socket_path({"GRN_SOCKET": wanted}) == wanted
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(wanted)
    assert os.path.exists(wanted)


@pytest.mark.parametrize("size", [108, 130, 1000])
def test_a_longer_path_gets_a_short_one_that_is_always_the_same(tmp_path: Path, size: int) -> None:
    """Broker and client, given the same environment, find each other at a short path that binds."""
    environ = {"GRN_SOCKET": of_bytes(tmp_path, size)}
    short = paths.socket_path(environ)
    assert short == paths.socket_path(dict(environ))
    assert short.startswith(f"{tmp_path}/t/grn-{os.geteuid()}/")
    paths.prepare_folder(short, environ)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(short)
    assert short != paths.socket_path({"GRN_SOCKET": environ["GRN_SOCKET"] + "2"})


def test_bytes_count_not_characters(tmp_path: Path) -> None:
    """A path of 100 characters, ten of them two bytes long, is too long."""
    wanted = of_bytes(tmp_path, 90)[:-5] + "é" * 10 + ".sock"
    assert len(wanted) == 100
    assert len(os.fsencode(paths.socket_path({"GRN_SOCKET": wanted}))) <= 107
    assert paths.socket_path({"GRN_SOCKET": wanted}) != wanted


def test_a_runtime_folder_that_is_too_deep_is_shortened_as_well(tmp_path: Path) -> None:
    """The limit holds wherever the path came from."""
    deep = tmp_path / ("d" * 100)
    deep.mkdir()
    short = paths.socket_path({"XDG_RUNTIME_DIR": str(deep)})
    assert short.startswith(f"{tmp_path}/t/")


def test_when_even_the_short_path_is_too_long_the_error_has_the_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error names the path, its length and the limit; no path is ever cut off."""
    monkeypatch.setattr(paths, "_SHORT_ROOT", "/" + "t" * 100)
    wanted = of_bytes(tmp_path, 130)
    with pytest.raises(PathError, match=r"130 bytes, the limit is 107") as caught:
        paths.socket_path({"GRN_SOCKET": wanted})
    assert wanted in caught.value.message


def test_a_strangers_folder_in_the_temp_folder_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder that another user planted is never trusted, and the message names the cure."""
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    (tmp_path / "grn-12345").mkdir()
    with pytest.raises(PathError, match=r"belongs to uid \d+, not to you .*set GRN_SOCKET"):
        paths.socket_path({"TMPDIR": str(tmp_path)})


def test_a_private_folder_is_0700_whatever_the_umask(tmp_path: Path, umask: int) -> None:
    """Neither an open nor a closed umask changes the mode, of missing parents either."""
    assert umask >= 0
    folder = str(tmp_path / "a" / "b")
    paths.private_dir(folder)
    assert (mode(folder), mode(os.path.dirname(folder))) == (0o700, 0o700)


def test_an_own_folder_that_is_open_to_others_is_closed(tmp_path: Path) -> None:
    """A private folder of ours with another mode is repaired."""
    tmp_path.chmod(0o755)
    paths.private_dir(str(tmp_path))
    assert mode(str(tmp_path)) == 0o700


def test_a_symlink_is_no_private_folder(tmp_path: Path) -> None:
    """A symlink could lead anywhere later, so it is refused and its target left alone."""
    target = tmp_path / "target"
    target.mkdir(0o755)
    link = tmp_path / "link"
    link.symlink_to(target)
    with pytest.raises(PathError, match="is a symlink"):
        paths.private_dir(str(link))
    assert mode(str(target)) == 0o755


def test_a_file_is_no_private_folder(tmp_path: Path) -> None:
    """A file in the folder's place is named and not touched."""
    (tmp_path / "f").write_text("mine")
    with pytest.raises(PathError, match="is a file"):
        paths.private_dir(str(tmp_path / "f"))
    assert (tmp_path / "f").read_text() == "mine"


def test_a_folder_that_cannot_be_made_says_so(tmp_path: Path) -> None:
    """The system's reason is in the message."""
    (tmp_path / "f").touch()
    with pytest.raises(PathError, match="Not a directory"):
        paths.private_dir(str(tmp_path / "f" / "g"))


def test_the_users_own_folder_keeps_its_mode(tmp_path: Path) -> None:
    """A socket in an existing folder that the user chose does not close that folder to others."""
    tmp_path.chmod(0o755)
    paths.prepare_folder(str(tmp_path / "my.sock"), {"GRN_SOCKET": str(tmp_path / "my.sock")})
    assert mode(str(tmp_path)) == 0o755


def test_a_missing_folder_for_the_users_socket_is_made_private(tmp_path: Path) -> None:
    """Where the chosen folder does not exist, it is made, for its user alone."""
    paths.prepare_folder(str(tmp_path / "new" / "my.sock"), {})
    assert mode(str(tmp_path / "new")) == 0o700


def test_the_default_folder_is_made_private(tmp_path: Path, umask: int) -> None:
    """The folder of a default socket is 0700 whatever the umask."""
    assert umask >= 0
    environ = {"XDG_RUNTIME_DIR": str(tmp_path)}
    paths.prepare_folder(paths.socket_path(environ), environ)
    assert mode(str(tmp_path / "grn")) == 0o700


def test_a_socket_place_holds_a_socket_or_nothing(tmp_path: Path) -> None:
    """Nothing is False, a socket is True."""
    place = str(tmp_path / "s")
    assert not paths.check_socket_place(place)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(place)
        assert paths.check_socket_place(place)


@pytest.mark.parametrize("kind", ["file", "folder", "symlink"])
def test_anything_else_in_the_sockets_place_is_refused(tmp_path: Path, kind: str) -> None:
    """A file, a folder or a symlink is named in the error and stays."""
    place = tmp_path / "s"
    if kind == "file":
        place.touch()
    elif kind == "folder":
        place.mkdir()
    else:
        place.symlink_to("x")
    with pytest.raises(PathError, match=rf"is a {kind}, not a socket, and was not touched"):
        paths.check_socket_place(str(place))
    assert place.is_symlink() or place.exists()


def test_the_files_beside_a_socket_carry_its_name() -> None:
    """Lock, spawn lock, journal and log stand beside the socket."""
    beside = paths.beside("/r/b.sock")
    assert [beside.lock, beside.spawn_lock, beside.journal, beside.log] == [
        "/r/b.sock.lock", "/r/b.sock.spawn.lock", "/r/b.sock.journal", "/r/b.sock.log",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({"GRN_STATE_DIR": "/s", "XDG_STATE_HOME": "/x", "HOME": "/h"}, "/s"),
        ({"XDG_STATE_HOME": "/x", "HOME": "/h"}, "/x/grn"),
        ({"XDG_STATE_HOME": "relative", "HOME": "/h"}, "/h/.local/state/grn"),
        ({"HOME": "/h"}, "/h/.local/state/grn"),
    ],
)
def test_the_state_folder_follows_the_usual_order(environ: dict[str, str], expected: str) -> None:
    """The variable, then the XDG folder, then the one in the home folder."""
    assert paths.state_dir(environ) == expected
