"""Base class of all algorithms' configs: common keys, and the interface that the rest of rlcore uses."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Self

from rlcore.config.schema import REQUIRED, arg
from rlcore.errors import UserError
from rlcore.spec import IMAGES_ARE

if TYPE_CHECKING:
    from rlcore.config.groups import RunConfig
    from rlcore.spec import EnvSpec

VECTORS = frozenset({"vector", "goal"})  # kinds of observation keys that are concatenated to one vector


@dataclass(frozen=True, kw_only=True)
class AlgorithmConfig:
    """Config keys that every algorithm has, and properties of an algorithm that follow from its keys."""

    kinds: ClassVar[frozenset[str]] = VECTORS  # kinds of observation keys that the algorithm reads
    # Parts of the learner that can be registered as models: name in model_manager.models -> key in the learner's state.
    exported_components: ClassVar[Mapping[str, str]] = MappingProxyType({})

    obeys_masks_with: ClassVar[str] = ""  # key=value with which the policy obeys masks; "" if none

    name: str = arg(REQUIRED, "name of the algorithm")
    total_steps: int = arg(
        REQUIRED,
        "training budget in policy steps, summed over all environments; rounded down to whole iterations",
        low=1,
    )
    run_test: bool = arg(True, "run a final evaluation of evaluation.final_episodes episodes")
    compile: Any = arg(
        "auto",
        "compile acting and training steps ahead of time (on a GPU: record CUDA graphs); auto = only if that is "
        "expected to save time",
        choices=("auto", True, False),
    )

    def check(self, prefix: str) -> None:
        """Raise UserError if values of this group contradict each other; `prefix` is its dotted key, with a dot."""
        if self.compile != "auto" and not isinstance(self.compile, bool):  # in Python 1 == True
            raise UserError(f"{prefix}compile={self.compile}: must be one of auto, true, false")
        images: Any = getattr(getattr(self, "cnn_keys", None), "encoder", ())
        if images and "image" not in self.kinds:
            raise UserError(f"{prefix}cnn_keys.encoder=[{','.join(images)}]: {self.name} reads no images; set it to []")

    def check_with(self, run: RunConfig) -> None:
        """Raise UserError if the values of this group cannot be combined with values of other groups of the config."""

    def check_spec(self, spec: EnvSpec) -> None:
        """Raise UserError, with key and fix, if the algorithm cannot be trained in an environment."""

    def notices(self, run: RunConfig) -> Iterator[str]:
        """Yield messages about keys whose effect differs from what a user would expect."""
        return iter(())

    @property
    def obeys_masks(self) -> bool:
        """Return True if the policy never takes an action that the environment's mask forbids."""
        return False

    def env_notices(self, spec: EnvSpec) -> Iterator[str]:
        """Yield messages about observations that the algorithm ignores, or treats as another kind than expected."""
        if (masks := [key for key, part in spec.obs.items() if part.kind == "mask"]) and not self.obeys_masks:
            fix = f"; set {self.obeys_masks_with} to obey them" if self.obeys_masks_with and spec.mask_keys else ""
            yield f"{self.name} ignores {', '.join(masks)} of {spec.id}: its policy may choose forbidden actions{fix}"
        for key in getattr(getattr(self, "mlp_keys", None), "encoder", ()):
            if key in spec.obs and (part := spec.obs[key]).looks_like_image:
                yield (
                    f"{key} of {spec.id} ({part.describe()}) is read as a vector of {part.size:,} numbers: {IMAGES_ARE}"
                )

    def learning_starts_steps(self, width: int, rows: int = 0) -> int:
        """Return the number of policy steps before the first gradient step, counted over all ranks.

        Args:
            width: number of environments of all ranks.
            rows: number of rows of one environment that a gradient step needs.

        Returns:
            Number of policy steps of all ranks together.
        """
        return 0

    def count_remembered(self, run: RunConfig) -> int:
        """Return the capacity of the replay buffer in rows, over all environments and ranks; 0 if there is none."""
        return 0

    @property
    def collect_length(self) -> int:
        """Return T, the number of rows that each environment collects between updates."""
        return 1

    def merge_minibatches(self) -> Self:
        """Return the config changed so that each batch is one minibatch.

        Only with this change do two ranks learn exactly what one rank learns (checked by rlcore.conformance).
        """
        return self

    @property
    def annealing_keys(self) -> tuple[str, ...]:
        """Return the keys whose values make learning depend on `total_steps`, for example a learning rate schedule."""
        return ()

    def iterations(self, width: int) -> int:
        """Return the number of iterations that fit into `total_steps` (at least 1).

        `width` is the number of environments of all ranks.
        """
        return max(1, self.total_steps // (self.collect_length * width))

    def budget(self, width: int) -> int:
        """Return the number of policy steps of the whole run: `total_steps`, rounded down to whole iterations.

        `width` is the number of environments of all ranks.
        """
        return self.iterations(width) * self.collect_length * width
