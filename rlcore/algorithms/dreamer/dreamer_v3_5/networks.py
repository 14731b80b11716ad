"""Networks of Dreamer V3.5: the recurrent cell, and the factories of all networks."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from rlcore.algorithms.dreamer.dense import Dense
from rlcore.algorithms.dreamer.dreamer_v3_5.config import Config
from rlcore.algorithms.dreamer.dreamer_v3_5.images import PoolingEncoder, UpsamplingDecoder
from rlcore.algorithms.dreamer.dreamer_v3_5.layer_keys import RecurrentConfig, mlp
from rlcore.algorithms.dreamer.dreamer_v3_5.layers import BlockLinear, ChannelNorm, NormFactory, RMSNorm
from rlcore.algorithms.dreamer.networks import Networks
from rlcore.spec import ArraySpec


class BlockGRU(nn.Module):
    """Gated recurrent unit whose state h is divided into G blocks (code of arXiv:2301.04104v2).

        x = [norm(W_h h), norm(W_z z), norm(W_a a / max(1, |a|))]        yᵏ = norm(Uᵏ [hᵏ, x])
        (rᵏ, cᵏ, uᵏ) = Vᵏ yᵏ        h' = σ(u - 1) tanh(σ(r) c) + (1 - σ(u - 1)) h

    Block k of h is hᵏ; `norm` is RMSNorm and activation; U is repeated `dynamics_layers` times. Thus a block depends on
    the other blocks only through the small vector x.

    Args:
        sizes: size of the stochastic state z, and of an action as a vector.
        size: H; size of the state h.
        keys: config of the cell.
        norm: creates norm and activation.
        rng: CPU generator, which `Dense` needs; `initialise` sets the weights later.
    """

    def __init__(
        self, sizes: tuple[int, int], size: int, keys: RecurrentConfig, norm: NormFactory, rng: torch.Generator
    ) -> None:
        super().__init__()
        self.sizes, self.blocks, hidden = sizes, keys.blocks, mlp(keys.hidden_size, 1)
        self.of_deter, self.of_stoch, self.of_action = (
            Dense(inputs, hidden, rng, norm=norm) for inputs in (size, *sizes)
        )
        inputs, layers = size + self.blocks * 3 * keys.hidden_size, list[nn.Module]()
        for _ in range(keys.dynamics_layers):
            layers += [BlockLinear(inputs, size, self.blocks), norm(size)]
            inputs = size
        self.hidden, self.gates = nn.ModuleList(layers), BlockLinear(inputs, 3 * size, self.blocks)

    def forward(self, x: Tensor, h: Tensor) -> Tensor:
        """Return the next state h' [..., H], with the dtype of h, from x = [z, a] [..., Z + A] and state h [..., H]."""
        stoch, action = x.split(self.sizes, -1)
        action = action / action.abs().clamp(min=1).detach()
        shared = torch.cat([self.of_deter(h), self.of_stoch(stoch), self.of_action(action)], -1)
        blocks = h.unflatten(-1, (self.blocks, -1))
        made = torch.cat([blocks, shared.unsqueeze(-2).expand(*blocks.shape[:-1], -1).to(h.dtype)], -1)
        for layer in self.hidden:
            made = layer(made) if isinstance(layer, BlockLinear) else layer(made.flatten(-2)).view_as(made)
        reset, candidate, update = (part.flatten(-2) for part in self.gates(made).to(h.dtype).chunk(3, -1))
        return torch.lerp(h, torch.tanh(reset.sigmoid() * candidate), (update - 1).sigmoid())


def make_networks(config: Config, stoch: int) -> Networks:
    """Return the factories of the networks; `stoch` is the size of the stochastic state z."""
    model = config.world_model

    def norm(size: int, *_: object) -> nn.Module:
        return RMSNorm(size, config.norm_eps, config.dense_act)

    def channel_norm(channels: int) -> nn.Module:
        return ChannelNorm(channels, config.norm_eps, config.cnn_act)

    def cell(inputs: int, size: int, _: object, rng: torch.Generator) -> nn.Module:
        return BlockGRU((stoch, inputs - stoch), size, model.recurrent_model, norm, rng)

    def image_encoder(specs: Sequence[ArraySpec], *_: object) -> PoolingEncoder:
        return PoolingEncoder(specs, model.encoder, channel_norm)

    def image_decoder(
        inputs: int, specs: Sequence[ArraySpec], _: object, rng: torch.Generator, *__: object
    ) -> nn.Module:
        return UpsamplingDecoder((stoch, inputs - stoch), specs, model.observation_model, norm, channel_norm, rng)

    return Networks(cell, norm, image_encoder, image_decoder)
