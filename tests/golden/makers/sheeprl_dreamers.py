"""Parts of the fixture scripts of Dreamers: SheepRL's config, a batch, weights, and its samples as noise."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import hydra
import numpy as np
import torch
from omegaconf import OmegaConf
from sheeprl.utils.utils import dotdict
from torch import Tensor
from torch.distributions import Independent

LENGTH, COUNT, HORIZON = 5, 3, 4
NVEC = (3, 2)


def compose(exp: str, changes: dict[str, Any]) -> Any:
    """Return SheepRL's config, resolved."""
    typed = [f"{key}={'null' if value is None else value}" for key, value in changes.items()]
    with hydra.initialize_config_module("sheeprl.configs", version_base="1.3"):
        composed = hydra.compose("config", [f"exp={exp}", "env=dummy", *typed])
    return dotdict(OmegaConf.to_container(composed, resolve=True, throw_on_missing=False))


class Samples:
    """Recorder of samples in their order, as noise with which others draw the same samples."""

    def __init__(self) -> None:
        self.drawn: list[tuple[str, Tensor]] = []

    def one_hot(self, distribution: Any) -> Tensor:
        """Sample one-hot categoricals and record the middle of their interval of uniform noise, and their class."""
        p = distribution.probs
        index = torch.distributions.Categorical(probs=p.detach()).sample()
        below = torch.cat([torch.zeros_like(p[..., :1]), p.detach().cumsum(-1)], -1)
        middle = (below.gather(-1, index[..., None]) + below.gather(-1, index[..., None] + 1)).squeeze(-1) / 2
        self.drawn.append(("latent" if p.ndim == 4 else "choice", middle if p.ndim == 4 else index))
        return torch.nn.functional.one_hot(index, p.shape[-1]).to(p) + (p - p.detach())

    def normal(self, distribution: Any) -> Tensor:
        """Sample normals and record their noise."""
        noise = torch.randn_like(distribution.mean)
        self.drawn.append(("normal", noise))
        return distribution.mean + distribution.stddev * noise

    def of(self, kind: str) -> Tensor:
        """Return all noise of a kind."""
        return torch.cat([noise for name, noise in self.drawn if name == kind])


def batch(nvec: tuple[int, ...], picture: Callable[[torch.Generator], Tensor]) -> dict[str, Tensor]:
    """Return rows in SheepRL's form, with discrete actions or, for none, two continuous ones."""
    rng = torch.Generator().manual_seed(5)
    is_first = torch.zeros(LENGTH, COUNT, 1, dtype=torch.float64)
    is_first[0], is_first[3, 1] = 1.0, 1.0
    terminated, reward = torch.zeros_like(is_first), torch.randn(LENGTH, COUNT, 1, generator=rng).double() * 3
    terminated[2, 1], terminated[4, 0] = 1.0, 1.0
    if nvec:
        index = [torch.randint(n, (LENGTH, COUNT), generator=rng) for n in nvec]
        action = torch.cat([torch.nn.functional.one_hot(i, n) for i, n in zip(index, nvec, strict=True)], -1).double()
    else:
        action = torch.rand(LENGTH, COUNT, 2, generator=rng).double() * 2 - 1
    return {
        "rgb": picture(rng).double(),
        "state": (torch.randn(LENGTH, COUNT, 4, generator=rng) * 3).float().double(),
        "actions": action.float().double(),
        "rewards": reward.float().double() * (1 - is_first),
        "terminated": terminated,
        "is_first": is_first,
    }


def disturb(*modules: torch.nn.Module) -> None:
    """Move weights away from their initial values, rounded to float32."""
    rng = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for module in modules:
            for p in module.parameters():
                p.copy_((p + 0.15 * torch.randn(p.shape, generator=rng).double()).float().double())


def gradients(loss: Tensor, module: torch.nn.Module) -> dict[str, Tensor]:
    names, parameters = zip(*module.named_parameters(), strict=True)
    found = torch.autograd.grad(loss, parameters, retain_graph=True, allow_unused=True)
    return {n: torch.zeros_like(p) if g is None else g for n, p, g in zip(names, parameters, found, strict=True)}


def draw_normals(samples: Samples) -> Any:
    """Sample independent distributions and record the noise of normals."""
    plain = Independent.rsample

    def rsample(self: Any, *shape: Any) -> Tensor:
        base = self.base_dist
        return samples.normal(base) if isinstance(base, torch.distributions.Normal) else plain(self, *shape)

    return rsample


def leaves(preset: str) -> dict[str, Any]:
    """Return the dotted keys of a resolved preset, without those that only Hydra or a named class reads."""
    with hydra.initialize_config_module("sheeprl.configs", version_base="1.3"):
        composed = hydra.compose("config", [f"exp={preset}"])
    tree = OmegaConf.to_container(composed, resolve=False)
    for group in ("hydra", "model_manager", "metric", "fabric", "checkpoint"):
        tree.pop(group, None)
    composed = OmegaConf.create({key: tree[key] for key in ("algo", "env", "buffer", "seed")})
    flat: dict[str, Any] = {}

    def walk(value: Any, place: str) -> None:
        if isinstance(value, dict) and value:
            for key, part in value.items():
                walk(part, f"{place}.{key}" if place else key)
        else:
            flat[place] = value

    walk(OmegaConf.to_container(composed, resolve=True, throw_on_missing=False), "")
    return flat


def entries(data: dict[str, Tensor], modules: dict[str, Any], losses: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return batch, weights, and gradients of the loss of each module, by their names in a fixture."""
    found = {f"batch/{key}": value for key, value in data.items()}
    for part, module in modules.items():
        found |= {f"weights/{part}/{key}": value for key, value in module.state_dict().items()}
    for part, loss in losses.items():
        found |= {f"gradients/{part}/{key}": value for key, value in gradients(loss, modules[part]).items()}
    return found


def stored(content: dict[str, Tensor], nvec: tuple[int, ...]) -> dict[str, np.ndarray]:
    """Return the content of a fixture for the file: float32, except classes and pixels."""
    dtypes: dict[str, Any] = {f"noise/choice{i}": np.int64 for i in range(len(nvec))} | {"batch/rgb": np.uint8}
    kinds = {key: dtypes.get(key.partition("/")[2], np.float32) for key in content}
    return {key: value.detach().numpy().astype(kinds[key]) for key, value in content.items()}


def noise_of(observed: Tensor, samples: Samples, nvec: tuple[int, ...]) -> dict[str, Tensor]:
    """Return the noise of the model's states, of imagined ones, and of the actions between them."""
    found = {"noise/observed": observed, "noise/imagined": samples.of("latent")}
    if not nvec:
        return found | {"noise/normal": samples.of("normal")}
    choices = [index for kind, index in samples.drawn if kind == "choice"]
    return found | {f"noise/choice{i}": torch.cat(choices[i :: len(nvec)]) for i in range(len(nvec))}
