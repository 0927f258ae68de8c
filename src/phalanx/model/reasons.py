"""Why a request waits: an enum and numbers, made by the code that decided; `sentence` makes the text at the edge."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class ReasonCode(StrEnum):
    """The one dominant reason. The facts that go with each are named in docs/scheduling.md."""

    NO_CAPACITY = "no_capacity"      # need, free, held… : not enough free nodes anywhere it may run
    FRAGMENTED = "fragmented"        # need, free, largest: enough nodes, not on one fabric
    RESERVED = "reserved"            # it would fit, and would delay the gang with the dated reservation
    RETAINED = "retained"            # it would fit on nodes that are kept for another gang for a while
    QUOTA = "quota"                  # workspace, used, limit, need, gpu_type where it is about GPUs
    DOMAIN = "domain"                # fabric_size, need, best: no NVLink domains with whole blocks free
    PROVISIONING = "provisioning"    # coming, ready_ms
    PREEMPTING = "preempting"        # victims were told to stop; starts when their nodes are clean
    BACKOFF = "backoff"              # until_ms, attempt, why
    DRAINING = "draining"            # it would fit if nodes were not cordoned, draining or down
    IMPOSSIBLE = "impossible"        # it can never fit this fleet: ask and largest


class WishKind(StrEnum):
    """What single change would start the request now."""

    NODES_ADDED = "nodes_added"          # count more nodes in `what`
    HOLD_ENDED = "hold_ended"            # the end of cluster `what`
    QUOTA_RAISED = "quota_raised"        # by count nodes for workspace `what`
    RESERVATION_GONE = "reservation_gone"
    NODES_BACK = "nodes_back"            # count nodes in `what` back in service
    FABRIC_SIZE = "fabric_size"          # fabric_size lowered to count
    ASK_CHANGED = "ask_changed"


@dataclass(frozen=True, slots=True)
class Wish:
    """One change that would start the request now."""

    kind: WishKind
    count: int = 0
    what: str = ""


Number = int | str


@dataclass(frozen=True, slots=True)
class Reason:
    """`numbers` are (name, value) pairs in a fixed order, counts in nodes and times in ms. `earliest_start_ms` None: can't be said."""

    code: ReasonCode
    numbers: tuple[tuple[str, Number], ...] = ()
    earliest_start_ms: int | None = None
    would_start_if: Wish | None = None

    def number(self, name: str, default: int = 0) -> int:
        """The integer called `name`."""
        value = dict(self.numbers).get(name, default)
        return value if isinstance(value, int) else default

    def text(self, name: str, default: str = "") -> str:
        """The string called `name`."""
        return str(dict(self.numbers).get(name, default))


def sentence(reason: Reason, now_ms: int | None = None) -> str:
    """One line for people: "waiting for 4 nodes with 8 H100: 2 free, 2 held by cu-12". With `now_ms` an expected start is added."""
    text = _SENTENCES[reason.code](reason)
    if now_ms is not None and reason.earliest_start_ms is not None:
        text += f"; expected in {duration(reason.earliest_start_ms - now_ms)}"
    return text


def wish_sentence(wish: Wish) -> str:
    """What would start it now, for people."""
    nodes = _nodes(wish.count)
    return {
        WishKind.NODES_ADDED: f"{nodes} more" + (f" in network {wish.what}" if wish.what else ""),
        WishKind.HOLD_ENDED: f"the end of {wish.what}",
        WishKind.QUOTA_RAISED: f"{nodes} more quota for {wish.what}",
        WishKind.RESERVATION_GONE: f"the start of {wish.what}, or a shorter time-out",
        WishKind.NODES_BACK: f"{nodes} back in service" + (f" in network {wish.what}" if wish.what else ""),
        WishKind.FABRIC_SIZE: f"fabric_size={wish.count}",
        WishKind.ASK_CHANGED: wish.what,
    }[wish.kind]


def duration(ms: int) -> str:
    """"45 s", "12 min", "3.5 h": two digits are enough for a forecast."""
    seconds = max(0, (ms + 999) // 1000)
    if seconds < 120:
        return f"{seconds} s"
    if seconds < 7200:
        return f"{(seconds + 59) // 60} min"
    return f"{seconds / 3600:.1f} h"


def _nodes(count: int) -> str:
    return f"{count} node" if count == 1 else f"{count} nodes"


def _wanted(reason: Reason) -> str:
    what = reason.text("each")
    if reason.number("containers"):
        count = reason.number("containers")
        return f"room for {count} container{'' if count == 1 else 's'}" + (f" with {what}" if what else "")
    return _nodes(reason.number("need")) + (f" with {what}" if what else "")


def _occupied(reason: Reason) -> str:
    """", 2 held by cu-1 and cu-2; 1 draining (gpu-health)": what the nodes that are not free do."""
    parts = []
    if reason.number("held"):
        holders = reason.text("held_by")
        parts.append(f"{reason.number('held')} held" + (f" by {holders}" if holders else ""))
    for name in ("draining", "drained", "cordoned", "down", "shared", "retained", "excluded", "reserved"):
        if reason.number(name):
            why = reason.text(f"{name}_why")
            parts.append(f"{reason.number(name)} {name}" + (f" ({why})" if why else ""))
    return ", ".join(parts)


def _no_capacity(reason: Reason) -> str:
    network = reason.text("network")
    free, need = reason.number("free"), reason.number("need")
    occupied = _occupied(reason)
    if network:
        return f"network {network}: {free} of {need} nodes free" + (f"; {occupied}" if occupied else "")
    what_else = f", {occupied}" if occupied else ""
    return f"waiting for {_wanted(reason)}: {free} nodes free{what_else}" if reason.number("containers") else (
        f"waiting for {_wanted(reason)}: {free} free{what_else}"
    )


def _fragmented(reason: Reason) -> str:
    return (
        f"waiting for {_wanted(reason)} on one network: {reason.number('free')} free, "
        f"at most {reason.number('largest')} of them together ({reason.text('network')})"
    )


def _reserved(reason: Reason) -> str:
    return f"waiting for {_wanted(reason)}: {reason.number('free')} free, kept for {reason.text('for')} which starts first"


def _retained(reason: Reason) -> str:
    kept = f"{reason.number('retained')} kept for {reason.text('for')} for a while"
    return f"waiting for {_wanted(reason)}: {reason.number('free')} free, {kept}"


def _quota(reason: Reason) -> str:
    what = reason.text("gpu_type", "nodes")
    return (
        f"quota of {reason.text('workspace')}: {reason.number('used')} of {reason.number('limit')} {what} in use, "
        f"this asks {reason.number('need')}"
    )


def _domain(reason: Reason) -> str:
    return (
        f"waiting for {_wanted(reason)} in blocks of fabric_size={reason.number('fabric_size')}: "
        f"room for {reason.number('best')} in whole blocks, {reason.number('free')} free in all"
    )


def _provisioning(reason: Reason) -> str:
    return f"waiting for {_wanted(reason)}: {reason.number('free')} free, {reason.number('coming')} on their way"


def _preempting(reason: Reason) -> str:
    return f"waiting for {_wanted(reason)}: stopping {reason.text('victims')} for it"


def _backoff(reason: Reason) -> str:
    why = reason.text("why")
    return f"backing off before the next start: {why}" if why else f"backing off after attempt {reason.number('attempt')}"


def _draining(reason: Reason) -> str:
    occupied = _occupied(reason)
    network = reason.text("network")
    place = f"network {network}: " if network else f"waiting for {_wanted(reason)}: "
    return f"{place}{reason.number('free')} of {reason.number('need')} nodes free; {occupied}"


def _impossible(reason: Reason) -> str:
    return f"can never fit: {reason.text('why')}"


_SENTENCES = {
    ReasonCode.NO_CAPACITY: _no_capacity,
    ReasonCode.FRAGMENTED: _fragmented,
    ReasonCode.RESERVED: _reserved,
    ReasonCode.RETAINED: _retained,
    ReasonCode.QUOTA: _quota,
    ReasonCode.DOMAIN: _domain,
    ReasonCode.PROVISIONING: _provisioning,
    ReasonCode.PREEMPTING: _preempting,
    ReasonCode.BACKOFF: _backoff,
    ReasonCode.DRAINING: _draining,
    ReasonCode.IMPOSSIBLE: _impossible,
}
