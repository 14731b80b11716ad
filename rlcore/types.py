"""Records and protocols: the names every part of rlcore is written in.

Time convention (one for everything). `reward[t]`, `terminated[t]`, `truncated[t]` arrived *with* `obs[t]`;
`action[t]` answers `obs[t]`. Environments reset themselves on the step after an episode's last observation:

    t            0      1      2*     3      4        * obs 2 ended the episode
    obs          o0     o1     o2     o0'    o1'      obs 3 opens the next one
    reward       0      r1     r2     0      r1'
    action       a0     a1     -      a0'    a1'      ignored at 2
    is_first     1      0      0      1      0
    transitions  0->1   1->2  [2->3]  3->4            [2->3] is the reset: weight 0 in every mean

Letters: T time, B environments, A action size. Time first: [T, B, ...].
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from rlcore import streams
from rlcore.spec import EnvSpec

if TYPE_CHECKING:  # environment workers import this file and must stay light
    import numpy as np
    from lightning_fabric import Fabric
    from torch import Tensor

    from rlcore.compiled.door import Compiler
    from rlcore.functional.noise import Noise

Metrics = dict[str, Any]  # name -> number or tensor [], read when a point of the log is due
Carry = Any  # an agent's recurrent state, opaque to everyone else; () when feed-forward
State = dict[str, Any]  # nested dicts of tensors, arrays, chunks and JSON values: what a checkpoint stores
Rows = Any  # np.ndarray, or a Tensor where the environments make them on a device


@dataclass
class Chunk:
    """A part of a state that never changes again, such as a thousand rows of a replay memory.

    A checkpoint writes it once, beside the checkpoints, and every later one refers to what is there.

    Attributes:
        columns: name -> tensor, read when it is first written or compared.
        stored: the folder it lies in -> its file's name, size and SHA-256; filled in by whoever writes it.
        light: between ranks travels only where it is stored, since it is wanted for no other folder.
    """

    columns: Callable[[], dict[str, Tensor]]
    stored: dict[str, dict[str, Any]] = field(default_factory=dict)
    light: bool = False

    def __reduce__(self) -> tuple[Any, ...]:
        """What travels between ranks."""
        return _chunk, ({} if self.light else self.columns(), self.stored)


def _chunk(held: dict[str, Tensor], stored: dict[str, dict[str, Any]]) -> Chunk:
    return Chunk(lambda: held, stored)


@dataclass
class Arrival:
    """What B environments returned at one moment: all NumPy, or all tensors of one device.

    Attributes:
        obs: key -> [B, ...], the environment's dtype.
        reward: [B] float32; 0 where the episode was just reset.
        terminated: [B] bool; the episode ended in an absorbing state.
        truncated: [B] bool; the episode was cut short here.
        is_first: [B] bool; obs opens an episode.
    """

    obs: dict[str, Rows]
    reward: Rows
    terminated: Rows
    truncated: Rows
    is_first: Rows


@dataclass(frozen=True)
class Episode:
    """One finished episode: env index, undiscounted return in the env's unit, length in actions."""

    env_index: int
    ret: float
    length: int


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


@dataclass
class Steps:
    """T steps of B environments in the alignment above.

    Attributes:
        obs: key -> [T, B, ...].
        action: [T, B, A] as the agent sees it (before clipping, squashing or `start`); ignored where done.
        reward: [T, B] float32, arrived with obs.
        terminated: [T, B] bool.
        truncated: [T, B] bool.
        is_first: [T, B] bool.
        extras: key -> [T, B, ...], what the agent said beside its action (`logprob`, `value`); {} of random actions.
        carry: the agent's carry before row 0 (of an arrival: after the row before it), nested, on the device.
        past: the rows before row 0 that the agent's `history` reaches back to, the newest last: obs/<key>, action and
            is_first, [rows, B, ...]; {} without a history.
    """

    obs: dict[str, Tensor]
    action: Tensor
    reward: Tensor
    terminated: Tensor
    truncated: Tensor
    is_first: Tensor
    extras: dict[str, Tensor] = field(default_factory=dict)
    carry: Carry = ()
    past: dict[str, Tensor] = field(default_factory=dict)


@dataclass
class Batch:
    """Rows that a buffer hands to `Learner.update`.

    Attributes:
        steps: [T, B, ...] on the learner's device.
        last: the arrival after row T-1 as tensors: obs key -> [B, ...] and reward, terminated, truncated, is_first [B].
        policy_steps: rows taken before these, all environments and ranks together: by them every schedule counts.
        places: [T, B] int64, where the rows lie in the replay memory that they were drawn from; None: in none.
        write_back: of extras, name -> [T, B, ...]: puts them in the place of what these rows have there, but for those
            that were overwritten since; does nothing where the rows lie in no memory.
    """

    steps: Steps
    last: Steps
    policy_steps: int
    places: np.ndarray | None = None
    write_back: Callable[[Mapping[str, Tensor]], None] = lambda extras: None


class Ranks(Protocol):
    """The processes that train one agent together, each with environments of its own."""

    rank: int  # of this one, from 0
    size: int

    def sum(self, value: Tensor) -> Tensor:
        """The sum over all ranks of a tensor that each has in the same shape; with one rank the tensor itself."""
        ...

    def gather(self, value: Any) -> list[Any]:
        """What each rank has, in their order."""
        ...


class Alone:
    """The one rank of a training in a single process."""

    rank, size = 0, 1

    def sum(self, value: Tensor) -> Tensor:
        """The tensor itself."""
        return value

    def gather(self, value: Any) -> list[Any]:
        """The value alone."""
        return [value]


@dataclass(frozen=True)
class Context:
    """What an algorithm is built from.

    Attributes:
        config: the whole RunConfig; `config.algo` is the algorithm's own.
        spec: of the environments.
        fabric: device and precision.
        ranks: who trains with this process.
        num_envs: B, environments of this rank.
        compiler: makes machine code of what optimizers, steps and the collector compute; None = it runs as written.
    """

    config: Any
    spec: EnvSpec
    fabric: Fabric
    ranks: Ranks
    num_envs: int
    compiler: Compiler | None = None

    def generator(self, purpose: str) -> np.random.Generator:
        """A stream of this rank's own, for a buffer that draws (`replay`) or a loss (`augment`)."""
        return streams.generator(self.config.seed, purpose, self.ranks.rank)


@dataclass(frozen=True)
class Plan:
    """All the loop must know of an algorithm.

    Attributes:
        total_steps: the budget in policy steps, as its user wrote it.
        collect_length: T, rows per environment between updates.
        random_steps: policy steps, from the first on, in which every action is drawn uniformly instead of by the agent.
    """

    total_steps: int
    collect_length: int
    random_steps: int = 0

    def metrics(self, policy_steps: int) -> Metrics:
        """Numbers for the log on the iteration from `policy_steps` on: whether its actions were drawn uniformly."""
        return {"Params/random_actions": float(policy_steps < self.random_steps)} if self.random_steps else {}


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
    """How one algorithm improves its agent from one batch; a base class. Holds no env, logger, path or loop.

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
        """What every part gives, by its name, and `updates`."""
        return {name: part.state_dict() for name, part in self.parts().items()} | {"updates": self.updates}

    def load_state_dict(self, state: State) -> None:
        """Continue from a `state_dict`; a KeyError where a part is not in it."""
        for name, part in self.parts().items():
            part.load_state_dict(state[name])
        self.updates = state["updates"]


class Buffer:
    """Where steps wait for the learner; a base class. Rollout hands each out once; Replay owes a ratio of batches."""

    @property
    def capacity(self) -> int:
        """Rows of every environment that it remembers."""
        return 0

    @property
    def batch_rows(self) -> int:
        """Rows of one batch that is drawn from what it remembers."""
        return 0

    def extend(self, steps: Steps, last: Steps) -> None:
        """Take T new rows and the arrival after them."""
        raise NotImplementedError

    def batches(self, policy_steps: int) -> Iterator[Batch]:
        """The batches due now; the rows before the newest were `policy_steps`."""
        raise NotImplementedError

    def metrics(self) -> Metrics:
        """Numbers about itself for the log, asked for after the updates of an iteration."""
        return {}

    def state_dict(self) -> State:
        """Everything the next batch depends on."""
        raise NotImplementedError

    def load_state_dict(self, state: State) -> None:
        """Continue from a `state_dict`."""
        raise NotImplementedError
