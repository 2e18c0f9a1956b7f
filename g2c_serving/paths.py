"""Where the project keeps its data, its notebooks and its cache: the one place that knows."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
DATA = ROOT / "data"
NOTEBOOKS = ROOT / "notebooks"
CACHE = ROOT / ".cache" / "kv"  # the KV cache on disk; never committed
