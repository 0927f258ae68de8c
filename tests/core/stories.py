"""A gang on a table: events go in by short names, and what it wants comes out."""

from __future__ import annotations

from phalanx.core import events as ev
from phalanx.core.gang import Gang, GangPolicy
from phalanx.model.cluster import Assignment, Member, RankResult

OK = RankResult("ok", b"result")
FAILED = RankResult("failed", b"pickled", sentence="ValueError('no')")
TERMINATED = RankResult("terminated")


class Story:
    """One gang, its clock, and everything it asked for so far."""

    def __init__(self, size: int = 2, clustered: bool = True, max_inputs: int = 1, policy: GangPolicy | None = None) -> None:
        assignment = Assignment(7, "cu-1", "ap-1", "fu-1", size, clustered, max_inputs=max_inputs)
        members = [Member(7, rank, f"ta-{rank}", f"node-{rank}") for rank in range(size)]
        self.gang = Gang(assignment, members, [], policy or GangPolicy())
        self.now = 1_000
        self.said: list[ev.Instruction] = []

    @property
    def ranks(self) -> range:
        return range(self.gang.assignment.size)

    def tell(self, *events: ev.Event, after_ms: int = 1) -> list[ev.Instruction]:
        """Give events, and return what they made the gang ask for."""
        answers: list[ev.Instruction] = []
        for event in events:
            self.now += after_ms
            answers += self.gang.handle(event, self.now)
        self.said += answers
        return answers

    def again_from_rows(self) -> None:
        """As after a restart of the server: a machine made from the records alone."""
        self.gang = Gang(self.gang.assignment, self.gang.members, self.gang.open, self.gang.policy)

    def prepared(self) -> list[ev.Instruction]:
        return self.tell(ev.Placed(), *(ev.Prepared(r, f"fdaa::{r}", f"10.0.0.{r}", "") for r in self.ranks))

    def running(self) -> Story:
        """All ranks prepared, said hello and imported."""
        self.prepared()
        reached = [ev.PeersReached(r) for r in self.ranks] if len(self.ranks) > 1 else []
        self.tell(*reached, *(ev.Hello(r) for r in self.ranks))
        if self.gang.assignment.clustered:
            self.tell(*(ev.ClusterHello(r) for r in self.ranks))
        self.tell(*(ev.AsksForInputs(r) for r in self.ranks))
        return self

    def working(self, input_id: str = "in-1") -> Story:
        """Running, and every rank has fetched one input."""
        self.running()
        self.tell(ev.Delivered(input_id, 1), *(ev.Fetched(r, input_id) for r in self.ranks))
        return self

    def exit_all(self, code: int = 0) -> list[ev.Instruction]:
        return self.tell(*(ev.Exited(r, self.now + 1, code) for r in self.ranks))

    def release_all(self) -> list[ev.Instruction]:
        return self.tell(*(ev.Released(r) for r in self.ranks))

    def asked(self, kind: type) -> list[ev.Instruction]:
        return [instruction for instruction in self.said if isinstance(instruction, kind)]
