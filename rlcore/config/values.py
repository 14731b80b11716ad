"""Conversion of config values to text and plain values, lookup by dotted key, and suggestions for misspelled keys."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Iterable, Mapping
from typing import Any

INSTANCE = "(instance)"  # end of the text that stands for an object in a config


def spell(value: Any) -> str:
    """Convert a config value to the text that a user writes on the command line: None -> `null`, True -> `true`."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    return str(value)


def plain(config: Any) -> Any:
    """Convert a config, or a part of one, to plain JSON values: dataclasses to dicts, tuples to lists.

    A module that a program set (`algo.model`) becomes the text `package.module:Class (instance)`.
    """
    if dataclasses.is_dataclass(config) and not isinstance(config, type):
        return {f.name: plain(getattr(config, f.name)) for f in dataclasses.fields(config)}
    if isinstance(config, Mapping):
        return {str(k): plain(v) for k, v in config.items()}
    if isinstance(config, (tuple, list)):
        return [plain(v) for v in config]
    if hasattr(config, "state_dict"):
        return f"{type(config).__module__}:{type(config).__qualname__} {INSTANCE}"
    return config


def at(tree: Any, key: str, absent: Any = None) -> Any:
    """Return the value of a dotted key in nested mappings, or `absent` if the key does not exist."""
    for part in key.split("."):
        if not isinstance(tree, Mapping) or part not in tree:
            return absent
        tree = tree[part]
    return tree


def first_leaf(key: str, value: Any) -> tuple[str, Any]:
    """Return a dotted key and its value; if the value is a mapping, return its first nested key without a mapping."""
    while isinstance(value, Mapping) and value:
        part, value = next(iter(value.items()))
        key = f"{key}.{part}"
    return key, value


# Name of a key in Stable-Baselines3, CleanRL or rl8 -> name of the key in this project.
OTHER_WORDS = {
    "learning_rate": "lr",
    "n_steps": "rollout_steps",
    "num_steps": "rollout_steps",
    "horizon": "rollout_steps",
    "n_epochs": "update_epochs",
    "num_sgd_iters": "update_epochs",
    "batch_size": "per_rank_batch_size",
    "sgd_minibatch_size": "per_rank_batch_size",
    "clip_range": "clip_coef",
    "clip_param": "clip_coef",
    "dual_clip_param": "dual_clip",
    "entropy_coeff": "ent_coef",
    "entropy_coeff_schedule": "ent_coef_schedule",
    "vf_coeff": "vf_coef",
    "target_kl_div": "target_kl",
    "accumulate_grads": "accumulate_minibatches",
    "normalize_rewards": "normalize_reward",
    "total_timesteps": "total_steps",
    "n_envs": "num_envs",
    "env_id": "id",
}


def nearest(word: str, known: Iterable[str], deeper: Iterable[str] = ()) -> str:
    """Suggest the known word that is most similar to an unknown word.

    For dotted keys, a key whose last part is that of `word`, or its name in this project (see `OTHER_WORDS`), is
    preferred. If there are several such keys and `word` has no dots, the one with the fewest dots is suggested.

    Args:
        word: unknown word or dotted key.
        known: known words or dotted keys.
        deeper: additional keys that are suggested only if their last part is that of `word`.

    Returns:
        `; did you mean 'x'?` as the end of an error message, or "" if no known word is similar.
    """
    names, last = [str(k) for k in known], str(word).rpartition(".")[2]
    meant = (last, OTHER_WORDS.get(last))
    same = [name for name in (*names, *deeper) if name.rpartition(".")[2] in meant]
    if "." not in str(word):
        same = sorted(same, key=lambda name: name.count("."))[:1]
    match = difflib.get_close_matches(str(word), same or names, n=1, cutoff=0.0 if same else 0.6)
    group = str(word).rpartition(".")[0]
    if match and not same and group and match[0].rpartition(".")[0] == group:  # compare without the common prefix
        match = [name for name in match if difflib.get_close_matches(last, [name.rpartition(".")[2]])]
    return f"; did you mean {match[0]!r}?" if match else ""
