"""The configuration files: where they are looked for, and what is said when they are wrong."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest

from grn.config import files, tables
from grn.config.rules import first_rule, layers_of
from grn.errors import UsageError
from grn.rules.flavors import merged

if TYPE_CHECKING:
    from pathlib import Path

SMALL = '[flavors.small]\nmemory = "1GiB"\n'
STRANGER = 54321


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A home folder with a project in it, which has a folder of its own."""
    (tmp_path / "home" / "project" / "src" / "deep").mkdir(parents=True)
    return tmp_path / "home"


def found(start: Path, home: Path) -> str | None:
    """Return the project's file that is found from a folder."""
    return files.find_project(str(start), {"HOME": str(home)}).path


def user_file(home: Path, text: str) -> Path:
    """Write the user's file."""
    path = home / ".config" / "grn" / "config.toml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def load(start: Path, home: Path) -> tables.Configured:
    """Read everything from a folder."""
    return tables.load(str(start), {"HOME": str(home)})


def for_command(words: list[str], start: str, environ: dict[str, str]) -> dict[str, Any]:
    """Return what the rule for a command gives; {} without one."""
    configured = tables.load(start, environ)
    matched = first_rule(configured, [words])
    return merged(layers_of(configured, matched[0])) if matched else {}


@pytest.mark.parametrize("folder", ["", "project", "project/src", "project/src/deep"])
def test_the_nearest_file_upwards_is_found(home: Path, folder: str) -> None:
    """From any folder below it, up to the home folder."""
    path = home / folder / "grn.toml"
    path.write_text(SMALL)
    assert found(home / "project" / "src" / "deep", home) == str(path)
    (home / "grn.toml").write_text(SMALL)
    assert found(home / "project" / "src" / "deep", home) == str(path)


def test_the_search_ends_at_home(home: Path) -> None:
    """What lies above the home folder is not the user's; a home that is a link is known as well."""
    (home.parent / "grn.toml").write_text(SMALL)
    assert found(home / "project" / "src", home) is None
    assert found(home, home) is None
    link = home.parent / "link"
    link.symlink_to(home)
    assert found(home / "project", link) is None


@pytest.mark.parametrize("as_file", [False, True])
def test_the_search_ends_with_the_folder_of_git(home: Path, *, as_file: bool) -> None:
    """A repository (or a worktree, where .git is a file) does not get what lies around it."""
    (home / "grn.toml").write_text(SMALL)
    project = home / "project"
    if as_file:
        (project / ".git").write_text("gitdir: elsewhere")
    else:
        (project / ".git").mkdir()
    assert found(project / "src" / "deep", home) is None
    (project / "grn.toml").write_text(SMALL)
    assert found(project / "src" / "deep", home) == str(project / "grn.toml")


@pytest.mark.parametrize(
    ("text", "is_ours"),
    [
        ("[tool.grn.flavors.x]\ngpus = 1", True),
        ("[\"tool\" . 'grn'.flavors.x]\ngpus = 1", True),
        ("[tool]\ngrn = { flavors = { x = { gpus = 1 } } }", True),
        ("tool = { grn = { flavors = { x = { gpus = 1 } } } }", True),
        ("[[tool.grn.job]]\nmatch = 'x'\ntype = 'y'", True),
        ("[project]\nname = 'p'\ndependencies = ['grn-plugins']\n[tool.ruff]\n", False),
        ("# tool.grn would be here", False),
        ("[tool]\nruff = { exclude = ['grn'] }", False),
        ("this is no TOML", False),
    ],
)
def test_a_shared_file_counts_if_it_has_our_table(home: Path, text: str, *, is_ours: bool) -> None:
    """`pyproject.toml` is for many tools; one that says nothing to us does not end the search."""
    (home / "grn.toml").write_text(SMALL)
    path = home / "project" / "pyproject.toml"
    path.write_text(text)
    start = home / "project" / "src"
    assert found(start, home) == str(path if is_ours else home / "grn.toml")
    load(start, home)


def test_our_own_file_goes_before_the_shared_one(home: Path) -> None:
    """Of two files in one folder, `grn.toml` counts."""
    (home / "project" / "pyproject.toml").write_text("[tool.grn.flavors.x]\ngpus = 1")
    (home / "project" / "grn.toml").write_text(SMALL)
    assert list(load(home / "project", home).flavors) == ["small"]


def test_a_removed_working_folder_has_no_project(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job may be started where nothing is any more."""
    gone = home / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert files.find_project(None, {"HOME": str(home)}).path is None
    assert found(gone, home) is None


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to somebody else")
def test_a_strangers_file_is_passed_over(home: Path) -> None:
    """It could set variables of whatever is run; whoever owns the working folder may."""
    planted = home / "grn.toml"
    planted.write_text(SMALL)
    os.chown(planted, STRANGER, -1)
    looked = files.find_project(str(home / "project"), {"HOME": str(home)})
    assert looked.path is None
    assert str(planted) in looked.passed_over[0]
    with pytest.raises(UsageError, match=f"passed over {planted}: it belongs to user {STRANGER}"):
        load(home / "project", home).flavor("small")
    os.chown(home / "project", STRANGER, -1)
    assert found(home / "project", home) == str(planted)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b"[flavors.x\ngpus = 1", "is not valid TOML: Expected ']' at the end of a table"),
        (b"\n\ngpus = = 1", "line 3"),
        (b"# ok\n\n# \xff", "line 3 is not UTF-8"),
        (b"[flavors]\nx = 3", "[flavors.x]: a table is expected"),
        (b"flavors = 3", "flavors must be tables"),
        (b"[job]\nmatch = 'x'", "two brackets: [[job]]"),
        (b"\npolicy = 'pack'", "grn.toml:2: policy is a setting of the broker"),
        (b"\n[colours]\na = 1", "grn.toml:2: unknown key 'colours'"),
        (b"\n\n[[jobs]]\na = 1", "grn.toml:3: unknown key 'jobs'"),
        (b"a.b = 1\n[flavors.x]\ncpus = 1", "grn.toml: unknown key 'a'"),
        (b"\n\n[flavors.x]\nmemory = 'lots'", "grn.toml:3, [flavors.x], key memory"),
        (b"\n[[job]]\nmatch='x'\ngpus=1\n[[job]]\nmatch='x'", "grn.toml:5, [[job]] number 2"),
    ],
)
def test_a_broken_file_names_itself_and_the_place(home: Path, text: bytes, expected: str) -> None:
    """File and line, or file, table and key."""
    path = home / "project" / "grn.toml"
    path.write_bytes(text)
    with pytest.raises(UsageError) as caught:
        load(home / "project", home)
    assert caught.value.message.startswith(str(path))
    assert expected in caught.value.message


def test_in_the_shared_file_our_names_are_told_in_full(home: Path) -> None:
    """`[tool.grn.flavors.x]`, as it is written there."""
    path = home / "pyproject.toml"
    for text, expected in (
        ("[tool.grn.flavors.x]\ncpus = 0", r":1, \[tool\.grn\.flavors\.x\], key cpus"),
        ("[x]\n[tool.grn]\nlog = 'info'", "toml:3: tool.grn.log is a setting of the broker"),
        ("[x]\n\n[tool.grn.jobs]\nlog = 1", "toml:3: unknown key 'tool.grn.jobs'"),
        ("[tool]\ngrn = 3", "tool.grn must be a table"),
    ):
        path.write_text(text)
        with pytest.raises(UsageError, match=expected):
            load(home, home)


def test_a_file_that_cannot_be_read_is_told(home: Path) -> None:
    """A folder of that name, for example."""
    (home / "grn.toml").mkdir()
    with pytest.raises(UsageError, match=r"cannot read .*grn\.toml: Is a directory"):
        load(home, home)


@pytest.mark.parametrize("kind", ["pipe", "device"])
def test_what_never_ends_is_not_read(home: Path, kind: str) -> None:
    """A pipe that nobody writes to, and a device, are refused at once, and no `pyproject.toml`."""
    (home / "project" / "pyproject.toml").symlink_to("/dev/zero")
    own = home / "grn.toml"
    os.mkfifo(own) if kind == "pipe" else own.symlink_to("/dev/zero")
    with pytest.raises(UsageError, match=r"cannot read .*grn\.toml: it is not a regular file"):
        load(home / "project", home)
    own.unlink()
    assert load(home / "project", home).project_path is None


def test_dev_null_is_an_empty_file(home: Path) -> None:
    """As people write it who want no configuration."""
    configured = tables.load(str(home), {"HOME": str(home), "GRN_CONFIG": "/dev/null"})
    assert configured.flavors == {}


def test_an_edit_counts_for_the_next_request(home: Path) -> None:
    """Nothing is kept between two requests."""
    environ = {"HOME": str(home)}
    path = home / "grn.toml"
    path.write_text(SMALL)
    assert tables.load(str(home), environ).flavor("small").values == {"memory_mib": 1024}
    path.write_text(SMALL.replace("1GiB", "2GiB"))
    assert tables.load(str(home), environ).flavor("small").values == {"memory_mib": 2048}
    path.unlink()
    with pytest.raises(UsageError, match="there is no flavor 'small'; none is defined"):
        tables.load(str(home), environ).flavor("small")


def test_an_unknown_flavor_lists_what_there_is_and_where(home: Path) -> None:
    """Names with their files, the project's first."""
    user = user_file(home, "policy = 'pack'\n[flavors.big]\ngpus = 2\n[flavors.small]\ngpus = 1\n")
    project = home / "project" / "grn.toml"
    project.write_text(SMALL)
    with pytest.raises(UsageError) as caught:
        tables.load(str(home / "project"), {"HOME": str(home)}).flavor("medium")
    assert caught.value.message == (
        f"there is no flavor 'medium'; {project} has small; {user} has big"
    )


def test_the_projects_flavor_replaces_the_users_as_a_whole(home: Path) -> None:
    """Two halves of a size would be hard to find again."""
    user_file(home, "[flavors.small]\ngpus = 2\ncpus = 3\n")
    (home / "project" / "grn.toml").write_text(SMALL)
    configured = load(home / "project", home)
    assert configured.flavor("small").values == {"memory_mib": 1024}
    assert [flavor.values for flavor in configured.overridden] == [{"gpus": 2, "cpus": 3}]
    assert load(home, home).flavor("small").values == {"gpus": 2, "cpus": 3}


def test_the_first_rule_that_matches_counts(home: Path) -> None:
    """From the top, those of the project before those of the user; a rule's keys beat its flavor."""
    user_file(
        home,
        "[[job]]\nmatch = '*.py'\ntype = 'user'\n[[job]]\nmatch = 'u*'\nflavor = 'small'\ncpus = 1\n"
        "[flavors.small]\ncpus = 5\ngpus = 3\n",
    )
    (home / "project" / "grn.toml").write_text(
        "[[job]]\nmatch = 'train.py'\npolicy = 'pack'\n[[job]]\nmatch = 't*.py'\ngpus = 2\n"
    )
    environ, project = {"HOME": str(home)}, str(home / "project")
    for words, expected in (
        (["python", "train.py"], {"policy": "pack"}),
        (["python", "test.py"], {"gpus": 2}),
        (["python", "other.py"], {"type": "user"}),
        (["./unknown"], {"cpus": 1, "gpus": 3}),
        (["true"], {}),
    ):
        assert for_command(words, project, environ) == expected


def test_a_rule_with_a_flavor_that_is_not_there_is_told_when_it_matches(home: Path) -> None:
    """The user's rule may name a flavor that only some projects have."""
    (home / "grn.toml").write_text("[[job]]\nmatch = 'x'\nflavor = 'small'\n")
    environ = {"HOME": str(home)}
    assert for_command(["y"], str(home), environ) == {}
    with pytest.raises(UsageError, match=r"grn\.toml:1, \[\[job\]\] number 1: there is no flavor"):
        for_command(["x"], str(home), environ)


def test_a_line_that_is_not_certain_is_not_told(home: Path) -> None:
    """A text of several lines may look like a table."""
    (home / "grn.toml").write_text(
        "[flavors.x.env]\nA = '''\n[flavors.x]\n[[job]]'''\n[flavors.x]\ngpus = 1\n"
        "[[job]]\nmatch = 'x'\ntype = 'y'\n"
    )
    configured = load(home, home)
    assert configured.flavors["x"].line is None
    assert configured.rules[0].line is None
