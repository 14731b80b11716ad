"""`python -m flows.tracking RUN_DIR...`: bring runs to MLflow, and to their other backends, now."""

import sys

from flows.tracking.mirror import main

raise SystemExit(main(sys.argv[1:]))
