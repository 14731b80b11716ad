"""The whole configuration of a run: one dataclass a Hydra group, checked before any work."""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from rlcore.config.schema import REQUIRED, Needs, arg
from rlcore.config.values import plain, spell
from rlcore.errors import UserError

# How a window of values becomes one, by name.
REDUCTIONS: dict[str, Callable[[Sequence[Any]], Any]] = {
    "mean": lambda values: sum(values) / len(values),
    "sum": sum,
    "max": max,
    "min": min,
    "last": lambda values: values[-1],
}
# Why some keys are accepted and have no effect today.
ALL_RANKS = "ranks always learn from all of their steps together"


@dataclass(frozen=True)
class ActionsAsObservationConfig:
    """The last actions as an observation key `action_stack`."""

    num_stack: int = arg(-1, "how many past actions; -1 = off", low=-1)
    noop: Any = arg(0, "the action that fills the stack at an episode's start: number, or list for several sub-actions")
    dilation: int = arg(
        1, "take every n-th of the past actions", low=1, needs=Needs("num_stack", lambda n: n > 1, " of 2 or more")
    )


@dataclass(frozen=True)
class RestartConfig:
    """An environment that raised, or whose process died, is built anew."""

    attempts: int = arg(0, "failures within the window that are answered so; one more ends the run. 0 = off", low=0)
    window: float = arg(300.0, "seconds for which a failure counts", above=0)
    wait: float = arg(20.0, "seconds before it is built anew", low=0)


@dataclass(frozen=True)
class EnvConfig:
    """The environment and how many of it."""

    id: str = arg(REQUIRED, "any Gymnasium id, as CartPole-v1")
    num_envs: int = arg(4, "B: environments stepped together", low=1)
    frame_stack: int = arg(1, "frames that an agent sees of image keys (of vector keys always one); -1 = one", low=-1)
    frame_stack_dilation: int = arg(
        1, "take every n-th of the past frames", low=1, needs=Needs("frame_stack", lambda n: n > 1, " of 2 or more")
    )
    sync_env: bool = arg(
        True, "true: in this process (fast for cheap environments); false: one process each", learning=False
    )
    vectorization: str = arg(
        "auto",
        "single: each environment is stepped by itself; native: all at once, where the id has such code (CartPole); "
        "auto: native where it is faster; all give the same bits",
        choices=("auto", "single", "native"),
        learning=False,
    )
    step_timeout: float = arg(
        60.0, "seconds the environments may take for one step before the run ends", above=0, learning=False
    )
    screen_size: int | None = arg(64, "side of image observations, pixels; null = as the environment has them", low=1)
    grayscale: bool = arg(False, "image observations in one channel")
    vector_key: str | None = arg(
        None, "key of numbers that come by themselves; null = the first that algo.mlp_keys.encoder asks for, or state"
    )
    image_key: str | None = arg(
        None,
        "key of an image that comes by itself; of one that is drawn, where there is none; "
        "null = the first that algo.cnn_keys.encoder asks for, or rgb; drawn only if asked for",
    )
    normalize_actions: bool = arg(False, "a bounded Box of actions is shown as -1 to 1")
    action_repeat: int = arg(1, "environment steps per action; rewards are summed", low=1)
    reward_scale: float = arg(1.0, "the learner sees the reward times this", above=0)
    clip_rewards: bool = arg(False, "the learner sees tanh(reward), of the scaled one")
    capture_video: bool = arg(
        True, "record one greedy episode at the last evaluation, or at each (evaluation.film)", learning=False
    )
    actions_as_observation: ActionsAsObservationConfig = arg(
        ActionsAsObservationConfig(), "past actions as an observation"
    )
    max_episode_steps: int | None = arg(None, "cut episodes after this many steps; null = the id's own limit", low=1)
    reward_as_observation: bool = arg(False, "the last reward as observation key `reward`")
    mask_velocities: bool = arg(
        False, "zero the velocities in `state` (classic control, Box2D, MuJoCo): a partly observed task"
    )
    restart_on_exception: RestartConfig = arg(
        RestartConfig(), "an environment that fails is built anew, its open episode truncated", learning=False
    )
    wrapper: dict[str, Any] = arg(
        {}, "arguments of gymnasium.make, as env.wrapper.is_slippery=false; or of your class, which _target_ names"
    )

    def check(self, prefix: str) -> None:
        """Refuse a stack of no frames; `prefix` is the group's place, for messages."""
        if self.frame_stack == 0:
            raise UserError(f"{prefix}frame_stack=0: must be 1 or more, or -1, which is one frame")


def _is_count(value: Any) -> bool:
    return str(value).isascii() and str(value).isdecimal()


def _are_counts(parts: Sequence[str]) -> bool:
    return all(_is_count(part.strip()) for part in parts if part.strip())


@dataclass(frozen=True)
class FabricConfig:
    """Devices and precision of training (Lightning Fabric)."""

    devices: int | str | tuple[int, ...] = arg(
        1,
        "processes that train together, each with env.num_envs environments (CUDA: and a GPU); a list names the GPUs, "
        "as [1] or [0,1]",
    )
    num_nodes: int = arg(1, "machines; one", low=1)
    strategy: str = arg("auto", "of several devices: ddp, which is what auto takes", choices=("auto", "ddp"))
    accelerator: str = arg("cpu", "where the networks live", choices=("cpu", "cuda", "gpu", "auto"))
    precision: str = arg(
        "32-true",
        "numbers of the networks; bf16 means bf16-mixed",
        choices=("32-true", "32", "bf16-mixed", "bf16", "bf16-true", "16-mixed", "16"),
    )

    def check(self, prefix: str) -> None:
        """Refuse several machines and impossible devices; `prefix` is the group's place, for messages."""
        if self.num_nodes != 1:
            raise UserError(f"{prefix}num_nodes={self.num_nodes}: a run trains on one machine; set it to 1")
        place, indices = f"{prefix}devices={spell(plain(self.devices))}", self.indices
        if indices is None and str(self.devices) != "auto" and not (_is_count(self.devices) and self.ranks > 0):
            raise UserError(
                f"{place}: must be a number of devices from 1, auto, which is 1, or a list of GPUs, as [0,1]"
            )
        if indices is not None and (not indices or min(indices) < 0 or len({*indices}) < len(indices)):
            raise UserError(f"{place}: must name each GPU once, by its number from 0, as [0,1]")
        if indices is not None and self.accelerator == "cpu":
            raise UserError(
                f"{place}: a list names GPUs, and {prefix}accelerator=cpu; add {prefix}accelerator=cuda, or give the "
                f"number of processes, as {prefix}devices={len(indices)}"
            )

    @property
    def ranks(self) -> int:
        """Processes that train together."""
        if self.indices is not None:
            return len(self.indices)
        return 1 if self.devices == "auto" else int(str(self.devices))

    @property
    def indices(self) -> tuple[int, ...] | None:
        """Numbers of the GPUs, one for each rank, from a list or from text as "0,1"; None if only a count is given.

        Lightning Fabric reads `devices` in the same way.
        """
        if isinstance(self.devices, tuple):
            return self.devices
        parts = str(self.devices).split(",")
        return tuple(int(part) for part in parts if part.strip()) if len(parts) > 1 and _are_counts(parts) else None


@dataclass(frozen=True)
class BufferConfig:
    """Storage of the steps that wait for the learner."""

    size: int | None = arg(
        None,
        "rows that are kept: of each environment in a rollout, of all together in a replay memory; "
        "null: as many as the algorithm wants",
        low=1,
    )
    memmap: bool = arg(
        False, "a replay memory's rows lie on the disk, for more of them than fit in memory", learning=False
    )
    memmap_dir: str | None = arg(
        None, "where; null: in the run's folder", learning=False, needs=Needs("memmap", bool, "=true")
    )
    on_device: bool = arg(
        False, "a replay memory's rows lie beside the networks: on a GPU, where a batch is not copied", learning=False
    )
    load_from: str | None = arg(
        None, "what a replay memory begins with: minari:NAME, a dataset of Minari's, or a run's folder `dataset`"
    )
    validate_args: bool = arg(False, "check shapes", learning=False, unused="shapes are always checked")
    from_numpy: bool = arg(False, "storage shared with NumPy", learning=False, unused="storage is always shared")
    checkpoint: bool = arg(True, "keep the replay in checkpoints", learning=False, unused="it always is")
    type: str = arg(
        "sequential",
        "what sequences are drawn from: all rows; episode: whole episodes that have ended, each as likely as any other",
        choices=("sequential", "episode"),
    )
    prioritize_ends: bool = arg(
        False,
        "with type=episode: sequences that end where episodes do are drawn more often",
        needs=Needs("type", lambda kind: kind == "episode", "=episode"),
    )
    online: bool = arg(
        False, "batches begin with the sequences that are new, each of them once, the oldest first; the rest is drawn"
    )
    sample_next_obs: bool = arg(False, "next observations by their row", unused="they are never stored twice")
    share_data: bool = arg(False, "all ranks learn from all rollouts", unused=ALL_RANKS)

    def check(self, prefix: str) -> None:
        """Refuse two places for the same rows; `prefix` is the group's place, for messages."""
        if self.memmap and self.on_device:
            raise UserError(
                f"{prefix}on_device=true: the rows lie on the disk by {prefix}memmap=true; set one to false"
            )


@dataclass(frozen=True)
class CheckpointConfig:
    """Schedule by which the run becomes durable. Changes no bit of learning."""

    every: int | None = arg(None, "policy steps between checkpoints; null = 20 a run", low=1)
    keep_last: int | None = arg(5, "scheduled checkpoints kept, beside the newest and the best one; null = all", low=1)
    save_last: bool = arg(True, "a checkpoint at the end")
    resume_from: str | None = arg(None, "checkpoint directory of another run to continue from")
    memmap_buffer: str = arg(
        "reference", "how replay is stored", choices=("reference", "copy"), unused="chunks are written once"
    )


DISTRIBUTIONS = ("auto", "discrete", "normal", "tanh_normal", "trunc_normal")


@dataclass(frozen=True)
class DistributionConfig:
    """The policy's distribution."""

    type: str = arg("auto", "auto: by action space", choices=DISTRIBUTIONS)
    validate_args: bool = arg(
        False, "check distributions", unused="a loss or gradient that is not finite always ends the run"
    )


@dataclass(frozen=True)
class AggregatorConfig:
    """Choice of the metrics that are logged, and how a window of `metric.log_every` becomes one point."""

    metrics: dict[str, Any] = arg({}, "metric name -> mean, sum, max, min or last; absent names are averaged")
    raise_on_missing: bool = arg(False, "fail on a metric the algorithm does not give, instead of one warning")


@dataclass(frozen=True)
class LoggerConfig:
    """A mirror of the event log beside MLflow."""

    name: str = arg("tensorboard", "which", choices=("tensorboard", "csv", "mlflow", "none"))
    experiment_name: str | None = arg(None, "MLflow experiment; null = exp_name")
    tracking_uri: str | None = arg(None, "MLflow server; null = the project's own")
    tags: dict[str, Any] | None = arg(None, "MLflow tags")


@dataclass(frozen=True)
class MetricConfig:
    """Metrics that are logged, and when."""

    log_level: int = arg(1, "0: no metrics; 1: all", choices=(0, 1))
    log_every: int = arg(5000, "policy steps in one point", low=1)
    disable_timer: bool = arg(False, "no Time/* metrics")
    sync_on_compute: bool = arg(False, "average metrics over ranks", unused=ALL_RANKS)
    aggregator: AggregatorConfig = arg(AggregatorConfig(), "reductions")
    logger: LoggerConfig = arg(LoggerConfig(), "mirror")


@dataclass(frozen=True)
class ModelManagerConfig:
    """The MLflow registry."""

    disabled: bool = arg(False, "true: do not register the model")
    models: dict[str, Any] = arg({}, "agent, and parts that are registered apart: {model_name, description, tags}")
    gate_time: float | None = arg(
        1.0,
        "the comparison with the champion takes so many times as long as training did, at most; null = no limit",
        above=0,
    )


@dataclass(frozen=True)
class EvaluationConfig:
    """Evaluation of the policy. Changes no bit of learning."""

    every: int | None = arg(None, "policy steps between evaluations; null = 10 a run", low=1)
    episodes: int = arg(10, "episodes of each evaluation while training", low=1)
    final_episodes: int = arg(100, "episodes of the last evaluation, greedy and stochastic each", low=1)
    baseline_episodes: int = arg(100, "episodes of the random baseline", low=1)
    num_envs: int = arg(25, "environments stepped together while evaluating", low=1)
    dream: str = arg(
        "every",
        "of a world model: pictures and films of what it expects, in media/, at every evaluation, the last, or never",
        choices=("every", "last", "never"),
    )
    film: str = arg(
        "last",
        "with env.capture_video: an episode is recorded at the last evaluation, media/policy.mp4, or at every one, "
        "media/policy_<policy steps>.mp4",
        choices=("every", "last"),
    )
    max_episode_steps: int | None = arg(
        None,
        "an evaluation episode is cut here; null = 1 % of algo.total_steps, "
        "2,000 at least (env without a limit: 1,000)",
        low=1,
    )


@dataclass(frozen=True)
class EarlyStopConfig:
    """Conditions for ending before total_steps, judged on greedy evaluations while training."""

    target_return: float | None = arg(None, "stop when the greedy mean return reaches this")
    patience: int | None = arg(None, "stop after this many evaluations without improvement", low=1)
    min_delta: float = arg(
        0.0,
        "smallest gain in mean return that counts as improvement",
        low=0,
        needs=Needs("patience", bool, " of 1 or more"),
    )


@dataclass(frozen=True)
class RunConfig:
    """One run. `algo` is the `Config` of the algorithm that `algo.name` names."""

    algo: Any = arg(REQUIRED, "the algorithm: choose a preset with exp=ppo")
    env: EnvConfig = arg(REQUIRED, "environment")
    fabric: FabricConfig = arg(FabricConfig(), "device and precision")
    buffer: BufferConfig = arg(BufferConfig(), "storage of steps")
    checkpoint: CheckpointConfig = arg(CheckpointConfig(), "durability", learning=False)
    distribution: DistributionConfig = arg(DistributionConfig(), "policy distribution")
    metric: MetricConfig = arg(MetricConfig(), "metrics", learning=False)
    model_manager: ModelManagerConfig = arg(ModelManagerConfig(), "registry", learning=False)
    evaluation: EvaluationConfig = arg(EvaluationConfig(), "evaluation", learning=False)
    early_stop: EarlyStopConfig = arg(EarlyStopConfig(), "ending early", learning=False)
    seed: int = arg(42, "root of every random stream", low=0)
    num_threads: int = arg(1, "threads of one torch operation", low=1, learning=False)
    float32_matmul_precision: str = arg("high", "TF32 on CUDA", choices=("highest", "high", "medium"))
    dry_run: bool = arg(
        False, "to the first gradient step, two episodes of baseline and last evaluation; nothing compiled unasked"
    )
    torch_use_deterministic_algorithms: bool = arg(False, "refuse operations without a deterministic version")
    torch_backends_cudnn_benchmark: bool = arg(False, "let cuDNN choose by timing; breaks exactness")
    torch_backends_cudnn_deterministic: bool = arg(True, "deterministic cuDNN kernels")
    cublas_workspace_config: str | None = arg(None, "CUBLAS_WORKSPACE_CONFIG", choices=(None, ":4096:8", ":16:8"))
    label: str = arg(
        "", "names runs, the experiment and models; default: your own preset, or the algorithm", learning=False
    )
    exp_name: str = arg("", "experiment in MLflow; default <label>_<env id>", learning=False)
    run_name: str = arg("", "name of this run; default by time and exp_name", learning=False)
    root_dir: str = arg("", "folder of the run's family, under log_root; default <algo>/<env id>", learning=False)
    log_root: str = arg("runs", "folder of all runs; default SHEPHERD_RUN_ROOT, else runs", learning=False)
    run_dir: str = arg("", "the run's own folder; default <log_root>/<root_dir>/<run_name>", learning=False)
    group: str | None = arg(None, "the group of runs it is counted with, as in `shepherd compare`", learning=False)
    init_from: str | None = arg(None, "run, checkpoint or models:/ URI whose weights start this run")
    plugins: tuple[str, ...] = arg(
        (), "modules of your own, which bring algorithms and environments; behind any command", learning=False
    )
    run_benchmarks: bool = arg(False, "of SheepRL's files", learning=False, unused="nothing reads it here")

    def __post_init__(self) -> None:
        """Name the observation that has no name of its own as the algorithm's keys ask for it."""
        if self.algo is not None:  # while a config is built, its algorithm's keys come last
            object.__setattr__(self, "env", _name_added_keys(self.env, self.algo))

    @property
    def width(self) -> int:
        """Environments, all ranks together."""
        return self.env.num_envs * self.fabric.ranks

    @property
    def checkpoint_every(self) -> int:
        """Policy steps between checkpoints."""
        return self.checkpoint.every or max(1, math.ceil(self.algo.total_steps / 20))

    @property
    def evaluation_every(self) -> int:
        """Policy steps between evaluations while training."""
        return self.evaluation.every or max(1, math.ceil(self.algo.total_steps / 10))

    @property
    def baseline_episodes(self) -> int:
        """Episodes of the random baseline."""
        return self._limit_episodes(self.evaluation.baseline_episodes)

    @property
    def final_episodes(self) -> int:
        """Episodes of the last evaluation, greedy and stochastic each."""
        return self._limit_episodes(self.evaluation.final_episodes)

    def with_absolute_paths(self) -> RunConfig:
        """Return the same config with absolute paths: an environment may change the working directory."""
        buffer, checkpoint = self.buffer, self.checkpoint
        return dataclasses.replace(
            self,
            buffer=dataclasses.replace(
                buffer, memmap_dir=_absolute(buffer.memmap_dir), load_from=_absolute(buffer.load_from)
            ),
            checkpoint=dataclasses.replace(checkpoint, resume_from=_absolute(checkpoint.resume_from)),
            run_dir=_absolute(self.run_dir),
            init_from=_absolute(self.init_from),
        )

    def is_tried(self, updates: int) -> bool:
        """Tell whether this is a dry run that has made its gradient step."""
        return self.dry_run and updates > 0

    def _limit_episodes(self, episodes: int) -> int:
        return min(episodes, 2) if self.dry_run else episodes  # it asks whether all works


def _absolute(path: Any) -> Any:
    """Return a path as an absolute one; no path, or a name as `minari:NAME` or `models:/NAME`, stays as it is."""
    return path if not path or path.startswith(("minari:", "models:")) else os.path.abspath(path)


def _name_added_keys(env: EnvConfig, algo: Any) -> EnvConfig:
    """The env group with the names of what comes by itself, where its user left them to the algorithm's keys."""
    vectors, images = (getattr(getattr(algo, group, None), "encoder", ()) for group in ("mlp_keys", "cnn_keys"))
    added = {"reward": env.reward_as_observation, "action_stack": env.actions_as_observation.num_stack > 0}
    own = [key for key in vectors if not added.get(key)]
    vector = env.vector_key or ("state" if "state" in own or not own else own[0])
    image = env.image_key or ("rgb" if "rgb" in images else next(iter(images), None))
    return dataclasses.replace(env, vector_key=vector, image_key=image)
