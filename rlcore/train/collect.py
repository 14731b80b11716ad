"""Collector: the only code that steps a training environment."""

from __future__ import annotations

import dataclasses
import time
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rlcore.data.carry import mapped, restored, tensors
from rlcore.functional.noise import Noise
from rlcore.types import Agent, Alone, Arrival, Ranks, State, Steps, VectorEnv

FLAGS = ("reward", "terminated", "truncated", "is_first")


class Collector:
    """B environments and an agent -> `Steps` [T, B]. Owns the environments' state, the carry and the step count.

    Args:
        envs: stepped together; reset here.
        agent: acts; the learner improves it in place.
        rng: supplies all action noise.
        device: where the agent computes and where the steps are handed out.
        autocast: entered around every call of the agent (mixed precision).
        clip_rewards: the steps hold tanh(reward).
        ranks: who collects beside this one; None = nobody.
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
    ) -> None:
        self.envs, self.agent, self.rng, self.ranks = envs, agent, rng, ranks or Alone()
        self.device = torch.device(device)
        self.autocast: Any = autocast
        self.clip_rewards = clip_rewards
        self.env_steps = 0  # actions taken, all ranks together
        self.policy_steps = 0  # rows collected, those that only reset among them: T·B of every rank an iteration
        self.seconds = 0.0  # of the last collect
        self.arrival: Arrival | None = None
        self.carry = self._fresh_carry()
        self._rows: dict[str, np.ndarray] = {}

    @torch.no_grad()
    def collect(self, length: int) -> tuple[Steps, Steps]:
        """Take `length` steps everywhere.

        Args:
            length: T.

        Returns:
            Steps [T, B] and the arrival [B] after them (as `Steps` without T and without action). They share storage
            that the next call overwrites.
        """
        began = time.perf_counter()
        arrival = self.arrival if self.arrival is not None else self.envs.reset()
        carry = self.carry
        said: list[tuple[Tensor, dict[str, Tensor]]] = []
        actions = 0
        for t in range(length):
            self._store(arrival, t, length)
            obs = {key: self._tensor(value) for key, value in arrival.obs.items()}
            with self._precision():
                self.carry, action, extras = self.agent.act(
                    self.carry, obs, self._tensor(arrival.is_first), self.rng, False
                )
            said.append((action, extras))
            actions += int(np.count_nonzero(~(arrival.terminated | arrival.truncated)))
            arrival = self.envs.step(self.agent.to_env(action))
        self._store(arrival, length, length)
        width = len(arrival.is_first)
        if self.ranks.size > 1:
            actions, width = int(self.ranks.sum(torch.tensor(actions))), width * self.ranks.size
        self.env_steps, self.policy_steps = self.env_steps + actions, self.policy_steps + length * width
        self.arrival = Arrival(*(_copied(v) for v in vars(arrival).values()))
        self.seconds = time.perf_counter() - began
        return self._steps(length, said, carry)

    def _fresh_carry(self) -> Any:
        return mapped(lambda tensor: tensor.to(self.device), self.agent.initial(self.envs.num_envs))

    def _precision(self) -> AbstractContextManager[Any]:
        return self.autocast()

    def _tensor(self, values: np.ndarray) -> Tensor:
        return torch.from_numpy(values).to(self.device)

    def _store(self, arrival: Arrival, t: int, length: int) -> None:
        """Copy an arrival into row t of storage [T+1, B, ...]."""
        rows = self._rows
        if not rows or len(rows["reward"]) != length + 1:
            for key, value in _columns(arrival).items():
                rows[key] = np.zeros((length + 1, *value.shape), value.dtype)
        for key, value in _columns(arrival).items():
            rows[key][t] = value

    def _steps(self, length: int, said: list[tuple[Tensor, dict[str, Tensor]]], carry: Any) -> tuple[Steps, Steps]:
        rows = {key: self._tensor(value) for key, value in self._rows.items()}
        if self.clip_rewards:
            rows["reward"] = rows["reward"].tanh()
        obs = {key[4:]: value for key, value in rows.items() if key.startswith("obs/")}
        action = torch.stack([a for a, _ in said])
        extras = {key: torch.stack([e[key] for _, e in said]) for key in said[0][1]}

        def part(where: slice | int, action: Tensor) -> Steps:
            reward, terminated, truncated, is_first = (rows[flag][where] for flag in FLAGS)
            return Steps({k: v[where] for k, v in obs.items()}, action, reward, terminated, truncated, is_first)

        steps = dataclasses.replace(part(slice(length), action), extras=extras, carry=carry)
        return steps, dataclasses.replace(part(length, action[-1]), carry=self.carry)

    def state_dict(self) -> State:
        """Environments, the arrival not yet answered, carry, noise stream and counts."""
        arrival = None if self.arrival is None else _columns(self.arrival)
        return {
            "envs": self.envs.state_dict(),
            "arrival": arrival,
            "carry": tensors(self.carry),
            "rng": self.rng.state_dict(),
            "env_steps": self.env_steps,
            "policy_steps": self.policy_steps,
        }

    def load_state_dict(self, state: State) -> None:
        """Continue from a `state_dict`."""
        self.envs.load_state_dict(state["envs"])
        columns = state["arrival"]
        if columns is not None:
            obs = {key[4:]: value for key, value in columns.items() if key.startswith("obs/")}
            self.arrival = Arrival(obs, *(columns[flag] for flag in FLAGS))
        self.carry = restored(self._fresh_carry(), state["carry"])
        self.rng.load_state_dict(state["rng"])
        self.env_steps, self.policy_steps = state["env_steps"], state["policy_steps"]


def _columns(arrival: Arrival) -> dict[str, np.ndarray]:
    columns = {f"obs/{key}": value for key, value in arrival.obs.items()}
    for flag in FLAGS:
        columns[flag] = getattr(arrival, flag)
    return columns


def _copied(value: Any) -> Any:
    return {k: v.copy() for k, v in value.items()} if isinstance(value, dict) else value.copy()
