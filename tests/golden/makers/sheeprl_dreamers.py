"""Parts of the makers of SheepRL's Dreamers: learners, a batch, samples as noise, and the content of the files."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import ModuleType
from typing import Any
from unittest import mock

import numpy as np
import torch
from gymnasium import spaces
from lightning.fabric import Fabric
from omegaconf import OmegaConf
from sheeprl.utils.utils import dotdict
from torch import Tensor
from torch.distributions import Independent

from tests.golden.makers import sheeprl_configs
from tests.golden.makers.files import versions, write_arrays, write_settings

LENGTH, COUNT, HORIZON = 5, 3, 4
NVEC = (3, 2)


def compose(exp: str, changes: dict[str, Any]) -> Any:
    """Return SheepRL's config, resolved."""
    typed = [f"{key}={'null' if value is None else value}" for key, value in changes.items()]
    return dotdict(sheeprl_configs.resolve(sheeprl_configs.compose(exp, "env=dummy", *typed)))


def observations(side: int) -> spaces.Dict:
    return spaces.Dict({"rgb": spaces.Box(0, 255, (3, side, side), np.uint8), "state": spaces.Box(-1, 1, (4,))})


def build(theirs: ModuleType, cfg: Any, nvec: tuple[int, ...], fabric: Fabric, side: int) -> tuple[Any, ...]:
    """Return world model, actor, critic and, of V2 and V3, target critic, with disturbed weights in float64."""
    *modules, _ = theirs.build_agent(fabric, nvec or (2,), not nvec, cfg, observations(side))
    for module in modules:
        module.double()
    disturb(*modules)
    return tuple(modules)


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


def pictures(rng: torch.Generator) -> Tensor:
    """Return images of squares with one color each, which compress well."""
    small = torch.randint(256, (LENGTH, COUNT, 3, 4, 4), generator=rng)
    return small.repeat_interleave(16, -1).repeat_interleave(16, -2)


def draw_squashed(samples: Samples) -> Any:
    """Sample squashed normals and record the normal noise."""
    return lambda self, *_: samples.normal(self.base_dist).tanh()


def draw_normals(samples: Samples) -> Any:
    """Sample independent distributions and record the noise of normals."""
    plain = Independent.rsample

    def rsample(self: Any, *shape: Any) -> Tensor:
        base = self.base_dist
        return samples.normal(base) if isinstance(base, torch.distributions.Normal) else plain(self, *shape)

    return rsample


def leaves(preset: str) -> dict[str, Any]:
    """Return the dotted keys of a resolved preset, without those that only Hydra or a named class reads."""
    tree: Any = OmegaConf.to_container(sheeprl_configs.compose(preset), resolve=False)
    kept = {key: tree[key] for key in ("algo", "env", "buffer", "seed")}
    return sheeprl_configs.flatten(sheeprl_configs.resolve(kept), ".")


def count(theirs: ModuleType, cfg: Any) -> dict[str, int]:
    """Return the number of parameters for images of 64 × 64 and 9 actions."""
    obs_space = spaces.Dict({"rgb": spaces.Box(0, 255, (3, 64, 64), np.uint8)})
    world, actor, critic, *_ = theirs.build_agent(Fabric(accelerator="cpu"), (9,), False, cfg, obs_space)
    parts = {"world_model": world, "actor": actor, "critic": critic}
    return {name: sum(p.numel() for p in module.parameters()) for name, module in parts.items()}


def count_size(theirs: ModuleType, version: str, size: str) -> dict[str, int]:
    """Return the number of parameters of a size of V3 or V3.5, without allocation."""
    numbers = mock.patch.object(torch, "tensor", functools.partial(torch.tensor, device="cpu"))  # widths are computed
    stays = mock.patch.object(torch.nn.Module, "to", lambda self, *_, **__: self)
    cfg = compose(version, {"algo": f"{version}_{size}"})
    with torch.device("meta"), numbers, stays:
        return count(theirs, cfg)


def results(
    name: str,
    nvec: tuple[int, ...],
    data: dict[str, Tensor],
    modules: tuple[Any, ...],
    losses: tuple[Tensor, ...],
    others: dict[str, Any],
) -> dict[str, np.ndarray]:
    """Return the content of a variant for the file: float32, except classes and pixels.

    Args:
        name: the variant.
        nvec: choices of its actions.
        data: the batch.
        modules: world model, actor, critic and further ones.
        losses: of world model, actor and critic.
        others: further tensors by their names.
    """
    parts = dict(zip(("world", "actor", "critic", "target"), modules, strict=False))
    content = {f"batch/{key}": value for key, value in data.items()}
    for part, module in parts.items():
        content |= {f"weights/{part}/{key}": value for key, value in module.state_dict().items()}
    for part, loss in zip(parts, losses, strict=False):
        content |= {f"gradients/{part}/{key}": value for key, value in gradients(loss, parts[part]).items()}
    dtypes: dict[str, Any] = {f"noise/choice{i}": np.int64 for i in range(len(nvec))} | {"batch/rgb": np.uint8}
    return {
        f"{name}/{key}": value.detach().numpy().astype(dtypes.get(key, np.float32))
        for key, value in (content | others).items()
    }


def named_metrics(found: dict[str, Tensor], model: Tensor, policy: Tensor, value: Tensor) -> dict[str, Tensor]:
    """Return the metrics of V1 and V2, and their losses, by their names in a log."""
    metrics = {f"{'Loss' if key.endswith('loss') else 'State'}/{key}": number for key, number in found.items()}
    metrics |= {"Loss/world_model_loss": model, "Loss/policy_loss": policy, "Loss/value_loss": value}
    return {f"metrics/{key}": number for key, number in metrics.items()}


def noise_of(observed: Tensor, samples: Samples, nvec: tuple[int, ...]) -> dict[str, Tensor]:
    """Return the noise of the model's states, of imagined ones, and of the actions between them."""
    found = {"noise/observed": observed, "noise/imagined": samples.of("latent")}
    if not nvec:
        return found | {"noise/normal": samples.of("normal")}
    choices = [index for kind, index in samples.drawn if kind == "choice"]
    return found | {f"noise/choice{i}": torch.cat(choices[i :: len(nvec)]) for i in range(len(nvec))}


def write(
    name: str,
    make: Callable[[str, dict[str, Any]], dict[str, np.ndarray]],
    common: dict[str, Any],
    variants: dict[str, dict[str, Any]],
    content: dict[str, np.ndarray] | None = None,
    **facts: Any,
) -> None:
    """Write the golden values of a version, and their settings.

    Args:
        name: the version.
        make: function (name of a variant, its overrides) -> arrays.
        common: overrides of all variants.
        variants: name of a variant -> its further overrides.
        content: further arrays.
        **facts: further settings.
    """
    content = dict(content or {})
    for variant, changes in variants.items():
        content |= make(variant, changes)
    write_arrays(name, content)
    write_settings(name, {"common": common, "variants": variants} | facts | versions("sheeprl", "torch"))
