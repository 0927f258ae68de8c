"""Images: the default one is served from the nodes' own Python, anything else is refused until images can be built."""

from __future__ import annotations

import hashlib
import re
from typing import TYPE_CHECKING

from modal_proto import api_pb2

from phalanx.model.app import Image
from phalanx.model.node import NodeRecord
from phalanx.model.refusal import not_found
from phalanx.server.unit import Unit

if TYPE_CHECKING:
    from phalanx.server.server import Server

_REQUIREMENTS = "/modal_requirements.txt"
_FROM_PYTHON = re.compile(r"FROM python:(3\.\d+)(\.\d+)?-slim-[a-z]+")
# What debian_slim() of every client version adds to its base, for builders 2023.12 to 2026.10 (modal/image.py, `debian_slim`).
_STANDARD = re.compile(
    r"COPY /modal_requirements\.txt /modal_requirements\.txt"
    r"|RUN apt-get update"
    r"|RUN apt-get install -y gcc gfortran build-essential"
    r"|RUN pip install --upgrade [a-z ]*(==[\d.]+)?( (pip|wheel|uv|setuptools)(==[\d.]+)?)*"
    r"|RUN (uv )?pip install [a-z -]*-r /modal_requirements\.txt"
    r"|RUN echo 'debconf debconf/frontend select Noninteractive' \| debconf-set-selections"
    r"|RUN rm /modal_requirements\.txt"
    r"|CMD \[\"sleep\", \"\d+\"\]"
)
_SHOWN = 200    # characters of a build step in a sentence


class Images:
    """The noun `server.images`."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._images: dict[str, Image] = server.world[Image]

    def get(self, image_id: str) -> Image:
        image = self._images.get(image_id)
        if image is None:
            raise not_found("Image", image_id, "run or deploy the app again")
        return image

    def create(self, unit: Unit, asked: bytes, builder_version: str) -> Image:
        """The image of one layer. `asked` is the serialized api_pb2.Image; the same layer is the same image. Look at its `refusal`."""
        definition = api_pb2.Image.FromString(asked)
        digest = hashlib.sha256(builder_version.encode() + b"\0" + definition.SerializeToString(deterministic=True)).hexdigest()
        python_version = _default_python(definition)
        refusal = self._python_refusal(python_version) if python_version else _building_refusal(definition)
        image = Image(f"im-{digest[:22]}", asked, builder_version, python_version, refusal, self._server.now_ms())
        known = self._images.get(image.image_id)
        if known is not None and known.refusal == refusal:
            return known
        unit.put(image)
        return image

    def _python_refusal(self, python_version: str) -> str:
        """The fleet may not have come up yet: then it is checked again when nodes are chosen."""
        have = {version for node in self._server.world[NodeRecord].values() if not node.removed for version in node.python_versions}
        if not have or python_version in have:
            return ""
        versions = ", ".join(sorted(have, key=lambda v: [int(part) for part in v.split(".")]))
        return (
            f"the image wants Python {python_version}, and the nodes of this fleet have Python {versions}: without python_version=… "
            f"an image takes the Python that the client runs on. Use modal.Image.debian_slim(python_version='{versions.split(', ')[-1]}'), "
            "or install that Python on the nodes"
        )


def _default_python(definition: api_pb2.Image) -> str:
    """The Python minor of a default image, "" for any other: debian_slim() as some client writes it, and nothing of the user's."""
    if definition.base_images or definition.context_mount_id or definition.HasField("build_function") or not definition.dockerfile_commands:
        return ""
    if any(file.filename != _REQUIREMENTS for file in definition.context_files):
        return ""
    first, *others = definition.dockerfile_commands
    base = _FROM_PYTHON.fullmatch(first)
    if base is None or not all(_STANDARD.fullmatch(command) for command in others):
        return ""
    return base.group(1)


def _building_refusal(definition: api_pb2.Image) -> str:
    steps = [command for command in definition.dockerfile_commands if command != "FROM base"]
    step = "run_function(…)" if definition.HasField("build_function") else (steps or ["an empty layer"])[0]
    shown = step if len(step) <= _SHOWN else step[:_SHOWN] + "…"
    return (
        f"the image needs building: `{shown}`. This Phalanx server can't build images yet: use modal.Image.debian_slim() as it is; "
        "add_local_dir, add_local_file and add_local_python_source work on it without copy=True"
    )
