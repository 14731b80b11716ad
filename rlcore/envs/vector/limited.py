"""One environment under the time limits of training, for code that steps it by itself."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import partial

from rlcore.config.groups import EnvConfig
from rlcore.envs.make import EnvSettings, make
from rlcore.envs.vector.watchdog import StepTimeout, Watchdog, step_limit
from rlcore.user_code import user_code


@contextmanager
def limited_env(config: EnvConfig | EnvSettings, render_mode: str | None = None) -> Iterator[StepTimeout]:
    """Make one environment whose every call has the limit `env.step_timeout`, and close it after the `with`.

    Args:
        config: the env group, or settings taken from it.
        render_mode: Gymnasium's.

    Yields:
        The environment, not yet reset.

    Raises:
        EnvironmentFault: it could not be closed, or a call took too long; to build it may take `first_limit`.
    """
    watchdog = Watchdog(step_limit(config))
    try:
        env = watchdog.build(partial(make, config, render_mode=render_mode))
        with user_code(), closing(StepTimeout(env, watchdog)) as limited:
            yield limited
    finally:
        watchdog.close()
