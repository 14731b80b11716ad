"""Words of `make up`, read back by others."""

from __future__ import annotations

import subprocess

from flows.workers.up import _gather


def test_a_shell_reads_the_short_list_of_deployments_as_the_long_one() -> None:
    kinds = ("train", "sweep")
    names = [f"{kind}-{a}/{of}" for a in ("ppo", "sac_ae") for kind in kinds for of in ("default", "gpu")]
    names += ["compare/default", "reproduce/default"]
    for ending in ("/default", "/gpu"):
        short = _gather(names, ending)
        said = subprocess.run(["bash", "-c", f"echo {short.replace(', ', ' ')}"], capture_output=True, text=True).stdout
        assert sorted(said.split()) == sorted(name for name in names if name.endswith(ending))
    assert _gather(["compare/default"], "/default") == "compare/default"
