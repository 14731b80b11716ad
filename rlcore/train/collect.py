"""Collector: the only code that steps a training environment."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

from rlcore.compiled.acting import CompiledActing, compile_acting
from rlcore.compiler import Compiler
from rlcore.data.history import HistoryWrapper, past_of, with_history
from rlcore.data.staging import StagingBuffer, answer, as_trajectory, columns, copy_time_step, from_columns
from rlcore.envs.vector.episodic import EpisodicVectorEnv
from rlcore.evaluation.random_agent import RandomAgent
from rlcore.functional.noise import Noise
from rlcore.functional.tree import fit, map_leaves
from rlcore.protocols import Agent, VectorEnv
from rlcore.system.training_clock import wall
from rlcore.types import Ranks, SingleProcess, State, TimeStep, Trajectory

# Observations and is_first -> what the agent says, [B, A], what the environments are to do, extras.
Act = Callable[[dict[str, Tensor], Tensor], tuple[Tensor, Tensor, dict[str, Tensor]]]


class Collector:
    """B environments and an agent -> `Steps` [T, B]. Owns the environments' state, the carry and the step count.

    What NumPy environments give is copied once, into rows on the host, and from there once to a GPU, a row at a time;
    what environments on a device give stays there.

    Args:
        envs: stepped together; reset here.
        agent: acts; the learner improves it in place.
        rng: supplies all action noise.
        device: where the agent computes and where the steps are handed out.
        autocast: entered around every call of the agent (mixed precision).
        learned: rewards of the environments -> those that the steps hold; None = as they are.
        ranks: who collects beside this one; None = nobody.
        prefill: the stream of random actions; None = none are asked for.
        compiler: makes acting one compiled function (`rlcore.compiled.acting`); None = it runs as written.
    """

    def __init__(
        self,
        envs: VectorEnv,
        agent: Agent,
        rng: Noise,
        device: torch.device | str = "cpu",
        autocast: Any = nullcontext,
        learned: Callable[[Tensor], Tensor] | None = None,
        ranks: Ranks | None = None,
        prefill: Noise | None = None,
        compiler: Compiler | None = None,
    ) -> None:
        self.envs, self.agent, self.rng, self.ranks = (
            envs,
            with_history(agent, envs.spec),
            rng,
            ranks or SingleProcess(),
        )
        self.device = torch.device(device)
        self.autocast: Any = autocast
        self.learned = learned
        self.prefill, self._random = prefill, RandomAgent(envs.spec)
        self.env_steps = 0  # actions taken, all ranks together
        self.policy_steps = 0  # rows collected, those that only reset among them: T·B of every rank an iteration
        self.seconds = 0.0  # of the last collect
        self.arrival: TimeStep | None = None
        self._form = map_leaves(lambda part: part.to(self.device), self.agent.initial(envs.num_envs))
        self.carry = self._form
        self._room: StagingBuffer | None = None
        self._in_place = envs if isinstance(envs, EpisodicVectorEnv) else None
        self._compiler = compiler
        self._acting: CompiledActing | None = None
        self.compiled: bool | None = None  # acting is; None where it is not to be, or nothing was said yet

    @torch.no_grad()
    def collect(self, length: int, random: bool = False) -> tuple[Trajectory, Trajectory]:
        """Take `length` steps everywhere.

        Args:
            length: T.
            random: actions drawn uniformly, written as the agent would have said them; it is not asked, and its carry
                waits at an episode's start, but for its history.

        Returns:
            Steps [T, B] and the arrival [B] after them (as `Steps` without T and without action). They share storage
            that the next call overwrites.
        """
        began = wall()
        arrival = self.arrival if self.arrival is not None else self.envs.reset()
        if self._room is None or len(self._room) != length + 1:
            self._room = StagingBuffer(length + 1, arrival, self.device)
        room, carry = self._room, self.carry
        room.begin(arrival)
        self._compile(room)
        act = self._at_random if random else self._acts(length)
        said: list[tuple[Tensor, dict[str, Tensor]]] = []
        for t in range(length):
            action, taken, extras = act(*room.show(t))
            said.append((action, extras))
            if self._in_place is not None and t + 1 < length:  # the last one outlives the rollout
                arrival = self._in_place.step(answer(taken, arrival), room.arrivals[t + 1])
            else:
                arrival = self.envs.step(answer(taken, arrival))
                room.put(t + 1, arrival)
        width = len(arrival.is_first)
        actions = length * width - room.count_ended()
        if self.ranks.size > 1:
            actions, width = int(self.ranks.sum(torch.tensor(actions))), width * self.ranks.size
        self.env_steps, self.policy_steps = self.env_steps + actions, self.policy_steps + length * width
        self.arrival = room.last = arrival if self._in_place is not None else copy_time_step(arrival)
        self.seconds = wall() - began
        return self._steps(room, said, carry)

    def _compile(self, room: StagingBuffer) -> None:
        """Compile acting once, if the config asks for it; before random actions too, so that faults show early."""
        if self._compiler is not None and self._acting is None and self.compiled is not False:
            (obs, _), again = room.show(0), bool(self.compiled)  # a run that goes on acts as it began
            self._acting = compile_acting(self.agent, self.carry, obs, self._compiler, self.autocast, again)
            self.compiled = self._acting is not None

    def _acts(self, length: int) -> Act:
        """Return the function that acts in a rollout: compiled, or as the agent's code is written."""
        if self._acting is None:
            return self._act
        self._acting.begin(self.rng, length)
        return self._act_compiled

    def _act(self, obs: dict[str, Tensor], is_first: Tensor) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        """Action as the agent says it, [B, A], what the environments are to do, [B, *shape], and the agent's extras."""
        with self._precision():
            carry, action, extras = self.agent.act(self.carry, obs, is_first, self.rng, False)
        self.carry = fit(self._form, carry)
        return action, self.agent.to_env(action), extras

    def _act_compiled(self, obs: dict[str, Tensor], is_first: Tensor) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        assert self._acting is not None
        self.carry, action, taken, extras = self._acting(self.carry, obs, is_first)
        return action, taken, extras

    def _at_random(self, obs: dict[str, Tensor], is_first: Tensor) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        assert self.prefill is not None, "random actions need a stream"
        random = self._random
        taken = random.to_env(random.act((), obs, is_first, self.prefill)[1]).to(self.device)
        action = self.agent.from_env(taken)
        if isinstance(self.agent, HistoryWrapper):  # which will look back at these rows
            self.carry = fit(self._form, self.agent.append(self.carry, obs, is_first, action))
        return action, self.agent.to_env(action), {}

    def _precision(self) -> AbstractContextManager[Any]:
        return self.autocast()

    def _steps(
        self, room: StagingBuffer, said: list[tuple[Tensor, dict[str, Tensor]]], carry: Any
    ) -> tuple[Trajectory, Trajectory]:
        rows, end = room.split()
        if self.learned is not None:
            rows, end = (part | {"reward": self.learned(part["reward"])} for part in (rows, end))
        action = _stack([a for a, _ in said])
        steps, last = as_trajectory(rows, action), as_trajectory(end, action[-1])
        steps.extras = {key: _stack([e[key] for _, e in said]) for key in said[0][1]}
        steps.carry, last.carry = carry, self.carry
        if isinstance(self.agent, HistoryWrapper):
            for part in (steps, last):
                part.past, part.carry = past_of(part.carry), part.carry["agent"]
        return steps, last

    def state_dict(self) -> State:
        """Environments, the arrival not yet answered, carry, noise streams, how acting is computed, and counts."""
        return {
            "envs": self.envs.state_dict(),
            "arrival": None if self.arrival is None else columns(self.arrival),
            "carry": self.carry,
            "rng": self.rng.state_dict(),
            "prefill": None if self.prefill is None else self.prefill.state_dict(),
            "compiled": self.compiled,
            "env_steps": self.env_steps,
            "policy_steps": self.policy_steps,
        }

    def load_state_dict(self, state: State) -> None:
        """Continue from a `state_dict`."""
        self.envs.load_state_dict(state["envs"])
        device = getattr(self.envs, "device", None)  # of environments that give tensors
        rows = state["arrival"] and {k: v if device is None else v.to(device) for k, v in state["arrival"].items()}
        self.arrival = None if rows is None else from_columns(rows)
        self.carry = fit(self._form, state["carry"])
        self.rng.load_state_dict(state["rng"])
        if self.prefill is not None and state.get("prefill") is not None:
            self.prefill.load_state_dict(state["prefill"])
        if self._compiler is not None and state["compiled"] is not None:
            self.compiled, self._acting = state["compiled"], self._acting if state["compiled"] else None
        self.env_steps, self.policy_steps = state["env_steps"], state["policy_steps"]


def _stack(parts: list[Tensor]) -> Tensor:
    """Rows as one tensor [T, ...]; of one row its own memory."""
    return parts[0][None] if len(parts) == 1 else torch.stack(parts)
