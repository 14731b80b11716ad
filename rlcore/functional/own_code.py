"""Errors of a user's network, action distribution or optimizer, as messages that name the config key."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from rlcore.errors import UserError
from rlcore.user_code import spell_error, user_code


@contextmanager
def explaining(place: str, what: str, fix: str) -> Iterator[None]:
    """Return a context manager that converts errors of a user's code to a `UserError`.

    While memory is counted, torch's default device is "meta". Code that reads values of tensors fails only then, so its
    errors are not converted.

    Args:
        place: config key and value that select the code, as `algo.model=package.module:Class`.
        what: what failed.
        fix: what the user can do.

    Yields:
        Nothing.

    Raises:
        UserError: The code raised an error. The message has the form `<place>: <what> (<error>); <fix>`.
    """
    try:
        with user_code():
            yield
    except UserError:
        raise
    except Exception as error:
        if torch.get_default_device().type == "meta":
            raise
        raise UserError(f"{place}: {what} ({spell_error(error)}); {fix}") from error
