"""Vectorized environment of a batched environment: resets of ended episodes, episode counts, saving and restoring."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

import torch
from torch import Tensor

from rlcore import streams
from rlcore.compiled.stepping import CompiledEnvStep, compile_step
from rlcore.compiler import Compiler
from rlcore.envs.batched.env import BatchedEnv
from rlcore.envs.batched.nested_action import nest_action
from rlcore.envs.batched.parameters import Parameters
from rlcore.envs.batched.random import BatchedRandom, episode_key
from rlcore.envs.episodes import EpisodeCounts, refuse_other_envs
from rlcore.envs.seeds import EpisodeSeeds
from rlcore.envs.wrappers import flatten
from rlcore.errors import UserError
from rlcore.functional.tree import map_leaves
from rlcore.protocols import VectorEnv
from rlcore.spec import EnvSpec
from rlcore.types import Episodes, State, TimeStep

FORMAT = 2  # of state_dict


class BatchedVectorEnv(VectorEnv):
    """Vectorized environment that computes on the device of a batched environment.

    A copy whose episode has ended starts a new one in the next step: all copies are reset, and `torch.where` takes the
    result for the ended ones.

    Args:
        env: the batched environment.
        spec: spec of one copy.
        seeds: seeds of the episodes.
        max_episode_steps: an episode is truncated after this number of steps; None: no limit.
        paths: observation key -> path of the array in a nested observation; () if the observation is a tensor.
        parameters: values of `env.config`; None: the defaults of the environment's `Config`.
        endless: if True, `terminated` is ignored. All episodes then end together, after `max_episode_steps` steps.
    """

    def __init__(
        self,
        env: BatchedEnv,
        spec: EnvSpec,
        seeds: EpisodeSeeds,
        max_episode_steps: int | None,
        paths: Mapping[str, tuple[Any, ...]],
        parameters: Parameters | None = None,
        endless: bool = False,
    ) -> None:
        self.env, self.spec, self.num_envs = env, spec, env.num_envs
        self.capturable = env.capturable  # True if rollouts can be recorded as a CUDA graph
        self._limit, self._paths, self._seeds = max_episode_steps, paths, seeds
        word = int(streams.sequence(seeds.seed, seeds.purpose, *seeds.indices).generate_state(1, "uint64")[0])
        self._base = torch.full((self.num_envs,), word - (1 << 64) if word >> 63 else word, device=self.device)
        self._index = torch.arange(self.num_envs, device=self.device)
        self._configured, self._endless = parameters or Parameters(env.Config(), {}), endless
        self._parameters = self._configured  # those of the next episodes; `restart` can change them
        self._scheduled = self._parameters.at(0, self.device)
        self._changed: dict[str, Any] = {}  # parameters that `restart` has set
        self._steps = 0  # since the last `reset`
        self._action_dtype = getattr(torch, spec.action.dtype)
        self._episode = self._zeros(torch.int64) - 1
        self._ended = self._zeros(torch.bool)
        self._episodes = EpisodeCounts(self._zeros(torch.int64), self._zeros(torch.float64), _clear)
        self._unread: list[tuple[Tensor, Tensor, Tensor]] = []  # ended, return and length of each step, until read
        self.last: TimeStep | None = None
        self._compiled: CompiledEnvStep | None = None
        self.replaced = 0  # how often constants of `advance` were replaced
        self.compiled: bool | None = None  # True if the step is compiled; None if `compile` was not called yet

    @property
    def device(self) -> torch.device:
        """Device of the batched environment."""
        return self.env.device

    def _zeros(self, dtype: torch.dtype) -> Tensor:
        return torch.zeros(self.num_envs, dtype=dtype, device=self.device)

    def _stream(self, episode: Tensor) -> BatchedRandom:
        """Return the random streams of the episodes with these numbers, [B] int64."""
        number, again = self._index + self._seeds.offset, episode
        if self._seeds.stride is not None:
            number, again = number + episode * self._seeds.stride, torch.zeros_like(episode)
        return BatchedRandom(episode_key(self._base, number, again), self._zeros(torch.int64))

    # Stepping

    def start_rollout(self, policy_steps: int) -> TimeStep | None:
        """Prepare a rollout: reset endless episodes that have reached their limit, without a step for the reset.

        Args:
            policy_steps: number of policy steps taken so far, at which schedules are evaluated.

        Returns:
            The first time step of the new episodes; None if the current ones continue.
        """
        self._scheduled = self._parameters.at(policy_steps, self.device)
        return self.reset() if self._endless and self._limit is not None and self._steps >= self._limit else None

    def restart(self, values: Mapping[str, Any], policy_steps: int) -> TimeStep:
        """Start a new episode in every copy, with other parameters, which also hold for later episodes.

        Args:
            values: parameters as in `env.config`, without schedules; those that are not set keep their values.
            policy_steps: number of policy steps taken so far, at which schedules are evaluated.

        Returns:
            The first time step of the new episodes.

        Raises:
            UserError: A value is invalid, or the environments are endless and no reset is due.
        """
        if self._endless and self.last is not None and (self._limit is None or self._steps < self._limit):
            left = "never" if self._limit is None else f"only in {self._limit - self._steps} steps"
            raise UserError(
                f"env_config={dict(values)}: endless environments are reset {left}; set "
                "env.horizons_per_env_reset=1 to reset them before each rollout, or pass env_config when a reset is due"
            )
        self._set({**self._changed, **values})
        self._scheduled = self._parameters.at(policy_steps, self.device)
        return self.reset()

    def _set(self, changed: Mapping[str, Any]) -> None:
        """Use the parameters of the config, except those in `changed`."""
        self._parameters = self._configured.changed(changed, self.spec.id, self.env.tier == "boundary")
        self._changed, self._compiled = dict(changed), None  # the compiled step contains the constants
        self.replaced += 1
        self._scheduled = {name: value for name, value in self._scheduled.items() if name not in changed}

    def _start(self) -> dict[str, Tensor]:
        """Reset all copies with the random streams of their episodes; return the observations."""
        env = self.env
        env.random = self._stream(self._episode)
        env.config = self._parameters.draw(env.random, self._scheduled)
        return flatten(env.reset(env.config), self._paths)

    @torch.no_grad()
    def reset(self) -> TimeStep:
        """Start a new episode in every copy."""
        self._episode, self._steps, self._ended = self._episode + 1, 0, self._zeros(torch.bool)
        self._episodes.begin(~self._ended)
        obs = self._start()
        self.last = TimeStep(obs, self._zeros(torch.float32), self._ended, self._ended, ~self._ended)
        return self.last

    @torch.no_grad()
    def step(self, action: Tensor) -> TimeStep:
        """Take actions [B, *shape] in the environment's format; reset the copies whose episode has ended."""
        self._steps += 1
        if self._compiled is not None:
            self.last = self._compiled(action.to(self._action_dtype))
        else:  # The result does not depend on the condition. On a CPU, reading the flags costs less than a reset.
            self.last = self.advance(action, self.device.type != "cpu" or bool(self._ended.any()))
        self._unread.append(self.episode())
        return self.last

    def finish_rollout(self, tensors: Any, last: TimeStep, episodes: tuple[Tensor, Tensor, Tensor]) -> None:
        """Set the state after steps that were taken by `advance` on other tensors (`rlcore.compiled.recorded_rollout`).

        Args:
            tensors: result of `tensors()` after the steps.
            last: the last time step.
            episodes: results of `episode()` after each step, stacked to [T, B].
        """
        self.take(tensors)
        self.last, self._steps = last, self._steps + len(episodes[0])
        ended, returns, length = (part.flatten() for part in episodes)
        self._unread.append((ended, returns, length))

    def advance(self, action: Tensor, resets: bool = True) -> TimeStep:
        """Step all copies and, if `resets` is True, reset ended ones; all operations are on `tensors()`."""
        env, opens, counts = self.env, self._ended, self._episodes
        action = action.to(self._action_dtype)
        raw, reward, *ends = env.step(nest_action(env.action_space, action) if self.spec.action.parts else action)
        obs, reward = flatten(raw, self._paths), reward.to(torch.float32)
        terminated = torch.zeros_like(opens) if self._endless or not ends else ends[0]
        counts.step()
        truncated = self._truncated(terminated, *ends[1:])
        if resets:
            obs = self._reset_ended(opens, obs)
            reward, terminated, truncated = reward.masked_fill(opens, 0), terminated & ~opens, truncated & ~opens
            counts.begin(opens)
        counts.add(reward)
        self._ended = terminated | truncated
        return TimeStep(obs, reward, terminated, truncated, opens)

    def _truncated(self, terminated: Tensor, own: Tensor | None = None) -> Tensor:
        """Return [B] bool, True if the episode is truncated; `own` is what the batched environment returned."""
        length = self._episodes.length
        return length >= self._limit if self._limit is not None else torch.zeros_like(terminated)

    def _reset_ended(self, opens: Tensor, obs: dict[str, Tensor]) -> dict[str, Tensor]:
        """Reset the copies in `opens` [B]; return the observations, with the first ones of these copies."""
        env = self.env
        state, random, drawn = env.state, env.random, self._drawn()
        self._episode = self._episode + opens
        fresh = self._start()
        if drawn:
            new = self._drawn()
            env.config = replace(env.config, **{name: _where(opens, new[name], drawn[name]) for name in drawn})
        env.state = {name: _where(opens, env.state[name], value) for name, value in state.items()}
        env.random.count = torch.where(opens, env.random.count, random.count)
        return {key: _where(opens, fresh[key], value) for key, value in obs.items()}

    def episode(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return ended, return and length of the current episode of each copy, all [B]."""
        return self._ended, self._episodes.ret, self._episodes.length

    def tensors(self) -> Any:
        """Return all tensors that `advance` reads, as a nested structure."""
        env = self.env
        return {
            "state": dict(env.state),
            "config": self._drawn(),
            "scheduled": self._scheduled,
            "random": (env.random.key, env.random.count),
            "copies": (self._base, self._index, self._episode),
            "episodes": self.episode(),
        }

    def take(self, tensors: Any) -> None:
        """Replace all tensors that `advance` reads, by a structure like that of `tensors()`."""
        self.env.state, self.env.random = tensors["state"], BatchedRandom(*tensors["random"])
        self.env.config, self._scheduled = self._config(tensors["config"]), tensors["scheduled"]
        self._base, self._index, self._episode = tensors["copies"]
        self._ended, self._episodes.ret, self._episodes.length = tensors["episodes"]

    def compile(self, compiler: Compiler) -> None:
        """Compile the step to machine code, unless it cannot be compiled. The environments must have been reset."""
        if self.capturable and self._compiled is None and self.compiled is not False:
            shape = (self.num_envs, *self.spec.action.shape)
            action = torch.zeros(shape, dtype=self._action_dtype, device=self.device)
            self._compiled = compile_step(self, action, compiler, bool(self.compiled))
            self.compiled = self._compiled is not None

    def _drawn(self) -> dict[str, Tensor]:
        """Return the parameters of the current episodes that have a distribution or a schedule, name -> [B]."""
        return {name: getattr(self.env.config, name) for name in self._parameters.rules}

    def _config(self, drawn: dict[str, Tensor]) -> Any:
        """Return the parameters of the current episodes."""
        return replace(self._parameters.constants, **drawn) if drawn else self._parameters.constants

    # Episodes

    def pop_episodes(self) -> Episodes:
        """Return the episodes that ended since the last call of this method, ordered by time, then by copy.

        This is the only method that reads tensors on the device, apart from `state_dict`.
        """
        self._read_finished()
        return self._episodes.finished.pop()

    def _read_finished(self) -> None:
        """Move the episodes that ended in the last steps from the device to the host."""
        if not self._unread:
            return
        ended, returns, lengths = (torch.cat(parts) for parts in zip(*self._unread, strict=True))
        self._unread = []
        places = ended.nonzero().squeeze(1)
        numbers, returns, lengths = places % self.num_envs, returns[places], lengths[places]
        self._episodes.finished.extend(numbers.tolist(), returns.tolist(), lengths.tolist())

    def boundary(self) -> TimeStep | None:
        """Return the last time step: the state of every copy can be saved, so no episode is truncated."""
        return self.last

    # Exact resume

    def state_dict(self) -> State:
        """Return everything that the next step depends on, as nested dicts of tensors and JSON values."""
        state: State = {"format": FORMAT, "num_envs": self.num_envs, "started": self.last is not None}
        state |= {"compiled": self.compiled, "changed": self._changed}
        if self.last is None:
            return state
        self._read_finished()
        return state | {
            "state": dict(self.env.state),
            "config": self._drawn(),
            "count": self.env.random.count,
            "episode": self._episode,
            "steps": self._steps,
            "last": asdict(self.last),
            **self._episodes.state_dict(),
        }

    def load_state_dict(self, state: State) -> None:
        """Restore a state that `state_dict` returned; raise RunError if it is of another number of copies."""
        refuse_other_envs(state, {"format": FORMAT, "num_envs": self.num_envs})
        if state["compiled"] is not None:  # compiled and uncompiled steps differ in the last bits
            self.compiled, self._compiled = state["compiled"], self._compiled if state["compiled"] else None
        if state["changed"] != self._changed:
            self._set(state["changed"])
        if not state["started"]:
            return
        finished, self._unread, self._steps = state["finished"], [], state["steps"]
        apart = ("format", "num_envs", "started", "compiled", "changed", "finished", "steps")
        tensors = {name: part for name, part in state.items() if name not in apart}
        state = map_leaves(lambda part: part.to(self.device), tensors)
        self._episode = state["episode"]
        self._episodes.load_state_dict(state | {"finished": finished})
        self.last = last = TimeStep(**state["last"])
        self._ended = last.terminated | last.truncated
        self.env.random = self._stream(self._episode)
        self.env.random.count = state["count"]
        self.env.state, self.env.config = dict(state["state"]), self._config(state["config"])

    def close(self) -> None:
        """Close the batched environment."""
        self.env.close()


def _clear(values: Tensor, mask: Tensor) -> Tensor:
    """Return `values` with 0 if the mask is True."""
    return values.masked_fill(mask, 0)


def _where(mask: Tensor, yes: Tensor, no: Tensor) -> Tensor:
    """Return the rows of `yes` where `mask` [B] is True, otherwise those of `no`; both are [B, ...]."""
    return torch.where(mask.view(-1, *(1,) * (no.ndim - 1)), yes, no)
