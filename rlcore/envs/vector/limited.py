"""Creation of a single environment whose calls have the same time limits as in training."""

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

    The construction of the environment has a longer time limit (`rlcore.envs.vector.watchdog.first_limit`).

    Args:
        config: config group `env`, or `EnvSettings` created from it.
        render_mode: as in Gymnasium; None if nothing is rendered.

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
