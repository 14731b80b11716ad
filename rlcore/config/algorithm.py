"""Base class of the config dataclasses of all algorithms: keys that every algorithm has, and methods to override."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, Self

from rlcore.config.schema import REQUIRED, arg
from rlcore.errors import UserError
from rlcore.spec import IMAGES_ARE

if TYPE_CHECKING:
    from rlcore.config.groups import RunConfig
    from rlcore.spec import EnvSpec

UNLIMITED = 2**53  # policy steps; every smaller integer is exact in float64
VECTORS = frozenset({"vector", "goal"})  # kinds of observation keys that are concatenated to one vector


class SourceRules(Protocol):
    """Rules for the run from whose networks the runs of a fine-tuning algorithm start (`init_from`)."""

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

    def list_changes(self, config: AlgorithmConfig, algo: Mapping[str, Any]) -> list[str]:
        """Return notices about keys that differ from those of the other run; the arguments are those of `check`."""
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
        """Yield messages for the user about keys whose effect differs from what a user would expect."""
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
