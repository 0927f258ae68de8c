"""Agents: their sessions, what they report, and what they are told. Serves the agent protocol (protocol/agent.proto)."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import logging
import signal
from typing import TYPE_CHECKING, Any

from grpclib.exceptions import StreamTerminatedError

from phalanx.core import events as ev
from phalanx.core.gang import Gang
from phalanx.model.app import Image
from phalanx.model.cluster import Member, MemberState
from phalanx.model.node import UNKILLABLE, NodeRecord
from phalanx.model.refusal import Refusal
from phalanx.model.work import Function
from phalanx.protocol import agent_pb2 as pb
from phalanx.protocol.agent_grpc import AgentsBase
from phalanx.server.agent_clock import AgentClock
from phalanx.server.launch import container_spec
from phalanx.server.layers import layer_files
from phalanx.server.unit import Unit

if TYPE_CHECKING:
    from phalanx.server.server import Server

LOG = logging.getLogger("phalanx.agents")

PROTOCOL_VERSION = 1
LAYER_PART = 2**20
_REFUSED_S = 5.0                  # for an agent that is refused to read why and leave


class Session:
    """One connected agent: what goes to it, and how its clock stands to ours."""

    def __init__(self, register: pb.Register) -> None:
        self.agent_id = register.agent_id
        self.node_ids = [node.node_id for node in register.nodes]
        self.peer_address = register.peer_address
        self.outgoing: asyncio.Queue[pb.ToAgent | None] = asyncio.Queue()
        self.clock = AgentClock()


class Agents(AgentsBase):
    def __init__(self, server: Server) -> None:
        self._server = server
        self._sessions: dict[str, Session] = {}      # by node id
        self._making: set[asyncio.Task[None]] = set()

    def is_connected(self, node_id: str) -> bool:
        """Is its agent there, and were its last heartbeats heard?"""
        session = self._sessions.get(node_id)
        return session is not None and not self._server.leases.is_silent(session.agent_id)

    # ------------------------------------------------------------ to agents

    def prepare(self, gang: Gang, member: Member) -> None:
        """Send Prepare; a container that can't be described is refused like one that a node refuses."""
        function: Function = self._server.world[Function][member.function_id]
        image = self._server.world[Image].get(function.image_id)
        client = function.client_version, image.python_version if image else ""
        if not self._server.mounts.client_stands(*client):
            making = asyncio.ensure_future(self._prepare_with_client(gang, member, client))
            self._making.add(making)
            making.add_done_callback(self._making.discard)
            return
        try:
            spec = container_spec(self._server, function, member, gang.assignment.gpu_choice)
        except Exception as error:
            told = error.sentence if isinstance(error, Refusal) else f"it can't be described: {error!r}; the server's log has more"
            if not isinstance(error, Refusal):
                LOG.exception("%s can't be described", member.task_id)
            refused = ev.PrepareRefused(member.rank, "function", told, user_fault=True)
            self._server.act(lambda unit: self._server.gangs.dispatch(unit, member.assignment, refused))
            return
        message = pb.Prepare(
            assignment=member.assignment, rank=member.rank, size=gang.assignment.size, node_id=member.node_id, task_id=member.task_id,
            cluster_id=member.cluster_id, app_id=member.app_id, function_name=function.name, task_secret=member.task_secret,
            python_version=spec.python_version, layer_ids=spec.layer_ids, environment=spec.environment,
            container_arguments=spec.container_arguments, cpu_milli=spec.cpu_milli, cpu_limit_milli=spec.cpu_limit_milli,
            memory_mib=spec.memory_mib, memory_limit_mib=spec.memory_limit_mib, gpu_type=spec.gpu_type, gpu_count=spec.gpu_count,
            private_network=spec.private_network, block_network=spec.block_network, grace_ms=gang.policy.grace_ms,
        )  # fmt: skip
        self._send(member.node_id, pb.ToAgent(prepare=message))

    async def _prepare_with_client(self, gang: Gang, member: Member, client: tuple[str, str]) -> None:
        """The package that its function was created with is gone: make it again, then prepare; or refuse with the reason."""
        try:
            await self._server.mounts.make_client(*client)
        except Refusal as refusal:
            refused = ev.PrepareRefused(member.rank, "function", refusal.sentence, user_fault=True)
            self._server.act(lambda unit: self._server.gangs.dispatch(unit, member.assignment, refused))
            return
        if member.state == MemberState.PREPARING:
            self.prepare(gang, member)

    def tell(self, gang: Gang, member: Member, instruction: ev.Instruction) -> None:
        """Pass an instruction on to the agent of a rank. An agent that is away is told again when it is back (`_resume`)."""
        a, r = member.assignment, member.rank
        match instruction:
            case ev.Start():
                if self._is_first_there(gang, member):
                    self._send(member.node_id, self._peers(gang))
                message = pb.ToAgent(start=pb.Start(assignment=a, rank=r))
            case ev.CheckPeers(_, addresses):
                message = pb.ToAgent(check_peers=pb.CheckPeers(assignment=a, rank=r, addresses=addresses))
            case ev.StopRank(_, signal, grace_ms, reason):
                message = pb.ToAgent(stop=pb.Stop(assignment=a, rank=r, signal=signal, grace_ms=grace_ms, reason=reason))
            case ev.Release():
                message = pb.ToAgent(release=pb.Release(assignment=a, rank=r))
            case _:
                raise TypeError(f"{instruction} is not for an agent")
        self._send(member.node_id, message)

    def _is_first_there(self, gang: Gang, member: Member) -> bool:
        """Of a gang's members with one agent: what is for all of them is said once, before the first of them starts."""
        session = self._sessions.get(member.node_id)
        return next((m for m in gang.members if self._sessions.get(m.node_id) is session), member) is member

    def _peers(self, gang: Gang) -> pb.ToAgent:
        """Where all its ranks are: their agents heartbeat each other (design rule 3)."""
        peers = []
        for member in gang.members:
            session = self._sessions.get(member.node_id)
            agent_id = self._server.leases.agent_of(member.node_id)
            address = session.peer_address if session is not None else ""
            peers.append(pb.Peer(rank=member.rank, node_id=member.node_id, agent_id=agent_id, address=address))
        return pb.ToAgent(peers=pb.Peers(assignment=gang.assignment.assignment, size=gang.assignment.size, peers=peers))

    def _tell_peers(self, gang: Gang) -> None:
        """Once to each agent that is here."""
        peers = self._peers(gang)
        for member in gang.members:
            if self._is_first_there(gang, member):
                self._send(member.node_id, peers)

    def ask_mark(self, member: Member, number: int) -> None:
        """Have the agent send what the rank has written so far, and say so."""
        mark = pb.MarkLogs(assignment=member.assignment, rank=member.rank, number=number)
        self._send(member.node_id, pb.ToAgent(mark_logs=mark))

    def _send(self, node_id: str, message: pb.ToAgent) -> None:
        session = self._sessions.get(node_id)
        if session is not None:
            session.outgoing.put_nowait(message)

    # ------------------------------------------------------------ the agent protocol

    async def Session(self, stream: Any) -> None:
        first = await stream.recv_message()
        if first is None or not first.HasField("register"):
            return
        refusal = self._why_not(first.register)
        leases = self._server.leases
        welcome = pb.Welcome(
            protocol_version=PROTOCOL_VERSION, heartbeat_ms=leases.heartbeat_ms, outage_limit_ms=leases.limits.outage_limit_ms,
            lease_ms=leases.limits.lease_ms, silent_ms=leases.limits.silent_ms, refusal=refusal,
            workspace_prefix=self._server.config.workspace_prefix,
        )  # fmt: skip
        if not refusal:
            await leases.joined(first.register.agent_id, first.register.boottime_ms)     # before it can know that it was heard
        await stream.send_message(pb.ToAgent(welcome=welcome))
        if refusal:
            LOG.warning("agent %s refused: %s", first.register.agent_id, refusal)
            with contextlib.suppress(TimeoutError):     # a stream that we end at once is reset before the refusal is read
                async with asyncio.timeout(_REFUSED_S):
                    while await stream.recv_message() is not None:
                        pass
            return
        if self._why_not(first.register):       # another agent with these nodes joined meanwhile: asking again, this one is told so
            return
        session = Session(first.register)
        if first.register.boottime_ms:
            session.clock.heard(first.register.boottime_ms, self._server.now_ms())
        await self._server.act(lambda unit: self._joined(unit, session, first.register))
        sender = asyncio.ensure_future(self._send_all(session, stream))
        try:
            while (message := await stream.recv_message()) is not None:
                await self._received(session, message)
        finally:
            sender.cancel()
            self._left(session)

    async def GetLayer(self, stream: Any) -> None:
        request = await stream.recv_message()
        for file in layer_files(self._server, request.layer_id):
            with file.open() as content:
                data = content.read(LAYER_PART)
                while following := content.read(LAYER_PART):
                    await stream.send_message(pb.LayerFile(path=file.path, mode=file.mode, data=data, more=True))
                    data = following
            await stream.send_message(pb.LayerFile(path=file.path, mode=file.mode, data=data))

    def _why_not(self, register: pb.Register) -> str:
        if register.protocol_version != PROTOCOL_VERSION:
            return f"this server speaks agent protocol {PROTOCOL_VERSION}, the agent {register.protocol_version}: upgrade the older one"
        if not hmac.compare_digest(register.secret, self._server.config.join_secret):
            return "the join secret is not this control plane's: copy join_secret from its configuration"
        leases = self._server.leases
        for facts in register.nodes:
            owner = leases.agent_of(facts.node_id)
            if owner in ("", register.agent_id):
                continue
            if self.is_connected(facts.node_id) or leases.has_ranks(facts.node_id):
                return (f"node {facts.node_id} is agent {owner}'s, which is connected or whose ranks may run still: "
                        "give this agent's nodes other names (--node-name)")
        return ""

    async def _send_all(self, session: Session, stream: Any) -> None:
        with contextlib.suppress(StreamTerminatedError):    # the agent is gone: the session's own task sees to that
            while (message := await session.outgoing.get()) is not None:
                await stream.send_message(message)

    def _joined(self, unit: Unit, session: Session, register: pb.Register) -> None:
        rebooted, clean = set[str](), set[str]()
        for facts in register.nodes:
            old = self._server.world[NodeRecord].get(facts.node_id)
            record = NodeRecord(
                facts.node_id, register.agent_id, register.engine, facts.hostname, facts.gpu_type, facts.gpu_count, facts.cpu_milli,
                facts.memory_mib, facts.simulated, facts.rdma, facts.shared_only, facts.region, facts.zone, facts.network,
                facts.block, facts.rack, facts.fabric_id, facts.runtime, facts.runtime_reason, dict(facts.guarantees),
                list(facts.python_versions), register.boot_id, facts.unschedulable, last_seen_ms=self._server.now_ms(),
            )  # fmt: skip
            self._server.nodes.carry_over(old, record)
            if old is not None and not facts.unschedulable:
                clean.add(facts.node_id)
            unit.put(record)
            self._sessions[facts.node_id] = session
            self._server.planning.fleet.node_changed(facts.node_id)
            if old is not None and old.boot_id != register.boot_id:
                rebooted.add(facts.node_id)
        self._server.nodes.nothing_remains(unit, clean)
        # Nodes that this agent had once and no longer names are gone from the fleet.
        for record in self._server.world[NodeRecord].values():
            if record.agent_id == register.agent_id and record.node_id not in session.node_ids and not record.removed:
                record.removed = True
                unit.put(record)
        LOG.info("agent %s joined with %s", register.agent_id, ", ".join(session.node_ids))
        adopted = {(a.assignment, a.rank) for a in register.adopted}
        self._resume(unit, session, adopted, rebooted)
        self._dismiss(session, adopted)
        unit.after(self._server.planning.soon)

    def _resume(self, unit: Unit, session: Session, adopted: set[tuple[int, int]], rebooted: set[str]) -> None:
        """Say again what the agent may have missed, and find out what it no longer has."""
        for gang in list(self._server.gangs.running.values()):
            if any(member.node_id in session.node_ids for member in gang.members):
                unit.after(lambda gang=gang: self._tell_peers(gang))    # type: ignore[misc]
            for member in gang.members:
                if member.node_id not in session.node_ids:
                    continue
                prepared = member.state not in (MemberState.PREPARING, MemberState.EXITED, MemberState.RELEASED)
                if prepared and (member.assignment, member.rank) not in adopted:
                    how = "was started again" if member.node_id in rebooted else "restarted its agent"
                    sentence = f"node {member.node_id} {how} and no longer has rank {member.rank}"
                    self._server.gangs.dispatch(unit, member.assignment, ev.NodeLost(member.rank, sentence))
                    continue
                for instruction in gang.again(member.rank, self._server.now_ms()):
                    self._server.gangs.carry_out(unit, gang, instruction)

    def _dismiss(self, session: Session, adopted: set[tuple[int, int]]) -> None:
        """Containers that the agent has and nobody expects: of an assignment that is over, or of a rank that was taken for lost."""
        for assignment, rank in sorted(adopted):
            gang = self._server.gangs.running.get(assignment)
            member = gang.members[rank] if gang is not None and rank < gang.assignment.size else None
            if member is not None and member.node_id in session.node_ids and member.state not in (MemberState.EXITED, MemberState.RELEASED):
                continue
            if member is not None and not member.node_lost:
                continue    # its end is known, and the verdict still to come: it is released then
            LOG.warning("agent %s has rank %s of assignment %s, which nobody expects: it is killed", session.agent_id, rank, assignment)
            stop = pb.Stop(assignment=assignment, rank=rank, signal=signal.SIGKILL, reason="nobody expects it")
            session.outgoing.put_nowait(pb.ToAgent(stop=stop))
            if member is None:
                session.outgoing.put_nowait(pb.ToAgent(release=pb.Release(assignment=assignment, rank=rank)))

    def _left(self, session: Session) -> None:
        for node_id in session.node_ids:
            if self._sessions.get(node_id) is session:
                del self._sessions[node_id]
                self._server.planning.fleet.node_changed(node_id)
        self._server.planning.soon()

    # ------------------------------------------------------------ reports

    async def _received(self, session: Session, message: pb.FromAgent) -> None:
        kind = message.WhichOneof("message")
        if kind == "heartbeat":
            beat = message.heartbeat
            session.clock.heard(beat.boottime_ms, self._server.now_ms())
            self._server.leases.beat(session.agent_id, beat.boottime_ms, beat.answered_ms, beat.said_away_ms)
            session.outgoing.put_nowait(pb.ToAgent(beat_answer=pb.BeatAnswer(boottime_ms=beat.boottime_ms)))
            return
        if kind == "logs":
            await self._logs(session, message.logs)
            return
        if kind == "logs_marked":
            marked = message.logs_marked
            self._server.log_marks.came(marked.assignment, marked.rank, marked.number)
            return
        if kind == "node_state":
            state = message.node_state
            if state.node_id in session.node_ids:
                self._server.act(lambda unit: self._server.nodes.restated(unit, state.node_id, state.unschedulable))
            return
        report = getattr(message, kind) if kind else None
        event = self._event(session, report) if report is not None else None
        if event is None:
            return
        if isinstance(event, ev.Exited):
            await self._server.logs.ended(report.assignment, report.rank)
        # Nobody waits for the disk: units are committed in the order of the reports, and what follows from one follows its commit.
        self._server.act(lambda unit: self._apply(unit, session, report, event))

    def _apply(self, unit: Unit, session: Session, report: Any, event: ev.Event) -> None:
        known = self._server.gangs.dispatch(unit, report.assignment, event)
        if isinstance(event, ev.Exited) and report.unkillable:
            self._set_aside(unit, session, report)
        member = self._server.world[Member].get((report.assignment, report.rank))
        done_with = not known or (member is not None and member.state == MemberState.RELEASED)    # over, or its node had been given up
        if done_with and not isinstance(event, ev.Released):   # it may go
            release = pb.ToAgent(release=pb.Release(assignment=report.assignment, rank=report.rank))
            unit.after(lambda: session.outgoing.put_nowait(release))

    def _set_aside(self, unit: Unit, session: Session, report: pb.Exited) -> None:
        """A container that SIGKILL does not end: it counts as ended, and nothing more starts on its node."""
        member = self._server.world[Member].get((report.assignment, report.rank))
        record = self._server.world[NodeRecord].get(member.node_id) if member is not None else None
        if member is not None and record is not None and member.node_id in session.node_ids:
            record.unschedulable = f"{UNKILLABLE}: {member.task_id}: {report.sentence or 'SIGKILL does not end its processes'}"
            unit.put(record)

    def _event(self, session: Session, report: Any) -> ev.Event | None:
        match report:
            case pb.Prepared():
                if report.HasField("refusal"):
                    refusal = report.refusal
                    return ev.PrepareRefused(report.rank, refusal.code, refusal.sentence, refusal.user_fault)
                return ev.Prepared(report.rank, report.ipv6, report.ipv4, report.http_address)
            case pb.Reached():
                return ev.PeersReached(report.rank, tuple(report.unreachable))
            case pb.Exited():
                sentence = report.sentence
                if report.oom_killed and report.memory_limit_mib:
                    sentence = f"limit {report.memory_limit_mib} MiB, peak {report.memory_peak_mib} MiB"
                if report.fenced:
                    sentence = f"its node was cut off, and stopped it: {report.fenced}"
                at_ms = session.clock.server_time_ms(report.boottime_ms, self._server.now_ms())
                return ev.Exited(
                    report.rank, at_ms, report.code, report.signal, report.oom_killed, sentence, report.never_started,
                    unseen=report.unseen or bool(report.fenced), told=_told(report))
            case pb.Released():
                return ev.Released(report.rank, report.remains)
        return None

    async def _logs(self, session: Session, logs: pb.Logs) -> None:
        member = self._server.world[Member].get((logs.assignment, logs.rank))
        if member is None:
            return
        records = [(record.stream, record.time_ns, record.data) for record in logs.records]
        synced = await self._server.logs.ingest(member, logs.offset, records, logs.end_offset)
        session.outgoing.put_nowait(pb.ToAgent(ack_logs=pb.AckLogs(assignment=logs.assignment, rank=logs.rank, offset=synced)))


def _told(exited: pb.Exited) -> bool | None:
    """Had the server told this rank to stop before it ended? None: its shim does not say."""
    if not exited.HasField("stopped"):
        return None
    return exited.stopped and not exited.fenced     # its node stopped it by itself then
