"""The names of cached blocks: a chain of sha256 digests over what decides their keys and values.

A token's keys and values depend on every token before it, so a block is named by its own tokens and
by the name of the block before it, which stands for all the earlier ones:

    name = sha256(name of the parent, tokens, salt of the tenant, fingerprint of the model)

Every field goes in with a tag and its length, so that no two different sets of fields give the same
bytes. The hash is a strong one because other tenants choose some of the prompts: with a weak hash
one could be crafted to hit another's block. Only full blocks have a name; a half-filled one will
still change.

Equal names mean the same keys and values, on any engine with the same fingerprint (Brief, section
2: "matching a chain of block hashes"): to the last bit in batch-invariant mode, else but for the
rounding, which depends on the company that they were computed in.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from hashlib import sha256

ROOT_NAME = b""  # the parent of a first block


def block_hash(parent: bytes, token_ids: Sequence[int], salt: str, fingerprint: str) -> bytes:
    """The name (32 bytes) of the block that holds `token_ids` after the block named `parent`."""
    fields = (
        (b"parent", parent),
        (b"tokens", struct.pack(f"<{len(token_ids)}Q", *token_ids)),
        (b"salt", salt.encode("utf-8", "surrogatepass")),
        (b"model", fingerprint.encode()),
    )
    return sha256(b"".join(tag + struct.pack("<Q", len(f)) + f for tag, f in fields)).digest()


def hash_chain(
    token_ids: Sequence[int], block_size: int, salt: str, fingerprint: str
) -> list[bytes]:
    """The names of all full blocks of `token_ids`, first to last."""
    chain: list[bytes] = []
    extend_chain(chain, len(token_ids) // block_size, token_ids, block_size, salt, fingerprint)
    return chain


def extend_chain(
    chain: list[bytes],
    count: int,
    token_ids: Sequence[int],
    block_size: int,
    salt: str,
    fingerprint: str,
) -> None:
    """Add names to `chain` until it has those of the first `count` blocks."""
    for i in range(len(chain), count):
        parent = chain[-1] if chain else ROOT_NAME
        tokens = token_ids[i * block_size : (i + 1) * block_size]
        chain.append(block_hash(parent, tokens, salt, fingerprint))
