"""Data types shared by all of rlcore: time steps, trajectories, batches, and the inputs of algorithms.

The interfaces of environments, agents, learners and buffers are in `rlcore.protocols`.

Time convention, used everywhere. The environment returned `reward[t]`, `terminated[t]` and `truncated[t]` *together
with* `obs[t]`. The agent chose `action[t]` after it saw `obs[t]`. An environment resets automatically in the step after
the last observation of an episode (next-step autoreset in Gymnasium):

    t            0      1      2*     3      4        * obs 2 ended the episode
    obs          o0     o1     o2     o0'    o1'      obs 3 is the first of the next episode
    reward       0      r1     r2     0      r1'
    action       a0     a1     -      a0'    a1'      ignored at 2
    is_first     1      0      0      1      0
    transitions  0->1   1->2  [2->3]  3->4            [2->3] is the reset: weight 0 in every mean

Letters: T time, B environments, A action size. Time is the first dimension: [T, B, ...].
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Generic, Protocol, Self, overload

import numpy as np

from rlcore import streams
from rlcore.config.run import Algo_co
from rlcore.spec import EnvSpec

if TYPE_CHECKING:  # environment workers import this file, and importing torch there costs time and memory
    from lightning_fabric import Fabric
    from torch import Tensor

    from rlcore.compiler import Compiler
    from rlcore.config.run import RunConfig


Metrics = dict[str, Any]  # name -> number or tensor []; tensors are read only when metrics are logged
ALLOWED = "Info/allowed_choices"  # metric: share of choices that action masks allow; NaN if they allow no action


Carry = Any  # recurrent state of an agent, opaque to all other code; () if the agent is feed-forward


State = dict[str, Any]  # content of a checkpoint: nested dicts of tensors, arrays, chunks and JSON values


Rows = Any  # np.ndarray, or a Tensor if the environments compute on a device


@dataclass
class Chunk:
    """Part of a checkpoint that later checkpoints can share, such as a thousand rows of a replay buffer.

    The first checkpoint that contains a chunk writes it to a file next to the checkpoints. Later checkpoints refer to
    that file.

    Attributes:
        columns: function that returns name -> tensor; called when the chunk is first written or compared.
        stored: folder -> name, size and SHA-256 of the chunk's file in that folder; set by the code that writes it.
        light: if True, only `stored` (the reference to the file) is sent to other ranks, and not the tensors.
    """

    columns: Callable[[], dict[str, Tensor]]
    stored: dict[str, dict[str, Any]] = field(default_factory=dict)
    light: bool = False


@dataclass
class TimeStep:
    """Time step of B environments: the values that one call of `reset` or `step` returned.

    All fields are NumPy arrays, or all are tensors on one device.

    Attributes:
        obs: key -> [B, ...], in the dtype of the environment.
        reward: [B] float32; 0 if the environment was just reset.
        terminated: [B] bool; the episode ended in an absorbing state.
        truncated: [B] bool; the episode was cut short at this time step, for example by a time limit.
        is_first: [B] bool; obs is the first observation of an episode.
    """

    obs: dict[str, Rows]
    reward: Rows
    terminated: Rows
    truncated: Rows
    is_first: Rows


@dataclass(frozen=True)
class Episode:
    """Finished episode.

    Attributes:
        env_index: index of its environment.
        ret: undiscounted return in the environment's unit.
        length: length in actions.
        info: name -> mean or last value in the episode, for each number that `env.info_keys` selects in `info`; names
            that no step contained are missing.
    """

    env_index: int
    ret: float
    length: int
    info: Mapping[str, float] = field(default_factory=dict[str, float], hash=False)


@dataclass(frozen=True, eq=False)
class Episodes(Sequence[Episode]):
    """Finished episodes, stored as lists; an `Episode` is created only if it is read.

    The fields are those of `Episode`, with one number per episode. `info` has a list for each name, with None for each
    episode in which no step contained it.
    """

    env_index: list[int] = field(default_factory=list[int])
    ret: list[float] = field(default_factory=list[float])
    length: list[int] = field(default_factory=list[int])
    info: dict[str, list[float | None]] = field(default_factory=dict[str, list[float | None]])

    @classmethod
    def of(cls, episodes: Iterable[Episode]) -> Self:
        """Return the argument if it is of this class, otherwise create an object with the same episodes."""
        if isinstance(episodes, cls):
            return episodes
        every = [*episodes]
        info = {name: [e.info.get(name) for e in every] for name in dict.fromkeys(n for e in every for n in e.info)}
        return cls([e.env_index for e in every], [e.ret for e in every], [e.length for e in every], info)

    def extend(
        self,
        env_index: Iterable[int],
        ret: Iterable[float],
        length: Iterable[int],
        info: Mapping[str, Sequence[float | None]] = MappingProxyType({}),
    ) -> None:
        """Append episodes, given by their fields."""
        earlier = len(self.ret)
        self.env_index.extend(env_index)
        self.ret.extend(ret)
        self.length.extend(length)
        for name, values in info.items():
            self.info.setdefault(name, [None] * earlier).extend(values)
        for column in self.info.values():
            column.extend([None] * (len(self.ret) - len(column)))

    def pop(self) -> Episodes:
        """Remove all episodes, and return them."""
        popped = Episodes(self.env_index[:], self.ret[:], self.length[:], self.info.copy())
        for column in (self.env_index, self.ret, self.length, self.info):
            column.clear()
        return popped

    def state_dict(self) -> State:
        """Return the episodes as arrays, for a checkpoint."""
        state: State = {
            "env_index": np.array(self.env_index, np.int64),
            "return": np.array(self.ret, np.float64),
            "length": np.array(self.length, np.int64),
        }
        if self.info:  # None becomes NaN
            state |= {"info_names": [*self.info], "info": np.array([*self.info.values()], np.float64)}
        return state

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Self:
        """Return the episodes of a state that `state_dict` returned; its values are arrays or tensors."""
        env_index, ret, length = (np.asarray(state[name]).tolist() for name in ("env_index", "return", "length"))
        values = np.asarray(state["info"]).tolist() if "info" in state else []
        rows = [[None if math.isnan(value) else value for value in row] for row in values]
        return cls(env_index, ret, length, dict(zip(state.get("info_names", ()), rows, strict=True)))

    def __len__(self) -> int:
        """Return the number of episodes."""
        return len(self.ret)

    @overload
    def __getitem__(self, index: int) -> Episode: ...

    @overload
    def __getitem__(self, index: slice) -> Episodes: ...

    def __getitem__(self, index: int | slice) -> Episode | Episodes:
        """Return one episode, or the episodes of a slice."""
        if isinstance(index, slice):
            info = {name: values[index] for name, values in self.info.items()}
            return Episodes(self.env_index[index], self.ret[index], self.length[index], info)
        known = {name: value for name, values in self.info.items() if (value := values[index]) is not None}
        return Episode(self.env_index[index], self.ret[index], self.length[index], known)

    def __eq__(self, other: object) -> bool:
        """Return True if the other sequence has the same episodes in the same order."""
        return isinstance(other, Sequence) and [*self] == [*other]


@dataclass
class Trajectory:
    """Trajectory of T time steps of B environments, or a single time step without the dimension T.

    Row t has `obs[t]`, the reward and flags that the environment returned together with it, and the action that the
    agent chose after it (see the table in the docstring of `rlcore.types`).

    Attributes:
        obs: key -> [T, B, ...].
        action: [T, B, A] in the agent's format (before `Agent.to_env`). It is ignored if obs is the last of its
            episode.
        reward: [T, B] float32, returned together with obs.
        terminated: [T, B] bool; the episode ended with obs in an absorbing state.
        truncated: [T, B] bool; the episode was cut short after obs.
        is_first: [T, B] bool; obs is the first of an episode.
        extras: extra outputs of the agent (`Agent.act`), such as `logprob` and `value`, name -> [T, B, ...]; {} if
            actions are random.
        carry: the agent's carry (recurrent state) before it saw `obs[0]`, a nested structure of tensors on the device.
        past: rows before row 0, for an agent with an observation history: obs/<key>, action and is_first, each
            [rows, B, ...], oldest first; {} without a history.
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
    """Input of `Learner.update`, returned by a buffer.

    Attributes:
        steps: [T, B, ...] on the learner's device.
        last: the time step after row T-1: obs key -> [B, ...] and reward, terminated, truncated, is_first [B].
        policy_steps: number of policy steps, over all environments and ranks, that were taken before the newest
            rollout was collected. All schedules use this count.
        places: [T, B] int64, positions of the rows in the replay buffer; None if they do not come from one.
        write_back: function that replaces extra outputs of the agent (`Trajectory.extras`), such as latent states, of
            these rows in the replay buffer. Its argument is a mapping, name -> new values [T, B, ...].
            Rows that were overwritten in the meantime are skipped. If the rows do not come from a replay buffer, the
            function does nothing.
    """

    steps: Trajectory
    last: Trajectory
    policy_steps: int
    places: np.ndarray | None = None
    write_back: Callable[[Mapping[str, Tensor]], None] = lambda extras: None


class Ranks(Protocol):
    """Group of processes that train one agent together, each with its own environments."""

    rank: int  # index of this process, from 0
    size: int  # number of processes

    def sum(self, value: Tensor) -> Tensor:
        """Return the elementwise sum of the tensors that all ranks pass; they must have the same shape.

        With one rank, the tensor itself is returned.
        """
        ...

    def gather(self, value: Any) -> list[Any]:
        """Return a list of the values that all ranks pass, in rank order. Tuples in the values become lists.

        A value can be a nested structure of tensors, arrays and JSON values, like the content of a checkpoint.
        """
        ...


class SingleProcess:
    """Implementation of `Ranks` for training in a single process."""

    rank, size = 0, 1

    def sum(self, value: Tensor) -> Tensor:
        """Return the tensor unchanged, because there is only one rank."""
        return value

    def gather(self, value: Any) -> list[Any]:
        """Return [value], because there is only one rank."""
        return [value]


@dataclass(frozen=True)
class Context(Generic[Algo_co]):
    """Inputs from which an algorithm is built: config, environment spec, devices and compiler.

    `Context[Config]` is the context of an algorithm whose config class is `Config`.

    Attributes:
        config: config of the run.
        spec: observation keys and action of the environments.
        fabric: device and precision.
        ranks: the processes that train together.
        num_envs: B, number of environments of this rank.
        compiler: settings for compiling acting and gradient steps; None: they are not compiled.
    """

    config: RunConfig[Algo_co]
    spec: EnvSpec
    fabric: Fabric
    ranks: Ranks
    num_envs: int
    compiler: Compiler | None = None

    @property
    def algo(self) -> Algo_co:
        """Config of the algorithm: the config group `algo`."""
        return self.config.algo

    def generator(self, purpose: str) -> np.random.Generator:
        """Return a random generator for a purpose, such as `replay` (replay buffer); each rank has its own numbers.

        `purpose` is a key of `rlcore.streams.PURPOSES`.
        """
        return streams.generator(self.config.seed, purpose, self.ranks.rank)


@dataclass(frozen=True)
class TrainingSchedule:
    """Lengths of the parts of a training run, which an algorithm defines for the training loop.

    Attributes:
        total_steps: number of policy steps of the run, as configured.
        collect_length: T, number of time steps that each environment collects between updates.
        random_steps: number of policy steps at the start of the run whose actions are drawn uniformly at random.
    """

    total_steps: int
    collect_length: int
    random_steps: int = 0

    def metrics(self, policy_steps: int) -> Metrics:
        """Return the metric `Params/random_actions` of the iteration that starts at `policy_steps`.

        It is 1 if the actions of this iteration are random, otherwise 0. If the run has no random actions at its start,
        the result is {}.
        """
        return {"Params/random_actions": float(policy_steps < self.random_steps)} if self.random_steps else {}
