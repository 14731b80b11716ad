"""SAC-AE: Improving Sample Efficiency in Model-Free RL from Images. Yarats et al. 2021, arXiv:1910.01741.

Parts of the paper and the code that implements them:
    losses J(Q), J(π), J(α)                 rlcore.algorithms.sac.losses
    loss J(RAE)                             reconstruction_loss
    shared convolutions, two projections    sac_ae.autoencoder.Trunk, Encoder
    no actor gradient in convolutions       Learner._make_optimizers: the actor's optimizer does not train them
    5-bit targets                           sac_ae.autoencoder.five_bits
    log std between -10 and 2               Agent.limit
    soft updates with τ_enc and τ_Q         Learner.step_critics

    loss    trains
    J(Q)    convolutions, critics' projection, critics
    J(RAE)  convolutions, critics' projection, decoder
    J(π)    actor's projection, actor

Each loss has a separate optimizer. Therefore, the optimizers of J(Q) and J(RAE) both train the convolutions and the
critics' projection, with separate moments.

Differences from the paper:
    two features are from SheepRL: vector observations have an MLP that actor and critics share, like the convolutions,
    so images and vectors can be combined; and the penalty with weight λ_z is added once per decoded key. J(Q) has the
    factor ½, and log-probabilities do not include the scale of the action bounds, as in
    `rlcore.algorithms.sac.learner`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from rlcore import streams
from rlcore.algorithms.replay import make_replay
from rlcore.algorithms.sac import learner as sac
from rlcore.algorithms.sac.critics import Critics
from rlcore.algorithms.sac.losses import alpha_loss
from rlcore.algorithms.sac.sac_ae.autoencoder import Decoder, Encoder, Trunk, initialise_orthogonal
from rlcore.algorithms.sac.sac_ae.config import Config
from rlcore.algorithms.sac.squashed_actor import SquashedActor
from rlcore.algorithms.sac.temperature import Temperature
from rlcore.data.history import add_history, rows_before
from rlcore.data.replay import Replay
from rlcore.data.samplers import Transitions
from rlcore.data.steps import Transition, n_step
from rlcore.functional.distributions import LOG_STD_MAX
from rlcore.functional.noise import Noise
from rlcore.functional.stats import LossTerms, mean_metrics, reduce_loss
from rlcore.optim.optimizer import Optimizer
from rlcore.optim.step import Step
from rlcore.optim.target import Target
from rlcore.spec import EnvSpec
from rlcore.types import Batch, Context, Metrics, TrainingSchedule


class Agent(SquashedActor):
    """Actor of SAC-AE: its encoder has a separate projection, but shares all other layers with the critics' encoder."""

    encoder: Encoder

    def __init__(self, config: Config, spec: EnvSpec, distribution: str, rng: torch.Generator) -> None:
        part, keys = config.encoder, (config.mlp_keys.encoder, config.cnn_keys.encoder)
        trunk = Trunk(spec, *keys, part, part.cnn_channels_multiplier, rng)
        super().__init__(config.actor, spec, Encoder(trunk, part.features_dim, rng), rng)
        for module in (self.actor, self.head):
            initialise_orthogonal(module, rng)

    def limit(self, log_std: Tensor) -> Tensor:
        """Map the outputs of the policy head [N, A] to log stds between `log_std_min` and 2.

        A tanh is used instead of clipping, because its gradient is not zero outside the range.
        """
        return self.log_std_min + (LOG_STD_MAX - self.log_std_min) / 2 * (log_std.tanh() + 1)


def reconstruction_loss(
    made: Mapping[str, Tensor], targets: Mapping[str, Tensor], z: Tensor, l2_lambda: float
) -> Tensor:
    """Compute the reconstruction loss J(RAE) of each sample (arXiv:1910.01741).

        J(RAE) = Σₖ [mean (x̂ₖ - xₖ)² + λ_z ½‖z‖²]        sum over the decoded keys k

    The paper has a third term, λ_θ ‖θ‖². Here it is the weight decay of the decoder's optimizer.

    Args:
        made: key -> [N, ...]; reconstructed observations x̂.
        targets: key -> [N, ...]; targets x.
        z: [N, F]; latent vectors.
        l2_lambda: λ_z, weight of the penalty on z.

    Returns:
        Loss, [N].
    """
    penalty = l2_lambda * 0.5 * z.square().sum(1)
    errors = [(made[key] - target).square().flatten(1).mean(1) for key, target in targets.items()]
    return torch.stack([error + penalty for error in errors]).sum(0)


class Learner(sac.Learner):
    """SAC-AE learner: gradient steps of critics, actor and autoencoder on batches of transitions."""

    transferable_components = ("agent", "critics", "target", "decoder")
    part_names = (
        *(*transferable_components, "temperature", "noise", "critic_step", "actor_step", "decoder_step"),
        *(*sac.OPTIMIZERS, "decoder_optimizer"),
    )

    config: Config
    agent: Agent

    def __init__(self, context: Context[Config]) -> None:
        config, spec = context.algo, context.spec
        self.config, self.ranks, self.updates = config, context.ranks, 0
        self.noise = Noise(context.config.seed, "loss", context.ranks.rank, device=context.fabric.device)
        rng = torch.Generator().manual_seed(streams.integer(context.config.seed, "init"))  # equal on all ranks
        self.agent = Agent(config, spec, context.config.distribution.type, rng)
        encoder = Encoder(self.agent.encoder.trunk, config.encoder.features_dim, rng)
        self.critics = Critics(encoder, spec.action.size, config.critic, config.critic.n, rng)
        initialise_orthogonal(self.critics.members, rng)
        keys = (config.mlp_keys.decoded, config.cnn_keys.decoded)
        self.decoder = Decoder(encoder, *keys, config.decoder, config.decoder.cnn_channels_multiplier, rng)
        self.temperature = Temperature(config.alpha.alpha)
        self.target_entropy = config.alpha.target(spec.action.size)
        self.target = Target(self.critics, context)
        self._make_optimizers(context, encoder)
        optimizers = [each for each in (self.actor_optimizer, self.alpha_optimizer) if each]
        self.critic_step = Step(self.step_critics, [self.critic_optimizer], [self.target], context)
        self.actor_step = Step(self.improve_actor, optimizers, [], context)
        self.decoder_step = Step(self.improve_decoder, [self.decoder_optimizer], [], context)

    def _make_optimizers(self, context: Context[Config], encoder: Encoder) -> None:
        """Create an optimizer for each loss.

        The shared layers of the encoder are trained with the critic loss and the reconstruction loss, but not with the
        policy loss.
        """
        self.critic_optimizer = self.make_critic_optimizer(context)
        self.alpha_optimizer = self.make_alpha_optimizer(context)
        agent, config, uses = self.agent, self.config, [self.agent, self.critics, self.temperature]
        own = nn.ModuleList([agent.encoder.projection, agent.actor, agent.head])  # without the trunk
        self.actor_optimizer = Optimizer(own, self.actor_objective, config.actor.optimizer, context, uses=uses)
        both = nn.ModuleDict({"encoder": encoder, "decoder": self.decoder})
        self.decoder_optimizer = Optimizer(both, self.decoder_objective, config.reconstruction_optimizer(), context)

    def update(self, batch: Batch, rng: np.random.Generator) -> Metrics:
        """Take one gradient step on a batch of N transitions of n steps each, [n, N], and return the metrics.

        Each gradient step updates the critics. The target critics, the actor and the autoencoder are updated in some of
        the gradient steps, at intervals that the config defines.
        """
        config = self.config
        self.updates += 1
        given = n_step(add_history(batch, self.agent.history), config.gamma)
        moves = float(self.updates % config.critic.per_rank_target_network_update_freq == 0)
        metrics = self.critic_step(given, moves, rng=self.noise)
        if self.updates % config.actor.per_rank_update_freq == 0:
            metrics |= self.actor_step(given, rng=self.noise)
        if self.updates % config.decoder.per_rank_update_freq == 0:
            metrics |= self.decoder_step(given, rng=self.noise)
        return mean_metrics([metrics], self.ranks)

    def step_critics(self, batch: Transition, moves: float, rng: Noise) -> Metrics:
        """Take an optimizer step on the critic loss J(Q).

        If `moves` is 1, also update the target critics and their encoder; if it is 0, do not.
        """
        metrics, config = self.improve_critics(batch, rng), self.config
        self.target.update(
            self.critic_optimizer, {"encoder": config.encoder.tau * moves, "members": config.tau * moves}
        )
        return metrics

    def improve_decoder(self, batch: Transition, rng: Noise) -> Metrics:
        """Take an optimizer step on the reconstruction loss J(RAE), which trains encoder and decoder."""
        noise = [rng.uniform(*shape) for shape in self.decoder.noise_shapes(len(batch.weight))]
        return self.decoder_optimizer.minimize(batch, noise).metrics

    def alpha_objective(self, logprob: Tensor, weight: Tensor) -> LossTerms:
        """Compute the temperature loss J(α) of a batch.

        The loss has the factor α, as in the authors' code of SAC-AE; the factor in this project's SAC is log α.
        """
        alpha = self.temperature.log_alpha.exp()
        loss = alpha_loss(alpha, logprob, self.target_entropy)
        return reduce_loss(loss, weight, Loss__alpha_loss=loss, Info__alpha=alpha.expand_as(loss))

    def decoder_objective(self, batch: Transition, noise: Sequence[Tensor]) -> LossTerms:
        """Compute the reconstruction loss J(RAE) of a batch, with the latent vectors z of the critics' encoder.

        `noise` contains uniform noise for the targets, one tensor for each image key (see `Decoder.noise_shapes`).
        """
        z = self.critics.encoder(batch.obs)
        loss = reconstruction_loss(
            self.decoder(z), self.decoder.targets(batch.obs, noise), z, self.config.decoder.l2_lambda
        )
        return reduce_loss(loss, batch.weight, Loss__reconstruction_loss=loss)


def build(context: Context[Config]) -> tuple[Learner, Replay, TrainingSchedule]:
    """Build the learner, the replay buffer and the training schedule of a run.

    The initial weights are random; they depend only on the seed of the run (`seed`).
    """
    learner = Learner(context)
    return learner, *make_replay(context, Transitions(context.algo.n_step), before=rows_before(learner.agent.history))
