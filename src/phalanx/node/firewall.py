"""What keeps a workspace's bridge apart, and what lets its frames pass a machine's own firewall. Run by the launcher, stdlib only."""

from __future__ import annotations

import json
from typing import Any

from . import programs

# Where clouds hand out credentials to whoever asks from a machine, and their other host-only services.
_METADATA_IPV4 = "169.254.0.0/16, 168.63.129.16, 100.100.100.200, 192.0.0.192"
_METADATA_IPV6 = "fd00:ec2::254, fd20:ce::254, fe80::/10"


def open_for(bridge: str, ipv4: str, nameservers: list[str]) -> None:
    """A table of our own, and a way through other programs' forward chains. Raises ProgramFailed."""
    set_rules(bridge, ipv4, nameservers)
    _pass_others(bridge)


def set_rules(bridge: str, ipv4: str, nameservers: list[str]) -> None:
    """Make the table, or put it in the place of an older one: connections live on. Raises ProgramFailed."""
    programs.run(["nft", "-f", "-"], f"table inet {bridge}\ndelete table inet {bridge}\n{_rules(bridge, ipv4, nameservers)}")


def close_for(bridge: str) -> None:
    """Take all of it back; quiet when there is nothing, or no nft."""
    if programs.find("nft") is None:
        return
    programs.run(["nft", "delete", "table", "inet", bridge], may_fail=True)
    for rule in _listed("ruleset", "rule"):
        if rule.get("comment") == _comment(bridge):
            place = [rule["family"], rule["table"], rule["chain"]]
            programs.run(["nft", "delete", "rule", *place, "handle", str(rule["handle"])], may_fail=True)


def _pass_others(bridge: str) -> None:
    """Docker sets the forward chain's policy to drop and, with br_netfilter, so drops frames between our containers. Ours go first.

    A verdict `accept` ends that chain only: our own table still refuses what comes from outside the bridge.
    """
    for chain in _listed("chains", "chain"):
        if chain.get("hook") != "forward" or chain.get("type") != "filter" or chain["table"].startswith("phx"):
            continue
        if chain.get("policy") != "drop" and chain["table"] != "firewalld":
            continue
        place = f"{chain['family']} {chain['table']} {chain['name']}"
        for direction in ("iifname", "oifname"):
            rule = f'insert rule {place} {direction} "{bridge}" accept comment "{_comment(bridge)}"\n'
            programs.run(["nft", "-f", "-"], rule, may_fail=True)      # a family that knows no interface names, such as arp


def _comment(bridge: str) -> str:
    return f"phalanx {bridge}"


def _listed(what: str, kind: str) -> list[dict[str, Any]]:
    said = programs.run(["nft", "-j", "list", what], may_fail=True)
    return [entry[kind] for entry in json.loads(said or "{}").get("nftables", ()) if kind in entry]


def _rules(name: str, ipv4: str, nameservers: list[str]) -> str:
    """Within the bridge everything; into it only answers; out of it by masquerade, but not to a cloud's metadata; nothing of the machine
    itself but the name servers that containers are told, which on some clouds have the metadata's address. Refused, not dropped: a
    program that tries is told at once.

    The first forward rule is for machines where br_netfilter sends bridged frames through here too: both families, or one dies silently.
    """
    names = "".join(
        f"""
    iifname "{name}" {family} daddr {{ {", ".join(servers)} }} meta l4proto {{ tcp, udp }} th dport 53 accept"""
        for family, servers in (("ip", [s for s in nameservers if ":" not in s]), ("ip6", [s for s in nameservers if ":" in s]))
        if servers
    )
    return f"""
table inet {name} {{
  chain input {{
    type filter hook input priority filter; policy accept;
    iifname "{name}" ct state established,related accept
    iifname "{name}" meta l4proto {{ icmp, ipv6-icmp }} accept{names}
    iifname "{name}" meta l4proto tcp reject with tcp reset
    iifname "{name}" reject
  }}
  chain forward {{
    type filter hook forward priority filter; policy accept;
    iifname "{name}" oifname "{name}" accept{names}
    iifname "{name}" ip daddr {{ {_METADATA_IPV4} }} reject
    iifname "{name}" ip6 daddr {{ {_METADATA_IPV6} }} reject
    oifname "{name}" ct state established,related accept
    oifname "{name}" drop
  }}
  chain outbound {{
    type nat hook postrouting priority srcnat; policy accept;
    ip saddr {ipv4} oifname != "{name}" masquerade
  }}
}}
"""
