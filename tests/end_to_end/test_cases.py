"""Cases from the field (the numbers are theirs; tests/README.md has the table), over real containers."""

from __future__ import annotations

import ipaddress
import resource

import pytest

from phalanx.node.oci_config import may_raise_limits
from tests.end_to_end.live import PROGRAMS, Ended, Live
from tests.harness.waiting import until

pytestmark = pytest.mark.root
MIB = 2**20


def test_case_55_an_error_before_user_code_fails_the_call_and_frees_the_nodes(live: Live) -> None:
    ended = live.modal("run", str(PROGRAMS / "broken_import.py"))
    assert ended.code == 1, ended
    assert "this module does not import here" in ended.out + ended.err
    until(lambda: not live.containers("never"))


def test_case_58_61_62_71_the_socket_calls_of_torchrun_and_ray(live: Live) -> None:
    """`ips[rank]` is mine, the same list everywhere; rank 0 alone recognises itself; both families; a container reaches itself."""
    over_ipv6, over_ipv4 = live.program("sockets.py::torchrun_and_ray").said["findings"]
    assert over_ipv6 == over_ipv4 and [one["rank"] for one in over_ipv6] == [0, 1, 2]
    ipv6, ipv4 = over_ipv6[0]["ips"]
    assert all(ipaddress.ip_address(ip) in ipaddress.ip_network("fdaa::/16") for ip in ipv6)
    assert all(ipaddress.IPv4Address(ip).is_private for ip in ipv4)
    assert len({one["hostname"] for one in over_ipv6}) == 3
    for rank, one in enumerate(over_ipv6):
        assert one["ips"] == [ipv6, ipv4]
        assert one["torchrun"] == [[other == rank for other in range(3)]] * 2
        assert one["ray"] == [ipv4[rank]] * 2
        assert one["port_of_mine"] == [True, True]


def test_case_68_a_function_name_of_200_characters(live: Live) -> None:
    host, addresses = live.program("lines.py::name").said["name"]
    assert len(host) <= 63 and host == host.lower() and host.isascii() and host.startswith("longer-than-any-host-name")
    assert len(set(addresses)) == 2, "the name leads to the rank's own two addresses"


def test_case_69_the_port_of_a_killed_container_can_be_bound_at_once(live: Live) -> None:
    said = live.program("sockets.py::bind_twice").said
    assert "rank 0" in said["first"] and "killed by signal 9" in said["first"]
    assert said["second"].startswith("ta-")


def test_case_82_97_a_call_is_cancelled_when_every_rank_has_had_its_time(live: Live) -> None:
    """The caller hears of the end only after both ranks saved, the one behind `sh -c` too."""
    with live.running("run", f"{PROGRAMS / 'lines.py'}::save") as client:
        call = client.wait_for("## call")[0].split('"')[1]
        client.wait_for("is ready", times=2)
        assert live.script("cancel.py", call, "--terminate").said["cancelled"] in ("InputCancellation", "RemoteError")
        client.finish()
    assert {"0 saved its state", "1 saved its state"} <= set(client.lines), client.lines
    assert any(line.startswith("ended: ") for line in client.lines), client.lines


def test_case_93_94_95_shared_memory_locked_memory_and_open_files(live: Live) -> None:
    """As the design has them, as far as this machine's own hard limits let root go."""
    limits = live.program("limits.py::inside").said["limits"]
    assert limits["shm"] >= 400 * MIB // 2
    own_locked, own_files = resource.getrlimit(resource.RLIMIT_MEMLOCK)[1], resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if may_raise_limits():
        own_locked, own_files = resource.RLIM_INFINITY, 1048576
    assert limits["locked"] == [own_locked, own_locked]
    assert limits["files"] == [min(own_files, 1048576)] * 2


def test_case_96_out_of_memory_names_rank_limit_and_peak_and_a_kill_is_no_such_thing(live: Live) -> None:
    said = live.program("limits.py::out_of_memory").said
    assert "rank 2" in said["memory"] and "ran out of memory: limit 300 MiB, peak " in said["memory"]
    assert "rank 2" in said["kill"] and "killed by signal 9 (SIGKILL), which was not an out-of-memory kill" in said["kill"]


@pytest.mark.parametrize("sizes", [[2 * MIB - 1, 2 * MIB + 1], pytest.param([200 * MIB], marks=pytest.mark.full)])
def test_case_100_large_arguments_and_results_arrive_equal(live: Live, sizes: list[int]) -> None:
    said = live.program("limits.py::large", "--sizes", ",".join(map(str, sizes))).said
    assert said == {f"{way}_{size}": True for size in sizes for way in ("plain", "spawned", "cluster")}


def test_case_105_107_last_words_bad_bytes_and_emoji(live: Live) -> None:
    ended = live.program("lines.py::bytes_and_ends")
    assert "bad \ufffd byte\nsplit 🦜\n" in ended.out
    assert "the bar\n" in ended.out
    assert "my last words" in ended.out
    assert any("rank 1" in line and "exited with code 3" in line for line in ended.out.splitlines() if line.startswith("failed:")), ended


def test_case_109_four_ranks_are_all_there_in_order_and_told_apart(live: Live) -> None:
    ended = live.program("lines.py::ranks")
    lines = ended.out.splitlines()
    for rank in range(4):
        assert [line for line in lines if line.endswith(f" of {rank}")] == [f"line {i} of {rank}" for i in range(200)], ended
    app_id = next(word for word in ended.out.replace("/", " ").split() if word.startswith("ap-"))
    told_apart = live.phalanx("logs", app_id).out.splitlines()
    for rank in range(4):
        assert sum(f"rank {rank} | line " in line for line in told_apart) == 200, Ended(0, "\n".join(told_apart[:20]), "")
