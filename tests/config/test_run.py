"""`grn run` with flavors and rules, on simulated devices."""

from __future__ import annotations

import json
import os
import shlex
import sys
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.config.conftest import Place

SMALL = '[flavors.small]\nmemory = "1000MiB"\nenv = { A = "flavor", B = "flavor" }\n'
PRINT = "import os; print(*(os.environ.get(n) for n in ('A', 'B', 'GRN_MEM_MIB')))"


def printed(*argv: str) -> str:
    """Return a script line that runs a script which prints A, B and the booking."""
    return shlex.join([sys.executable, *argv])


def jobs_of(text: str) -> list[dict[str, Any]]:
    """Return the jobs of `--json`."""
    found: list[dict[str, Any]] = json.loads(text)["jobs"]
    return found


def test_a_flavor_gives_size_and_variables(served: Place) -> None:
    """The job is booked as the flavor says and has its variables; an edit changes the next run."""
    served.write_project(SMALL)
    command = ("--", sys.executable, "-c", PRINT)
    done = served.grn("run", "--flavor", "small", *command)
    assert (done.returncode, done.stdout) == (0, "flavor flavor 1000\n"), done.stderr
    served.write_project(SMALL.replace("1000MiB", "2000MiB"))
    assert served.grn("run", "--flavor=small", *command).stdout == "flavor flavor 2000\n"


def test_options_win_over_the_flavor(served: Place) -> None:
    """Key by key, and variable by variable; memory goes with its device."""
    served.write_project(SMALL)
    own = ("run", "--flavor=small", "--memory=3000MiB", "--env", "A=mine")
    done = served.grn(*own, "--", sys.executable, "-c", PRINT)
    assert (done.returncode, done.stdout) == (0, "mine flavor 3000\n"), done.stderr
    done = served.grn("run", "--flavor=small", "--gpus=0", "--", sys.executable, "-c", PRINT)
    assert (done.returncode, done.stdout) == (0, "flavor flavor 0\n"), done.stderr


def test_an_unknown_flavor_is_a_usage_error(place: Place) -> None:
    """What there is and where is said, in one line, and no broker is started for it."""
    done = place.grn("run", "--flavor=big", "--", "true")
    assert done.returncode == 2
    assert "none is defined" in done.stderr
    path = place.write_project(SMALL)
    done = place.grn("run", "--flavor=big", "--", "true")
    assert done.returncode == 2
    assert done.stderr == f"grn run: there is no flavor 'big'; {path} has small\n"


def test_a_rule_names_the_type_however_the_commands_are_given(served: Place) -> None:
    """One command, several, or a file of them: those that match share what is learnt."""
    served.write_project("[[job]]\nmatch = 'job.py*'\nignore_args = ['seed']\nmemory = '100MiB'\n")
    script = served.project / "job.py"
    script.write_text("")
    jobs = served.project / "jobs.txt"
    jobs.write_text(f"{printed('job.py', '--seed', '3')}\ntrue\n")
    done = served.grn("run", "--json", "--", *shlex.split(printed("job.py", "--seed", "1")))
    types = [job["type"] for job in jobs_of(done.stdout)]
    done = served.grn(
        "run", "--json", "--file", str(jobs), printed("job.py", "--seed=2"), "true --seed 4"
    )
    assert done.returncode == 0, done.stderr
    types += [job["type"] for job in jobs_of(done.stdout)]
    without_seed = printed("job.py")
    assert types == [without_seed, without_seed, "true --seed 4", without_seed, "true"]


def test_each_of_several_commands_has_its_own_rule(served: Place) -> None:
    """Sizes and variables of one rule do not reach another command."""
    served.write_project(
        f"{SMALL}[[job]]\nmatch = 'a.py'\nflavor = 'small'\nenv = {{ A = 'rule' }}\n"
        "[[job]]\nmatch = 'b.py'\ngpus = 0\n"
    )
    for name in ("a.py", "b.py"):
        (served.project / name).write_text(PRINT)
    done = served.grn("run", "--quiet", printed("a.py"), printed("b.py"))
    lines = sorted(line.partition("] ")[2] for line in done.stdout.splitlines())
    assert lines == ["None None 0", "rule flavor 1000"], done.stderr


@pytest.mark.parametrize("how", ["option", "variable"])
def test_rules_can_be_switched_off(place: Place, how: str) -> None:
    """Then not even a broken file matters, while a flavor that is named still counts."""
    words = ["run", "--explain", *(["--no-rules"] if how == "option" else []), "--", "true"]
    environ = {"GRN_RULES": "0"} if how == "variable" else {}
    place.write_project(f"{SMALL}[[job]]\nmatch = 'true'\ntype = 'ruled'\n")
    assert "type: ruled" in place.grn(*words[:2], "--", "true").stdout
    assert "type: true" in place.grn(*words, **environ).stdout
    with_flavor = place.grn(*words[:-2], "--flavor=small", *words[-2:], **environ).stdout
    assert "type: true" in with_flavor
    assert "1000 MiB on each" in with_flavor
    place.write_project("broken")
    assert place.grn("run", "--explain", "--", "true").returncode == 2
    assert place.grn(*words, **environ).returncode == 0


def test_a_switch_that_says_neither_is_told(place: Place) -> None:
    """`GRN_RULES=maybe` is a mistake."""
    done = place.grn("run", "--", "true", GRN_RULES="maybe")
    assert (done.returncode, done.stderr[:18]) == (2, "grn run: GRN_RULES")


def test_explain_says_which_rule_and_flavor_applied(place: Place) -> None:
    """With file and line, the pattern, and what came of it; nothing of them without a match."""
    path = place.write_project(
        f"{SMALL}[[job]]\nmatch = ['x', 'train.py*']\nflavor = 'small'\npolicy = 'pack'\n"
    )
    said = place.grn("run", "--explain", "python train.py --seed 1", "ls").stdout
    first, _, second = said.partition("command 2")
    assert f"rule: {path}:4, [[job]] number 1, match 'train.py*'" in first
    assert f"flavor small: {path}:1, [flavors.small]" in first
    assert "1000 MiB on each, policy pack" in first
    assert "asked for by the request" in said
    assert "rule" not in second.partition("\n\n")[0]


def test_precedence_from_the_command_line_to_the_rules_flavor(place: Place) -> None:
    """Options, then the flavor they name, then the rule, then its own flavor."""
    place.write_project(
        "[flavors.of-rule]\ncpus = 1\npriority = 1\nram = '1GiB'\n[flavors.named]\npriority = 3\n"
        "[[job]]\nmatch = 'x'\nflavor = 'of-rule'\npriority = 2\n"
    )
    for options, expected in (
        ([], "priority 2"),
        (["--flavor=named"], "priority 3"),
        (["--flavor=named", "--priority=4"], "priority 4"),
    ):
        said = place.grn("run", "--explain", *options, "--", "x").stdout
        assert expected in said
        assert ("1 CPUs, 1 GiB of main memory" in said) is (not options)


@pytest.mark.parametrize(
    ("options", "expected"),
    [([], "ruled"), (["--type=mine"], "mine"), (["--ignore-arg=seed"], "x")],
)
def test_how_the_command_line_names_a_type_wins(
    place: Place, options: list[str], expected: str
) -> None:
    """Both of its ways replace the type of a rule."""
    place.write_project("[[job]]\nmatch = 'x*'\ntype = 'ruled'\n")
    said = place.grn("run", "--explain", *options, "--", "x", "--seed", "1").stdout
    assert f"  type: {expected}\n" in said


def test_memory_of_no_device_names_both_places(place: Place) -> None:
    """`--memory` against a rule without devices is a mistake that is told."""
    place.write_project("[[job]]\nmatch = 'x'\ngpus = 0\n")
    done = place.grn("run", "--memory=1GiB", "--", "x")
    assert done.returncode == 2
    assert "the command line says how much" in done.stderr
    assert "[[job]] number 1 asks for none" in done.stderr
    assert place.grn("run", "--explain", "--gpus=1", "--memory=1GiB", "--", "x").returncode == 0


def test_many_jobs_at_once_are_warned_of_and_kept(served: Place) -> None:
    """`grn run` says it once, not with --quiet; the value is used as it is."""
    crowd = {"GRN_JOBS_AT_ONCE": "100000"}
    done = served.grn("run", "--gpus=none", "true", "true", **crowd)
    assert done.returncode == 0
    assert done.stderr.count("warning: jobs_at_once is 100000") == 1
    assert "jobs_at_once" not in served.grn("run", "--quiet", "--", "true", **crowd).stderr


def test_a_broker_warns_of_many_jobs_at_once(place: Place) -> None:
    """In its log and in its status, and it divides the cores as it was told."""
    place.env.start("--jobs-at-once=100000")
    status = json.loads(place.grn("status", "--json").stdout)
    assert sum("jobs_at_once is 100000" in text for text in status["warnings"]) == 1
    shell = "echo $OMP_NUM_THREADS"
    assert place.grn("run", "--gpus=none", "--", "sh", "-c", shell).stdout == "1\n"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to somebody else")
def test_a_strangers_file_sets_nothing_and_explain_says_so(place: Place) -> None:
    """A rule of somebody else's, found on the way up, is not used, and not silently so."""
    (place.project / ".git").rmdir()
    planted = place.home / "grn.toml"
    planted.write_text("[[job]]\nmatch = '*'\nenv = { A = 'theirs' }\n")
    os.chown(planted, 54321, -1)
    said = place.grn("run", "--explain", "--", "true").stdout
    assert f"not read: {planted}: it belongs to user 54321" in said
    assert "theirs" not in said
