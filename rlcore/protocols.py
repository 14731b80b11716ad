"""Roles of rlcore's parts: environments, an agent, a learner and its parts, a buffer; what each is asked for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from rlcore.spec import EnvSpec
from rlcore.types import Arrival, Batch, Carry, Episode, Metrics, State, Steps

if TYPE_CHECKING:  # environment workers import this file and must stay light
    import numpy as np
    from torch import Tensor

    from rlcore.functional.noise import Noise


class VectorEnv(Protocol):
    """B environments stepped together, resetting themselves on the step after an episode's end.

    Those that compute in batches on a device, their attribute `device`, give arrivals of tensors that lie there and
    take actions that do.
    """

    num_envs: int
    spec: EnvSpec

    def reset(self) -> Arrival:
        """Open an episode everywhere."""
        ...

    def step(self, action: Any) -> Arrival:
        """Take actions in the environments' own form, [B, ...]; ignored where the episode has just ended.

        NumPy where `reset` gave NumPy, else a tensor on the device of its tensors.
        """
        ...

    def pop_episodes(self) -> list[Episode]:
        """The episodes that ended since the last call, in order of time, then env index."""
        ...

    def boundary(self) -> Arrival | None:
        """Before a scheduled checkpoint: end what cannot be saved. The last arrival as it now is; None before reset."""
        ...

    def state_dict(self) -> State:
        """Everything the next step depends on, so that `load_state_dict` continues bit for bit."""
        ...

    def load_state_dict(self, state: State) -> None:
        """Continue from a `state_dict`."""
        ...

    def close(self) -> None:
        """Release environments and their processes."""
        ...


class Agent(Protocol):
    """Parameters, observation normaliser and how they act: everything inference needs. An `nn.Module`.

    Evaluation and serving make it as training does: of its config, spec, distribution and a torch.Generator.

    An attribute `keys` names the observation keys that it reads; without it, whoever asks it must bring all of them.
    An attribute `history` says of which keys it is to be shown past rows too (`rlcore.data.history`).
    """

    def initial(self, batch_size: int) -> Carry:
        """The carry at an episode's start; () when feed-forward."""
        ...

    def act(
        self, carry: Carry, obs: dict[str, Tensor], is_first: Tensor, rng: Noise | None, greedy: bool
    ) -> tuple[Carry, Tensor, dict[str, Tensor]]:
        """Choose actions. obs: key -> [B, ...]; is_first [B]. Returns (carry, action [B, A], extras key -> [B, ...]).

        `rng` supplies all noise; a greedy call needs none.
        """
        ...

    def to_env(self, action: Tensor) -> Tensor:
        """Actions [B, A] in the environment's own form, [B, *shape] of its dtype, clipped or squashed into its bounds.

        Stays on the action's device. It and `from_env` are the one convention between an agent's actions, which
        records hold, and the environment's, which nothing but the environment sees.
        """
        ...

    def from_env(self, action: Tensor) -> Tensor:
        """Actions [B, *shape] of the environment as the agent would have said them, [B, A]: `to_env` undone."""
        ...


@runtime_checkable
class Part(Protocol):
    """A piece of a learner with a state of its own: a module, an optimizer, a target, a stream of noise, a step."""

    def state_dict(self) -> State:
        """Everything of it that the next update depends on."""
        ...

    def load_state_dict(self, state: State) -> Any:
        """Continue from a `state_dict`."""
        ...


class Learner:
    """One algorithm's way of improving its agent from one batch; a base class. Holds no env, logger, path or loop.

    Attributes:
        agent: is judged, registered and served (`Agent`); one of the parts.
        updates: gradient steps taken.
        passed_on: names of the parts that another run may start from, and that are registered with the agent.
    """

    agent: Any
    updates: int
    passed_on: tuple[str, ...] = ("agent",)

    def update(self, batch: Batch, rng: np.random.Generator) -> Metrics:
        """Improve the agent; returns averages over the update, in SheepRL's metric names where it has one."""
        raise NotImplementedError

    def parts(self) -> Mapping[str, Part]:
        """Everything with a state that the next update depends on, by name; the agent is called `agent`.

        By them a learner is saved, loaded, counted and checked for being finite.
        """
        raise NotImplementedError("a learner names its parts: docs/your_own_algorithm.md")

    @property
    def player(self) -> Any:
        """The one who explores (`Agent`), if that is not the agent; what it has for itself is in a part."""
        return self.agent

    def publish(self, player: Any) -> None:
        """Bring a player up to date after an update: nothing where it is this learner's own, which shares tensors."""
        if player is not self.player:
            player.load_state_dict(self.player.state_dict())

    def state_dict(self) -> State:
        """State of every part, by its name, and `updates`."""
        return {name: part.state_dict() for name, part in self.parts().items()} | {"updates": self.updates}

    def load_state_dict(self, state: State) -> None:
        """Continue from a `state_dict`; a KeyError where a part is not in it."""
        for name, part in self.parts().items():
            part.load_state_dict(state[name])
        self.updates = state["updates"]


class Buffer:
    """Steps that wait for the learner; a base class. Rollout hands each out once; Replay owes a ratio of batches."""

    @property
    def capacity(self) -> int:
        """Rows of every environment that it remembers."""
        return 0

    @property
    def batch_rows(self) -> int:
        """Rows of one batch that is drawn from what it remembers."""
        return 0

    def count_batches(self, policy_steps: int) -> int | None:
        """Batches that it has handed out after so many policy steps of a whole run; None where it does not know."""
        return None

    def extend(self, steps: Steps, last: Steps) -> None:
        """Take T new rows and the arrival after them."""
        raise NotImplementedError

    def batches(self, policy_steps: int) -> Iterator[Batch]:
        """The batches due now; the rows before the newest were `policy_steps`."""
        raise NotImplementedError

    def due(self, policy_steps: int) -> int:
        """Number of batches `batches` will give, by which a long update says how far it is; 0 = nobody knows before."""
        return 0

    def metrics(self) -> Metrics:
        """Numbers about itself for the log, asked for after the updates of an iteration."""
        return {}

    def state_dict(self) -> State:
        """Everything the next batch depends on."""
        raise NotImplementedError

    def load_state_dict(self, state: State) -> None:
        """Continue from a `state_dict`."""
        raise NotImplementedError
