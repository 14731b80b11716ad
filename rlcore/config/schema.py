"""Typed configuration: dataclasses with described fields, built strictly from plain mappings.

A config is a tree of frozen dataclasses whose fields are made by `arg`: a default, one line of help, and what is
allowed. `build` turns a mapping (composed by Hydra, read from a run directory, written by hand) into that tree or
raises one `UserError` that names the key, the value, what is allowed and the nearest match. Nothing is ever imported
because a value names it.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
import types
import typing
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rlcore.errors import Mistakes, Unset, UserError

REQUIRED = object()


def arg(
    default: Any = REQUIRED,
    help: str = "",
    *,
    choices: Collection[Any] | None = None,
    low: float | None = None,
    high: float | None = None,
    above: float | None = None,
    learning: bool = True,
    unused: str = "",
) -> Any:
    """One field of a config dataclass.

    Args:
        default: the default; `REQUIRED` when the config must give one. Mutable defaults are copied.
        help: one line for `-h` and the documentation, with unit and symbol.
        choices: the values allowed, when they can be listed.
        low: smallest value allowed.
        high: largest value allowed.
        above: the value must be greater than this.
        learning: whether a change of this key changes what is learned; such keys cannot change on resume.
        unused: why the key is accepted and has no effect today.

    Returns:
        A `dataclasses.field` that carries all of this as metadata.
    """
    meta = {"help": help, "choices": choices, "low": low, "high": high, "above": above}
    meta |= {"learning": learning, "unused": unused}
    if default is REQUIRED:
        return dataclasses.field(metadata=meta | {"required": True})
    if isinstance(default, (dict, list)) or dataclasses.is_dataclass(default):
        return dataclasses.field(default_factory=lambda: _copy(default), metadata=meta)
    return dataclasses.field(default=default, metadata=meta)


def _copy(value: Any) -> Any:
    return value if dataclasses.is_dataclass(value) else type(value)(value)


@dataclass(frozen=True)
class Argument:
    """One leaf of a config tree, as `-h` and the documentation show it."""

    key: str
    type: Any
    default: Any
    help: str
    choices: tuple[Any, ...] | None
    low: float | None
    high: float | None
    above: float | None
    learning: bool
    unused: str = ""
    group: str = ""

    @property
    def allowed(self) -> str:
        """Allowed values, in words."""
        if self.choices is not None:
            return "one of " + ", ".join(spell(c) for c in self.choices)
        limits = ((">", self.above), (">=", self.low), ("<=", self.high))
        bounds = " and ".join(f"{sign} {limit:g}" for sign, limit in limits if limit is not None)
        return f"{type_name(self.type)} that is {bounds}" if bounds else type_name(self.type)


def spell(value: Any) -> str:
    """A config value as a user would type it."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    return str(value)


def type_name(annotation: Any) -> str:
    """A type annotation in a user's words: `integer`, `number or null`, `list of text`."""
    names = {bool: "true/false", int: "integer", float: "number", str: "text", type(None): "null", Any: "anything"}
    if annotation in names:
        return names[annotation]
    origin = typing.get_origin(annotation)
    args = typing.get_args(annotation)
    if origin in (typing.Union, types.UnionType):
        return " or ".join(type_name(a) for a in args)
    if origin is tuple:
        if len(args) == 2 and args[1] is Ellipsis:
            return f"list of {type_name(args[0])}"
        return "[" + ", ".join(type_name(a) for a in args) + "]"
    return "mapping"


def arguments(
    cls: type, prefix: str = "", learning: bool = True, group: str = "", values: Any = None
) -> Iterator[Argument]:
    """Every leaf argument of a config dataclass and its groups, in order, with dotted keys behind `prefix`.

    `learning` is False when a group above is marked as not of learning, `group` says what the group is for, `values` is
    an instance whose values are the defaults (None: those of the class).
    """
    hints = typing.get_type_hints(cls)
    for field in dataclasses.fields(cls):
        meta = field.metadata
        here = learning and meta.get("learning", True)
        default = _default(field) if values is None else getattr(values, field.name)
        nested = _nested(hints[field.name])
        if nested is not None:
            own = default if dataclasses.is_dataclass(default) else None
            yield from arguments(nested, f"{prefix}{field.name}.", here, meta.get("help", ""), own)
            continue
        choices = meta.get("choices")
        yield Argument(
            f"{prefix}{field.name}",
            hints[field.name],
            default,
            meta.get("help", ""),
            tuple(choices) if choices is not None else None,
            meta.get("low"),
            meta.get("high"),
            meta.get("above"),
            here,
            meta.get("unused", ""),
            group,
        )


def groups(cls: type, kind: type, prefix: str = "") -> Iterator[str]:
    """The dotted places, behind `prefix`, of every group of a kind in a config dataclass."""
    hints = typing.get_type_hints(cls)
    for field in dataclasses.fields(cls):
        nested, place = _nested(hints[field.name]), f"{prefix}{field.name}"
        if nested is not None:
            yield from (place,) if issubclass(nested, kind) else groups(nested, kind, f"{place}.")


def _default(field: dataclasses.Field[Any]) -> Any:
    if field.default is not dataclasses.MISSING:
        return field.default
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return REQUIRED


def _nested(annotation: Any) -> type | None:
    """The dataclass in an annotation (`X`, or `X | str` for a group that a shorthand may replace)."""
    for candidate in (annotation, *typing.get_args(annotation)):
        if isinstance(candidate, type) and dataclasses.is_dataclass(candidate):
            return candidate
    return None


def build(cls: type, values: Any, prefix: str = "") -> Any:
    """A config dataclass from a mapping, strictly.

    Args:
        cls: the dataclass to build; its `check(self)` method, if any, is called at the end.
        values: plain values (as from YAML or JSON); nested mappings for nested dataclasses.
        prefix: the dotted place of this mapping, for messages.

    Returns:
        An instance of `cls`.

    Raises:
        UserError: an unknown key, a wrong type, a value out of range, a missing required key; all that there are.
    """
    if not isinstance(values, Mapping):
        raise UserError(f"{prefix.rstrip('.')}={spell(values)}: this is a group of keys, not a single value")
    fields, mistakes = {f.name: f for f in dataclasses.fields(cls)}, Mistakes()
    for key in values:
        if key not in fields:
            mistakes.note(_unknown(cls, prefix, str(key), values[key]))
    hints = typing.get_type_hints(cls)
    ready: dict[str, Any] = {}
    for name, field in fields.items():
        full_key = prefix + name
        with mistakes.noted():
            if name not in values or values[name] is REQUIRED or values[name] == "???":
                if _default(field) is REQUIRED:
                    raise Unset(f"{full_key} is required: {field.metadata.get('help', '')}")
                continue
            ready[name] = convert(values[name], hints[name], full_key)
            _within(full_key, ready[name], field.metadata, hints[name])
    mistakes.tell()
    config = cls(**ready)
    check = getattr(config, "check", None)
    if check is not None:
        check(prefix)
    return config


def _unknown(cls: type, prefix: str, key: str, value: Any) -> UserError:
    """The mistake of a key that a config does not have: with its like, here or, of the same name, deeper."""
    names = [field.name for field in dataclasses.fields(cls)]
    deeper = [argument.key for argument in arguments(cls, prefix)]
    hint = (
        nearest(prefix + key, [prefix + name for name in names], deeper) or f"; known here: {', '.join(sorted(names))}"
    )
    return UserError(f"unknown key {prefix + key!r} (value {spell(value)!r}){hint}")


def convert(value: Any, annotation: Any, key: str) -> Any:
    """`value` as the annotated type, without guessing: true is never 1, text a number only where YAML misread one.

    Args:
        value: as YAML or JSON gave it.
        annotation: the field's type.
        key: dotted, for messages.

    Returns:
        The value; lists become tuples, mappings become dataclasses where the field is one.

    Raises:
        UserError: the value is not of that type.
    """
    if annotation is Any:
        return value
    origin = typing.get_origin(annotation)
    if origin in (typing.Union, types.UnionType):
        members = typing.get_args(annotation)
        if value is None and type(None) in members:
            return None
        for member in sorted((m for m in members if m is not type(None)), key=_specificity):
            try:
                return convert(value, member, key)
            except _Mismatch:
                continue
        raise _Mismatch(key, value, annotation)
    if isinstance(annotation, type) and dataclasses.is_dataclass(annotation):
        if not isinstance(value, Mapping):
            raise _Mismatch(key, value, annotation)
        return build(annotation, value, f"{key}.")
    if origin is tuple:
        return _convert_tuple(value, annotation, key)
    if origin is dict or annotation is dict:
        if not isinstance(value, Mapping):
            raise _Mismatch(key, value, annotation)
        return dict(value)
    return _convert_scalar(value, annotation, key)


def _convert_tuple(value: Any, annotation: Any, key: str) -> tuple[Any, ...]:
    args = typing.get_args(annotation)
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise _Mismatch(key, value, annotation)
    if len(args) == 2 and args[1] is Ellipsis:
        return tuple(convert(v, args[0], f"{key}[{i}]") for i, v in enumerate(value))
    if len(args) != len(value):
        raise _Mismatch(key, value, annotation)
    return tuple(convert(v, a, f"{key}[{i}]") for i, (v, a) in enumerate(zip(value, args, strict=True)))


def _convert_scalar(value: Any, annotation: Any, key: str) -> Any:
    if annotation is bool and isinstance(value, bool):
        return value
    if annotation is int and not isinstance(value, bool):
        if isinstance(value, int):
            return value
        if isinstance(value, float) and value.is_integer():
            return int(value)
    if annotation is float and not isinstance(value, bool):
        if isinstance(value, (int, float)):
            return float(value)
        if isinstance(value, str):
            # YAML 1.1 reads 1e-3 as text; a user means the number.
            try:
                return float(value)
            except ValueError:
                raise _Mismatch(key, value, annotation) from None
    if annotation is str and isinstance(value, str):
        return value
    if annotation is type(None) and value is None:
        return None
    raise _Mismatch(key, value, annotation)


class _Mismatch(UserError):
    def __init__(self, key: str, value: Any, annotation: Any) -> None:
        super().__init__(f"{key}={spell(value)}: must be {_a(type_name(annotation))}, got {type(value).__name__}")


def _a(allowed: str) -> str:
    """What is allowed, behind its article where it wants one."""
    word = allowed.partition(" ")[0]
    return (
        f"{'an' if word == 'integer' else 'a'} {allowed}"
        if word in ("integer", "number", "list", "mapping")
        else allowed
    )


def _specificity(annotation: Any) -> int:
    order = [bool, int, float, str]
    return order.index(annotation) if annotation in order else -1


def _within(key: str, value: Any, meta: Mapping[str, Any], annotation: Any) -> None:
    choices = meta.get("choices")
    if choices is not None and value not in choices and not dataclasses.is_dataclass(value):
        allowed = ", ".join(spell(c) for c in choices)
        raise UserError(f"{key}={spell(value)}: must be one of {allowed}{nearest(spell(value), map(spell, choices))}")
    for number in value if isinstance(value, tuple) else (value,):
        if isinstance(number, bool) or not isinstance(number, (int, float)):
            continue
        if not math.isfinite(number):
            raise UserError(f"{key}={number}: must be a finite number")
        low, high, above = meta.get("low"), meta.get("high"), meta.get("above")
        if (
            (low is not None and number < low)
            or (high is not None and number > high)
            or (above is not None and number <= above)
        ):
            allowed = Argument(key, annotation, None, "", None, low, high, above, True).allowed
            raise UserError(f"{key}={spell(value)}: must be {_a(allowed)}")


def plain(config: Any) -> Any:
    """A config (or a part of one) as plain JSON values: dataclasses to dicts, tuples to lists."""
    if dataclasses.is_dataclass(config) and not isinstance(config, type):
        return {f.name: plain(getattr(config, f.name)) for f in dataclasses.fields(config)}
    if isinstance(config, Mapping):
        return {str(k): plain(v) for k, v in config.items()}
    if isinstance(config, (tuple, list)):
        return [plain(v) for v in config]
    return config


def at(tree: Any, key: str, absent: Any = None) -> Any:
    """The value at a dotted key of a plain tree; `absent` where there is none."""
    for part in key.split("."):
        if not isinstance(tree, Mapping) or part not in tree:
            return absent
        tree = tree[part]
    return tree


def defaults(cls: type) -> dict[str, Any]:
    """The defaults of a config dataclass as a plain tree; required keys hold `???` (OmegaConf's missing)."""
    hints = typing.get_type_hints(cls)
    tree: dict[str, Any] = {}
    for field in dataclasses.fields(cls):
        nested = _nested(hints[field.name])
        default = _default(field)
        if nested is not None and (default is REQUIRED or dataclasses.is_dataclass(default)):
            tree[field.name] = defaults(nested) if default is REQUIRED else plain(default)
        else:
            tree[field.name] = "???" if default is REQUIRED else plain(default)
    return tree


# What Stable-Baselines3, CleanRL and rl8 call a key, and its name here.
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
    """The sentence part `; did you mean 'x'?` for the known word nearest to `word`, or nothing.

    A dotted key means one of the same last part first, also one of `deeper`, which are else not offered.
    """
    names, last = [str(k) for k in known], str(word).rpartition(".")[2]
    meant = (last, OTHER_WORDS.get(last))
    same = [name for name in (*names, *deeper) if name.rpartition(".")[2] in meant]
    match = difflib.get_close_matches(str(word), same or names, n=1, cutoff=0.0 if same else 0.6)
    return f"; did you mean {match[0]!r}?" if match else ""
