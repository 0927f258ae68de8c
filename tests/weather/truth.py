"""What really happened in a simulated world, and the rules that hold whatever did (design, Rules that always hold).

Told by ranks and people as it happens, and by the store at every transaction; `wrong` collects what should not be.
"""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

from modal_proto import api_pb2

from phalanx.model.cluster import MemberState, Phase
from phalanx.model.node import ByHand
from phalanx.model.work import CallState, InputState
from tests.weather.ranks import expected
from tests.weather.rows import Changes

Result = api_pb2.GenericResult
MEANT = (MemberState.IMPORTING, MemberState.READY)
RUNS = (*MEANT, MemberState.EXITED)
DIGESTED = ("call", "input", "attempt", "output", "assignment", "member")      # others have protobuf maps, which have an order of their own
EXCUSES = ("cut", "stalled")        # an attempt that met one of these may have run out of time by no fault of its own


@dataclass
class CallTruth:
    """One acknowledged call."""

    call_id: str
    function: Any
    arguments: list[bytes]
    may_be_terminated: bool = False     # somebody cancelled it, or stopped what it needs
    got: dict[int, Any] = field(default_factory=dict)       # idx -> GenericResult


class Truth:
    def __init__(self, world: Any) -> None:
        self.world = world
        self.wrong: list[str] = []
        self.calls: dict[str, CallTruth] = {}       # that somebody waits for
        self.ever: dict[str, CallTruth] = {}
        self.faults: dict[str, set[int]] = defaultdict(set)             # input id -> attempts in which its program failed
        self.crashes: dict[int, set[int]] = defaultdict(set)            # assignment -> ranks whose process died by its program's fault
        self.hangs: dict[str, set[int]] = defaultdict(set)              # input id -> attempts that never end by themselves
        self.import_faults: dict[str, int] = defaultdict(int)           # function name -> containers that failed before an input
        self.infra_of: dict[int, list[str]] = defaultdict(list)         # assignment -> what hit it
        self.returns: dict[str, set[int]] = defaultdict(set)            # input id -> assignments whose rank 0 returned
        self.alive: dict[str, dict[Any, Any]] = defaultdict(dict)       # host name -> rank objects
        self.running: dict[str, dict[Any, int]] = defaultdict(dict)     # input id -> rank object -> assignment
        self.holders: dict[str, dict[int, bool]] = defaultdict(dict)    # node id -> assignments not ended -> whole
        self.counts: dict[str, int] = defaultdict(int)
        self.digest = hashlib.sha256()      # of what was committed about calls and clusters: two worlds are the same, or not

    def say_wrong(self, sentence: str) -> None:
        at = self.world.loop.time()
        self.wrong.append(f"{int(at // 3600)} h {int(at % 3600)} s: {sentence}")

    # ------------------------------------------------------------ what ranks say

    def process_began(self, rank: Any) -> None:
        others = [r for r in self.alive[rank.host.name] if r.spec.assignment != rank.spec.assignment]
        if others and (rank.function.clustered or any(other.function.clustered for other in others)):
            self.say_wrong(
                f"{rank.host.name} runs rank {rank.spec.rank} of assignment {rank.spec.assignment} beside assignment "
                f"{others[0].spec.assignment}: a whole node is one cluster's alone")
        if rank.host.is_cut or self.world.weather.is_rough:
            self.infra_of[rank.spec.assignment].append("cut" if rank.host.is_cut else "stalled")
        self.alive[rank.host.name][rank] = True
        self.counts["processes"] += 1

    def process_ended(self, rank: Any) -> None:
        self.alive[rank.host.name].pop(rank, None)

    def user_code_began(self, rank: Any) -> None:
        """The first barrier let it through: the gang is running, in the store."""
        row = self._rows("assignment").get((rank.spec.assignment,))
        if row is not None and row["phase"] in (Phase.PREPARING, Phase.STARTING):
            self.say_wrong(f"user code of assignment {rank.spec.assignment} began while the store has it {row['phase']}")

    def cluster_hello(self, rank: Any, hello: Any) -> None:
        if hello.cluster_rank != rank.spec.rank or hello.container_ips[rank.spec.rank] != rank.spec.ipv6:
            self.say_wrong(f"rank {rank.spec.rank} was told to be {hello.cluster_rank} of {list(hello.container_ips)}")
        if len(set(hello.container_ips)) != rank.size:
            self.say_wrong(f"assignment {rank.spec.assignment} of {rank.size} has the addresses {list(hello.container_ips)}")

    def input_began(self, rank: Any, item: Any) -> int:
        number = rank.spec.assignment
        for other, assignment in self.running[item.input_id].items():
            if assignment != number:
                self.say_wrong(f"input {item.input_id} runs in assignment {number} while {assignment} runs it on {other.host.name}")
        self.running[item.input_id][rank] = number
        if rank.function.hangs(item.input_id, item.retry_count):
            self.hangs[item.input_id].add(item.retry_count + 1)
        self.counts["deliveries"] += 1
        return number

    def input_left(self, rank: Any, item: Any) -> None:
        self.running[item.input_id].pop(rank, None)

    def user_fault(self, rank: Any, input_id: str, kind: str) -> None:
        self.counts[f"user {kind}"] += 1
        if input_id:
            self.faults[input_id].add(rank.open_inputs[input_id])
            if kind != "exception":     # a process that dies takes all with it that it had not put
                self.crashes[rank.spec.assignment].add(rank.spec.rank)
        else:
            self.import_faults[rank.function.name] += 1
            self.infra(rank.spec.assignment, "import")

    def returned(self, rank: Any, item: Any) -> None:
        if rank.spec.rank == 0:
            self.returns[item.input_id].add(rank.spec.assignment)

    def infra(self, assignment: int, what: str) -> None:
        self.infra_of[assignment].append(what)
        self.counts[what] += 1

    # ------------------------------------------------------------ what people get

    def got(self, call: CallTruth, item: Any) -> None:
        """An output as the client received it."""
        if item.idx in call.got:
            self.say_wrong(f"{call.call_id} got output {item.idx} twice")
        call.got[item.idx] = item.result
        result, function = item.result, call.function
        what = f"{call.call_id} ({function}) output {item.idx} of {item.input_id}"
        self.counts[f"outputs {Result.GenericStatus.Name(result.status)[15:].lower()}"] += 1
        row = self._rows("input").get((item.input_id,))
        was_late = row is not None and result.status == Result.GENERIC_STATUS_TIMEOUT
        if was_late and any(excuse in self.infra_of[row["assignment"]] for excuse in EXCUSES):
            self.hangs[item.input_id].add(row["attempt"])
        if row is not None and self.crashes[row["assignment"]]:     # the process of another input died, and took this one with it
            self.faults[item.input_id].add(row["attempt"])
        faults = len(self.faults[item.input_id] | self.hangs[item.input_id])
        match result.status:
            case Result.GENERIC_STATUS_SUCCESS:
                if result.data != expected(call.arguments[item.idx]):
                    self.say_wrong(f"{what} is {result.data!r}")
                if not self.returns[item.input_id]:
                    self.say_wrong(f"{what} succeeded, and no rank 0 returned it")
            case Result.GENERIC_STATUS_TERMINATED:
                if not call.may_be_terminated:
                    self.say_wrong(f"{what} was terminated, and nobody asked for that: {result.exception}")
            case Result.GENERIC_STATUS_INTERNAL_FAILURE:
                budget = self.world.infra_budget
                if row is not None and row["infra_failures"] <= budget:
                    self.say_wrong(f"{what} was given up after {row['infra_failures']} restarts of {budget}: {result.exception}")
            case Result.GENERIC_STATUS_FAILURE if "in the queue, its deadline" in result.exception:
                if "queue_deadline" not in function.options:
                    self.say_wrong(f"{what} has no deadline: {result.exception}")
                self.counts["deadlines"] += 1
            case _:
                stopped = call.may_be_terminated        # its app was, perhaps between the failure and the last rank's end: no retry then
                if faults <= function.retries and not self.import_faults[function.name] and not stopped:
                    self.say_wrong(
                        f"{what} failed as the user's, with {function.retries} retries and {faults} attempts that did: {result.exception}")

    # ------------------------------------------------------------ what the store says

    def committed(self, changes: Changes) -> None:
        assignments: dict[int, None] = {}
        nodes = {key[0]: old for table, key, old, _ in reversed(changes) if table == "node_record"}      # as they were before
        for table, key, old, new in changes:
            if table == "assignment" and new is not None and (old is None or old["verdict"] != new["verdict"]):
                self._verdict(key[0], new)
        for table, key, old, new in changes:
            if table in DIGESTED:
                self.digest.update(f"{self.world.loop.time():.6f} {table} {key} {new}\n".encode())
            match table:
                case "assignment" | "member":
                    assignments[key[0]] = None
                    if table == "assignment":
                        self._assignment(key[0], old, new)
                        if old is None and new is not None and new["phase"] == Phase.PREPARING:
                            self._placed(key[0], new, nodes)
                case "input":
                    self._input(key[0], old, new)
                case "output":
                    self._output(key[0], old, new)
                case "call" if old is None and new is not None:
                    self.counts["calls made"] += 1
                case "call" if old is not None and new is not None and old["state"] == CallState.DONE and new["state"] != CallState.DONE:
                    self.say_wrong(f"call {key[0]} was done and is {new['state']}")
        for number in assignments:
            self._all_or_nothing(number)

    def _rows(self, table: str) -> dict[tuple[Any, ...], dict[str, Any]]:
        return self.world.plane.rows.tables.get(table, {})  # type: ignore[no-any-return]

    def _members(self, number: int) -> list[dict[str, Any]]:
        row = self._rows("assignment").get((number,))
        members = self._rows("member")
        return [members[number, rank] for rank in range(row["size"]) if (number, rank) in members] if row else []

    def _assignment(self, number: int, old: Any, new: Any) -> None:
        if new is None:
            return
        if old is not None and old["phase"] == Phase.ENDED and new["phase"] != Phase.ENDED:
            self.say_wrong(f"assignment {number} had ended and is {new['phase']}")
        members = self._members(number)
        if new["phase"] == Phase.ENDED:
            for member in members:
                self.holders[member["node_id"]].pop(number, None)
            return
        if len(members) != new["size"]:
            self.say_wrong(f"assignment {number} of {new['size']} has {len(members)} members in the store")
        for member in members:
            holders = self.holders[member["node_id"]]
            holders[number] = bool(new["clustered"])
            if len(holders) > 1 and any(holders.values()):
                self.say_wrong(f"{member['node_id']} is held by assignments {sorted(holders)}, one of them whole")

    def _placed(self, number: int, new: Any, nodes: dict[str, Any]) -> None:
        """Nothing starts on a node that somebody took out of service. `nodes`: those that just changed, as they were before."""
        for member in self._members(number):
            node_id = member["node_id"]
            now = self._rows("node_record").get((node_id,))
            if not any(row is not None and row["by_hand"] == ByHand.SERVING and not row["removed"] for row in (now, nodes.get(node_id))):
                self.say_wrong(f"assignment {number} was placed on {node_id}, which is {now and now['by_hand']}: {now}")

    def _verdict(self, number: int, row: Any) -> None:
        verdict = json.loads(row["verdict"] or "null")
        if verdict is None:
            return
        self.counts[f"ended: {verdict['cause']}"] += row["phase"] == Phase.ENDING
        late = verdict["cause"] == "timeout" and "startup" in verdict["sentence"]
        if late and any(excuse in self.infra_of[number] for excuse in EXCUSES):     # the network's fault: no fault that we know is there
            function = self._rows("function").get((row["function_id"],))
            if function is not None:
                self.import_faults[function["name"]] += 1
        if verdict["cause"] == "preempted" and "drained" not in verdict["sentence"]:
            self._preempted(number, row, verdict["sentence"])

    def _preempted(self, number: int, row: Any, sentence: str) -> None:
        """Only somebody of a higher priority, or whoever runs the fleet, stops a cluster that works."""
        function = self._rows("function").get((row["function_id"],))
        own = int(json.loads(function["options"]).get("priority", 0)) if function is not None else 0
        if own >= 10:
            self.say_wrong(f"assignment {number} has the highest priority and was preempted: {sentence}")

    def _all_or_nothing(self, number: int) -> None:
        """P0: running ranks are none or all, at every committed state."""
        row = self._rows("assignment").get((number,))
        if row is None:
            return
        states = [member["state"] for member in self._members(number)]
        if row["phase"] == Phase.RUNNING and any(state not in RUNS for state in states):
            self.say_wrong(f"assignment {number} is running with members {states}")
        if row["phase"] in (Phase.PREPARING, Phase.STARTING) and any(state in MEANT for state in states):
            self.say_wrong(f"assignment {number} is {row['phase']} with members {states}")

    def _input(self, input_id: str, old: Any, new: Any) -> None:
        if new is None:
            return
        if old is not None:
            if old["state"] == InputState.DONE and new["state"] != InputState.DONE:
                self.say_wrong(f"input {input_id} was decided and is {new['state']}")
            if new["attempt"] < old["attempt"]:
                self.say_wrong(f"input {input_id} went from attempt {old['attempt']} back to {new['attempt']}")
            if new["created_ms"] != old["created_ms"]:
                self.say_wrong(f"input {input_id} lost its place in the queue")
            if new["user_failures"] > old["user_failures"]:
                self._charged(input_id, old)
            if old["state"] == InputState.PENDING and new["state"] == InputState.RUNNING and not old["attempt"]:
                self._in_order(input_id, new)
                early_ms = (old["not_before_ms"] or 0) - self.world.plane.server.now_ms()
                if early_ms > 0:
                    self.say_wrong(f"input {input_id} was to wait {early_ms} ms longer before it is tried again")
        if new["attempt"] > 1 + new["user_failures"] + new["infra_failures"] + new["unpaid_restarts"]:
            self.say_wrong(
                f"input {input_id} is at attempt {new['attempt']} after {new['user_failures']} failures of its own and "
                f"{new['infra_failures']} others, and {new['unpaid_restarts']} that nobody pays")
        call = self.calls.get(new["call_id"])
        if call is not None and new["user_failures"] > call.function.retries:
            self.say_wrong(f"input {input_id} failed {new['user_failures']} times of its own, with {call.function.retries} retries")

    def _charged(self, input_id: str, old: Any) -> None:
        """A failure was charged to the user's budget: it was one."""
        if old["state"] == InputState.PENDING:
            name = self._rows("function")[old["function_id"],]["name"]
            if not self.import_faults[name]:
                self.say_wrong(f"input {input_id} was charged with a failure while it waited, and no import of {name} failed")
            return
        number = old["assignment"]
        verdict = json.loads(self._rows("assignment")[number,]["verdict"] or "null")
        late = verdict is not None and verdict["cause"] == "timeout"
        if late and any(excuse in self.infra_of[number] for excuse in EXCUSES):
            self.hangs[input_id].add(old["attempt"])
        attempt = self._rows("attempt").get((input_id, old["attempt"]))
        put = {int(rank) for rank in json.loads(attempt["results"])} if attempt is not None else set()
        if self.crashes[number] - put:
            self.faults[input_id].add(old["attempt"])
        if old["attempt"] not in self.faults[input_id] and not (late and old["attempt"] in self.hangs[input_id]):
            self.say_wrong(
                f"input {input_id} was charged with a failure in assignment {number}, where its program did not fail; "
                f"what hit it: {self.infra_of[number]}; the verdict: {verdict and verdict['sentence']}")

    def _in_order(self, input_id: str, row: Any) -> None:
        entry = row["created_ms"], row["idx"], input_id
        for (other_id,), other in self._rows("input").items():
            same = other["function_id"] == row["function_id"] and other["state"] == InputState.PENDING and not other["not_before_ms"]
            if same and (other["created_ms"], other["idx"], other_id) < entry:
                self.say_wrong(f"input {input_id} went before {other_id}, which waits longer")
                return

    def _output(self, input_id: str, old: Any, new: Any) -> None:
        if old is not None and new is not None and old != new:
            self.say_wrong(f"input {input_id} was decided twice")
