"""Global random generators of torch, NumPy and Python, and their protection from the code of a user."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager

CUDNN = ("enabled", "benchmark", "deterministic", "allow_tf32")  # settings of torch.backends.cudnn


@contextmanager
def own_random_numbers(seed: int) -> Iterator[None]:
    """Context manager for code that may draw from the global random generators of torch, NumPy and Python.

    In the block, they start at `seed`. At its end, their earlier states are restored, and the settings of cuDNN.
    """
    import numpy as np
    import torch

    cuda = torch.cuda.is_initialized()
    states = torch.default_generator.get_state(), np.random.get_state(), random.getstate()
    of_devices = torch.cuda.get_rng_state_all() if cuda else []
    settings = {name: getattr(torch.backends.cudnn, name) for name in CUDNN}
    torch.default_generator.manual_seed(seed)
    np.random.seed(seed)
    random.seed(seed)
    if cuda:
        torch.cuda.manual_seed_all(seed)
    try:
        yield
    finally:
        torch.default_generator.set_state(states[0])
        np.random.set_state(states[1])
        random.setstate(states[2])
        if cuda:
            torch.cuda.set_rng_state_all(of_devices)
        for name, value in settings.items():
            if getattr(torch.backends.cudnn, name) != value:
                setattr(torch.backends.cudnn, name, value)
