"""Mutants of PPO: one change of one named function each, with the check that must detect it."""

from __future__ import annotations

import ast
import copy
import functools
import inspect
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
        name: the mistake.
        function: the changed function, with the name of its module if several functions have this name.
        change: a `swap`, `given` or `returned`.
        check: name of the check in `oracle`, with its arguments, that must fail.
    """

    name: str
    function: str
    change: Change
    check: tuple[str, ...]


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


BASE = ("check_update", "discrete", "base")
NORMAL = ("check_update", "continuous", "base")
PARTS = ("check_update", "multi_discrete", "base")
RAW = ("check_update", "discrete", "raw_advantages")
ALONE = ("check_update", "discrete", "one_sample_minibatch")
VALUE_CLIP = ("check_update", "discrete", "clip_vloss")
DUAL_CLIP = ("check_update", "discrete", "dual_clip")
KL_STOP = ("check_update", "discrete", "target_kl")
SUMMED = ("check_update", "discrete", "accumulate")
GAE = ("check_advantages", "loop")
SCAN = ("check_advantages", "log_scan")
ROLLOUT = ("check_rollout",)
ANNEALING = ("check_annealing",)
DECAY = ("check_weight_decay",)

LOSS, UPDATE, STEP = "ppo.objective", "ppo.Learner.update", "ppo.Learner.gradient_step"
SAMPLES, ADVANTAGES, VALUE, POLICY = "ppo.Learner.samples", "advantages", "ppo.value_loss", "ppo.policy_loss"
ENTROPY = "ppo.entropy_loss"
MUTANTS = (
    # The surrogate.
    Mutant("maximum instead of minimum", POLICY, swap("torch.minimum(A, B)", "torch.maximum(A, B)"), BASE),
    Mutant("no clip", POLICY, swap("A.clamp(B, C)", "A"), BASE),
    Mutant("clipped from above only", POLICY, swap("A.clamp(B, C)", "A.clamp(None, C)"), BASE),
    Mutant("clipped from below only", POLICY, swap("A.clamp(B, C)", "A.clamp(B, None)"), BASE),
    Mutant("advantage of the wrong sign", POLICY, returned("-it"), BASE),
    Mutant("ratio upside down", LOSS, swap("A.exp()", "(-A).exp()"), BASE),
    Mutant("dual clip where the advantage is positive", POLICY, swap("A < 0", "A > 0"), DUAL_CLIP),
    Mutant("dual clip the wrong way", POLICY, swap("torch.maximum(A, B)", "torch.minimum(A, B)"), DUAL_CLIP),
    Mutant("dual clip ignored", POLICY, given(dual_clip="None"), DUAL_CLIP),
    # Advantage normalization.
    Mutant("advantages not normalised", UPDATE, swap("A.normalize_advantages", "False"), BASE),
    Mutant("advantages always normalised", UPDATE, swap("A.normalize_advantages", "True"), RAW),
    Mutant("biased std", "standardize", swap("(A - 1).clamp(min=1)", "A"), BASE),
    Mutant(
        "padding in the mean",
        "standardize",
        swap("(x * weight).sum(-1, keepdim=True)", "x.sum(-1, keepdim=True)"),
        BASE,
    ),
    Mutant("a single advantage is wiped out", "standardize", swap("torch.where(A, B, C)", "B"), ALONE),
    # Value loss.
    Mutant("½ in the value loss", VALUE, returned("0.5 * it"), BASE),
    Mutant(
        "(N, 1) against (N,)",
        VALUE,
        swap("(value - returns).square()", "(value.unsqueeze(-1) - returns).square().mean(-1)"),
        BASE,
    ),
    Mutant("value clip missing", VALUE, given(clip_coef="None"), VALUE_CLIP),
    Mutant("value clip alone", VALUE, swap("torch.maximum(A, B)", "B"), VALUE_CLIP),
    Mutant("value clip to the smaller loss", VALUE, swap("torch.maximum(A, B)", "torch.minimum(A, B)"), VALUE_CLIP),
    Mutant("value clipped unasked", LOSS, swap("A.clip_vloss", "True"), BASE),
    Mutant("vf_coef dropped", LOSS, swap("A.vf_coef", "1"), BASE),
    Mutant("returns are the advantages", SAMPLES, swap("advantage + value", "advantage"), GAE),
    # Entropy and log-probability.
    Mutant("entropy of the wrong sign", ENTROPY, returned("-it"), BASE),
    Mutant("ent_coef dropped", LOSS, swap('coefs["ent_coef"]', "0"), BASE),
    Mutant("entropy of one sub-action", "distributions.Categoricals.entropy", returned("it / len(self.parts)"), PARTS),
    Mutant("log-probability of one sub-action", "Categoricals.logprob", returned("it / len(self.parts)"), PARTS),
    Mutant("log-probability without the std", "Normal.logprob", swap("self.log_std", "0"), NORMAL),
    Mutant("entropy of a normal without the std", "Normal.entropy", swap("self.log_std", "0 * self.log_std"), NORMAL),
    # Means, minibatches and the optimizer.
    Mutant("padding counted in the losses", "reduce_loss", swap("loss.dot(weight)", "loss.sum()"), BASE),
    Mutant("padding counted in the mean", "reduce_loss", swap("weight.sum()", "weight.new_tensor(len(loss))"), BASE),
    Mutant("sum instead of mean", "Optimizer.take_step", swap('A == "mean"', 'A == "sum"'), RAW),
    Mutant("one epoch only", "minibatches", given(epochs="1"), BASE),
    Mutant(
        "rest of an epoch thrown away",
        "minibatches",
        swap("rng.permutation(A)", "rng.permutation(A)[: len(A) // size * size]"),
        BASE,
    ),
    Mutant("every minibatch of a group weighs alike", "Gradient._begin", given(weight="weight * 0 + 128"), SUMMED),
    Mutant(
        "the last gradient of a group alone",
        "Gradient.add_loss",
        swap("self._begin(weight)", "(self.clear(), self._begin(weight))"),
        SUMMED,
    ),
    Mutant("gradient not clipped", "clip_factors", swap("A.clamp(max=1.0)", "1.0"), BASE),
    Mutant("gradient clipped elsewhere", "clip_factors", swap("max_norm / A", "1.0 / A"), BASE),
    Mutant("gradients never forgotten", "Optimizer.drop", swap("self.gradient.clear()", "None"), BASE),
    Mutant("Adam's ε forgotten", "_fused_adam", swap('config["eps"]', "1e-20"), BASE),
    Mutant("Adam without its corrections", "_fused_adam", swap("A.to(B, torch.float32)", "torch.tensor(1e9)"), BASE),
    Mutant("decoupled weight decay", "_fused_adam", swap("A.decoupled", "True"), DECAY),
    # Early stop by KL.
    Mutant("KL stop ignored", STEP, swap("1.5", "1e9"), KL_STOP),
    Mutant("KL stop without its 1.5", STEP, swap("1.5", "1.0"), KL_STOP),
    Mutant("KL stop ends the epoch only after stepping", STEP, swap("A.apply(unless=B)", "A.apply()"), KL_STOP),
    Mutant("KL by the first-order estimate", "approximate_kl", swap("A - 1 - B", "-B"), KL_STOP),
    # Advantages and time alignment.
    Mutant(
        "trace not cut at an episode's end",
        ADVANTAGES,
        swap("gae_lambda * B", "gae_lambda * torch.ones_like(B)"),
        GAE,
    ),
    Mutant("truncation as termination", ADVANTAGES, swap("A.terminated", "A.done"), GAE),
    Mutant("termination as truncation", ADVANTAGES, swap("gamma * B", "gamma * torch.ones_like(B)"), GAE),
    Mutant("λ dropped", ADVANTAGES, given(gae_lambda="1.0"), GAE),
    Mutant("no bootstrap after the last row", ADVANTAGES, given(last_value="torch.zeros_like(last_value)"), GAE),
    Mutant("value of the same observation as the next", "gae", given(next_value="value"), GAE),
    Mutant("γ missing from the trace", "gae", swap("discounted_sum(A, B * C)", "discounted_sum(A, C)"), GAE),
    Mutant("log_scan one round short", "discounted_scan", swap("A < B", "2 * A < B"), SCAN),
    Mutant("reward one row late", "transitions", swap("shift(A.reward, B)", "A.reward"), GAE),
    Mutant("termination one row late", "transitions", swap("shift(A.terminated, B)", "A.terminated"), GAE),
    Mutant("end of an episode one row late", "transitions", swap("shift(reset, B)", "reset"), GAE),
    Mutant("reset rows counted", "transitions", swap("(~A).float()", "torch.ones_like(A).float()"), ROLLOUT),
    # Annealing.
    Mutant("learning rate not annealed", UPDATE, swap("A.set_lr(B)", "None"), ANNEALING),
    Mutant("clip not annealed", LOSS, swap('A["clip_coef"]', "config.clip_coef"), ANNEALING),
    Mutant("entropy bonus not annealed", LOSS, swap('A["ent_coef"]', "config.ent_coef"), ANNEALING),
)


# Application of changes -----------------------------------------------------------------------------------------------


def wrong(name: str) -> AbstractContextManager[None]:
    """Apply the PPO mutant of this name to rlcore."""
    (mutant,) = (each for each in MUTANTS if each.name == name)
    return changed(mutant.function, mutant.change)


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
            package = path.removesuffix(".learner").removesuffix(".config").rpartition(".")[2]
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
