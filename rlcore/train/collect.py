"""Collector: the only code that steps a training environment."""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, Self, cast

import torch
from torch import Tensor

from rlcore.compiled.acting import CompiledActing, compile_acting
from rlcore.compiled.recorded_rollout import RecordableEnvs, RecordedRollout
from rlcore.compiler import Compiler
from rlcore.config.run import AlgorithmConfig
from rlcore.data.history import HistoryWrapper, past_of, with_history
from rlcore.data.staging import StagingBuffer, answer, as_trajectory, columns, copy_time_step, from_columns
from rlcore.data.steps import transform_reward
from rlcore.envs.vector.episodic import EpisodicVectorEnv
from rlcore.evaluation.random_agent import RandomAgent
from rlcore.functional.noise import Noise
from rlcore.functional.tree import fit, map_leaves
from rlcore.protocols import Agent, VectorEnv
from rlcore.system.training_clock import wall
from rlcore.types import Context, State, TimeStep, Trajectory

# Observations and is_first -> action in the agent's form [B, A], in the environment's form [B, *shape], extra outputs.
Act = Callable[[dict[str, Tensor], Tensor], tuple[Tensor, Tensor, dict[str, Tensor]]]


class Collector:
    """Collector of trajectories [T, B] from B environments.

    It keeps the last time step, the recurrent state of the agent (carry), and the numbers of steps.

    Data of NumPy environments is copied once, into a staging buffer in host memory. If the agent is on a GPU, each time
    step is then copied once to the GPU. Data of environments that run on a GPU stays on that GPU.

    Args:
        envs: vectorized environment with B environments; the collector resets it.
        agent: chooses the actions; the learner updates its weights in place.
        rng: random stream for sampling actions.
        device: device of the agent and of the returned trajectories.
        autocast: function that returns a context manager for each call of the agent (mixed precision).
        learned: function that transforms the environments' rewards into those to learn from; None: unchanged.
        prefill: random stream for uniformly random actions; None if `collect(random=True)` is never called.
        compiler: compiles the choice of actions into one function (`rlcore.compiled.acting`). On a GPU, it records
            rollouts in batched environments as a CUDA graph (`rlcore.compiled.recorded_rollout`). None: no compilation.
    """

    def __init__(
        self,
        envs: VectorEnv,
        agent: Agent,
        rng: Noise,
        device: torch.device | str = "cpu",
        autocast: Any = nullcontext,
        learned: Callable[[Tensor], Tensor] | None = None,
        prefill: Noise | None = None,
        compiler: Compiler | None = None,
    ) -> None:
        self.envs, self.agent, self.rng = envs, with_history(agent, envs.spec), rng
        self.device = torch.device(device)
        self.autocast: Any = autocast
        self.learned = learned
        self.prefill, self._random = prefill, RandomAgent(envs.spec)
        # `collect` counts the steps of this process; the trainer adds those of the other ranks.
        self._env_steps: int | Tensor = 0
        self.policy_steps = 0  # rows collected, including resets: T·B per call of `collect`
        self.seconds = 0.0  # duration of the last `collect`
        self.arrival: TimeStep | None = None
        self._form = map_leaves(lambda part: part.to(self.device), self.agent.initial(envs.num_envs))
        self.carry = self._form
        self._staging: StagingBuffer | None = None
        self._in_place = envs if isinstance(envs, EpisodicVectorEnv) else None
        self._compiler = compiler if compiler is not None and not compiler.records else None
        recordable = isinstance(envs, RecordableEnvs) and envs.capturable
        self._records = compiler is not None and compiler.records and recordable
        self._recorded: RecordedRollout | None = None
        self._acting: CompiledActing | None = None
        self.compiled: bool | None = None  # True if acting is compiled; None without a compiler or before `collect`

    @classmethod
    def from_context(cls, context: Context[AlgorithmConfig], envs: VectorEnv, policy: Agent) -> Self:
        """Create the collector of a training; the context determines all random numbers of acting."""
        config, rank, device = context.config, context.ranks.rank, context.fabric.device
        return cls(
            envs,
            policy,
            Noise(config.seed, "policy", rank, device=device),
            device,
            context.fabric.autocast,
            functools.partial(transform_reward, config.env),
            Noise(config.seed, "prefill", rank),
            context.compiler,
        )

    @property
    def env_steps(self) -> int:
        """Number of actions taken; it is read from the device of the environments, if these return tensors."""
        self._env_steps = int(self._env_steps)
        return self._env_steps

    @env_steps.setter
    def env_steps(self, number: int) -> None:
        self._env_steps = number

    @torch.no_grad()
    def collect(self, length: int, random: bool = False) -> tuple[Trajectory, Trajectory]:
        """Take `length` steps in all environments.

        Args:
            length: T.
            random: True to draw actions uniformly from the action space. The agent does not act, and its recurrent
                state does not change; only its history of past frames is updated, if it has one.

        Returns:
            The trajectory [T, B], and the time step [B] that follows it, as a `Trajectory` without the dimension T. The
            action of that time step is a placeholder: a copy of the last action. The next call of `collect` overwrites
            the memory of both.
        """
        began = wall()
        time_step = self._first_time_step()
        if not random and (recorded := self._record(time_step, length)) is not None:
            return self._replay(recorded, time_step, began)
        if self._staging is None or len(self._staging) != length + 1:
            self._staging = StagingBuffer(length + 1, time_step, self.device)
        staging, carry = self._staging, self.carry
        staging.begin(time_step)
        self._compile(staging)
        act = self._at_random if random else self._acts(length)
        chosen: list[tuple[Tensor, dict[str, Tensor]]] = []
        for t in range(length):
            action, taken, extras = act(*staging.show(t))
            chosen.append((action, extras))
            if self._in_place is not None and t + 1 < length:  # the last time step is needed after the rollout
                time_step = self._in_place.step(answer(taken, time_step), staging.arrivals[t + 1])
            else:
                time_step = self.envs.step(answer(taken, time_step))
                staging.put(t + 1, time_step)
        rows = length * len(time_step.is_first)
        self._env_steps = self._env_steps + rows - staging.count_ended()
        self.policy_steps += rows
        self.arrival = staging.last = time_step if self._in_place is not None else copy_time_step(time_step)
        self.seconds = wall() - began
        extras = {key: _stack([e[key] for _, e in chosen]) for key in chosen[0][1]}
        return self._steps(*staging.split(), _stack([a for a, _ in chosen]), extras, carry)

    def _record(self, time_step: TimeStep, length: int) -> RecordedRollout | None:
        """Return the recorded rollout; None if rollouts are not recorded."""
        if self._records and (self._recorded is None or not self._recorded.fits(length)):
            agent: Any = self.agent
            recorded = RecordedRollout(self._choose, agent, cast("Any", self.envs), length)
            self._records = recorded.build(time_step, self.carry, self.rng)
            self._recorded = recorded if self._records else None
        return self._recorded

    def _replay(self, recorded: RecordedRollout, time_step: TimeStep, began: float) -> tuple[Trajectory, Trajectory]:
        """Collect a recorded rollout; the result is that of `collect`."""
        found, carry = recorded(time_step, self.carry, self.rng), self.carry
        stored: dict[str, Any] = columns(found.steps)
        rows, end = ({name: part[cut] for name, part in stored.items()} for cut in (slice(-1), -1))
        envs: Any = self.envs
        self.arrival, self.carry = from_columns(end), found.carry
        envs.finish_rollout(found.tensors, self.arrival, found.episodes)
        self._env_steps = self._env_steps + rows["reward"].numel() - (rows["terminated"] | rows["truncated"]).sum()
        self.policy_steps += rows["reward"].numel()
        self.seconds = wall() - began
        return self._steps(rows, end, found.action, found.extras, carry)

    def _first_time_step(self) -> TimeStep:
        """Return the time step at which a rollout starts: the last one, or that of new episodes."""
        return self.envs.start_rollout(self.policy_steps) or self.arrival or self.envs.reset()

    def _compile(self, staging: StagingBuffer) -> None:
        """Compile the choice of actions and the step of batched environments at the first call.

        This happens also if the first actions are random, so that errors of the compilation occur early.
        """
        if self._compiler is None:
            return
        self.envs.compile(self._compiler)
        if self._acting is None and self.compiled is not False:
            (obs, _), required = staging.show(0), bool(self.compiled)  # a resumed run must act as before
            self._acting = compile_acting(self.agent, self.carry, obs, self._compiler, self.autocast, required)
            self.compiled = self._acting is not None

    def _acts(self, length: int) -> Act:
        """Return the function that chooses the actions of a rollout, compiled or not."""
        if self._acting is None:
            return self._act
        self._acting.begin(self.rng, length)
        return self._act_compiled

    def _act(self, obs: dict[str, Tensor], is_first: Tensor) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        """Return actions in the agent's format [B, A] and in the environment's format [B, *shape], and extra outputs.

        Extra outputs are further tensors that the agent returns, such as log-probabilities (`Trajectory.extras`).
        """
        self.carry, action, taken, extras = self._choose(self.carry, obs, is_first, self.rng)
        return action, taken, extras

    def _choose(
        self, carry: Any, obs: dict[str, Tensor], is_first: Tensor, rng: Noise
    ) -> tuple[Any, Tensor, Tensor, dict[str, Tensor]]:
        """Return the carry after the time step, and the results of `_act`."""
        with self.autocast():
            carry, action, extras = self.agent.act(carry, obs, is_first, rng, False)
        return fit(self._form, carry), action, self.agent.to_env(action), extras

    def _act_compiled(self, obs: dict[str, Tensor], is_first: Tensor) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        assert self._acting is not None
        self.carry, action, taken, extras = self._acting(self.carry, obs, is_first)
        return action, taken, extras

    def _at_random(self, obs: dict[str, Tensor], is_first: Tensor) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        assert self.prefill is not None, "random actions need a stream"
        random = self._random
        taken = random.to_env(random.act((), obs, is_first, self.prefill)[1]).to(self.device)
        action = self.agent.from_env(taken)
        if isinstance(self.agent, HistoryWrapper):  # its history includes random actions
            self.carry = fit(self._form, self.agent.append(self.carry, obs, is_first, action))
        return action, self.agent.to_env(action), {}

    def _steps(
        self, rows: dict[str, Tensor], end: dict[str, Tensor], action: Tensor, extras: dict[str, Tensor], carry: Any
    ) -> tuple[Trajectory, Trajectory]:
        if self.learned is not None:
            rows, end = (part | {"reward": self.learned(part["reward"])} for part in (rows, end))
        steps, last = as_trajectory(rows, action), as_trajectory(end, action[-1])
        steps.extras, steps.carry, last.carry = extras, carry, self.carry
        if isinstance(self.agent, HistoryWrapper):
            for part in (steps, last):
                part.past, part.carry = past_of(part.carry), part.carry["agent"]
        return steps, last

    def state_dict(self) -> State:
        """Return the state that `collect` depends on.

        It contains the environments, last time step, carry, random streams, step counts, and if acting is compiled.
        """
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
        """Restore the state that `state_dict` returned."""
        self.envs.load_state_dict(state["envs"])
        device = self.envs.device
        rows = state["arrival"] and {k: v if device is None else v.to(device) for k, v in state["arrival"].items()}
        self.arrival = None if rows is None else from_columns(rows)
        self.carry = fit(self._form, state["carry"])
        self.rng.load_state_dict(state["rng"])
        if self.prefill is not None and state["prefill"] is not None:
            self.prefill.load_state_dict(state["prefill"])
        if self._compiler is not None and state["compiled"] is not None:
            self.compiled, self._acting = state["compiled"], self._acting if state["compiled"] else None
        self.env_steps, self.policy_steps = state["env_steps"], state["policy_steps"]


def _stack(parts: list[Tensor]) -> Tensor:
    """Stack T tensors into one tensor [T, ...]. If T = 1, the data is not copied."""
    return parts[0][None] if len(parts) == 1 else torch.stack(parts)
