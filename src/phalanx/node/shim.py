"""One per container: parent of its processes, owner of its API socket, its output and its exit status. stdlib only.

It is forked by the launcher and outlives agent and server. One thread, one selector; the few blocking calls (runtime, ip) run before the
container starts and after it ended.
"""

from __future__ import annotations

import contextlib
import heapq
import itertools
import os
import select
import selectors
import signal
import socket
import time
import traceback
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from . import forking, gpu_memory, namespaces, network, processes, runtime
from .control import Listener
from .relay import Relay
from .runtime import RuntimeFault
from .spec import Exit, Spec
from .spool import STDERR, STDOUT, SYSTEM, SpoolWriter

_READ = 64 * 1024
_MEMORY_WATCH_SECONDS = 0.5
_LINGER_SECONDS = 0.05
_WAITER_SECONDS = 1.0       # from a forked process's end to its waiter's word: a turn of the kernel's scheduler
_LEASE_LOOK_SECONDS = 3.0       # timers don't count time asleep, leases do
_LEASE_SLACK_MS = 2_000         # the agent stops it by then, and says why; this is for when there is no agent
_UNKILLABLE_SECONDS = 10.0


def run(folder: str, report: Callable[[dict[str, Any]], None]) -> None:
    """The whole life of a shim. `report` is told once: prepared, or refused with a sentence."""
    spec = Spec.load(folder)
    _own_files(spec)
    namespaces.become_subreaper()
    try:
        if spec.runtime != "process":
            namespaces.private_mounts()
            hide_second_hierarchy(spec)
        shim = Shim(spec)
    except (RuntimeFault, OSError) as error:
        report({"refused": str(error)})
        return
    report({"prepared": True})
    shim.loop()


class Shim:
    def __init__(self, spec: Spec) -> None:
        self.spec = spec
        self.phase = "prepared"        # then running, ended, released
        self.selector = selectors.DefaultSelector()
        self.timers: list[tuple[float, int, Callable[[], None]]] = []
        self._timer_order = itertools.count()
        self.main = 0
        self.status: int | None = None      # as wait(2) gives it; None: nobody saw the end
        self.stopping = False
        self.kill_at = 0.0
        self.until_ms = self.reached_ms = 0     # its lease: 0 for none
        self.fenced = ""
        self.started_ms = 0
        self.ended: Exit | None = None
        self.pipes: dict[int, int] = {}     # descriptor → stream
        self.relays: list[Relay] = []
        self.spool = SpoolWriter(spec.spool, spec.spool_limit_bytes)
        control = _listen(spec.control_socket, 0o600)
        api = _listen(spec.api_socket, 0o666)
        self.runtime = runtime.make(spec)
        try:
            gpu_memory.note(spec)
            self.runtime.prepare()
            self._relay(api)
            if spec.http_address:
                self._relay(self._listen_inside(spec.http_address), os.geteuid() if self.runtime.network() is None else None)
        except BaseException:
            self.runtime.release()
            for path in (spec.control_socket, spec.api_socket):
                os.unlink(path)
            raise
        self.control = Listener(control, self.selector, self._state, self._obey)
        self._watch_children()

    def loop(self) -> None:
        while self.phase != "released":
            timeout = max(0.0, self.timers[0][0] - time.monotonic()) if self.timers else None
            for key, events in self.selector.select(timeout):
                # An earlier callback of this round may have closed it, and another one have its number by now.
                current = self.selector.get_map().get(key.fd)
                if current is not None and current.data is key.data and not self._survive(lambda k=key, e=events: k.data(e)):
                    with contextlib.suppress(KeyError, ValueError):
                        self.selector.unregister(key.fileobj)
            while self.timers and self.timers[0][0] <= time.monotonic():
                self._survive(heapq.heappop(self.timers)[2])

    def _survive(self, call: Callable[[], object]) -> bool:
        """A fault in one connection must not cost the container: it goes to shim.log, and we go on. False when there was one."""
        try:
            call()
        except Exception:
            traceback.print_exc()
            return False
        return True

    def later(self, seconds: float, call: Callable[[], None]) -> None:
        heapq.heappush(self.timers, (time.monotonic() + seconds, next(self._timer_order), call))

    # ---------------------------------------------------------------- what the agent asks

    def _state(self) -> dict[str, Any]:
        return {"phase": self.phase, "boottime_ms": self.started_ms, "exit": None if self.ended is None else asdict(self.ended),
                "until_ms": self.until_ms, "reached_ms": self.reached_ms}

    def _obey(self, message: dict[str, Any]) -> None:
        match message["do"]:
            case "start":
                self._start()
            case "stop":
                self._stop(message["signal"], message["grace_ms"], message.get("fenced", ""))
            case "lease":
                self._lease(message["until_ms"], message["reached_ms"])
            case "check":
                number = message["id"]
                network.PeerCheck(
                    self.runtime.network(), message["addresses"], self.selector, self.later,
                    lambda silent: self.control.say(say="checked", id=number, silent=silent))
            case "acknowledge":
                self.spool.acknowledge(message["offset"])
            case "release":
                self._release()

    def _start(self) -> None:
        if self.phase != "prepared" or self.stopping:
            return
        out_read, out_write = os.pipe()
        err_read, err_write = os.pipe()
        try:
            self.main = self.runtime.start(out_write, err_write)
        except RuntimeFault as fault:
            self._end(Exit(code=127, sentence=str(fault), never_started=True))
            return
        finally:
            os.close(out_write)
            os.close(err_write)
            for descriptor, stream in ((out_read, STDOUT), (err_read, STDERR)):
                self.pipes[descriptor] = stream
                os.set_blocking(descriptor, False)
                self.selector.register(descriptor, selectors.EVENT_READ, lambda _events, fd=descriptor: self._read(fd))
        self.phase = "running"
        if self.runtime.forked is not None:
            self.selector.register(self.runtime.forked.status, selectors.EVENT_READ, self._hear_status)
        self.started_ms = boottime_ms()
        self.control.say(say="started", boottime_ms=self.started_ms)
        if self.spec.limits.memory_bytes and not self.runtime.enforces_memory:
            self._watch_memory()

    def _lease(self, until_ms: int, reached_ms: int) -> None:
        """Until when it may run if the agent says no more (design rule 3), and for a later agent: when the control plane was reached."""
        first, self.until_ms, self.reached_ms = not self.until_ms, until_ms, reached_ms
        if first and until_ms:
            self._watch_lease()

    def _watch_lease(self) -> None:
        if not self.until_ms or self.phase not in ("prepared", "running") or self.stopping:
            return
        left_ms = self.until_ms + _LEASE_SLACK_MS - boottime_ms()
        if left_ms > 0:
            self.later(min(left_ms / 1000, _LEASE_LOOK_SECONDS), self._watch_lease)
            return
        self._stop(signal.SIGINT, self.spec.grace_ms, "the agent of its node was gone, and nobody could say that it may go on")

    def _stop(self, number: int, grace_ms: int, fenced: str = "") -> None:
        """Interrupt, and SIGKILL after the grace; asked twice, the shorter grace holds. `fenced`: why it must not run on."""
        self._look_for_end()    # one that has ended by itself was not stopped: the verdict over its gang turns on it
        self.fenced = self.fenced or ("" if self.stopping else fenced)
        if self.phase == "prepared":
            self.stopping = True
            self._end(Exit(sentence="stopped before it started", never_started=True))
            return
        if self.phase != "running":
            return
        deadline = time.monotonic() + grace_ms / 1000
        self.kill_at = min(self.kill_at, deadline) if self.stopping else deadline
        self.stopping = True
        if number == signal.SIGKILL:
            self.kill_at = 0.0
        elif self.main:
            self.runtime.signal(number)
        self.later(max(0.0, self.kill_at - time.monotonic()), self._kill_if_due)

    def _kill_if_due(self) -> None:
        if self.phase != "running" or time.monotonic() < self.kill_at:
            return
        if self.main:
            self.runtime.signal(signal.SIGKILL)
            self.later(_UNKILLABLE_SECONDS, self._give_up)
        else:
            self._finish()

    def _give_up(self) -> None:
        """SIGKILL has not ended it: in the kernel, waiting for a disk or a driver. The gang must not wait for that."""
        if self.phase != "running":
            return
        self._drain()
        self._end(Exit(
            signal=signal.SIGKILL, unkillable=True,
            sentence=f"process {self.main} had not ended {_UNKILLABLE_SECONDS:g} s after SIGKILL: it hangs in the kernel"))

    def _release(self) -> None:
        if self.phase == "running":
            self.runtime.signal(signal.SIGKILL)
        if self.ended is not None and self.ended.unkillable:
            self.runtime.patience_s = runtime.LAST_PATIENCE_SECONDS      # it had its time; the gang's other nodes wait for us
        remains = "; ".join(filter(None, [self.runtime.release(), gpu_memory.remains(self.spec)]))
        if self.runtime.forked is not None:
            self.runtime.forked.status.close()
        for relay in self.relays:
            relay.close()
        self.spool.close()
        for path in (self.spec.api_socket, self.spec.control_socket):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
        self.phase = "released"
        self.control.say(say="released", remains=remains)

    # ---------------------------------------------------------------- what the container does

    def _read(self, descriptor: int) -> bool:
        """One read into the spool; False when there is nothing (more) now."""
        if descriptor not in self.pipes:
            return False
        try:
            data = os.read(descriptor, _READ)
        except BlockingIOError:
            return False
        if not data:
            self.selector.unregister(descriptor)
            os.close(descriptor)
            del self.pipes[descriptor]
            return False
        self.spool.append(self.pipes[descriptor], time.time_ns(), data)
        self.control.say_once(say="logs")
        return True

    def _reap(self, _events: int) -> None:
        with contextlib.suppress(BlockingIOError):
            while self._wakeup.recv(64):
                pass
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid == self.main and self.phase == "running":
                self.main = 0
                self.status = status
                self._main_ended()

    def _look_for_end(self) -> None:
        """Has it ended by now? Of a forked process its waiter knows, which tells it a moment later."""
        self._reap(0)
        forked = self.runtime.forked
        if forked is None or not self.main or not processes.has_ended(forked.pid):
            return
        if select.select([forked.status], [], [], _WAITER_SECONDS)[0]:
            self._hear_status(0)

    def _hear_status(self, _events: int) -> None:
        """Of a process that a zygote forked, from its parent."""
        assert self.runtime.forked is not None
        status = forking.status_of(self.runtime.forked.status)
        self.selector.unregister(self.runtime.forked.status)
        self.runtime.forked.lost = status is None
        if self.phase == "running":
            self.main, self.status = 0, status
            self._main_ended()

    def _main_ended(self) -> None:
        """The user's process is gone. What it left behind goes too, at once, or when the grace of a stop is over: `sh` dies of the
        signal that its child still answers to."""
        if self.phase != "running":
            return
        if self.stopping and time.monotonic() < self.kill_at and self.runtime.lingering():
            self.later(_LINGER_SECONDS, self._main_ended)
            return
        self._finish()

    def _drain(self) -> None:
        for descriptor in list(self.pipes):
            while descriptor in self.pipes and self._read(descriptor):
                pass

    def _finish(self) -> None:
        killed = self.runtime.kill()
        self._drain()
        used = self.runtime.memory_use()
        if self.status is None:
            sentence = "how the container ended nobody saw: its waiter, a process beside it, was killed"
            self._end(Exit(code=255, unseen=True, sentence=sentence))
            return
        died_of = os.WTERMSIG(self.status) if os.WIFSIGNALED(self.status) else 0
        code = 0 if died_of else os.WEXITSTATUS(self.status)
        self._end(Exit(
            code=code,
            signal=died_of,
            # A child that ran out of memory in a container that went on and ended well is no failure.
            oom_killed=used.oom_kills > 0 and (code != 0 or died_of != 0),
            memory_limit_bytes=used.limit_bytes or self.spec.limits.memory_bytes,
            memory_peak_bytes=used.peak_bytes,
            unkillable=not killed,
        ))

    def _end(self, ended: Exit) -> None:
        if self.spool.lost_lines:
            self.spool.append(SYSTEM, time.time_ns(), b"")
        ended.fenced, ended.stopped = self.fenced, self.stopping
        ended.log_end = self.spool.end
        ended.boottime_ms = boottime_ms()
        self.phase, self.ended = "ended", ended
        with contextlib.suppress(OSError):      # a full disk: we know it as long as we live
            ended.save(self.spec.folder)
        self.control.say(say="ended", exit=asdict(ended))

    def _watch_memory(self) -> None:
        if self.phase != "running":
            return
        self.runtime.watch_memory()
        self.later(_MEMORY_WATCH_SECONDS, self._watch_memory)

    # ---------------------------------------------------------------- sockets

    def _watch_children(self) -> None:
        self._wakeup, writer = socket.socketpair()
        self._wakeup.setblocking(False)
        writer.setblocking(False)
        self._wakeup_writer = writer
        signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        self.selector.register(self._wakeup, selectors.EVENT_READ, self._reap)

    def _relay(self, listener: socket.socket, only_uid: int | None = None) -> None:
        preamble = f"PHALANX/1 task {self.spec.task_id} {self.spec.assignment} {self.spec.task_secret}\n"
        self.relays.append(Relay(listener, self.spec.tasks_socket, preamble.encode(), self.selector, self.later, only_uid))

    def _listen_inside(self, address: str) -> socket.socket:
        host, _, port = address.rpartition(":")
        namespace = self.runtime.network()
        with contextlib.nullcontext() if namespace is None else namespaces.inside_network(namespace):
            listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
            listener.bind((host, int(port)))
            listener.listen(128)
            return listener


def sweep(folder: str, patience_s: float) -> str:
    """Remove what a container of a dead shim left on the machine; its spool and exit status stay. Answers what remains, or nothing.
    `patience_s`: how long what is killed may take to end."""
    spec = Spec.load(folder)
    if spec.runtime != "process":
        namespaces.private_mounts()
        hide_second_hierarchy(spec)
    left = runtime.make(spec)
    left.patience_s = patience_s
    remains = "; ".join(filter(None, [left.release(), gpu_memory.remains(spec)]))
    for path in (spec.api_socket, spec.control_socket):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
    return remains


def boottime_ms() -> int:
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000


def hide_second_hierarchy(spec: Spec) -> None:
    """crun 1.8 refuses a machine whose v1 cgroups have a v2 tree beside them ("cgroups in hybrid mode not supported").

    In our own mount namespace a tmpfs over that tree makes it see v1 alone; nothing changes for anybody else. (Unmounting the tree is not
    enough: crun then leaves plain files in the folder below it, which is the machine's.) Rootless, no cgroups are made: all is hidden.
    """
    if spec.runtime != "crun" or os.path.exists("/sys/fs/cgroup/cgroup.controllers"):
        return
    if spec.rootless:
        namespaces.mount("tmpfs", "/sys/fs/cgroup", "tmpfs")
    elif os.path.exists("/sys/fs/cgroup/unified/cgroup.procs"):
        namespaces.mount("tmpfs", "/sys/fs/cgroup/unified", "tmpfs")


def _own_files(spec: Spec) -> None:
    """Away from the launcher's descriptors: a container's trouble is written in its own folder."""
    null = os.open(os.devnull, os.O_RDWR)
    log = os.open(os.path.join(spec.folder, "shim.log"), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for target, source in ((0, null), (1, log), (2, log)):
        os.dup2(source, target)
    os.close(null)
    os.close(log)


def _listen(path: str, mode: int) -> socket.socket:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(path)
    os.chmod(path, mode)
    listener.listen(128)
    return listener


def log_crash() -> None:
    """The last words of a shim that failed in a way nobody thought of."""
    traceback.print_exc()
