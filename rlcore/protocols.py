"""Interfaces of environments, agents, learners, their components, and buffers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from rlcore.errors import UserError
from rlcore.spec import EnvSpec
from rlcore.types import Batch, Carry, Episode, Metrics, State, TimeStep, Trajectory

if TYPE_CHECKING:  # environment workers import this file, and importing torch there costs time and memory
    import numpy as np
    import torch
    from torch import Tensor

    from rlcore.compiler import Compiler
    from rlcore.functional.noise import Noise


class VectorEnv(ABC):
    """Base class of vectorized environments: B environments that are stepped together.

    When the episode of an environment has ended, the next step resets this environment (next-step autoreset).

    A subclass must define all methods up to `close`. The others have a default: only environments that compute with
    tensors need them, such as `rlcore.envs.batched.vector.BatchedVectorEnv`.

    Attributes:
        num_envs: B.
        spec: spec of one environment.
        restarts: number of failures after which an environment was restarted.
    """

    num_envs: int
    spec: EnvSpec
    restarts: int = 0

    @abstractmethod
    def reset(self) -> TimeStep:
        """Start a new episode in every environment."""

    @abstractmethod
    def step(self, action: Any) -> TimeStep:
        """Step all environments with actions [B, ...] in the environment's format; return the next time step.

        An environment whose episode ended in the previous step is reset instead, and its action is ignored. Actions are
        a NumPy array if `reset` returned NumPy arrays. Otherwise they are a tensor on the device of the tensors that
        `reset` returned.
        """

    @abstractmethod
    def pop_episodes(self) -> Sequence[Episode]:
        """Return the episodes that ended since the last call, ordered by time, then by environment index."""

    @abstractmethod
    def boundary(self) -> TimeStep | None:
        """Truncate the current episodes of environments whose state cannot be saved, so that a checkpoint is exact.

        The training loop calls this before each scheduled checkpoint. After it, both the resumed run and a run that is
        not interrupted continue with new episodes. Returns the current time step, with `truncated` set for these
        environments, or None if `reset` was not called yet.
        """

    @abstractmethod
    def state_dict(self) -> State:
        """Return the complete state. After it is restored by `load_state_dict`, all later steps are bit-identical."""

    @abstractmethod
    def load_state_dict(self, state: State) -> None:
        """Restore the state returned by `state_dict`."""

    @abstractmethod
    def close(self) -> None:
        """Close the environments and stop their processes."""

    @property
    def device(self) -> torch.device | None:
        """Device of the tensors that the environments return and of the actions; None: they return NumPy arrays."""
        return None

    def start_rollout(self, policy_steps: int) -> TimeStep | None:
        """Prepare a rollout that starts after `policy_steps` policy steps.

        Return the first time step of new episodes, or None if the current episodes continue, which is the default.
        """
        return None

    def restart(self, values: Mapping[str, Any], policy_steps: int) -> TimeStep:
        """Start a new episode in every environment, with other parameters (`Trainer.collect(env_config=...)`).

        The running episodes have not ended, so `pop_episodes` does not return them.

        Args:
            values: parameters as in `env.config`; those that are not set keep their values.
            policy_steps: number of policy steps taken so far, at which schedules are evaluated.

        Returns:
            The first time step of the new episodes.

        Raises:
            UserError: The environments have no parameters (the default), a value is invalid, or no reset is due.
        """
        raise UserError(f"env_config={dict(values)}: {self.spec.id} is not a batched environment; use env.wrapper")

    def compile(self, compiler: Compiler) -> None:  # noqa: B027 - optional
        """Compile the step, after the environments were reset; by default, nothing is compiled."""


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

        It is called after weights were loaded, and after each iteration with at least one gradient step. If `player` is
        the behavior policy of this learner, nothing is copied.
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

    Attributes:
        ratio: number of batches per policy step of this rank; 0 if the buffer does not sample.
        row_bytes: bytes of one stored row; 0: the same as in the environment.
        chunk_rows: number of rows per environment in one chunk, the unit in which checkpoints store the rows.
    """

    ratio: Fraction = Fraction(0)
    row_bytes: int = 0
    chunk_rows: int = 0

    @property
    def capacity(self) -> int:
        """Number of rows (time steps) per environment for which the buffer has space."""
        return 0

    @property
    def batch_rows(self) -> int:
        """Number of rows (time steps) of one sampled batch; 0 if the buffer does not sample."""
        return 0

    @property
    def learned_rows(self) -> int:
        """Number of rows of a batch from which the learner learns; 0 if the buffer does not sample."""
        return 0

    @property
    def in_files(self) -> bool:
        """True if the rows are stored in memory-mapped files."""
        return False

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
