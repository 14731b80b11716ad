"""Configuration file of a training, given by `shepherd train -f FILE`: our keys, or a file of rl8.

The content of the file becomes overrides, as if they had been typed before those of the command line.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from flows.config import rl8
from flows.config.mistakes import one_line
from flows.config.overrides import override_text
from rlcore.errors import UserError


def with_file(file: str, typed: Sequence[str]) -> list[str]:
    """Return the overrides in a file, followed by those of the command line.

    Args:
        file: path of the file; "" for no file. Its keys are nested, dotted (`algo.gamma: 0.9`), or both. If it has the
            key `env_cls`, it is a file of rl8's command `rl8 train -f`.
        typed: overrides of the command line. If they set a key of the file, the file's value is not used.

    Returns:
        Overrides, each a `key=value`.

    Raises:
        UserError: the file cannot be read, or it is a file of rl8 with a key that has no equivalent.
    """
    if not file:
        return list(typed)
    content, keys = _read(Path(file)), {_key(override): override.partition("=")[2] for override in typed}
    if rl8.is_file_of_rl8(content):
        stated = rl8.to_overrides(content, file, keys)
    else:
        stated = [override_text(key, value) for key, value in _leaves(content)]
    return [*(override for override in stated if _key(override) not in keys), *typed]


def _read(file: Path) -> dict[str, Any]:
    from omegaconf import OmegaConf  # reads numbers as Hydra does: 1e-3 is a number
    from omegaconf.errors import OmegaConfBaseException

    try:
        content: Any = OmegaConf.to_container(OmegaConf.load(file), resolve=False)
    except (OSError, UnicodeDecodeError, yaml.YAMLError, OmegaConfBaseException) as error:
        raise UserError(f"-f {file}: cannot be read ({one_line(error)})") from None
    if not isinstance(content, dict) or not content:
        raise UserError(f"-f {file}: must contain keys and values, for example `exp: ppo` and `env.id: Acrobot-v1`")
    return {str(key): value for key, value in content.items()}


def _leaves(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the dotted keys of nested mappings with their values."""
    for key, value in tree.items():
        if isinstance(value, Mapping) and value:
            yield from _leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _key(override: str) -> str:
    return override.partition("=")[0].lstrip("+~")
