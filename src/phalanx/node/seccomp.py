"""What a container may not ask of the kernel: calls that no training program makes and that kernels were broken into by. stdlib only.

The list is that of Docker's default profile, the other way round: what it refuses to a container without privileges. Allowed, though some
profiles refuse them: ptrace, process_vm_readv and pidfd_getfd (debuggers, UCX, PyTorch's symmetric memory), mbind and its like (NCCL).
It exists twice, because there are two ways into a container: as names for the OCI runtime, as a program for the kernel for a process that
a zygote forks.
"""

from __future__ import annotations

import errno
import os
import struct
from typing import Any

_REFUSED = {    # name: number on x86_64, on aarch64
    "acct": (163, 89), "add_key": (248, 217), "bpf": (321, 280), "clock_adjtime": (305, 266), "clock_settime": (227, 112),
    "delete_module": (176, 106), "finit_module": (313, 273), "fsconfig": (431, 431), "fsmount": (432, 432), "fsopen": (430, 430),
    "fspick": (433, 433), "init_module": (175, 105), "io_uring_enter": (426, 426), "io_uring_register": (427, 427),
    "io_uring_setup": (425, 425), "ioperm": (173, None), "iopl": (172, None), "kexec_file_load": (320, 294), "kexec_load": (246, 104),
    "keyctl": (250, 219), "lookup_dcookie": (212, 18), "mount": (165, 40), "mount_setattr": (442, 442), "move_mount": (429, 429),
    "open_by_handle_at": (304, 265), "open_tree": (428, 428), "perf_event_open": (298, 241), "pivot_root": (155, 41),
    "quotactl": (179, 60), "quotactl_fd": (443, 443), "reboot": (169, 142), "request_key": (249, 218), "setns": (308, 268),
    "settimeofday": (164, 170), "swapoff": (168, 225), "swapon": (167, 224), "syslog": (103, 116), "umount2": (166, 39),
    "unshare": (272, 97), "uselib": (134, None), "userfaultfd": (323, 282), "vhangup": (153, 58),
}
_CLONE, _CLONE3 = (56, 220), (435, 435)
_NEW_NAMESPACES = 0x7E020000    # the flags of clone that unshare would take: refused there too, or it would be no refusal

_MACHINES = {"x86_64": (0, "SCMP_ARCH_X86_64", 0xC000003E), "aarch64": (1, "SCMP_ARCH_AARCH64", 0xC00000B7)}    # linux/audit.h
_X32 = 0x40000000       # numbers from here on are x86_64's second set of calls


def profile() -> dict[str, Any] | None:
    """`linux.seccomp` of config.json; None where this kernel or machine has no such filters."""
    if not _possible():
        return None
    bits = [1 << n for n in range(32) if _NEW_NAMESPACES >> n & 1]
    return {
        "defaultAction": "SCMP_ACT_ALLOW",
        "architectures": [_MACHINES[os.uname().machine][1]],
        "syscalls": [
            {"names": sorted(_REFUSED), "action": "SCMP_ACT_ERRNO", "errnoRet": errno.EPERM},
            # Its flags lie in memory, where no filter sees them: the C library then takes clone.
            {"names": ["clone3"], "action": "SCMP_ACT_ERRNO", "errnoRet": errno.ENOSYS},
            *({"names": ["clone"], "action": "SCMP_ACT_ERRNO", "errnoRet": errno.EPERM,
               "args": [{"index": 0, "value": bit, "valueTwo": bit, "op": "SCMP_CMP_MASKED_EQ"}]} for bit in bits),
        ],
    }


def program() -> bytes:
    """The same for prctl(PR_SET_SECCOMP): an array of struct sock_filter; empty where there are no such filters."""
    if not _possible():
        return b""
    at, _, audit = _MACHINES[os.uname().machine]
    load, equal, above, any_bit, answer = 0x20, 0x15, 0x35, 0x45, 0x06      # linux/bpf_common.h: BPF_LD|W|ABS, BPF_JMP|…|K, BPF_RET|K
    allow, refuse, unknown = 0x7FFF0000, 0x00050000 | errno.EPERM, 0x00050000 | errno.ENOSYS      # linux/seccomp.h
    numbers = [pair[at] for pair in _REFUSED.values() if pair[at] is not None]
    code = [
        (load, 0, 0, 4), (equal, 1, 0, audit), (answer, 0, 0, unknown),                     # another machine's calls
        (load, 0, 0, 0), (above, 0, 1, _X32), (answer, 0, 0, unknown),
        (equal, 0, 1, _CLONE3[at]), (answer, 0, 0, unknown),
        (equal, 0, 4, _CLONE[at]), (load, 0, 0, 16), (any_bit, 0, 1, _NEW_NAMESPACES), (answer, 0, 0, refuse), (answer, 0, 0, allow),
        *((equal, len(numbers) - n, 0, number) for n, number in enumerate(numbers)),
        (answer, 0, 0, allow), (answer, 0, 0, refuse),
    ]
    return b"".join(struct.pack("=HBBI", *instruction) for instruction in code)


def _possible() -> bool:
    return os.uname().machine in _MACHINES and os.path.exists("/proc/sys/kernel/seccomp/actions_avail")
