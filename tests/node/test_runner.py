"""The stock runner, from layers as the server makes them: the client's own packages, and what they need."""

from __future__ import annotations

from pathlib import Path

import modal

from .test_output import PYTHON

CLIENT = ["modal", "modal_proto", "modal_version", "synchronicity"]
NEEDED = ["aiohttp", "aiosignal", "aiohappyeyeballs", "attr", "attrs", "cbor2", "certifi", "click", "frozenlist", "google", "grpclib", "h2",
          "hpack", "hyperframe", "idna", "multidict", "propcache", "toml", "typing_extensions.py", "watchfiles", "yarl", "rich"]


def files(names: list[str], below: str) -> list[tuple[str, bytes]]:
    """What pip installed of these packages, without bytecode, as files below a folder of the container."""
    site = Path(modal.__file__).parent.parent
    found = []
    for name in names:
        top = site / name
        for path in [top] if top.is_file() else sorted(top.rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts and path.stat().st_size < 30_000_000:
                found.append((f"{below}/{path.relative_to(site)}", path.read_bytes()))
    return found


def test_the_stock_runner_is_imported_from_bytecode(agent, server):
    """It comes up in the container, from the layers, and every file of it is compiled: importing without costs 0.8 s."""
    server.layers["client"] = files(CLIENT, "/pkg")
    server.layers["deps"] = files(NEEDED, "/__modal/deps")
    code = """
import os, sys
import modal._container_entrypoint, modal
print(modal.__version__, modal.__file__)
ours = [m for m in list(sys.modules.values()) if getattr(m, '__cached__', None) and '/pkg/' in m.__file__]
print(len(ours) > 50, [m.__file__ for m in ours if not os.path.exists(m.__cached__)])
"""
    server.run(1, PYTHON, "-u", "-c", code, layer_ids=["client", "deps"], memory_limit_mib=1024, environment={"MODAL_CLOUD_PROVIDER": "X"})
    seen = server.finish(1)
    version, compiled = seen.text().decode().splitlines()
    assert version.startswith(modal.__version__)
    assert version.endswith("/pkg/modal/__init__.py")
    assert compiled == "True []"
    server.run(2, layer_ids=["client", "deps"], memory_limit_mib=1024)      # no command: the runner itself, which calls its API
    server.until(lambda: server.preambles == ["PHALANX/1 task ta-2-0 2 sesame"], lambda: str(server.seen(2)))
    server.stop(2, signal=9)
    server.finish(2)
