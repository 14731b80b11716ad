"""Records: the names every part of rlcore is written in; the roles of its parts are in `rlcore.protocols`.

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

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from rlcore import streams
from rlcore.spec import EnvSpec

if TYPE_CHECKING:  # environment workers import this file and must stay light
    import numpy as np
    from lightning_fabric import Fabric
    from torch import Tensor

    from rlcore.door import Compiler


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
        """Form in which a chunk travels between ranks."""
        return _chunk, ({} if self.light else self.columns(), self.stored)


def _chunk(held: dict[str, Tensor], stored: dict[str, dict[str, Any]]) -> Chunk:
    return Chunk(lambda: held, stored)


@dataclass
class Arrival:
    """Observations and rewards that B environments returned at one moment: all NumPy, or all tensors of one device.

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
        """Values that each rank has, in their order."""
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
    """Surroundings that an algorithm is built from.

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
