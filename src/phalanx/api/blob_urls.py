"""Signed, expiring URLs for blobs: whoever has one may do the one thing that it says, and needs no token."""

from __future__ import annotations

import hashlib
import hmac
import urllib.parse
from dataclasses import dataclass

VALID_MS = 60 * 60_000   # a client asks for one and uses it at once; a large part on a slow line takes its time


@dataclass(frozen=True)
class BlobUrl:
    """What a URL allows: `put` a blob or one part of it, `complete` an `upload` of `part` parts, `get` a blob."""

    action: str
    blob_id: str
    expires_ms: int
    part: int = 0
    upload: str = ""

    def path(self, key: bytes) -> str:
        said = {"expires": self.expires_ms, "part": self.part, "upload": self.upload, "signature": self._signature(key)}
        query = urllib.parse.urlencode({name: value for name, value in said.items() if value != ""})
        return f"/blobs/{self.action}/{self.blob_id}?{query}"

    def _signature(self, key: bytes) -> str:
        text = f"{self.action}\0{self.blob_id}\0{self.expires_ms}\0{self.part}" + (f"\0{self.upload}" if self.upload else "")
        return hmac.new(key, text.encode(), hashlib.sha256).hexdigest()

    @classmethod
    def read(cls, path: str, query: dict[str, str], key: bytes, now_ms: int) -> BlobUrl:
        """The permission in a request's URL. Raises PermissionError with the reason."""
        parts = path.split("/")
        try:
            if len(parts) != 4 or parts[:2] != ["", "blobs"]:
                raise ValueError
            url = cls(parts[2], parts[3], int(query["expires"]), int(query["part"]), query.get("upload", ""))
        except (KeyError, ValueError):
            raise PermissionError("this is no blob URL of a Phalanx server") from None
        if not hmac.compare_digest(url._signature(key), query.get("signature", "")):
            raise PermissionError("the signature of this blob URL is not right: it was changed, or is of another Phalanx server")
        if now_ms > url.expires_ms:
            raise PermissionError(f"this blob URL expired {(now_ms - url.expires_ms) // 1000} s ago: ask for the blob again")
        return url


def key_of(secret: str) -> bytes:
    """The signing key of a control plane, from a secret in its configuration."""
    return hashlib.sha256(b"phalanx blob urls\0" + secret.encode()).digest()
