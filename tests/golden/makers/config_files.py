"""Write the resolved config files of SheepRL, for the tests of tests/flows/config.

dreamer_files.json  for every `exp` of a Dreamer or of Plan2Explore: path of a key, separated by spaces -> value, of
                    all groups but Hydra's own
other_files.json    the same of PPO, A2C and SAC; and for `env`, as `env=NAME`, of exp=ppo with it
"""

from __future__ import annotations

from importlib import resources
from typing import Any

from omegaconf import OmegaConf

from tests.golden.makers.files import lines, write_text
from tests.golden.makers.sheeprl_configs import compose, flatten, resolve

# These values depend on time and machine: names of runs, a tracking server.
OF_THE_MOMENT = ("hydra", "exp_name", "run_name", "root_dir", "log_root")
EXPERIMENTS = (
    *("ppo", "ppo_atari", "ppo_benchmarks", "ppo_lunar_lander", "ppo_mujoco", "ppo_recurrent", "ppo_super_mario_bros"),
    *("a2c", "a2c_atari", "a2c_benchmarks", "a2c_mujoco", "sac", "sac_benchmarks", "droq", "sac_ae"),
)
# Without suites that are not installed.
ENVIRONMENTS = ("atari", "crafter", "diambra", "dmc", "dummy", "gym", "mujoco")


def leaves(exp: str, *words: str) -> dict[str, Any]:
    """Return the paths of an `exp` with further overrides, resolved; names of metrics contain dots and slashes."""
    tree: Any = OmegaConf.to_container(compose(exp, *words), resolve=False)
    for key in OF_THE_MOMENT:
        tree.pop(key, None)
    tree["metric"].pop("logger", None)
    tree["model_manager"] = {"disabled": tree["model_manager"]["disabled"]}  # names contain the time
    return flatten(resolve(tree), " ")


def main() -> None:
    folder = resources.files("sheeprl.configs") / "exp"
    names = sorted(path.name.removesuffix(".yaml") for path in folder.iterdir())
    versions = ("dreamer_v1", "dreamer_v2", "dreamer_v3", "p2e_")
    dreamers = {name: leaves(name) for name in names if name.startswith(versions)}
    others = {name: leaves(name) for name in EXPERIMENTS}
    others |= {f"env={name}": leaves("ppo", f"env={name}") for name in ENVIRONMENTS}
    for name, resolved in (("dreamer_files", dreamers), ("other_files", others)):
        write_text(name, lines(resolved, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
