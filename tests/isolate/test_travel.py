"""What travels between the processes: large things, and things of scripts and odd modules."""

from __future__ import annotations

import array
import os
import pickle
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest

from grn.isolate import ForkServer, Unpicklable, parcel
from tests.isolate import bodies

if TYPE_CHECKING:
    from pathlib import Path

    from tests.isolate.conftest import Scripts

BIG = 100 * 1024 * 1024


class Tensor:
    """A large thing that pickles as numpy's arrays do: its buffer goes out of band."""

    def __init__(self, data: Any) -> None:
        self.data = data

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        return Tensor, (pickle.PickleBuffer(self.data),)


@pytest.mark.parametrize("make", [bytes, bytearray, lambda data: array.array("B", data)])
def test_large_things_travel(server: ForkServer, env: dict[str, str], make: Any) -> None:
    """Arguments and results of many megabytes arrive whole."""
    data = make(os.urandom(1024) * (10 * 1024))
    assert server.run(bodies.echo, (data,), env=env).result() == ((data,), {})


def test_a_result_beside_the_pickle_can_be_changed_and_costs_no_descriptor(
    server: ForkServer, env: dict[str, str]
) -> None:
    """A large buffer of a result is the caller's own, and is kept without a descriptor."""
    child = server.run(lambda: Tensor(bytearray(b"x") * BIG), env=env)
    result = child.result()
    child.close()
    view = memoryview(result.data)
    assert (view.nbytes, bytes(view[-2:])) == (BIG, b"xx")
    view[0] = 0
    assert not [name for name in bodies.open_files().values() if "grn-result" in name]


def test_a_change_to_an_argument_stays_in_the_body(server: ForkServer, env: dict[str, str]) -> None:
    """A body may change a large argument that it was given; the caller's stays as it was."""
    tensor = Tensor(bytearray(10_000))

    def change(tensor: Tensor) -> int:
        tensor.data[0] = 9
        return int(memoryview(tensor.data)[0])

    assert server.run(change, (tensor,), env=env).result() == 9
    assert tensor.data[0] == 0


def test_a_parcel_cut_short_reads_as_none() -> None:
    """What a dying writer has left is no result."""

    def fail(file: Any, _: Any) -> None:
        file.write(b"x" * 1000)
        raise ValueError

    fd = parcel.create("test")
    with pytest.raises(ValueError):  # noqa: PT011 - our own
        parcel.write(fd, 1, b"", fail)
    assert parcel.read(fd) is None
    os.close(fd)


def test_functions_of_a_module_that_no_import_finds_travel(
    server: ForkServer, env: dict[str, str]
) -> None:
    """An engine may have loaded a file under a name of its own: its functions travel by value."""
    module = ModuleType("a_name_of_its_own")
    module.__file__ = "/somewhere/flow.py"
    exec("def double(x):\n    return helper(x)\ndef helper(x):\n    return 2 * x", module.__dict__)  # noqa: S102
    sys.modules[module.__name__] = module
    try:
        assert server.run(module.double, (4,), env=env).result() == 8
    finally:
        del sys.modules[module.__name__]


def test_a_module_that_came_after_the_server_is_found(
    server: ForkServer, env: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A function travels by name if the body's own import finds its module, new as it may be."""
    server.warm_up()
    (tmp_path / "new_module.py").write_text("import os\ndef where(): return __name__, os.getpid()")
    monkeypatch.syspath_prepend(str(tmp_path))
    import new_module  # type: ignore[import-not-found]

    child = server.run(new_module.where, env=env)
    assert child.result() == ("new_module", child.pid)


def test_a_module_that_fails_to_import_there_is_told(
    server: ForkServer, env: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A module that cannot be imported in the body fails as an argument, with its own error."""
    (tmp_path / "shy.py").write_text(
        "import os\nif 'SHY' in os.environ: raise OSError('shy')\ndef fn(): pass"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    import shy  # type: ignore[import-not-found]

    with pytest.raises(Unpicklable, match="OSError: shy"):
        server.run(shy.fn, env={**env, "SHY": "1"}).result()


SCRIPT = """
import os, sys
from dataclasses import dataclass
from grn.isolate import ForkServer

LIMIT = 10

@dataclass
class Point:
    x: int
    def double(self):
        return Point(helper(self.x))

class Own(Exception):
    def __init__(self, a, b):
        super().__init__(a)
        self.b = b

def helper(x):
    return min(2 * x, LIMIT)

def body(point):
    if point.x < 0:
        raise Own("negative", point)
    return point.double()

def local():
    class Hidden:
        value = 1
    return Hidden

def pooled():
    import multiprocessing
    with multiprocessing.get_context("fork").Pool(2) as pool:
        return pool.map(helper, [1, 2, 30])

server = ForkServer.shared()
run = lambda fn, *args: server.run(fn, args, env=os.environ).result()
before = Point.double
print(type(run(body, Point(4))) is Point, run(body, Point(40)))
try:
    run(body, Point(-1))
except Own as error:
    print(error, error.b, type(error.b) is Point)
Hidden = local()
print(type(run(lambda cls: cls(), Hidden)) is Hidden, run(lambda: Hidden) is Hidden)
print(run(pooled), Point.double is before)
print(run(lambda: (sys.modules["__main__"].__file__, sys.argv[1:])) == (__file__, ["arg"]))
"""


def test_scripts_need_no_guard(script: Scripts) -> None:
    """Functions and classes of a script work as they are, and come back as the script's own."""
    out, err = script(SCRIPT, "arg").communicate(timeout=60)
    assert err == ""
    assert out.splitlines() == [
        "True Point(x=10)",
        "negative Point(x=-1) True",
        "True True",
        "[2, 4, 10] True",
        "True",
    ]


SPAWNING = """
import multiprocessing, os
from grn.isolate import ForkServer

def square(x):
    return x * x

def pooled():
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.map(square, [1, 2, 3])

{guard}
    print(ForkServer.shared().run(pooled, env=os.environ).result())
"""


def test_spawning_in_a_body_works_with_a_guard(script: Scripts) -> None:
    """A script that multiprocessing may import again may spawn from a body."""
    run = script(SPAWNING.format(guard='if __name__ == "__main__":'))
    assert run.communicate(timeout=60) == ("[1, 4, 9]\n", "")


def test_a_script_that_is_imported_again_calls_nothing(script: Scripts) -> None:
    """Without a guard, a spawned process that imports the script is told to have one."""
    text = """
import multiprocessing, os
from grn.isolate import ForkServer
def nothing(): pass
ForkServer.shared().run(nothing, env=os.environ).result()
multiprocessing.get_context("spawn").Process(target=nothing).start()
"""
    _, err = script(text).communicate(timeout=60)
    assert "CannotStart" in err
    assert 'if __name__ == "__main__":' in err
