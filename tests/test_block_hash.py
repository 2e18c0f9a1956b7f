"""Names of blocks: equal exactly when all that they stand for is equal."""

import hashlib
import struct
from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from g2c_serving.schedule.block_hash import block_hash, extend_chain, hash_chain


def test_a_name_is_the_sha256_of_its_tagged_fields():
    fields = b"parent" + bytes(8)
    fields += b"tokens" + struct.pack("<Q", 16) + struct.pack("<QQ", 7, 9)
    fields += b"salt" + struct.pack("<Q", 1) + b"s"
    fields += b"model" + struct.pack("<Q", 2) + b"fp"
    assert block_hash(b"", [7, 9], "s", "fp") == hashlib.sha256(fields).digest()


def test_every_field_counts_and_none_runs_into_the_next():
    """vLLM 12621, 15297: with a weak hash, or fields that run together, a crafted prompt gets
    another tenant's block."""
    base = hash_chain([1, 2, 3, 4], 2, "tenant", "model")
    variants = [
        hash_chain([1, 2, 3, 4], 2, "other", "model"),
        hash_chain([1, 2, 3, 4], 2, "", "tenantmodel"),
        hash_chain([1, 2, 3, 4], 2, "tenantmodel", ""),
        hash_chain([1, 2, 3, 4], 2, "tenant", "other"),
        hash_chain([2, 1, 3, 4], 2, "tenant", "model"),
        hash_chain([1, 258, 3, 4], 2, "tenant", "model"),
        hash_chain([1, 2 + 2**32, 3, 4], 2, "tenant", "model"),
        hash_chain([1, 2, 3, 4], 4, "tenant", "model"),
    ]
    for one, other in combinations([base, *variants], 2):
        assert set(one).isdisjoint(other)


@given(st.lists(st.integers(0, 3), max_size=20), st.integers(1, 5), st.integers(0, 20))
def test_a_chain_may_be_worked_out_bit_by_bit(tokens, block_size, cut):
    whole = hash_chain(tokens, block_size, "", "m")
    assert len(whole) == len(tokens) // block_size
    part = hash_chain(tokens[:cut], block_size, "", "m")
    assert part == whole[: len(part)]
    extend_chain(part, len(whole), tokens, block_size, "", "m")
    assert part == whole


def test_the_same_tokens_after_another_beginning_have_another_name():
    assert hash_chain([1, 1, 5, 5], 2, "", "m")[1] != hash_chain([2, 2, 5, 5], 2, "", "m")[1]
    assert hash_chain([5, 5, 5, 5], 2, "", "m")[0] != hash_chain([5, 5, 5, 5], 2, "", "m")[1]
