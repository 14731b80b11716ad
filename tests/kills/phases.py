"""Where a process was when it was killed, read from the stacks that `watched/sitecustomize.py` makes it write."""

from __future__ import annotations

import re
from collections.abc import Mapping

FRAME = re.compile(r'File "(?P<file>[^"]+)", line \d+ in (?P<function>\S+)')
# The innermost frame of ours that names a phase decides; "" = any function of that file.
PLACES = (
    ("rlcore/run/checkpoint.py", "save", "checkpoint"),
    ("rlcore/run/checkpoint.py", "prune", "checkpoint"),
    ("rlcore/run/session.py", "save", "checkpoint"),
    ("rlcore/run/evaluate.py", "", "evaluation"),
    ("rlcore/run/evaluation.py", "", "evaluation"),
    ("rlcore/run/judge.py", "", "evaluation"),
    ("rlcore/run/video.py", "", "evaluation"),
    ("rlcore/run/random_agent.py", "", "collect"),
    ("rlcore/run/session.py", "_continue", "restore"),
    ("rlcore/run/session.py", "_account", "log"),
    ("rlcore/run/session.py", "__init__", "build"),
    ("rlcore/run/collect.py", "collect", "rollout"),
    ("rlcore/data/buffers.py", "", "update"),
    ("rlcore/algorithms/ppo.py", "update", "update"),
    ("flows/stages/register_model.py", "", "registration"),
    ("flows/registry.py", "", "registration"),
    ("flows/stages/make_env.py", "", "make-env"),
    ("flows/stages/collect.py", "", "collect"),
    ("flows/stages/summary.py", "", "summary"),
    ("flows/report.py", "", "summary"),
    ("flows/background.py", "", "mirror"),
    ("flows/tracking.py", "", "mirror"),
    ("flows/store.py", "", "creation"),
    ("flows/config.py", "", "creation"),
    ("flows/ephemeral.py", "", "start"),
    ("rlcore/run/trainer.py", "serve", "between"),
    ("flows/stages/train.py", "_until", "start"),
)


def phase_of(stack: str) -> str:
    """What a process's main thread did: "import" while modules are loaded, "start" when nothing says more."""
    main = stack.rpartition("Current thread")[2]
    frames = [(match["file"], match["function"]) for match in FRAME.finditer(main)]
    loading = next((i for i, (file, _) in enumerate(frames) if file.startswith("<frozen importlib")), None)
    for index, (file, function) in enumerate(frames):
        for path, name, phase in PLACES:
            if file.endswith(path) and name in ("", function):
                return "import" if loading is not None and loading < index else phase
    return "import" if loading is not None else "start"


def phase_of_tree(stacks: Mapping[str, str]) -> str:
    """The phase of a whole run: the trainer's if it says one, else that of the process that drives it.

    Args:
        stacks: "trainer" and "cli" -> what each wrote; one that had not come so far is absent.
    """
    trainer = phase_of(stacks["trainer"]) if stacks.get("trainer") else None
    if trainer not in (None, "between", "start"):
        return trainer
    driver = phase_of(stacks.get("cli", ""))
    return driver if driver != "start" or trainer is None else trainer
