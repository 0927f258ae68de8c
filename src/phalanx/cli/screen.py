"""What `phalanx up` and `phalanx status` show people. Everything shown comes from the server's status."""

from __future__ import annotations

import time
from collections import Counter
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from phalanx import __version__
from phalanx.cli.control_plane import Running

LOOPBACK = ("127.", "localhost:", "[::1]:")
GUARANTEES = ("network", "pids", "limits", "images", "clean-up")


def show_up(running: Running, detached: bool) -> None:
    nodes = running.nodes()
    console = Console(highlight=False, soft_wrap=True)
    console.print(f"Phalanx {__version__} is up\n")
    lines = [("listens at", running.url), ("state", str(running.paths.state)), ("logs", f"{running.paths.state}/*.log")]
    lines += [("fleet", sentence) for sentence in fleet(nodes)] + isolation(nodes)
    if not running.listen.startswith(LOOPBACK):
        lines.insert(1, ("", "without encryption: for a network that you trust"))
    _print_pairs(console, lines)
    console.print("\nPoint a client at it:")
    for name, value in running.client_environment().items():
        console.print(f"  export {name}={value}")
    console.print("or once, in the client's own configuration:  phalanx login")
    console.print(f"\nStop it: {'phalanx down' if detached else 'Ctrl-C'}")


def fleet(nodes: list[dict[str, Any]]) -> list[str]:
    """One sentence for each kind of node."""
    kinds = Counter((n.get("gpu_type", ""), n.get("gpu_count", 0), bool(n.get("simulated")), bool(n.get("shared_only"))) for n in nodes)
    sentences = []
    for (gpu_type, gpu_count, simulated, shared_only), count in kinds.items():
        plural = "node" if count == 1 else "nodes"
        if shared_only:
            sentences.append(f"{count} {plural} for functions without GPUs: what a cluster calls runs there when all others are taken")
        elif not gpu_count:
            sentences.append(f"{count} {plural} without GPUs")
        elif simulated:
            of_type = "of any type" if gpu_type == "any" else gpu_type
            sentences.append(f"{count} {plural} with {gpu_count} simulated GPUs {of_type}: placed as if real, the container gets no device")
        else:
            sentences.append(f"{count} {plural} with {gpu_count} {gpu_type}")
    return sentences


def isolation(nodes: list[dict[str, Any]]) -> list[tuple[str, str]]:
    """Runtime, why this one, and what it guarantees; nodes that say the same are said once."""
    said: list[tuple[str, str]] = []
    for node in nodes:
        reason = f" ({node['runtime_reason']})" if node.get("runtime_reason") else ""
        lines = [("runtime", f"{node.get('runtime', 'unknown')}{reason}")]
        guarantees = node.get("guarantees") or {}
        if guarantees:
            names = [*(n for n in GUARANTEES if n in guarantees), *sorted(set(guarantees) - set(GUARANTEES))]
            lines.append(("guarantees", " · ".join(f"{name}: {guarantees[name]}" for name in names)))
        said += [line for line in lines if line not in said]
    return said


def show_status(running: Running, status: dict[str, Any]) -> None:
    console = Console(highlight=False)
    server = status.get("server") or {}
    known = [(name.replace("_", " "), str(value)) for name, value in server.items() if not isinstance(value, dict | list)]
    _print_pairs(console, [("listens at", running.url), ("state", str(running.paths.state)), *known])
    _print_table(console, "Nodes", status.get("nodes") or [], {
        "node": lambda n: n.get("node_id", ""), "state": _node_state, "GPUs": _gpus, "runtime": lambda n: n.get("runtime", "")})
    _print_table(console, "Clusters", status.get("clusters") or [], {
        "cluster": lambda c: c.get("cluster_id", ""), "state": lambda c: c.get("state", ""), "size": lambda c: c.get("size", ""),
        "function": lambda c: c.get("function", ""), "nodes": lambda c: ", ".join(c.get("nodes") or [])})
    _print_table(console, "Waiting", status.get("waiting") or [], {
        "call": lambda w: w.get("call", ""), "function": lambda w: w.get("function", ""),
        "why": lambda w: (w.get("reason") or {}).get("sentence", "")})


def _node_state(node: dict[str, Any]) -> str:
    return node.get("state") or ""


def show_nodes(nodes: list[dict[str, Any]]) -> None:
    """`phalanx node list`."""
    _print_table(Console(highlight=False), "Nodes", nodes, {
        "node": lambda n: n["node_id"], "state": lambda n: n["state"], "decided by": _decided, "GPUs": _gpus,
        "clusters": lambda n: ", ".join(n.get("held_by") or [])})


def _decided(node: dict[str, Any]) -> str:
    """Who took it out of service by hand, and when."""
    if node.get("by_hand", "serving") == "serving" and not node.get("reason"):
        return ""
    when = time.strftime("%Y-%m-%d %H:%M", time.localtime(node.get("decided_ms", 0) / 1000))
    return f"{node.get('decided_by') or 'somebody'}, {when}"


def _gpus(node: dict[str, Any]) -> str:
    if not node.get("gpu_count"):
        return "none, for functions without GPUs" if node.get("shared_only") else "none"
    return f"{node['gpu_count']} × {node.get('gpu_type', '')}{' simulated' if node.get('simulated') else ''}"


def _print_pairs(console: Console, pairs: list[tuple[str, str]]) -> None:
    width = max(len(name) for name, _ in pairs)
    for name, value in pairs:
        console.print(Text(f"  {name:<{width}}  {value}"))


def _print_table(console: Console, title: str, rows: list[dict[str, Any]], columns: dict[str, Any]) -> None:
    if not rows:
        console.print(f"\n{title}: none")
        return
    table = Table(title=title, title_justify="left", title_style="", box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for name in columns:
        table.add_column(name, overflow="fold")
    for row in rows:
        table.add_row(*(Text(str(cell(row))) for cell in columns.values()))
    console.print()
    console.print(table)
