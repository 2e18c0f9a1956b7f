"""Set up the course and open it. Standard library only; nothing needs to be installed first.

    python course.py             set up once, then open the notebooks in JupyterLab
    python course.py test        run the tests (add --slow for the long proofs alone)
    python course.py doctor      say what is wrong with the set-up, and what mends it
    python course.py --cpu       start; set up with torch's small build, without CUDA

What follows `start` goes to JupyterLab, what follows `test` goes to pytest:
    python course.py start --port=8890
    python course.py test -k panel
    python course.py test -n0 --pdb    (in one process: what --pdb and -s need)
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
import venv
from dataclasses import dataclass, field
from pathlib import Path
from typing import TextIO

ROOT = Path(__file__).resolve().parent
VENV = ROOT / ".venv"
PYTHON = VENV / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
STAMP = VENV / "course-setup.sha256"
LOG = VENV / "course-install.log"
FIRST = "notebooks/00_start_here.ipynb"
LAB_SETTINGS = {  # of JupyterLab, inside .venv
    # no question about Jupyter's news feed over the first page
    "etc/jupyter/labconfig/page_config.json": {
        "disabledExtensions": {"@jupyterlab/apputils-extension:announcements": True}
    },
    # a panel's work is done in the kernel's own thread, where Interrupt reaches it
    "share/jupyter/lab/settings/overrides.json": {
        "@jupyterlab/apputils-extension:kernels-settings": {"commsOverSubshells": "disabled"}
    },
}

OLDEST, NEWEST = (3, 11), (3, 13)
SUPPORTED = "3.11, 3.12 and 3.13"
DISK_GB = {False: 3.0, True: 8.0}  # needed for the install; True: torch comes with CUDA
CPU_LINE = "python course.py --cpu"
MODULES = ("torch", "numpy", "safetensors", "tokenizers", "ipywidgets", "ipykernel")
MODULES += ("jupyterlab", "matplotlib", "nbclient", "pytest", "g2c_serving")
TWO_AT_ONCE = ["-n", "2", "--dist", "worksteal"]  # tests compute on one thread; -n0 undoes it
CHECKPOINT = (
    "data/models/tiny/model.safetensors",
    "data/models/tiny/config.json",
    "data/models/tiny/manifest.json",
    "data/tokenizers/tiny/tokenizer.json",
)

# Run by the environment's own Python: what is installed there, as one line of JSON.
PROBE = """
import importlib, importlib.metadata, json, sys
found, broken, cuda, device = {}, {}, None, False
for name in sys.argv[1:]:
    try:
        module = importlib.import_module(name)
        found[name] = getattr(module, "__version__", None) or importlib.metadata.version(name)
        if name == "torch":
            cuda, device = module.version.cuda, module.cuda.is_available()
    except Exception as error:
        broken[name] = f"{type(error).__name__}: {error}"
try:
    from jupyter_client.kernelspec import KernelSpecManager
    kernel = KernelSpecManager().get_kernel_spec("python3").argv[0]
except Exception as error:
    kernel = f"{type(error).__name__}: {error}"
print(json.dumps(dict(version=list(sys.version_info[:3]), executable=sys.executable, found=found,
                      broken=broken, cuda=cuda, device=device, kernel=kernel)))
"""


# ---- set-up ---------------------------------------------------------------------------------


def setup_hash(root: Path = ROOT) -> str:
    """One hash of all that an install depends on: the two lists and the folder's own place."""
    parts = [(root / name).read_bytes() for name in ("requirements.txt", "pyproject.toml")]
    parts.append(str(root).encode())  # the editable install records the path
    return hashlib.sha256(b"\0".join(parts)).hexdigest()


def is_current(root: Path = ROOT, stamp: Path = STAMP) -> bool:
    """True when the last complete install was of exactly these requirements, here."""
    try:
        return stamp.read_text() == setup_hash(root)
    except OSError:
        return False


def refuse_old_python(version: tuple[int, ...] = sys.version_info[:3]) -> None:
    """Stop with a remedy where Python is too old; warn where it is newer."""
    if version[:2] < OLDEST:
        other = newer_python()
        remedy = f"run: {other} course.py" if other else "install Python 3.13 from python.org"
        what = f"This is Python {dotted(version)}; the course needs one of {SUPPORTED}."
        sys.exit(f"{what}\nRemedy: {remedy}")
    if version[:2] > NEWEST:
        print(f"Note: this is Python {dotted(version)}; supported are {SUPPORTED}. Going on.")


def newer_python() -> str | None:
    """The name of another Python on the path that the course supports, or None."""
    names = [f"python3.{minor}" for minor in range(NEWEST[1], OLDEST[1] - 1, -1)]
    return next((name for name in names if shutil.which(name)), None)


def set_up() -> None:
    """Make .venv and install, unless the last complete install was of the same requirements."""
    if is_current() and works(PYTHON):
        return set_lab()
    refuse_old_python()
    if not works(PYTHON):
        make_environment()
    if linux_without_gpu() and not has_torch() and "--cpu" not in sys.argv:
        print(
            "On Linux, torch brings CUDA libraries of several GB, and no NVIDIA GPU was seen here."
            f"\nFor the small build, stop with Ctrl+C and run:  {CPU_LINE}"
        )
    install(small_torch="--cpu" in sys.argv)
    set_lab()
    STAMP.write_text(setup_hash())


def works(python: Path) -> bool:
    """True when that interpreter starts, is new enough and has pip (a half-made .venv does not)."""
    code = f"import sys, pip; sys.exit(sys.version_info < {OLDEST})"
    try:
        return subprocess.run([python, "-c", code], capture_output=True).returncode == 0
    except OSError:
        return False


def make_environment() -> None:
    if not os.access(ROOT, os.W_OK):
        sys.exit(
            f"{ROOT} cannot be written to, and the set-up goes there.\n"
            "Remedy: copy the folder to a place of your own, and run course.py there."
        )
    print(f"Making {VENV} ...", flush=True)
    try:
        venv.create(VENV, with_pip=True, clear=True)
    except (subprocess.CalledProcessError, OSError) as error:
        sys.exit(
            f"Could not make {VENV}: {error}\n"
            "Remedy: on Debian and Ubuntu, `sudo apt install python3-venv`; elsewhere a Python from"
            " python.org has what is needed. Then run the same command again."
        )


def install_commands(small_torch: bool) -> list[list]:
    """What installs requirements.txt. The small torch comes first where it is asked for, through
    uv, which knows where torch's builds lie; pip then finds torch in place."""
    pip = [PYTHON, "-m", "pip", "install", "-q", "--disable-pip-version-check"]
    commands = [pip + ["-r", "requirements.txt"]]
    if small_torch:
        lines = (ROOT / "requirements.txt").read_text(encoding="utf-8").splitlines()
        torch = next(line for line in lines if line.startswith("torch"))
        uv = [PYTHON, "-m", "uv", "pip", "install", "-q", "--python", PYTHON]
        commands = [pip + ["uv"], uv + ["--torch-backend", "cpu", torch], *commands]
    return commands


def install(small_torch: bool = False) -> None:
    """Install requirements.txt, with a line of progress; on failure say what to do."""
    free = shutil.disk_usage(ROOT).free
    begin = time.monotonic()
    print("Installing the course's packages into .venv (minutes, the first time) ...", flush=True)
    with LOG.open("w", encoding="utf-8") as log:
        failed = any(run_logged(c, log, begin, free) for c in install_commands(small_torch))
    show_progress(begin, free, end="\n")
    if failed:
        lines = LOG.read_text(encoding="utf-8", errors="replace").splitlines()
        sys.exit("\n".join(lines[-15:] + ["", *install_remedies(shutil.disk_usage(ROOT).free)]))


def run_logged(command: list, log: TextIO, begin: float, free: int) -> int:
    """Run one command with its output in `log`, showing progress; its exit status."""
    job = subprocess.Popen(
        command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT
    )
    while job.poll() is None:
        show_progress(begin, free)
        time.sleep(0.5)
    return job.returncode


def set_lab(environment: Path = VENV) -> None:
    """JupyterLab's settings, in this environment only."""
    for name, settings in LAB_SETTINGS.items():
        file = environment / name
        if not file.is_file() or file.read_text() != json.dumps(settings):
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(json.dumps(settings))


def show_progress(begin: float, free: int, end: str = "") -> None:
    """One line, written over itself on a terminal; elsewhere only its last state."""
    if not (end or sys.stdout.isatty()):
        return
    used = max(0, free - shutil.disk_usage(ROOT).free) / 1e9
    seconds = int(time.monotonic() - begin)
    mark = "\r" if sys.stdout.isatty() else ""
    print(f"{mark}{seconds} s, {used:.1f} GB on disk", end=end, flush=True)


def install_remedies(free: int) -> list[str]:
    """What to do when pip has failed."""
    lines = [f"The install did not finish. All that pip said is in {LOG}"]
    if free < DISK_GB[False] * 1e9:
        lines.append(f"- {free / 1e9:.1f} GB of disk are free: make room (see `doctor`).")
    lines.append("- No network, or a proxy? Set HTTPS_PROXY, or try again where there is network.")
    lines.append(f"- No matching version? The supported Pythons are {SUPPORTED}.")
    lines.append("- Then run the same command again: it goes on where it stopped.")
    return lines


def linux_without_gpu() -> bool:
    return sys.platform.startswith("linux") and not shutil.which("nvidia-smi")


def has_torch() -> bool:
    return any(VENV.glob("lib/python3*/site-packages/torch/__init__.py"))


# ---- the three commands ---------------------------------------------------------------------


def start(extra: list[str]) -> int:
    """Open JupyterLab on the first notebook. Lab, not Notebook 7: arrow keys move sliders there."""
    set_up()
    options = list(extra)
    if hasattr(os, "geteuid") and os.geteuid() == 0:
        options.append("--allow-root")
    if not has_display():
        options.append("--no-browser")
        print("No screen here: open the address that JupyterLab prints below in a browser.")
    print("Stop with Ctrl+C in this window.", flush=True)
    command = [PYTHON, "-m", "jupyterlab", f"--ServerApp.root_dir={ROOT}"]
    return run([*command, f"--LabApp.default_url=/lab/tree/{FIRST}", *options])


def has_display() -> bool:
    """True where a browser can be expected to open by itself."""
    if not sys.platform.startswith("linux"):
        return True
    return bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))


def test(extra: list[str]) -> int:
    set_up()
    slow = ["-m", "slow"] if "--slow" in extra else []
    rest = [word for word in extra if word != "--slow"]
    return run([PYTHON, "-m", "pytest", *TWO_AT_ONCE, *slow, *rest])


def run(command: list) -> int:
    """Run it from the root. Ctrl+C goes to it as well, and it is the one that decides to end."""
    job = subprocess.Popen(command, cwd=ROOT)
    while True:
        try:
            return job.wait()
        except KeyboardInterrupt:
            continue


def doctor(extra: list[str]) -> int:
    """Print every check with its remedy; 1 when something must be mended, else 0."""
    facts = gather()
    findings = [finding for check in CHECKS for finding in check(facts)]
    print(f"Python {dotted(facts.python)} at {sys.executable}\ncourse at {ROOT}")
    versions = ", ".join(f"{name} {v}" for name, v in facts.found.items() if name != "g2c_serving")
    print(f"installed: {versions or 'nothing yet'}\n")
    for finding in findings:
        print(f"{finding.level.upper():8} {finding.what}\n{'':8} remedy: {finding.remedy}")
    if not findings:
        print("All is well.")
    return int(any(finding.level == "error" for finding in findings))


# ---- the doctor's checks: each takes the facts and returns what it found --------------------


@dataclass
class Facts:
    """What the checks look at; tests make their own."""

    python: tuple[int, ...] = (3, 11, 0)  # of the environment, or of this process before set-up
    has_venv: bool = True
    current: bool = True
    free_gb: float = 100.0
    linux: bool = True
    found: dict[str, str] = field(default_factory=dict)
    broken: dict[str, str] = field(default_factory=dict)
    cuda: str | None = None  # the CUDA version that torch was built for
    device: bool = False  # an NVIDIA GPU that torch can use
    kernel: str = "python"
    executable: str = ""
    file_sizes: dict[str, int] = field(default_factory=dict)  # -1: not there
    least_sizes: dict[str, int] = field(default_factory=dict)  # what a whole file has
    other_python: str | None = None


@dataclass
class Finding:
    level: str  # "error" or "warning"
    what: str
    remedy: str


def gather() -> Facts:
    facts = Facts(python=tuple(sys.version_info[:3]), has_venv=works(PYTHON))
    facts.current = is_current()
    facts.free_gb = shutil.disk_usage(ROOT).free / 1e9
    facts.linux = sys.platform.startswith("linux")
    facts.other_python = newer_python()
    paths = {name: ROOT / name for name in CHECKPOINT}
    facts.file_sizes = {n: p.stat().st_size if p.is_file() else -1 for n, p in paths.items()}
    facts.least_sizes = {n: whole_size(p) for n, p in paths.items() if p.suffix == ".safetensors"}
    if facts.has_venv:
        probe_environment(facts)
    return facts


def whole_size(path: Path) -> int:
    """The size that a safetensors file should have, by its own header; 100,000 if that is gone."""
    try:
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            header = json.loads(file.read(min(length, 10_000_000)))
        tensors = [entry for name, entry in header.items() if name != "__metadata__"]
        return 8 + length + max(entry["data_offsets"][1] for entry in tensors)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return 100_000


def probe_environment(facts: Facts) -> None:
    """Ask the environment's Python what it can import, and fill that in."""
    command = [PYTHON, "-c", PROBE, *MODULES]
    job = subprocess.run(command, capture_output=True, text=True, cwd=VENV)
    if job.returncode or not job.stdout.strip():
        facts.broken["Python in .venv"] = job.stderr.strip()[-300:] or f"exit {job.returncode}"
        return
    answer = json.loads(job.stdout.splitlines()[-1])
    facts.python = tuple(answer.pop("version"))
    for name, value in answer.items():
        setattr(facts, name, value)


def check_python(facts: Facts) -> list[Finding]:
    if facts.python[:2] < OLDEST:
        remedy = "install Python 3.13 from python.org, then run course.py with it"
        if facts.other_python:
            remedy = f"delete .venv if it is there, then run: {facts.other_python} course.py"
        return [Finding("error", f"Python {dotted(facts.python)} is too old.", remedy)]
    if facts.python[:2] > NEWEST:
        what = f"Python {dotted(facts.python)} is newer than what is supported ({SUPPORTED})."
        return [Finding("warning", what, "if a package fails to install, use Python 3.13")]
    return []


def check_environment(facts: Facts) -> list[Finding]:
    if not facts.has_venv:
        return [Finding("error", "There is no working .venv.", "run: python course.py")]
    if not facts.current:
        what = "The last install was not of these requirements, or did not finish."
        return [Finding("warning", what, "run: python course.py (it installs what is missing)")]
    return []


def check_disk(facts: Facts) -> list[Finding]:
    needed = DISK_GB[facts.linux] if not facts.current else 0.5
    if facts.free_gb >= needed:
        return []
    what = f"{facts.free_gb:.1f} GB of disk are free; {needed:g} GB are needed here."
    remedy = "make room on this disk"
    if facts.linux and not facts.current and facts.free_gb >= DISK_GB[False]:
        remedy += f", or take the small build of torch: {CPU_LINE}"
    return [Finding("error" if facts.free_gb < 0.5 else "warning", what, remedy)]


def check_packages(facts: Facts) -> list[Finding]:
    """Packages that do not import, ipywidgets (no sliders without it) and our own included."""
    remedy = "delete the folder .venv, then run: python course.py"
    found = []
    for name, why in facts.broken.items():
        loss = {"ipywidgets": " Sliders cannot work."}.get(name, "")
        found.append(Finding("error", f"{name} does not import ({why}).{loss}", remedy))
    return found


def check_torch_build(facts: Facts) -> list[Finding]:
    if not facts.cuda or facts.device:
        return []
    what = f"torch is the CUDA {facts.cuda} build (several GB), and there is no NVIDIA GPU to use."
    remedy = f"nothing has to be done; for the small build delete .venv and run: {CPU_LINE}"
    return [Finding("warning", what, remedy)]


def check_kernel(facts: Facts) -> list[Finding]:
    """The notebooks' kernel must be the environment's Python, not one registered by hand."""
    if not facts.has_venv or facts.kernel == facts.executable or "ipykernel" in facts.broken:
        return []
    if Path(facts.kernel).name == facts.kernel and facts.kernel.startswith("python"):
        return []  # the name that Jupyter replaces by its own interpreter
    what = f"Notebooks would start with another kernel than .venv's: {facts.kernel}"
    return [Finding("error", what, "run: .venv/bin/python -m jupyter kernelspec remove python3")]


def check_checkpoint(facts: Facts) -> list[Finding]:
    remedy = "run: git checkout -- data   (or train it again: python -m g2c_serving train tiny)"
    found = []
    for name, size in facts.file_sizes.items():
        if size < 0:
            found.append(Finding("error", f"{name} is missing.", remedy))
        elif size < facts.least_sizes.get(name, 1):
            what = f"{name} has only {size:,} bytes of {facts.least_sizes.get(name, 1):,}."
            found.append(Finding("error", what, remedy))
    return found


CHECKS = (check_python, check_environment, check_disk, check_packages, check_torch_build)
CHECKS += (check_kernel, check_checkpoint)
COMMANDS = {"start": start, "test": test, "doctor": doctor}


def dotted(version: tuple[int, ...]) -> str:
    return ".".join(str(part) for part in version)


def main(argv: list[str]) -> int:
    argv = [word for word in argv if word != "--cpu"]
    command, extra = (argv[0], argv[1:]) if argv else ("start", [])
    if command in ("-h", "--help", "help"):
        print(__doc__)
        return 0
    if command not in COMMANDS:
        print(f"course.py has no command {command!r}.\n\n{__doc__}", file=sys.stderr)
        return 2
    try:
        return COMMANDS[command](extra)
    except KeyboardInterrupt:
        print("\nStopped. The same command goes on from here.")
        return 130


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
