"""Interfaces of environments, agents, learners, their components, and buffers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from rlcore.spec import EnvSpec
from rlcore.types import Batch, Carry, Episode, Metrics, State, TimeStep, Trajectory

if TYPE_CHECKING:  # environment workers import this file, and importing torch there costs time and memory
    import numpy as np
    from torch import Tensor

    from rlcore.functional.noise import Noise


class VectorEnv(Protocol):
    """Interface of B environments that are stepped together; each is reset in the step after its episode has ended.

    Environments that compute on a device have an attribute `device`. They return tensors on that device and take
    actions on it.
    """

    num_envs: int
    spec: EnvSpec

    def reset(self) -> TimeStep:
        """Start a new episode in every environment."""
        ...

    def step(self, action: Any) -> TimeStep:
        """Take actions [B, ...] in the environment's form; the action of an environment that is reset is ignored.

        Actions are a NumPy array if `reset` returned NumPy arrays. Otherwise they are a tensor on the device of the
        tensors that `reset` returned.
        """
        ...

    def pop_episodes(self) -> list[Episode]:
        """Return the episodes that ended since the last call, ordered by time, then by environment index."""
        ...

    def boundary(self) -> TimeStep | None:
        """Truncate the episodes of environments whose state cannot be saved; called before each scheduled checkpoint.

        Returns the last time step with these truncations, or None if `reset` was not called yet.
        """
        ...

    def state_dict(self) -> State:
        """Return the complete state; after `load_state_dict` with it, the next steps are bit-identical."""
        ...

    def load_state_dict(self, state: State) -> None:
        """Restore the state returned by `state_dict`."""
        ...

    def close(self) -> None:
        """Close the environments and stop their processes."""
        ...


class Agent(Protocol):
    """Interface of agents: an `nn.Module` with everything that inference needs (parameters, normalizer, `act`).

    Training, evaluation and serving construct an agent from its config, spec, distribution and a torch.Generator.

    The optional attribute `keys` lists the observation keys that the agent reads; without it, all keys are passed. The
    optional attribute `history` declares keys whose past rows the agent also sees (`rlcore.data.history`).
    """

    def initial(self, batch_size: int) -> Carry:
        """Return the carry at the start of an episode; () if the agent is feed-forward."""
        ...

    def act(
        self, carry: Carry, obs: dict[str, Tensor], is_first: Tensor, rng: Noise | None, greedy: bool
    ) -> tuple[Carry, Tensor, dict[str, Tensor]]:
        """Choose actions for B environments; return (carry, action [B, A], extras key -> [B, ...]).

        `obs`: key -> [B, ...]; `is_first`: [B]. All noise comes from `rng`, which may be None if `greedy` is True.
        """
        ...

    def to_env(self, action: Tensor) -> Tensor:
        """Convert actions [B, A] to the environment's form [B, *shape]: its dtype, clipped or squashed to its bounds.

        The result stays on the device of `action`. Buffers and losses store actions in the agent's form; only the
        environment receives its own form. `to_env` and `from_env` are the only conversions between the two.
        """
        ...

    def from_env(self, action: Tensor) -> Tensor:
        """Convert actions [B, *shape] of the environment to the agent's form [B, A]; the inverse of `to_env`."""
        ...


@runtime_checkable
class Stateful(Protocol):
    """Component of a learner that has state: a module, an optimizer, a target network, a noise stream or a step."""

    def state_dict(self) -> State:
        """Return all state that the next update depends on."""
        ...

    def load_state_dict(self, state: State) -> Any:
        """Restore the state returned by `state_dict`."""
        ...


class Learner:
    """Base class of learners: the update rule of an algorithm, without environments, loggers, paths or a loop.

    Attributes:
        agent: the `Agent` that is evaluated, registered and served; one of the components.
        updates: number of gradient steps taken.
        transferable_components: names of the components that are registered with the agent and that `init_from` may
            load in another run.
    """

    agent: Any
    updates: int
    transferable_components: tuple[str, ...] = ("agent",)

    def update(self, batch: Batch, rng: np.random.Generator) -> Metrics:
        """Train the agent on a batch and return metrics averaged over the update.

        Metrics have the names that SheepRL uses, if it has the metric.
        """
        raise NotImplementedError

    def components(self) -> Mapping[str, Stateful]:
        """Return name -> component, for all components with state that the next update depends on.

        The agent has the name `agent`. The components are saved in checkpoints, loaded, counted (number of parameters)
        and checked for values that are not finite.
        """
        raise NotImplementedError("implement components(): see docs/your_own_algorithm.md")

    @property
    def behavior_policy(self) -> Any:
        """Behavior policy (an `Agent`) that collects data, if it differs from `agent`; its state is in a component."""
        return self.agent

    def sync_weights(self, player: Any) -> None:
        """Copy the current weights to a behavior policy. `self.behavior_policy` itself is already up to date."""
        if player is not self.behavior_policy:
            player.load_state_dict(self.behavior_policy.state_dict())

    def state_dict(self) -> State:
        """Return the state of every component by name, and `updates`."""
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
        """Number of rows per environment that the buffer stores."""
        return 0

    @property
    def batch_rows(self) -> int:
        """Number of rows of one sampled batch."""
        return 0

    def count_batches(self, policy_steps: int) -> int | None:
        """Return the total number of batches after `policy_steps` of a run, or None if it is unknown."""
        return None

    def extend(self, steps: Trajectory, last: Trajectory) -> None:
        """Add T new rows and the time step that follows them."""
        raise NotImplementedError

    def batches(self, policy_steps: int) -> Iterator[Batch]:
        """Yield the batches that are due. `policy_steps`: number of policy steps before the newest rows."""
        raise NotImplementedError

    def due(self, policy_steps: int) -> int:
        """Return the number of batches that `batches` will yield, for progress reports; 0 if it is unknown."""
        return 0

    def metrics(self) -> Metrics:
        """Return metrics of the buffer, logged after the updates of an iteration."""
        return {}

    def state_dict(self) -> State:
        """Return all state that the next batch depends on."""
        raise NotImplementedError

    def load_state_dict(self, state: State) -> None:
        """Restore the state returned by `state_dict`."""
        raise NotImplementedError
