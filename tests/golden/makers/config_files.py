"""Write the resolved config files of SheepRL 0.8.4's Dreamers for test_dreamer_files.py.

python3.11 -m venv /tmp/oracle
/tmp/oracle/bin/pip install torch==2.13.0 sheeprl==0.8.4
/tmp/oracle/bin/python -m tests.golden.make_dreamer_files

dreamer_files.json          for every `exp` of SheepRL: dotted key -> value, of all groups but Hydra's own
"""

from __future__ import annotations

import json
from importlib import resources
from pathlib import Path
from typing import Any

import hydra
from omegaconf import OmegaConf

HERE = Path(__file__).parent
# These values depend on time and machine: names of runs, a tracking server.
OF_THE_MOMENT = ("hydra", "exp_name", "run_name", "root_dir", "log_root")


def leaves(exp: str, *words: str) -> dict[str, Any]:
    """Return the dotted keys of an `exp` with further overrides, resolved."""
    with hydra.initialize_config_module("sheeprl.configs", version_base="1.3"):
        composed = hydra.compose("config", [f"exp={exp}", *words])
    tree = OmegaConf.to_container(composed, resolve=False)
    for key in OF_THE_MOMENT:
        tree.pop(key, None)
    tree["metric"].pop("logger", None)
    tree["model_manager"] = {"disabled": tree["model_manager"]["disabled"]}  # names contain the time
    flat: dict[str, Any] = {}

    def walk(value: Any, place: str) -> None:
        if isinstance(value, dict) and value:
            for key, part in value.items():
                walk(part, f"{place} {key}" if place else str(key))  # names of metrics contain dots and slashes
        else:
            flat[place] = value

    walk(OmegaConf.to_container(OmegaConf.create(tree), resolve=True, throw_on_missing=False), "")
    return flat


def main() -> None:
    folder = resources.files("sheeprl.configs") / "exp"
    names = sorted(
        p.name.removesuffix(".yaml")
        for p in folder.iterdir()
        if p.name.startswith(("dreamer_v1", "dreamer_v2", "dreamer_v3"))
    )
    composed = {name: leaves(name) for name in names if "v3_5" not in name}
    rows = [f"{json.dumps(name)}: {json.dumps(values, sort_keys=True)}" for name, values in composed.items()]
    (HERE / "dreamer_files.json").write_text("{\n" + ",\n".join(rows) + "\n}\n")


if __name__ == "__main__":
    main()
