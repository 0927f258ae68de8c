"""The control plane's benchmarks still run.

Their clients speak HTTP/2 by hand, and broke once, unnoticed, when the server began to read headers strictly.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
GENERATOR = """\
cohorts:
  - className: cohort
    count: 2
    queuesSets:
    - className: cq
      count: 2
      nominalQuota: 3
      borrowingLimit: 6
      workloadsSets:
      - count: 4
        creationIntervalMs: 20
        workloads:
        - className: small
          runtimeMs: 10
          priority: 50
          request: 1
      - count: 2
        creationIntervalMs: 50
        workloads:
        - className: large
          runtimeMs: 20
          priority: 100
          request: 3
"""


def test_every_workload_of_a_generator_goes_through_the_whole_control_plane(tmp_path: Path) -> None:
    generator = tmp_path / "small-generator.yaml"
    generator.write_text(GENERATOR)

    run = subprocess.run(
        [sys.executable, str(BENCHMARKS / "kueue_control_plane.py"), str(generator)],
        capture_output=True, text=True, timeout=120, env={"PATH": "/usr/bin:/bin", "TMPDIR": str(tmp_path)}, check=False,
    )  # fmt: skip

    assert run.returncode == 0, run.stderr
    assert "small-generator.yaml: 24 workloads, 12 nodes, 4 queues, 40 ranks" in run.stdout
    assert [path.name for path in tmp_path.iterdir()] == [generator.name]       # no state, no sockets
