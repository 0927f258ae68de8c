"""What a program finds inside a container: files, names, limits, signals."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from phalanx.node.oci_config import may_raise_limits
from phalanx.node.outfit import host_name
from phalanx.protocol import agent_pb2 as pb
from tests.end_to_end.inside import processes_of

from .test_output import python

on_crun = pytest.mark.parametrize("agent", [pytest.param("crun", marks=pytest.mark.root)], indirect=True)


@on_crun
def test_nothing_of_the_machine_is_visible_but_the_allow_list(agent, server, tmp_path, request):
    """Canaries in the home folder, /etc/shadow, the state folder, /tmp and /var: no container finds one."""
    word = f"canary-{os.getpid()}"
    canaries = [Path.home() / word, agent.paths.state / word, tmp_path / word, Path("/var/tmp") / word, Path("/run") / word]
    for canary in canaries:
        canary.write_text(word)
        request.addfinalizer(canary.unlink)
    places = [*map(str, canaries), "/etc/shadow", str(agent.paths.tasks_socket), "/dev/sda", "/dev/vda", "/dev/kmsg", "/dev/mem"]
    server.run(1, *python(f"""
import os
print([path for path in {places!r} if os.path.exists(path)])
found = []
for folder, folders, names in os.walk('/'):
    folders[:] = [name for name in folders if folder != '/' or name not in ('proc', 'sys')]
    found += [os.path.join(folder, name) for name in names if '{word}' in name]
print(found, sorted(os.listdir('/')), os.listdir('/root'), os.listdir('/home'))
print(open('/etc/passwd').read().count(':'), os.path.exists('/.dockerenv'))
"""))
    lines = server.finish(1).text().decode().splitlines()
    assert lines[0] == "[]"
    assert lines[1].startswith("[] ['bin', 'dev', 'etc', 'home',")
    assert lines[2] == "12 False"


@on_crun
def test_the_machines_parts_are_read_only_and_the_rest_writable(agent, server):
    read_only = ["/usr/bin/x", f"{sys.base_prefix}/x", "/usr/local/x", "/sys/x", "/proc/sys/kernel/hostname", "/run/phalanx/x"]
    writable = ["/root/x", "/tmp/x", "/var/x", "/etc/x", "/opt/x", "/dev/shm/x", "/x"]
    server.run(1, *python(f"""
import os, sys, tempfile
for path in {read_only + writable!r}:
    try:
        open(path, 'w').close()
        print(path, 'written')
    except OSError as error:
        print(path, error.strerror)
print(os.getcwd(), os.environ['HOME'], os.access('/root', os.W_OK))
"""))
    said = server.finish(1).text().decode()
    for path in writable:
        assert f"{path} written\n" in said
    assert said.count("Read-only file system") == 6
    assert "/root /root True" in said


@on_crun
def test_site_packages_of_the_machine_are_not_part_of_the_image(agent, server):
    server.run(1, *python(
        "import pip, pkgutil; print(sorted(m.name for m in pkgutil.iter_modules() if '-packages' in (m.module_finder.path or '')))"))
    assert server.finish(1).text() == b"['pip']\n"


@on_crun
def test_the_interpreter_is_whole(agent, server):
    server.run(1, *python(
        "import ssl, sqlite3, ctypes, lzma, sys; print(sys.prefix, ssl.create_default_context().cert_store_stats()['x509'] > 0)"))
    assert server.finish(1).text().decode() == f"{sys.base_prefix} True\n"
    server.run(2, "/bin/sh", "-c", "python --version && python3 --version")
    assert server.finish(2).text().count(b"Python 3") == 2


@on_crun
def test_limits_inside(agent, server):
    """Half of the memory limit in /dev/shm, memlock and open files as far as this machine's own hard limits allow."""
    server.run(1, "/bin/sh", "-c", "ulimit -l; ulimit -Sn; ulimit -Hn; df -k /dev/shm | tail -1 | awk '{print $2}'", memory_limit_mib=200)
    locked, soft, hard, shm = server.finish(1).text().decode().split()
    assert int(shm) == 100 * 1024
    own_files, own_locked = resource.getrlimit(resource.RLIMIT_NOFILE)[1], resource.getrlimit(resource.RLIMIT_MEMLOCK)[1]
    if may_raise_limits():
        assert (locked, int(soft), int(hard)) == ("unlimited", 1048576, 1048576)
    else:
        assert int(hard) == int(soft) == min(own_files, 1048576)
        assert locked == ("unlimited" if own_locked == resource.RLIM_INFINITY else str(own_locked // 1024))


@on_crun
def test_more_memory_than_the_limit_is_told_as_such_with_limit_and_peak(agent, server):
    server.run(1, *python("print('allocating'); x = bytearray(300 << 20)"), memory_limit_mib=64)
    ended = server.finish(1).exited[0]
    assert (ended.signal, ended.oom_killed) == (9, True)
    assert ended.memory_limit_mib == 64
    assert 60 <= ended.memory_peak_mib <= 64


@on_crun
def test_what_root_in_a_container_may_not(agent, server):
    """No raw packets, no mounts, no device nodes, no change of its own addresses, no way past its PID namespace."""
    server.run(1, *python("""
import os, socket, subprocess
def tried(name, call):
    try:
        call()
        print(name, 'works')
    except OSError as error:
        print(name, error.strerror)
tried('raw', lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW))
tried('mknod', lambda: os.mknod('/root/disk', 0o60600, os.makedev(254, 0)))
tried('chroot', lambda: os.chroot('/'))
for command in ('mount -t tmpfs tmpfs /mnt', 'ip addr add 10.0.0.1/8 dev eth0', 'ip link set eth0 down'):
    print(command.split()[0], subprocess.run(command.split(), capture_output=True).returncode != 0)
print(len([name for name in os.listdir('/proc') if name.isdigit()]) < 5)
"""))
    assert server.finish(1).text().decode().splitlines() == [
        "raw Operation not permitted", "mknod Operation not permitted", "chroot works", "mount True", "ip True", "ip True", "True"]


@pytest.mark.root
@pytest.mark.parametrize("agent", ["runc"], indirect=True)
def test_runc_serves_as_crun_does(agent, server):
    assert server.registers[0].nodes[0].runtime == "runc"
    server.run(1, "/bin/sh", "-c", "echo hello; exit 3")
    assert server.finish(1).exited[0].code == 3
    server.run(2, *python("x = bytearray(300 << 20)"), memory_limit_mib=64)
    assert server.finish(2).exited[0].oom_killed
    seen = server.run(3, "/no/such/program")
    assert "/no/such/program" in seen.exited[0].sentence
    server.finish(3)


def test_plain_processes_are_watched_for_memory(agent, server):
    code = "import time\nx = bytearray(300 << 20)\nfor i in range(0, len(x), 4096): x[i] = 1\ntime.sleep(1000)"
    server.run(1, *python(code), memory_limit_mib=64)
    ended = server.finish(1).exited[0]
    assert (ended.signal, ended.oom_killed, ended.memory_limit_mib) == (9, True, 64)


def test_sigkill_is_not_called_out_of_memory(agent, server):
    server.run(1, "/bin/sh", "-c", "kill -9 $$")
    ended = server.finish(1).exited[0]
    assert (ended.code, ended.signal, ended.oom_killed) == (0, 9, False)
    server.run(2, "/bin/sh", "-c", "exit 137")
    ended = server.finish(2).exited[0]
    assert (ended.code, ended.signal, ended.oom_killed) == (137, 0, False)


SAVES_AT_INTERRUPT = """import time
try:
    print("up")
    time.sleep(1000)
except KeyboardInterrupt:
    time.sleep(0.3)
    print("saved")"""

SAVES_AT_SIGTERM = """import signal, sys, time
def save(*_):
    time.sleep(0.3)
    print("saved")
    sys.exit()
signal.signal(15, save)
print("up")
time.sleep(1000)"""


@pytest.mark.parametrize("rest", ["", "; true"])
def test_the_signal_reaches_python_behind_sh(agent, server, rest):
    """`sh -c "python t.py"`: Python gets it, and what it writes within the grace exists."""
    server.run(1, "/bin/sh", "-c", f"{python('')[0]} -uc '{SAVES_AT_INTERRUPT}'{rest}")
    server.wait(1, 0, lambda seen: b"up\n" in seen.text())
    server.stop(1, signal=2)
    assert server.finish(1).text() == b"up\nsaved\n"


def test_sigterm_reaches_a_child_that_outlives_its_shell(agent, server):
    server.run(1, "/bin/sh", "-c", f"{python('')[0]} -uc '{SAVES_AT_SIGTERM}'; true")
    server.wait(1, 0, lambda seen: b"up\n" in seen.text())
    server.stop(1, signal=15)
    seen = server.finish(1)
    assert seen.text() == b"up\nsaved\n"
    assert seen.exited[0].signal == 15


def test_one_that_ignores_the_interrupt_is_killed_after_the_grace(agent, server):
    server.run(1, *python("import signal, time\nsignal.signal(2, signal.SIG_IGN)\nprint('up')\ntime.sleep(1000)"))
    server.wait(1, 0, lambda seen: b"up" in seen.text())
    server.stop(1, signal=2, grace_ms=300)
    assert server.finish(1).exited[0].signal == 9


def test_containers_of_an_agent_that_is_asked_to_go_have_their_functions_grace(agent, server):
    """The agent says how long that is, interrupts them, and goes when the last has ended, which here the test says."""
    server.run(1, *python("""
import os, signal, time
signal.signal(signal.SIGUSR1, lambda *_: os._exit(0))
signal.signal(signal.SIGINT, lambda *_: print('interrupted, saves', flush=True))
print('begins', flush=True)
while True: time.sleep(100)
"""), grace_ms=600_000)
    server.wait(1, 0, lambda seen: b"begins\n" in seen.text())
    agent.process.send_signal(signal.SIGTERM)
    spool = agent.paths.node / "containers/1-0/spool"
    server.until(lambda: any(b"interrupted, saves" in file.read_bytes() for file in spool.iterdir()))
    assert agent.paths.leaving.read_text() == "600000"
    assert agent.process.poll() is None
    for pid in processes_of("ta-1-0"):
        os.kill(pid, signal.SIGUSR1)
    assert agent.process.wait(30) == 0
    agent.process = None
    assert not agent.paths.agents_run.exists()


def test_the_first_process_reaps(agent, server):
    server.run(1, *python("""
import os, time, glob
for _ in range(20):
    if os.fork() == 0:
        if os.fork() == 0:
            time.sleep(0.01)
        os._exit(0)
    os.wait()
deadline = time.time() + 10
def zombies():
    count = 0
    for path in glob.glob('/proc/[0-9]*/stat'):
        try:
            fields = open(path).read().rpartition(')')[2].split()
        except OSError:
            continue
        count += fields[0] == 'Z' and int(fields[2]) == os.getpgid(0)
    return count
while zombies() and time.time() < deadline:
    time.sleep(0.02)
print(zombies())
"""))
    assert server.finish(1).text() == b"0\n"


def test_the_environment_of_the_runner(agent, server):
    server.run(1, *python("""
import os, socket
for name in ('MODAL_IS_REMOTE', 'MODAL_TASK_ID', 'MODAL_DISABLE_API_PROXY', 'LANG', 'MINE'):
    print(name, os.environ.get(name))
print(open(os.environ['MODAL_CONTAINER_ARGUMENTS_PATH'], 'rb').read())
print([path.rsplit('/', 1)[1] for path in os.environ['PYTHONPATH'].split(':')], os.getcwd() == os.environ['HOME'])
with socket.socket(socket.AF_UNIX) as api:
    api.connect(os.environ['MODAL_SERVER_URL'].removeprefix('unix://'))
    api.sendall(b'ping')
    print(api.recv(100))
"""), environment={"MINE": "1", "LANG": "de"}, container_arguments=b"\x01\x02")
    assert server.finish(1).text().decode().splitlines() == [
        "MODAL_IS_REMOTE 1", "MODAL_TASK_ID ta-1-0", "MODAL_DISABLE_API_PROXY 1", "LANG de", "MINE 1", "b'\\x01\\x02'",
        "['root', 'pkg', 'deps'] True", "b'ping'"]
    assert server.preambles == ["PHALANX/1 task ta-1-0 1 sesame"]


def test_the_api_socket_waits_for_a_server_that_is_away(agent, server):
    """Connections break with the server; a new one is accepted at once and answered when it is back."""
    server.run(1, *python("""
import os, socket
def connect():
    api = socket.socket(socket.AF_UNIX)
    api.connect(os.environ['MODAL_SERVER_URL'].removeprefix('unix://'))
    api.sendall(b'ping')
    return api
api = connect()
print(api.recv(4))
print(api.recv(4))          # until the server breaks it
api = connect()
print('connected')
print(api.recv(4))
"""))
    server.wait(1, 0, lambda seen: seen.text() == b"b'ping'\n")
    server.down()
    server.up()
    assert server.finish(1).text() == b"b'ping'\nb''\nconnected\nb'ping'\n"


def test_http_reaches_the_control_plane_over_tcp(agent, server):
    """Blobs have TCP URLs; the address is told with Prepared, and the same container prepared again has the same one."""
    host, _, port = server.prepare(1).prepared[0].http_address.rpartition(":")
    server.stop(1)
    server.finish(1)
    server.containers.clear()
    server.run(1, *python(
        f"import socket; s = socket.create_connection(({host!r}, {port})); s.sendall(b'GET /'); print(s.recv(100))"))
    assert server.finish(1).text() == b"b'GET /'\n"
    assert server.preambles == ["PHALANX/1 task ta-1-0 1 sesame"]


@pytest.mark.root
@pytest.mark.parametrize("agent", ["process"], indirect=True)
def test_another_user_may_not_use_a_containers_http_address(agent, server, somebody):
    """Plain processes share the machine's loopback with everybody on it."""
    host, _, port = server.prepare(1).prepared[0].http_address.rpartition(":")
    code = f"import socket; s = socket.create_connection(({host!r}, {port})); s.sendall(b'GET /'); print(s.recv(100))"
    assert b"GET" not in subprocess.run([*somebody, "-c", code], capture_output=True).stdout
    assert subprocess.run([sys.executable, "-c", code], capture_output=True).stdout == b"b'GET /'\n"
    server.stop(1)
    server.finish(1)


def test_layers_are_fetched_once_and_imported_from_bytecode(agent, server):
    server.layers["L1"] = [("/pkg/tool/__init__.py", b"WHERE, CACHED = __file__, __cached__\n"), ("/pkg/big", b"x" * 3_000_000)]
    server.layers["L2"] = [("/root/main.py", b"""
import os, tool
print(tool.WHERE, os.path.exists(tool.CACHED), os.path.getsize(tool.WHERE.replace("tool/__init__.py", "big")))
"""), ("/root/sub/data.txt", b"data")]
    code = "import main; print(open('sub/data.txt').read()); open('sub/data.txt', 'w').write('changed')"
    for assignment in (1, 2):
        server.run(assignment, *python(code), layer_ids=["L1", "L2"])
        where, cached, size, data = server.finish(assignment).text().split()
        assert where.endswith(b"/pkg/tool/__init__.py")
        assert (cached, size, data) == (b"True", b"3000000", b"data")
    assert sorted(server.layer_requests) == ["L1", "L2"]


def test_a_server_that_goes_away_while_a_layer_is_fetched_is_waited_for(agent, server):
    server.layers["L1"] = [("/root/x.txt", b"here")]
    server.holding_layers = True
    server.send(prepare=pb.Prepare(
        assignment=1, task_id="ta-1-0", node_id="node-0", function_name="f", layer_ids=["L1"], command=["/bin/cat", "x.txt"]))
    server.until(lambda: server.layer_requests == ["L1"], agent.log)
    server.down()
    server.holding_layers = False
    server.up()
    prepared = server.wait(1, 0, lambda seen: bool(seen.prepared)).prepared[0]
    assert not prepared.HasField("refusal"), prepared
    server.send(start=pb.Start(assignment=1))
    assert server.finish(1).text() == b"here"


@on_crun
def test_a_layer_may_hold_files_below_the_machines_parts(agent, server):
    server.layers["L1"] = [("/usr/local/share/mine/x.txt", b"mine"), ("/etc/mine.conf", b"conf")]
    server.run(1, "/bin/sh", "-c", "cat /usr/local/share/mine/x.txt /etc/mine.conf; ls /usr/bin/env", layer_ids=["L1"])
    assert server.finish(1).text() == b"mineconf/usr/bin/env\n"


def test_a_program_may_write_over_its_own_files_and_import_them(agent, server):
    server.layers["L1"] = [("/root/mod.py", b"V = 1\n")]
    server.run(1, *python("open('mod.py', 'w').write('V = 2'); import mod; print(mod.V)"), layer_ids=["L1"])
    assert server.finish(1).text() == b"2\n"


def test_a_layer_that_leads_out_of_the_container_is_refused(agent, server):
    server.layers["L1"] = [("/root/../../etc/evil", b"")]
    seen = server.prepare(1, layer_ids=["L1"])
    assert "/root/../../etc/evil" in seen.prepared[0].refusal.sentence


@pytest.mark.parametrize("function", ["train", "x" * 200, "münchen_straße.λ", "日本語", "A_b.C*", ""])
def test_host_names(function):
    names = {host_name(function, assignment, rank) for assignment in (1, 123456789012) for rank in (0, 1, 63)}
    assert len(names) == 6
    for name in names:
        assert len(name) <= 63
        assert all(letter in "abcdefghijklmnopqrstuvwxyz0123456789-" for letter in name)
        assert name.strip("-") == name
