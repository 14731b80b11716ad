"""Search space of a sweep: syntax, dimensions and refused values."""

from __future__ import annotations

from typing import Any

import optuna
import pytest

from flows.config.overrides import parse
from flows.config.yaml_files import groups
from flows.sweeps.space import Dimension, of_mapping, of_overrides, to_overrides
from rlcore.errors import UserError


def dimension_of(written: str) -> Dimension:
    (dimension,) = of_overrides(parse([written], groups()).sweeps)
    return dimension


@pytest.mark.parametrize(
    ("written", "kind", "extremes", "log", "step"),
    [
        ("algo.optimizer.lr=interval(1e-5,1e-2)", "float", (1e-5, 1e-2), False, None),
        ("algo.optimizer.lr=tag(log,interval(1e-5,1e-2))", "float", (1e-5, 1e-2), True, None),
        ("algo.gamma=interval(0,1)", "float", (0.0, 1.0), False, None),  # the key has type float
        ("algo.update_epochs=interval(1,8)", "int", (1, 8), False, None),
        ("algo.update_epochs=tag(log,interval(1,64))", "int", (1, 64), True, None),
        ("algo.update_epochs=range(2,10,2)", "int", (2, 8), False, 2),  # without the stop
        ("algo.update_epochs=range(1,4)", "int", (1, 3), False, 1),
        ("algo.rollout_steps=choice(64,128)", "categorical", (64, 128), False, None),
        ("algo.rollout_steps=64,128", "categorical", (64, 128), False, None),
        ("optim=choice(adam,rmsprop)", "categorical", ("adam", "rmsprop"), False, None),
        ("algo.mlp_keys.encoder=choice([a],[a,b])", "categorical", (["a"], ["a", "b"]), False, None),
    ],
)
def test_of_overrides_parses_hydra_sweeps(
    written: str, kind: str, extremes: tuple[Any, ...], log: bool, step: float | None
) -> None:
    dimension = dimension_of(written)
    assert (dimension.key, dimension.type) == (written.partition("=")[0], kind)
    assert dimension.extremes == extremes
    assert [type(value) for value in dimension.extremes] == [type(value) for value in extremes]
    assert (dimension.log, dimension.step) == (log, step)


def test_of_mapping_matches_of_overrides() -> None:
    mapped = of_mapping(
        {
            "algo.optimizer.lr": {"type": "float", "low": "1e-5", "high": 1e-2, "log": True},  # YAML: 1e-5 is text
            "algo.update_epochs": {"type": "int", "low": 1, "high": 8},
            "algo.rollout_steps": {"type": "categorical", "choices": [64, 128]},
            "algo.gamma": "interval(0.9,1)",
        }
    )
    written = ["algo.optimizer.lr=tag(log,interval(1e-5,1e-2))", "algo.update_epochs=interval(1,8)"]
    written += ["algo.rollout_steps=choice(64,128)", "algo.gamma=interval(0.9,1)"]
    for dimension, line in zip(mapped, written, strict=True):
        assert dimension.distribution() == dimension_of(line).distribution()


def test_of_mapping_converts_text_for_numeric_keys() -> None:
    number, text = of_mapping({"algo.optimizer.lr": {"choices": ["1e-3", 0.1]}, "exp_name": {"choices": ["1e-3", "b"]}})
    assert number.choices == (1e-3, 0.1)
    assert text.choices == ("1e-3", "b")


def test_conditional_dimension_depends_on_other_key() -> None:
    first, second = of_mapping(
        {
            "algo.normalize_advantages": {"choices": [True, False]},
            "algo.max_grad_norm": {
                "type": "float",
                "low": 0.1,
                "high": 1,
                "when": {"algo.normalize_advantages": True},
            },
        }
    )
    assert first.present({})
    assert second.present({first.key: True})
    assert not second.present({first.key: False})
    assert not second.present({})


def test_to_overrides_round_trips_through_parse() -> None:
    params = {
        "algo.optimizer.lr": 1.2345678901234567e-05,
        "algo.update_epochs": 7,
        "algo.anneal_lr": True,
        "env.id": "ALE/Pong-v5",
        "exp_name": "it's 5% (or so), null",
        "algo.mlp_keys.encoder": ["state", "a b"],
        "algo.target_kl": None,
        "run_name": "null",
    }
    for (key, value), line in zip(params.items(), to_overrides(params), strict=True):
        (setting,) = parse([line], groups()).settings
        assert (setting.key_or_group, setting.value()) == (key, value)


def test_dimension_stores_list_choice_as_text() -> None:
    dimension = dimension_of("algo.mlp_keys.encoder=choice([a],[a,b])")
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=1))
    trial = study.ask()
    value = dimension.suggest(trial)
    assert value in (["a"], ["a", "b"])
    assert isinstance(trial.params[dimension.key], str)
    assert dimension.to_config(trial.params[dimension.key]) == value


@pytest.mark.parametrize(
    ("written", "messages"),
    [
        ("algo.update_epochs=interval(1,2.5)", ["algo.update_epochs=interval(1,2.5)", "integers"]),
        ("algo.optimizer.lr=tag(log,interval(0,1))", ["log", "greater than 0"]),
        ("algo.anneal_lr=interval(0,1)", ["algo.anneal_lr", "choice"]),
        ("algo.rollout_steps=choice(64,64)", ["twice"]),
        ("algo.update_epochs=range(4,4)", ["no value"]),
    ],
)
def test_of_overrides_refuses_mistake(written: str, messages: list[str]) -> None:
    with pytest.raises(UserError) as error:
        dimension_of(written)
    assert all(message in str(error.value) for message in messages), str(error.value)


@pytest.mark.parametrize(
    ("space", "messages"),
    [
        ({"algo.gamma": {"type": "real", "low": 0, "high": 1}}, ["sweep.space.algo.gamma.type=real", "float"]),
        ({"algo.gamma": {"type": "float", "low": 0.5}}, ["high is missing"]),
        ({"algo.gamma": {"type": "float", "low": 0, "hihg": 1, "high": 1}}, ["hihg", "'high'"]),
        ({"algo.gamma": 0.9}, ["sweep.space.algo.gamma=0.9", "a single value"]),
        ({"algo.gamma": {"choices": [0.9, 1.0], "when": {"algo.lr": 1}}}, ["when", "algo.lr"]),
        ({"algo.gamma": {"type": "float", "low": "a", "high": 1}}, ["low=a", "number"]),
    ],
)
def test_of_mapping_refuses_mistake(space: dict[str, Any], messages: list[str]) -> None:
    with pytest.raises(UserError) as error:
        of_mapping(space)
    assert all(message in str(error.value) for message in messages), str(error.value)
