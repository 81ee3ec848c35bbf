"""Patterns of rules: by what names a command is known."""

from __future__ import annotations

import pytest

from grn.rules.commands import first_match, names, split_line


def matches(pattern: str, words: str) -> bool:
    """Tell whether a pattern matches a command given as words."""
    return first_match([pattern], names([words.split(" ")])) == pattern


@pytest.mark.parametrize(
    ("words", "script"),
    [
        ("python train.py --seed 1", "train.py"),
        ("python3.12 -u /a/b/train.py --seed 1", "train.py"),
        ("/usr/bin/python3 -X dev -W ignore -Wonce train.py", "train.py"),
        ("python -uO -- train.py", "train.py"),
        ("python -m pkg.train --big", "pkg.train"),
        ("python -Im pkg.train", "pkg.train"),
        ("pypy3 train.py", "train.py"),
        ("./train.py --seed 1", "train.py"),
        ("bash run.sh", "run.sh"),
        ("bash -e run.sh a", "run.sh"),
        ("bash -euo pipefail scripts/run.sh a", "run.sh"),
        ("sh -o errexit +x run.sh", "run.sh"),
        ("perl -w count.pl", "count.pl"),
        ("Rscript --vanilla fit.R 3", "fit.R"),
        ("julia -t 4 --project=. fit.jl", "fit.jl"),
        ("node --require x.js main.js", "main.js"),
        ("torchrun --nproc-per-node 2 src/train.py --lr 1", "train.py"),
        ("torchrun --nproc-per-node 2 -m pkg.train", "pkg.train"),
        ("accelerate launch --config_file c.yaml train.py", "train.py"),
        ("python -m torch.distributed.run --nnodes 1 train.py", "train.py"),
        ("uv run --with numpy python -u train.py", "train.py"),
        ("env A=1 B=2 python train.py", "train.py"),
        ("nice -n 5 env python3 -m pkg.train", "pkg.train"),
        ("numactl -m 0 python train.py", "train.py"),
    ],
)
def test_a_script_is_found(words: str, script: str) -> None:
    """A pattern of the script's name matches, however it is started, with or without arguments."""
    assert matches(script, words)
    assert matches(f"{script}*", words)
    assert matches(f"*{words[-4:]}", words)


@pytest.mark.parametrize(
    ("pattern", "words"),
    [
        ("python", "python train.py"),
        ("python*", "/opt/python3 train.py"),
        ("/opt/python3", "/opt/python3 train.py"),
        ("src/train.py*", "python src/train.py --a"),
        ("train.py --seed*", "python src/train.py --seed 1"),
        ("train.py --seed 1", "python src/train.py --seed 1"),
        ("*--seed 1*", "python src/train.py --seed 1 --lr 2"),
        ("python -m pkg.*", "python -m pkg.train"),
        ("[ct]rain.p?", "python train.py"),
        ("*", "anything"),
    ],
)
def test_what_else_a_pattern_may_name(pattern: str, words: str) -> None:
    """The program, paths as written, arguments, and the whole."""
    assert matches(pattern, words)


@pytest.mark.parametrize(
    ("pattern", "words"),
    [
        ("train.py", "python pretrain.py"),
        ("train.py", "python prepare.py --code train.py"),
        ("Train.py", "python train.py"),
        ("rain.py*", "python train.py"),
        ("train.py --lr*", "python train.py --seed 1 --lr 2"),
        ("train.py", "python -c train.py"),
        ("train.py", "bash -lc train.py"),
        ("train.py", "cat train.py"),
        ("pkg.train", "python -m"),
        ("x.pl", "perl -ne x.pl"),
    ],
)
def test_what_a_pattern_does_not_match(pattern: str, words: str) -> None:
    """Parts of names, later arguments, other cases and code are not the name of a command."""
    assert not matches(pattern, words)


@pytest.mark.parametrize(
    "line",
    [
        "python train.py --seed 1 > log",
        "A=1 B='x y' python train.py",
        "cd exp && python train.py",
        "cd exp; python train.py | tee log",
        "exec python3 train.py",
        ". venv/bin/activate && ./train.py &",
    ],
)
def test_each_command_of_a_shell_line_counts(line: str) -> None:
    """A line may go somewhere first, set variables, or pipe."""
    texts = names(split_line(line))
    assert first_match(["train.py*"], texts)
    assert first_match(["train.py"], texts)


def test_an_open_quote_is_matched_as_it_is() -> None:
    """The shell will say what is wrong with it."""
    assert first_match(["echo*"], names(split_line("echo 'x "))) == "echo*"


@pytest.mark.parametrize("words", [[""], ["python"], ["A=1"], ["env"], ["x\udcff", "a\nb"]])
def test_any_command_has_names(words: list[str]) -> None:
    """Whatever is started can be matched by `*`."""
    assert first_match(["*"], names([words])) == "*"


def test_the_first_pattern_that_matches_is_named() -> None:
    """Of a list of patterns the first counts."""
    assert first_match(["x*", "tr*", "train*"], names([["train"]])) == "tr*"
    assert first_match(["x"], names([["train"]])) is None
