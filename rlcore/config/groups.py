"""Config of a run: one dataclass for each group of keys, such as `env` or `buffer`."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic

from typing_extensions import TypeVar

from rlcore.config.schema import REQUIRED, Needs, arg
from rlcore.config.values import plain, spell
from rlcore.errors import UserError

if TYPE_CHECKING:
    from rlcore.config.algorithm import AlgorithmConfig

# Config class of an algorithm. `RunConfig` alone means a config whose algorithm is known only when the program runs.
Algo_co = TypeVar("Algo_co", bound="AlgorithmConfig", default="AlgorithmConfig", covariant=True)

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
        """Raise UserError if `frame_stack` or `horizons_per_env_reset` is 0.

        `prefix` is the dotted key of the group with a dot at its end, for messages.
        """
        if self.frame_stack == 0:
            raise UserError(f"{prefix}frame_stack=0: must be 1 or more, or -1 (equivalent to 1)")
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
        choices=("tensorboard", "csv", "mlflow", "none"),
    )
    experiment_name: str | None = arg(None, "name of the MLflow experiment; null = the value of exp_name")
    tracking_uri: str | None = arg(None, "address of the MLflow server; null = the project's own MLflow store")
    tags: dict[str, Any] | None = arg(None, "tags of the MLflow run, as a mapping")


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


@dataclass(frozen=True)
class RunConfig(Generic[Algo_co]):
    """Complete config of a run, with one field per group of keys.

    The class of `algo` depends on the algorithm: it is the class `Config` in the module of the algorithm `algo.name`.
    `RunConfig[Config]` is the config of a run of that algorithm.
    """

    algo: Algo_co = arg(REQUIRED, "algorithm; choose a preset, for example exp=ppo")
    env: EnvConfig = arg(REQUIRED, "environment")
    fabric: FabricConfig = arg(FabricConfig(), "devices and precision")
    buffer: BufferConfig = arg(BufferConfig(), "rollout or replay buffer")
    checkpoint: CheckpointConfig = arg(CheckpointConfig(), "checkpointing", learning=False)
    distribution: DistributionConfig = arg(DistributionConfig(), "action distribution of the policy")
    metric: MetricConfig = arg(MetricConfig(), "metrics and loggers", learning=False)
    model_manager: ModelManagerConfig = arg(ModelManagerConfig(), "model registry", learning=False)
    evaluation: EvaluationConfig = arg(EvaluationConfig(), "evaluation", learning=False)
    stop: tuple[dict[str, Any], ...] = arg(
        (),
        "conditions that end training before algo.total_steps, for example "
        "[{upper_bound: {metric: Rewards/rew_avg, value: 475}}]; training ends when one of them holds",
        learning=False,
    )
    seed: int = arg(42, "root of every random stream", low=0)
    num_threads: int = arg(1, "number of CPU threads of a torch operation", low=1, learning=False)
    float32_matmul_precision: str = arg(
        "high",
        "precision of float32 matrix products on CUDA: highest = float32, high = TF32, medium = bfloat16",
        choices=("highest", "high", "medium"),
    )
    dry_run: bool = arg(
        False,
        "train only until the first gradient step, evaluate at most two episodes, compile only if algo.compile=true",
    )
    torch_use_deterministic_algorithms: bool = arg(
        False, "raise an error for torch operations that have no deterministic implementation"
    )
    torch_backends_cudnn_benchmark: bool = arg(
        False, "let cuDNN choose kernels by their speed; the results are then not exactly reproducible"
    )
    torch_backends_cudnn_deterministic: bool = arg(True, "use only deterministic cuDNN kernels")
    cublas_workspace_config: str | None = arg(
        None,
        "value of the environment variable CUBLAS_WORKSPACE_CONFIG; null = do not set it",
        choices=(None, ":4096:8", ":16:8"),
    )
    label: str = arg(
        "",
        "name in the names of the run, the experiment and the models; default: your own preset, or the algorithm",
        learning=False,
    )
    exp_name: str = arg("", "name of the experiment in MLflow; default <label>_<env id>", learning=False)
    run_name: str = arg("", "name of the run; default from the current time and exp_name", learning=False)
    root_dir: str = arg(
        "", "folder in log_root for runs of one algorithm and environment; default <algo>/<env id>", learning=False
    )
    log_root: str = arg(
        "runs", "folder of all runs; default SHEPHERD_RUN_ROOT, or runs if it is not set", learning=False
    )
    run_dir: str = arg("", "directory of the run; default <log_root>/<root_dir>/<run_name>", learning=False)
    group: str | None = arg(
        None, "name of the group of runs to which the run belongs, for example for `shepherd compare`", learning=False
    )
    init_from: str | None = arg(
        None,
        "source of the initial weights: RUN/checkpoints/POLICY_STEPS, models:/ URI or exported policy; RUN stands for "
        "its best checkpoint, or for the newest one if there is no best one",
    )
    plugins: tuple[str, ...] = arg(
        (), "your own modules with algorithms and environments; accepted by every command", learning=False
    )
    run_benchmarks: bool = arg(False, "key in SheepRL's config files", learning=False, unused="it is not used here")

    def __post_init__(self) -> None:
        """Replace `env.vector_key` and `env.image_key`, if null, by keys that the algorithm's encoders read."""
        object.__setattr__(self, "env", _name_added_keys(self.env, self.algo))

    @property
    def width(self) -> int:
        """Return the total number of environments: `env.num_envs` times the number of ranks (processes)."""
        return self.env.num_envs * self.fabric.ranks

    @property
    def checkpoint_every(self) -> int:
        """Return the number of policy steps between checkpoints."""
        return self.checkpoint.every or self._default_interval(20)

    @property
    def evaluation_every(self) -> int:
        """Return the number of policy steps between evaluations during training."""
        return self.evaluation.every or self._default_interval(10)

    def _default_interval(self, count: int) -> int:
        """Return the policy steps between `count` equal parts of training; without a budget, those of usual lengths."""
        if self.algo.total_steps is not None:
            return max(1, self.algo.total_steps // count)
        return max(1_000_000, 200 * self.algo.collect_length * self.width) // count

    @property
    def baseline_episodes(self) -> int:
        """Return the number of episodes on which a random policy is evaluated as baseline; in a dry run, at most 2."""
        return self._limit_episodes(self.evaluation.baseline_episodes)

    @property
    def final_episodes(self) -> int:
        """Return the number of episodes of the final evaluation with greedy actions, and again with sampled actions.

        In a dry run, it is at most 2.
        """
        return self._limit_episodes(self.evaluation.final_episodes)

    def with_absolute_paths(self) -> RunConfig[Algo_co]:
        """Return a copy of the config in which relative paths are replaced by absolute ones.

        Absolute paths remain valid if code of an environment changes the working directory.
        """
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
        """Return True if a dry run is complete: `updates`, the number of gradient steps, is not 0."""
        return self.dry_run and updates > 0

    def _limit_episodes(self, episodes: int) -> int:
        return min(episodes, 2) if self.dry_run else episodes  # a dry run only tests if everything works


def _absolute(path: Any) -> Any:
    """Make a path absolute; return None, "", and names such as `minari:NAME` or `models:/NAME` unchanged."""
    return path if not path or path.startswith(("minari:", "models:")) else os.path.abspath(path)


def _name_added_keys(env: EnvConfig, algo: AlgorithmConfig) -> EnvConfig:
    """Return `env` with `vector_key` and `image_key`, if they are null, set to keys that the encoders of `algo` read.

    `vector_key` becomes `state` if `algo.mlp_keys.encoder` contains it or is empty, else the first key in it.
    `image_key` becomes `rgb` if `algo.cnn_keys.encoder` contains it, else the first key in it.
    """
    vectors, images = (getattr(getattr(algo, group, None), "encoder", ()) for group in ("mlp_keys", "cnn_keys"))
    added = {"reward": env.reward_as_observation, "action_stack": env.actions_as_observation.num_stack > 0}
    own = [key for key in vectors if not added.get(key)]
    vector = env.vector_key or ("state" if "state" in own or not own else own[0])
    image = env.image_key or ("rgb" if "rgb" in images else next(iter(images), None))
    return dataclasses.replace(env, vector_key=vector, image_key=image)
