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
