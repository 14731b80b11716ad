"""Start of a training from the weights of another run (`init_from`) and from its rows (`buffer.load_from`)."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING

from rlcore.config.run import RunConfig
from rlcore.errors import UserError
from rlcore.evaluation.policy import Source, read_source
from rlcore.spec import EnvSpec
from rlcore.store.checkpoint import choose, locate, resolve
from rlcore.train.components import start_from

if TYPE_CHECKING:
    from rlcore.train.trainer import Trainer

log = logging.getLogger(__name__)


def require_source(config: RunConfig) -> None:
    """Raise a UserError if the algorithm starts from the networks of another run, and `init_from` is not set."""
    if config.algo.fine_tunes and not config.init_from:
        raise UserError(
            f"init_from is required: {config.algo.name} starts from the networks of an exploration run; set "
            "checkpoint.exploration_ckpt_path (or init_from) to that run, one of its checkpoints or a models:/ URI"
        )


def locate_source(config: RunConfig, path: Path) -> Path:
    """Return the checkpoint from which a training starts, or the policy folder at `path`.

    If `path` is a run, its best checkpoint is chosen. An algorithm that fine-tunes starts from its newest checkpoint.
    """
    return locate(path, resolve if config.algo.fine_tunes else choose) or path


def refuse_other_run(config: RunConfig, source: Source, spec: EnvSpec) -> None:
    """Raise a UserError if an algorithm that fine-tunes cannot start from `source`; the message has all differences.

    `spec` is the spec of this run's environment.
    """
    if config.algo.fine_tunes is None:
        return
    theirs = EnvSpec.from_json(source.description["spec"])
    try:
        config.algo.fine_tunes.check(config.algo, source.description["algo"], theirs, spec, source.parts)
    except UserError as error:
        raise UserError(f"init_from={config.init_from}: {error}") from None


def load_initial_weights(trainer: Trainer) -> None:
    """Load the weights of `init_from`, and the rows of `buffer.load_from`, if the config sets these keys.

    Weights and normalization statistics are loaded, but no optimizers, counters or states of environments.
    """
    config = trainer.config  # its paths are absolute
    if config.init_from:
        source = read_source(locate_source(config, Path(config.init_from)))
        refuse_other_run(config, source, trainer.envs.spec)
        log.info("%s", start_from(trainer.learner, source.parts, config.init_from))
        if rules := config.algo.fine_tunes:
            for notice in rules.list_changes(config, source.description.get("algo", {}), source.env or {}):
                log.warning("init_from=%s: %s", config.init_from, notice)
        trainer.learner.sync_weights(trainer.behavior_policy)
    if config.buffer.load_from:
        trainer.remember(config.buffer.load_from)
