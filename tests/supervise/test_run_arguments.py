"""The arguments of `grn run`: what is read, and what is said when they make no sense."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from grn.cli.runargs import help_text, parse
from grn.cli.runjobs import build_jobs, shortened
from grn.connection import own_cores
from grn.errors import UsageError

if TYPE_CHECKING:
    from pathlib import Path

    from tests.supervise.grnrun import GrnRun


def refused(*argv: str) -> str:
    """Return what is said about these arguments."""
    with pytest.raises(UsageError) as caught:
        parse(argv)
    assert "\n" not in caught.value.message
    return caught.value.message


def test_all_options_are_read() -> None:
    """Sizes, counts, durations and texts arrive in their units, with = or without."""
    options = parse(
        [
            *("--memory=1.5GiB", "--gpus", "2", "--policy", "pack", "--type=t", "--cpus", "3"),
            *("--ignore-arg", "seed", "--ignore-arg=date", "--priority", "-5", "--ram", "2GiB"),
            *("--env", "A=b=c", "--env", "D=", "--wait", "10m", "--time-limit", "1.5", "--grace=2"),
            *("--leftovers=kill", "--retries-on-oom=2", "--if-unavailable=run", "--label", "x y"),
            *("--devices", "sim:1x1GiB", "--socket=/s", "-q", "--log-dir=d", "--json", "--explain"),
            *("--die-with-parent", "--status-fd=1", "--", "cmd", "--", "-q"),
        ]
    )
    assert (options.memory, options.gpus, options.policy, options.type) == (1536, 2, "pack", "t")
    assert (options.cpus, options.ram, options.priority) == (3, 2048, -5)
    assert options.ignore_args == ["seed", "date"]
    assert options.env == {"A": "b=c", "D": ""}
    assert (options.wait, options.time_limit, options.grace) == (600.0, 1.5, "2")
    assert (options.leftovers, options.retries_on_oom) == ("kill", 2)
    assert (options.if_unavailable, options.label) == ("run", "x y")
    assert (options.devices, options.socket, options.log_dir) == ("sim:1x1GiB", "/s", "d")
    assert options.quiet
    assert options.json
    assert options.explain
    assert options.die_with_parent
    assert options.status_fd == 1
    assert options.words == ["cmd", "--", "-q"]


def test_the_default_is_one_device_and_what_is_learnt() -> None:
    """Nothing has to be said."""
    options = parse(["--", "cmd"])
    assert (options.gpus, options.memory, options.leftovers) == (1, None, "keep")
    assert options.single


def test_options_may_stand_between_quoted_commands() -> None:
    """Known options count wherever they stand before `--`."""
    options = parse(["a b", "--gpus=0", "c d", "-q"])
    assert (options.lines, options.gpus, options.quiet) == (["a b", "c d"], 0, True)
    assert not options.single


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        ([], "no command"),
        (["--"], "no command"),
        (["--", ""], "empty"),
        ([""], "empty command"),
        (["true", " \t"], "empty command"),
        (["--memory"], "--memory needs a value"),
        (["--memory", "--", "x"], "--memory needs a value"),
        (["--memory=lots", "--", "x"], "'lots' is not a size"),
        (["--memory=0", "--", "x"], "zero"),
        (["--memory=-1", "--", "x"], "not a size"),
        (["--memory=1GiB", "--gpus=0", "--", "x"], "no device is asked for"),
        (["--gpus=two", "--", "x"], "--gpus 'two'"),
        (["--cpus=0", "--", "x"], "1 or more"),
        (["--priority=high", "--", "x"], "not a whole number"),
        (["--policy=best", "--", "x"], "spread, pack"),
        (["--leftovers=eat", "--", "x"], "keep, kill, wait"),
        (["--if-unavailable=x", "--", "x"], "run, fail"),
        (["--env=NOVALUE", "--", "x"], "not NAME=VALUE"),
        (["--env==x", "--", "x"], "not NAME=VALUE"),
        (["--wait=soon", "--", "x"], "not a duration"),
        (["--grace=x", "--", "x"], "not a duration"),
        (["--quiet=yes", "--", "x"], "takes no value"),
        (["--mem=1GiB", "--", "x"], "did you mean --memory?"),
        (["--label=x", "a b", "c d"], "--label is for one command"),
        (["a b", "--", "c"], "not both"),
        (["--file=f", "--", "c"], "not both"),
        (["--status-fd=999", "--", "x"], "999>FILE"),
    ],
)
def test_nonsense_is_told_in_one_line(argv: list[str], says: str) -> None:
    """Each mistake is named, with what to write instead."""
    assert says in refused(*argv)


@pytest.mark.parametrize(
    "argv",
    [
        ["python3", "train.py"],
        ["sleep", "5"],
        ["python3", "-c", "pass"],
        ["python3", "train.py", "--lr", "0.1"],
        ["python3", "--version"],
    ],
)
def test_an_unquoted_command_gets_a_hint(
    argv: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bare words that cannot be commands of their own were meant to be one command."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()
    assert f"grn run -- {' '.join(argv[:2])}" in refused(*argv)


def test_programs_of_one_word_are_commands() -> None:
    """`grn run true false` is two commands."""
    assert parse(["true", "false", ":", "/bin/true"]).lines == ["true", "false", ":", "/bin/true"]


def test_the_help_names_every_option_and_status() -> None:
    """What the help says is what the parser knows."""
    text = help_text()
    for word in ("--memory", "--retries-on-oom", "--status-fd", "75", "124", "125", "126", "127"):
        assert word in text
    assert parse(["--help"]).help
    assert parse(["-h", "--file"][:1]).help


def test_a_command_has_one_type_in_all_forms(tmp_path: Path) -> None:
    """As words, as a line, among others and in a file it is the same job; --ignore-arg counts."""
    listed = tmp_path / "jobs"
    listed.write_text("python train.py --seed 3 --lr '0.1'\n")
    forms = [
        ["--", "python", "train.py", "--seed", "3", "--lr", "0.1"],
        ["python train.py --seed 3 --lr 0.1"],
        ["python  train.py --seed=3 --lr '0.1'", "ls -l"],
        [f"--file={listed}"],
    ]
    types = {build_jobs(parse(["--ignore-arg=seed", *form]), {})[0].type for form in forms}
    assert types == {"python train.py --lr 0.1"}


def test_a_file_of_commands_is_read_as_people_write_it(tmp_path: Path) -> None:
    """Comments, blank lines, Windows line ends and a byte-order mark do not matter."""
    listed = tmp_path / "jobs"
    listed.write_bytes(b"\xef\xbb\xbf# all\r\n\r\n  echo one\r\n   # not\r\necho 'two # 2'\r\n")
    jobs = build_jobs(parse([f"--file={listed}", "echo zero"]), {})
    assert [job.command for job in jobs] == ["echo zero", "echo one", "echo 'two # 2'"]
    assert [job.number for job in jobs] == [1, 2, 3]


@pytest.mark.parametrize(
    ("content", "says"),
    [(None, "No such file"), (b"\n# x\n", "no commands"), (b"a\0b\n", "zero byte")],
)
def test_a_file_that_holds_no_commands_is_told(
    tmp_path: Path, content: bytes | None, says: str
) -> None:
    """One line with the file's name."""
    listed = tmp_path / "jobs"
    if content is not None:
        listed.write_bytes(content)
    with pytest.raises(UsageError, match=says) as caught:
        build_jobs(parse([f"--file={listed}"]), {})
    assert str(listed) in caught.value.message


def test_requests_carry_what_was_asked() -> None:
    """The wish goes to the broker as it was written, with our own mask and outer lease."""
    environ = {"CUDA_VISIBLE_DEVICES": "1", "GRN_LEASE": "x-1"}
    job = build_jobs(parse(["--memory=whole", "--cpus=2", "--", "/usr/bin/env", "a"]), environ)[0]
    assert job.request == {
        "type": "/usr/bin/env a",
        "label": "env a",
        "engine": "run",
        "gpus": 1,
        "memory_mib": "whole",
        "policy": None,
        "cpus": 2,
        "ram_mib": None,
        "priority": 0,
        "mask": "1",
        "outer": "x-1",
        "cores": own_cores(),
        "command": "/usr/bin/env a",
    }


def test_bytes_that_are_no_text_can_be_asked_for_and_shown() -> None:
    """A file name that is no UTF-8 must not break the request or the label."""
    word = os.fsdecode(b"data-\xff\x1b[31m")
    job = build_jobs(parse(["--", "cat", word]), {})[0]
    assert job.words == ["cat", word]
    for text in (job.type, job.label, job.request["command"]):
        text.encode()
    assert "\x1b" not in job.label


def test_a_command_is_shortened_to_one_line() -> None:
    """Labels stay short and printable."""
    assert shortened("a\n  b\tc", 10) == "a b c"
    assert shortened("abcdefghijkl", 10) == "abcdefgh.."


def test_a_type_that_is_too_long_is_bad_input(tmp_path: Path) -> None:
    """One line names it, the status is 2, and no broker is needed to say so."""
    done = subprocess.run(
        [sys.executable, "-m", "grn", "run", f"--type={'x' * 65537}", "--", "true"],
        env={**os.environ, "GRN_SOCKET": str(tmp_path / "none")},
        capture_output=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (2, b"")
    assert done.stderr == b"grn run: --type: 65537 characters; at most 65536 are possible\n"


def test_a_type_of_the_greatest_length_is_taken() -> None:
    """The limit itself is within it; a command's own words make a shorter type anyway."""
    assert len(build_jobs(parse([f"--type={'x' * 65536}", "--", "true"]), {})[0].type) == 65536
    assert len(build_jobs(parse(["--", "true", "x" * 90000]), {})[0].type) <= 4096


def test_what_the_broker_calls_bad_input_is_status_2(grn_run: GrnRun) -> None:
    """Also in what it finds in our environment."""
    done = grn_run("--", "true", environ={"GRN_LEASE": "x" * 65537})
    assert done.returncode == 2
    assert done.stderr.startswith(b"grn run: outer: ")
    assert done.stderr.count(b"\n") == 1
