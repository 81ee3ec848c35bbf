"""The name under which a command's memory need is learnt."""

from __future__ import annotations

import shlex
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grn.rules.jobtype import LONGEST_TYPE, command_type, shell_command_type, varying_args


@given(st.lists(st.text(max_size=8), min_size=1, max_size=6))
def test_words_and_their_shell_line_are_one_type(words: list[str]) -> None:
    """The same command has one type, given as words or as a quoted line."""
    assert shell_command_type(shlex.join(words)) == command_type(words)


@given(st.lists(st.text(alphabet=st.characters(codec="utf-8"), max_size=8), min_size=1, max_size=6))
def test_different_words_are_different_types(words: list[str]) -> None:
    """A type can be split back into the words that it names."""
    assert shlex.split(command_type(words)) == words


def test_quotes_of_a_line_do_not_make_another_type() -> None:
    """What the shell takes away does not count."""
    assert shell_command_type("""python  show.py "a b" 'c'""") == "python show.py 'a b' c"
    assert command_type(["python", "show.py", "a b", "c"]) == "python show.py 'a b' c"


def test_another_batch_size_is_another_type() -> None:
    """Arguments that were not declared irrelevant stay in the name."""
    assert command_type(["train.py"]) != command_type(["train.py", "--maxbatchsize", "1"])


@pytest.mark.parametrize("name", ["seed", "--seed", "-seed"])
@pytest.mark.parametrize(
    "words",
    [
        ["train.py", "--seed", "3", "--lr", "1"],
        ["train.py", "--seed=3", "--lr", "1"],
        ["train.py", "--seed", "-3", "--lr", "1"],
        ["train.py", "--lr", "1", "--seed"],
        ["train.py", "seed=3", "--lr", "1"],
        ["train.py", "--seed", "--lr", "1"],
    ],
)
def test_an_ignored_option_leaves_with_its_value(name: str, words: list[str]) -> None:
    """An option declared irrelevant does not make another type, however it is written."""
    assert command_type(words, [name]) == "train.py --lr 1"


def test_options_are_ignored_in_a_shell_line_too() -> None:
    """Both forms of a command ignore the same options."""
    line = "python train.py --date 0105-101010 --seed 3 --lr 1"
    assert shell_command_type(line, ["seed", "date"]) == "python train.py --lr 1"


def test_a_name_must_fit_in_full() -> None:
    """Ignoring `seed` leaves `--seed-file` and a word `seed` alone."""
    words = ["train.py", "--seed-file", "a", "seed", "--", "http://x/?seed=1"]
    assert command_type(words, ["seed"]) == command_type(words)


@pytest.mark.parametrize("ignored", [[""], ["-"], ["--"]])
def test_an_empty_name_ignores_nothing(ignored: list[str]) -> None:
    """A name that is only dashes is no name."""
    assert command_type(["run", "--", "-", "x"], ignored) == "run -- - x"


def test_ignoring_every_word_ignores_none() -> None:
    """A command always has a type."""
    assert command_type(["--seed", "3"], ["seed"]) == "--seed 3"


def test_a_line_that_cannot_be_split_is_its_own_type() -> None:
    """An open quote is the shell's to report; the type is the text."""
    assert shell_command_type("  echo 'oops \n") == "echo 'oops"


def test_a_type_can_always_be_sent() -> None:
    """Bytes that are not UTF-8 become visible escapes."""
    assert command_type(["cat", "a\udcc0b"]) == "cat 'a\\udcc0b'"


def test_an_endless_command_has_a_bounded_type() -> None:
    """Long commands stay different types within the limit."""
    one = command_type(["cat", "x" * 50_000, "1"])
    other = command_type(["cat", "x" * 50_000, "2"])
    assert len(one) == LONGEST_TYPE
    assert one != other


def test_the_options_that_make_a_sweep_are_named() -> None:
    """Options with differing values are found, in order and without their dashes."""
    sweep = [["train.py", "--date", f"0105-{k}", "--lr", "1", f"--seed={k}"] for k in range(8)]
    assert varying_args(sweep) == ["date", "seed"]


def test_bare_assignments_vary_too() -> None:
    """`name=value` words are options as well."""
    assert varying_args([["t.py", "a.seed=1", "x"], ["t.py", "a.seed=2", "x"]]) == ["a.seed"]


def test_commands_that_differ_otherwise_have_no_advice() -> None:
    """Two programs, or one with another input, are not a sweep of an option."""
    assert varying_args([["a.py", "--seed", "1"], ["b.py", "--seed", "2"]]) == []
    assert varying_args([["a.py", "x", "--seed", "1"], ["a.py", "y", "--seed", "2"]]) == []
    assert varying_args([["get", "http://x/?a=1"], ["get", "http://x/?a=2"]]) == []
    assert varying_args([["a.py", "--fast"], ["a.py", "--fast", "x"]]) == []
    assert varying_args([["a.py", "--seed", "1"], ["a.py", "--seed", "1"]]) == []
    assert varying_args([]) == []


@given(
    st.lists(
        st.lists(st.sampled_from(["a", "-a", "-b", "--c=1", "c=2", "-1", "--", "-"]), max_size=6)
    )
)
def test_any_list_of_commands_is_taken(commands: list[list[str]]) -> None:
    """The advice never fails on odd commands."""
    assert set(varying_args(commands)) <= {"a", "b", "c", "1"}


@given(st.integers(), st.integers())
def test_the_advice_works(one: int, other: int) -> None:
    """Ignoring the options that were named makes the commands one type."""
    commands = [["t.py", "--seed", str(k), f"--date={k}", "--lr", "1"] for k in (one, other)]
    names = varying_args(commands)
    assert len({command_type(words, names) for words in commands}) == 1


def test_words_need_no_heavy_module() -> None:
    """Naming the type of a command given as words keeps the start of a job light."""
    code = (
        "import sys; from grn.rules.jobtype import command_type; command_type(['a b'], ['seed'])\n"
        "print(sorted({'shlex', 'hashlib', 're', 'typing'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-S", "-c", f"import sys; sys.path[:0] = {sys.path!r}; {code}"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == "[]"
