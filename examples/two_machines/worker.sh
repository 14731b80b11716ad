#!/bin/sh
# Start a worker on another machine: it runs trainings from the server's queue with the deployed code.
#
#   path/to/checkout/examples/two_machines/worker.sh [TRAININGS [POOL]]
#
# Run it in a folder of this machine that contains the .env of the first machine, with the Python environment active.
set -eu
[ -f .env ] || { echo "no .env in $PWD: copy the .env of the first machine to this folder" >&2; exit 2; }
set -a; . ./.env; set +a
: "${PREFECT_API_URL:?is not in .env: copy .env while the servers of the first machine run}"
: "${SHEPHERD_REPOSITORY:?is not in .env: set it to the repository of the code that this worker runs}"
: "${SHEPHERD_RUN_ROOT:?is not in .env: set it to the folder of runs, which has the same path on all machines}"
[ -w "$SHEPHERD_RUN_ROOT" ] || { echo "SHEPHERD_RUN_ROOT=$SHEPHERD_RUN_ROOT: is not writable; mount it" >&2; exit 2; }
checkout=$(cd "$(dirname "$0")/../.." && pwd)
export SHEPHERD_HOME="$PWD" PYTHONPATH="$checkout" PREFECT_WORKER_QUERY_SECONDS=2
export PREFECT_FLOWS_HEARTBEAT_FREQUENCY=30  # a machine without a heartbeat for two minutes counts as crashed
# Sweep drivers (queue `drivers`) run only on the machine of the database.
exec python -P -m flows.workers.restart flows.workers.worker \
    --pool "${2:-local}" --queue default --limit "${1:-2}" --name "worker-$(uname -n)"
