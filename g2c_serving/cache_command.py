"""`python -m g2c_serving cache info | clear`: what the disk cache holds, and how to empty it."""

from __future__ import annotations

import argparse
import logging
from datetime import datetime
from pathlib import Path

from g2c_serving.paths import CACHE
from g2c_serving.schedule.disk_tier import DiskInfo, DiskTier
from g2c_serving.schedule.disk_upkeep import layouts


def main(argv: list[str] | None = None) -> int:
    """Print what there is, or what was removed; 1 where the folder cannot be used."""
    parser = argparse.ArgumentParser("python -m g2c_serving cache", description=__doc__)
    parser.add_argument("what", choices=("info", "clear"))
    parser.add_argument(
        "--dir", type=Path, default=CACHE, metavar="FOLDER", help=f"another folder than {CACHE}"
    )
    choice = parser.parse_args(argv)
    if not layouts(choice.dir):
        print(f"{choice.dir} holds no cache.")
        return 0
    logging.getLogger(DiskTier.__module__).addHandler(logging.NullHandler())  # printed below
    tier = DiskTier(choice.dir, capacity_bytes=0)
    try:
        if choice.what == "clear":
            print(f"{tier.clear():,} blocks removed from {tier.folder}.")
        else:
            print(text(tier.info()))
    finally:
        tier.close()
    if tier.problem:
        print(tier.problem)
    return int(tier.problem is not None)


def text(info: DiskInfo) -> str:
    """What a folder holds, one line for each traffic class."""
    lines = [f"{info.folder}: {info.blocks:,} blocks, {info.bytes / 1e6:,.1f} MB"]
    for traffic, (blocks, size) in info.by_traffic.items():
        lines.append(f"  {traffic:8} {blocks:9,} blocks {size / 1e6:11,.1f} MB")
    if info.oldest_use is not None and info.newest_use is not None:
        oldest, newest = map(datetime.fromtimestamp, (info.oldest_use, info.newest_use))
        lines.append(f"  last used between {oldest:%Y-%m-%d %H:%M} and {newest:%Y-%m-%d %H:%M}")
    return "\n".join(lines)
