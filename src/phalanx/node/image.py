"""The default image: this machine's own Python and /usr, read-only and by an allow-list, over a generated root.

Nothing is downloaded, and nothing of the machine is shown but what this file names. The interpreter's site-packages are covered by
folders that hold pip alone: what the machine's owner installed there is not part of `debian_slim`, and would only make programs
run here that run nowhere else. `image.site_packages` in the configuration's `extra` shows others: `host` those folders as they are, a path
a folder of packages in their place, such as the site-packages of a virtual environment of this Python that has torch.
"""

from __future__ import annotations

import contextlib
import hashlib
import ipaddress
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

from .spec import Mount

_RECIPE = "3"      # rises when this file makes another skeleton of the same machine

_FOLDERS = ["dev", "etc", "home", "media", "mnt", "opt", "proc", "root", "run/phalanx", "srv", "sys", "usr",
            "var/cache", "var/lib", "var/log", "var/spool"]
_COPIED = ["etc/ld.so.cache", "etc/ld.so.conf", "etc/services", "etc/protocols", "etc/debian_version", "etc/mime.types"]
_COPIED_TREES = ["etc/ld.so.conf.d", "etc/alternatives"]
_CERTIFICATES = ["/etc/ssl/certs", "/etc/pki/tls/certs", "/etc/pki/ca-trust/extracted", "/etc/ca-certificates"]
_MERGED = ["bin", "sbin", "lib", "lib32", "lib64", "libx32"]

_LIST_SITES = """import site, sysconfig
found = [*site.getsitepackages(), sysconfig.get_path('purelib'), sysconfig.get_path('platlib')]
print(*dict.fromkeys(found), sep='\\n')"""
_PASSWD = "root:x:0:0:root:/root:/bin/bash\nnobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n"
_GROUP = "root:x:0:\ntty:x:5:\nstaff:x:50:\nnogroup:x:65534:\n"
_NSSWITCH = "passwd: files\ngroup: files\nshadow: files\nhosts: files dns\nnetworks: files\nprotocols: files\nservices: files\n"


@dataclass(frozen=True)
class DefaultImage:
    """`skeleton` is the lowest overlay layer; `mounts` go over it. `python` is the interpreter's path inside and outside."""

    python: str
    minor: str
    path: str                    # PATH inside
    skeleton: str
    mounts: list[Mount] = field(default_factory=list)


def base_python() -> str:
    """The interpreter behind our virtual environment: containers have no use for the environment itself."""
    prefix = Path(sys.base_prefix)
    for name in (f"python{sys.version_info[0]}.{sys.version_info[1]}", "python3", "python"):
        if (prefix / "bin" / name).exists():
            return str(prefix / "bin" / name)
    return os.path.realpath(sys.executable)


def default_image(folder: Path, site_packages: str) -> DefaultImage:
    """Make the skeleton below `folder`, once for each state of this machine's files, and list what is mounted over it.

    `site_packages` is empty, host, or a folder. Raises ValueError when it is not one.
    """
    if site_packages not in ("", "host") and not os.path.isdir(site_packages):
        raise ValueError(f"image.site_packages is {site_packages!r}, which is no folder on this machine; it may also be 'host'")
    python = base_python()
    prefix = sys.base_prefix
    key = hashlib.sha256("\n".join([_RECIPE, prefix, sys.version, *_stamps()]).encode()).hexdigest()[:16]
    skeleton = folder / key
    if not skeleton.exists():
        draft = folder / f"{key}.{os.getpid()}"
        shutil.rmtree(draft, ignore_errors=True)
        _make_skeleton(draft, prefix)
        with contextlib.suppress(OSError):      # another agent of the same folder was faster
            os.rename(draft, skeleton)
        shutil.rmtree(draft, ignore_errors=True)
    mounts = [Mount("/usr", "/usr")]
    unmerged = [f"/{name}" for name in _MERGED if os.path.isdir(f"/{name}") and not os.path.islink(f"/{name}")]
    mounts += [Mount(path, path) for path in unmerged]
    if not _below(prefix, "/usr"):
        mounts.append(Mount(prefix, prefix))
    mounts += [Mount(path, path) for path in _CERTIFICATES if os.path.isdir(path)]
    if site_packages != "host":
        covers = _site_covers(folder / f"{key}-site", python)
        if site_packages and not covers:
            raise ValueError(f"image.site_packages can't be {site_packages}: {python} has no folder for packages where they could be shown")
        if site_packages:
            covers[next(iter(covers))] = site_packages
        mounts += [Mount(cover, target) for target, cover in covers.items()]
    search = ["/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"]
    own = os.path.join(prefix, "bin")
    path = [own, *[entry for entry in search if entry != own]]
    if not os.path.exists(os.path.join(own, "python")):
        path.insert(0, "/opt/python/bin")
    return DefaultImage(python, f"{sys.version_info[0]}.{sys.version_info[1]}", ":".join(path), str(skeleton), mounts)


def resolv_conf() -> str:
    """The machine's name servers, without those that only the machine itself can reach."""
    for path in ("/etc/resolv.conf", "/run/systemd/resolve/resolv.conf"):
        with contextlib.suppress(OSError):
            useless = ("nameserver 127.", "nameserver ::1", "#")
            lines = [line for line in Path(path).read_text().splitlines() if not line.startswith(useless)]
            if any(line.startswith("nameserver") for line in lines):
                return "\n".join(lines) + "\n"
    return ""


def nameservers() -> list[str]:
    """The addresses in it, without link-local ones, which mean nothing in another network."""
    found = []
    for line in resolv_conf().splitlines():
        words = line.split()
        if words[:1] == ["nameserver"] and len(words) > 1:
            with contextlib.suppress(ValueError):
                found.append(str(ipaddress.ip_address(words[1])))
    return [address for address in found if "%" not in address]


def _make_skeleton(root: Path, prefix: str) -> None:
    for name in _FOLDERS:
        (root / name).mkdir(parents=True, exist_ok=True)
    for name in ("tmp", "var/tmp"):
        (root / name).mkdir()
        (root / name).chmod(0o1777)
    (root / "root").chmod(0o700)
    (root / prefix.lstrip("/")).mkdir(parents=True, exist_ok=True)
    for name in _MERGED:
        if os.path.islink(f"/{name}"):
            (root / name).symlink_to(os.readlink(f"/{name}"))
        elif os.path.isdir(f"/{name}"):
            (root / name).mkdir()
    for name in _COPIED:
        with contextlib.suppress(OSError):
            shutil.copyfile(f"/{name}", root / name)
    for name in _COPIED_TREES:
        if os.path.isdir(f"/{name}"):
            shutil.copytree(f"/{name}", root / name, symlinks=True)
    for path in _CERTIFICATES:
        if os.path.isdir(path):
            (root / path.lstrip("/")).mkdir(parents=True, exist_ok=True)
    etc = root / "etc"
    for name, text in (("passwd", _PASSWD), ("group", _GROUP), ("nsswitch.conf", _NSSWITCH), ("timezone", "Etc/UTC\n"),
                       ("host.conf", "multi on\n"), ("hosts", ""), ("hostname", ""), ("resolv.conf", "")):
        (etc / name).write_text(text)
    (etc / "os-release").symlink_to("../usr/lib/os-release")
    (etc / "localtime").symlink_to("/usr/share/zoneinfo/Etc/UTC")
    links = root / "opt/python/bin"
    links.mkdir(parents=True)
    for name in ("python", "python3", f"python{sys.version_info[0]}.{sys.version_info[1]}"):
        (links / name).symlink_to(base_python())
    for folder, _, _ in os.walk(root):
        if not os.path.islink(folder) and os.path.basename(folder) not in ("tmp", "root"):
            os.chmod(folder, 0o755)


def _site_covers(folder: Path, python: str) -> dict[str, str]:
    """For each site-packages folder of the interpreter the folder that covers it: pip in the first, nothing in the others."""
    listed = subprocess.run([python, "-ISE", "-c", _LIST_SITES], capture_output=True, text=True, check=True).stdout.split("\n")
    covers = {}
    for index, target in enumerate(path for path in listed if os.path.isdir(path)):
        cover = folder / str(index)
        if not cover.exists():
            draft = folder / f"{index}.{os.getpid()}"
            shutil.rmtree(draft, ignore_errors=True)
            draft.mkdir(parents=True)
            for entry in sorted(os.listdir(target)):
                if entry == "pip" or entry.startswith("pip-"):
                    shutil.copytree(os.path.join(target, entry), draft / entry, copy_function=_link)
            with contextlib.suppress(OSError):
                os.rename(draft, cover)
            shutil.rmtree(draft, ignore_errors=True)
        covers[target] = str(cover)
    return covers


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


def _stamps() -> list[str]:
    found = []
    for path in ("/etc/ld.so.cache", "/etc/alternatives", "/usr/lib/os-release"):
        with contextlib.suppress(OSError):
            found.append(f"{path} {os.stat(path).st_mtime_ns}")
    return found


def _below(path: str, folder: str) -> bool:
    return os.path.commonpath([path, folder]) == folder
