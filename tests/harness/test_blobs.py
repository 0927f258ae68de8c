"""Contents too large for a message, through the blob door with the client's own code."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import io
import re
import urllib.error
import urllib.request
from typing import Any

import pytest
from modal._utils.blob_utils import _download_from_url, _upload_to_s3_url, perform_multipart_upload
from modal._utils.bytes_io_segment_payload import BytesIOSegmentPayload
from modal_proto import api_pb2

from phalanx.api.blobs import Blobs
from phalanx.model.caller import Caller
from tests.harness.control_plane import ControlPlane

DATA = bytes(range(256)) * 20_000   # 5 MB


def announced(data: bytes, length: int = 0) -> Any:
    digest = base64.b64encode(hashlib.sha256(data).digest()).decode()
    return api_pb2.BlobCreateRequest(content_sha256_base64=digest, content_length=length or len(data))


def upload(url: str, data: bytes) -> None:
    asyncio.run(_upload_to_s3_url(url, BytesIOSegmentPayload(io.BytesIO(data), segment_start=0, segment_length=len(data))))


def test_what_is_put_is_got(control_plane: ControlPlane) -> None:
    created = control_plane.rpc("BlobCreate", announced(DATA))
    assert created.upload_url == created.upload_urls.items[0]       # older clients read the one, newer the other
    assert [created.blob_id] == list(created.blob_ids)
    upload(created.upload_url, DATA)
    got = control_plane.rpc("BlobGet", api_pb2.BlobGetRequest(blob_id=created.blob_id))
    assert asyncio.run(_download_from_url(got.download_url)) == DATA
    assert control_plane.server.blobs.read(created.blob_id) == DATA


def test_content_that_changed_on_the_way_is_refused(control_plane: ControlPlane) -> None:
    created = control_plane.rpc("BlobCreate", announced(DATA))
    request = urllib.request.Request(created.upload_url, data=DATA[:-1], method="PUT")
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(request)
    assert refused.value.code == 400
    assert "it changed or was cut off on the way" in refused.value.read().decode()
    assert not control_plane.server.blobs.has(created.blob_id.removeprefix("bl-"))


def test_an_url_does_one_thing_for_a_while(control_plane: ControlPlane) -> None:
    created = control_plane.rpc("BlobCreate", announced(DATA))
    upload(created.upload_url, DATA)
    got = control_plane.rpc("BlobGet", api_pb2.BlobGetRequest(blob_id=created.blob_id)).download_url
    for changed in (got.replace("/get/", "/put/"), re.sub("expires=.", "expires=9", got), got.replace("part=0", "part=1")):
        with pytest.raises(urllib.error.HTTPError, match="403|405"):
            urllib.request.urlopen(changed)
    control_plane.advance(2 * 60 * 60_000)
    with pytest.raises(urllib.error.HTTPError, match="403") as late:
        urllib.request.urlopen(got)
    assert "expired" in late.value.read().decode()


def test_under_another_host_name_an_upload_has_one_part(control_plane: ControlPlane) -> None:
    """Clients up to 1.3.5 raise "Unknown S3 host" for a plain upload anywhere but to 127.0.0.1 and localhost."""
    server, caller = control_plane.server, Caller("ak-1", host="head-node:8900")
    created = control_plane.call(lambda: Blobs(server).BlobCreate(announced(DATA), caller, server.unit()))
    [parts] = created.multiparts.items
    assert parts.completion_url.startswith("http://head-node:8900/blobs/complete/")
    _send_parts(control_plane, parts, DATA)
    assert control_plane.server.blobs.read(created.blob_id) == DATA


def test_two_ranks_upload_the_same_result_at_the_same_time(control_plane: ControlPlane) -> None:
    server, caller = control_plane.server, Caller("ak-1", host="head-node:8900")
    uploads = [control_plane.call(lambda: Blobs(server).BlobCreate(announced(DATA), caller, server.unit())) for _ in range(2)]
    urls = [upload.multiparts.items[0] for upload in uploads]
    for one in urls:
        upload(one.upload_urls[0].replace("http://head-node:8900", control_plane.url), DATA)
    for one in urls:
        request = urllib.request.Request(one.completion_url.replace("http://head-node:8900", control_plane.url), method="POST")
        assert urllib.request.urlopen(request).status == 200


def test_a_gigabyte_goes_in_parts(control_plane: ControlPlane) -> None:
    created = control_plane.rpc("BlobCreate", announced(b"", 2**30 + 5))
    assert created.WhichOneof("upload_types_oneof") == "multiparts"
    assert (created.multipart.part_length, len(created.multipart.upload_urls)) == (256 * 2**20, 5)


def _send_parts(plane: ControlPlane, parts: Any, data: bytes) -> None:
    def here(url: str) -> str:
        return url.replace("http://head-node:8900", plane.url)

    asyncio.run(
        perform_multipart_upload(
            io.BytesIO(data),
            content_length=len(data),
            max_part_size=parts.part_length,
            part_urls=[here(url) for url in parts.upload_urls],
            completion_url=here(parts.completion_url),
        )
    )
