"""What type of job a function is."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest

from grn.errors import UsageError
from grn.rules.functype import function_type, is_cell, is_file, notebook_type, source_type
from grn.rules.jobtype import LONGEST_TYPE
from grn.sources import caller_type, type_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.python.conftest import Scripts

HERE = os.path.realpath(__file__)
SHOW = "print(train.__grn_job__.type)"
TRAIN = f"import grn\n@grn.job\ndef train(): ...\nif __name__ == '__main__': {SHOW}\n"


def plain() -> None:
    """Be a function."""


class Trainer:
    """Has a method."""

    def fit(self) -> None:
        """Be a method."""

    def __call__(self) -> None:
        """Be callable."""


def test_a_function_is_its_file_and_name() -> None:
    """A type reads `FILE::QUALNAME`, with the file's whole path."""
    assert type_of(plain) == f"{HERE}::plain"


def test_methods_nested_functions_and_objects_have_types() -> None:
    """The dotted name tells a method, an inner function and a callable object apart."""

    def inner() -> None:
        """Be inside."""

    here = "test_methods_nested_functions_and_objects_have_types"
    assert type_of(Trainer.fit) == type_of(Trainer().fit) == f"{HERE}::Trainer.fit"
    assert type_of(inner) == f"{HERE}::{here}.<locals>.inner"
    assert type_of(Trainer()) == f"{HERE}::Trainer"
    assert type_of(len) == "<string>::builtins.len"


def test_the_caller_has_a_type() -> None:
    """A lease without a type is named after the function that asks for it."""
    assert caller_type(0) == f"{HERE}::test_the_caller_has_a_type"


def test_one_function_reached_four_ways_is_one_type(scripts: Callable[..., Scripts]) -> None:
    """As `__main__`, by import, by a relative path, and from another folder: the same type."""
    made = scripts(start=False)
    path = made.write(TRAIN, "deep/train.py")
    deep = os.path.dirname(path)
    types = {
        made.python(path).stdout,
        made.python(os.path.join("deep", "train.py")).stdout,
        made.python("-c", f"from train import train; {SHOW}", cwd=deep).stdout,
        made.python("-m", "deep.train").stdout,
        made.python(
            "-c", f"import sys; sys.path.insert(0, 'deep/../deep'); from train import train; {SHOW}"
        ).stdout,
    }
    assert types == {f"{os.path.realpath(path)}::train\n"}


def test_a_symbolic_link_to_a_file_is_the_file(scripts: Callable[..., Scripts]) -> None:
    """Two ways to one file in the file system are one type, too."""
    made = scripts(start=False)
    path = made.write(TRAIN, "train.py")
    os.symlink(path, os.path.join(made.folder, "link.py"))
    assert made.python("link.py").stdout == made.python("train.py").stdout


def test_the_same_name_in_two_files_is_two_types(scripts: Callable[..., Scripts]) -> None:
    """What two people call `train` is not one job."""
    made = scripts(start=False)
    one, two = made.write(TRAIN, "a/train.py"), made.write(TRAIN, "b/train.py")
    assert made.python(one).stdout != made.python(two).stdout


def test_a_lambda_has_no_type() -> None:
    """Lambdas all have one name, so none is taken; what is defined in one is."""
    with pytest.raises(UsageError, match="lambda has no name"):
        function_type("/x.py", "<lambda>")
    with pytest.raises(UsageError, match="lambda has no name"):
        type_of(lambda: None)
    assert function_type("/x.py", "<lambda>.<locals>.f") == "/x.py::<lambda>.<locals>.f"


@pytest.mark.parametrize(
    "source", ["/var/ipykernel_12/345.py", "<ipython-input-3-0a1b>", "In [3]", "Cell In[3], line 1"]
)
def test_cells_are_no_files(source: str) -> None:
    """What a kernel calls a cell's code is another name at each start, so it is none."""
    assert is_cell(source)
    assert not is_file(source)


def test_functions_of_a_notebook_belong_to_it() -> None:
    """With a known notebook it is the file; without one, the folder; neither depends on the cell."""
    assert notebook_type("/w/a.ipynb", "/w", "train") == "/w/a.ipynb::train"
    assert notebook_type("a.ipynb", "/w", "train") == "/w/a.ipynb::train"
    assert notebook_type(None, "/w/", "train") == "/w/<notebook>::train"


def test_a_cell_knows_its_notebook(
    monkeypatch: pytest.MonkeyPatch, tmp_path: os.PathLike[str]
) -> None:
    """Jupyter tells its kernel the notebook's name; the same cell run twice is one type."""
    monkeypatch.setenv("JPY_SESSION_NAME", f"{tmp_path}/a.ipynb")
    types = set()
    for number in (1, 2):
        names: dict[str, Callable[[], None]] = {}
        code = "def train(): ..."
        exec(compile(code, f"/tmp/ipykernel_9/{number}.py", "exec"), names)  # noqa: S102, S108
        types.add(type_of(names["train"]))
    assert types == {f"{tmp_path}/a.ipynb::train"}


def test_what_was_sent_to_a_worker_by_value_keeps_its_file() -> None:
    """Dask's and joblib's pickler takes the file from the code, and leaves it in the global names."""
    names: dict[str, Any] = {"__file__": "/w/a.py", "caller_type": caller_type}
    code = "def train(): return caller_type(0)"
    exec(compile(code, "<dynamic-code>", "exec"), names)  # noqa: S102
    assert type_of(names["train"]) == names["train"]() == "/w/a.py::train"


def test_what_a_magic_of_a_cell_runs_belongs_to_the_notebook(
    monkeypatch: pytest.MonkeyPatch, tmp_path: os.PathLike[str]
) -> None:
    """`%%time` compiles the cell under a name of its own."""
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"get_ipython": None}
    exec(compile("def train(): ...", "<timed exec>", "exec"), names)  # noqa: S102
    assert type_of(names["train"]) == f"{os.path.realpath(tmp_path)}/<notebook>::train"


def test_what_was_typed_in_is_told_by_its_name() -> None:
    """Code of no file has a type, too."""
    assert source_type("train") == "<string>::train"


def test_types_fit_the_wire() -> None:
    """A type is UTF-8 and bounded, and different functions still differ."""
    assert function_type("/\udcff.py", "f").encode() == rb"/\udcff.py::f"
    long = ["/" + "a" * 5000 + f"{i}.py" for i in (1, 2)]
    types = [function_type(path, "f") for path in long]
    assert types[0] != types[1]
    assert all(len(name) <= LONGEST_TYPE for name in types)
