"""Parts of the makers of Plan2Explore: replacements of SheepRL's optimizer step and of its metrics."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from lightning.fabric import Fabric

from tests.golden.makers.sheeprl_dreamers import gradients

# SheepRL trains the ensemble on steps between two episodes too, so no episode ends within the sequences of a batch.
CONTINUED = {"is_first": (3, 1), "terminated": (2, 1)}


class Recorder:
    """Replacement of SheepRL's `update`: it records losses and gradients instead of taking an optimizer step."""

    def __init__(self, modules: dict[str, torch.nn.Module]) -> None:
        self.modules, self.content = modules, dict[str, Any]()

    def optimizer(self, name: str) -> Any:
        return SimpleNamespace(name=name, zero_grad=lambda **_: None)

    def update(self, fabric: Fabric, loss: torch.Tensor, optimizer: Any, *_: Any, **__: Any) -> None:
        self.content[f"losses/{optimizer.name}"] = loss
        found = gradients(loss, self.modules[optimizer.name])
        self.content |= {f"gradients/{optimizer.name}/{key}": value for key, value in found.items()}


class Metrics:
    """Replacement of SheepRL's aggregator."""

    disabled = False

    def __init__(self) -> None:
        self.content: dict[str, Any] = {}

    def update(self, name: str, value: torch.Tensor) -> None:
        self.content[f"metrics/{name}"] = value


def noise(
    observed: torch.Tensor, rest: list[tuple[str, torch.Tensor]], nvec: tuple[int, ...], actions: int
) -> dict[str, torch.Tensor]:
    """Return the noise of the model's states, and that of the imagined states and actions of both behaviors.

    Args:
        observed: noise of the states of the batch.
        rest: kind and noise of all later samples: those of the exploration actor, then as many of the task actor.
        nvec: choices of discrete actions; () for continuous ones.
        actions: number of imagined actions; after them, a policy is evaluated again, with further samples.
    """
    content, per_behavior = {"noise/observed": observed}, len(rest) // 2
    for name, part in (("exploration", rest[:per_behavior]), ("task", rest[per_behavior:])):
        content[f"noise/{name}/imagined"] = torch.cat([value for kind, value in part if kind == "latent"])
        acts, each = [value for kind, value in part if kind != "latent"], max(1, len(nvec))
        for i in range(each):
            content[f"noise/{name}/{f'choice{i}' if nvec else 'normal'}"] = torch.cat(acts[i::each])[:actions]
    return content


def inputs(data: dict[str, torch.Tensor], modules: dict[str, torch.nn.Module]) -> dict[str, Any]:
    """Return a batch and the weights of modules by their names in the file."""
    content: dict[str, Any] = {f"batch/{key}": value for key, value in data.items()}
    for part, module in modules.items():
        content |= {f"weights/{part}/{key}": value for key, value in module.state_dict().items()}
    return content


def as_arrays(name: str, content: dict[str, Any]) -> dict[str, np.ndarray]:
    """Return the content of a variant for the file: float32, except classes and pixels."""
    dtypes: dict[str, Any] = {key: np.int64 for key in content if "/choice" in key} | {"batch/rgb": np.uint8}
    return {
        f"{name}/{key}": torch.as_tensor(value).detach().numpy().astype(dtypes.get(key, np.float32))
        for key, value in content.items()
    }
