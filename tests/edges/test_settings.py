"""Settings: precedence, checks, and what a started broker is told."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from grn import settings
from grn.errors import UsageError
from grn.rules.waiting import ARRIVAL, ORDERS
from grn.settings import Settings, as_argv, known_flags, load, parse_margin

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def home(tmp_path: Path) -> dict[str, str]:
    """An environment whose home folder is empty."""
    return {"HOME": str(tmp_path)}


def configured(home: dict[str, str], tmp_path: Path, text: str) -> dict[str, str]:
    """Return an environment with this configuration file."""
    path = tmp_path / "my.toml"
    path.write_text(text)
    return {**home, "GRN_CONFIG": str(path)}


def test_without_anything_said_the_defaults_hold(home: dict[str, str]) -> None:
    """No flag, variable or file is needed."""
    found = load({}, home)
    assert (found.policy, found.margin, found.headroom, found.devices) == (
        "spread",
        "auto",
        None,
        None,
    )
    assert (found.cpu_reserve, found.ram_reserve_mib, found.jobs_at_once) == (2, 1024, None)
    assert (found.sample_fast_s, found.sample_slow_s, found.grace_s) == (0.1, 1.0, 5.0)
    assert (found.idle_exit_s, found.provisional_after_s, found.max_types) == (60, 60, 5000)
    assert found.state_dir == f"{home['HOME']}/.local/state/grn"


def test_flag_beats_variable_beats_file_beats_default(home: dict[str, str], tmp_path: Path) -> None:
    """Each source outranks the one below it."""
    environ = configured(home, tmp_path, 'cpu_reserve = 3\ngrace = "7s"\npolicy = "pack"')
    assert load({}, environ).cpu_reserve == 3
    environ["GRN_CPU_RESERVE"] = "4"
    assert load({}, environ).cpu_reserve == 4
    found = load({"cpu_reserve": "5"}, environ)
    assert (found.cpu_reserve, found.grace_s, found.policy) == (5, 7.0, "pack")


def test_paths_of_the_file_do_not_depend_on_who_reads_it_where(
    home: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`~` is the home folder, a relative path begins at the file: two folders, one broker."""
    monkeypatch.setenv("HOME", "/home/ada")
    environ = configured(home, tmp_path, 'socket = "~/s.sock"\nstate_dir = "kept"')
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        monkeypatch.chdir(tmp_path / name)
        found = load({}, environ)
        assert (found.socket, found.state_dir) == ("/home/ada/s.sock", f"{tmp_path}/kept")


@pytest.mark.parametrize("text", ['""', '"a\\u0000b"'])
def test_what_no_file_can_be_called_is_refused(
    home: dict[str, str], tmp_path: Path, text: str
) -> None:
    """The empty path would be the working folder."""
    with pytest.raises(UsageError, match=r"my\.toml, key state_dir: .* is no path"):
        load({}, configured(home, tmp_path, f"state_dir = {text}"))


def test_a_flag_that_was_not_given_and_an_empty_variable_say_nothing(home: dict[str, str]) -> None:
    """None and the empty string are no values."""
    environ = {**home, "GRN_POLICY": "", "GRN_MARGIN": "0"}
    found = load({"policy": None, "margin": None, "unrelated": 3}, environ)
    assert (found.policy, found.margin) == ("spread", "0")


def test_every_setting_has_flag_key_and_variable_of_one_name(
    home: dict[str, str], tmp_path: Path
) -> None:
    """The same text means the same in all three places."""
    good = {
        "socket": "/s.sock", "devices": "sim:1x4GiB", "policy": "pack", "margin": "10%",
        "headroom": "1GiB", "cpu_reserve": "1", "ram_reserve": "2GiB", "machine_cpus": "8",
        "machine_ram": "64GiB", "jobs_at_once": "3", "mask_style": "uuid", "sample_fast": "0.05",
        "sample_slow": "2s", "provisional_after": "2m", "idle_exit": "1h", "grace": "1",
        "state_dir": "/st", "max_types": "10", "debug": "yes", "log": "debug", "also_tell": "go",
        "http": "127.0.0.1:8787", "http_open": "yes", "history_days": "7", "history_mib": "9",
        "fair_share": "user", "aging": "10m", "group_wait": "1m", "limits": "train*=2,label:night*=4",
        "order": "run-time", "priors": "yes", "private": "no",
    }  # fmt: skip
    flags = {flag for flag, _, _ in known_flags()}
    assert flags == {"--" + key.replace("_", "-") for key in good}
    by_flag = load(good, home)
    by_variable = load({}, {**home, **{f"GRN_{key.upper()}": text for key, text in good.items()}})
    lines = "\n".join(f'{key} = "{text}"' for key, text in good.items())
    by_key = load({}, configured(home, tmp_path, lines))
    assert repr(by_flag) == repr(by_variable) == repr(by_key)
    assert by_flag.machine_ram_mib == 65536
    default = load({}, home)
    assert all(
        getattr(by_flag, row.attribute) != getattr(default, row.attribute)
        for row in settings.rows()
    )


@pytest.mark.parametrize(
    ("key", "text", "expected"),
    [
        ("policy", "best", "spread, pack"),
        ("margin", "lots", "512MiB"),
        ("margin", "-5%", "percentage"),
        ("margin", "0.1", "10% is a share"),
        ("headroom", ".25", "25% is a share"),
        ("margin", "101%", "percentage"),
        ("margin", "nan%", "percentage"),
        ("headroom", "half", "headroom"),
        ("cpu_reserve", "-1", "whole number"),
        ("machine_cpus", "0", "1 or more"),
        ("ram_reserve", "much", "not a size"),
        ("sample_fast", "0.01", "0.05 s"),
        ("grace", "soon", "not a duration"),
        ("mask_style", "names", "auto, index, uuid"),
        ("debug", "perhaps", "neither yes nor no"),
        ("log", "loud", "debug, info, warning, error"),
        ("also_tell", "torhc", "go, julia, r, torch"),
        ("max_types", "0", "1 or more"),
    ],
)
def test_a_bad_value_names_its_source_and_what_is_allowed(
    key: str, text: str, expected: str, home: dict[str, str], tmp_path: Path
) -> None:
    """Whoever gave the value is told where it stands and what would do."""
    flag, variable = "--" + key.replace("_", "-"), f"GRN_{key.upper()}"
    in_file = configured(home, tmp_path, f'{key} = "{text}"')
    sources: list[tuple[str, dict[str, str], dict[str, str]]] = [
        (flag, {key: text}, home),
        (variable, {}, {**home, variable: text}),
        (f"my.toml, key {key}", {}, in_file),
    ]
    for source, flags, environ in sources:
        with pytest.raises(UsageError) as caught:
            load(flags, environ)
        assert source in caught.value.message
        assert text in caught.value.message
        assert expected in caught.value.message


def test_an_unknown_key_is_named_with_close_ones(home: dict[str, str], tmp_path: Path) -> None:
    """A misspelt key is not ignored."""
    environ = configured(home, tmp_path, "polcy = 'pack'")
    with pytest.raises(UsageError, match=r"my\.toml:1: unknown key 'polcy'; did you mean policy\?"):
        load({}, environ)


@pytest.mark.parametrize("text", ["policy =", "policy = [1]", "[policy]\nx = 1", "\x00"])
def test_a_malformed_file_is_named(text: str, home: dict[str, str], tmp_path: Path) -> None:
    """Bad TOML and values of the wrong kind are errors that name the file."""
    with pytest.raises(UsageError, match=r"my\.toml"):
        load({}, configured(home, tmp_path, text))


def test_a_chosen_file_must_exist(home: dict[str, str], tmp_path: Path) -> None:
    """$GRN_CONFIG that leads nowhere is a mistake; a missing default file is not."""
    with pytest.raises(UsageError, match="GRN_CONFIG: there is no file"):
        load({}, {**home, "GRN_CONFIG": str(tmp_path / "none.toml")})


def test_the_file_is_found_in_the_usual_places(tmp_path: Path) -> None:
    """$XDG_CONFIG_HOME/grn/config.toml, else ~/.config/grn/config.toml."""
    for folder, environ in (
        (tmp_path / "x" / "grn", {"HOME": "/h", "XDG_CONFIG_HOME": str(tmp_path / "x")}),
        (tmp_path / ".config" / "grn", {"HOME": str(tmp_path)}),
    ):
        folder.mkdir(parents=True)
        (folder / "config.toml").write_text("jobs_at_once = 6\nsample_fast = 0.25\ndebug = true")
        found = load({}, environ)
        assert (found.jobs_at_once, found.sample_fast_s, found.debug_invariants) == (6, 0.25, True)


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({"GRN_DEVICES": "sim:2x4GiB"}, "sim:2x4GiB"),
        ({"GRN_DEVICES": "GPU-1a2b,GPU-3c4d"}, None),
        ({"GRN_DEVICES": "MIG-1a2b"}, None),
        ({"GRN_DEVICES": "sim:2x4GiB", "GRN_LEASE": "L1"}, None),
    ],
)
def test_inside_a_lease_the_devices_variable_is_no_wish(
    environ: dict[str, str], expected: str | None, home: dict[str, str]
) -> None:
    """There the variable lists what the job holds, and a job may well start GRN programs."""
    assert load({}, {**home, **environ}).devices == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("auto", (0.05, 256)),
        ("0", (0.0, 0)),
        ("10%", (0.10, 0)),
        ("2.5%", (0.025, 0)),
        ("512MiB", (0.0, 512)),
        ("512", (0.0, 512)),
    ],
)
def test_a_margin_is_a_share_and_a_floor(text: str, expected: tuple[float, int]) -> None:
    """Percentages are shares, sizes are floors, auto is both."""
    assert parse_margin(text) == pytest.approx(expected)


def test_rules_get_numbers(home: dict[str, str]) -> None:
    """Margin and headroom are readable as numbers; headroom left to the backend is None."""
    found = load({"margin": "10%", "headroom": "auto"}, home)
    assert found.margin_rule == (0.1, 0)
    assert found.headroom_rule is None
    assert load({"headroom": "1GiB"}, home).headroom_rule == (0.0, 1024)


def test_the_slow_pace_is_never_the_faster_one(home: dict[str, str]) -> None:
    """Asking for a fast pace of 3 s makes the slow one 3 s as well."""
    assert load({"sample_fast": "3s"}, home).sample_slow_s == 3.0


def test_defaults_need_no_flags() -> None:
    """A broker with default settings is started without a word."""
    assert as_argv(load({}, {})) == []


def test_flags_for_a_broker_give_the_same_settings(home: dict[str, str]) -> None:
    """What as_argv writes, load reads back; the socket is left to whoever starts the broker."""
    wished: dict[str, object] = {
        "devices": "sim:2x4GiB,meter=rss", "margin": "2.5%", "headroom": "0", "policy": "pack",
        "ram_reserve": "512KiB", "sample_fast": "0.07", "idle_exit": "10m", "debug": "yes",
        "state_dir": "/some/where", "machine_ram": "3GiB", "mask_style": "uuid", "socket": "/s",
    }  # fmt: skip
    first = load(wished, home)
    words = as_argv(first)
    assert not any(word.startswith("--socket") for word in words)
    flags = {w[2:].partition("=")[0].replace("-", "_"): w.partition("=")[2] for w in words}
    assert repr(load({**flags, "socket": "/s"}, home)) == repr(first)


def test_relative_places_become_absolute(
    home: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker works in the root folder, so a relative path is resolved at once."""
    monkeypatch.chdir(tmp_path)
    found = load({"socket": "b.sock", "state_dir": "st"}, home)
    assert (found.socket, found.state_dir) == (f"{tmp_path}/b.sock", f"{tmp_path}/st")


def test_settings_can_be_made_by_hand() -> None:
    """Programs and tests name what they change; a wrong name is an error."""
    assert Settings(policy="pack").policy == "pack"
    with pytest.raises(TypeError, match="no such setting: polcy"):
        Settings(polcy="pack")


def test_the_orders_are_those_of_the_line() -> None:
    """The table of settings loads no rules, so that it names them anew."""
    row = next(row for row in settings.rows() if row.key == "order")
    assert row.metavar.split("|") == list(ORDERS)
    assert row.default == ARRIVAL
