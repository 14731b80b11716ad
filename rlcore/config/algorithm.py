"""Questions that the rest of the product may ask of any algorithm's config; a config answers for its own keys alone."""

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

VECTORS = frozenset({"vector", "goal"})  # kinds of observation keys that lie flat in one vector


@dataclass(frozen=True, kw_only=True)
class AlgorithmConfig:
    """Keys that every algorithm has, and what it says of its others."""

    kinds: ClassVar[frozenset[str]] = VECTORS  # of observation keys that it reads
    # Of the learner's parts those that may be registered apart: name in model_manager.models -> its place in the state.
    registers: ClassVar[Mapping[str, str]] = MappingProxyType({})

    obeys_masks_with: ClassVar[str] = ""  # the setting with which its policy takes allowed actions alone, if it has one

    name: str = arg(REQUIRED, "the algorithm")
    total_steps: int = arg(
        REQUIRED, "the budget in policy steps of all environments together, in whole iterations", low=1
    )
    run_test: bool = arg(True, "the last evaluation (evaluation.final_episodes)")
    compile: Any = arg(
        "auto",
        "compile steps ahead of time (on a GPU: record them): true, false, or auto, where that pays",
        choices=("auto", True, False),
    )

    def check(self, prefix: str) -> None:
        """Refuse values that contradict each other; `prefix` is the dotted place of this group, for messages."""
        if self.compile != "auto" and not isinstance(self.compile, bool):  # Python takes 1 for true
            raise UserError(f"{prefix}compile={self.compile}: must be one of auto, true, false")
        images: Any = getattr(getattr(self, "cnn_keys", None), "encoder", ())
        if images and "image" not in self.kinds:
            raise UserError(f"{prefix}cnn_keys.encoder=[{','.join(images)}]: {self.name} reads no images; set it to []")

    def check_with(self, run: RunConfig) -> None:
        """Refuse what is impossible beside the other groups of the config; a UserError names the keys."""

    def check_spec(self, spec: EnvSpec) -> None:
        """Refuse what is impossible in an environment; a UserError names key and fix."""

    def notices(self, run: RunConfig) -> Iterator[str]:
        """Sentences on what a run will do otherwise than its keys seem to say."""
        return iter(())

    @property
    def obeys_masks(self) -> bool:
        """True if its policy takes no action that a mask of the environment forbids."""
        return False

    def env_notices(self, spec: EnvSpec) -> Iterator[str]:
        """Sentences on what a run does otherwise than its environment seems to ask."""
        if (masks := [key for key, part in spec.obs.items() if part.kind == "mask"]) and not self.obeys_masks:
            fix = f"; {self.obeys_masks_with} obeys them" if self.obeys_masks_with and spec.mask_keys else ""
            yield f"{self.name} ignores {', '.join(masks)} of {spec.id}: its policy may choose what they forbid{fix}"
        for key in getattr(getattr(self, "mlp_keys", None), "encoder", ()):
            if key in spec.obs and (part := spec.obs[key]).looks_like_image:
                yield (
                    f"{key} of {spec.id} ({part.describe()}) is read as a vector of {part.size:,} numbers: {IMAGES_ARE}"
                )

    def quiet_steps(self, width: int, rows: int = 0) -> int:
        """Policy steps that no gradient step is owed for, where one takes so many `rows` of an environment."""
        return 0

    def count_remembered(self, run: RunConfig) -> int:
        """Rows of all environments and ranks together that a memory keeps, with its `buffer.size`; 0 = it has none."""
        return 0

    @property
    def collect_length(self) -> int:
        """T: rows of every environment between updates."""
        return 1

    def merge_minibatches(self) -> Self:
        """Config with every batch as one minibatch: only then do two ranks learn exactly what one does."""
        return self

    @property
    def annealing_keys(self) -> tuple[str, ...]:
        """The keys that make something depend on how long the run is to be."""
        return ()

    def iterations(self, width: int) -> int:
        """Iterations in the budget for so many environments, all ranks together: whole ones, at least one."""
        return max(1, self.total_steps // (self.collect_length * width))

    def budget(self, width: int) -> int:
        """Policy steps of these iterations."""
        return self.iterations(width) * self.collect_length * width
