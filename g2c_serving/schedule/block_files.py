"""Blocks of the KV cache as files of one folder: a header of 84 bytes, then the payload as it is.

    offset  bytes
    0       8      magic
    8       4      version of this layout
    12      32     the block's hash: whose keys and values these are
    44      8      bytes of payload
    52      32     sha256 of all of the above and the payload
    84             the payload

The reader knows which hash it asks for and how many bytes it got, so it works out the only right
header and compares. One comparison finds a flipped bit, a cut file, another block's file under
this name, and a file of another layout. Left out: compression, and any repair.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
import struct
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing_extensions import Buffer

MAGIC, LAYOUT = b"G2C-KV\r\n", 1  # the line end, because a copy "as text" changes it
_FIELDS = struct.Struct(">8sI32sQ")
HEADER_BYTES = _FIELDS.size + hashlib.sha256().digest_size
_OUR_NAMES = re.compile(r"[0-9a-f]{64}\.(kv|[0-9a-f]+\.part)")


class BlockFiles:
    """The files of a folder. `owner`, hexadecimal digits, names one attempt to write.

    The names come out of an index that others may have written to: what would be no name of ours,
    a way out of the folder among it, is a ValueError. Nor need it be files that bear our names.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def path(self, block_hash: bytes, owner: str | None = None) -> Path:
        """Where a block lies, or with `owner` what that one is still writing of it."""
        ending = "kv" if owner is None else f"{owner}.part"
        name = f"{block_hash.hex()}.{ending}" if isinstance(block_hash, bytes) else ""
        if not _OUR_NAMES.fullmatch(name):
            raise ValueError(f"no file of ours is named after {block_hash!r:.80}, {owner!r:.80}")
        return self.folder / name

    def write_part(self, block_hash: bytes, owner: str, payload: memoryview) -> None:
        """Write a block. OSError as the disk gives it.

        Nothing is flushed to the medium: what a power cut leaves does not pass the checksum.
        """
        with open(self.path(block_hash, owner), "wb") as file:
            file.write(_header(block_hash, payload))
            file.write(payload)

    def publish(self, block_hash: bytes, owner: str) -> bool:
        """Give a whole block its name, in one step. False where a folder has it, or Windows does
        not let us, because somebody has the file open."""
        try:
            os.replace(self.path(block_hash, owner), self.path(block_hash))
        except (PermissionError, IsADirectoryError):
            return False
        return True

    def read(self, block_hash: bytes, most_bytes: int) -> bytes | None:
        """The payload of a block, or None where its file does not hold it whole, or has more than
        `most_bytes`."""
        try:
            with open(self.path(block_hash), "rb", buffering=0, opener=_without_waiting) as file:
                found = os.fstat(file.fileno())
                if not stat.S_ISREG(found.st_mode) or found.st_size > most_bytes:
                    return None
                header, payload = file.read(HEADER_BYTES), file.readall()
        except OSError:
            return None
        return payload if header == _header(block_hash, payload) else None

    def remove(self, block_hash: bytes, owner: str | None = None) -> bool:
        """Remove a block and what `owner` wrote of it. False where Windows does not let us."""
        paths = {self.path(block_hash), self.path(block_hash, owner)}
        return all([_unlink(path) for path in paths])

    def names(self) -> set[str]:
        """The names of all files of ours in the folder, whole blocks and parts."""
        return {entry.name for entry in os.scandir(self.folder) if _OUR_NAMES.fullmatch(entry.name)}

    def delete(self, names: Iterable[str]) -> list[str]:
        """Remove files by name; those that are gone."""
        return [name for name in names if _unlink(self.folder / name)]


def flat(payload: Buffer) -> memoryview:
    """A contiguous buffer of any shape and type as bytes. TypeError where it is not contiguous."""
    view = memoryview(payload)
    return view.cast("B") if view.nbytes else memoryview(b"")


def _header(block_hash: bytes, payload: bytes | memoryview) -> bytes:
    fields = _FIELDS.pack(MAGIC, LAYOUT, block_hash, len(payload))
    checksum = hashlib.sha256(fields)
    checksum.update(payload)
    return fields + checksum.digest()


def _without_waiting(path: str, flags: int) -> int:
    """A pipe under our name must not hold us until somebody writes to it."""
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


def _unlink(path: Path) -> bool:
    """Whether there is no such file any more."""
    try:
        path.unlink(missing_ok=True)
    except (PermissionError, IsADirectoryError):
        return False
    return True
