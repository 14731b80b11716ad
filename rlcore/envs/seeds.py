"""Seeds of the episodes of a vectorized environment."""

from __future__ import annotations

from dataclasses import dataclass

from rlcore import streams


@dataclass(frozen=True)
class EpisodeSeeds:
    """Function (env index, episode index) -> seed of the episode.

    Attributes:
        seed: seed of the run.
        purpose: random stream from which the seeds are drawn, a key of `rlcore.streams.PURPOSES`.
        indices: indices of the stream, for example the rank.
        offset: number that is added to the index of an environment.
        stride: if given, the seed is that of episode number `env index + episode index · stride` of the stream, so that
            it does not depend on the number of environments that are stepped together. Otherwise every environment
            has its own episodes.
        first_only: True: only the first episode of an environment has a seed; for later ones the function returns
            None, and they continue the environment's random generator.
    """

    seed: int
    purpose: str
    indices: tuple[int, ...] = ()
    offset: int = 0
    stride: int | None = None
    first_only: bool = False

    def __call__(self, env_index: int, episode_index: int) -> int | None:
        """Return the seed of an episode of an environment; both are counted from 0."""
        if self.stride is not None:
            return streams.integer(self.seed, self.purpose, *self.indices, env_index + episode_index * self.stride)
        place = (self.seed, self.purpose, *self.indices, self.offset + env_index)
        if self.first_only:
            return streams.integer(*place) if episode_index == 0 else None
        return streams.integer(*place, episode_index)
