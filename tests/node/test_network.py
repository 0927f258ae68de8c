"""The private network: both families, TCP and UDP, names, hairpin, and the way out."""

from __future__ import annotations

import ipaddress
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from phalanx.node import programs
from phalanx.node.addresses import NoAddress, Ranges, agent_subnet, process_addresses
from phalanx.paths import Paths
from phalanx.protocol import agent_pb2 as pb

from .conftest import AgentProcess, two_nodes
from .fake_server import FakeServer
from .test_container import on_crun
from .test_output import python

# Listens on every address and port it is told to and answers; says when it is ready.
ECHO = """
import socket, threading
def tcp(family, port):
    s = socket.socket(family, socket.SOCK_STREAM)
    s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if family == socket.AF_INET6: s.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
    s.bind(('', port)); s.listen()
    def serve():
        while True:
            c, peer = s.accept(); c.sendall(peer[0].encode()); c.close()
    threading.Thread(target=serve, daemon=True).start()
def udp(family, port):
    s = socket.socket(family, socket.SOCK_DGRAM)
    if family == socket.AF_INET6: s.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
    s.bind(('', port))
    def serve():
        while True:
            _, peer = s.recvfrom(100); s.sendto(peer[0].encode(), peer)
    threading.Thread(target=serve, daemon=True).start()
for family in (socket.AF_INET, socket.AF_INET6):
    for port in (80, 29500): tcp(family, port)
    udp(family, 4791)
print('ready')
threading.Event().wait()
"""

# Says what each address answers.
ASK = """
import socket, sys
for address in ADDRESSES:
    family = socket.AF_INET6 if ':' in address else socket.AF_INET
    for port in (80, 29500):
        with socket.socket(family, socket.SOCK_STREAM) as s:
            s.settimeout(5); s.connect((address, port)); print(address, port, s.recv(100).decode())
    with socket.socket(family, socket.SOCK_DGRAM) as s:
        s.settimeout(5); s.sendto(b'x', (address, 4791)); print(address, 'udp', s.recv(100).decode())
"""


def asking(*addresses: str) -> tuple[str, ...]:
    return python(ASK.replace("ADDRESSES", repr(addresses)))


def addresses(seen) -> tuple[str, str]:
    return seen.prepared[0].ipv6, seen.prepared[0].ipv4


@two_nodes
@on_crun
def test_two_containers_reach_each_other_and_themselves(agent, server):
    """TCP and UDP, IPv6 and IPv4, any port, across virtual nodes; a container also by its own address, and by its host name."""
    first = server.run(1, *python(ECHO), rank=0)
    server.wait(1, 0, lambda seen: b"ready" in seen.text())
    targets = addresses(first)
    second = server.run(1, *asking(*targets), rank=1, node_id="node-1")
    own6, own4 = addresses(second)
    said = server.finish(1, 1).text().decode().splitlines()
    assert said == [f"{target} {port} {own6 if ':' in target else own4}" for target in targets for port in ("80", "29500", "udp")]

    own_name = "sorted({i[4][0] for i in socket.getaddrinfo(socket.gethostname(), None)})"
    server.run(2, *python(ECHO.replace("threading.Event().wait()", ASK.replace("ADDRESSES", own_name))))
    alone = server.finish(2)
    for own in addresses(alone):
        assert f"{own} 80 {own}" in alone.text().decode()
    server.stop(1, 0, signal=9)
    server.finish(1, 0)


def test_the_names_of_a_container(agent, server):
    """Its host name leads to its own addresses, `i6pn.modal.local` to its IPv6 address, on the interface eth0."""
    code = """
import socket
print(socket.gethostname())
def lookup(name, family):
    try:
        return sorted({i[4][0] for i in socket.getaddrinfo(name, None, family)})
    except socket.gaierror:
        return []
print(lookup('i6pn.modal.local', socket.AF_INET6))
own = socket.gethostname()
print(lookup(own, socket.AF_INET6), lookup(own, socket.AF_INET), [name for _, name in socket.if_nameindex()])
"""
    server.layers["L1"] = [("/root/names.py", code.encode())]
    seen = server.run(1, python("")[0], "-u", "-m", "names", layer_ids=["L1"], function_name="Train_ä" + "x" * 200, rank=1)
    ipv6, ipv4 = addresses(seen)
    name, private, *own = server.finish(1, 1).text().decode().splitlines()
    assert private == f"['{ipv6}']"
    if agent.runtime == "process":
        assert ipv6 == "::1"
        assert ipv4.startswith("127.")
        return
    assert name.startswith("train-a")
    assert len(name) <= 63
    assert own == [f"['{ipv6}'] ['{ipv4}'] ['lo', 'eth0']"]
    assert ipv6.startswith("fdaa:7e57:1:")


def test_peers_are_checked_from_inside(agent, server):
    """Prepared is enough: the network stands before anything runs. An address that nobody has is told."""
    mine = [addresses(server.prepare(1, rank)) for rank in (0, 1)]
    everything = [address for pair in mine for address in pair]
    server.send(check_peers=pb.CheckPeers(assignment=1, rank=0, addresses=everything))
    assert not server.wait(1, 0, lambda seen: bool(seen.reached)).reached[0].unreachable
    nobody = "fdaa:7e57:1:ffff::9"
    server.send(check_peers=pb.CheckPeers(assignment=1, rank=1, addresses=[*everything, nobody]))
    assert list(server.wait(1, 1, lambda seen: bool(seen.reached)).reached[0].unreachable) == [nobody]
    for rank in (0, 1):
        server.stop(1, rank)
        server.finish(1, rank)


def test_a_port_can_be_bound_right_after_its_last_owner_was_killed(agent, server):
    """Port 29500, without SO_REUSEADDR, with a connection open when the first one is killed."""
    code = """
import socket, time
s = socket.socket(); s.bind(('ADDRESS', 29500)); s.listen()
c = socket.create_connection(s.getsockname()); a, _ = s.accept(); a.sendall(b'x'); print('bound'); time.sleep(1000)
"""
    for assignment in (1, 2):
        address = process_addresses((agent.paths.node / "agent-id").read_text(), assignment, 0).ipv4 if agent.runtime == "process" else ""
        server.run(assignment, *python(code.replace("ADDRESS", address)))
        server.wait(assignment, 0, lambda seen: b"bound\n" in seen.text())
        server.stop(assignment, signal=9)
        server.finish(assignment)


@on_crun
def test_two_control_planes_on_one_machine_are_apart(agent, server, tmp_path):
    """Other ranges, and no way from one workspace to the other, in neither family."""
    other_state = tmp_path / "other"
    other_state.mkdir()
    other_server = FakeServer(Paths(other_state).tasks_socket, prefix="fdaa:7e57:2")
    other = AgentProcess(other_state, "crun")
    other.start()
    try:
        other_server.until(lambda: other_server.heartbeats > 0, other.log)
        target = other_server.run(1, *python(ECHO))
        other_server.wait(1, 0, lambda seen: b"ready" in seen.text())
        server.prepare(1)
        server.send(check_peers=pb.CheckPeers(assignment=1, rank=0, addresses=list(addresses(target))))
        assert set(server.wait(1, 0, lambda seen: bool(seen.reached)).reached[0].unreachable) == set(addresses(target))
        other_server.stop(1, signal=9)
        other_server.finish(1)
        server.stop(1)
        server.finish(1)
    finally:
        assert other.stop() == 0
        other_server.close()
        Paths(other_state).run.rmdir()


# Connects to each address and port, and says what came of it.
TRY = """
import errno, socket
for address, port in TARGETS:
    family = socket.AF_INET6 if ':' in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as s:
        s.settimeout(5)
        error = s.connect_ex((address, port))
        print(errno.errorcode.get(error, 'connected'))
"""


def trying(*targets: tuple[str, int]) -> tuple[str, ...]:
    return python(TRY.replace("TARGETS", repr(targets)))


@pytest.fixture
def elsewhere() -> Iterator[tuple[str, str]]:
    """Two addresses outside this machine where port 80 listens, the second where clouds have their metadata: a network namespace at the
    end of a cable. Our own by the process id, for tests of other checkouts run at the same time."""
    number = 4 * (os.getpid() % 16_000)
    here, there = (str(ipaddress.ip_address("198.18.0.0") + number + n) for n in (1, 2))
    metadata = str(ipaddress.ip_address("169.254.0.0") + number + 2)
    code = "import socket, sys; s = socket.create_server(('', 80)); print('ready', flush=True); sys.stdin.read()"
    end = f"phe{os.getpid() % 100_000}"
    process = subprocess.Popen(["unshare", "-n", sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None and process.stdout.readline() == b"ready\n"
        programs.run(["ip", "-batch", "-"], f"link add {end} type veth peer name eth0 netns {process.pid}\n"
                                            f"addr add {here}/30 dev {end}\nlink set {end} up\n")
        programs.run(["nsenter", "-t", str(process.pid), "-n", "ip", "-batch", "-"],
                     f"addr add {there}/30 dev eth0\naddr add {metadata}/32 dev eth0\nlink set eth0 up\n")
        programs.run(["ip", "route", "add", metadata, "via", there])
        Path(f"/proc/sys/net/ipv4/conf/{end}/forwarding").write_text("1")
        yield there, metadata
    finally:
        process.kill()      # the cable goes with its namespace
        process.wait()


@on_crun
def test_the_way_out(agent, server, elsewhere):
    """What is outside is reached by masquerade, a cloud's metadata not, and nothing where the network is blocked."""
    there, metadata = elsewhere
    with socket.create_connection((metadata, 80), 5):
        pass        # from the machine itself it is reached
    server.run(1, *trying((there, 80), (metadata, 80)))
    assert server.finish(1).text().decode().split() == ["connected", "ECONNREFUSED"]
    server.run(2, *trying((there, 80)), block_network=True)
    assert server.finish(2).text() == b"ENETUNREACH\n"


@on_crun
def test_a_container_reaches_nothing_that_its_host_listens_on(agent, server):
    """By no address of the host: neither the bridge's, which is the container's gateway, nor the one the host has elsewhere."""
    here = json.loads(programs.run(["ip", "-j", "addr"]))
    with socket.create_server(("::", 0), family=socket.AF_INET6, dualstack_ipv6=True) as listener:
        port = listener.getsockname()[1]
        own = [address["local"] for link in here for address in link["addr_info"] if address["scope"] == "global"]
        assert len(own) >= 2, "the bridge has one of each family"
        server.run(1, *trying(*((address, port) for address in own)))
        said = server.finish(1).text().decode().split()
    assert set(said) <= {"ECONNREFUSED", "ENETUNREACH", "EHOSTUNREACH"}, dict(zip(own, said, strict=True))
    assert "ECONNREFUSED" in said


@pytest.mark.root
def test_a_machine_whose_firewall_drops_forwarded_packets(state, server, tmp_path):
    """As Docker leaves it. In a network namespace of the test's own: the agent adds its rules, and takes them back."""
    if os.geteuid() != 0 or programs.find("crun") is None:
        pytest.skip("needs root and crun")
    rules = tmp_path / "docker.nft"
    chain = "chain FORWARD {\ntype filter hook forward priority filter; policy drop;\n}"
    rules.write_text("".join(f"table {family} filter {{\n{chain}\n}}\n" for family in ("ip", "ip6")))
    script = f"ip link set lo up; nft -f {rules}; {sys.executable} \"$@\"; code=$?; nft list ruleset > {tmp_path}/after.nft; exit $code"
    agent = AgentProcess(state, "crun", command=("unshare", "-n", "sh", "-c", f"trap '' TERM; {script}", "sh"))
    agent.start()
    try:
        agent.registered(server)
        mine = [addresses(server.prepare(1, rank)) for rank in (0, 1)]
        server.send(check_peers=pb.CheckPeers(assignment=1, rank=0, addresses=list(mine[1])))
        assert not server.wait(1, 0, lambda seen: bool(seen.reached)).reached[0].unreachable
    finally:
        os.killpg(agent.process.pid, signal.SIGTERM)
        assert agent.process.wait(30) == 0, agent.log()
    after = (tmp_path / "after.nft").read_text()
    assert after.count("policy drop") == 2
    assert "phx" not in after


def test_ranges_give_each_number_once_and_late_again():
    ranges = Ranges("br", "10.112.0.0/29", "fdaa:1:2:3::/64", "fdaa:1:2::/48")
    taken = [ranges.take(name, way_out=True).ipv4 for name in "abcde"]
    assert taken == [f"10.112.0.{n}" for n in (2, 3, 4, 5, 6)]
    with pytest.raises(NoAddress, match=r"10\.112\.0\.0/29"):
        ranges.take("f", way_out=True)
    assert ranges.take("a", way_out=True).ipv4 == "10.112.0.2"
    ranges.free("b")
    ranges.free("e")
    assert ranges.take("g", way_out=False).ipv4 == "10.112.0.3"


def test_an_agent_has_its_own_part_of_the_workspace():
    workspace, one = agent_subnet("fdaa:1:2", "ag-1")
    assert workspace == "fdaa:1:2::/48"
    assert one.startswith("fdaa:1:2:") and one.endswith("::/64")
    assert one != agent_subnet("fdaa:1:2", "ag-2")[1]


