"""The museum's room of the prefix cache: what counts as found, and whose it is.

Brief, section 2. The parts are those of `schedule/block_manager.py`, `schedule/block_hash.py` and
`schedule/prefix_tiers.py`.
"""

from __future__ import annotations

import struct
from hashlib import sha256
from typing import Any

from g2c_serving.lab.museum import Exhibit, register
from g2c_serving.lab.museum_model import drive, engine, is_told, said
from g2c_serving.request import SamplingParams
from g2c_serving.schedule.block_hash import block_hash
from g2c_serving.schedule.block_manager import BlockManager

Seen = dict[str, Any]
FOUR = SamplingParams(temperature=0, max_tokens=4)

# ---- a block keeps its name when it is handed out again ----


def take(self):
    if self.free_blocks:
        block = self.free_blocks.pop()
    else:
        block, _ = self.cached_blocks.popitem(last=False)
    self.ref_counts[block] = 1
    self.fresh.add(block)
    return block


def _four_visits() -> Seen:
    e = engine(num_blocks=5, enable_prefix_caching=True)
    seen: Seen = {}
    for visit, who, pin in (
        ("Ann", "Ann", "4711"),
        ("Ann, once more,", "Ann", "4711"),
        ("Bob", "Bob", "9042"),
        ("Ann, after Bob,", "Ann", "4711"),
    ):
        request = e.add(f"I am {who}. My PIN is {pin}. My PIN is ", FOUR)
        outputs = drive(e)
        seen[f"{visit} is told"] = said(outputs, request)
        seen[f"{visit} found in the cache (tokens)"] = outputs[request].num_cached_tokens
    return seen


def _four_visits_wrong(seen: Seen) -> str:
    told = seen["Ann, after Bob, is told"]
    if told != "4711":
        return f"Ann's PIN is 4711; after Bob's visit she is told {told}, and Bob's is 9042"
    found = seen["Ann, once more, found in the cache (tokens)"]
    if found != 32:
        return (
            f"Ann asks the same twice in a row: 32 of its 36 letters are there, {found} are found"
        )
    return ""


register(
    Exhibit(
        name="stale_hash",
        title="Another user's text",
        reports=("nano-vllm 163", "vLLM 4764"),
        room="prefix cache",
        place="g2c_serving.schedule.block_manager.BlockManager._take",
        fault=take,
        scene=_four_visits,
        wrong=_four_visits_wrong,
        story="A question that had been answered well was asked again an hour later, and the "
        "answer went on from somebody else's conversation. Nothing had crashed, no log had a line "
        "about it, and the larger the cache was, the longer it took to happen.",
        hint="Where can Ann's blocks be found, once Bob's tokens are in them? `hash_of` has the "
        "name of a block, and `block_of` the block of a name.",
        solution=BlockManager._take,
    )
)

# ---- all of the prompt is found ----


def most_blocks(self, request):
    return len(request.token_ids) // self.block_size


def all_but_the_last(self, request):
    return (len(request.token_ids) - 1) // self.block_size


WHOLE = "The capital is Oslo. The capital is Oslo. It is "  # six blocks of eight, to the letter


def _the_same_twice() -> Seen:
    e = engine(enable_prefix_caching=True)
    seen: Seen = {"letters of the question": len(WHOLE)}
    for who in ("Ann", "Bob, with the same question,"):
        request = e.add(WHOLE, FOUR)
        outputs = drive(e)
        seen[f"{who} is told"] = said(outputs, request)
    seen["tokens from the cache, in all"] = e.stats.cached_tokens
    return seen


def _the_same_twice_wrong(seen: Seen) -> str:
    letters, ann, bob, found = seen.values()
    if (ann, bob) != ("Oslo", "Oslo"):
        return f"Ann {is_told(ann)}; Bob, who asks the same, {is_told(bob)}"
    return "" if found else "Bob asks what Ann has asked, and nothing of it is found"


register(
    Exhibit(
        name="full_hit",
        title="Who asks what was asked before gets no answer",
        reports=("nano-vllm 144", "vLLM 17999"),
        room="prefix cache",
        place="g2c_serving.schedule.prefix_tiers.PrefixCache._most_blocks",
        fault=most_blocks,
        scene=_the_same_twice,
        wrong=_the_same_twice_wrong,
        story="One in so many prompts failed when it was sent a second time: in one engine the "
        "kernel was handed no token at all and raised, in another nothing came. It took a while to "
        "see what those prompts had in common. Their length was a whole number of blocks.",
        hint="The next token is drawn from the logits of the last one. Where are these, if all "
        "that is cached is keys and values?",
        solution=all_but_the_last,
    )
)

# ---- two texts of one name ----


def weak_name(parent, token_ids, salt, fingerprint):
    value = int.from_bytes(parent, "little")
    for number in (*salt.encode(), *fingerprint.encode(), *token_ids):
        value = (31 * value + number) % 2**64
    return value.to_bytes(8, "little")


def _two_accounts() -> Seen:
    e = engine(enable_prefix_caching=True)
    seen: Seen = {}
    for who, account in (("Mallory", "BB"), ("Ann", "Aa")):
        text = f"Refunds go to {account}. Where do refunds go to"
        request = e.add(text, FOUR)
        outputs = drive(e)
        seen[f"{who} asks"] = text
        seen[f"{who} is told"] = said(outputs, request)
        seen[f"{who} found in the cache (tokens)"] = outputs[request].num_cached_tokens
    seen["Bob asks"] = "Refunds Refunds please"
    request = e.add(seen["Bob asks"], FOUR)
    seen["Bob found in the cache (tokens)"] = drive(e)[request].num_cached_tokens
    return seen


def _two_accounts_wrong(seen: Seen) -> str:
    if (told := seen["Ann is told"]) != " Aa.":
        return f"Ann's text says Aa, and she {is_told(told)}: what Mallory sent has become hers"
    if seen["Bob found in the cache (tokens)"] > 8:
        return "Bob's second block is taken for his first: the same letters, after another text"
    if seen["Ann found in the cache (tokens)"] != 8:
        return 'both texts begin with "Refunds ", a whole block, and it is not found again'
    return ""


register(
    Exhibit(
        name="two_of_one_name",
        title="A text that somebody else has planted",
        reports=("vLLM 12621",),
        room="prefix cache",
        place="g2c_serving.schedule.block_hash.block_hash",
        fault=weak_name,
        scene=_two_accounts,
        wrong=_two_accounts_wrong,
        story="Blocks were found by a hash made for tables in memory: quick, and well spread over "
        "ordinary texts. It was no secret and easy to work backwards, so anybody could write a "
        "prompt whose blocks bore the names of another prompt's. Whoever sent that one later was "
        "answered from the planted text.",
        hint="Work out 31 times the first letter plus the second, for Aa and for BB. What kind of "
        "hash is there no known second text for? Any other hash tells these two apart, but is no "
        "mend.",
        solution=block_hash,
    )
)

# ---- a guess that is answered sooner ----


def open_name(parent, token_ids, salt, fingerprint):
    fields = (
        (b"parent", parent),
        (b"tokens", struct.pack(f"<{len(token_ids)}Q", *token_ids)),
        (b"model", fingerprint.encode()),
    )
    return sha256(b"".join(tag + struct.pack("<Q", len(f)) + f for tag, f in fields)).digest()


GUESSES = (("Bob", "4000"), ("Cid", "4100"), ("Dan", "4200"))


def _three_guesses() -> Seen:
    e = engine(enable_prefix_caching=True)
    for _ in range(2):
        request = e.add("Ann earns 4100, and Ann is asked no more.", FOUR, cache_salt="Ann's firm")
        outputs = drive(e)
    seen: Seen = {"Ann, who asks twice, finds (tokens)": outputs[request].num_cached_tokens}
    for who, guess in GUESSES:
        request = e.add(f"Ann earns {guess}, or so I hear.", FOUR, cache_salt=f"{who}'s firm")
        seen[f"{who}, of another firm, guesses {guess} and finds"] = drive(e)[
            request
        ].num_cached_tokens
    return seen


def _three_guesses_wrong(seen: Seen) -> str:
    own, *others = seen.values()
    if any(others):
        who, guess = GUESSES[others.index(max(others))]
        return f"{who} is answered soonest, {max(others)} tokens from the cache: Ann earns {guess}"
    return "" if own else "Ann asks the same twice, and nothing of it is found again"


register(
    Exhibit(
        name="quick_guess",
        title="A guess that is answered sooner when it is right",
        reports=("vLLM 15297",),
        room="prefix cache",
        place="g2c_serving.schedule.block_hash.block_hash",
        fault=open_name,
        scene=_three_guesses,
        wrong=_three_guesses_wrong,
        story="All tenants of a server shared one cache. Nobody was shown anybody's text; but a "
        "prompt that began like one of theirs got its first token sooner, and with a clock and "
        "some patience one could find out, piece by piece, what others had sent.",
        hint="What must go into a block's name, so that two firms with the same text have blocks "
        "of different names?",
        solution=block_hash,
    )
)
