"""The command line: `python -m g2c_serving figures | bench | train | cache | export | render`.

Each command is a `main(argv)` of the module named here; it is imported only when it is called.
"""

from __future__ import annotations

import importlib
import sys

COMMANDS = {
    "figures": ("g2c_serving.lab.figures", "the Brief's figures, reproduced and compared"),
    "bench": ("g2c_serving.lab.bench_command", "speed as ratios, also to other engines"),
    "train": ("g2c_serving.train.train_command", "train a shipped model anew, or measure it"),
    "cache": ("g2c_serving.cache_command", "what the KV cache on disk holds; empty it"),
    "export": ("g2c_serving.export_command", "a model's weights for transformers, vLLM and others"),
    "render": ("g2c_serving.lab.render", "execute the notebooks and keep their outputs"),
}


def main(argv: list[str]) -> int:
    """Run one command and return its exit status; 2 for an unknown one, 130 after Ctrl+C."""
    if not argv or argv[0] not in COMMANDS:
        print("usage: python -m g2c_serving COMMAND [options]\n")
        print("\n".join(f"  {name:8} {what}" for name, (_, what) in COMMANDS.items()))
        return 0 if argv in ([], ["-h"], ["--help"]) else 2
    try:
        command = importlib.import_module(COMMANDS[argv[0]][0])
        return command.main(argv[1:]) or 0
    except KeyboardInterrupt:
        print("\nStopped.", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
