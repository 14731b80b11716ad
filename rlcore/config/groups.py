"""Groups of keys in the config of a run, such as `env` or `buffer`: one dataclass for each group, without `algo`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from rlcore.config.info_keys import read_info_keys
from rlcore.config.loggers import LOGGERS
from rlcore.config.schema import REQUIRED, Needs, arg
from rlcore.config.values import plain, spell
from rlcore.errors import UserError

# Reductions of the values in a logging window, by name.
REDUCTIONS: dict[str, Callable[[Sequence[Any]], Any]] = {
    "mean": lambda values: sum(values) / len(values),
    "sum": sum,
    "max": max,
    "min": min,
    "last": lambda values: values[-1],
}
# Reason why some keys are accepted but have no effect.
ALL_RANKS = "training always uses the data of all ranks together"
MANY_EPISODES = 1_000_000  # more than an evaluation needs; a larger number is a typing error


@dataclass(frozen=True)
class ActionsAsObservationConfig:
    """Settings of the observation key `action_stack`, which contains the past actions."""

    num_stack: int = arg(-1, "number of past actions in the observation key action_stack; -1 = off", low=-1)
    noop: Any = arg(
        0, "action that fills action_stack at the start of an episode: a number, or a list for several sub-actions"
    )
    dilation: int = arg(
        1,
        "use every n-th past action in action_stack",
        low=1,
        needs=Needs("num_stack", lambda n: n > 1, " of 2 or more"),
    )


@dataclass(frozen=True)
class RestartConfig:
    """Limits for restarting an environment that raised an exception, or whose process died, during training."""

    attempts: int = arg(
        0,
        "maximum number of environment restarts within the time window; one more failure ends the run; 0 = off",
        low=0,
    )
    window: float = arg(300.0, "time window in seconds in which environment failures are counted", above=0)
    wait: float = arg(20.0, "seconds to wait before a failed environment is created again", low=0)


@dataclass(frozen=True)
class EnvConfig:
    """Environment, its wrappers, and the number of environments that are stepped in parallel."""

    id: str = arg(REQUIRED, "id of the environment: any Gymnasium id, for example CartPole-v1")
    num_envs: int = arg(4, "B: number of environments of each rank that are stepped together", low=1)
    frame_stack: int = arg(
        1,
        "number of frames stacked in image observations (vector observations are not stacked); 1 or -1 = no stacking",
        low=-1,
    )
    frame_stack_dilation: int = arg(
        1,
        "use every n-th past frame in a frame stack",
        low=1,
        needs=Needs("frame_stack", lambda n: n > 1, " of 2 or more"),
    )
    sync_env: bool = arg(
        True,
        "true: step environments in the training process (fast for cheap ones); false: one process per environment",
        learning=False,
    )
    vectorization: str = arg(
        "auto",
        "single: step environments one by one; native: all in one call, if the id supports it (CartPole); auto: native "
        "if it is faster; the results are bit for bit equal",
        choices=("auto", "single", "native"),
        learning=False,
    )
    step_timeout: float = arg(
        60.0,
        "time limit for one step of all environments, in seconds; the run fails if a step takes longer",
        above=0,
        learning=False,
    )
    screen_size: int | None = arg(
        64, "height and width of image observations in pixels; null = as returned by the environment", low=1
    )
    grayscale: bool = arg(False, "convert image observations to grayscale (one channel)")
    vector_key: str | None = arg(
        None,
        "observation key for a vector observation that has no key; null = state if algo.mlp_keys.encoder contains it "
        "or is empty, else the first key in algo.mlp_keys.encoder",
    )
    image_key: str | None = arg(
        None,
        "observation key for an image observation that has no key, or for rendered images; null = rgb if "
        "algo.cnn_keys.encoder contains it, else the first key in it; images are rendered only if "
        "algo.cnn_keys.encoder contains the key",
    )
    normalize_actions: bool = arg(False, "rescale a bounded Box action space to [-1, 1]")
    action_repeat: int = arg(1, "environment steps per action; their rewards are summed", low=1)
    reward_scale: float = arg(1.0, "factor that multiplies rewards before learning", above=0)
    clip_rewards: bool = arg(False, "learn from tanh(reward), applied after env.reward_scale")
    capture_video: bool = arg(
        True,
        "record a video of one greedy episode at the final evaluation, or at each evaluation (evaluation.film)",
        learning=False,
    )
    actions_as_observation: ActionsAsObservationConfig = arg(
        ActionsAsObservationConfig(), "past actions as an observation"
    )
    max_episode_steps: int | None = arg(
        None, "truncate episodes after this many steps; null = the limit registered for env.id", low=1
    )
    reward_as_observation: bool = arg(False, "add the last reward as observation key reward")
    action_mask_from_info: bool = arg(
        False, "add info['action_mask'] of reset and step as observation key action_mask, an action mask"
    )
    mask_velocities: bool = arg(
        False,
        "set the velocities in the observation state to zero, for a partially observable task (classic control, Box2D, "
        "MuJoCo)",
    )
    restart_on_exception: RestartConfig = arg(
        RestartConfig(), "restart of an environment that fails; its current episode is truncated", learning=False
    )
    info_keys: tuple[str, ...] = arg(
        (),
        "numbers in info to log as Game/NAME: the mean over the steps of an episode, or with NAME:last the last value, "
        "for example [distance,is_success:last]",
        learning=False,
    )
    config: dict[str, Any] = arg(
        {},
        "parameters of a batched environment: name -> number, distribution of each episode ({uniform: [low, high]} or "
        "{normal: [mean, std]}), or schedule ([[policy steps, value], ...])",
    )
    endless: bool | None = arg(
        None,
        "batched environments: true = episodes have no end, and their last value is bootstrapped; null = as the class "
        "of the environment says",
    )
    horizons_per_env_reset: int = arg(
        1,
        "endless environments: all of them are reset after this number of rollouts, each of algo.rollout_steps steps "
        "(1 step for algorithms with a replay buffer); negative = never",
    )
    wrapper: dict[str, Any] = arg(
        {},
        "arguments of gymnasium.make, for example env.wrapper.is_slippery=false, or of your own class, given by "
        "env.wrapper._target_",
    )

    def check(self, prefix: str) -> None:
        """Raise UserError if `frame_stack` or `horizons_per_env_reset` is 0, or if `info_keys` has an invalid entry.

        `prefix` is the dotted key of the group with a dot at its end, for messages.
        """
        if self.frame_stack == 0:
            raise UserError(f"{prefix}frame_stack=0: must be 1 or more, or -1 (equivalent to 1)")
        read_info_keys(self.info_keys, f"{prefix}info_keys")
        if self.horizons_per_env_reset == 0:
            raise UserError(f"{prefix}horizons_per_env_reset=0: must be 1 or more, or negative (no resets)")


def _is_count(value: Any) -> bool:
    return str(value).isascii() and str(value).isdecimal()


def _are_counts(parts: Sequence[str]) -> bool:
    return all(_is_count(part.strip()) for part in parts if part.strip())


@dataclass(frozen=True)
class FabricConfig:
    """Devices and numeric precision of training (Lightning Fabric)."""

    devices: int | str | tuple[int, ...] = arg(
        1,
        "number of processes that train together, each with env.num_envs environments and, on CUDA, one GPU; or a list "
        "of GPU indices, as [1] or [0,1]; auto = 1",
    )
    num_nodes: int = arg(1, "number of machines (only 1 is supported)", low=1)
    strategy: str = arg("auto", "strategy for several devices; auto = ddp", choices=("auto", "ddp"))
    accelerator: str = arg(
        "cpu",
        "device type of the networks; gpu = cuda; auto = cuda if there is a GPU, else cpu",
        choices=("cpu", "cuda", "gpu", "auto"),
    )
    precision: str = arg(
        "32-true",
        "numeric precision of the networks, as in Lightning Fabric; 32 = 32-true, bf16 = bf16-mixed, 16 = 16-mixed",
        choices=("32-true", "32", "bf16-mixed", "bf16", "bf16-true", "16-mixed", "16"),
    )

    def check(self, prefix: str) -> None:
        """Raise UserError if `num_nodes` is not 1, or if `devices` is invalid.

        `prefix` is the dotted key of the group with a dot at its end, for messages.
        """
        if self.num_nodes != 1:
            raise UserError(f"{prefix}num_nodes={self.num_nodes}: must be 1; a run trains on one machine")
        place, indices = f"{prefix}devices={spell(plain(self.devices))}", self.indices
        if indices is None and str(self.devices) != "auto" and not (_is_count(self.devices) and self.ranks > 0):
            raise UserError(
                f"{place}: must be a positive integer, auto (equivalent to 1), or a list of GPU indices, as [0,1]"
            )
        if indices is not None and (not indices or min(indices) < 0 or len({*indices}) < len(indices)):
            raise UserError(f"{place}: must contain each GPU index once, counted from 0, as [0,1]")
        if indices is not None and self.accelerator == "cpu":
            raise UserError(
                f"{place}: a list of GPUs needs {prefix}accelerator=cuda; set it, or give the number of processes, "
                f"as {prefix}devices={len(indices)}"
            )

    @property
    def ranks(self) -> int:
        """Return the number of processes that train together."""
        if self.indices is not None:
            return len(self.indices)
        return 1 if self.devices == "auto" else int(str(self.devices))

    @property
    def indices(self) -> tuple[int, ...] | None:
        """Return the GPU index of each rank if `devices` is a list or text such as "0,1"; otherwise None.

        A number is the number of processes, as in Lightning Fabric: `devices=1` is one process, `devices=[1]` is GPU 1.
        """
        if isinstance(self.devices, tuple):
            return self.devices
        parts = str(self.devices).split(",")
        return tuple(int(part) for part in parts if part.strip()) if len(parts) > 1 and _are_counts(parts) else None


@dataclass(frozen=True)
class BufferConfig:
    """Settings of the rollout buffer or replay buffer of an algorithm."""

    size: int | None = arg(
        None,
        "capacity in rows: per environment for a rollout, over all environments for a replay buffer; null = as needed "
        "by the algorithm",
        low=1,
    )
    memmap: bool = arg(
        False, "store the replay buffer in memory-mapped files, for buffers that do not fit in memory", learning=False
    )
    memmap_dir: str | None = arg(
        None,
        "folder of a memory-mapped replay buffer (buffer.memmap); null = the run directory",
        learning=False,
        needs=Needs("memmap", bool, "=true"),
    )
    on_device: bool | None = arg(
        None,
        "store the replay buffer on the device of the networks, so that batches are not copied to a GPU; null = if the "
        "environments are batched and on a GPU, and the buffer fits in its memory",
        learning=False,
    )
    load_from: str | None = arg(
        None,
        "rows that are loaded into the replay buffer before training: minari:NAME, the folder dataset of a run, or "
        "RUN/checkpoints/POLICY_STEPS, whose replay buffer is loaded; RUN stands for its newest checkpoint",
    )
    validate_args: bool = arg(
        False, "check the shapes of rows added to the buffer", learning=False, unused="shapes are always checked"
    )
    from_numpy: bool = arg(
        False, "share the storage of the buffer with NumPy", learning=False, unused="it is always shared"
    )
    checkpoint: bool = arg(True, "store the replay buffer in checkpoints", learning=False, unused="it is always stored")
    type: str = arg(
        "sequential",
        "sampling of sequences: sequential = from all rows; episode = from complete episodes, all equally likely",
        choices=("sequential", "episode"),
    )
    prioritize_ends: bool = arg(
        False,
        "with buffer.type=episode: sample sequences at the end of an episode more often",
        needs=Needs("type", lambda kind: kind == "episode", "=episode"),
    )
    online: bool = arg(
        False,
        "start each batch with sequences that were not used yet, oldest first; the rest of the batch is sampled",
    )
    sample_next_obs: bool = arg(False, "read next observations from the next row", unused="they are never stored twice")
    share_data: bool = arg(False, "train all ranks on the rollouts of all ranks", unused=ALL_RANKS)

    def check(self, prefix: str) -> None:
        """Raise UserError if both `memmap` and `on_device` are true.

        `prefix` is the dotted key of the group with a dot at its end, for messages.
        """
        if self.memmap and self.on_device:
            raise UserError(
                f"{prefix}on_device=true: cannot be combined with {prefix}memmap=true; set one of them to false"
            )


@dataclass(frozen=True)
class CheckpointConfig:
    """Frequency and number of checkpoints. These keys do not affect learning."""

    every: int | None = arg(
        None,
        "policy steps between checkpoints; null = algo.total_steps / 20, rounded down; without algo.total_steps: 10 "
        "iterations, at least 50,000",
        low=1,
    )
    keep_last: int | None = arg(
        5, "number of scheduled checkpoints to keep, in addition to the newest and the best one; null = all", low=1
    )
    save_last: bool = arg(True, "save a checkpoint at the end of training")
    resume_from: str | None = arg(None, "checkpoint directory of another run from which this run continues")
    extend_from: str | None = arg(
        None,
        "run that this new run trains further, from its complete state, with a larger algo.total_steps or other "
        "settings: RUN (its newest checkpoint), RUN/checkpoints/POLICY_STEPS or a models:/ URI",
    )
    memmap_buffer: str = arg(
        "reference",
        "storage of the replay buffer in checkpoints",
        choices=("reference", "copy"),
        unused="its chunks are written once and shared by all checkpoints",
    )


class NamesOrClass(tuple[str, ...]):
    """Allowed values of a key: the names that are listed, and the class of a plugin, `package.module:Class`."""

    def __contains__(self, value: object) -> bool:
        """Return True if a value is one of the names, or has the form `package.module:Class`."""
        module, colon, name = str(value).partition(":")
        is_class = bool(colon) and all(part.isidentifier() for part in (*module.split("."), *name.split(".")))
        return super().__contains__(value) or is_class


DISTRIBUTIONS = NamesOrClass(
    ("auto", "discrete", "normal", "tanh_normal", "trunc_normal", "package.module:Class (your own)")
)


@dataclass(frozen=True)
class DistributionConfig:
    """Action distribution of the policy."""

    type: str = arg("auto", "action distribution of the policy; auto = by the action space", choices=DISTRIBUTIONS)
    validate_args: bool = arg(
        False,
        "check the parameters of distributions",
        unused="a loss or gradient that is not finite always ends the run",
    )


@dataclass(frozen=True)
class AggregatorConfig:
    """Reduction of each metric: how its values within `metric.log_every` policy steps become one logged value."""

    metrics: dict[str, Any] = arg(
        {}, "reduction of each metric, as a mapping from its name to mean, sum, max, min or last; default mean"
    )
    raise_on_missing: bool = arg(
        False, "raise an error, instead of a warning, if the algorithm does not report a configured metric"
    )


@dataclass(frozen=True)
class LoggerConfig:
    """Logger backend, such as TensorBoard, that receives all metrics in addition to MLflow."""

    name: str = arg(
        "tensorboard",
        "logger backend in addition to MLflow, which logs every run; mlflow and none = no other backend",
        choices=LOGGERS,
    )
    experiment_name: str | None = arg(None, "name of the MLflow experiment; null = the value of exp_name")
    tracking_uri: str | None = arg(None, "address of the MLflow server; null = the project's own MLflow store")
    tags: dict[str, Any] | None = arg(None, "tags of the MLflow run, as a mapping; with wandb also of the W&B run")
    project: str | None = arg(None, "wandb: name of the project; null = the name of the MLflow experiment")
    entity: str | None = arg(None, "wandb: user or team that owns the project; null = the default of the account")
    offline: bool = arg(False, "wandb: write the data only to the run directory; `wandb sync` uploads it later")
    options: dict[str, Any] = arg({}, "settings of a logger that a plugin has registered, as a mapping")


@dataclass(frozen=True)
class MetricConfig:
    """Logging of metrics: how often, reduced in which way, and to which logger backend."""

    log_level: int = arg(1, "0 = log no metrics; 1 = log all metrics", choices=(0, 1))
    log_every: int = arg(5000, "policy steps per logged point of a metric", low=1)
    disable_timer: bool = arg(False, "omit the metrics Time/*")
    sync_on_compute: bool = arg(False, "average metrics over ranks", unused=ALL_RANKS)
    aggregator: AggregatorConfig = arg(AggregatorConfig(), "reduction of metrics")
    logger: LoggerConfig = arg(LoggerConfig(), "logger backend")


@dataclass(frozen=True)
class ModelManagerConfig:
    """Registration of trained models in the model registry of MLflow."""

    disabled: bool = arg(False, "true = do not register the model")
    models: dict[str, Any] = arg(
        {},
        "models to register: agent, and parts to register separately; each a mapping {model_name, description, tags}",
    )
    gate_time: float | None = arg(
        1.0,
        "maximum duration of the comparison of a new model with the champion (the best registered model so far), as a "
        "multiple of the training time; null = no limit",
        above=0,
    )


@dataclass(frozen=True)
class EvaluationConfig:
    """Evaluations of the policy: how often, on how many episodes. These keys do not affect learning."""

    every: int | None = arg(
        None,
        "policy steps between evaluations; null = algo.total_steps / 10, rounded down; without algo.total_steps: 20 "
        "iterations, at least 100,000",
        low=1,
    )
    episodes: int = arg(10, "number of greedy episodes of each evaluation during training", low=1, high=MANY_EPISODES)
    final_episodes: int = arg(
        100,
        "number of greedy episodes and number of stochastic episodes of the final evaluation",
        low=1,
        high=MANY_EPISODES,
    )
    baseline_episodes: int = arg(
        100, "number of episodes of the random policy, which is the baseline", low=1, high=MANY_EPISODES
    )
    num_envs: int = arg(25, "number of environments that an evaluation steps together", low=1)
    env_config: dict[str, Any] = arg(
        {},
        "parameters of a batched environment in evaluations: name -> number, {uniform: [low, high]} or {normal: [mean, "
        "std]}; a parameter that is not set here has its value in env.config, or the last value of its schedule",
    )
    dream: str = arg(
        "every",
        "when to write pictures and videos of a world model's predictions to media/: at every evaluation, at the last "
        "one, or never",
        choices=("every", "last", "never"),
    )
    film: str = arg(
        "last",
        "with env.capture_video: record a video at the last evaluation (media/policy.mp4), or at every evaluation "
        "(media/policy_<policy steps>.mp4)",
        choices=("every", "last"),
    )
    max_episode_steps: int | None = arg(
        None,
        "maximum number of steps of an evaluation episode; null = 1 % of algo.total_steps, at least 2,000 (at least "
        "1,000 if the environment has no limit)",
        low=1,
    )
