"""Finding and running the machine's own programs. stdlib only."""

from __future__ import annotations

import os
import shutil
import subprocess

# An ordinary user's PATH often lacks the folders where ip, nft and runc live.
SEARCH = os.environ.get("PATH", "") + ":/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class ProgramFailed(Exception):
    """A program ended with an error; the text is what it said."""


def find(name: str) -> str | None:
    return shutil.which(name, path=SEARCH)


def run(arguments: list[str], text: str = "", may_fail: bool = False) -> str:
    """Run to its end with `text` as input and answer its output. ProgramFailed says what it said."""
    program = find(arguments[0])
    if program is None:
        raise ProgramFailed(f"{arguments[0]} is not installed on this machine")
    done = subprocess.run([program, *arguments[1:]], input=text, capture_output=True, text=True, timeout=60)
    if done.returncode != 0 and not may_fail:
        raise ProgramFailed(f"{' '.join(arguments)}: {(done.stderr or done.stdout).strip() or f'exit code {done.returncode}'}")
    return done.stdout
