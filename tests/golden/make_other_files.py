"""Write the resolved config files of PPO, A2C and SAC of SheepRL 0.8.4 for test_other_files.py.

python3.11 -m venv /tmp/oracle
/tmp/oracle/bin/pip install torch==2.13.0 sheeprl==0.8.4
/tmp/oracle/bin/python -m tests.golden.make_other_files

other_files.json            for every `exp` of SheepRL: dotted key -> value, of all groups but Hydra's own; for `env`,
                            as `env=NAME`, the same of exp=ppo with it
"""

from __future__ import annotations

import json

from tests.golden.make_dreamer_files import HERE, leaves

EXPERIMENTS = (
    *("ppo", "ppo_atari", "ppo_benchmarks", "ppo_lunar_lander", "ppo_mujoco", "ppo_recurrent", "ppo_super_mario_bros"),
    *("a2c", "a2c_atari", "a2c_benchmarks", "a2c_mujoco", "sac", "sac_benchmarks", "droq", "sac_ae"),
)
ENVIRONMENTS = (
    "atari",
    "crafter",
    "diambra",
    "dmc",
    "dummy",
    "gym",
    "mujoco",
)  # without suites that are not installed


def main() -> None:
    resolved = {name: leaves(name) for name in EXPERIMENTS}
    resolved |= {f"env={name}": leaves("ppo", f"env={name}") for name in ENVIRONMENTS}
    rows = [f"{json.dumps(name)}: {json.dumps(values, sort_keys=True)}" for name, values in resolved.items()]
    (HERE / "other_files.json").write_text("{\n" + ",\n".join(rows) + "\n}\n")


if __name__ == "__main__":
    main()
