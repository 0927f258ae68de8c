"""The program of a zygote: it has the stock runner imported, and forks into a prepared container when a shim asks. stdlib only.

Not imported by anybody: a zygote's interpreter reads this text from descriptor 3 and executes it (zygote.py), so it runs where nothing of
phalanx is. Descriptor 4 listens. The zygote itself never reads a request, a child of it does: so no container's environment is ever in
memory that later containers are forked from. A request is its length (4 bytes), a JSON object, and descriptors with the first bytes:

    {"facts": true}                      → what was imported, and which names of the environment that looked at
    {"argv", "env", "cwd", "rlimits",    → {"pid": N, "waiter": M} when the new process stands in the container, or {"failed": "…"};
     "capabilities", "seccomp"}            then one byte "g" lets it go, and four bytes of wait status follow when it has ended
    descriptors: stdout, stderr, and for a container the pidfd of its first process and its groups' cgroup.procs
"""

import os
import sys

RUNNER = "modal._container_entrypoint"


def import_runner(name):
    """Answers which names of the environment the import looked at ("*": all). The module itself is left to be run anew, as by `-m`."""
    kind = type(os.environ)
    plain_get, plain_iterate = kind.__getitem__, kind.__iter__
    looked = set()

    def get(self, key):
        looked.add(key)
        return plain_get(self, key)

    def iterate(self):
        looked.add("*")
        return plain_iterate(self)

    kind.__getitem__, kind.__iter__ = get, iterate
    try:
        __import__(name)
    finally:
        kind.__getitem__, kind.__iter__ = plain_get, plain_iterate
    module = sys.modules.pop(name)
    package, _, last = name.rpartition(".")
    if package and getattr(sys.modules[package], last, None) is module:
        delattr(sys.modules[package], last)
    return looked


LOOKED = import_runner(RUNNER)
import runpy  # noqa: E402  (it runs the runner, there as here)

WANTED = set(sys.modules)

import array  # noqa: E402
import contextlib  # noqa: E402
import ctypes  # noqa: E402
import gc  # noqa: E402
import json  # noqa: E402
import logging  # noqa: E402
import resource  # noqa: E402
import signal  # noqa: E402
import socket  # noqa: E402
import struct  # noqa: E402
import threading  # noqa: E402
import time  # noqa: E402

HOME = os.environ["HOME"]
NEWPID, NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWNET = 0x20000000, 0x00020000, 0x02000000, 0x04000000, 0x08000000, 0x40000000
CAPBSET_READ, CAPBSET_DROP, SET_MM, SET_MM_MAP, SUBREAPER, CAP_AMBIENT, CLEAR_ALL = 23, 24, 35, 14, 36, 47, 4
JOIN_SESSION_KEYRING = 1
SET_SECCOMP, SECCOMP_FILTER = 22, 2
KEYCTL = {"x86_64": 250, "aarch64": 219}
ZYGOTES_GROUP = os.getpgid(0)
KEPT_GLOBALS = {"__annotations__", "__builtins__", "__doc__", "__loader__", "__name__", "__package__", "__spec__"}

libc = ctypes.CDLL(None, use_errno=True)
libc.sbrk.restype = ctypes.c_void_p


def serve():
    """Answers, in each new process that may go, how to run its program; in the zygote itself never."""
    listener = socket.socket(fileno=4)
    facts = {"modules": sorted({name.partition(".")[0] for name in WANTED}), "looked": sorted(LOOKED), "home": HOME,
             "environment": dict(os.environ), "threads": len(sys._current_frames())}
    homes = look_for_homes()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    gc.collect()
    gc.freeze()     # else the first collection in a container copies every page that holds an object
    while True:
        connection, _ = listener.accept()
        if os.fork() == 0:
            listener.close()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            return answer(connection, facts, homes)
        connection.close()


def answer(connection, facts, homes):
    try:
        request, descriptors = receive(connection)
        if request.get("facts"):
            say(connection, facts)
            os._exit(0)
        return start(connection, request, descriptors, homes)
    except BaseException as error:
        say(connection, {"failed": f"{type(error).__name__}: {error}"})
        os._exit(1)


def receive(connection):
    connection.settimeout(10)
    size = array.array("i").itemsize
    data, ancillary, _, _ = connection.recvmsg(65536, socket.CMSG_SPACE(64 * size))
    descriptors = array.array("i")
    for level, kind, content in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            descriptors.frombytes(content[:len(content) - len(content) % size])
    while len(data) < 4 or len(data) < 4 + struct.unpack("<I", data[:4])[0]:
        more = connection.recv(65536)
        if not more:
            raise EOFError("the request broke off")
        data += more
    return json.loads(data[4:]), list(descriptors)


def say(connection, message):
    with contextlib.suppress(OSError):
        connection.sendall(json.dumps(message).encode() + b"\n")


def start(connection, request, descriptors, homes):
    """Twice from here: the new process answers what to run; its parent, which waits for it, never comes back."""
    stdout, stderr, *container = descriptors
    if container:
        check(libc.setns(container[0], NEWPID), "enter the PID namespace")
    else:
        check(libc.prctl(SUBREAPER, 1, 0, 0, 0), "become a subreaper")      # what the user's process orphans stays below us
    ready, go = os.pipe(), os.pipe()
    os.setpgid(0, 0)
    child = os.fork()
    if child:
        os.setpgid(0, ZYGOTES_GROUP)        # what interrupts the container's group must not reach us
        for descriptor in (*descriptors, ready[1], go[0]):
            os.close(descriptor)
        wait_for(connection, child, ready[0], go[1])
    try:
        if container:
            enter(container[0], container[1:])
        behave(request)
        dress(request, stdout, stderr)
        pretend(request, homes)
        close_all_but(0, 1, 2, ready[1], go[0])
    except BaseException as error:
        os.write(ready[1], f"{type(error).__name__}: {error}"[:4000].encode())
        os._exit(1)
    os.write(ready[1], b"\n")
    if os.read(go[0], 1) != b"g":
        os._exit(1)
    os.close(ready[1])
    os.close(go[0])
    return request["argv"][2:4]


def wait_for(connection, child, ready, go):
    """Pass on how the new process came up, whether it may go, and how it ended."""
    told = os.read(ready, 4096)
    if told != b"\n":
        say(connection, {"failed": told.decode(errors="replace") or "the forked process ended at once"})
        os._exit(1)
    say(connection, {"pid": child, "waiter": os.getpid()})
    try:
        word = connection.recv(1)
    except OSError:
        word = b""
    if word != b"g":
        os.kill(child, signal.SIGKILL)
        os._exit(1)
    os.write(go, b"g")
    connection.settimeout(None)
    while True:
        try:
            pid, status = os.waitpid(-1, 0)
        except ChildProcessError:       # what it orphaned has ended too; our pid stays ours as long as the shim may look for children of it
            gone(connection)
        if pid == child:
            with contextlib.suppress(OSError):     # the shim is gone
                connection.sendall(struct.pack("<I", status))


def gone(connection):
    """When the shim is."""
    try:
        while connection.recv(64):
            pass
    finally:
        os._exit(0)


def enter(first_process, cgroups):
    """The groups first: their files are the machine's."""
    for descriptor in cgroups:
        os.write(descriptor, b"0")
    kinds = NEWNS | NEWUTS | NEWIPC | NEWNET | (NEWCGROUP if cgroups else 0)
    check(libc.setns(first_process, kinds), "enter the container's namespaces")


def behave(request):
    """Session, folder, limits, capabilities: as the runtime's exec sets them. In a container it leads no group, so that it may."""
    if request["capabilities"] is None:
        os.setsid()
    os.umask(0o022)
    for kind, soft, hard in request["rlimits"]:
        resource.setrlimit(kind, (soft, hard))
    os.chdir(request["cwd"])
    if request["capabilities"] is not None:
        if os.uname().machine in KEYCTL:
            libc.syscall(KEYCTL[os.uname().machine], JOIN_SESSION_KEYRING, None)
        refuse_calls(bytes.fromhex(request.get("seccomp", "")))
        drop_capabilities(set(request["capabilities"]))


def refuse_calls(program):
    """The filter that the runtime gives a container's other processes (seccomp.py): while we may, before the capabilities go."""
    if program:
        code = ctypes.create_string_buffer(program, len(program))
        described = ctypes.create_string_buffer(struct.pack("@HP", len(program) // 8, ctypes.addressof(code)))
        check(libc.prctl(SET_SECCOMP, SECCOMP_FILTER, described, 0, 0), "refuse system calls")


def drop_capabilities(kept):
    with contextlib.suppress(PermissionError):     # a user namespace with one id
        os.setgroups([])
    for number in range(64):
        if number not in kept and libc.prctl(CAPBSET_READ, number, 0, 0, 0) == 1:
            check(libc.prctl(CAPBSET_DROP, number, 0, 0, 0), f"drop capability {number}")
    libc.prctl(CAP_AMBIENT, CLEAR_ALL, 0, 0, 0)
    halves = [sum(1 << bit for bit in range(32) if 32 * half + bit in kept) for half in (0, 1)]
    header, data = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)(*(half for half in halves for _ in range(3)))
    check(libc.capset(header, data), "capset")


def dress(request, stdout, stderr):
    """Standard streams; the command line and environment that /proc shows to others: the kernel is told where they lie now."""
    null = os.open("/dev/null", os.O_RDWR)
    for target, source in ((0, null), (1, stdout), (2, stderr)):
        os.dup2(source, target)
    argv = b"".join(os.fsencode(word) + b"\0" for word in request["argv"])
    env = b"".join(os.fsencode(f"{name}={value}") + b"\0" for name, value in request["env"])
    memory = ctypes.create_string_buffer(argv + env)
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(memory))       # for the rest of this process's life
    with open("/proc/self/stat") as file:
        stat = file.read().rpartition(")")[2].split()
    start_code, end_code, stack, start_data, end_data, start_brk = (int(stat[number - 3]) for number in (26, 27, 28, 45, 46, 47))
    begin = ctypes.addressof(memory)
    places = (start_code, end_code, start_data, end_data, start_brk, libc.sbrk(0), stack,
              begin, begin + len(argv), begin + len(argv), begin + len(argv) + len(env))
    layout = ctypes.create_string_buffer(struct.pack("=12QII", *places, 0, 0, 0xFFFFFFFF))
    check(libc.prctl(SET_MM, ctypes.c_ulong(SET_MM_MAP), layout, ctypes.c_ulong(len(layout) - 1), ctypes.c_ulong(0)), "PR_SET_MM_MAP")


def pretend(request, homes):
    """Python's own view, as after an exec: environment, paths, modules, times."""
    os.environ.clear()
    os.environ.update(request["env"])
    argv = request["argv"]
    sys.orig_argv[:] = argv
    sys.argv[:] = [argv[2], *argv[4:]] if argv[2] == "-m" else ["-c", *argv[4:]]
    sys.path[0] = os.getcwd() if argv[2] == "-m" else ""
    home = os.environ.get("HOME", HOME)
    if home != HOME:
        sys.path[:] = [moved(entry, home) for entry in sys.path]
        for module, name in homes:
            setattr(module, name, moved(getattr(module, name), home))
    for place, finder in list(sys.path_importer_cache.items()):
        if finder is None or place.startswith(HOME):
            del sys.path_importer_cache[place]
    for name in set(sys.modules) - WANTED:
        del sys.modules[name]
    logging._startTime = time.time_ns() if isinstance(logging._startTime, int) else time.time()
    threading.main_thread()._set_native_id()
    main = vars(sys.modules["__main__"])
    for name in set(main) - KEPT_GLOBALS:
        del main[name]


def look_for_homes():
    """Strings of modules that were read from the home folder: plain processes have one each."""
    return [(module, name) for module in list(sys.modules.values()) for name, value in list(getattr(module, "__dict__", {}).items())
            if type(value) is str and not name.startswith("__") and moved(value, "") != value and module.__name__ != __name__]


def moved(path, home):
    return home + path[len(HOME):] if path == HOME or path.startswith(HOME + "/") else path


def close_all_but(*kept):
    for descriptor in range(256):
        if descriptor not in kept:
            with contextlib.suppress(OSError):
                os.close(descriptor)


def check(result, what):
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


KIND, PROGRAM = serve()
if KIND == "-m":
    runpy._run_module_as_main(PROGRAM)
else:
    exec(compile(PROGRAM, "<string>", "exec"), vars(sys.modules["__main__"]))
