"""Learner of an algorithm: its construction, its parameters, and the state of its components.

The state of several ranks is the whole state of rank 0, and the differences of the other ranks. Parameters and
optimizer state are bit-identical on every rank. State that depends on a rank's environments (returns of unfinished
episodes, statistics, a random stream) differs and must be restored on the same rank.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeVar

import torch
from torch import nn

from rlcore import streams
from rlcore.algorithms import ALGORITHMS
from rlcore.config.run import AlgorithmConfig
from rlcore.errors import RunError, UserError
from rlcore.evaluation.policy import describe_mismatch
from rlcore.functional.tree import name_leaves
from rlcore.optim.optimizer import Optimizer
from rlcore.optim.target import Target
from rlcore.protocols import Buffer, Learner
from rlcore.store.checkpoint import nested_state
from rlcore.types import Context, Ranks, State, TrainingSchedule

Kind = TypeVar("Kind")
Part = list[Any]  # [keys, outermost first; value]


def build_algorithm(context: Context[AlgorithmConfig]) -> tuple[Learner, Buffer, TrainingSchedule]:
    """Build learner, buffer and schedule; raise a UserError if one of them does not have the required interface."""
    name = context.config.algo.name
    # Layers without an explicit initialization use torch's global generator: seed it equally on every rank.
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(streams.integer(context.config.seed, "init"))
        learner, buffer, plan = ALGORITHMS[name].build(context)
    kinds: list[tuple[object, type]] = [(learner, Learner), (buffer, Buffer)]  # a plugin may return anything
    for part, kind in kinds:
        if not isinstance(part, kind):
            raise UserError(
                f"algo.name={name}: {type(part).__name__} is not a subclass of rlcore.protocols.{kind.__name__}; "
                "derive the class from it (docs/your_own_algorithm.md)"
            )
    parts = learner.components()
    if missing := [part for part in ("agent", *learner.transferable_components) if part not in parts]:
        raise UserError(
            f"algo.name={name}: components() of its learner must have {missing[0]!r}, but has only {', '.join(parts)}"
        )
    return learner, buffer, plan


def parameters(learner: Learner) -> dict[str, nn.Parameter]:
    """Return the parameters of a learner by name, such as `agent.head.weight`.

    A parameter that belongs to several components is returned once, with its name in the first component.
    """
    named: dict[int, tuple[str, nn.Parameter]] = {}
    for at, part in learner.components().items():
        module = _module(part)
        if isinstance(module, nn.Module):
            for name, parameter in module.named_parameters():
                named.setdefault(id(parameter), (f"{at}.{name}", parameter))
    return dict(named.values())


def check_finite(state: State, policy_steps: int) -> None:
    """Raise a RunError if the state of a learner contains NaN or infinity.

    The metrics of an update are computed before its optimizer step. Parameters that became non-finite in the last
    update are therefore not visible in its metrics.
    """
    for name, leaf in name_leaves(state, "").items():  # leaves also include numbers and strings
        if torch.is_tensor(leaf) and not leaf.isfinite().all():
            raise RunError(f"not finite after {policy_steps} policy steps: {name[1:]}")


def start_from(learner: Learner, state: Mapping[str, Any], source: str) -> str:
    """Load the weights of another run into a learner.

    Each component that `learner.transferable_components` lists is loaded if the state contains it and its shapes match.
    A target network that was not loaded becomes a copy of its online network if the online network was loaded.

    Args:
        learner: receives the weights; its optimizers and random streams keep their initial state.
        state: component -> state, from the learner of the other run.
        source: run or checkpoint from which the state comes, for messages.

    Returns:
        A message that lists the loaded components, and the components that keep their initial weights with the reason.

    Raises:
        UserError: If the shapes of the component "agent" differ. In this case, nothing was loaded.
    """
    loaded, left = list[str](), dict[str, str]()
    parts = learner.components()
    for name in sorted(learner.transferable_components, key=lambda name: name != "agent"):
        part = parts[name]
        if name not in state:
            left[name] = "not in the source"
            continue
        wrong = describe_mismatch(state[name], part.state_dict())
        if wrong is None:
            part.load_state_dict(state[name])
            loaded.append(name)
        elif name == "agent":
            raise UserError(f"init_from={source}: {wrong}; use the algo and env keys of that run")
        else:
            left[name] = wrong
    copies = list[str]()
    for name, part in parts.items():
        if name in loaded or not isinstance(part, Target):
            continue
        if online := [at for at in loaded if _module(parts[at]) is part.online]:
            part.copy()
            left.pop(name, None)
            copies.append(f"; {name}: copy of {online[0]}")
    rest = f"; newly initialized: {', '.join(f'{name} ({why})' for name, why in left.items())}" if left else ""
    return f"init_from={source}: loaded {', '.join(loaded)}{''.join(copies)}{rest}"


def _module(part: Any) -> Any:
    return part.module if isinstance(part, (Optimizer, Target)) else part


# State of several ranks -----------------------------------------------------------------------------------------------


def parts_of_this_rank(state: State, ranks: Ranks) -> list[Part]:
    """Return the parts of a learner's state on this rank that differ from the learner's state on rank 0.

    On rank 0, the result is []. All ranks must call this function together.
    """
    if ranks.size == 1:
        return []
    first = ranks.gather(digests(state) if ranks.rank == 0 else None)[0]
    return list(parts_that_differ(state, first))


def digests(state: Any) -> Any:
    """Return a copy of a nested state in which every value that is not a mapping is replaced by its SHA-256 digest."""
    if isinstance(state, Mapping):
        return {key: digests(value) for key, value in state.items()}
    digest = hashlib.sha256()
    for part in nested_state.encode(state):
        digest.update(part)
    return digest.hexdigest()


def parts_that_differ(state: Any, first: Any, path: tuple[Any, ...] = ()) -> Iterator[Part]:
    """Compare a nested state with another state, and yield the innermost values that differ, with their keys.

    `first` is the result of `digests` for the other state. `path` contains the keys that lead to `state`.
    """
    if isinstance(state, Mapping) and isinstance(first, Mapping) and state.keys() == first.keys():
        for key, value in state.items():
            yield from parts_that_differ(value, first[key], (*path, key))
    elif digests(state) != first:
        yield [list(path), state]


def with_parts(state: Any, parts: Iterable[Part]) -> Any:
    """Return a copy of a nested state in which `parts`, the result of `parts_of_this_rank`, replace the values."""
    for path, value in parts:
        state = _with(state, path, value)
    return state


def _with(state: Any, path: list[Any], value: Any) -> Any:
    if not path:
        return value
    return {**state, path[0]: _with(state[path[0]], path[1:], value)}


def find_all(learner: Any, kind: type[Kind]) -> dict[str, Kind]:
    """Return all objects of class `kind` that a learner refers to, by their attribute paths.

    The attributes of the learner are searched, including lists, tuples and mappings. The attributes of another object
    are searched only if its class is defined in rlcore or in the top-level package of the learner's class.
    """
    ours = {each.__module__.partition(".")[0] for each in (type(learner), Learner)}
    found: dict[str, Kind] = {}
    seen: set[int] = set()

    def walk(value: Any, place: str) -> None:
        if id(value) in seen:
            return
        seen.add(id(value))
        if isinstance(value, kind) and value is not learner:
            found[place] = value
        elif isinstance(value, Mapping):
            for key, part in value.items():
                walk(part, f"{place}[{key!r}]")
        elif isinstance(value, (list, tuple)):
            for i, part in enumerate(value):
                walk(part, f"{place}[{i}]")
        elif type(value).__module__.partition(".")[0] in ours and hasattr(value, "__dict__"):
            for name, part in vars(value).items():
                walk(part, f"{place}.{name}" if place else name)

    walk(learner, "")
    return found
