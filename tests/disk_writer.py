"""A process that uses a disk cache until it is killed: for test_disk_tier.py.

    python tests/disk_writer.py FOLDER CAPACITY SEED AHEAD ROUNDS

Writes and reads random blocks; ends with status 3 as soon as one reads back wrong. AHEAD moves its
clock, in seconds. The payload of a block follows from its hash, so everybody knows the right one.
"""

from __future__ import annotations

import hashlib
import os
import random
import sys
import time
from pathlib import Path
from types import ModuleType

HASHES = [hashlib.sha256(b"block %d" % i).digest() for i in range(64)]


def payload(block_hash: bytes) -> bytes:
    """1,000 to 26,500 bytes that only this hash has."""
    return hashlib.shake_256(block_hash).digest(1000 + 100 * block_hash[0])


def main(folder: str, capacity: str, seed: str, ahead: str, rounds: str) -> int:
    from g2c_serving.schedule.disk_tier import DiskTier

    tier = DiskTier(folder, int(capacity), clock=lambda: time.time() + float(ahead))
    rng = random.Random(int(seed))
    print("ready", flush=True)
    parent = os.getppid()
    for _ in range(int(rounds)):
        if os.getppid() != parent:
            return 4  # the test is gone, and nobody will kill us
        some = rng.sample(HASHES, rng.randint(1, 8))
        if rng.random() < 0.7:
            tier.write([(h, payload(h)) for h in some], rng.choice(["agent", "chat"]))
        else:
            some = some[:1] if rng.random() < 0.5 else some
            if any(p != payload(h) for h, p in zip(some, tier.read(some), strict=False)):
                return 3
    print(tier.problem, flush=True)
    return 0


if __name__ == "__main__":
    root = Path(__file__).parents[1]
    for name in (
        "g2c_serving",
        "g2c_serving.schedule",
    ):  # past the package's face, which loads torch
        sys.modules[name] = module = ModuleType(name)
        module.__path__ = [str(root.joinpath(*name.split(".")))]
    sys.exit(main(*sys.argv[1:]))
