"""Report of the entries of `env.info_keys` that never occur in `info`, for example because a name is misspelled."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from rlcore.config.info_keys import GAME, KEY, read_info_keys
from rlcore.types import Episodes

ENOUGH = 10  # episodes after which missing names are reported
log = logging.getLogger(__name__)


class InfoKeyCheck:
    """Check that reports, once in a run, which entries of `env.info_keys` no finished episode had in `info`.

    Args:
        keys: value of `env.info_keys`.
    """

    def __init__(self, keys: Sequence[str]) -> None:
        self._names = [key.name for key in read_info_keys(keys)]
        self._missing = [*self._names]
        self._episodes = 0

    def add(self, episodes: Episodes, last: bool = False) -> None:
        """Add episodes that ended; log a warning after the first `ENOUGH` episodes, or if `last` is True."""
        if not self._missing:
            return
        self._episodes += len(episodes)
        known = {name for name, values in episodes.info.items() if any(value is not None for value in values)}
        self._missing = [name for name in self._missing if name not in known]
        if self._missing and (self._episodes >= ENOUGH or (last and self._episodes)):
            names, metrics = ", ".join(self._missing), ", ".join(f"{GAME}{name}" for name in self._missing)
            log.warning(
                "%s: info never had %s in the first %d episodes; %s is only logged if a later step has it",
                KEY,
                names,
                self._episodes,
                metrics,
            )
            self._missing = []

    def state_dict(self) -> dict[str, Any]:
        """Return the state, in JSON values."""
        return {"names": self._names, "missing": self._missing, "episodes": self._episodes}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state that `state_dict` returned; entries that were added since then start unchecked."""
        added = [name for name in self._names if name not in state["names"]]
        self._missing = [name for name in self._names if name in state["missing"] or name in added]
        self._episodes = 0 if added else state["episodes"]
