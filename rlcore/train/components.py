"""A learner by its parts: every parameter, whether all of it is finite, and what it takes from another run."""

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
    """Every parameter of a learner's parts once, by the part that has it first: `agent.head.weight`."""
    found: dict[int, tuple[str, nn.Parameter]] = {}
    for at, part in learner.components().items():
        module = _module(part)
        if isinstance(module, nn.Module):
            for name, parameter in module.named_parameters():
                found.setdefault(id(parameter), (f"{at}.{name}", parameter))
    return dict(found.values())


def convert_old_state(state: State) -> State:
    """A learner's state in today's form: in earlier versions the optimizer's said how steps were computed."""
    return {"step": {"compiled": state.get("optimizer", {}).get("compiled")}} | state


def check_finite(state: State, policy_steps: int) -> None:
    """Refuse a learner's state with NaN or infinity, which the update after this one would find to be broken."""
    for name, leaf in name_leaves(state, "").items():  # numbers and words among them
        if torch.is_tensor(leaf) and not leaf.isfinite().all():
            raise RunError(f"not finite after {policy_steps} policy steps: {name[1:]}")


def start_from(learner: Learner, state: Mapping[str, Any], source: str) -> str:
    """Take the weights of another run: every part of `transferable_components` that is there in the same shapes.

    A target that is not there becomes a copy of what it follows, where that is taken.

    Args:
        learner: that takes them; its optimizers and streams start anew.
        state: part -> its state, of another learner.
        source: where it comes from, for messages.

    Returns:
        A sentence: what was taken, and what stays as drawn, and why.

    Raises:
        UserError: the agent is of other shapes; nothing was taken.
    """
    taken, left = list[str](), dict[str, str]()
    parts = learner.components()
    for name in sorted(learner.transferable_components, key=lambda name: name != "agent"):
        part = parts[name]
        if name not in state:
            left[name] = "it has none"
            continue
        wrong = describe_mismatch(state[name], part.state_dict())
        if wrong is None:
            part.load_state_dict(state[name])
            taken.append(name)
        elif name == "agent":
            raise UserError(f"init_from={source}: {wrong}; use its algo and env keys")
        else:
            left[name] = wrong
    copies = list[str]()
    for name, part in parts.items():
        if name in taken or not isinstance(part, Target):
            continue
        if whose := [at for at in taken if _module(parts[at]) is part.online]:
            part.copy()
            left.pop(name, None)
            copies.append(f"; {name}: a copy of {whose[0]}")
    rest = f"; drawn anew: {', '.join(f'{name} ({why})' for name, why in left.items())}" if left else ""
    return f"init_from={source}: starts with its {', '.join(taken)}{''.join(copies)}{rest}"


def _module(part: Any) -> Any:
    return part.module if isinstance(part, (Optimizer, Target)) else part
