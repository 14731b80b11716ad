"""Command `python -m flows.tracking RUN_DIR...`: update MLflow and the other tracking backends of the given runs."""

import sys

from flows.tracking.mirror import main

raise SystemExit(main(sys.argv[1:]))
