"""Where the project keeps its data, its notebooks and its cache: the one place that knows."""

from __future__ import annotations

import os
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
DATA = ROOT / "data"
NOTEBOOKS = ROOT / "notebooks"
CACHE_VARIABLE = "G2C_SERVING_CACHE"


def cache_folder() -> Path:
    """Where the KV cache on disk lies; never committed. The variable names another folder, and
    beside a checkout that cannot be written to it lies in the home folder."""
    if named := os.environ.get(CACHE_VARIABLE):
        return Path(named)
    if os.access(ROOT, os.W_OK):
        return ROOT / ".cache" / "kv"
    return Path.home() / ".cache" / "g2c_serving" / "kv"


CACHE = cache_folder()
