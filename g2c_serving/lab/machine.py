"""What this machine is: the words that stand beside every number measured here; its cores."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from g2c_serving.paths import ROOT

PACKAGES = ("torch", "numpy", "tokenizers", "matplotlib", "ipywidgets", "jupyterlab")


def processor() -> str:
    """The processor's name as its maker gives it, or the machine's kind where there is none."""
    info = Path("/proc/cpuinfo")
    if info.exists():
        names = [
            line.split(":", 1)[1] for line in info.read_text().splitlines() if "model name" in line
        ]
        return names[0].strip() if names else platform.machine()
    if sys.platform == "darwin":
        command = ["sysctl", "-n", "machdep.cpu.brand_string"]
        return subprocess.run(command, capture_output=True, text=True).stdout.strip()
    return platform.processor() or platform.machine()


def version(package: str) -> str:
    """The installed version; torch's own word for it, which names the build (+cpu, +cu130)."""
    if package == "torch":
        return torch.__version__
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def environment() -> str:
    """Which environment this Python is of, without its path (it would stand in saved pages)."""
    own = Path(sys.prefix).resolve() == (ROOT / ".venv").resolve()
    return "the course's .venv" if own else "another environment than the course's .venv"


def line() -> str:
    """One line for a caption: processor, cores, system, torch."""
    cores = os.cpu_count()
    return f"{processor()}, {cores} cores, {platform.system()}, torch {version('torch')}"


def table() -> str:
    """The versions and the machine, one a line."""
    rows = {
        "Python": f"{platform.python_version()}, in {environment()}",
        "system": f"{platform.system()}, {platform.machine()}",
        "processor": f"{processor()}, {os.cpu_count()} cores",
        **{package: version(package) for package in PACKAGES},
    }
    return "\n".join(f"{name:11} {text}" for name, text in rows.items())


def cores() -> int:
    """That this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@contextmanager
def num_threads(count: int) -> Iterator[None]:
    """torch computes in so many threads; in as many as before afterwards."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
