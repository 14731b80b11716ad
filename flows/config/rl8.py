"""Files of rl8 1.0.0 (theOGognf/rl8): translation of their keys and classes to overrides of this project.

rl8's command `rl8 train -f FILE` reads three keys: `env_cls`, `algorithm_config` and `recurrent`. Keys that the file
does not contain get rl8's defaults. No class of rl8 is imported: its classes are looked up in tables, and other names
are classes in a plugin of the user. docs/coming_from_rl8.md lists all keys.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flows.config.overrides import override_text
from flows.config.rl8_networks import class_of, networks
from rlcore.config.values import nearest, plain, spell
from rlcore.errors import Mistakes, UserError
from rlcore.optim.optimizer_keys import SETTINGS

FILE_KEYS = ("env_cls", "algorithm_config", "recurrent")
MAX_STEPS = 100  # default of rl8's option --max-steps, in updates
DEFAULTS: dict[str, Any] = {  # rl8's AlgorithmConfig
    "model": None,
    "model_cls": None,
    "model_config": None,
    "distribution_cls": None,
    "horizon": 32,
    "horizons_per_env_reset": 1,
    "num_envs": 8192,
    "optimizer_cls": "torch.optim.Adam",
    "optimizer_config": None,
    "accumulate_grads": False,
    "enable_amp": False,
    "lr_schedule": None,
    "lr_schedule_kind": "step",
    "entropy_coeff": 0.0,
    "entropy_coeff_schedule": None,
    "entropy_coeff_schedule_kind": "step",
    "gae_lambda": 0.95,
    "gamma": 0.95,
    "sgd_minibatch_size": None,
    "num_sgd_iters": 4,
    "shuffle_minibatches": True,
    "clip_param": 0.2,
    "vf_clip_param": 5.0,
    "dual_clip_param": None,
    "vf_coeff": 1.0,
    "target_kl_div": None,
    "max_grad_norm": 5.0,
    "normalize_advantages": True,
    "normalize_rewards": True,
    "device": "auto",
}
RECURRENT = {"seq_len": 4, "seqs_per_state_reset": 8}  # further keys of rl8's RecurrentAlgorithmConfig
# Sizes, each with an example of its value.
INTEGERS = {"horizon": 32, "num_envs": 64, "sgd_minibatch_size": 256, "horizons_per_env_reset": 1, **RECURRENT}
SIGNED = ("seqs_per_state_reset", "horizons_per_env_reset")  # negative numbers mean "never"
# Sizes that the command line can also set, and from which others are computed.
SIZES = {"horizon": "algo.rollout_steps", "num_envs": "env.num_envs", "seq_len": "algo.per_rank_sequence_length"}
# Keys with the same values as ours.
RENAMED = {
    "horizon": "algo.rollout_steps",
    "num_envs": "env.num_envs",
    "entropy_coeff": "algo.ent_coef",
    "entropy_coeff_schedule": "algo.ent_coef_schedule",
    "lr_schedule": "algo.lr_schedule",
    "gae_lambda": "algo.gae_lambda",
    "gamma": "algo.gamma",
    "num_sgd_iters": "algo.update_epochs",
    "shuffle_minibatches": "algo.shuffle",
    "clip_param": "algo.clip_coef",
    "vf_clip_param": "algo.value_loss_cap",
    "dual_clip_param": "algo.dual_clip",
    "vf_coeff": "algo.vf_coef",
    "target_kl_div": "algo.target_kl",
    "max_grad_norm": "algo.max_grad_norm",
    "normalize_advantages": "algo.normalize_advantages",
    "normalize_rewards": "algo.normalize_reward",
}
ENVIRONMENTS = {
    "rl8.env.DiscreteDummyEnv": "batched/rl8-discrete_dummy",
    "rl8.env.ContinuousDummyEnv": "batched/rl8-continuous_dummy",
}
OPTIMIZERS = {
    f"torch.optim.{module}{name}": rule
    for name, rule in {"Adam": "adam", "AdamW": "adamw", "RMSprop": "rmsprop", "SGD": "sgd"}.items()
    for module in ("", f"{name.lower()}.")
}
OF_ALL_OPTIMIZERS = ("lr", "weight_decay")
KINDS = {"step": "step", "interp": "linear"}


def is_file_of_rl8(content: Mapping[str, Any]) -> bool:
    """Return True if the content of a file has a key of rl8's command `rl8 train`."""
    return any(key in content for key in FILE_KEYS)


def to_overrides(content: Mapping[str, Any], file: str, typed: Mapping[str, str]) -> list[str]:
    """Translate the content of a file of rl8 to overrides.

    Args:
        content: content of the file.
        file: path of the file, for messages.
        typed: key -> text of the overrides of the command line, from which sizes are computed if they are set there.

    Returns:
        Overrides, each a `key=value`, with rl8's defaults for the keys that the file does not contain.

    Raises:
        UserError: keys are unknown, have no equivalent, or have a value that is not allowed. The message lists all of
            them.
    """
    mistakes, algorithm, recurrent = Mistakes(), content.get("algorithm_config") or {}, content.get("recurrent", False)
    for key in content:
        if key not in FILE_KEYS:
            mistakes.note(
                UserError(
                    f"-f {file}: rl8 has no key {key}{nearest(key, FILE_KEYS)}; allowed: env_cls, "
                    "algorithm_config, recurrent; set other keys on the command line"
                )
            )
    if not isinstance(recurrent, bool):
        mistakes.note(UserError(f"-f {file}: recurrent={spell(recurrent)}: must be true or false"))
    if "env_cls" not in content:
        mistakes.note(UserError(f"-f {file}: env_cls is missing; set it, for example to rl8.env.DiscreteDummyEnv"))
    if not isinstance(algorithm, Mapping):
        mistakes.note(UserError(f"-f {file}: algorithm_config={spell(algorithm)}: must be a mapping"))
        mistakes.raise_collected()
    known = DEFAULTS | (RECURRENT if recurrent is True else {})
    for key in algorithm:
        if key in RECURRENT and key not in known:
            mistakes.note(UserError(f"-f {file}: algorithm_config.{key}: needs recurrent: true"))
        elif key not in known:
            mistakes.note(UserError(f"-f {file}: rl8 has no key algorithm_config.{key}{nearest(str(key), known)}"))
    mistakes.raise_collected()
    config = known | dict(algorithm)
    for key in config:
        with mistakes.catch():
            _check(key, config[key])
    mistakes.raise_collected()
    config |= {theirs: int(typed[ours]) for theirs, ours in SIZES.items() if typed.get(ours, "").strip("0").isdecimal()}
    keys: dict[str, Any] = {}
    for part in (_environment, _sizes, _objective, _optimizer, _device):
        with mistakes.catch():
            keys |= part(content, config, recurrent is True)
    with mistakes.catch():
        keys |= networks(config, recurrent is True)
    mistakes.raise_collected()
    keys["algo.total_steps"] = MAX_STEPS * keys["env.num_envs"] * keys["algo.rollout_steps"]
    return [f"exp={'ppo_recurrent' if recurrent else 'ppo'}", "env=batched", *(override_text(*k) for k in keys.items())]


def _check(key: str, value: Any) -> None:
    """Raise UserError if a size is not an integer, or the arguments of a class are not a mapping."""
    said = f"algorithm_config.{key}={value!r}" if isinstance(value, str) else f"algorithm_config.{key}={spell(value)}"
    if key in INTEGERS and not (value is None and key == "sgd_minibatch_size"):
        signed = key in SIGNED
        if not isinstance(value, int) or isinstance(value, bool) or value == 0 or (value < 0 and not signed):
            allowed = "an integer other than 0" if signed else "an integer >= 1"
            raise UserError(f"{said}: must be {allowed}; set, for example, {key}: {INTEGERS[key]}")
    if key in ("optimizer_config", "model_config") and not (value is None or isinstance(value, Mapping)):
        raise UserError(f"{said}: must be a mapping of names to values; correct it, or leave it out")


def _environment(content: Mapping[str, Any], config: Mapping[str, Any], recurrent: bool) -> dict[str, Any]:
    named = str(content["env_cls"])
    known = {"env.id": ENVIRONMENTS[named]} if named in ENVIRONMENTS else {}
    if not known and named.startswith("rl8."):
        raise UserError(
            f"env_cls={named}: unknown class of rl8; allowed: {', '.join(ENVIRONMENTS)}, or a class in a plugin"
        )
    own = known or {"env.id": named.rpartition(".")[2], "env.wrapper._target_": named}
    endless = {"env.endless": True, "env.horizons_per_env_reset": config["horizons_per_env_reset"]}
    # An evaluation of rl8 is one rollout.
    evaluation = {"evaluation.max_episode_steps": config["horizon"]}
    return {**own, **endless, **evaluation, "env.num_envs": config["num_envs"]}


def _sizes(content: Mapping[str, Any], config: Mapping[str, Any], recurrent: bool) -> dict[str, Any]:
    size, horizon, count = config["sgd_minibatch_size"], config["horizon"], config["num_envs"]
    if not recurrent:
        return {"algo.per_rank_batch_size": size}
    length, resets = config["seq_len"], config["seqs_per_state_reset"]
    if horizon % length:
        raise UserError(
            f"algorithm_config.seq_len={length}: must divide horizon ({horizon}); set horizon to a "
            f"multiple of {length}, or change seq_len"
        )
    between = horizon * config["horizons_per_env_reset"] // length
    if resets > 0 and between > 0 and between % resets:
        raise UserError(
            f"algorithm_config.seqs_per_state_reset={resets}: must divide the {between} sequences between two resets "
            "of the environments; set a divisor, or a negative number for no resets"
        )
    sequences = count * (horizon // length)
    if size and sequences % size:
        raise UserError(
            f"algorithm_config.sgd_minibatch_size={size}: must divide the {sequences} sequences of a rollout; "
            "set a divisor, or null for one minibatch"
        )
    return {
        "algo.per_rank_num_batches": sequences // size if size else 1,
        "algo.per_rank_sequence_length": length,
        "algo.sequences_per_state_reset": resets if resets > 0 else None,
        "algo.reset_recurrent_state_on_done": False,  # a reset of the environments is no reset of the state in rl8
    }


def _objective(content: Mapping[str, Any], config: Mapping[str, Any], recurrent: bool) -> dict[str, Any]:
    keys = {ours: config[theirs] for theirs, ours in RENAMED.items() if theirs != "num_envs"}
    scheduled = [name for name in ("lr", "entropy_coeff") if config[f"{name}_schedule"]]
    kinds = {str(config[f"{name}_schedule_kind"]) for name in scheduled}
    if len(kinds) > 1:
        raise UserError(
            "algorithm_config.lr_schedule_kind and entropy_coeff_schedule_kind differ, but algo.schedule_kind applies "
            "to both schedules; use one kind"
        )
    for kind in kinds:
        if kind not in KINDS:
            raise UserError(f"algorithm_config.{scheduled[0]}_schedule_kind={kind}: must be one of {', '.join(KINDS)}")
        keys["algo.schedule_kind"] = KINDS[kind]
    keys |= {"algo.anneal_lr": False, "algo.value_loss": "smooth_l1", "algo.clip_vloss": False}
    keys["algo.accumulate_minibatches"] = None if config["accumulate_grads"] else 1
    if config["normalize_advantages"]:
        keys["algo.advantage_scope"] = "rollout"
    if config["normalize_rewards"]:
        keys |= {"algo.reward_scale": "rollout", "algo.reward_clip": 1e30}  # rl8 does not clip
    return keys


def _optimizer(content: Mapping[str, Any], config: Mapping[str, Any], recurrent: bool) -> dict[str, Any]:
    named, settings = str(config["optimizer_cls"]), dict(config["optimizer_config"] or {})
    rule = OPTIMIZERS.get(named)
    if rule is None or not settings.keys() <= {*OF_ALL_OPTIMIZERS, *SETTINGS[rule]}:  # its class, with all arguments
        if settings and "lr" not in settings:
            raise UserError(f"algorithm_config.optimizer_config: has no lr, the learning rate of {named}; add it")
        own = f"torch.optim:{named.rpartition('.')[2]}" if named.startswith("torch.optim.") else class_of(named)
        keys = {"name": own, "lr": settings.pop("lr", 1e-3), "settings": settings, "eps": None, "betas": None}
    else:
        # torch's defaults; without any setting, rl8 sets the learning rate.
        usual = {"lr": 1e-2 if settings and rule == "rmsprop" else 1e-3}
        usual["weight_decay"] = 0.01 if rule == "adamw" else 0.0
        keys = {"name": rule, "eps": None, "betas": None, **usual, **SETTINGS[rule], **settings}
    return {f"algo.optimizer.{key}": value for key, value in plain(keys).items()}


def _device(content: Mapping[str, Any], config: Mapping[str, Any], recurrent: bool) -> dict[str, Any]:
    kind, _, index = str(config["device"]).partition(":")
    if kind not in ("auto", "cpu", "cuda"):
        raise UserError(f"algorithm_config.device={config['device']}: must be auto, cpu, cuda, or a GPU, as cuda:1")
    keys: dict[str, Any] = {"fabric.accelerator": kind}
    if index:
        keys["fabric.devices"] = [int(index)] if kind == "cuda" else 1
    return keys | ({"fabric.precision": "16-mixed"} if config["enable_amp"] else {})
