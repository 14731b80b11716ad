"""Minari datasets, compared with Minari itself and with the environments in which they were collected."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import gymnasium
import minari
import numpy as np
import pytest
import torch
from gymnasium import spaces
from minari.data_collector.episode_buffer import EpisodeBuffer

from rlcore import streams
from rlcore.config.groups import EnvConfig
from rlcore.envs.spaces import action_spec, array_spec
from rlcore.errors import UserError
from rlcore.evaluation import datasets
from rlcore.evaluation.collection import collect_episodes
from rlcore.spec import EnvSpec
from rlcore.store import minari_datasets
from rlcore.store.checkpoint import manifest
from rlcore.store.config_file import config_of
from rlcore.store.directory import RunDirectory
from rlcore.train.run_trainer import RunTrainer
from tests.runs import prepare


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    return tmp_path / "minari"


def save_run(path: Path, env_id: str = "CartPole-v1", **dotted: Any) -> tuple[RunDirectory, Path]:
    """Return a run and its only checkpoint, from before the first update."""
    run = prepare(path, env_id, 200, **dotted)
    session = RunTrainer(run)
    checkpoint = run.path / session.save()["path"]
    session.close()
    return run, checkpoint


def sac_run(path: Path, **dotted: Any) -> tuple[RunDirectory, Path]:
    return save_run(path, "Pendulum-v1", algo="sac", env__num_envs=1, algo__learning_starts=150, **dotted)


def test_collect_episodes_is_reproducible_from_seeds_and_actions(tmp_path: Path) -> None:
    run, path = save_run(tmp_path / "run")
    summary = collect_episodes(run, path, "cart/pole-v0", 7)
    dataset = minari.load_dataset("cart/pole-v0")
    assert (dataset.total_episodes, dataset.total_steps) == (7, summary["rows"])
    env, seen = dataset.recover_environment(), []
    assert env.observation_space == dataset.observation_space and env.action_space == dataset.action_space
    for number, (episode, about) in enumerate(
        zip(dataset.iterate_episodes(), dataset.storage.get_episode_metadata(range(7)), strict=True)
    ):
        assert about["seed"] == streams.integer(config_of(run).seed, "dataset", 0, number)
        obs = [env.reset(seed=about["seed"])[0]]
        for action, *given in zip(
            episode.actions, episode.rewards, episode.terminations, episode.truncations, strict=True
        ):
            step = env.step(action)
            obs.append(step[0])
            assert [float(step[1]), step[2], step[3]] == given
        assert np.array_equal(np.stack(obs), episode.observations) and episode.observations.dtype == np.float32
        assert not (episode.terminations[:-1] | episode.truncations[:-1]).any() and (step[2] or step[3])
        seen.append(float(episode.rewards.sum()))
    env.close()
    assert np.mean(seen) == pytest.approx(summary["mean"]) and len(set(seen)) > 1
    metadata = dataset.storage.metadata
    origin = metadata["shepherd"]
    assert (metadata["algorithm_name"], origin["actions"], origin["run_id"]) == ("ppo", "sampled", "run")
    assert (origin["checkpoint"], origin["digest"]) == (int(path.name), manifest(path)["digest"])
    assert "7 episodes of CartPole-v1: sampled actions of ppo" in metadata["description"]


def test_collect_episodes_depends_on_round_and_actions(tmp_path: Path) -> None:
    run, path = save_run(tmp_path / "run")
    for name, more in (("a-v0", {}), ("b-v0", {"round": 1}), ("c-v0", {"actions": "random"}), ("d-v0", {})):
        collect_episodes(run, path, name, 3, **more)
    first, other, random, again = (
        [episode.observations.tolist() for episode in minari.load_dataset(name)]
        for name in ("a-v0", "b-v0", "c-v0", "d-v0")
    )
    assert first == again and first[0][0] != other[0][0] and first[0][0] == random[0][0] and first != random
    assert minari.load_dataset("c-v0").storage.metadata["algorithm_name"] == "random"
    with pytest.raises(UserError, match=r"^minari:a-v0: already exists; .*`minari delete a-v0`"):
        collect_episodes(run, path, "a-v0", 3)
    for wrong in ("a", "a-v", "a b-v0", "a/b-v0"):
        with pytest.raises(
            UserError, match=r"not a valid name of a Minari dataset; use \[FOLDER/\]NAME-vNUMBER"
        ) as refused:
            minari_datasets.check_name(wrong)
        assert "at least two characters in FOLDER" in str(refused.value)
        assert "v0-v0" not in str(refused.value)


def test_failed_collect_episodes_leaves_no_dataset(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(self: Any, **given: Any) -> None:
        raise OSError("in the middle")

    run, path = save_run(tmp_path / "run")
    monkeypatch.setattr(EpisodeBuffer, "__init__", fails)
    with pytest.raises(OSError, match="in the middle"):
        collect_episodes(run, path, "x-v0", 3)
    assert not (folder / "x-v0").exists()


def test_load_from_fills_buffer_with_dataset_steps(tmp_path: Path) -> None:
    run, path = sac_run(tmp_path / "run")
    collect_episodes(run, path, "pendulum-v0", 3)
    fresh = prepare(
        tmp_path / "fresh", "Pendulum-v1", 200, algo="sac", env__num_envs=1, buffer__load_from="minari:pendulum-v0"
    )
    session = RunTrainer(fresh)
    rows = session.training.copy_rows().squeeze(1)  # rows of one environment
    session.close()
    wanted = [
        (*episode.observations[t], episode.actions[t, 0], episode.rewards[t], *episode.observations[t + 1])
        for episode in minari.load_dataset("pendulum-v0")
        for t in range(len(episode.rewards))
    ]
    end = rows["truncated"] | rows["terminated"]
    assert end.sum() == rows["is_first"].sum() == 3
    found = [
        (
            *rows["obs", "state"][t].tolist(),
            float(rows["action"][t, 0]),
            float(rows["reward"][t + 1]),
            *rows["obs", "state"][t + 1].tolist(),
        )
        for t in range(len(rows) - 1)
        if not end[t]
    ]
    assert len(found) == len(wanted)
    np.testing.assert_allclose(np.array(found), np.array(wanted, float), rtol=0, atol=2e-6)
    exact = [0, 1, 2, 4, 5, 6, 7]  # all except the action, which was converted to the agent's space and back
    assert np.array_equal(np.array(found)[:, exact], np.array(wanted, float)[:, exact])


def test_resumed_run_does_not_load_dataset_again(tmp_path: Path) -> None:
    run, path = sac_run(tmp_path / "run")
    collect_episodes(run, path, "pendulum-v0", 2)
    fresh, _ = sac_run(tmp_path / "fresh", buffer__load_from="minari:pendulum-v0")
    minari.delete_dataset("pendulum-v0")
    session = RunTrainer(fresh)
    assert session.training.buffer.written == 401
    session.close()


class Odd(gymnasium.Env):
    """Environment with keys and actions of every kind, some nested, one unsupported by agents."""

    observation_space = spaces.Dict(
        {
            "image": spaces.Box(0, 255, (40, 40, 3), np.uint8),
            "inner": spaces.Dict({"place": spaces.Discrete(5, start=2), "bits": spaces.MultiBinary(3)}),
            "both": spaces.Tuple((spaces.Box(-1, 1, (2,), np.float64), spaces.Box(0, 1, (1,), np.float32))),
            "words": spaces.Text(4),
        }
    )
    action_space = spaces.MultiDiscrete([3, 4])


def write_foreign(name: str, count: int, *, ends: bool = True, seed: int = 0, **more: Any) -> list[EpisodeBuffer]:
    """Write a dataset with Minari itself; episode n has n + 2 steps."""
    space, actions = more.pop("observation_space", Odd.observation_space), more.pop("action_space", Odd.action_space)
    space.seed(seed), actions.seed(seed)
    episodes = []
    for n in range(2, count + 2):
        last = np.arange(n) == n - 1
        episodes.append(
            EpisodeBuffer(
                observations=stack_samples(space, [space.sample() for _ in range(n + 1)]),
                actions=stack_samples(actions, [actions.sample() for _ in range(n)]),
                rewards=np.arange(n) + 0.5,  # pyright: ignore[reportArgumentType]
                terminations=last & ends & (n % 2 == 0),  # pyright: ignore[reportArgumentType]
                truncations=last & ends & (n % 2 == 1),  # pyright: ignore[reportArgumentType]
                infos={},
            )
        )
    with pytest.warns(UserWarning):
        minari.create_dataset_from_buffers(
            name, episodes, observation_space=space, action_space=actions, jpeg_encoding=False, **more
        )
    return episodes


def stack_samples(space: Any, samples: list[Any]) -> Any:
    if isinstance(space, spaces.Dict):
        return {key: stack_samples(inner, [sample[key] for sample in samples]) for key, inner in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(stack_samples(inner, [sample[i] for sample in samples]) for i, inner in enumerate(space.spaces))
    return samples if isinstance(space, spaces.Text) else np.array(samples)


def spec_for(action: spaces.Space[Any] = Odd.action_space, **obs: spaces.Space[Any]) -> EnvSpec:
    return EnvSpec(
        "Odd-v0", {key.replace("_in_", "."): array_spec(key, space) for key, space in obs.items()}, action_spec(action)
    )


ODD = EnvConfig(id="Odd-v0")
INNER = Odd.observation_space["inner"]
BOTH = Odd.observation_space["both"]
WANTED = spec_for(
    image=Odd.observation_space["image"],
    inner_in_place=INNER["place"],  # pyright: ignore[reportIndexIssue]
    inner_in_bits=INNER["bits"],  # pyright: ignore[reportIndexIssue]
    both_0=BOTH[0],  # pyright: ignore[reportIndexIssue]
    both_1=BOTH[1],  # pyright: ignore[reportIndexIssue]
)


@pytest.mark.parametrize("ends", [True, False])
def test_read_rows_aligns_foreign_dataset(ends: bool) -> None:
    episodes = write_foreign("elsewhere-v0", 3, ends=ends)
    rows = datasets.read_rows("minari:elsewhere-v0", WANTED, ODD)
    assert rows.batch_size == (3 + 4 + 5, 1)
    begin = 0
    for episode in episodes:
        n = len(episode.rewards)
        part, obs = rows[begin : begin + n + 1, 0], episode.observations
        assert torch.equal(part["obs", "image"], torch.as_tensor(obs["image"]))
        assert torch.equal(part["obs", "inner.place"], torch.as_tensor(obs["inner"]["place"]))
        assert torch.equal(part["obs", "inner.bits"], torch.as_tensor(obs["inner"]["bits"]))
        assert torch.equal(part["obs", "both_0"], torch.as_tensor(obs["both"][0]))
        assert torch.equal(part["action"][:-1], torch.as_tensor(episode.actions))
        assert part["reward"].tolist() == [0.0, *episode.rewards]
        assert part["terminated"].tolist() == [False, *episode.terminations]
        assert part["truncated"].tolist() == [False, *episode.truncations]
        assert part["is_first"].tolist() == [True] + [False] * n
        begin += n + 1


def test_refuse_unfit_names_difference_of_spaces() -> None:
    box, six = spaces.Box(-1, 1, (3,), np.float32), spaces.Box(-2, 2, (1,), np.float32)
    write_foreign("vector-v0", 2, observation_space=box, action_space=six)
    right = spec_for(six, state=spaces.Box(-9, 9, (3,), np.float64))  # bounds and width of observations may differ
    datasets.refuse_unfit("minari:vector-v0", right, ODD)
    for spec, sentence in (
        (spec_for(six, rgb=Odd.observation_space["image"]), "it has no observation 'rgb', only state"),
        (
            spec_for(six, state=spaces.Box(-1, 1, (4,), np.float32)),
            r"its observation 'state' is \[3\] of float32, but the environment's is \[4\] of float32",
        ),
        (
            spec_for(six, state=spaces.Discrete(3)),
            r"'state' is \[3\] of float32, but the environment's is 3 values from 0",
        ),
        (
            spec_for(spaces.Box(-1, 1, (1,), np.float32), state=box),
            r"its actions are Box \[1\] from -2 to 2, but the environment's are Box \[1\] from -1 to 1",
        ),
        (
            spec_for(spaces.Discrete(2, start=1), state=box),
            r"but the environment's are Discrete \[2\] from \[1\], of shape \[\]",
        ),
    ):
        with pytest.raises(UserError, match=rf"^minari:vector-v0: .*{sentence}; choose a dataset of Odd-v0$"):
            datasets.refuse_unfit("minari:vector-v0", spec, ODD)


def test_missing_dataset_error_names_fix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_foreign("mine-v0", 1)
    with pytest.raises(
        UserError, match=r"^minari:mine-v1: not in .*did you mean 'mine-v0'\?; `minari download mine-v1`"
    ):
        datasets.read_spec("minari:mine-v1")
    with pytest.raises(UserError, match=r"nowhere: cannot read a dataset .*give minari:NAME"):
        datasets.read_spec(str(tmp_path / "nowhere"))
    (tmp_path / "minari/mine-v0/data/main_data.hdf5").write_bytes(b"torn")
    with pytest.raises(UserError, match=r"^minari:mine-v0: cannot be read: "):
        datasets.read_rows("minari:mine-v0", WANTED, ODD)
    monkeypatch.setitem(sys.modules, "minari", None)
    with pytest.raises(
        UserError, match=r"^minari:mine-v0: Minari is not installed; run: pip install -e '.\[minari\]'$"
    ):
        datasets.read_spec("minari:mine-v0")


def test_load_from_requires_replay_buffer(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"^buffer.load_from=minari:x-v0: a2c is on-policy and has no replay buffer"):
        prepare(tmp_path / "run", algo="a2c", buffer__load_from="minari:x-v0")
