"""Interfaces of environments, agents, learners, their components, and buffers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from rlcore.spec import EnvSpec
from rlcore.types import Batch, Carry, Episode, Metrics, State, TimeStep, Trajectory

if TYPE_CHECKING:  # environment workers import this file, and importing torch there costs time and memory
    import numpy as np
    from torch import Tensor

    from rlcore.functional.noise import Noise


class VectorEnv(Protocol):
    """Interface of a vectorized environment: B environments that are stepped together.

    When the episode of an environment has ended, the next step resets this environment (next-step autoreset).
    Environments that compute on a device have an attribute `device`. They return tensors on that device and take
    actions on it.
    """

    num_envs: int
    spec: EnvSpec

    def reset(self) -> TimeStep:
        """Start a new episode in every environment."""
        ...

    def step(self, action: Any) -> TimeStep:
        """Step all environments with actions [B, ...] in the environment's format; return the next time step.

        An environment whose episode ended in the previous step is reset instead, and its action is ignored. Actions are
        a NumPy array if `reset` returned NumPy arrays. Otherwise they are a tensor on the device of the tensors that
        `reset` returned.
        """
        ...

    def pop_episodes(self) -> Sequence[Episode]:
        """Return the episodes that ended since the last call, ordered by time, then by environment index."""
        ...

    def boundary(self) -> TimeStep | None:
        """Truncate the current episodes of environments whose state cannot be saved, so that a checkpoint is exact.

        The training loop calls this before each scheduled checkpoint. After it, both the resumed run and a run that is
        not interrupted continue with new episodes. Returns the current time step, with `truncated` set for these
        environments, or None if `reset` was not called yet.
        """
        ...

    def state_dict(self) -> State:
        """Return the complete state. After it is restored by `load_state_dict`, all later steps are bit-identical."""
        ...

    def load_state_dict(self, state: State) -> None:
        """Restore the state returned by `state_dict`."""
        ...

    def close(self) -> None:
        """Close the environments and stop their processes."""
        ...


class Agent(Protocol):
    """Interface of agents: an `nn.Module` with everything that inference needs (parameters, normalizer, `act`).

    Training, evaluation and serving construct an agent from the algorithm's config, the spec of the environment, the
    type of the action distribution, and a torch.Generator for the initial weights.

    The optional attribute `keys` lists the observation keys that the agent reads; without it, all keys are passed. The
    optional attribute `history` declares keys whose past observations the agent also sees (`rlcore.data.history`).
    """

    def initial(self, batch_size: int) -> Carry:
        """Return the carry (recurrent state) of `batch_size` environments at the start of an episode.

        It is () if the agent is feed-forward.
        """
        ...

    def act(
        self, carry: Carry, obs: dict[str, Tensor], is_first: Tensor, rng: Noise | None, greedy: bool
    ) -> tuple[Carry, Tensor, dict[str, Tensor]]:
        """Choose actions for B environments; return (new carry, actions [B, A], extras).

        `carry` is the recurrent state, `obs` is key -> [B, ...], and `is_first` [B] is True at the start of an episode.
        If `greedy` is True, the most likely actions are chosen, and `rng` can be None. Otherwise actions are sampled
        with noise from `rng`. The extras are extra outputs of the agent, such as the log-probability of the action,
        name -> [B, ...]; `Trajectory.extras` stores them.
        """
        ...

    def to_env(self, action: Tensor) -> Tensor:
        """Convert actions from the agent's format [B, A] to the environment's format [B, *shape].

        The result has the environment's dtype, is clipped or squashed to the bounds of the action space, and is on the
        device of `action`. Buffers and losses use the agent's format; only environments use the other one.
        """
        ...

    def from_env(self, action: Tensor) -> Tensor:
        """Convert actions from the environment's format [B, *shape] to the agent's format [B, A].

        This is the inverse of `to_env`.
        """
        ...


@runtime_checkable
class Stateful(Protocol):
    """Interface of the components of a learner that have state.

    Examples are a module, an optimizer, a target network and a random stream.
    """

    def state_dict(self) -> State:
        """Return all state that the next update depends on."""
        ...

    def load_state_dict(self, state: State, /) -> Any:
        """Restore the state returned by `state_dict`."""
        ...


class Learner:
    """Base class of learners: the update rule of an algorithm, without environments, loggers, paths or a loop.

    Attributes:
        agent: the `Agent` that is evaluated, registered and served; one of the components.
        updates: number of gradient steps taken since the start of the run.
        transferable_components: names of the components from which another run can start (config key `init_from`). They
            are stored together with the agent when a model is registered.
    """

    agent: Any
    updates: int
    transferable_components: tuple[str, ...] = ("agent",)

    def update(self, batch: Batch, rng: np.random.Generator) -> Metrics:
        """Train the agent on a batch and return metrics, averaged over the gradient steps.

        A metric that SheepRL also reports has the same name as in SheepRL. `rng` draws the order of the samples.
        """
        raise NotImplementedError

    def components(self) -> Mapping[str, Stateful]:
        """Return name -> component, for all components with state that the next update depends on.

        The agent has the name `agent`. The components are saved in checkpoints and restored from them. Their parameters
        are counted for the log, and checked for values that are not finite.
        """
        raise NotImplementedError(
            f"{type(self).__name__} must implement components(), which returns name -> component with state; see "
            "docs/your_own_algorithm.md"
        )

    @property
    def behavior_policy(self) -> Any:
        """Behavior policy: the `Agent` that collects data. By default, this is `agent`.

        A learner can use another agent instead, for example one that explores more. The state of that agent must then
        be part of one of the learner's `components`.
        """
        return self.agent

    def sync_weights(self, player: Any) -> None:
        """Copy the current weights to `player`, a copy of the behavior policy that collects data.

        If `player` is the behavior policy of this learner, nothing is copied.
        """
        if player is not self.behavior_policy:
            player.load_state_dict(self.behavior_policy.state_dict())

    def state_dict(self) -> State:
        """Return a dict with the state of each component, name -> state, and the number of `updates`."""
        return {name: part.state_dict() for name, part in self.components().items()} | {"updates": self.updates}

    def load_state_dict(self, state: State) -> None:
        """Restore a state returned by `state_dict`. Raises KeyError if a component is missing."""
        for name, part in self.components().items():
            part.load_state_dict(state[name])
        self.updates = state["updates"]


class Buffer:
    """Base class of buffers, which store collected data for the learner.

    `Rollout` yields each rollout once. `Replay` yields a fixed number of batches per policy step.
    """

    @property
    def capacity(self) -> int:
        """Number of rows (time steps) per environment for which the buffer has space."""
        return 0

    @property
    def batch_rows(self) -> int:
        """Number of rows (time steps) of one sampled batch; 0 if the buffer does not sample."""
        return 0

    def count_batches(self, policy_steps: int) -> int | None:
        """Return how many batches the buffer yields in the first `policy_steps` steps of a run; None if unknown."""
        return None

    def extend(self, steps: Trajectory, last: Trajectory) -> None:
        """Add a rollout of T rows, [T, B, ...], and the time step after it, [B, ...]."""
        raise NotImplementedError

    def batches(self, policy_steps: int) -> Iterator[Batch]:
        """Yield the batches on which the learner should train now.

        `policy_steps` is the number of policy steps, over all ranks, that were taken before the newest rollout.
        """
        raise NotImplementedError

    def due(self, policy_steps: int) -> int:
        """Return the number of batches that `batches(policy_steps)` will yield; 0 if it is unknown.

        Progress reports use it.
        """
        return 0

    def metrics(self) -> Metrics:
        """Return metrics of the buffer, name -> value, which are logged after each iteration of the training loop."""
        return {}

    def state_dict(self) -> State:
        """Return all state that the next batch depends on."""
        raise NotImplementedError

    def load_state_dict(self, state: State) -> None:
        """Restore the state returned by `state_dict`."""
        raise NotImplementedError
