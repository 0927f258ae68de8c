"""The first start after `phalanx restore`: the ranks that its rows still have on nodes are nobody's."""

from __future__ import annotations

from typing import TYPE_CHECKING

from phalanx.server.unit import Unit
from phalanx.server.world import NodeRecord

if TYPE_CHECKING:
    from phalanx.server.server import Server


def lose_ranks(server: Server) -> None:
    """Whoever restores has stopped the control plane of the backup, and its ranks with it. Their agents will not come to say so: a backup
    has no `node/`, so the restored state's agent is another one, which was refused its nodes' names while these ranks might run."""
    if not server.paths.restored.exists():
        return

    def lose(unit: Unit) -> None:
        for node_id in list(server.world[NodeRecord]):
            server.leases.node_is_dead(unit, node_id, "was of the fleet before the backup was restored")
        server.gangs.failed_starts.forgive_nodes(unit)      # a lost node is left out for half a minute: the new one of its name is not
        unit.after(lambda: server.paths.restored.unlink(missing_ok=True))

    server.act(lose)
