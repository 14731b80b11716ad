"""The form in which an environment's reset and step answer: Gymnasium's, or another one that is told in a sentence."""

from __future__ import annotations

from typing import Any

import gymnasium

EXPECTED = {
    "reset": "(observation, info)",
    "step": "(observation, reward, terminated, truncated, info)",
}
COMPATIBLE = (
    "return that, or put a class of the old gym package into shimmy.GymV21CompatibilityV0 "
    "(pip install 'shimmy[gym-v21]')"
)


def explain_form(env: gymnasium.Env, call: str, error: BaseException, action: Any = None) -> str:
    """Return what reset or step returned, if it has another form than Gymnasium's; "" otherwise.

    The bare environment is called again for it, since wrappers around it hide what it returned.

    Args:
        env: the environment, whose call has failed.
        call: "reset" or "step".
        error: what it has failed with; nothing is called unless a form could be the reason.
        action: of the step.

    Returns:
        A sentence for the user.
    """
    if not isinstance(error, (TypeError, ValueError, LookupError)) or (call == "step" and "unpack" not in str(error)):
        return ""
    return describe_form(env, call, action)


def describe_form(env: gymnasium.Env, call: str, action: Any = None) -> str:
    """Return `explain_form` whatever the call has failed with."""
    try:
        given: Any = env.unwrapped.reset() if call == "reset" else env.unwrapped.step(action)
    except Exception:
        return ""
    if isinstance(given, tuple):
        fits = len(given) == (2 if call == "reset" else 5) and (call == "step" or isinstance(given[1], dict))
        what = f"{len(given)} values"
    else:
        fits, what = False, "None" if given is None else f"one {type(given).__name__} alone"
    if fits and call == "reset":
        return _explain_arguments(env)
    if fits:
        return ""
    old = " (the old Gym API)" if what.endswith("alone") or what == "4 values" else ""
    return f"{call} returned {what}{old}, but Gymnasium's {call} returns {EXPECTED[call]}; {COMPATIBLE}"


def _explain_arguments(env: gymnasium.Env) -> str:
    """Return that reset takes no seed, if that is so."""
    try:
        env.unwrapped.reset(seed=0)
    except TypeError as error:
        return f"reset takes no seed ({error}); Gymnasium's is reset(self, *, seed=None, options=None)"
    except Exception:
        return ""
    return ""
