"""What `phalanx explain` and `phalanx plan --save` ask: why a thing waits, in full, and the planner's last decisions."""

from __future__ import annotations

from typing import Any

from phalanx.model.cluster import Assignment, Member, MemberState
from phalanx.model.reasons import duration
from phalanx.model.refusal import not_found
from phalanx.model.work import Call, CallState, Function, InputState
from phalanx.server.server import Server


class PlanDoor:
    def __init__(self, server: Server) -> None:
        self._server = server

    async def explain(self, request: dict[str, Any]) -> dict[str, Any]:
        """{"of": call, cluster or function} -> {"lines"}: the reason, the position, what is ahead, what would start it now."""
        of = str(request.get("of", ""))
        world = self._server.world
        if of.startswith("cu-"):
            return {"lines": self._cluster(of)}
        call = world[Call].get(of)
        function = world[Function].get(call.function_id if call else of) or self._by_name(of)
        if function is None:
            raise not_found("call, cluster or function", of, "Name a call (fc-…), a cluster (cu-…), a function (fu-… or its name)")
        if call is not None and call.state == CallState.DONE:
            return {"lines": [f"{of} is decided: {call.num_outputs} of {call.num_inputs} inputs have their result"]}
        return {"lines": self._function(function) if call is None else self._call(call, function)}

    async def plans(self, request: dict[str, Any]) -> dict[str, Any]:
        """{} -> {"recordings": one JSON text a line}, oldest first."""
        return {"recordings": self._server.planning.ring.dump()}

    def _call(self, call: Call, function: Function) -> list[str]:
        """What of it runs, and why its first waiting input waits."""
        gangs = self._server.gangs.pool(function.function_id).gangs.values()
        clusters = {gang.assignment.assignment: gang.assignment.cluster_id for gang in gangs}
        items = self._server.calls.inputs_of(call.call_id)
        where = sorted({clusters[item.assignment] for item in items if item.state == InputState.RUNNING and item.assignment in clusters})
        runs = [f"{call.call_id} runs on {', '.join(where)}"] if where else []
        if all(item.state != InputState.PENDING for item in items):
            return runs or self._function(function)
        explanation = self._server.planning.explain(function.function_id, call.call_id)
        if explanation is not None:
            return [*runs, *explanation.lines(self._server.now_ms())]
        return [*runs, f"it waits behind older calls of {function.name}:", *self._function(function)]

    def _function(self, function: Function) -> list[str]:
        explanation = self._server.planning.explain(function.function_id)
        if explanation is not None:
            return explanation.lines(self._server.now_ms())
        pool = self._server.gangs.pool(function.function_id)
        clusters = [f"{g.assignment.cluster_id} ({g.assignment.phase}, {len(g.open)} inputs)" for g in pool.gangs.values()]
        rests_ms = pool.resting_until_ms - self._server.now_ms()
        rests = [f"its next start waits {duration(rests_ms)}: {pool.resting_for}"] if rests_ms > 0 else []
        return [f"nothing of {function.name} waits for nodes", *rests, f"clusters: {', '.join(clusters) or 'none'}"]

    def _cluster(self, cluster_id: str) -> list[str]:
        found = next((a for a in self._server.world[Assignment].values() if a.cluster_id == cluster_id), None)
        if found is None:
            raise not_found("cluster", cluster_id, "`phalanx status` lists those that run")
        members = [m for m in self._server.world[Member].values() if m.assignment == found.assignment]
        lines = [f"{cluster_id} is {found.phase}"]
        if found.verdict is not None:
            lines.append(f"ended by {found.verdict.cause}: {found.verdict.sentence or 'nothing to say'}")
        lines += [f"rank {m.rank} on {m.node_id}: {m.state}{f' ({m.sentence})' if m.sentence else ''}" for m in members]
        late = [m.rank for m in members if m.state in (MemberState.PREPARING, MemberState.STARTING)]
        return [*lines, f"waits for rank {', '.join(map(str, late))}"] if late else lines

    def _by_name(self, name: str) -> Function | None:
        named = [f for f in self._server.world[Function].values() if f.name == name]
        return max(named, key=lambda f: f.created_ms, default=None)
