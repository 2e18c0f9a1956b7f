"""Where the project keeps its data, its notebooks and its cache: the one place that knows."""

from __future__ import annotations

import os
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
DATA = ROOT / "data"
NOTEBOOKS = ROOT / "notebooks"
CACHE_VARIABLE = "G2C_SERVING_CACHE"
# The KV cache on disk; never committed. The variable names another folder.
CACHE = Path(os.environ.get(CACHE_VARIABLE) or ROOT / ".cache" / "kv")
