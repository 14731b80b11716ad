"""Plan2Explore: which runs a fine-tuning run can start from, with the commands and with `rlcore.train.build`."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch

from rlcore.config.values import plain
from rlcore.errors import UserError
from rlcore.evaluation.policy import BESIDE, write_policy_folder
from rlcore.spec import ActionSpec, ArraySpec, EnvSpec
from rlcore.store import checkpoint
from rlcore.train.build import build
from tests.contract.test_p2e import advance, config, make_run
from tests.contract.test_registry import SETTINGS

SPEC = EnvSpec("CartPole-v1", {"state": ArraySpec((4,), "float32")}, ActionSpec("Discrete", (), "int64", (2,), (0,)))


def check_source(algo: Any, theirs: str, spec: EnvSpec = SPEC, components: tuple[str, ...] = ()) -> str:
    source: Any = config(theirs).algo
    with pytest.raises(UserError) as error:
        algo.fine_tunes.check(algo, plain(source), SPEC, spec, components)
    return str(error.value)


@pytest.mark.parametrize("theirs", ["p2e_dv3_exploration", "p2e_dv2_exploration", "dreamer_v3"])
def test_finetuning_refuses_source_with_all_differences(theirs: str) -> None:
    world = SETTINGS["p2e_dv3_finetuning"]["world_model"] | {"stochastic_size": 7}
    algo = config("p2e_dv3_finetuning", world_model=world, normalize_actions=False).algo
    action = ActionSpec("Discrete", (), "int64", (3,), (0,))
    other = EnvSpec("Other-v0", {"state": ArraySpec((6,), "float32"), "more": ArraySpec((2,), "float32")}, action)
    text = check_source(algo, theirs, other)
    for part in (
        "env.id=CartPole-v1 (here Other-v0)",
        "observation state: vector of float32, [4] (here vector of float32, [6])",
        "action: Discrete of [2] choices from [0] (here Discrete of [3] choices from [0])",
        "algo.world_model.stochastic_size=3 (here 7)",
        "algo.normalize_actions=true (here false)",
    ):
        assert part in text
    assert ("needed: p2e_dv3_exploration" in text) == (theirs != "p2e_dv3_exploration")
    assert "more" not in text  # an observation that the algorithm does not read


def test_finetuning_refuses_source_without_exploration_actor() -> None:
    algo: Any = config("p2e_dv3_finetuning").algo
    assert "contains no exploration actor" in check_source(algo, "p2e_dv3_exploration", components=("agent", "critic"))
    source: Any = plain(config("p2e_dv3_exploration").algo)
    algo.fine_tunes.check(algo, source, SPEC, SPEC, ("agent", "actor_exploration"))
    task: Any = config("p2e_dv3_finetuning", player={"actor_type": "task"}).algo
    task.fine_tunes.check(task, source, SPEC, SPEC, ("agent",))


def test_finetuning_reports_other_values_of_exploration() -> None:
    """Keys of the algorithm and of the environment; ids, frame stacks and keys without effect on learning are left out.

    SheepRL silently uses the values of the exploration run for all of these.
    """
    run, source = config("p2e_dv3_finetuning", gamma=0.5), config("p2e_dv3_exploration", run_test=False, compile=True)
    rules: Any = run.algo.fine_tunes
    ours = dataclasses.replace(run.env, max_episode_steps=9, frame_stack=2, num_envs=1, sync_env=False)
    env = plain(source.env) | {"action_repeat": 2, "clip_rewards": True}
    (notice,) = rules.list_changes(dataclasses.replace(run, env=ours), plain(source.algo), env)
    assert notice == (
        "the exploration run had other values: algo.gamma=0.996996996996997 (here 0.5), env.action_repeat=2 (here 1), "
        "env.clip_rewards=true (here false), env.max_episode_steps=12 (here 9)"
    )
    same_values = config("p2e_dv3_finetuning", learning_starts=40)
    assert rules.list_changes(same_values, plain(source.algo), plain(source.env)) == []
    assert rules.list_changes(same_values, plain(source.algo), {}) == []


def test_build_refuses_fine_tuning_without_source() -> None:
    with pytest.raises(UserError, match="init_from is required: p2e_dv3_finetuning starts from .* exploration run"):
        build(config("p2e_dv3_finetuning").algo, "CartPole-v1", num_envs=1)


def test_build_starts_fine_tuning_from_exploration_run(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A run stands for its newest checkpoint; a source of other sizes, or without the actor that acts, is refused."""
    run = make_run(tmp_path / "exploring", "p2e_dv3_exploration", env__action_repeat=2)
    advance(run, 20, 40)
    algo: Any = config("p2e_dv3_finetuning", learning_starts=40).algo
    trainer = build(algo, "CartPole-v1", num_envs=1, config={"init_from": str(run.path)})
    assert "env.action_repeat=2 (here 1)" in caplog.text
    learner: Any = trainer.learner
    saved = checkpoint.load(run.checkpoints / "40")[0]["learner"]
    for part in ("agent", "critic", "target_critic", "moments", "actor_exploration"):
        for key, value in learner.state_dict()[part].items():
            assert torch.equal(value, saved[part][key]), (part, key)
    for mine, theirs in zip(
        learner.behavior_policy.actor.parameters(), saved["actor_exploration"].values(), strict=True
    ):
        assert torch.equal(mine, theirs)
    world = SETTINGS["p2e_dv3_finetuning"]["world_model"] | {"stochastic_size": 7}
    other: Any = config("p2e_dv3_finetuning", learning_starts=40, world_model=world).algo
    with pytest.raises(UserError, match=r"init_from=.*algo.world_model.stochastic_size=3 \(here 7\)"):
        build(other, "CartPole-v1", num_envs=1, config={"init_from": str(run.path)})
    policy = write_policy_folder(run, run.checkpoints / "40", tmp_path / "policy")
    for name in BESIDE:
        (policy / name).unlink()
    with pytest.raises(UserError, match="init_from=.*contains no exploration actor"):
        build(algo, "CartPole-v1", num_envs=1, config={"init_from": str(policy)})


def test_build_refuses_exploration_run_without_rows(tmp_path: Path) -> None:
    """The files of the replay buffer were deleted after training."""
    run = make_run(tmp_path / "exploring", "p2e_dv3_exploration")
    advance(run, 40)
    source = {"init_from": str(run.path), "buffer": {"load_from": str(run.path)}}
    algo: Any = config("p2e_dv3_finetuning", learning_starts=40).algo
    build(algo, "CartPole-v1", num_envs=1, config=source)
    for chunk in (run.checkpoints / "chunks").iterdir():
        chunk.unlink()
    with pytest.raises(UserError, match="chunks/.* cannot be read .*choose a checkpoint that does not use this chunk"):
        build(algo, "CartPole-v1", num_envs=1, config=source)
