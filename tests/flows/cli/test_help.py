"""The text of `shepherd train -h` and the documented table of keys."""

from __future__ import annotations

from pathlib import Path

import pytest

from flows.cli.help import rewrite, train_help
from flows.config.yaml_files import presets
from rlcore.algorithms import ALGORITHMS
from rlcore.config.groups import RunConfig
from rlcore.config.schema import arguments
from rlcore.errors import UserError

DOCS = Path(__file__).parents[3] / "docs"
KEYS = [a.key for a in arguments(RunConfig) if a.key != "algo"]
KEYS += dict.fromkeys(a.key for module in ALGORITHMS.values() for a in arguments(module.Config, "algo."))


def shown(text):
    return [line.split(" = ")[0].strip() for line in text.splitlines() if " = " in line and not line.startswith("    ")]


def test_help_shows_every_key_once():
    assert sorted(shown(train_help())) == sorted(KEYS)


def test_help_fits_in_a_hundred_columns():
    assert max(len(line) for line in train_help().splitlines()) <= 100


def test_help_lists_the_presets():
    lines = train_help().splitlines()
    first = next(line for line in lines if line.startswith("  a2c "))
    left = first.index("A2C on CartPole")
    for name in presets():  # in one column, below a name that is longer than fits
        at = next(n for n, line in enumerate(lines) if line == f"  {name}" or line.startswith(f"  {name} "))
        about = lines[at][left:] or lines[at + 1][left:]
        assert about and not about.startswith(" ") and len(lines[at]) <= 100


def test_help_gives_default_meaning_and_what_is_allowed():
    text = " ".join(train_help(["gae_lambda"]).split())
    assert "algo.gae_lambda = 0.95" in text
    assert (
        "λ of generalized advantage estimation (ppo, a2c, ppo_recurrent only). Allowed: number that is >= 0 and <= 1"
        in text
    )


def test_help_shows_a_presets_values_beside_the_defaults():
    assert "algo.gamma = 0.9    (default 0.99)" in train_help(["exp=ppo_pendulum"])
    assert "algo.gamma = 0.5    (default 0.99)" in train_help(["exp=ppo", "algo.gamma=0.5", "algo"])


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["env"], [key for key in KEYS if key.startswith("env.")]),
        (["run"], [key for key in KEYS if "." not in key]),
        (["seed"], ["seed"]),
        (["algo.mlp_keys"], ["algo.mlp_keys.decoder", "algo.mlp_keys.encoder", "env.vector_key"]),
        (["fabric", "precision"], ["fabric.precision"]),
    ],
)
def test_a_word_selects_keys(words, expected):
    assert sorted(shown(train_help(words))) == sorted(expected)


@pytest.mark.parametrize(("words", "part"), [(["algo.optimizer.lrr"], "algo.optimizer.lr"), (["zzz"], "sections")])
def test_a_word_that_fits_no_key_is_told(words, part):
    with pytest.raises(UserError, match=part):
        train_help(words)


def test_what_is_allowed_can_be_listed_for_compile():
    assert "Allowed: one of auto, true, false" in " ".join(train_help(["algo.compile"]).split())


def test_help_names_a_users_own_preset_and_its_file(tmp_path, monkeypatch):
    own = tmp_path / "exp" / "mine.yaml"
    own.parent.mkdir()
    own.write_text("# @package _global_\n\n# A maze of one's own. More to say.\ndefaults: [ppo, _self_]\n")
    monkeypatch.setenv("SHEPHERD_SEARCH_PATH", str(tmp_path))
    words = " ".join(train_help().split())
    assert "mine A maze of one's own. (" in words
    assert "More to say" not in words


def test_the_documented_table_is_the_typed_config():
    text = (DOCS / "configuration.md").read_text()
    assert rewrite(text) == text, "run: python -m flows.cli.help docs/configuration.md"


def test_a_document_without_marks_is_refused():
    with pytest.raises(ValueError, match="must contain"):
        rewrite("no marks")


def test_every_preset_is_documented():
    text = (DOCS / "configuration.md").read_text()
    assert [name for name in presets() if f"| `{name}` |" not in text] == []
