"""Errors that a rank meets because another one is gone: of sockets and of collectives. Seldom the cause (design rule 4)."""

from __future__ import annotations

import re

# As Python, PyTorch (c10d, NCCL, Gloo), Ray and MPI word them. Taken for an echo by mistake, an exception is still told to the
# user as it is: only another rank's own end goes before it.
_ECHO = re.compile(
    r"connection (was )?(reset|refused|aborted|closed|lost)|Connection(Reset|Refused|Aborted)Error|broken ?pipe|socket (was )?closed"
    r"|remote end closed|peer closed|closed by (the )?(remote )?peer|no route to host|network is unreachable|IncompleteReadError"
    r"|\bNCCL|\bnccl[A-Z]\w*Error|\bgloo\b|ProcessGroup(NCCL|Gloo)|Dist(Backend|Network|Store)Error"
    r"|Rendezvous(Connection|Timeout)Error|(Actor|Node|Worker|Owner)DiedError|RayActorError|WorkerCrashedError|MPI_ABORT",
    re.IGNORECASE,
)


def is_echo(text: str) -> bool:
    """Does an exception's text read like another rank's end, seen over the network?"""
    return _ECHO.search(text) is not None
