"""Into the planner: a Snapshot. Out of it: a Plan. Plain data, integers for times (ms), the same bytes on every machine."""

from __future__ import annotations

from dataclasses import dataclass, field

from phalanx.model.fleet import Arrival, Hold, Node, NodeState, Offer, Rented, Retention
from phalanx.model.gpus import GpuChoice
from phalanx.model.reasons import Number, Reason, ReasonCode, Wish, WishKind, sentence

__all__ = [
    "Arrival", "Ask", "Evict", "GiveWay", "GpuChoice", "Hold", "Node", "NodeState", "Number", "Offer", "Plan", "Policy", "Provision",
    "Quota", "Reason", "ReasonCode", "Rented", "Request", "Reservation", "Retention", "Snapshot", "Start", "Stream", "Usage",
    "Wait", "Where", "Wish", "WishKind", "sentence",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Ask:
    """What is wanted of each node. A whole ask takes the node, and cpu, memory and disk are what it must at least have.

    `gpus` is an ordered preference list; all nodes of a gang get the same entry and the same type. Empty: no GPU.
    """

    whole: bool = True
    cpu_milli: int = 0
    memory_mib: int = 0
    disk_mib: int = 0
    gpus: tuple[GpuChoice, ...] = ()


@dataclass(frozen=True, slots=True)
class Where:
    """Where a request may run; an empty tuple leaves that open. Region "us" also means "us-east"."""

    regions: tuple[str, ...] = ()
    zones: tuple[str, ...] = ()
    clouds: tuple[str, ...] = ()
    instance_types: tuple[str, ...] = ()
    efa_disabled: bool = False


@dataclass(frozen=True, slots=True)
class Request:
    """A wish for `size` nodes (whole) or containers (shared), all or none. Ties in order are broken by time, then id."""

    request_id: str
    size: int = 1
    ask: Ask = Ask()
    submitted_ms: int = 0
    workspace: str = ""
    function_id: str = ""
    priority: int = 0
    where: Where = Where()
    rdma: bool = False
    fabric_size: int = 1                        # consecutive ranks in blocks of this size share an NVLink domain
    excluded_nodes: frozenset[str] = frozenset()
    predicted_ms: int | None = None             # from the function's recent runs; None: nothing known
    timeout_ms: int = 24 * 3_600_000            # the upper bound of a run
    not_before_ms: int = 0                      # back-off after a failed start or a preemption
    backoff_why: str = ""                       # what failed, for people
    attempt: int = 1
    warm: bool = False                          # no input waits for it: a pool's setting wants it
    evictions: int = 0                          # how often it has had others evicted for itself
    deadline_ms: int | None = None              # when waiting for nodes ends with the reason as the error; None: never

    @property
    def expected_ms(self) -> int:
        """How long it is taken to run."""
        if self.predicted_ms is None:
            return self.timeout_ms
        return min(self.predicted_ms, self.timeout_ms)


@dataclass(frozen=True, slots=True)
class Reservation:
    """A dated claim without nodes: `request_id` starts on `network` (the fabric's name) by `start_ms`, and nothing may delay it."""

    request_id: str
    fabric: str
    start_ms: int
    nodes: int
    gpu_type: str = ""


NO_LIMIT = 1 << 40       # nodes: more than there ever are


@dataclass(frozen=True, slots=True)
class Quota:
    """Nodes a workspace may hold at once. In a cohort it may borrow up to `borrow` idle nodes of the others (None: all of them).

    `gpus`: (type, most at once) beside it; these are never borrowed. `nodes` NO_LIMIT where only they count.
    """

    workspace: str
    nodes: int
    cohort: str = ""
    borrow: int | None = 0
    gpus: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Stream:
    """A function with inputs that wait, and what runs of it: each of `holders` goes on with the next one when its input is done.

    `next_ms` is the age of that input. The `ends_ms` of these holds is the end of the input that they have, no earlier than their turn.
    """

    function_id: str
    next_ms: int
    holders: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Usage:
    """What a workspace has used, decayed by half-life: node-milliseconds."""

    workspace: str
    node_ms: int
    weight: int = 1


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Everything a plan depends on, at one moment. Order of the tuples carries no meaning."""

    now_ms: int
    nodes: tuple[Node, ...] = ()
    holds: tuple[Hold, ...] = ()
    pending: tuple[Request, ...] = ()
    retentions: tuple[Retention, ...] = ()
    reservations: tuple[Reservation, ...] = ()   # what the previous plan promised
    quotas: tuple[Quota, ...] = ()
    usage: tuple[Usage, ...] = ()
    offers: tuple[Offer, ...] = ()
    arrivals: tuple[Arrival, ...] = ()
    rented: tuple[Rented, ...] = ()
    streams: tuple[Stream, ...] = ()             # who would go on with further inputs
    recent_wait_ms: int = 0                      # what gangs that started lately had waited; scales the age guard
    version: int = 0


@dataclass(frozen=True, slots=True)
class Policy:
    """The settings of the planner, with the values they have when nobody sets them. docs/scheduling.md says why each is what it is."""

    order: str = "wfp"                  # wfp; for comparison wfp3, sjf, fifo
    backfill: str = "easy"              # easy: a dated claim that backfill never delays; skip: no claim; none: strict order
    age_factor: int = 12                # beyond this many times the recent mean wait, age outweighs length
    soft_claims: int = 1                # claims on other fabrics for the next in order, without a promise
    preempt: bool = True
    preempt_gain_ms: int = 60_000       # evict only for a start that is this much earlier
    grace_ms: int = 30_000              # from an eviction to clean nodes
    eviction_budget: int = 3            # how often one request may have others evicted
    provision: bool = True
    keep_idle_ms: int = 300_000         # rented nodes stay this long after their last gang
    forecasts: int = 8                  # so many waiting gangs are told an earliest start
    debug: bool = False                 # recount the index and compare


@dataclass(frozen=True, slots=True)
class Start:
    """Start a request: `node_ids[rank]`. A shared ask's containers may name one node several times."""

    request_id: str
    node_ids: tuple[str, ...]
    fabric: str = ""
    gpu_type: str = ""                  # the type it runs on: the same on every node
    gpu_count: int = 0                  # a node


@dataclass(frozen=True, slots=True)
class Wait:
    """A request that does not start now, and why."""

    request_id: str
    reason: Reason


@dataclass(frozen=True, slots=True)
class Evict:
    """Stop a holder, whole, so that `for_request` can start when its nodes are clean.

    Whoever carries this out keeps the holder's nodes for `for_request` with a Retention, or somebody else in the queue may take them.
    """

    holder_id: str
    for_request: str
    lost_ms: int = 0                    # node-milliseconds of work that may be lost


@dataclass(frozen=True, slots=True)
class GiveWay:
    """Each of `holders` takes no further input and ends when the one it has is done: `for_request` came before what they would take next.

    Several of one request are alternatives: whoever is at the end of its input first. Their nodes are then kept like those of victims.
    """

    for_request: str
    holders: tuple[str, ...]
    from_ms: tuple[int, ...] = ()       # of each holder: before this it may take another, which will be done in time; (): at any time


@dataclass(frozen=True, slots=True)
class Provision:
    """Order `count` nodes of an offer for a request."""

    offer_id: str
    count: int
    for_request: str


@dataclass(frozen=True, slots=True)
class Plan:
    """What the scheduler wants now. Every pending request is in exactly one of `starts` and `waits`."""

    version: int = 0
    starts: tuple[Start, ...] = ()
    waits: tuple[Wait, ...] = ()
    reserve: tuple[Reservation, ...] = ()
    evict: tuple[Evict, ...] = ()
    provision: tuple[Provision, ...] = ()
    release: tuple[str, ...] = ()       # node ids that nobody needs any more and that cost something
    expired: tuple[str, ...] = ()       # waiting requests whose queue deadline has passed: to be failed with their reason
    give_way: tuple[GiveWay, ...] = ()  # as long as this is the latest plan
    order: tuple[str, ...] = field(default=())   # request ids in the order they were considered: the queue
