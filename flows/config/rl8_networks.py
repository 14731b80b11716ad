"""Networks and action distributions of files of rl8 1.0.0: translation to keys of this project."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from rlcore.config.values import nearest, spell
from rlcore.errors import UserError
from rlcore.nn.network_keys import ACTIVATIONS

DISTRIBUTIONS = {
    "rl8.distributions.Categorical": "discrete",
    "rl8.distributions.Normal": "normal",
    "rl8.distributions.SquashedNormal": "tanh_normal",
}
# Default models of rl8 by their names in `rl8.models`; True: for recurrent algorithms.
DEFAULT_MODELS = {
    "DefaultContinuousModel": False,
    "DefaultDiscreteModel": False,
    "DefaultContinuousRecurrentModel": True,
    "DefaultDiscreteRecurrentModel": True,
}
# These are two MLPs of 256-256 units with ReLU, or one LSTM with two linear heads. The log std of continuous actions is
# the tanh of an output.
NETWORKS = {"algo.dense_units": 256, "algo.mlp_layers": 2, "algo.dense_act": "relu", "algo.layer_norm": False}
NETWORKS |= {"algo.encoder.mlp_layers": 0, "algo.actor.log_std_bound": 1.0}
RECURRENT_NETWORKS = {"algo.rnn.lstm.hidden_size": 256, "algo.layer_norm": False, "algo.actor.log_std_bound": 1.0}
RECURRENT_NETWORKS |= {f"algo.{part}.mlp_layers": 0 for part in ("encoder", "actor", "critic")}
ACTIVATION_NAMES = {"swish": "silu"}  # rl8's name -> ours, if they differ


def networks(config: Mapping[str, Any], recurrent: bool) -> dict[str, Any]:
    """Translate the keys `model`, `model_cls`, `model_config` and `distribution_cls` of `algorithm_config`.

    Args:
        config: the keys with their values or defaults.
        recurrent: True for a recurrent algorithm.

    Returns:
        Our keys and their values.

    Raises:
        UserError: a value is invalid, or has no equivalent.
    """
    model, named, arguments = config["model"], config["model_cls"], config["model_config"] or {}
    if model is not None and named is not None:
        raise UserError("algorithm_config.model and model_cls are both given; keep model_cls")
    if model is not None:
        raise UserError(
            f"algorithm_config.model={spell(model)}: a file cannot contain a network; set model_cls to a class"
        )
    keys = dict(RECURRENT_NETWORKS if recurrent else NETWORKS)
    if named is None or _is_default(str(named), recurrent):
        keys |= _recurrent_sizes(arguments) if recurrent else _sizes(arguments)
    else:
        keys["algo.model"] = class_of(str(named))
        keys |= {f"algo.model_config.{key}": value for key, value in arguments.items()}
    if (distribution := config["distribution_cls"]) is not None:
        keys["distribution.type"] = DISTRIBUTIONS.get(str(distribution)) or class_of(str(distribution))
    return keys


def class_of(named: str) -> str:
    """Return a class in the form `package.module:Class`."""
    module, _, name = named.rpartition(".")
    return f"{module}:{name}"


def _is_default(named: str, recurrent: bool) -> bool:
    """Return True for a default model of rl8, False for a class of the user; raise UserError for another class."""
    package, _, name = named.rpartition(".")
    if package.partition(".")[0] != "rl8":
        return False
    allowed = [model for model, of_recurrent in DEFAULT_MODELS.items() if of_recurrent == recurrent]
    if name not in allowed:
        raise UserError(
            f"algorithm_config.model_cls={named}: must be rl8.models.{' or rl8.models.'.join(allowed)}, because "
            f"{'recurrent is true' if recurrent else 'the file has no recurrent: true'}; or name your own class in a "
            "plugin (docs/your_own_model.md)"
        )
    return True


def _sizes(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Translate the arguments of the default models of feed-forward algorithms."""
    _check_arguments(arguments, ("hiddens", "activation_fn", "bias"))
    keys = dict[str, Any]()
    if "hiddens" in arguments:
        hiddens = arguments["hiddens"]
        place = f"algorithm_config.model_config.hiddens={spell(hiddens)}"
        units = list(cast("Sequence[Any]", hiddens)) if isinstance(hiddens, (list, tuple)) else []
        if not units or not all(type(count) is int and count > 0 for count in units):
            raise UserError(f"{place}: must be a list of integers >= 1; set, for example, hiddens: [64, 64]")
        if len(set(units)) > 1:
            raise UserError(
                f"{place}: the layers of the built-in networks have the same number of units; use equal numbers, or "
                "set model_cls to your own class in a plugin (docs/your_own_model.md)"
            )
        keys = {"algo.dense_units": units[0], "algo.mlp_layers": len(units)}
    if "activation_fn" in arguments:
        theirs = str(arguments["activation_fn"])
        ours = ACTIVATION_NAMES.get(theirs, theirs)
        if ours not in ACTIVATIONS:
            raise UserError(
                f"algorithm_config.model_config.activation_fn={theirs}: the built-in networks have "
                f"{', '.join(ACTIVATIONS)}; use one of them, or set model_cls to your own class in a plugin "
                "(docs/your_own_model.md)"
            )
        keys["algo.dense_act"] = ours
    return keys


def _recurrent_sizes(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Translate the arguments of the default models of recurrent algorithms."""
    _check_arguments(arguments, ("hidden_size", "num_layers", "bias"))
    size, layers = arguments.get("hidden_size", 256), arguments.get("num_layers", 1)
    if type(size) is not int or size < 1:
        raise UserError(
            f"algorithm_config.model_config.hidden_size={spell(size)}: must be an integer >= 1; set, for example, "
            "hidden_size: 256"
        )
    if layers != 1:
        raise UserError(
            f"algorithm_config.model_config.num_layers={spell(layers)}: the built-in LSTM has one layer; set "
            "num_layers: 1, or set model_cls to your own class in a plugin (docs/your_own_model.md)"
        )
    return {"algo.rnn.lstm.hidden_size": size}


def _check_arguments(arguments: Mapping[str, Any], known: Sequence[str]) -> None:
    """Raise UserError for an argument that rl8's default model does not have, or for `bias: false`."""
    for key in arguments:
        if key not in known:
            raise UserError(
                f"algorithm_config.model_config.{key}: rl8's default model has no argument {key}"
                f"{nearest(str(key), known)}; allowed: {', '.join(known)}; set model_cls if {key} is an argument of "
                "your own class"
            )
    if arguments.get("bias", True) is not True:
        raise UserError(
            f"algorithm_config.model_config.bias={spell(arguments['bias'])}: the built-in networks have biases; set "
            "bias: true, or set model_cls to your own class in a plugin (docs/your_own_model.md)"
        )
