"""Protocols of `benchmarks/peers.py`: task, equal settings for all libraries, and the speed ratio that we aim for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Protocol:
    about: str
    env_id: str
    num_envs: int
    steps: int
    ours: tuple[str, ...]
    sb3: tuple[str, dict[str, Any]] | None
    sheeprl: tuple[str, ...]
    vector: str = "serial"
    goal: str = ""
    normalize: bool = False  # observations and rewards
    evaluated: bool = True  # greedy returns are reported
    without_simulator: bool = False  # the simulator's time is measured and excluded from the ratios
    longer: int = 0  # steps of a second, longer run; 0 = no second run. Its additional time is reported per unit.
    more: int = 1  # additional units of the longer run, for example gradient steps
    unit: str = ""  # name of the unit

    def words(self) -> list[str]:
        """Return the override `algo.total_steps=...` if the protocol has a second run with more steps, otherwise [].

        Without a second run, the number of steps is one of the overrides in `ours` and `sheeprl`.
        """
        return [f"algo.total_steps={self.steps}"] if self.longer else []


PPO_64 = {"n_steps": 32, "batch_size": 256, "n_epochs": 4, "learning_rate": 1e-3, "vf_coef": 0.5, "max_grad_norm": 0.5}
WIDE = (
    "env.num_envs=64",
    "algo.rollout_steps=32",
    "algo.per_rank_batch_size=256",
    "algo.update_epochs=4",
    "algo.optimizer.lr=1e-3",
    # Two networks of two layers, as in Stable-Baselines3. With a shared trunk, no library learns CartPole with these
    # hyperparameters.
    "algo.encoder.mlp_layers=0",
    "algo.actor.mlp_layers=2",
    "algo.critic.mlp_layers=2",
)
QUIETLY = (
    "checkpoint.every=70000",
    "evaluation.every=70000",
    "metric.log_level=0",
    "metric.log_every=70000",
    "metric.disable_timer=true",
    "env.capture_video=false",
)
SLOW_OPTIONS = {"n_steps": 64, "batch_size": 128, "n_epochs": 4, "learning_rate": 3e-4}
PONG = ("env.num_envs=4", "algo.rollout_steps=128", "algo.per_rank_batch_size=256", "algo.update_epochs=4")
PONG_OPTIONS = {"n_steps": 128, "batch_size": 256, "n_epochs": 4, "learning_rate": 2.5e-4, "clip_range": 0.1}
SAC_OPTIONS = {"batch_size": 256, "buffer_size": 65_537, "learning_rate": 3e-4, "learning_starts": 100}
SAC_OPTIONS |= {"train_freq": 1, "gradient_steps": 1}
CROSSQ_OPTIONS = {"buffer_size": 65_537, "learning_starts": 250, "policy_kwargs": {"net_arch": [256, 256]}}
# Gradient steps of a world model start when there are sequences of 64 rows.
DREAMING = ("algo.learning_starts=128", "algo.per_rank_pretrain_steps=0", "buffer.size=4096")
V3_5 = (
    "exp=dreamer_v3_5",
    "algo=dreamer_v3_5_1M",
    "env=dummy",
    "env.num_envs=1",
    "algo.replay_ratio=1",
    *DREAMING,
)
# Networks of `dreamer_v3_benchmarks`.
P2E = (
    "exp=p2e_dv3_exploration",
    "env.num_envs=1",
    "algo.dense_units=8",
    "algo.mlp_layers=1",
    "algo.world_model.discrete_size=4",
    "algo.world_model.stochastic_size=4",
    "algo.world_model.encoder.cnn_channels_multiplier=2",
    "algo.world_model.recurrent_model.recurrent_state_size=8",
    "algo.world_model.transition_model.hidden_size=8",
    "algo.world_model.representation_model.hidden_size=8",
    "algo.replay_ratio=1",
    *DREAMING,
)
NUMBERS = ("algo.cnn_keys.encoder=[]", "algo.cnn_keys.decoder=[]", "algo.mlp_keys.encoder=[vector]")
# One gradient step per action, or none in runs of this length.
EACH, NEVER = ("algo.replay_ratio=1",), ("algo.replay_ratio=0.00002",)
PIXELS = ("algo.cnn_keys.encoder=[rgb]", "algo.mlp_keys.encoder=[]")
DECODED = ("algo.cnn_keys.decoder=[rgb]", "algo.mlp_keys.decoder=[]")
AT_ONCE = ("algo.learning_starts=16", "algo.per_rank_pretrain_steps=0", "buffer.size=4096")
BALANCE = (
    "env=dmc",
    "env.wrapper.domain_name=cartpole",
    "env.wrapper.task_name=balance",
    "env.wrapper.from_vectors=false",
)
RECURRENT_OPTIONS: dict[str, Any] = {"n_steps": 128, "batch_size": 64, "n_epochs": 10, "learning_rate": 3e-4}
# One LSTM for actor and critic, as in the other two libraries.
RECURRENT_OPTIONS["policy_kwargs"] = {
    "net_arch": [64],
    "lstm_hidden_size": 64,
    "shared_lstm": True,
    "enable_critic_lstm": False,
}
CONTRIB = {"CrossQ": "MlpPolicy", "RecurrentPPO": "MlpLstmPolicy"}  # class of sb3-contrib -> its policy
PROTOCOLS = {
    "a": Protocol(
        "PPO, CartPole-v1, 65,536 steps, 1 environment, rollout 128, minibatch 64, 10 epochs",
        "CartPole-v1",
        1,
        65_536,
        ("exp=ppo_benchmarks", "algo.compile=true"),
        ("PPO", {"n_steps": 128, "batch_size": 64, "n_epochs": 10, "learning_rate": 3e-4, "vf_coef": 0.5}),
        ("exp=ppo_benchmarks",),
        goal="a sixth of each peer's time",
    ),
    "b": Protocol(
        "PPO, CartPole-v1, 262,144 steps, 64 environments, rollout 32, minibatch 256, 4 epochs",
        "CartPole-v1",
        64,
        262_144,
        ("exp=ppo_benchmarks", *WIDE, "algo.total_steps=262144", "checkpoint.every=1000000", "algo.compile=true"),
        ("PPO", PPO_64),
        ("exp=ppo_benchmarks", *WIDE, "algo.total_steps=262144"),
        goal="a quarter of each peer's time",
    ),
    "c": Protocol(
        "A2C, CartPole-v1, 65,536 steps, 1 environment, rollout 5",
        "CartPole-v1",
        1,
        65_536,
        ("exp=a2c_benchmarks", "algo.compile=true"),
        ("A2C", {"n_steps": 5, "learning_rate": 7e-4}),
        ("exp=a2c_benchmarks",),
        goal="a sixth of each peer's time",
    ),
    "d": Protocol(
        "PPO, HalfCheetah-v5, 32,768 steps, 1 environment, rollout 2048, minibatch 64, 10 epochs, normalized",
        "HalfCheetah-v5",
        1,
        32_768,
        ("exp=ppo_mujoco", *QUIETLY, "algo.total_steps=32768", "algo.compile=true"),
        ("PPO", {"n_steps": 2048, "batch_size": 64, "n_epochs": 10, "learning_rate": 3e-4, "vf_coef": 0.5}),
        ("exp=ppo_mujoco", "algo.total_steps=32768"),
        goal="half of each peer's time, both without the simulator's time",
        normalize=True,
        without_simulator=True,
    ),
    "e": Protocol(
        "PPO, 8 subprocess environments with a step time of 1 ms, 8,192 steps (wall seconds count)",
        "Slow-v0",
        8,
        8_192,
        (
            "exp=ppo_benchmarks",
            "plugins=[benchmarks_slow]",
            "env.sync_env=false",
            "env.num_envs=8",
            "algo.rollout_steps=64",
            "algo.per_rank_batch_size=128",
            "algo.update_epochs=4",
            "algo.total_steps=8192",
        ),
        ("PPO", SLOW_OPTIONS),
        (),
        vector="subprocess",
        goal="the wall time of Stable-Baselines3",
        evaluated=False,
    ),
    "f": Protocol(
        "SAC, LunarLanderContinuous-v3, 16,384 steps, 4 environments, batch 256, one gradient step per 4 policy steps",
        "LunarLanderContinuous-v3",
        4,
        16_384,
        ("exp=sac_benchmarks", "algo.total_steps=16384", "algo.compile=true"),
        ("SAC", SAC_OPTIONS),
        ("exp=sac_benchmarks", "env.num_envs=4", "algo.total_steps=16384"),
        goal="half of each peer's time",
        evaluated=False,
    ),
    "g": Protocol(
        "CrossQ, 256 units, InvertedPendulum-v5, 4,096 steps, 1 environment, batch 256, one gradient step per step",
        "InvertedPendulum-v5",
        1,
        4_096,
        ("exp=crossq_inverted_pendulum", *QUIETLY, "algo.total_steps=4096", "algo.compile=true"),
        ("CrossQ", CROSSQ_OPTIONS),
        (),
        goal="half of each peer's time",
    ),
    "h": Protocol(
        "DroQ, LunarLanderContinuous-v3, 512 steps, 4 environments, batch 256, 20 gradient steps per policy step",
        "LunarLanderContinuous-v3",
        4,
        512,
        ("exp=droq", *QUIETLY, "algo.total_steps=512", "algo.compile=true"),
        None,
        ("exp=droq", "algo.total_steps=512", "env.num_envs=4", "buffer.memmap=False", "buffer.checkpoint=False"),
        goal="half of each peer's time",
        evaluated=False,
    ),
    "i": Protocol(
        "Recurrent PPO, CartPole-v1, 65,536 steps, 1 environment, rollout 128, LSTM of 64, 4 sequences of 16 rows per "
        "minibatch, 10 epochs",
        "CartPole-v1",
        1,
        65_536,
        ("exp=ppo_recurrent_benchmarks", "algo.compile=true"),
        ("RecurrentPPO", RECURRENT_OPTIONS),
        (
            "exp=ppo_recurrent",
            "algo.total_steps=65536",
            "env.num_envs=1",
            "algo.rollout_steps=128",
            "algo.update_epochs=10",
            "algo.per_rank_num_batches=2",
        ),
        goal="a third of each peer's time",
        evaluated=False,
    ),
    "j": Protocol(
        "PPO, PongNoFrameskip-v4 from pixels, 4 gray frames of 84 × 84, 16,384 steps, 4 environments, rollout 128, "
        "minibatch 256, 4 epochs",
        "PongNoFrameskip-v4",
        4,
        16_384,
        ("exp=ppo_atari", *QUIETLY, *PONG, "algo.total_steps=16384"),
        ("PPO", PONG_OPTIONS),
        ("exp=ppo_atari", "env.grayscale=True", *PONG, "algo.total_steps=16384"),
        vector="pixels",
        goal="half of each peer's time, both without the emulator's time",
        evaluated=False,
        without_simulator=True,
    ),
    "k": Protocol(
        "Dreamer V3, networks of `dreamer_v3_benchmarks`, pixels of 64 × 64, 16 sequences of 64 rows: a gradient step",
        "discrete_dummy",
        1,
        136,
        ("exp=dreamer_v3_benchmarks", "env=dummy", *DREAMING, *EACH, "algo.compile=true"),
        None,
        ("exp=dreamer_v3_benchmarks", "env=dummy", *DREAMING, *EACH),
        goal="0.7 of each peer's CPU time",
        evaluated=False,
        longer=160,
        more=24,
        unit="gradient step",
    ),
    "l": Protocol(
        "Dreamer V3, same networks, vector observations of CartPole: one gradient step",
        "CartPole-v1",
        1,
        168,
        ("exp=dreamer_v3_benchmarks", "env=gym", *DREAMING, *NUMBERS, *EACH, "algo.compile=true"),
        None,
        ("exp=dreamer_v3_benchmarks", "env=gym", *DREAMING, *NUMBERS, *EACH),
        goal="a third of each peer's time",
        evaluated=False,
        longer=328,
        more=160,
        unit="gradient step",
    ),
    "m": Protocol(
        "Dreamer V3, same networks, vector observations of CartPole: one action of one environment",
        "CartPole-v1",
        1,
        500,
        ("exp=dreamer_v3_benchmarks", "env=gym", *DREAMING, *NUMBERS, *NEVER, "algo.compile=true"),
        None,
        ("exp=dreamer_v3_benchmarks", "env=gym", *DREAMING, *NUMBERS, *NEVER),
        goal="a third of each peer's time",
        evaluated=False,
        longer=10_500,
        more=10_000,
        unit="action",
    ),
    "n": Protocol(
        "Dreamer V1, networks of `dreamer_v1_benchmarks`, pixels of 64 × 64, 50 sequences of 50 rows: a gradient step",
        "discrete_dummy",
        1,
        132,
        ("exp=dreamer_v1_benchmarks", "env=dummy", *DREAMING, *EACH, "algo.compile=true"),
        None,
        ("exp=dreamer_v1_benchmarks", "env=dummy", *DREAMING, *EACH),
        goal="0.7 of each peer's CPU time",
        evaluated=False,
        longer=144,
        more=12,
        unit="gradient step",
    ),
    "o": Protocol(
        "Dreamer V2, networks of `dreamer_v2_benchmarks`, pixels of 64 × 64, 16 sequences of 50 rows: a gradient step",
        "discrete_dummy",
        1,
        136,
        ("exp=dreamer_v2_benchmarks", "env=dummy", *DREAMING, *EACH, "algo.compile=true"),
        None,
        ("exp=dreamer_v2_benchmarks", "env=dummy", *DREAMING, *EACH),
        goal="0.7 of each peer's CPU time",
        evaluated=False,
        longer=160,
        more=24,
        unit="gradient step",
    ),
    "r": Protocol(
        "Dreamer V3.5, size 1M, pixels of 64 × 64, 16 sequences of 64 rows: one gradient step",
        "discrete_dummy",
        1,
        132,
        (*V3_5, *QUIETLY, "algo.compile=true"),
        None,
        V3_5,
        goal="half of each peer's CPU time",
        evaluated=False,
        longer=144,
        more=12,
        unit="gradient step",
    ),
    "s": Protocol(
        "Plan2Explore on Dreamer V3, exploration, networks of `dreamer_v3_benchmarks`, pixels of 64 × 64, 16 sequences "
        "of 64 rows: a gradient step",
        "discrete_dummy",
        1,
        136,
        (*P2E, *QUIETLY, "env=dummy", "algo.compile=true"),
        None,
        (*P2E, "env=dummy"),
        goal="0.75 of each peer's CPU time",
        evaluated=False,
        longer=160,
        more=24,
        unit="gradient step",
    ),
    "t": Protocol(
        "Plan2Explore on Dreamer V3, exploration, same networks, vector observations of CartPole: a gradient step",
        "CartPole-v1",
        1,
        168,
        (*P2E, *QUIETLY, "env=gym", *NUMBERS, "algo.compile=true"),
        None,
        (*P2E, "env=gym", *NUMBERS),
        goal="0.4 of each peer's CPU time",
        evaluated=False,
        longer=328,
        more=160,
        unit="gradient step",
    ),
    "p": Protocol(
        "SAC-AE, CarRacing-v3, 3 frames of 84 × 84, batch 128: one gradient step",
        "CarRacing-v3",
        1,
        20,
        ("exp=sac_ae", "env=gym", "env.num_envs=1", *QUIETLY, *PIXELS, *AT_ONCE, *EACH),
        None,
        ("exp=sac_ae", "env=gym", "env.num_envs=1", *PIXELS, *DECODED, *AT_ONCE, *EACH),
        goal="two thirds of each peer's CPU time",
        evaluated=False,
        longer=44,
        more=24,
        unit="gradient step",
    ),
    "q": Protocol(
        "PPO, DeepMind Control's cartpole_balance from pixels of 64 × 64, 4,096 steps, 4 environments, rollout 128, "
        "minibatch 256, 4 epochs",
        "cartpole_balance",
        4,
        4_096,
        ("exp=ppo", *BALANCE, *QUIETLY, *PIXELS, *PONG, "algo.total_steps=4096"),
        None,
        ("exp=ppo", *BALANCE, *PIXELS, *PONG, "algo.total_steps=4096"),
        goal="two thirds of each peer's CPU time, both without physics and rendering",
        evaluated=False,
        without_simulator=True,
    ),
}
