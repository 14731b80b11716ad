"""Network of the user, selected by `algo.model`: it replaces the encoder, the actor network and the critic network.

The class is called as `Net(obs_spec, action_spec, **model_config)`:

    obs_spec        observation key -> `rlcore.spec.ArraySpec`, for the keys that the config selects
    action_spec     `rlcore.spec.ActionSpec` of the environment
    model_config    the values of `algo.model_config`

    feed-forward    forward(obs) -> features [N, F], value [N]
    recurrent       forward(obs, carry) -> features [N, F], value [N], carry;  initial(batch_size) -> carry

`obs` is key -> [N, ...], or [N, frames, ...] for a key with a window (`ArraySpec.window`). The mask of a padded window
has the key `rlcore.spec.valid_key(key)`, [N, frames] bool. A recurrent network processes one time step; the agent loops
over time, and resets the carry (name -> [N, ...]) at the start of an episode.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from rlcore.algorithms.on_policy.own_network import CarryState, OwnNetwork, Settings
from rlcore.functional.scan import scan
from rlcore.functional.tree import map_leaves
from rlcore.nn.encoder import Normalizer
from rlcore.spec import ACTION, ArraySpec, EnvSpec, Window, valid_key
from rlcore.types import Ranks


class OwnModel(nn.Module):
    """Network of the user (`OwnNetwork`), with the conversion of its inputs and outputs.

    Observations keep their dtype, except that floating-point ones are converted to the dtype of the network's weights.
    The outputs are float32.

    Args:
        settings: the network and its arguments.
        spec: observation and action spaces of the environment.
        keys: observation keys that the network reads.
        history: key -> window, for keys of which the network receives several time steps.
        rng: the initial weights depend only on its seed. PyTorch's global CPU generator has this seed while the network
            is created.

    Raises:
        UserError: The network cannot be created, its `forward` fails, or an output has a wrong shape.
    """

    def __init__(
        self,
        settings: Settings,
        spec: EnvSpec,
        keys: Sequence[str],
        history: Mapping[str, Window],
        rng: torch.Generator,
    ) -> None:
        super().__init__()
        self.obs_spec = {key: replace(spec.obs[key], window=history.get(key)) for key in keys}
        self.recurrent = settings.recurrent
        if self.recurrent:
            self.obs_spec[ACTION] = ArraySpec((spec.action.flat_size,), "float32")
        self.padded = [key for key in self.obs_spec if key in history and history[key].padded]
        self.normalizers = nn.ModuleDict()
        for key, part in self.obs_spec.items():
            if settings.clip is not None and part.kind in ("vector", "goal") and part.n is None and key != ACTION:
                self.normalizers[key] = Normalizer(part.size, settings.clip)
        own = OwnNetwork(settings, self.obs_spec, spec.action, rng)
        self.net = own.net
        names = list[str]()
        for name, value in own.initial().items():
            self.register_buffer(f"initial_{name}", value.detach().clone(), persistent=False)
            names.append(name)
        self.names = tuple(names)
        obs = {key: _example(part, history.get(key)) for key, part in self.obs_spec.items()}
        obs |= {valid_key(key): torch.ones(2, history[key].frames, dtype=torch.bool) for key in self.padded}
        carry = {name: part.detach() for name, part in self.initial(2).items()}
        self.output_size = own.check(self._inputs(obs), carry)

    def forward(self, obs: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Return features [N, F] and values [N] of a feed-forward network for observations, key -> [N, ...]."""
        features, value = self.net(self._inputs(obs))
        return features.float(), value.float()

    def unroll(self, obs: Mapping[str, Tensor], forget: Tensor, carry: CarryState) -> tuple[Tensor, Tensor, CarryState]:
        """Process M sequences of L rows (time steps) with a recurrent network.

        Args:
            obs: key -> [L·M, ...], flattened in the order [L, M]. `past_action` [L·M, A] is the previous action, which
                is one-hot if it is discrete.
            forget: [L·M] bool; True for rows before which the carry (recurrent state) is reset.
            carry: name -> [M, ...]; carry before the first row of each sequence.

        Returns:
            Features [L·M, F], values [L·M], and the carry after the last row of each sequence.
        """
        count = carry[self.names[0]].shape[0]
        xs = {"obs": self._inputs(obs), "forget": forget}
        rows = map_leaves(lambda x: x.unflatten(0, (-1, count)), xs)
        weights = {**dict(self.net.named_parameters()), **dict(self.net.named_buffers())}
        initial = {name: getattr(self, f"initial_{name}") for name in self.names}
        carry, (features, value) = scan(self._step, carry, rows, {"weights": weights, "initial": initial})
        return features.flatten(0, 1).float(), value.flatten(0, 1).float(), carry

    def _step(
        self, carry: CarryState, xs: dict[str, Any], params: dict[str, Any]
    ) -> tuple[CarryState, tuple[Tensor, Tensor]]:
        started = {
            name: torch.where(xs["forget"].view(-1, *[1] * (part.ndim - 1)), params["initial"][name].to(part), part)
            for name, part in carry.items()
        }
        features, value, after = functional_call(self.net, params["weights"], (xs["obs"], started))
        return {name: after[name].to(part) for name, part in carry.items()}, (features, value)

    def initial(self, batch_size: int) -> CarryState:
        """Return the carry (recurrent state) at the start of an episode, name -> [B, ...]."""
        buffers = {name: getattr(self, f"initial_{name}") for name in self.names}
        return {name: value.expand(batch_size, *value.shape[1:]).clone() for name, value in buffers.items()}

    def observe(self, obs: Mapping[str, Tensor], ranks: Ranks) -> None:
        """Include the observations [T, B, ...] of a rollout, from all ranks, in the statistics for normalization."""
        for key, normalizer in self.normalizers.items():
            rows = obs[key].float().flatten(0, 1).flatten(1)
            normalizer.update(rows, ranks.sum)  # pyright: ignore[reportCallIssue]

    def _inputs(self, obs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        dtype = next((p.dtype for p in self.net.parameters() if p.is_floating_point()), torch.float32)
        inputs: dict[str, Tensor] = {}
        for key, part in self.obs_spec.items():
            x = obs[key]
            if key in self.normalizers:
                lead = x.shape[: x.ndim - len(part.shape)]
                x = self.normalizers[key](x.reshape(*lead, -1).float()).reshape(x.shape)
                if key in self.padded:
                    x = x * obs[valid_key(key)].view(*obs[valid_key(key)].shape, *[1] * len(part.shape))
            inputs[key] = x.to(dtype) if x.is_floating_point() else x
        return inputs | {valid_key(key): obs[valid_key(key)] for key in self.padded}


def _example(part: ArraySpec, window: Window | None) -> Tensor:
    """Return an example of two observations of a key: zeros, or the smallest value of a Discrete observation."""
    shape = (2, *((window.frames,) if window else ()), *part.shape)
    return torch.full(shape, part.start, dtype=getattr(torch, part.dtype))
