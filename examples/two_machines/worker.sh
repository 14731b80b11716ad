#!/bin/sh
# The worker of a further machine: trains what the server hands out, with the code that was deployed there.
#
#   path/to/checkout/examples/two_machines/worker.sh [PLACES [POOL]]
#
# in a folder of this machine's own, which has the .env of the first machine; with the checkout's environment active.
set -eu
[ -f .env ] || { echo "no .env in $PWD: copy that of the first machine here" >&2; exit 2; }
set -a; . ./.env; set +a
: "${PREFECT_API_URL:?is not in .env: copy it while the servers of the first machine run}"
: "${SHEPHERD_REPOSITORY:?is not in .env: the only repository whose code this worker runs}"
: "${SHEPHERD_RUN_ROOT:?is not in .env: the folder of runs, under the same name on all machines}"
[ -w "$SHEPHERD_RUN_ROOT" ] || { echo "SHEPHERD_RUN_ROOT=$SHEPHERD_RUN_ROOT: cannot be written here; mount it" >&2; exit 2; }
checkout=$(cd "$(dirname "$0")/../.." && pwd)
export SHEPHERD_HOME="$PWD" PYTHONPATH="$checkout" PREFECT_WORKER_QUERY_SECONDS=2
export PREFECT_FLOWS_HEARTBEAT_FREQUENCY=30  # its sign of life: a machine that gives none for two minutes has crashed
# Sweeps themselves, queue `drivers`, stay on the machine of the database.
exec python -P -m flows.workers.restart flows.workers.worker \
    --pool "${2:-local}" --queue default --limit "${1:-2}" --name "worker-$(uname -n)"
