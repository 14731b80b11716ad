"""Repairs of Prefect: code that this project needs only because of faults in Prefect 3.8.

| fault of Prefect | issue | repair |
|---|---|---|
| a worker ends if the server is away for some minutes | – | `worker`: `survive_outages` |
| after an outage, a worker does not look for cancelled flow runs | 18840 | `worker._check_for_cancelled_flow_runs` |
| a worker with a limit ends if a killed flow run is retried at once | 10632, 16806 | `worker`: its own count of slots |
| a worker reports a killed flow run twice; the second report ends a retry | – | `worker.RepairedWorker.run` |
| flow runs that a killed worker had claimed stay pending | 17415 | `lost_runs.reschedule` |
| flow runs of a lost machine stay running; the automation for them fails | 16746, 21932 | `lost_runs.last_heartbeats` |
| `concurrency()` hides its lease, so a killed process blocks the next one | – | `leases` |
| `concurrency()` does not acquire its slot again after its lease was lost in an outage | 19068 | `leases` |
| the recorder of task runs truncates its interval to whole seconds | – | `flows.settings.configure_environment` |

The numbers are issues of github.com/PrefectHQ/prefect. `tests/flows/prefect_repairs/test_prefect_repairs.py` has a
test of each fault, which fails as soon as the installed Prefect does not have the fault any more. The repair can then
be deleted.
The test for `lost_runs` fails if Prefect's server has a new service, which may do the same.
"""

from __future__ import annotations

from importlib.metadata import version

TRIED = ("3.8.8",)  # versions of Prefect with which the repairs and their tests were run


def describe_untried_version() -> str:
    """Return a warning if the repairs were not tried with the installed version of Prefect; "" if they were."""
    installed = version("prefect")
    if installed in TRIED:
        return ""
    return (
        f"Prefect {installed} is installed, but this project's repairs of Prefect were tried with {', '.join(TRIED)} "
        f"only; install prefect=={TRIED[-1]} if flow runs are lost."
    )
