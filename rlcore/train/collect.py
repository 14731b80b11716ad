"""Collector: the only code that steps a training environment."""

from __future__ import annotations

import dataclasses
import time
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

from rlcore.data.arrivals import answer, as_steps, columns, copied, from_columns, room, tensor
from rlcore.data.carry import mapped, restored, tensors
from rlcore.functional.noise import Noise
from rlcore.judge.random_agent import RandomAgent
from rlcore.train.acting import CompiledActing, compiled_acting
from rlcore.types import Agent, Alone, Arrival, Context, Ranks, Rows, State, Steps, VectorEnv


class Collector:
    """B environments and an agent -> `Steps` [T, B]. Owns the environments' state, the carry and the step count.

    What NumPy environments give is copied once, into rows on the host; what environments on a device give stays there.

    Args:
        envs: stepped together; reset here.
        agent: acts; the learner improves it in place.
        rng: supplies all action noise.
        device: where the agent computes and where the steps are handed out.
        autocast: entered around every call of the agent (mixed precision).
        clip_rewards: the steps hold tanh(reward).
        ranks: who collects beside this one; None = nobody.
        prefill: the stream of random actions; None = none are asked for.
        compile_for: acting is to be one compiled function (`rlcore.train.acting`); what the agent was made from.
    """

    def __init__(
        self,
        envs: VectorEnv,
        agent: Agent,
        rng: Noise,
        device: torch.device | str = "cpu",
        autocast: Any = nullcontext,
        clip_rewards: bool = False,
        ranks: Ranks | None = None,
        prefill: Noise | None = None,
        compile_for: Context | None = None,
    ) -> None:
        self.envs, self.agent, self.rng, self.ranks = envs, agent, rng, ranks or Alone()
        self.device = torch.device(device)
        self.autocast: Any = autocast
        self.clip_rewards = clip_rewards
        self.prefill, self._random = prefill, RandomAgent(envs.spec)
        self.env_steps = 0  # actions taken, all ranks together
        self.policy_steps = 0  # rows collected, those that only reset among them: T·B of every rank an iteration
        self.seconds = 0.0  # of the last collect
        self.arrival: Arrival | None = None
        self.carry = self._fresh_carry()
        self._rows: dict[str, Rows] = {}
        self._compile_for = compile_for
        self._acting: CompiledActing | None = None
        self.compiled: bool | None = None  # acting is; None where it is not to be, or nothing was said yet

    @torch.no_grad()
    def collect(self, length: int, random: bool = False) -> tuple[Steps, Steps]:
        """Take `length` steps everywhere.

        Args:
            length: T.
            random: actions drawn uniformly, written as the agent would have said them; it is not asked, and its carry
                waits at an episode's start.

        Returns:
            Steps [T, B] and the arrival [B] after them (as `Steps` without T and without action). They share storage
            that the next call overwrites.
        """
        began = time.perf_counter()
        arrival = self.arrival if self.arrival is not None else self.envs.reset()
        carry, act = self.carry, self._at_random if random else self._act
        if self._acting is not None:
            self._acting.refresh()
        if not self._rows or len(self._rows["reward"]) != length + 1:
            self._rows = room(length + 1, arrival)
        said: list[tuple[Tensor, dict[str, Tensor]]] = []
        for t in range(length):
            self._store(arrival, t)
            action, taken, extras = act(arrival)
            said.append((action, extras))
            arrival = self.envs.step(answer(taken, arrival))
        self._store(arrival, length)
        ended = self._rows["terminated"][:length] | self._rows["truncated"][:length]
        actions, width = int((~ended).sum()), len(arrival.is_first)
        if self.ranks.size > 1:
            actions, width = int(self.ranks.sum(torch.tensor(actions))), width * self.ranks.size
        self.env_steps, self.policy_steps = self.env_steps + actions, self.policy_steps + length * width
        self.arrival = copied(arrival)
        self.seconds = time.perf_counter() - began
        return self._steps(length, said, carry)

    def _act(self, arrival: Arrival) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        """What the agent says, [B, A], what the environments are to do, [B, *shape], and the agent's extras."""
        obs = {key: tensor(rows, self.device) for key, rows in arrival.obs.items()}
        is_first = tensor(arrival.is_first, self.device)
        if self._compile_for is not None and self._acting is None and self.compiled is not False:
            again = bool(self.compiled)  # a run that goes on acts as it began
            self._acting = compiled_acting(self.agent, self.carry, obs, self._compile_for, self.autocast, again)
            self.compiled = self._acting is not None
        if self._acting is not None:
            self.carry, action, taken, extras = self._acting(self.carry, obs, is_first, self.rng)
            return action, taken, extras
        with self._precision():
            self.carry, action, extras = self.agent.act(self.carry, obs, is_first, self.rng, False)
        return action, self.agent.to_env(action), extras

    def _at_random(self, arrival: Arrival) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        assert self.prefill is not None, "random actions need a stream"
        random = self._random
        taken = random.to_env(random.act((), {}, tensor(arrival.is_first, "cpu"), self.prefill)[1]).to(self.device)
        action = self.agent.from_env(taken)
        return action, self.agent.to_env(action), {}

    def _fresh_carry(self) -> Any:
        return mapped(lambda part: part.to(self.device), self.agent.initial(self.envs.num_envs))

    def _precision(self) -> AbstractContextManager[Any]:
        return self.autocast()

    def _store(self, arrival: Arrival, t: int) -> None:
        """Copy an arrival into row t of storage [T+1, B, ...]."""
        for key, value in columns(arrival).items():
            self._rows[key][t] = value

    def _steps(self, length: int, said: list[tuple[Tensor, dict[str, Tensor]]], carry: Any) -> tuple[Steps, Steps]:
        rows = {key: tensor(value, self.device) for key, value in self._rows.items()}
        if self.clip_rewards:
            rows["reward"] = rows["reward"].tanh()
        action = torch.stack([a for a, _ in said])
        extras = {key: torch.stack([e[key] for _, e in said]) for key in said[0][1]}
        steps = as_steps({key: value[:length] for key, value in rows.items()}, action)
        last = as_steps({key: value[length] for key, value in rows.items()}, action[-1])
        return dataclasses.replace(steps, extras=extras, carry=carry), dataclasses.replace(last, carry=self.carry)

    def state_dict(self) -> State:
        """Environments, the arrival not yet answered, carry, noise streams, how acting is computed, and counts."""
        return {
            "envs": self.envs.state_dict(),
            "arrival": None if self.arrival is None else columns(self.arrival),
            "carry": tensors(self.carry),
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
        self.carry = restored(self._fresh_carry(), state["carry"])
        self.rng.load_state_dict(state["rng"])
        if self.prefill is not None and state.get("prefill") is not None:
            self.prefill.load_state_dict(state["prefill"])
        if self._compile_for is not None and state["compiled"] is not None:
            self.compiled, self._acting = state["compiled"], self._acting if state["compiled"] else None
        self.env_steps, self.policy_steps = state["env_steps"], state["policy_steps"]
