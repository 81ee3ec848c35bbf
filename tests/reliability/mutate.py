"""How many small changes to the code do the fast tests notice? `python -m tests.reliability.mutate`.

Each mutant is one change of one module: a comparison, a sum, a number, a condition, a statement left
out. It is put in place of the module in a forked process, in which the tests for that module run
until one fails. `--sample 40` tries so many of each module, chosen by `--seed`; without it, all.

Written here and not taken from elsewhere: mutmut and cosmic-ray run one new pytest for each mutant,
and neither knows an installed package whose sources are in a folder of another name.
"""

from __future__ import annotations

import argparse
import ast
import copy
import importlib.util
import os
import random
import resource
import select
import signal
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from tests.env import ROOT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["MODULES", "Mutant", "mutants"]

_LEDGER = ("ledger", "promises", "shared_ram", "compute", "policy", "placing")
MODULES: dict[str, tuple[str, list[str]]] = {
    "grn.rules.ledger": (
        "core/grn/rules/ledger.py",
        [f"tests/rules/test_{name}.py" for name in _LEDGER],
    ),
    "grn.rules.policy": (
        "core/grn/rules/policy.py",
        [f"tests/rules/test_{name}.py" for name in ("policy", "topology", "placing")],
    ),
    "grn.rules.estimate": (
        "core/grn/rules/estimate.py",
        [f"tests/rules/test_{name}.py" for name in ("estimate", "curve", "machine_learning")],
    ),
    "grn.broker.connection": (
        "core/grn/broker/connection.py",
        [
            "tests/reliability/test_session.py",
            "tests/reliability/test_session_ends.py",
            "tests/reliability/test_kills.py::test_who_connected_is_known_by_more_than_a_number",
        ],
    ),
    "grn.broker.journal": (
        "core/grn/broker/journal.py",
        [f"tests/edges/test_{name}.py" for name in ("journal", "journal_limits")],
    ),
}
"""Module -> its file, and the tests that should notice."""

_CPU_S = 90
_WALL_S = 60
"""Or it waits for what never comes."""
_SWAPS: dict[type[ast.AST], type[ast.AST]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.Is: ast.IsNot, ast.IsNot: ast.Is,
    ast.In: ast.NotIn, ast.NotIn: ast.In, ast.And: ast.Or, ast.Or: ast.And,
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.FloorDiv, ast.FloorDiv: ast.Mult,
    ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd,
}  # fmt: skip
_NAMES = {"max": "min", "min": "max", "any": "all", "all": "any"}


@dataclass(frozen=True)
class Mutant:
    """One change. `apply` makes it in a copy of the tree, found there by its place."""

    line: int
    what: str
    number: int
    apply: Callable[[ast.AST], None]


def _changes(  # noqa: C901 - a table of cases
    node: ast.AST,
) -> Iterator[tuple[str, Callable[[ast.AST], None]]]:
    """List what can be changed about a node, in words and as a deed."""
    if isinstance(node, ast.Compare):
        for index, operator in enumerate(node.ops):
            other = _SWAPS.get(type(operator))
            if other is not None:
                yield (
                    f"{type(operator).__name__} -> {other.__name__}",
                    lambda n, i=index, o=other: n.ops.__setitem__(i, o()),  # type: ignore[attr-defined]
                )
    elif isinstance(node, ast.BinOp | ast.AugAssign | ast.BoolOp):
        other = _SWAPS.get(type(node.op))
        if other is not None:
            yield (
                f"{type(node.op).__name__} -> {other.__name__}",
                lambda n, o=other: setattr(n, "op", o()),
            )
    elif isinstance(node, ast.Constant) and isinstance(node.value, bool):
        yield f"{node.value} -> {not node.value}", lambda n: setattr(n, "value", not n.value)  # type: ignore[attr-defined]
    elif isinstance(node, ast.Constant) and type(node.value) is int:
        yield f"{node.value} -> {node.value + 1}", lambda n: setattr(n, "value", n.value + 1)  # type: ignore[attr-defined]
    elif isinstance(node, ast.If | ast.IfExp | ast.While):
        yield "condition -> not", lambda n: setattr(n, "test", ast.UnaryOp(ast.Not(), n.test))  # type: ignore[attr-defined]
    elif isinstance(node, ast.Name) and node.id in _NAMES:
        yield f"{node.id} -> {_NAMES[node.id]}", lambda n: setattr(n, "id", _NAMES[n.id])  # type: ignore[attr-defined]
    elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        yield (
            f"left out: {ast.unparse(node)[:60]}",
            lambda n: setattr(n, "value", ast.Constant(None)),
        )
    elif isinstance(node, ast.Return) and ast.unparse(node) not in ("return", "return None"):
        yield "return -> None", lambda n: setattr(n, "value", ast.Constant(None))


def mutants(source: str) -> list[Mutant]:
    """List all mutants of a module; types, log lines and texts of errors are left alone."""
    tree = ast.parse(source)
    skipped = {id(inner) for node in ast.walk(tree) if _says(node) for inner in ast.walk(node)}
    found = []
    for number, node in enumerate(ast.walk(tree)):
        if id(node) not in skipped:
            for what, apply in _changes(node):
                found.append(Mutant(getattr(node, "lineno", 0), what, number, apply))
    return found


def _says(node: ast.AST) -> bool:
    """Whether it only speaks to people or to type checkers."""
    if isinstance(node, ast.Call) and ast.unparse(node.func) == "dataclass":
        return True  # a class without slots does the same
    if isinstance(node, ast.Raise | ast.JoinedStr | ast.AnnAssign):
        return not (isinstance(node, ast.AnnAssign) and node.value is not None)
    if isinstance(node, ast.BinOp):
        sides = ast.unparse(node.left), ast.unparse(node.right)
        return isinstance(node.op, ast.BitOr) and "None" in sides
    if isinstance(node, ast.If):
        return isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
    called = node.value if isinstance(node, ast.Expr) else None
    if isinstance(called, ast.Call) and isinstance(called.func, ast.Attribute):
        return isinstance(called.func.value, ast.Name) and called.func.value.id == "log"
    return False


def _survives(module: str, path: str, tree: ast.Module, mutant: Mutant, tests: list[str]) -> bool:
    """Run the tests with the mutant in a process of its own."""
    pid = os.fork()
    if pid:
        return _ended_well(pid)
    status = 1
    try:
        resource.setrlimit(resource.RLIMIT_CPU, (_CPU_S, _CPU_S))
        changed = copy.deepcopy(tree)
        mutant.apply(list(ast.walk(changed))[mutant.number])
        code = compile(ast.fix_missing_locations(changed), path, "exec")
        for name in [x for x in sys.modules if x == "grn" or x.startswith(("grn.", "tests."))]:
            del sys.modules[name]
        _put_in_place(module, path, code)
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, 1)
        os.dup2(null, 2)
        options = ["-x", "-q", "-n", "0", "-p", "no:cacheprovider"]
        status = int(pytest.main([*options, *tests]))
    finally:
        os._exit(status)


def _ended_well(pid: int) -> bool:
    """Wait for the tests' process; one that waits for ever is ended, and has noticed something."""
    pidfd = os.pidfd_open(pid)
    try:
        poll = select.poll()
        poll.register(pidfd, select.POLLIN)
        if not poll.poll(_WALL_S * 1000):
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)
    finally:
        os.close(pidfd)
    return os.waitpid(pid, 0)[1] == 0


def _put_in_place(module: str, path: str, code: object) -> None:
    """Let whoever imports the module get the mutant."""

    class Finder:
        @staticmethod
        def find_spec(name: str, path_: object = None, target: object = None) -> object:
            del path_, target
            if name != module:
                return None
            return importlib.util.spec_from_loader(name, Finder, origin=path)  # type: ignore[arg-type]  # a loader

        @staticmethod
        def create_module(spec: object) -> None:
            del spec

        @staticmethod
        def exec_module(made: object) -> None:
            vars(made)["__file__"] = path
            exec(code, vars(made))  # type: ignore[arg-type]  # noqa: S102 - the mutant

    sys.meta_path.insert(0, Finder)  # type: ignore[arg-type]  # a finder


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main() -> int:
    """Try mutants; name those that nobody noticed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("modules", nargs="*", default=list(MODULES))
    parser.add_argument("--sample", type=int)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    os.chdir(ROOT)
    os.environ |= {"GRN_TEST_SEEDS": "600", "GRN_TEST_FRAMES": "20000"}
    for module in args.modules:
        path, tests = MODULES[module]
        with open(path, encoding="utf-8") as file:
            source = file.read()
        tree = ast.parse(source)
        found = mutants(source)
        tried = found
        if args.sample is not None and args.sample < len(found):
            tried = random.Random(args.seed).sample(found, args.sample)  # noqa: S311 - which to try
        killed = 0
        for count, mutant in enumerate(tried, 1):
            if _survives(module, path, tree, mutant, tests):
                line = source.splitlines()[mutant.line - 1].strip()
                _say(f"  {path}:{mutant.line} {mutant.what}: {line}")
            else:
                killed += 1
            if count % 10 == 0 or count == len(tried):
                _say(f"{module}: {killed} of {count} killed ({len(found)} in all)")
    return 0


if __name__ == "__main__":
    sys.exit(main())
