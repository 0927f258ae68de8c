"""What each rank of a launcher runs: perhaps the runner's import, then one line with the time of the first statement of user code."""

import sys

if "--runner" in sys.argv:
    import modal._container_entrypoint  # noqa: F401

import os
import time

os.write(1, b"%.6f\n" % time.monotonic())       # CLOCK_MONOTONIC is one clock for all processes of a machine; one write is one line
