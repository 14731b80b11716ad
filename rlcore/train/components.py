"""State components of a learner: their parameters, a check that they are finite, and transfer from another run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from rlcore.errors import RunError, UserError
from rlcore.evaluation.policy import describe_mismatch
from rlcore.functional.tree import name_leaves
from rlcore.optim.optimizer import Optimizer
from rlcore.optim.target import Target
from rlcore.protocols import Learner
from rlcore.types import State


def parameters(learner: Learner) -> dict[str, nn.Parameter]:
    """Return the parameters of a learner by name, such as `agent.head.weight`.

    A parameter that several components share is returned once, with the name of the first of them.
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

    The metrics of the last update do not show non-finite parameters; those of the next one would.
    """
    for name, leaf in name_leaves(state, "").items():  # leaves also include numbers and strings
        if torch.is_tensor(leaf) and not leaf.isfinite().all():
            raise RunError(f"not finite after {policy_steps} policy steps: {name[1:]}")


def start_from(learner: Learner, state: Mapping[str, Any], source: str) -> str:
    """Load the weights of another run into every `transferable_components` whose shapes match.

    If the state of a target network is missing and its online network was loaded, the target becomes a copy of it.

    Args:
        learner: receives the weights; its optimizers and random streams keep their initial state.
        state: component -> state, from another learner.
        source: origin of the state, for messages.

    Returns:
        A message with the loaded components, and those that keep their initial weights, with the reason.

    Raises:
        UserError: If the shapes of the agent differ; nothing was loaded.
    """
    taken, left = list[str](), dict[str, str]()
    parts = learner.components()
    for name in sorted(learner.transferable_components, key=lambda name: name != "agent"):
        part = parts[name]
        if name not in state:
            left[name] = "not in the source"
            continue
        wrong = describe_mismatch(state[name], part.state_dict())
        if wrong is None:
            part.load_state_dict(state[name])
            taken.append(name)
        elif name == "agent":
            raise UserError(f"init_from={source}: {wrong}; use the algo and env keys of that run")
        else:
            left[name] = wrong
    copies = list[str]()
    for name, part in parts.items():
        if name in taken or not isinstance(part, Target):
            continue
        if online := [at for at in taken if _module(parts[at]) is part.online]:
            part.copy()
            left.pop(name, None)
            copies.append(f"; {name}: copy of {online[0]}")
    rest = f"; newly initialized: {', '.join(f'{name} ({why})' for name, why in left.items())}" if left else ""
    return f"init_from={source}: loaded {', '.join(taken)}{''.join(copies)}{rest}"


def _module(part: Any) -> Any:
    return part.module if isinstance(part, (Optimizer, Target)) else part
