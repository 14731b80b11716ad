"""Suite of DIAMBRA's games: ids, creation of environments on engines that are not in use, checks of the settings."""

from __future__ import annotations

import functools
import logging
from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium

from rlcore.config.schema import arguments
from rlcore.config.values import at, spell
from rlcore.envs.suites.diambra.engine import (
    HOW,
    Engine,
    EngineError,
    addresses,
    are_named,
    count_free,
    refuse_absent,
    refuse_few,
    take_any,
)
from rlcore.envs.suites.diambra.env import DiambraEnv
from rlcore.envs.suites.diambra.messages import messages
from rlcore.envs.suites.diambra.settings import Keys, check_choices, read_keys
from rlcore.envs.suites.suite import Suite, refuse_missing
from rlcore.errors import Mistakes, UserError

log = logging.getLogger(__name__)

OUTFITS: Mapping[str, int] = {  # game -> number of outfits; the engine reports all other properties of a game
    "doapp": 4,
    "sfiii3n": 7,
    "tektagt": 5,
    "umk3": 1,
    "samsh5sp": 4,
    "kof98umh": 4,
    "mvsc": 2,
    "xmvsf": 2,
    "soulclbr": 2,
}


class DiambraSuite(Suite):
    """Suite of nine games with DIAMBRA's ids; each environment needs its own engine, listed in DIAMBRA_ENVS."""

    name = "diambra"
    extra = "diambra"
    requires = "grpc"
    note = "needs engines: diambra run -s=2 shepherd train …; unfinished episodes are truncated at checkpoints"
    targets = ("sheeprl.envs.diambra.DiambraWrapper",)
    from_keys = {  # noqa: RUF012 - read only
        "screen_size": "screen_size",
        "grayscale": "grayscale",
        "repeat_action": "action_repeat",
    }
    tier = "boundary"
    tier_reason = "the game is in an engine that cannot be copied"

    def ids(self) -> Sequence[str]:
        """Return DIAMBRA's ids of the games."""
        return tuple(OUTFITS)

    def make(self, env_id: str, arguments: Mapping[str, Any], render_mode: str | None) -> gymnasium.Env:
        """Start a game on a free engine.

        Raise one UserError that lists all problems, in the order in which the user should fix them.
        """
        mistakes, claimed = Mistakes(), None
        with mistakes.catch():
            refuse_missing(self, env_id)
            messages()
        with mistakes.catch():
            claimed = self._claim(env_id)
        with mistakes.catch():
            keys = read_keys(arguments)
        if mistakes and claimed is not None:
            claimed[1].close()
        mistakes.raise_collected()
        assert claimed is not None
        _warn_unused(tuple(_unused(arguments)))
        if keys.repeat_action > 1 and keys.diambra_settings.step_ratio != 1:
            _warn_step_ratio(keys.repeat_action, keys.diambra_settings.step_ratio)
        engine = Engine(*claimed, patience=keys.diambra_settings.grpc_timeout)
        try:
            return DiambraEnv(env_id, keys, OUTFITS[env_id], engine, render_mode)
        except EngineError as error:
            raise UserError(
                f"env.id={env_id}: the game does not start ({error}); check its ROM and DIAMBRAROMSPATH"
            ) from None

    def _claim(self, env_id: str) -> Any:
        """Return the address of a free engine that answers, and the claim to it; raise UserError if there is none."""
        found = take_any()
        if found is None:
            known = addresses()
            raise UserError(
                f"env.id={env_id}: every environment needs its own engine, but all are in use "
                f"({' '.join(known)}); to run the command with {len(known) + 1} engines: {HOW.format(len(known) + 1)}"
            )
        try:
            refuse_absent([found[0]], max(2, len(addresses())))
        except UserError:
            found[1].close()
            raise
        return found

    def check(self, env_id: str, wrapper: Mapping[str, Any], together: int) -> None:
        """Raise one UserError that lists all problems of `together` environments.

        Problems are a missing package, too few engines, engines that do not answer, and invalid keys.
        """
        mistakes, known = Mistakes(), addresses()
        with mistakes.catch():
            refuse_missing(self, env_id)
        with mistakes.catch():
            refuse_few(together)
        if are_named():  # otherwise `refuse_few` has already reported that there are no engines
            with mistakes.catch():
                refuse_absent(known[: together + 1], together + 1)
        with mistakes.catch():
            read_keys({key: value for key, value in wrapper.items() if key not in self.decided})
        settings = wrapper.get("diambra_settings")
        with mistakes.catch():
            check_choices(settings if isinstance(settings, Mapping) else {}, env_id, OUTFITS[env_id])
        mistakes.raise_collected()

    def source(self, env_id: str) -> Any:
        """Return the environment's class.

        The environment card is measured again if the code of the class changes, but not if the engine is updated,
        because the version of the engine is not known.
        """
        return DiambraEnv

    def parameters(self, env_id: str) -> None:
        """Return None, so that argument names are not checked; `make` reports unknown names with all other problems."""
        return

    def free_instances(self, env_id: str) -> int:
        """Return the number of free engines, which is the number of environments that can be created now."""
        return count_free()

    def trial(self, env_id: str) -> None:
        """Raise UserError if no engine answers. No game is started, because the ROM of the game can be missing."""
        refuse_absent(addresses()[:1], 2, patience=0)


def _unused(wrapper: Mapping[str, Any]) -> Sequence[str]:
    """Return one message for each key of `env.wrapper` that is set but has no effect; the message gives the reason."""
    given = {a.key: (at(wrapper, a.key), a.unused) for a in arguments(Keys) if a.unused}
    return [
        f"env.wrapper.{key}={spell(value)} has no effect: {why}"
        for key, (value, why) in given.items()
        if value not in (None, False) and key not in ("rank", "log_level", "diambra_wrappers.flatten")
    ]


@functools.cache
def _warn_unused(sentences: tuple[str, ...]) -> None:
    """Log each message about keys without effect once."""
    for sentence in sentences:
        log.warning("%s", sentence)


@functools.cache
def _warn_step_ratio(repeat: int, ratio: int) -> None:
    log.warning(
        "env.action_repeat=%d: the engine plays one frame per repeat, "
        "so env.wrapper.diambra_settings.step_ratio is 1 instead of %d",
        repeat,
        ratio,
    )
