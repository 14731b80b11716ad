"""Detection of environments that do not follow the Gymnasium API, for example those of the older Gym API."""

from __future__ import annotations

from typing import Any

import gymnasium

EXPECTED = {
    "reset": "(observation, info)",
    "step": "(observation, reward, terminated, truncated, info)",
}
COMPATIBLE = (
    "return these values, or wrap a class of the old gym package in shimmy.GymV21CompatibilityV0 "
    "(pip install 'shimmy[gym-v21]')"
)


def explain_form(env: gymnasium.Env, call: str, error: BaseException, action: Any = None) -> str:
    """Explain why a call of an environment failed, if the environment does not follow the Gymnasium API.

    Gymnasium specifies the tuples that `reset` and `step` return. If a wrong tuple can be the cause of `error`, the
    method of the unwrapped environment is called once more to get the tuple, because the wrappers hide it.

    Args:
        env: the environment.
        call: name of the failed method, "reset" or "step".
        error: exception of the failed call.
        action: action of the step.

    Returns:
        An explanation for the user; "" if there is another cause.
    """
    if not isinstance(error, (TypeError, ValueError, LookupError)) or (call == "step" and "unpack" not in str(error)):
        return ""
    return describe_form(env, call, action)


def describe_form(env: gymnasium.Env, call: str, action: Any = None) -> str:
    """Call `reset` or `step` of the unwrapped environment again, and describe the return value if it is wrong.

    Return "" if the return value has the form that Gymnasium specifies.
    """
    try:
        given: Any = env.unwrapped.reset() if call == "reset" else env.unwrapped.step(action)
    except Exception:
        return ""
    if isinstance(given, tuple):
        fits = len(given) == (2 if call == "reset" else 5) and (call == "step" or isinstance(given[1], dict))
        what = f"{len(given)} values"
    else:
        fits, what = False, "None" if given is None else f"only one {type(given).__name__}"
    if fits and call == "reset":
        return _explain_arguments(env)
    if fits:
        return ""
    old = " (the old Gym API)" if what.startswith("only") or what == "4 values" else ""
    return f"{call} returned {what}{old}, but Gymnasium's {call} returns {EXPECTED[call]}; {COMPATIBLE}"


def _explain_arguments(env: gymnasium.Env) -> str:
    """Return an explanation if the environment's `reset` does not accept a seed; otherwise return ""."""
    try:
        env.unwrapped.reset(seed=0)
    except TypeError as error:
        return f"reset does not accept a seed ({error}); declare it as reset(self, *, seed=None, options=None)"
    except Exception:
        return ""
    return ""
