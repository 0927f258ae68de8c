"""phalanx run: the stock client, a control plane, the program's own exit code."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from phalanx.cli import run as run_module
from phalanx.cli.main import main
from phalanx.cli.processes import Process, process_of, read_record
from phalanx.cli.run import _wants_detached
from phalanx.cli.supervisor import record_path
from phalanx.config import Config
from phalanx.paths import Paths

PROGRAM = """
import sys
import modal

app = modal.App("program")

@app.function()
def f():
    return 0

@app.local_entrypoint()
def main(code: int = 0):
    print("returned:", f.remote())
    sys.exit(code)
"""

DRIVER = """
import functools, json, sys
from phalanx.cli import control_plane, supervisor
from phalanx.cli.main import main
stand_in = sys.argv.pop(1)

def start(paths, config, die_with_us, remove_state=False):
    commands = supervisor.command_lines(paths)
    for name in ("server", "agent"):
        commands[name] = [sys.executable, stand_in, name, str(paths.state)]
    return real(paths, config, die_with_us, remove_state, commands)

real, control_plane.start = control_plane.start, start
main()
"""


@pytest.fixture
def program(tmp_path: Path) -> Path:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    return program


def phalanx(tmp_path: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(phalanx_command(tmp_path, *arguments), capture_output=True, text=True, env=environment(tmp_path))


def phalanx_command(tmp_path: Path, *arguments: str) -> list[str]:
    """With stand-ins for server and agent."""
    driver = tmp_path / "driver.py"
    driver.write_text(DRIVER)
    return [sys.executable, str(driver), str(Path(__file__).with_name("stand_in.py")), *arguments]


def environment(tmp_path: Path) -> dict[str, str]:
    """With a folder for temporary files that we can look at afterwards."""
    (tmp_path / "tmp").mkdir(exist_ok=True)
    return os.environ | {"TMPDIR": str(tmp_path / "tmp"), "MODAL_CONFIG_PATH": str(tmp_path / "none.toml")}


@pytest.mark.parametrize("code", [0, 3])
def test_a_control_plane_of_its_own_lives_as_long_as_the_program(tmp_path: Path, program: Path, code: int) -> None:
    said = phalanx(tmp_path, "run", "--own", str(program), "--code", str(code))
    assert said.returncode == code, said.stderr
    assert "returned: 42" in said.stdout
    assert "phalanx: runtime: process (a stand-in)" in said.stderr
    assert list((tmp_path / "tmp").iterdir()) == []


def test_nothing_stays_when_the_command_itself_is_killed(tmp_path: Path, program: Path) -> None:
    program.write_text(PROGRAM.replace("f.remote()", "f.remote(), flush=True); import time; time.sleep(600"))
    command = phalanx_command(tmp_path, "run", "--own", str(program))
    running = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment(tmp_path))
    assert running.stdout is not None
    while "returned: 42" not in running.stdout.readline():
        pass
    (state,) = (tmp_path / "tmp").iterdir()
    client = client_of(running.pid)
    record = read_record(record_path(Paths(state)))
    running.kill()
    running.wait()
    running.stdout.close()
    assert record["supervisor"].wait(60) and client.wait(60)
    assert not any(process.is_alive() for process in record.values())
    assert not state.exists() and not Paths(state).run.exists()


def test_a_scripts_background_job_hears_sigterm_and_its_program_says_good_bye(tmp_path: Path, program: Path) -> None:
    """Such a job begins with SIGINT ignored, and so would the client, which SIGTERM reaches as Ctrl-C."""
    program.write_text(PROGRAM.replace("    print(", """    try:
        print(f.remote(), flush=True)
        import time
        time.sleep(600)
    finally:
        print("saves", flush=True)
    print("""))
    running = subprocess.Popen(phalanx_command(tmp_path, "run", "--own", str(program)), stdout=subprocess.PIPE, text=True,
                               env=environment(tmp_path), preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN))
    try:
        assert running.stdout is not None
        while "42" not in running.stdout.readline():
            pass
        running.terminate()
        said, _ = running.communicate(timeout=60)
    finally:
        running.kill()      # its supervisor and the client end with it
    assert "saves" in said
    assert list((tmp_path / "tmp").iterdir()) == []


def client_of(pid: int) -> Process:
    """The child of phalanx run that isn't the supervisor."""
    children = [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    (client,) = (child for child in children if b"modal" in Path(f"/proc/{child}/cmdline").read_bytes().split(b"\0"))
    found = process_of(client)
    assert found is not None
    return found


def test_the_clients_flags_pass_through(tmp_path: Path, program: Path) -> None:
    said = phalanx(tmp_path, "run", "--own", "-q", f"{program}::main")
    assert said.stdout == "returned: 42\n"


def test_the_running_control_plane_is_used(tmp_path: Path, paths: Paths, config: Config, program: Path) -> None:
    assert phalanx(tmp_path, "up", "-d", "--state", str(paths.state), "--listen", config.listen).returncode == 0
    said = phalanx(tmp_path, "run", "--state", str(paths.state), str(program))
    assert "returned: 42" in said.stdout
    assert "phalanx: runtime" not in said.stderr
    assert json.loads(phalanx(tmp_path, "status", "--json", "--state", str(paths.state)).stdout)["nodes"]
    phalanx(tmp_path, "down", "--state", str(paths.state))


def test_a_detached_app_needs_a_control_plane_that_stays(paths: Paths, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_module, "_own_control_plane", None)
    said: Any = CliRunner().invoke(main, ["run", "--state", str(paths.state), "-d", "train.py"])
    assert said.exit_code == 1 and "`phalanx up -d` first" in said.output


@pytest.mark.parametrize(("arguments", "detached"), [
    (("-d", "train.py"), True), (("-q", "--detach", "train.py"), True), (("-w", "out", "-d", "train.py"), True),
    (("train.py", "-d"), False), (("-w", "-d", "train.py"), False)])
def test_only_the_clients_own_flag_detaches(arguments: tuple[str, ...], detached: bool) -> None:
    assert _wants_detached(arguments) is detached
