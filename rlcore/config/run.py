"""Complete config of a run, and the base class of its group `algo`.

Both are in one file because a run's config contains the config of its algorithm, and methods of the latter take the
run's config.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Protocol, Self

from typing_extensions import TypeVar

from rlcore.config.groups import (
    BufferConfig,
    CheckpointConfig,
    DistributionConfig,
    EnvConfig,
    EvaluationConfig,
    FabricConfig,
    MetricConfig,
    ModelManagerConfig,
)
from rlcore.config.schema import REQUIRED, arg
from rlcore.errors import UserError
from rlcore.spec import IMAGES_ARE

if TYPE_CHECKING:
    from rlcore.spec import EnvSpec

UNLIMITED = 2**53  # policy steps; every smaller integer is exact in float64
VECTORS = frozenset({"vector", "goal"})  # kinds of observation keys that are concatenated to one vector


class SourceRules(Protocol):
    """Rules for the run (`init_from`) that gives a fine-tuning run its networks."""

    def check(
        self,
        config: AlgorithmConfig,
        algo: Mapping[str, Any],
        theirs: EnvSpec,
        spec: EnvSpec,
        components: Collection[str],
    ) -> None:
        """Raise UserError if a run cannot start from the networks of another run.

        Args:
            config: group `algo` of this run's config.
            algo: group `algo` of the other run's config, as nested dicts.
            theirs: environment of the other run.
            spec: environment of this run.
            components: names of the components of the other run's learner that can be loaded.
        """
        ...

    def list_changes(self, config: RunConfig, algo: Mapping[str, Any], env: Mapping[str, Any]) -> list[str]:
        """Return notices about keys that differ from those of the other run.

        Args:
            config: config of this run.
            algo: group `algo` of the other run's config, as nested dicts.
            env: group `env` of the other run's config, as nested dicts; {} if it is not known.

        Returns:
            The notices, each of which is a sentence.
        """
        ...


@dataclass(frozen=True, kw_only=True)
class AlgorithmConfig:
    """Base class of the `algo` group of a config: keys that every algorithm has, and methods to override."""

    kinds: ClassVar[frozenset[str]] = VECTORS  # kinds of observation keys that the algorithm reads
    # Parts of the learner that can be registered as models: name in model_manager.models -> key in the learner's state.
    exported_components: ClassVar[Mapping[str, str]] = MappingProxyType({})

    # If set, a run needs `init_from`, which must follow these rules; init_from=RUN is then RUN's newest checkpoint.
    fine_tunes: ClassVar[SourceRules | None] = None
    obeys_masks_with: ClassVar[str] = ""  # key=value with which the policy obeys masks; "" if none

    name: str = arg(REQUIRED, "name of the algorithm")
    total_steps: int | None = arg(
        REQUIRED,
        "training budget in policy steps, summed over all environments; rounded down to whole iterations; null = train "
        "until a condition of the key stop holds",
        low=1,
    )
    run_test: bool = arg(True, "run a final evaluation of evaluation.final_episodes episodes")
    compile: Any = arg(
        "auto",
        "compile acting and training steps ahead of time (on a GPU: record CUDA graphs); auto = only if that is "
        "expected to save time",
        choices=("auto", True, False),
    )

    @property
    def absent_components(self) -> frozenset[str]:
        """Names in `exported_components` of the components that a run with these settings does not have."""
        return frozenset()

    def check(self, prefix: str) -> None:
        """Raise UserError if values of this group contradict each other.

        `prefix` is the dotted key of the group with a dot at its end, for messages.
        """
        if self.compile != "auto" and not isinstance(self.compile, bool):  # in Python 1 == True
            raise UserError(f"{prefix}compile={self.compile}: must be one of auto, true, false")
        images: Any = getattr(getattr(self, "cnn_keys", None), "encoder", ())
        if images and "image" not in self.kinds:
            key = f"{prefix}cnn_keys.encoder"
            raise UserError(f"{key}=[{','.join(images)}]: {self.name} cannot read images; set {key}=[]")

    def check_with(self, run: RunConfig) -> None:
        """Raise UserError if the values of this group cannot be combined with values of other groups of the config."""

    def check_spec(self, spec: EnvSpec) -> None:
        """Raise UserError if the algorithm cannot be trained in the environment that `spec` describes.

        The message names the config key and how to fix it.
        """

    def notices(self, run: RunConfig) -> Iterator[str]:
        """Yield messages for the user about keys with effects that a user would not expect."""
        return iter(())

    @property
    def obeys_masks(self) -> bool:
        """Return True if the policy never chooses an action that the environment's action mask forbids."""
        return False

    @property
    def needs_allowed_action(self) -> bool:
        """Return True if it is an error that action masks allow no action; otherwise all actions are then allowed."""
        return False

    def env_notices(self, spec: EnvSpec) -> Iterator[str]:
        """Yield messages for the user about observations of an environment.

        They report action masks that the algorithm ignores, and images that it reads as vectors.
        """
        if (masks := [key for key, part in spec.obs.items() if part.kind == "mask"]) and not self.obeys_masks:
            fix = f"; set {self.obeys_masks_with} to obey them" if self.obeys_masks_with and spec.mask_keys else ""
            yield f"{self.name} ignores {', '.join(masks)} of {spec.id}: its policy may choose forbidden actions{fix}"
        for key in getattr(getattr(self, "mlp_keys", None), "encoder", ()):
            if key in spec.obs and (part := spec.obs[key]).looks_like_image:
                yield (
                    f"{key} of {spec.id} ({part.describe()}) is read as a vector of {part.size:,} numbers: {IMAGES_ARE}"
                )

    def metric_names(self) -> frozenset[str] | None:
        """Return the names of all metrics that the algorithm's learner and buffer can report, for stop conditions.

        None: they are not known, for example for the algorithm of a plugin. A stop condition on a metric that is never
        reported is then an error during training instead of before it.
        """
        return None

    def learning_starts_steps(self, width: int, rows: int = 0) -> int:
        """Return the number of policy steps that are taken before the first gradient step.

        Args:
            width: number of environments of all ranks.
            rows: number of time steps of one environment that the replay buffer needs before a batch can be sampled.

        Returns:
            Number of policy steps, summed over all environments and ranks.
        """
        return 0

    def count_remembered(self, run: RunConfig) -> int:
        """Return the capacity of the replay buffer in time steps, summed over all environments and ranks.

        The result is 0 if the algorithm has no replay buffer.
        """
        return 0

    @property
    def collect_length(self) -> int:
        """Return T, the number of time steps that each environment collects between two updates."""
        return 1

    def merge_minibatches(self) -> Self:
        """Return a copy of the config in which an epoch has a single minibatch.

        `rlcore.conformance` uses it to test training on several ranks: with one minibatch, two ranks must learn exactly
        what one rank learns from the same data. With several, the minibatches consist of different samples.
        """
        return self

    @property
    def annealing_keys(self) -> tuple[str, ...]:
        """Return the names of the `algo` keys whose values make learning depend on `total_steps`: e.g. `anneal_lr`."""
        return ()

    @property
    def step_limit(self) -> int:
        """Return `total_steps`; if it is null, a number of policy steps that no training reaches."""
        return UNLIMITED if self.total_steps is None else self.total_steps

    def iterations(self, width: int) -> int:
        """Return the number of iterations of the run: as many as fit into `total_steps`, at least 1.

        In one iteration, each of the `width` environments of all ranks collects T time steps, and an update follows.
        """
        return max(1, self.step_limit // (self.collect_length * width))

    def budget(self, width: int) -> int:
        """Return the number of policy steps of the run: `total_steps`, rounded down to a multiple of an iteration.

        An iteration has T policy steps in each of the `width` environments of all ranks.
        """
        return self.iterations(width) * self.collect_length * width


# Config class of an algorithm. `RunConfig` alone: the algorithm is known only when the program runs.
Algo_co = TypeVar("Algo_co", bound=AlgorithmConfig, default=AlgorithmConfig, covariant=True)


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
    callbacks: tuple[str | dict[str, Any], ...] = arg(
        (),
        "your own classes that are called during training, for example [my_module:MyCallback] or "
        "[{_target_: my_module:MyCallback, every: 10}]; the module must be one of the plugins",
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
        "source of the initial weights: RUN/checkpoints/POLICY_STEPS, models:/ URI or policy folder; RUN stands for "
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
            checkpoint=dataclasses.replace(
                checkpoint,
                resume_from=_absolute(checkpoint.resume_from),
                extend_from=_absolute(checkpoint.extend_from),
            ),
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
