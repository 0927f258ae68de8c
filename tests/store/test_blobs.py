from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from phalanx.model.blob import BlobError
from phalanx.store.blobs import Blobs


@pytest.fixture
def blobs(tmp_path: Path) -> Blobs:
    return Blobs(tmp_path / "blobs")


def test_what_was_written_is_read(blobs: Blobs) -> None:
    blob_id = blobs.write(b"hello")
    assert blob_id == "bl-" + hashlib.sha256(b"hello").hexdigest()
    assert blobs.read(blob_id) == b"hello"


def test_content_that_is_not_what_was_announced_is_not_kept(blobs: Blobs) -> None:
    announced = hashlib.sha256(b"hello").hexdigest()
    with pytest.raises(BlobError, match="was announced: it changed or was cut off"):
        blobs.put(b"hell", announced)
    assert not blobs.has(announced)


def test_an_upload_that_breaks_off_leaves_nothing(blobs: Blobs, tmp_path: Path) -> None:
    with pytest.raises(ConnectionError), blobs.draft() as draft:
        draft.write(b"half of")
        raise ConnectionError
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_parts_become_one_blob_with_the_etag_that_s3_would_give(blobs: Blobs) -> None:
    whole = b"a" * 1000 + b"b" * 10
    blob_id = "bl-" + hashlib.sha256(whole).hexdigest()
    for number, part in enumerate((whole[:1000], whole[1000:]), 1):
        with blobs.draft() as draft:
            draft.write(part)
            draft.keep_as_part(blobs.part_path(blob_id, number))
    _, etag = blobs.join_parts(blob_id, 2)
    md5s = b"".join(hashlib.md5(part).digest() for part in (whole[:1000], whole[1000:]))
    assert etag == hashlib.md5(md5s).hexdigest() + "-2"
    assert blobs.read(blob_id) == whole


def test_a_missing_part_is_named_and_the_others_are_kept(blobs: Blobs) -> None:
    blob_id = "bl-" + hashlib.sha256(b"ab").hexdigest()
    with blobs.draft() as draft:
        draft.write(b"b")
        draft.keep_as_part(blobs.part_path(blob_id, 2))
    with pytest.raises(BlobError, match="parts 1 of 2 were not uploaded"):
        blobs.join_parts(blob_id, 2)
    assert blobs.part_path(blob_id, 2).exists()


def test_two_that_upload_the_same_at_the_same_time_do_not_take_each_others_parts(blobs: Blobs) -> None:
    blob_id = "bl-" + hashlib.sha256(b"same").hexdigest()
    for upload in ("one", "other"):
        with blobs.draft() as draft:
            draft.write(b"same")
            draft.keep_as_part(blobs.part_path(blob_id, 1, upload))
    assert blobs.join_parts(blob_id, 1, "one") == blobs.join_parts(blob_id, 1, "other")
    assert blobs.read(blob_id) == b"same"


@pytest.mark.parametrize("blob_id", ["bl-../../config", "../config.json", "bl-", ""])
def test_an_id_can_not_name_a_path(blobs: Blobs, blob_id: str) -> None:
    with pytest.raises(BlobError, match="is not a blob id"):
        blobs.read(blob_id)
