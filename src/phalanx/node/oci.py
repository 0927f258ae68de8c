"""Containers by crun, runc or runsc: overlay root, namespaces, cgroups, dropped capabilities. Runs in the shim, stdlib only.

The container's first process is `sleep` with SIGCHLD ignored: the kernel then reaps orphans for it, at no cost. The user's process is
started beside it by `exec`, so that it is a child of the shim: its exit status is the real one, it can be signalled like any process
(a first process ignores signals it has no handler for), and starting it is all that is left to do after prepare.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import time

from . import cgroups, forking, namespaces, network, programs
from .forking import NotForked
from .oci_config import bundle_config, fork_request, process_config
from .runtime import Runtime, RuntimeFault
from .spec import Spec


class OciRuntime(Runtime):
    def __init__(self, spec: Spec) -> None:
        super().__init__(spec)
        self.namespace: int | None = None
        self.first = 0           # pid of the container's first process
        self.group = 0           # process group of the user's process
        self.root = os.path.join(spec.folder, "root")

    def prepare(self) -> None:
        try:
            self._mount()
            if self.spec.network is not None:
                self.namespace = namespaces.new_network()
            starting = self._run_first()
            try:
                if self.spec.network is not None:      # while the runtime works: it needs the namespace only, not what is in it
                    network.attach(self.spec.network, self.namespace)
            finally:
                self._end(starting)
            with open(self._first_pid) as file:
                self.first = int(file.read())
        except (OSError, programs.ProgramFailed) as error:
            self.release()
            raise RuntimeFault(str(error)) from error
        except RuntimeFault:
            self.release()
            raise

    def start(self, stdout: int, stderr: int) -> int:
        spec = self.spec
        if spec.zygote:
            try:
                return self._fork(stdout, stderr)
            except NotForked as why:
                print(f"not forked from the zygote, but started by {spec.runtime}: {why}", file=sys.stderr, flush=True)
        process = os.path.join(spec.folder, "process.json")
        with open(os.open(process, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
            json.dump(process_config(spec, spec.command, spec.environment, spec.working_folder), file)
        pid_file = os.path.join(spec.folder, "main.pid")
        self._runtime(["exec", "--detach", "--pid-file", pid_file, "--process", process, spec.cgroup], stdout=stdout, stderr=stderr)
        with open(pid_file) as file:
            main = int(file.read())
        self.group = os.getpgid(main)       # the runtime gives it a session of its own
        return main

    def _fork(self, stdout: int, stderr: int) -> int:
        """What `exec` does, without an interpreter's start and the runner's import."""
        spec = self.spec
        request = fork_request(spec, spec.command, spec.environment, spec.working_folder)
        self.forked = forking.fork(spec.zygote, request, stdout, stderr, self.first, "" if spec.rootless else spec.cgroup)
        self.group = os.getpgid(self.forked.pid)
        return self.forked.pid

    def signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.group, number)

    def lingering(self) -> bool:
        try:
            os.killpg(self.group, 0)
        except ProcessLookupError:
            return False
        return True

    def kill(self) -> bool:
        deadline = time.monotonic() + self.patience_s
        if self.first:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.first, signal.SIGKILL)
            # The kernel ends the first process only after everything else in its PID namespace.
            self._wait_gone(self.first, deadline)
        return cgroups.kill(self.spec.cgroup, max(0.0, deadline - time.monotonic()))

    @property
    def enforces_memory(self) -> bool:
        return not self.spec.rootless

    def members(self) -> set[int]:
        return self.family() if self.spec.rootless else cgroups.processes(self.spec.cgroup)

    def memory_use(self) -> cgroups.MemoryUse:
        return cgroups.memory_use(self.spec.cgroup) if self.enforces_memory else super().memory_use()

    def network(self) -> int | None:
        return self.namespace

    def release(self) -> str:
        remains = []
        if not self.kill():
            remains.append(f"processes {sorted(cgroups.processes(self.spec.cgroup))} that SIGKILL does not end")
        with contextlib.suppress(RuntimeFault):
            self._runtime(["delete", "--force", self.spec.cgroup])
        remains.append(cgroups.remove(self.spec.cgroup))
        remains.append(self._unmount())
        if self.namespace is not None:
            os.close(self.namespace)
            self.namespace = None
        remains.append(self._drop_port())
        return "; ".join(filter(None, remains))

    def _mount(self) -> None:
        """The root: layers over the default image's skeleton, and a folder that takes the container's writes."""
        spec = self.spec
        os.makedirs(self.root, exist_ok=True)
        try:
            self._overlay(os.path.join(spec.folder, "writes"))
        except OSError as error:
            if error.errno not in (errno.EINVAL, errno.EOPNOTSUPP):
                raise
            # The state folder is on a file system that can't take an overlay's writes, such as a container's own root: memory can.
            scratch = os.path.join(spec.folder, "scratch")
            os.makedirs(scratch, exist_ok=True)
            namespaces.mount("tmpfs", scratch, "tmpfs", namespaces.MS_NOSUID | namespaces.MS_NODEV, "mode=755")
            self._overlay(scratch)
        for index, mount in enumerate(spec.mounts):
            if not mount.overlay:
                continue
            over = os.path.join(spec.folder, f"over{index}")
            os.makedirs(over, exist_ok=True)
            namespaces.mount("overlay", over, "overlay", namespaces.MS_RDONLY, "lowerdir=" + _joined([*mount.overlay, mount.source]))
            mount.source = over

    @property
    def _first_pid(self) -> str:
        return os.path.join(self.spec.folder, "first.pid")

    def _overlay(self, writes: str) -> None:
        upper, work = os.path.join(writes, "upper"), os.path.join(writes, "work")
        os.makedirs(upper, mode=0o755, exist_ok=True)
        os.makedirs(work, mode=0o755, exist_ok=True)
        options = f"lowerdir={_joined(self.spec.layers)},upperdir={_escaped(upper)},workdir={_escaped(work)}"
        if self.spec.rootless:
            options += ",userxattr"        # an overlay's own marks: trusted.* is for the machine's root only
        namespaces.mount("overlay", self.root, "overlay", 0, options)

    def _run_first(self) -> subprocess.Popen[bytes]:
        spec = self.spec
        namespace = None if self.namespace is None else f"/proc/{os.getpid()}/fd/{self.namespace}"
        with open(os.path.join(spec.folder, "config.json"), "w") as file:
            json.dump(bundle_config(spec, self.root, namespace), file)
        return self._begin(["run", "--detach", "--bundle", spec.folder, "--pid-file", self._first_pid, spec.cgroup])

    def _runtime(self, arguments: list[str], stdout: int = subprocess.DEVNULL, stderr: int = subprocess.DEVNULL) -> None:
        """Run the runtime's own command to its end. RuntimeFault holds what it logged."""
        self._end(self._begin(arguments, stdout, stderr))

    def _begin(
        self, arguments: list[str], stdout: int = subprocess.DEVNULL, stderr: int = subprocess.DEVNULL,
    ) -> subprocess.Popen[bytes]:
        spec = self.spec
        state = os.path.join(os.path.dirname(spec.control_socket), "runtime")
        flags = ["--root", state, "--log", self._log, "--log-format", "json"]
        if spec.runtime == "crun":
            flags.append("--cgroup-manager=disabled" if spec.rootless else "--cgroup-manager=cgroupfs")
        if spec.runtime == "runsc":
            flags += ["--platform=ptrace", "--ignore-cgroups", "--host-uds=open"]
        return subprocess.Popen(
            [spec.program, *flags, *arguments], stdin=subprocess.DEVNULL, stdout=stdout, stderr=stderr,
            start_new_session=True, cwd=spec.folder if os.path.isdir(spec.folder) else "/")     # it may be gone when we clean up

    def _end(self, process: subprocess.Popen[bytes]) -> None:
        if process.wait(timeout=60) != 0:
            raise RuntimeFault(f"{self.spec.runtime}: {_last_message(self._log) or f'exit code {process.returncode}'}")

    @property
    def _log(self) -> str:
        return os.path.join(self.spec.folder, "runtime.log")

    def _wait_gone(self, pid: int, deadline: float) -> None:
        while time.monotonic() < deadline:
            with contextlib.suppress(ChildProcessError):
                if os.waitpid(pid, os.WNOHANG)[0] == pid:
                    return
            try:
                os.kill(pid, 0)
            except ProcessLookupError:
                return
            time.sleep(0.001)

    def _unmount(self) -> str:
        overs = [os.path.join(self.spec.folder, f"over{index}") for index in range(len(self.spec.mounts))]
        for target in (self.root, *overs, os.path.join(self.spec.folder, "scratch")):
            if os.path.ismount(target):
                try:
                    namespaces.unmount(target)
                except OSError as error:
                    return str(error)
        shutil.rmtree(os.path.join(self.spec.folder, "writes"), ignore_errors=True)
        return ""

    def _drop_port(self) -> str:
        """The veth pair goes with the namespace, a moment later; this does it at once."""
        if self.spec.network is None:
            return ""
        port = self.spec.network.port
        if network.exists(port):
            with contextlib.suppress(programs.ProgramFailed):
                programs.run(["ip", "link", "del", port], may_fail=True)
        return f"network link {port}" if network.exists(port) else ""


def _joined(folders: list[str]) -> str:
    return ":".join(_escaped(folder) for folder in folders)


def _escaped(path: str) -> str:
    return path.replace("\\", "\\\\").replace(":", "\\:").replace(",", "\\,")


def _last_message(path: str) -> str:
    """What the runtime logged last, which is why it failed."""
    with contextlib.suppress(OSError, ValueError, LookupError), open(path) as file:
        return str(json.loads(file.read().strip().splitlines()[-1])["msg"])
    return ""
