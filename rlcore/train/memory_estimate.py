"""Estimate of the memory, disk space and threads of a run, computed before the run allocates anything.

    memory   of every rank: process, threads, environments (or their processes), parameters, optimizer state and
             gradients, rollout (in the staging buffer and in the learner), replay buffer
    device   memory of a GPU: networks, optimizer state, gradients, batches and rollout of the rank that uses it
    disk     the checkpoints that are kept, the replay buffer, and the rows that each checkpoint adds

The estimate does not include activations of gradient steps and compiled code. With images, and for Dreamers, these take
another 0.2 to 1 GB (docs/results/speed.md lists peaks).

Algorithms do not provide formulas. The learner is built with meta tensors and its state is counted
(`rlcore.train.counting`), the buffer provides its number of rows, and the environment's spec the size of a row.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

from rlcore.compiled.when_to_compile import on_gpu
from rlcore.config.run import RunConfig
from rlcore.data.sizes import PIECES, frame_bytes, row_bytes
from rlcore.spec import EnvSpec
from rlcore.system.free_memory import FreeResources, size

# Unshared bytes, measured: a trainer after a short training, an environment process (CartPole; MuJoCo: twice that), an
# environment in the trainer (CartPole; Box2D: 96 kB, MuJoCo: 1 MB), a thread of torch.
PROCESS, WORKER, ENVIRONMENT, THREAD = 240 << 20, 20 << 20, 6 << 10, 100 << 10
# Bytes of the other processes of a run, measured during training: the command with MLflow 215 MB, Prefect's API 175 MB,
# the process that writes to MLflow 170 MB. They are reported, but not compared with the free memory, because most of
# them exist before a run is checked.
COMMAND = 560_000_000
UNKNOWN_COUNT = 20  # checkpoints of a run without algo.total_steps that keeps all of them
STATE = 256  # bytes of an environment's state in a checkpoint
BEYOND = 1 << 80  # bytes; used if a size has more than 63 bits
PER_CORE = 4  # maximum number of ranks per core; a rank computes all the time


@dataclass(frozen=True)
class TensorSizes:
    """Sizes of the state of an algorithm. A row is one time step of one environment.

    Attributes:
        agent: bytes of the agent's parameters and statistics.
        beside: bytes of all other state of the learner, such as optimizers and target networks.
        capacity: number of rows per environment in the buffer.
        batch_rows: number of rows in one batch that is sampled from the buffer.
        chunk_rows: number of rows per environment in one chunk, the unit in which checkpoints store the buffer.
        row: bytes of one row in the buffer; 0: the same as in the environment.
        on_device: True if the buffer stores its rows on the agent's device, False if in host memory.
        in_files: True if the buffer stores its rows in memory-mapped files.
        countable: False if the networks have so many layers that counting takes too long.
        updates: number of gradient steps of each rank in the complete run; None: unknown.
        learned_rows: number of rows per gradient step.
        replay_ratio: gradient steps of a rank per policy step of this rank.
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
    """Resources that a run needs.

    `memory`, `disk` and `device` (GPU memory) map a purpose, such as "replay memory", to bytes. `memory` and `disk`
    are sums over all ranks; `device` is the need of a single rank.
    """

    memory: dict[str, int] = field(default_factory=dict[str, int])
    device: dict[str, int] = field(default_factory=dict[str, int])
    disk: dict[str, int] = field(default_factory=dict[str, int])
    threads: int = 0
    busy: int = 1  # number of processes that always use the CPU
    countable: bool = True
    plan: str = ""  # description of the training: steps and device
    ratios: str = ""  # sentence with gradient steps, replay ratio and train ratio; "" without a replay buffer

    def find_shortage(self, free: FreeResources) -> str | None:
        """Return a description of the first resource that is too small, or None if everything fits."""
        for name, parts, available in self._compare(free):
            if (needed := sum(parts.values())) > available:
                return f"{size(needed)} of {name} ({_list(parts)}), but only {size(available)} are free"
        if not self.countable:
            return "networks with too many layers to count"
        if self.threads > free.threads:
            return f"{self.threads:,} threads and processes, but only {free.threads:,} are available"
        if self.busy > PER_CORE * free.cores:
            return f"{self.busy} processes that are always busy, but this machine has only {free.cores} cores"
        return None

    def sentence(self, free: FreeResources, command: bool = False) -> str:
        """Return a sentence with the length of the training, and the needed and free bytes of each resource.

        If `command` is True, the needed memory includes the processes of the command, Prefect and MLflow.
        """
        *needs, last = (
            f"{size(sum(parts.values()))} of {size(available)} free {name}"
            for name, parts, available in self._with(command)._compare(free)
        )
        return f"{self.plan}; needs about {', '.join(needs)} and {last}"

    def details(self, free: FreeResources, command: bool = False) -> list[str]:
        """Return a sentence for each resource (such as memory), with the purposes that need most of it, in bytes.

        If there is a replay buffer, the last sentence describes the replay ratio. If `command` is True, the memory
        includes the processes of the command, Prefect and MLflow.
        """
        resources = self._with(command)._compare(free)
        return [f"{name}: {_list(parts)}" for name, parts, _ in resources] + [self.ratios] * bool(self.ratios)

    def _with(self, command: bool) -> ResourceEstimate:
        return replace(self, memory=self.memory | {"command, Prefect and MLflow": COMMAND}) if command else self

    def _compare(self, free: FreeResources) -> list[tuple[str, dict[str, int], int]]:
        """Return (name, {purpose: needed bytes}, free bytes) of each resource."""
        resources = [("memory", self.memory, free.memory), ("disk", self.disk, free.disk)]
        return resources if free.device is None else [*resources, ("the GPU's memory", self.device, free.device)]


def estimate(config: RunConfig, spec: EnvSpec, counted: TensorSizes | None = None) -> ResourceEstimate:
    """Estimate the resources that a run needs.

    `counted` contains the sizes of the algorithm's state (`rlcore.train.counting.count`). If it is None, the estimate
    does not include that state.
    """
    counted, ranks, width, env = counted or TensorSizes(), config.fabric.ranks, config.width, config.env
    workers, row, gpu = 0 if env.sync_env else width, row_bytes(spec), on_gpu(config)
    past, shown = _window_bytes(spec)
    evaluating = min(config.evaluation.num_envs, max(config.evaluation.episodes, config.final_episodes))
    rollout = config.algo.collect_length * env.num_envs * row
    rows = config.algo.iterations(width) * config.algo.collect_length + 1  # rows of the run, and the last time step
    stored = env.num_envs * (counted.row or row)  # bytes of one buffer row of all environments of a rank
    rows = counted.capacity if config.buffer.load_from is not None else rows  # a dataset may fill the buffer at once
    replay, chunk = min(counted.capacity, rows) * stored, min(counted.chunk_rows, rows) * stored
    # The learner has its own copy of the rollout. A step computes the next state of the optimizer next to the old one.
    # The order of the rollout's rows in all epochs is drawn at once.
    order = 8 * getattr(config.algo, "update_epochs", 0) * config.algo.collect_length * env.num_envs
    learning = {"parameters": counted.agent, "optimizer": counted.beside + counted.agent, "rollout": rollout + order}
    learning |= {"batch": counted.batch_rows * (counted.row or row)}
    # Stacked frames are copied for each row of a minibatch.
    minibatch: int = getattr(config.algo, "per_rank_batch_size", None) or BEYOND
    at_once = counted.batch_rows or min(minibatch, config.algo.collect_length * env.num_envs)
    learning |= {"frames": env.num_envs * past + (env.num_envs + at_once) * shown}
    memory = {
        "processes": ranks * PROCESS + workers * WORKER,
        "threads": ranks * config.num_threads * THREAD,
        "environments": (width - workers + evaluating) * ENVIRONMENT,
    }
    remembered = {} if counted.in_files else {"replay memory": replay}
    device = learning | (remembered if counted.on_device else {})
    host = {"rollout": rollout, "a chunk that is written": 2 * chunk} | ({} if counted.on_device else remembered)
    for parts in (host,) if gpu else (host, device):
        memory |= {name: memory.get(name, 0) + ranks * count for name, count in parts.items()}
    kept, each = _count_kept(config), counted.agent + counted.beside + width * (row + STATE)
    new = min(replay, config.checkpoint_every // width * stored)
    # An unfinished chunk is written in pieces. Rows newer than the last piece are written again in each checkpoint.
    chunks = replay + chunk + kept * (new + min(new, chunk) + min(new, chunk // PIECES + stored))
    return ResourceEstimate(
        memory=_drop_zeros(memory),
        device=_drop_zeros(device if gpu else {}),
        disk=_drop_zeros({"checkpoints": kept * each, "replay memory": ranks * (chunks + counted.in_files * replay)}),
        threads=ranks * config.num_threads + workers,
        busy=1 if gpu else ranks,
        countable=counted.countable,
        plan=_plan(config, counted),
        ratios=_ratios(config, counted),
    )


def _window_bytes(spec: EnvSpec) -> tuple[int, int]:
    """Return the bytes that frame stacking needs: (past frames of one environment, stacked frames of one row).

    The past frames are those that the agent stores to stack them with the next frame.
    """
    past, shown = 0, 0
    for part in spec.obs.values():
        if part.window is not None:
            frame = frame_bytes(part)
            past, shown = past + part.window.reach * frame, shown + part.window.frames * frame
    return past, shown


def _plan(config: RunConfig, counted: TensorSizes) -> str:
    """Return a phrase with the length (policy steps, and gradient steps if known) and the device of a run."""
    ranks = f" ({config.fabric.ranks} ranks)" if config.fabric.ranks > 1 else ""
    device = "GPU" if on_gpu(config) else "CPU"
    if config.algo.total_steps is None:
        return f"trains on the {device}{ranks} until a stop condition holds"
    updates = "" if counted.updates is None else f" with {counted.updates:,} gradient steps"
    steps = f"{config.algo.budget(config.width):,} policy steps{updates}"
    return f"trains {steps} on the {device}{ranks}"


def _ratios(config: RunConfig, counted: TensorSizes) -> str:
    """Return a sentence with gradient steps, replay ratio and train ratio; "" if the gradient steps are unknown.

    Some papers state the replay ratio (gradient steps per policy step), others the train ratio (trained rows per policy
    step).
    """
    if counted.updates is None:
        return ""
    ratio, rows = counted.replay_ratio, counted.learned_rows
    ranks = " on every rank" if config.fabric.ranks > 1 else ""
    number = "" if config.algo.total_steps is None else f"{counted.updates:,} "
    steps = f"{number}gradient steps of {rows:,} rows{ranks}"
    return f"{steps}: replay ratio {ratio:g} (gradient steps per policy step), train ratio {ratio * rows:g} (rows)"


def _list(parts: dict[str, int]) -> str:
    """Return names and sizes of the parts as text, largest first. Parts below 1 % of the sum are omitted."""
    large = [part for part in parts.items() if part[1] * 100 >= sum(parts.values())]
    return ", ".join(f"{name} {size(count)}" for name, count in sorted(large, key=lambda part: -part[1]))


def _drop_zeros(parts: dict[str, int]) -> dict[str, int]:
    return {name: count for name, count in parts.items() if count}


def _count_kept(config: RunConfig) -> int:
    """Return the maximum number of checkpoints that are on the disk at the same time.

    These are the `checkpoint.keep_last` newest ones, the best one, the one that is being written, and possibly one that
    was written for an evaluation.
    """
    every, keep = config.checkpoint_every, config.checkpoint.keep_last
    extra = 2 + (config.evaluation_every % every != 0)
    if config.algo.total_steps is None:
        return (keep or UNKNOWN_COUNT) + extra
    written = math.ceil(config.algo.total_steps / min(every, config.evaluation_every)) + 1
    return written if keep is None else min(written, keep + extra)
