"""Runs that are killed: every supported family of environments and every algorithm, in all of `MODES`.

`make soak` kills all of them; `make test ALL=1` kills one of each mechanism, as a resume depends on the tier of the
environment (rlcore/envs/exact/tier.py) and on the mode, not on the environment itself.
"""

from __future__ import annotations

import importlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from rlcore.store.directory import RunDirectory
from rlcore.train.run_trainer import RunTrainer
from tests.processes import NO_STORE, shepherd
from tests.runs import (
    COMPILED,
    SMALL,
    SMALL_DREAMER,
    SMALL_DREAMER_V1,
    SMALL_DREAMER_V2,
    SMALL_DREAMER_V3_5,
    prepare,
)

PLUGIN = "tests.faults.faulty_envs"
WORLD = "tests.probes.registered"  # a world model that is not in the registry
CORRIDOR, TRADING = "examples.corridor.corridor", "examples.algotrading.algotrading"
EXAMPLES = ("examples.reinforce.reinforce", CORRIDOR, TRADING)
PROBES = "tests.probes.envs"
CALLBACKS = "tests.probes.callbacks"
PLUGINS = (PLUGIN, WORLD, PROBES, CALLBACKS, *EXAMPLES)
ENVIRONMENTS = (
    "CartPole-v1",
    "Acrobot-v1",
    "Pendulum-v1",
    "FrozenLake-v1",
    "LunarLander-v3",
    "BipedalWalker-v3",
    "HalfCheetah-v5",
    "Hopper-v5",
    "Shared-v0",
    "discrete_dummy",
    "batched/CartPole-v1",
    "batched/rl8-discrete_dummy",
    "batched/rl8-mountain_car",
)
TIERS = {"snapshot": "CartPole-v1", "replay": "Hopper-v5", "boundary": "Shared-v0"}
# Normalizers and annealing on; some 30 iterations, 10 checkpoints, 4 evaluations; short episodes with many ends.
LEARNING = {
    "algo__normalize_obs": True,
    "algo__normalize_reward": True,
    "algo__normalize_advantages": True,
    "algo__anneal_lr": True,
    "algo__anneal_clip_coef": True,
    "algo__ent_coef": 0.01,
    "algo__max_grad_norm": 0.5,
    "env__max_episode_steps": 150,
}
# A replay buffer that fills up and drops chunks before the end, and transitions of three steps.
OFF_POLICY = {
    "algo": "sac",
    "algo__hidden_size": 8,
    "algo__actor__hidden_size": 8,
    "algo__critic__hidden_size": 8,
    "algo__per_rank_batch_size": 16,
    "algo__learning_starts": 100,
    "algo__replay_ratio": 0.25,
    "algo__n_step": 3,
    "buffer__size": 1000,
    "env__max_episode_steps": 150,
}
# SAC's learner with other keys: dropout and critic-only steps; running batch statistics; residual blocks.
DROQ = OFF_POLICY | {"algo": "droq", "algo__policy_delay": 2}
RENORM = {f"algo__{part}__renorm_warmup": 20 for part in ("actor", "critic")}  # of about 450 gradient steps
CROSSQ = OFF_POLICY | RENORM | {"algo": "crossq", "algo__policy_delay": 2}
SIMBA = OFF_POLICY | {"algo": "simba"}
# Sequences, images, a carry, and a latent that is written back, as world models need them.
WORLD_MODEL = {"algo": "world", "algo__learning_starts": 100, "algo__size": 200, "env__max_episode_steps": 40}
DREAMER = {
    "algo": "dreamer_v3",
    "algo__learning_starts": 100,
    "algo__replay_ratio": 0.05,
    "algo__train_every": 70,
    "algo__per_rank_batch_size": 4,
    "algo__per_rank_sequence_length": 12,
    "algo__horizon": 4,
    **{f"algo__{part}": keys for part, keys in SMALL_DREAMER.items()},
    "buffer__size": 1000,
    "buffer__type": "episode",
    "buffer__prioritize_ends": True,
    "buffer__online": True,
    "env__max_episode_steps": 40,
}
# A target critic that is copied, and exploration noise.
DREAMER_V2 = DREAMER | {
    "algo": "dreamer_v2",
    "algo__per_rank_pretrain_steps": 2,
    **{f"algo__{part}": keys for part, keys in SMALL_DREAMER_V2.items()},
}
# Normal latents, no target critic.
DREAMER_V1 = DREAMER | {"algo": "dreamer_v1", **{f"algo__{part}": keys for part, keys in SMALL_DREAMER_V1.items()}}
# Latent states that are written back, also while rows are overwritten.
DREAMER_V3_5 = DREAMER | {
    "algo": "dreamer_v3_5",
    **{f"algo__{part}": keys for part, keys in SMALL_DREAMER_V3_5.items()},
    "buffer__size": 150,
    "buffer__type": "sequential",
    "buffer__prioritize_ends": False,
}
# An ensemble, and a second actor with two critics.
PLAN2EXPLORE = {"algo__ensembles__n": 3, "algo__ensembles__dense_units": 8, "algo__ensembles__mlp_layers": 1}
# Two frames, stacked when they are read; an encoder that two optimizers train.
SAC_AE = {
    "algo": "sac_ae",
    "algo__hidden_size": 8,
    "algo__actor__hidden_size": 8,
    "algo__critic__hidden_size": 8,
    "algo__per_rank_batch_size": 16,
    "algo__learning_starts": 100,
    "algo__per_rank_pretrain_steps": 5,
    "algo__replay_ratio": 0.1,
    "algo__mlp_keys__encoder": [],
    "algo__cnn_keys__encoder": ["rgb"],
    "buffer__size": 1000,
    "env__screen_size": None,
    "env__frame_stack": 2,
}
ON_POLICY = {key: LEARNING[key] for key in LEARNING if key != "algo__anneal_clip_coef"}
# Sequences of 7 of 32 rows with episode ends inside; a carry from one rollout to the next.
RECURRENT = LEARNING | {
    "algo": "ppo_recurrent",
    "algo__rnn__lstm__hidden_size": 8,
    "algo__per_rank_sequence_length": 7,
    "algo__per_rank_num_batches": 2,
    "env__mask_velocities": True,
}
REINFORCE = {"algo": "reinforce", "env__max_episode_steps": 150}
ALGORITHMS = {
    "ppo": LEARNING,
    "a2c": {"algo": "a2c"} | ON_POLICY,
    "ppo_recurrent": RECURRENT,
    "sac": OFF_POLICY,
    "droq": DROQ,
    "crossq": CROSSQ,
    "simba": SIMBA,
    "world": WORLD_MODEL,
    "dreamer_v1": DREAMER_V1,
    "dreamer_v2": DREAMER_V2,
    "dreamer_v3": DREAMER,
    "dreamer_v3_5": DREAMER_V3_5,
    "p2e_dv1_exploration": DREAMER_V1 | PLAN2EXPLORE | {"algo": "p2e_dv1_exploration"},
    "p2e_dv2_exploration": DREAMER_V2 | PLAN2EXPLORE | {"algo": "p2e_dv2_exploration"},
    "p2e_dv3_exploration": DREAMER | PLAN2EXPLORE | {"algo": "p2e_dv3_exploration"},
    "p2e_dv3_5_exploration": DREAMER_V3_5 | PLAN2EXPLORE | {"algo": "p2e_dv3_5_exploration"},
    "p2e_dv1_finetuning": DREAMER_V1 | PLAN2EXPLORE | {"algo": "p2e_dv1_finetuning"},
    "p2e_dv2_finetuning": DREAMER_V2 | PLAN2EXPLORE | {"algo": "p2e_dv2_finetuning"},
    "p2e_dv3_finetuning": DREAMER | PLAN2EXPLORE | {"algo": "p2e_dv3_finetuning"},
    "p2e_dv3_5_finetuning": DREAMER_V3_5 | PLAN2EXPLORE | {"algo": "p2e_dv3_5_finetuning"},
    "sac_ae": SAC_AE,
    "reinforce": REINFORCE,
}
SOURCES = {  # algorithm of the run from which another one starts
    f"p2e_dv{version}_finetuning": f"p2e_dv{version}_exploration" for version in ("1", "2", "3", "3_5")
}
# Keys that an environment needs in addition to `LEARNING`: a custom class, engines of suites, and a game
# on the engines of the tests.
NEEDED: dict[str, dict[str, Any]] = {
    "batched/rl8-discrete_dummy": {
        "env__horizons_per_env_reset": -1,
        "env__config": {"bounds": {"uniform": [1, 9]}},
        "env__max_episode_steps": 40,
    },
    "batched/rl8-mountain_car": {
        "env__horizons_per_env_reset": 3,
        "env__config": {"goal": {"normal": [0.5, 0.1]}, "force": [[0, 0.001], [1920, 0.002]]},
    },
    "batched/Pendulum-v1": {"env__mask_velocities": False},
    "Trading": {  # nested observations, action masks, and a window across rollouts
        "env__wrapper": {"_target_": f"{TRADING}.Trading"},
        "env__mask_velocities": False,
        "env__max_episode_steps": 40,
        "algo__mlp_keys__encoder": ["market.change", "holds"],
        "algo__windows": {"market.change": {"frames": 4, "kind": "padded"}},
    },
    "Corridor": {"env__wrapper": {"_target_": f"{CORRIDOR}.Corridor", "length": 8}},
    "MiniGrid-MemoryS7-v0": {"env__screen_size": None, "algo__mlp_keys__encoder": ["image", "direction"]},
    "ALE/Breakout-v5": {
        "env__screen_size": 36,
        "env__grayscale": True,
        "env__frame_stack": 2,
        "env__action_repeat": 4,
        "algo__mlp_keys__encoder": [],
        "algo__cnn_keys__encoder": ["rgb"],
        "algo__encoder__cnn_features_dim": 16,
    },
    "crafter_reward": {
        "env__screen_size": 36,
        "env__wrapper": {"area": [24, 24], "view": [5, 5]},
        "env__reward_as_observation": True,
        "algo__mlp_keys__encoder": ["reward"],
        "algo__cnn_keys__encoder": ["rgb"],
        "algo__encoder__cnn_features_dim": 16,
    },
    "cartpole_balance": {
        "env__screen_size": 36,
        "env__wrapper": {"from_pixels": True, "from_vectors": False, "fast_rendering": True},
        "algo__mlp_keys__encoder": [],
        "algo__cnn_keys__encoder": ["rgb"],
        "algo__encoder__cnn_features_dim": 16,
    },
    "doapp": {
        "env__wrapper": {"screen_size": 16, "diambra_wrappers": {"no_op_max": 3}},
        "env__screen_size": 16,
        "algo__mlp_keys__encoder": ["P1_health", "P2_health", "timer", "stage"],
    },
}
ENGINES = 3  # for such a game in one run: two environments, and one for evaluation
SCHEDULE = {"total_steps": 1920, "checkpoint__every": 192, "evaluation__every": 480, "metric__log_every": 64}


@dataclass(frozen=True)
class Case:
    """One row of the table.

    Attributes:
        env_id: the environment.
        mode: "in-process", "subprocess", "native", "flow" (the whole command `shepherd train`), with "compiled" or
            "two ranks" in addition or alone; "extended": it starts from the state of another run; "callbacks": with a
            callback that logs and one that changes training; "gpu" and "gpu, compiled", which are not part of a soak.
        algo: the algorithm.
    """

    env_id: str
    mode: str
    algo: str = "ppo"

    def __str__(self) -> str:
        return f"{self.env_id} {self.mode}{'' if self.algo == 'ppo' else f' {self.algo}'}"

    @property
    def variables(self) -> dict[str, str]:
        """Return environment variables; only "flow" uses MLflow, because the others would wait for it."""
        shared = {"SHEPHERD_CACHE": f"{os.environ['TESTS_SHARED']}/compiled"} if "TESTS_SHARED" in os.environ else {}
        return {"SHEPHERD_PLUGINS": ",".join(PLUGINS)} | shared | ({} if "flow" in self.mode else NO_STORE)

    def settings(self) -> dict[str, Any]:
        """Return keys of the config."""
        mode: dict[str, Any] = {
            "env__sync_env": "subprocess" not in self.mode,
            "algo__compile": "compiled" in self.mode,
        }
        mode |= {"env__vectorization": "native"} if self.mode == "native" else {}
        mode |= {"fabric__devices": 2} if "two ranks" in self.mode else {}
        mode |= {"fabric__accelerator": "cuda"} if "gpu" in self.mode else {}
        if "callbacks" in self.mode:
            mode["callbacks"] = [
                {"_target_": f"{CALLBACKS}:Recorder"},
                {"_target_": f"{CALLBACKS}:Noise", "scale": 1e-3},
            ]
        mode |= COMPILED if "compiled" in self.mode and self.algo == "ppo" else {}
        return ALGORITHMS[self.algo] | NEEDED.get(self.env_id, {}) | SCHEDULE | mode

    def prepare(self, folder: Path) -> RunDirectory:
        """Return a run directory ready for training; for "flow" it is empty, because the command creates it."""
        for plugin in (PLUGIN, PROBES):
            importlib.import_module(plugin)
        if "flow" in self.mode:
            return RunDirectory(folder)
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("SHEPHERD_PLUGINS", ",".join((CALLBACKS, CORRIDOR, TRADING)))  # the config names their classes
            return prepare(folder, self.env_id, **self.settings() | self.source(folder.parent))

    def source(self, home: Path) -> dict[str, str]:
        """Return keys of the run from which this run starts, a short one in `home`; {} if it starts from none."""
        extended = "extended" in self.mode
        if self.algo not in SOURCES and not extended:
            return {}
        run = RunDirectory(home / "source")
        if not run.config.exists():
            algo = self.algo if extended else SOURCES[self.algo]
            mode = "callbacks" if "callbacks" in self.mode else "in-process"
            keys = Case(self.env_id, mode, algo).settings() | {"total_steps": 192}
            trainer = RunTrainer(prepare(run.path, self.env_id, **keys))
            assert trainer.advance(lambda facts: None).policy_steps == 192
            trainer.save(call=False)
            trainer.close()
        path = str(run.checkpoints / "192")
        if extended:
            return {"checkpoint__extend_from": path}
        return {"init_from": path, "buffer__load_from": path}

    def command(self, run: RunDirectory) -> list[str]:
        """Return the command that starts or resumes the run."""
        if "flow" not in self.mode:
            return shepherd("stage", "train", str(run.path))
        if run.config.exists():
            return shepherd("resume", str(run.path))
        return shepherd("train", *self.overrides(run.path))

    def overrides(self, folder: Path) -> list[str]:
        """Return the run as overrides."""
        keys = SMALL | {"env.id": self.env_id} | {k.replace("__", "."): v for k, v in self.settings().items()}
        keys["algo.total_steps"] = keys.pop("total_steps")
        words = [f"{key}={str(value).lower() if isinstance(value, bool) else value}" for key, value in keys.items()]
        return ["exp=ppo", *words, f"run_dir={folder}"]


MODES = ("in-process", "subprocess", "compiled", "two ranks")
CASES = tuple(Case(env_id, mode) for mode in MODES[:3] for env_id in ENVIRONMENTS)
CASES += (Case("CartPole-v1", "two ranks"), Case("CartPole-v1", "compiled, two ranks"))
OTHERS = {
    "a2c": "CartPole-v1",
    "ppo_recurrent": "CartPole-v1",
    "dreamer_v1": "Pendulum-v1",
    "dreamer_v2": "Pendulum-v1",
    "dreamer_v3": "CartPole-v1",
    "dreamer_v3_5": "CartPole-v1",
    "p2e_dv1_exploration": "Pendulum-v1",
    "p2e_dv2_exploration": "CartPole-v1",
    "p2e_dv3_exploration": "Pendulum-v1",
    "p2e_dv3_5_exploration": "CartPole-v1",
    "p2e_dv1_finetuning": "Pendulum-v1",
    "p2e_dv2_finetuning": "CartPole-v1",
    "p2e_dv3_finetuning": "Pendulum-v1",
    "p2e_dv3_5_finetuning": "CartPole-v1",
    "sac_ae": "known/Dot-v0",
    "sac": "Pendulum-v1",
    "droq": "Pendulum-v1",
    "crossq": "Pendulum-v1",
    "simba": "Pendulum-v1",
    "world": "discrete_dummy",
    "reinforce": "CartPole-v1",
}
CASES += tuple(Case(env_id, mode, algo) for algo, env_id in OTHERS.items() for mode in MODES)
CASES += tuple(Case(env_id, "compiled, two ranks", algo) for algo, env_id in OTHERS.items())
CASES += tuple(Case("Corridor", mode) for mode in MODES)
SUITES = ("MiniGrid-MemoryS7-v0", "ALE/Breakout-v5", "crafter_reward", "cartpole_balance")
CASES += tuple(Case(env_id, mode) for mode in MODES[:2] for env_id in (*SUITES, "doapp"))
CASES += tuple(Case("batched/Pendulum-v1", "in-process", algo) for algo in ("sac", "dreamer_v3", "ppo_recurrent"))
CASES += tuple(Case("Trading", "in-process", algo) for algo in ("ppo", "a2c", "ppo_recurrent"))
CASES += (Case("CartPole-v1", "native"), Case("CartPole-v1", "flow"), Case("LunarLander-v3", "flow"))
CASES += (Case("CartPole-v1", "extended"), Case("Pendulum-v1", "extended", "sac"))
CASES += (Case("CartPole-v1", "callbacks"), Case("Pendulum-v1", "extended, callbacks", "sac"))
ON_GPU = (
    Case("CartPole-v1", "gpu"),
    Case("CartPole-v1", "gpu, compiled"),
    Case("Pendulum-v1", "gpu, compiled", "sac"),
    Case("CartPole-v1", "gpu, compiled", "dreamer_v3"),
)


def ordered(case: Case) -> int:
    """Return a number for a case, as a seed."""
    return [*CASES, *ON_GPU].index(case)
