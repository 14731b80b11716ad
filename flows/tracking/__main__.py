"""Command `python -m flows.tracking RUN_DIR...`: update MLflow and the other backends of runs now."""

import sys

from flows.tracking.mirror import main

raise SystemExit(main(sys.argv[1:]))
