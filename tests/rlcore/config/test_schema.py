from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

import pytest

from rlcore.config.build import build
from rlcore.config.schema import arg, arguments, defaults, type_name
from rlcore.config.values import nearest, plain, spell
from rlcore.errors import UserError


@dataclass(frozen=True)
class Inner:
    rate: float = arg(0.1, "a rate", above=0, high=1)
    names: tuple[str, ...] = arg(("a",), "names")


@dataclass(frozen=True)
class Outer:
    count: int = arg(help="how many", low=1)
    kind: str = arg("slow", "which", choices=("slow", "fast"))
    limit: int | None = arg(None, "largest", low=1)
    pair: tuple[float, float] = arg((0.9, 0.99), "two numbers", low=0, high=1)
    switch: bool = arg(False, "on or off")
    extra: dict[str, Any] = arg({}, "anything")
    inner: Inner = arg(Inner(), "a group", learning=False)

    def check(self, prefix: str) -> None:
        if self.limit is not None and self.limit < self.count:
            raise UserError(f"{prefix}limit={self.limit}: below {prefix}count={self.count}")


def test_build_replaces_defaults_at_any_depth() -> None:
    config = build(Outer, {"count": 3, "inner": {"rate": 0.5, "names": ["x", "y"]}, "pair": [0, 1], "limit": 7})
    assert config == Outer(3, limit=7, pair=(0.0, 1.0), inner=Inner(0.5, ("x", "y")))
    assert isinstance(config.pair[0], float)


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({}, r"^p\.count is required: how many$"),
        ({"count": "???"}, r"^p\.count is required"),
        ({"count": 3, "knd": "fast"}, r"^unknown key 'p\.knd' \(value 'fast'\); did you mean 'p\.kind'\?$"),
        ({"count": 3, "qqq": 1}, r"unknown key 'p\.qqq'.*known keys: count, extra, inner"),
        ({"count": 3, "inner": {"rat": 1}}, r"unknown key 'p\.inner\.rat'.*did you mean 'p\.inner\.rate'"),
        ({"count": 0}, r"^p\.count=0: must be an integer that is >= 1$"),
        ({"count": 2.5}, r"^p\.count=2\.5: must be an integer, got a number$"),
        ({"count": True}, r"^p\.count=true: must be an integer, got true/false$"),
        ({"count": "3"}, r"^p\.count=3: must be an integer, got text$"),
        ({"count": 3, "switch": 1}, r"^p\.switch=1: must be true/false, got an integer$"),
        ({"count": 3, "kind": "fat"}, r"^p\.kind=fat: must be one of slow, fast; did you mean 'fast'\?$"),
        ({"count": 3, "limit": 0}, r"^p\.limit=0: must be an integer or null that is >= 1$"),
        ({"count": 3, "limit": 2}, r"^p\.limit=2: below p\.count=3$"),
        ({"count": 3, "pair": [0.5]}, r"^p\.pair=\[0\.5\]: must be \[number, number\]"),
        ({"count": 3, "pair": [0.5, 2]}, r"^p\.pair=.*must be \[number, number\] that is >= 0 and <= 1$"),
        ({"count": 3, "inner": 5}, r"^p\.inner=5: must be a mapping, got an integer$"),
        ({"count": 3, "inner": {"rate": 0}}, r"^p\.inner\.rate=0\.0: must be a number that is > 0 and <= 1$"),
        ({"count": 3, "inner": {"rate": float("nan")}}, r"^p\.inner\.rate=nan: must be a finite number$"),
        ({"count": 3, "inner": {"rate": "fast"}}, r"^p\.inner\.rate=fast: must be a number, got text$"),
        ({"count": 3, "inner": {"names": "ab"}}, r"^p\.inner\.names=ab: must be a list of text, got text$"),
        ({"count": 3, "inner": {"names": [1]}}, r"^p\.inner\.names\[0\]=1: must be text, got an integer$"),
        ({"count": 3, "extra": 5}, r"^p\.extra=5: must be a mapping, got an integer$"),
    ],
)
def test_build_errors_name_key_value_and_allowed(values: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence) as error:
        build(Outer, values, "p.")
    assert "\n" not in str(error.value)


def test_build_accepts_yaml_spellings_of_numbers() -> None:
    config = build(Outer, {"count": 3.0, "inner": {"rate": "1e-3"}})
    assert config.count == 3 and isinstance(config.count, int)
    assert config.inner.rate == 0.001


def test_build_refuses_single_value_for_group() -> None:
    with pytest.raises(
        UserError, match=r"^p=5: p is a group of keys, not a single value; set its keys, as in p\.KEY=VALUE$"
    ):
        build(Outer, 5, "p.")  # pyright: ignore[reportArgumentType]


def test_arguments_list_leaves_with_help_and_allowed() -> None:
    leaves = {a.key: a for a in arguments(Outer)}
    assert list(leaves) == ["count", "kind", "limit", "pair", "switch", "extra", "inner.rate", "inner.names"]
    assert leaves["kind"].allowed == "one of slow, fast"
    assert leaves["inner.rate"].allowed == "number that is > 0 and <= 1"
    assert leaves["inner.names"].default == ("a",) and leaves["limit"].help == "largest"


def test_arguments_inherit_learning_false_from_group() -> None:
    assert {a.key for a in arguments(Outer) if not a.learning} == {"inner.rate", "inner.names"}


def test_build_ignores_other_metadata_of_plugins() -> None:
    @dataclass(frozen=True)
    class Foreign:
        rate: float = field(default=1.0, metadata={"unit": "1/s", "help": "the rate"})

    assert build(Foreign, {"rate": 2}) == Foreign(2.0)
    assert [argument.help for argument in arguments(Foreign)] == ["the rate"]


def test_build_does_not_share_mutable_defaults() -> None:
    first, second = build(Outer, {"count": 1}), build(Outer, {"count": 1})
    first.extra["a"] = 1
    assert second.extra == {}


def test_build_reads_back_plain_values() -> None:
    config = build(Outer, {"count": 3, "extra": {"a": [1, {"b": 2}]}})
    values = json.loads(json.dumps(plain(config)))
    assert build(Outer, values) == config


def test_defaults_mark_required_keys() -> None:
    tree = defaults(Outer)
    assert tree["count"] == "???" and tree["inner"] == {"rate": 0.1, "names": ["a"]} and tree["limit"] is None


def test_type_name_and_spell_use_user_terms() -> None:
    assert type_name(int | None) == "integer or null"
    assert type_name(tuple[str, ...]) == "list of text"
    assert [spell(v) for v in (None, True, 1.5, "x")] == ["null", "true", "1.5", "x"]


def test_nearest_suggests_only_similar_keys() -> None:
    assert nearest("totl_steps", ["total_steps", "seed"]) == "; did you mean 'total_steps'?"
    assert nearest("zzz", ["total_steps", "seed"]) == ""
    known = ["algo.optimizer.dampening", "algo.optimizer.lr", "algo.rollout_steps", "algo.total_steps"]
    known += ["algo.alpha.optimizer.lr"]  # equally near, but deeper
    words = {"algo.optimizer.learning_rate": 1, "algo.n_steps": 2, "total_timesteps": 3, "learning_rate": 1}
    for word, meant in words.items():
        assert nearest(word, known) == f"; did you mean {known[meant]!r}?"  # names of other libraries
