"""Which runtime a machine gets, and what its user is told to install: by machines that nobody here has."""

from __future__ import annotations

import pytest

from phalanx.engines import ladder
from phalanx.engines.machine import Machine, look

ALL = {"crun": "1.8.1", "ip": "6.1.0", "nft": "1.0.6"}
REFUSED = "Operation not permitted"


def root_machine(**facts: object) -> Machine:
    return Machine(**({"root": True, "sys_admin": True, "net_admin": True, "tools": dict(ALL), "cgroups": "v2"} | facts))


def user_machine(**facts: object) -> Machine:
    return Machine(**({"namespaces_refused": "needs root", "tools": dict(ALL), "cgroups": "v2"} | facts))


@pytest.mark.parametrize(("machine", "runtime", "why"), [
    (root_machine(), "crun", "root, and crun 1.8.1 is installed"),
    (root_machine(tools=ALL | {"runc": "1.1.5"}), "crun", "crun 1.8.1"),
    (root_machine(tools={"runc": "1.1.5", "ip": "6", "nft": "1"}), "runc", "runc 1.1.5"),
    (root_machine(tools={"ip": "6", "nft": "1"}), "process", "neither crun nor runc is installed"),
    (root_machine(namespaces_refused=REFUSED), "process", "root without the right to make namespaces (Operation not permitted)"),
    (root_machine(nftables_refused="nft is not installed"), "process", "no nftables (nft is not installed)"),
    (user_machine(user_namespace_refused=REFUSED), "process", "user namespaces are refused (Operation not permitted)"),
    (user_machine(tools={}), "process", "crun is not installed"),
])
def test_auto_takes_the_best_and_says_why(machine: Machine, runtime: str, why: str) -> None:
    choice = ladder.choose(machine)
    assert choice.runtime == runtime
    assert why in choice.reason


def test_the_sysctl_that_refuses_user_namespaces_is_named_with_the_command_that_changes_it() -> None:
    machine = user_machine(user_namespace_refused=REFUSED, userns_sysctls={"kernel/apparmor_restrict_unprivileged_userns": "1"})
    assert "kernel.apparmor_restrict_unprivileged_userns = 1" in ladder.choose(machine).reason
    commands = {thing.what: thing.command for thing in ladder.missing(machine)}
    assert commands["user namespaces"] == "sudo sysctl -w kernel.apparmor_restrict_unprivileged_userns=0"


def test_limits_hold_where_groups_can_be_made() -> None:
    assert ladder.guarantees(root_machine(), "crun")["limits"] == "yes"
    assert ladder.guarantees(root_machine(cgroup_refused="Read-only file system"), "crun")["limits"].startswith("where delegated: not here")
    assert ladder.guarantees(root_machine(), "process")["limits"].startswith("no: ")


def test_a_runtime_that_is_not_there_guarantees_nothing_and_says_so() -> None:
    assert set(ladder.guarantees(root_machine(), "runsc").values()) == {"no: runsc is not installed"}


def test_everything_missing_is_named_with_what_it_brings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ladder.shutil, "which", lambda name: "/usr/bin/apt-get" if name == "apt-get" else None)
    assert [(thing.what, thing.command) for thing in ladder.missing(root_machine(tools={}))] == [
        ("crun", "apt-get install -y crun"), ("iproute2", "apt-get install -y iproute2"), ("nftables", "apt-get install -y nftables")]
    assert ladder.missing(root_machine()) == []


def test_looking_at_this_machine_leaves_nothing_behind() -> None:
    machine = look()
    assert machine.python and machine.kernel
    assert machine == look()
