"""The sum of what a run will need, added up before anything of it is made.

    memory   every rank's process, threads, environments (or their processes), parameters, optimizer with its gradient,
             rollout (as it arrives and as it is learned from), replay memory
    device   of a GPU: what its rank learns with
    disk     the checkpoints that are kept, a replay memory, and for each of them what was new in it

Not in it is what a gradient step computes on its way, and machine code: from images, and of Dreamers, 0.2 to 1 GB more
(docs/results/speed.md has peaks).

An algorithm writes no formula: its learner is built without numbers and its state counted (`rlcore.train.counting`),
its buffer says how many rows it keeps, the environment's spec what a row takes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

from rlcore.config.groups import EnvConfig, RunConfig
from rlcore.data.sizes import PIECES, frame_bytes, row_bytes
from rlcore.spec import EnvSpec, Window
from rlcore.system.devices import gpus
from rlcore.system.free_memory import FreeResources, size

# Bytes that nobody else has, measured: a trainer after a short training, an environment's process (CartPole; of MuJoCo
# twice that), an environment in the trainer (CartPole; of Box2D 96 kB, of MuJoCo 1 MB), a thread of torch.
PROCESS, WORKER, ENVIRONMENT, THREAD = 240 << 20, 20 << 20, 6 << 10, 100 << 10
# Bytes of the processes around a trainer, measured while it trains: the command with MLflow 215 MB, Prefect's API 175,
# the process that writes to MLflow 170. They are reported, but not compared with the free memory: most of them
# exist before a run is checked.
COMMAND = 560_000_000
STATE = 256  # bytes of an environment's state in a checkpoint
BEYOND = 1 << 80  # bytes, where a size has more than 63 bits
PER_CORE = 4  # ranks: each of them computes all the time


@dataclass(frozen=True)
class TensorSizes:
    """The size of what an algorithm keeps.

    Attributes:
        agent: bytes of its parameters and statistics.
        beside: bytes of what its learner remembers beside it.
        capacity: rows of every environment in its buffer.
        batch_rows: those of one batch that is drawn from it.
        chunk_rows: those of every environment that a checkpoint writes together.
        row: bytes of one row there; 0 = as many as it arrives with.
        on_device: these rows lie where the agent does.
        in_files: they lie on the disk.
        countable: there is an end to its layers.
        updates: gradient steps of each rank in the whole run; None = its buffer does not know.
        learned_rows: rows that each of them learns from.
        replay_ratio: gradient steps of a rank for every policy step of its own.
    """

    agent: int = 0
    beside: int = 0
    capacity: int = 0
    batch_rows: int = 0
    chunk_rows: int = 0
    row: int = 0
    on_device: bool = False
    in_files: bool = False
    countable: bool = True
    updates: int | None = None
    learned_rows: int = 0
    replay_ratio: float = 0.0


@dataclass(frozen=True)
class ResourceEstimate:
    """Bytes by part, of all ranks together; of the `device`, a GPU, of one rank."""

    memory: dict[str, int] = field(default_factory=dict[str, int])
    device: dict[str, int] = field(default_factory=dict[str, int])
    disk: dict[str, int] = field(default_factory=dict[str, int])
    threads: int = 0
    busy: int = 1  # processes that compute on the CPU all the time
    countable: bool = True
    plan: str = ""  # the training in words: its steps and its device
    ratios: str = ""  # the planned gradient steps in words; of an algorithm with a replay buffer

    def find_shortage(self, free: FreeResources) -> str | None:
        """Name what there is too little of, in words; None where all fits."""
        for name, parts, there in self._beside(free):
            if (wanted := sum(parts.values())) > there:
                return f"{size(wanted)} of {name} ({_list(parts)}), and {size(there)} are free here"
        if not self.countable:
            return "networks of more layers than can be counted in a second"
        if self.threads > free.threads:
            return f"{self.threads:,} threads and processes, and {free.threads:,} are possible here"
        if self.busy > PER_CORE * free.cores:
            return f"{self.busy} processes that compute all the time, and there are {free.cores} cores here"
        return None

    def sentence(self, free: FreeResources, command: bool = False) -> str:
        """Return the plan with the needed and the free bytes; `command`: the command's processes are included."""
        *sides, last = (
            f"{size(sum(parts.values()))} of {size(there)} free {name}"
            for name, parts, there in self._with(command)._beside(free)
        )
        return f"{self.plan}; needs about {', '.join(sides)} and {last}"

    def details(self, free: FreeResources, command: bool = False) -> list[str]:
        """Return sentences with the parts of the needed bytes, and with the ratios."""
        sides = self._with(command)._beside(free)
        return [f"{name}: {_list(parts)}" for name, parts, _ in sides] + [self.ratios] * bool(self.ratios)

    def _with(self, command: bool) -> ResourceEstimate:
        return replace(self, memory=self.memory | {"command, Prefect and MLflow": COMMAND}) if command else self

    def _beside(self, free: FreeResources) -> list[tuple[str, dict[str, int], int]]:
        sides = [("memory", self.memory, free.memory), ("disk", self.disk, free.disk)]
        return sides if free.device is None else [*sides, ("the GPU's memory", self.device, free.device)]


def estimate(config: RunConfig, spec: EnvSpec, counted: TensorSizes | None = None) -> ResourceEstimate:
    """The sum of a config in an environment; without what the algorithm keeps where that is not `counted`."""
    counted, ranks, width, env = counted or TensorSizes(), config.fabric.ranks, config.width, config.env
    workers, row, gpu = 0 if env.sync_env else width, row_bytes(spec), on_gpu(config)
    past, shown = _window_bytes(spec)
    judging = min(config.evaluation.num_envs, max(config.evaluation.episodes, config.final_episodes))
    arriving = config.algo.collect_length * env.num_envs * row
    rows = config.algo.iterations(width) * config.algo.collect_length + 1  # of a whole run, and the arrival after them
    held = env.num_envs * (counted.row or row)  # bytes of one row of all environments of a rank, as it is remembered
    rows = counted.capacity if config.buffer.load_from is not None else rows  # a dataset may fill it at once
    replay, chunk = min(counted.capacity, rows) * held, min(counted.chunk_rows, rows) * held
    # The learner has a copy of the rollout, in its own form; a step computes the optimizer's next state beside it.
    learning = {"parameters": counted.agent, "optimizer": counted.beside + counted.agent, "rollout": arriving}
    learning |= {"batch": counted.batch_rows * (counted.row or row)}
    # Stacked frames are copied for each row that is learned from at once.
    minibatch: int = getattr(config.algo, "per_rank_batch_size", None) or BEYOND
    at_once = counted.batch_rows or min(minibatch, config.algo.collect_length * env.num_envs)
    learning |= {"frames": env.num_envs * past + (env.num_envs + at_once) * shown}
    memory = {
        "processes": ranks * PROCESS + workers * WORKER,
        "threads": ranks * config.num_threads * THREAD,
        "environments": (width - workers + judging) * ENVIRONMENT,
    }
    remembered = {} if counted.in_files else {"replay memory": replay}
    device = learning | (remembered if counted.on_device else {})
    host = {"rollout": arriving, "a chunk that is written": 2 * chunk} | ({} if counted.on_device else remembered)
    for parts in (host,) if gpu else (host, device):
        memory |= {name: memory.get(name, 0) + ranks * count for name, count in parts.items()}
    kept, each = _count_kept(config), counted.agent + counted.beside + width * (row + STATE)
    new = min(replay, config.checkpoint_every // width * held)
    # A chunk that fills is written in pieces first; the newest rows, less than a piece, are in every checkpoint again.
    chunks = replay + chunk + kept * (new + min(new, chunk) + min(new, chunk // PIECES + held))
    return ResourceEstimate(
        memory=_there(memory),
        device=_there(device if gpu else {}),
        disk=_there({"checkpoints": kept * each, "replay memory": ranks * (chunks + counted.in_files * replay)}),
        threads=ranks * config.num_threads + workers,
        busy=1 if gpu else ranks,
        countable=counted.countable,
        plan=_plan(config, counted),
        ratios=_ratios(config, counted),
    )


def _window_bytes(spec: EnvSpec) -> tuple[int, int]:
    """Bytes of the past that acting keeps for one environment, and of all frames that are shown of one row."""
    past, shown = 0, 0
    for part in spec.obs.values():
        if part.window is not None:
            frame = frame_bytes(part)
            past, shown = past + part.window.reach * frame, shown + part.window.frames * frame
    return past, shown


def resized(spec: EnvSpec, made: EnvConfig, asked: EnvConfig) -> EnvSpec:
    """Return the spec of another env group, of which only sizes differ, without making its environment.

    Args:
        spec: of an environment.
        made: the env group that it was made from.
        asked: the other one.

    Returns:
        The spec with `screen_size`, `frame_stack`, `frame_stack_dilation` and `actions_as_observation.num_stack` of it.
    """
    obs = dict(spec.obs)
    before, after = made.actions_as_observation.num_stack, asked.actions_as_observation.num_stack
    if before != after and "action_stack" in obs and before > 0:
        stack = obs["action_stack"]
        obs["action_stack"] = replace(stack, shape=(math.prod(stack.shape) // before * max(0, after),))
    frames = (asked.frame_stack, asked.frame_stack_dilation)
    for key, part in spec.obs.items():
        if part.window is not None and frames != (made.frame_stack, made.frame_stack_dilation):
            obs[key] = replace(obs[key], window=Window(*frames) if asked.frame_stack > 1 else None)
        if part.kind == "image" and asked.screen_size and asked.screen_size != made.screen_size:
            sides = (asked.screen_size if side == made.screen_size else side for side in part.shape)
            obs[key] = replace(obs[key], shape=tuple(sides))
    return replace(spec, obs=obs)


def _plan(config: RunConfig, counted: TensorSizes) -> str:
    """Return the policy steps, the gradient steps (if they are known) and the device of a run in words."""
    ranks = f" ({config.fabric.ranks} ranks)" if config.fabric.ranks > 1 else ""
    updates = "" if counted.updates is None else f" with {counted.updates:,} gradient steps"
    steps = f"{config.algo.budget(config.width):,} policy steps{updates}"
    return f"trains {steps} on the {'GPU' if on_gpu(config) else 'CPU'}{ranks}"


def _ratios(config: RunConfig, counted: TensorSizes) -> str:
    """Return the planned gradient steps in both units that papers use."""
    if counted.updates is None:
        return ""
    ratio, rows = counted.replay_ratio, counted.learned_rows
    ranks = " on every rank" if config.fabric.ranks > 1 else ""
    steps = f"{counted.updates:,} gradient steps of {rows:,} rows{ranks}"
    return f"{steps}: replay ratio {ratio:g} (gradient steps per policy step), train ratio {ratio * rows:g} (rows)"


def on_gpu(config: RunConfig) -> bool:
    """Tell whether a run of this config computes on a GPU here."""
    accelerator = config.fabric.accelerator
    return accelerator in ("cuda", "gpu") or (accelerator == "auto" and gpus() > 0)


def spell_duration(seconds: float) -> str:
    """Time as a person says it, from seconds to days."""
    for unit, length in (("days", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.{1 if seconds < 10 * length else 0}f} {unit}"
    return f"{seconds:.0f} s"


def _list(parts: dict[str, int]) -> str:
    """The parts that make a difference, largest first."""
    worth = [part for part in parts.items() if part[1] * 100 >= sum(parts.values())]
    return ", ".join(f"{name} {size(count)}" for name, count in sorted(worth, key=lambda part: -part[1]))


def _there(parts: dict[str, int]) -> dict[str, int]:
    return {name: count for name, count in parts.items() if count}


def _count_kept(config: RunConfig) -> int:
    """Return the most checkpoints on the disk at once: kept, the best, one being written, one of an evaluation."""
    every, keep = config.checkpoint_every, config.checkpoint.keep_last
    beside = 2 + (config.evaluation_every % every != 0)
    made = math.ceil(config.algo.total_steps / min(every, config.evaluation_every)) + 1
    return made if keep is None else min(made, keep + beside)
