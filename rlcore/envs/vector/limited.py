"""One environment with the time limits of training, for code that steps a single environment."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import partial

from rlcore.config.groups import EnvConfig
from rlcore.envs.make import EnvSettings, make
from rlcore.envs.vector.watchdog import StepTimeLimit, Watchdog, step_limit
from rlcore.user_code import user_code


@contextmanager
def limited_env(config: EnvConfig | EnvSettings, render_mode: str | None = None) -> Iterator[StepTimeLimit]:
    """Create one environment whose calls have the time limit `env.step_timeout`; close it at the end of the context.

    The construction of the environment has the longer time limit `first_limit`.

    Args:
        config: the env group, or settings from it.
        render_mode: as in Gymnasium.

    Yields:
        The environment, not yet reset.

    Raises:
        EnvironmentFault: A call took too long, or the environment could not be closed.
    """
    watchdog = Watchdog(step_limit(config))
    try:
        env = watchdog.build(partial(make, config, render_mode=render_mode))
        with user_code(), closing(StepTimeLimit(env, watchdog)) as limited:
            yield limited
    finally:
        watchdog.close()
