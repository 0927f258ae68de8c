"""What keeps a workspace's bridge apart, and what lets its frames pass a machine's own firewall. Run by the launcher, stdlib only."""

from __future__ import annotations

import json
from typing import Any

from . import programs


def open_for(bridge: str, ipv4: str) -> None:
    """A table of our own, and a way through other programs' forward chains. Raises ProgramFailed."""
    programs.run(["nft", "-f", "-"], _rules(bridge, ipv4))
    _pass_others(bridge)


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


def _rules(name: str, ipv4: str) -> str:
    """Within the bridge everything; into it only answers; out of it by masquerade.

    The first rule is for machines where br_netfilter sends bridged frames through here too: both families, or one dies silently.
    """
    return f"""
table inet {name} {{
  chain forward {{
    type filter hook forward priority filter; policy accept;
    iifname "{name}" oifname "{name}" accept
    oifname "{name}" ct state established,related accept
    oifname "{name}" drop
  }}
  chain outbound {{
    type nat hook postrouting priority srcnat; policy accept;
    ip saddr {ipv4} oifname != "{name}" masquerade
  }}
}}
"""
