"""Mutants: deliberate errors, each of which is one change of one named function and must fail one golden check."""

from __future__ import annotations

import ast
import copy
import functools
import inspect
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from types import CodeType, FunctionType
from typing import Any

Change = Callable[[ast.FunctionDef], None]


@dataclass(frozen=True)
class Mutant:
    """One mutant.

    Attributes:
        function: the changed function, with the name of its module if several functions have this name.
        change: a `swap`, `given` or `returned`.
        check: function that must fail if the change is applied.
    """

    function: str
    change: Change
    check: Callable[[], None]

    def applied(self) -> AbstractContextManager[None]:
        """Apply the change to rlcore within a `with` block."""
        return changed(self.function, self.change)


# Changes --------------------------------------------------------------------------------------------------------------


def swap(old: str, new: str) -> Change:
    """Replace the only expression that matches `old` by `new`; capital letters stand for any expression in both."""

    def change(function: ast.FunctionDef) -> None:
        swapping = _Swap(_expression(old), _expression(new))
        swapping.visit(function)
        assert swapping.count == 1, f"{function.name} holds {swapping.count} times: {old}"

    return change


def given(**values: str) -> Change:
    """Replace values of arguments of the function."""

    def change(function: ast.FunctionDef) -> None:
        for name, value in values.items():
            arguments = function.args.args + function.args.kwonlyargs
            assert name in [a.arg for a in arguments], f"{function.name} has no argument {name}"
            function.body[:0] = ast.parse(f"{name} = {value}").body

    return change


def returned(value: str) -> Change:
    """Replace the return value of a function, which is called `it`."""

    def change(function: ast.FunctionDef) -> None:
        returns = [node for node in ast.walk(function) if isinstance(node, ast.Return)]
        assert returns, f"{function.name} returns nothing"
        for node in returns:
            wrapper = _expression(f"(lambda it: {value})(A)")
            node.value = _Fill({"A": node.value}).visit(wrapper)

    return change


# Application of changes -----------------------------------------------------------------------------------------------


@contextmanager
def changed(name: str, change: Change) -> Iterator[None]:
    """Apply a change to a function of rlcore by replacing its code object, so that every importer sees it."""
    function = find(name)
    tree = copy.deepcopy(_parsed(function.__module__))
    (definition,) = _definitions(tree, function.__qualname__)
    change(definition)
    code = compile(ast.fix_missing_locations(tree), f"<{name}, mutated>", "exec")
    original = function.__code__
    function.__code__ = _within(code, function.__qualname__)
    try:
        yield
    finally:
        function.__code__ = original


def find(name: str) -> FunctionType:
    """Return the function of this name (`ppo.Learner.loss` is that of an algorithm) in the loaded modules of rlcore."""
    found = set()
    for path, module in list(sys.modules.items()):
        if path.startswith("rlcore."):
            package = re.sub(r"\.(learner|losses|config)$", "", path).rpartition(".")[2]
            inside = name.removeprefix(f"{package}.")
            value: Any = functools.reduce(lambda held, part: getattr(held, part, None), inside.split("."), module)
            function = inspect.unwrap(value) if callable(value) else None
            if isinstance(function, FunctionType) and (function.__module__, function.__qualname__) == (path, inside):
                found.add(function)
    assert len(found) == 1, f"rlcore has {len(found)} functions {name}"
    return found.pop()


@functools.cache
def _parsed(module: str) -> ast.Module:
    return ast.parse(inspect.getsource(sys.modules[module]))


def _definitions(node: ast.AST, qualname: str) -> list[ast.FunctionDef]:
    first, _, rest = qualname.partition(".")
    children = [n for n in ast.iter_child_nodes(node) if getattr(n, "name", None) == first]
    if rest:
        return [found for child in children for found in _definitions(child, rest)]
    return [child for child in children if isinstance(child, ast.FunctionDef)]


def _within(code: CodeType, qualname: str) -> CodeType:
    inner = [constant for constant in code.co_consts if isinstance(constant, CodeType)]
    for each in inner:
        if each.co_qualname == qualname:
            return each
    (scope,) = (each for each in inner if qualname.startswith(f"{each.co_qualname}."))
    return _within(scope, qualname)


def _expression(source: str) -> ast.expr:
    return ast.parse(source, mode="eval").body


def _stands_for_any(node: Any) -> bool:
    return isinstance(node, ast.Name) and len(node.id) == 1 and node.id.isupper()


def _match(pattern: Any, node: Any, held: dict[str, ast.expr]) -> bool:
    """Return whether a tree matches a pattern; `held` receives the expressions of its capital letters."""
    if _stands_for_any(pattern):
        held[pattern.id] = node
        return isinstance(node, ast.expr)
    if isinstance(pattern, list):
        return len(pattern) == len(node) and all(map(_match, pattern, node, [held] * len(node)))
    if not isinstance(pattern, ast.AST):
        return type(pattern) is type(node) and pattern == node
    fields = [name for name in pattern._fields if name not in ("ctx", "kind")]
    return type(pattern) is type(node) and all(_match(getattr(pattern, f), getattr(node, f), held) for f in fields)


class _Fill(ast.NodeTransformer):
    """Replace capital letters by their expressions."""

    def __init__(self, held: dict[str, Any]) -> None:
        self.held = held

    def visit_Name(self, node: ast.Name) -> ast.AST:
        return copy.deepcopy(self.held[node.id]) if node.id in self.held else node


class _Swap(ast.NodeTransformer):
    """Replace and count all expressions that match a pattern."""

    def __init__(self, old: ast.expr, new: ast.expr) -> None:
        self.old, self.new, self.count = old, new, 0

    def visit(self, node: ast.AST) -> ast.AST:
        held: dict[str, ast.expr] = {}
        if _match(self.old, node, held):
            self.count += 1
            return _Fill(held).visit(copy.deepcopy(self.new))
        return self.generic_visit(node)
