"""`phalanx run` as an ordinary user, with plain processes. The tests are root's, the command is not."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.end_to_end.live import PATIENCE_S, PROGRAMS, Ended
from tests.node.conftest import SOMEBODY, somebody, users_state  # noqa: F401 - fixtures
from tests.node.machine_state import traces

EXAMPLES = Path(__file__).parents[2] / "examples"
Run = Callable[..., Ended]


@pytest.fixture
def phalanx_run(somebody: tuple[str, ...], users_state: Path) -> Run:  # noqa: F811
    """`phalanx run` with a control plane of its own, below a folder that is the user's; nothing of it may be left."""
    setpriv, python = somebody[:-1], somebody[-1]

    def run(program: Path, *options: str) -> Ended:
        mine = users_state / program.name
        shutil.copy(program, mine)
        command = [*setpriv, f"HOME={users_state}", f"PHALANX_RUN_FOLDER={users_state}", "NO_COLOR=1", python, "-m", "phalanx.cli.main",
                   "run", "--own", "--runtime", "process", *options, f"{mine}"]
        done = subprocess.run(command, cwd=users_state, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=PATIENCE_S)
        return Ended(done.returncode, done.stdout, done.stderr)

    return run


def test_the_smoke_test(phalanx_run: Run, users_state: Path) -> None:  # noqa: F811
    ended = phalanx_run(EXAMPLES / "smoke_test.py", "--nodes", "2")
    assert ended.code == 0, ended
    assert {"container_rank=0 (main) world_size=2 main_addr='::1'", "container_rank=1  world_size=2 main_addr='::1'", "returned: 0"} <= set(
        ended.out.splitlines())
    assert "runtime: process" in ended.err and "network: " in ended.err, "it says which guarantees are missing"
    left = traces(users_state, users_state)
    assert not (left.processes | left.mounts | left.folders), left
    assert not [path for path in users_state.iterdir() if path.name.startswith("phalanx-run-")]


def test_clusters_and_an_exception_of_one_rank(phalanx_run: Run) -> None:
    ended = phalanx_run(PROGRAMS / "plain_processes.py", "--nodes", "2")
    assert ended.code == 0, ended
    assert ended.said == {"ranks": [0, "::1", True], "map": [1, 4, 9], "exception": ["only rank 1"]}
