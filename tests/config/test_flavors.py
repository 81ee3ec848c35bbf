"""Tables of flavors and rules: what they may say, and how layers of them are merged."""

from __future__ import annotations

from typing import Any

import pytest

from grn.errors import UsageError
from grn.rules.flavors import flavor_from, merged, rule_from


def flavor(name: str = "small", **table: Any) -> dict[str, Any]:
    """Return what a flavor gives."""
    return flavor_from(name, table, path="/p/grn.toml", line=7, title=f"[flavors.{name}]").values


def rule(**table: Any) -> dict[str, Any]:
    """Return what a rule gives."""
    return rule_from(2, table, path="/p/grn.toml", line=None, title="[[job]]").values


def test_a_flavor_is_put_into_the_words_of_a_request() -> None:
    """Sizes become MiB, numbers and texts are both taken, variables become texts."""
    assert flavor(
        gpus=2, memory="8GiB", cpus="4", ram=2048, policy="pack", priority=-3, compute="30%",
        processes=2, affinity=True, env={"A": "x", "B": 4},
    ) == {
        "gpus": 2, "memory_mib": 8192, "cpus": 4, "ram_mib": 2048, "policy": "pack",
        "priority": -3, "compute": 30, "processes": 2, "affinity": True,
        "env": {"A": "x", "B": "4"},
    }  # fmt: skip
    assert flavor(memory="whole") == {"memory_mib": "whole"}
    assert flavor(gpus="none") == {"gpus": None}


@pytest.mark.parametrize("name", ["Small", "8gb", "-x", "a b", "a.b", "", "ä", "a\n"])
def test_a_name_that_is_no_name_is_refused(name: str) -> None:
    """Names are lower-case letters, digits, - and _, with a letter first."""
    with pytest.raises(UsageError, match="cannot be a flavor's name"):
        flavor(name, gpus=1)


@pytest.mark.parametrize("name", ["a", "gpu-small", "x_1-y"])
def test_a_good_name_is_taken(name: str) -> None:
    """Letters, digits, - and _ are possible."""
    assert flavor(name, gpus=1) == {"gpus": 1}


@pytest.mark.parametrize(
    ("table", "expected"),
    [
        ({"memroy": "8GiB"}, "unknown key 'memroy'; known: gpus, memory,"),
        ({"gpus": -1}, "key gpus: number of devices '-1'"),
        ({"gpus": True}, "key gpus: True is neither a whole number nor a text"),
        ({"gpus": 1.5}, "key gpus: 1.5 is neither"),
        ({"memory": "lots"}, "key memory: size 'lots' is not a size"),
        ({"memory": 0}, "key memory: size '0' is zero"),
        ({"memory": 8.5}, "key memory: 8.5 is neither"),
        ({"cpus": 0}, "key cpus: number of CPUs '0'"),
        ({"ram": "whole"}, "key ram: size 'whole'"),
        ({"policy": "best"}, "key policy: 'best' is not one of: spread, pack"),
        ({"policy": ["pack"]}, "key policy: "),
        ({"priority": "high"}, "key priority: 'high' is not a whole number"),
        ({"priority": False}, "key priority: False is not a whole number"),
        ({"compute": 101}, "key compute: 101 is more than the whole"),
        ({"compute": 0}, "key compute: "),
        ({"processes": 0}, "key processes: "),
        ({"affinity": "yes"}, "key affinity: 'yes' is neither true nor false"),
        ({"env": "A=1"}, "key env: 'A=1' is not a table"),
        ({"env": {"A": True}}, "key env: A: True is neither a text nor a whole number"),
        ({"env": {"A=B": "1"}}, "key env: 'A=B' cannot be a variable"),
        ({"env": {"A": "x\0"}}, "key env: 'A' cannot be a variable"),
        ({"gpus": 0, "memory": "1GiB"}, "key memory: it is of a device, but gpus asks for none"),
        ({"gpus": "none", "compute": 30}, "key compute: it is of a device"),
        ({"match": "x"}, "unknown key 'match'"),
        ({}, "says nothing"),
    ],
)
def test_a_mistake_names_file_table_and_key(table: dict[str, Any], expected: str) -> None:
    """Whoever wrote it is told where it stands and what would do."""
    with pytest.raises(UsageError) as caught:
        flavor(**table)
    assert caught.value.message.startswith("/p/grn.toml:7, [flavors.small]")
    assert expected in caught.value.message


def test_a_flavor_that_is_no_table_is_refused() -> None:
    """`small = 3` is no size."""
    with pytest.raises(UsageError, match="a table is expected"):
        flavor_from("small", 3, path="p", line=None, title="[flavors.small]")


def test_a_rule_has_patterns_and_what_they_get() -> None:
    """One pattern or several, one argument to ignore or several."""
    one = rule_from(1, {"match": "a*", "ignore_args": "seed"}, path="p", line=1, title="[[job]]")
    assert (one.patterns, one.values) == (["a*"], {"ignore_args": ["seed"]})
    many = rule_from(1, {"match": ["a", "b"], "type": "t"}, path="p", line=1, title="[[job]]")
    assert (many.patterns, many.values) == (["a", "b"], {"type": "t"})


@pytest.mark.parametrize(
    ("table", "expected"),
    [
        ({"type": "t"}, "there is no match"),
        ({"match": "x"}, "gives nothing"),
        ({"match": [], "type": "t"}, "key match: an empty list"),
        ({"match": [3], "type": "t"}, "key match: 3 is not a text"),
        ({"match": " ", "type": "t"}, "key match: ' ' is not a text"),
        ({"match": "x", "type": ""}, "key type: "),
        ({"match": "x", "type": "t" * 65537}, "at most 65536"),
        ({"match": "x", "flavor": "No"}, "key flavor: 'No' cannot be"),
        ({"match": "x", "typ": "t"}, "unknown key 'typ'; known: match, type,"),
        ({"match": "x", "type": "t", "ignore_args": ["s"]}, "keep one"),
    ],
)
def test_a_mistake_in_a_rule_names_which_rule(table: dict[str, Any], expected: str) -> None:
    """Rules have no names, so they are counted."""
    with pytest.raises(UsageError) as caught:
        rule(**table)
    assert caught.value.message.startswith("/p/grn.toml, [[job]] number 2")
    assert expected in caught.value.message


@pytest.mark.parametrize(
    ("layers", "expected"),
    [
        ([{"gpus": 2}, {"gpus": 1, "cpus": 3}], {"gpus": 2, "cpus": 3}),
        ([{}, {"cpus": 3}, {"cpus": 4, "ram_mib": 5}], {"cpus": 3, "ram_mib": 5}),
        (
            [{"env": {"A": "1"}}, {"env": {"A": "2", "B": "3"}}],
            {"env": {"A": "1", "B": "3"}},
        ),
        ([{"ignore_args": ["b"]}, {"ignore_args": ["a", "b"]}], {"ignore_args": ["a", "b"]}),
        ([{"type": "x"}, {"type": "y"}], {"type": "x"}),
        ([{"type": "x"}, {"ignore_args": ["a"]}], {"type": "x", "ignore_args": ["a"]}),
        ([{"ignore_args": ["a"]}, {"type": "y"}], {"ignore_args": ["a"]}),
        ([{"gpus": 0}, {"memory_mib": 9, "compute": 3, "cpus": 1}], {"gpus": 0, "cpus": 1}),
        ([{"gpus": None}, {"memory_mib": 9}], {"gpus": None}),
        ([{"gpus": 1, "memory_mib": 9}, {"gpus": 0}], {"gpus": 1, "memory_mib": 9}),
        ([{"memory_mib": 9}, {"gpus": 1}, {"gpus": 0}], {"gpus": 1, "memory_mib": 9}),
        ([{"affinity": False}, {"affinity": True}], {"affinity": False}),
    ],
)
def test_the_stronger_layer_wins_by_key(
    layers: list[dict[str, Any]], expected: dict[str, Any]
) -> None:
    """Key by key; variables are merged, arguments added up, memory goes with its devices."""
    before = repr(layers)
    assert merged([(f"layer {number}", given) for number, given in enumerate(layers)]) == expected
    assert repr(layers) == before


@pytest.mark.parametrize("key", ["memory_mib", "compute"])
def test_memory_of_no_device_is_refused(key: str) -> None:
    """Memory that a stronger layer declares needs the device that a weaker one refuses."""
    with pytest.raises(UsageError, match=r"the options say.*, but the rule asks for none"):
        merged([("the options", {key: 9}), ("the flavor", {}), ("the rule", {"gpus": 0})])
