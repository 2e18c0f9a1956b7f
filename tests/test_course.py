"""course.py: what the doctor says about machines that are not this one, and when it installs."""

from __future__ import annotations

import importlib.util
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def course():
    spec = importlib.util.spec_from_file_location("course", ROOT / "course.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["course"] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules["course"]


@pytest.fixture
def copy(tmp_path):
    """A copy of the set-up files alone, in a folder whose path has a space."""
    folder = tmp_path / "my course"
    folder.mkdir()
    for name in ("course.py", "requirements.txt", "pyproject.toml"):
        shutil.copy(ROOT / name, folder / name)
    return folder


def run(folder: Path, *words: str, cwd: Path | None = None) -> subprocess.CompletedProcess:
    command = [sys.executable, str(folder / "course.py"), *words]
    return subprocess.run(command, cwd=cwd or folder, capture_output=True, text=True)


# ---- a folder that cannot be written ----


def test_a_read_only_folder_is_named_with_its_remedy(course, monkeypatch):
    monkeypatch.setattr(course.os, "access", lambda *_: False)
    with pytest.raises(SystemExit, match="cannot be written.*\n.*copy the folder"):
        course.make_environment()


# ---- the doctor's checks ----


def test_a_healthy_machine_has_no_findings(course):
    sizes = {name: 1_000_000 for name in course.CHECKPOINT}
    facts = course.Facts(file_sizes=sizes, found={"torch": "2.13.0+cpu"})
    assert [found for check in course.CHECKS for found in check(facts)] == []


@pytest.mark.parametrize("version", [(3, 8, 18), (3, 10, 13)])
def test_an_old_python_is_an_error_that_names_another_one(course, version):
    (found,) = course.check_python(course.Facts(python=version, other_python="python3.12"))
    assert found.level == "error"
    assert ".".join(map(str, version)) in found.what and "python3.12 course.py" in found.remedy


@pytest.mark.parametrize("version", [(3, 11, 0), (3, 12, 1), (3, 13, 9)])
def test_the_tested_pythons_pass(course, version):
    assert course.check_python(course.Facts(python=version)) == []


def test_a_newer_python_is_a_warning_that_names_the_tested_ones(course):
    (found,) = course.check_python(course.Facts(python=(3, 14, 0)))
    assert found.level == "warning" and "3.11, 3.12 and 3.13" in found.what


@pytest.mark.parametrize(
    "free_gb, linux, current, levels",
    [
        (100, True, False, []),
        (5, True, False, ["warning"]),  # enough for the CPU build, not for CUDA
        (5, False, False, []),  # elsewhere torch is small
        (1, True, True, []),  # installed already
        (0.2, False, True, ["error"]),
    ],
)
def test_disk(course, free_gb, linux, current, levels):
    facts = course.Facts(free_gb=free_gb, linux=linux, current=current)
    found = course.check_disk(facts)
    assert [f.level for f in found] == levels
    if free_gb == 5 and linux:
        assert "--cpu" in found[0].remedy


def test_torch_built_for_cuda_without_a_gpu_is_said_with_the_remedy(course):
    (found,) = course.check_torch_build(course.Facts(cuda="13.0", device=False))
    assert found.level == "warning" and "13.0" in found.what and "--cpu" in found.remedy
    assert course.check_torch_build(course.Facts(cuda="13.0", device=True)) == []
    assert course.check_torch_build(course.Facts(cuda=None)) == []


def test_missing_widgets_are_an_error(course):
    facts = course.Facts(broken={"ipywidgets": "ModuleNotFoundError: No module named 'ipywidgets'"})
    (found,) = course.check_packages(facts)
    assert found.level == "error" and "Sliders" in found.what and "python course.py" in found.remedy


def test_a_checkpoint_says_its_own_size(course, tmp_path):
    """The shipped file is whole by its header; cut in half it still says what it should have."""
    shipped = ROOT / "data/models/tiny/model.safetensors"
    whole = course.whole_size(shipped)
    assert whole == shipped.stat().st_size
    cut = tmp_path / "cut.safetensors"
    cut.write_bytes(shipped.read_bytes()[: whole // 2])
    assert course.whole_size(cut) == whole
    cut.write_bytes(b"not a checkpoint")
    assert course.whole_size(cut) == 100_000


@pytest.mark.parametrize("size, word", [(-1, "missing"), (134, "134 bytes"), (3_000_000, "3,000,")])
def test_a_missing_or_cut_checkpoint_names_the_file(course, size, word):
    name = "data/models/tiny/model.safetensors"
    facts = course.Facts(file_sizes={name: size}, least_sizes={name: 7_000_000})
    (found,) = course.check_checkpoint(facts)
    assert name in found.what and word in found.what and "git checkout" in found.remedy


def test_a_kernel_that_is_not_the_environments_is_an_error(course):
    own = course.Facts(kernel="/here/.venv/bin/python", executable="/here/.venv/bin/python")
    assert course.check_kernel(own) == []
    assert course.check_kernel(course.Facts(kernel="python", executable="/x/python")) == []
    other = course.Facts(kernel="/other/bin/python", executable="/here/.venv/bin/python")
    (found,) = course.check_kernel(other)
    assert "/other/bin/python" in found.what


def test_no_environment_yet(course):
    (found,) = course.check_environment(course.Facts(has_venv=False))
    assert found.level == "error" and found.remedy == "run: python course.py"


# ---- when it installs ----


def test_the_hash_follows_the_requirements_and_the_place(course, copy, tmp_path):
    first = course.setup_hash(copy)
    assert course.setup_hash(copy) == first
    moved = tmp_path / "elsewhere"
    shutil.copytree(copy, moved)
    assert course.setup_hash(moved) != first
    with (copy / "requirements.txt").open("a") as file:
        file.write("another-package\n")
    assert course.setup_hash(copy) != first


def test_it_installs_once_and_again_only_after_a_failure_or_a_change(course, copy, monkeypatch):
    stamp = copy / "stamp"
    calls = []
    for name, value in {"ROOT": copy, "STAMP": stamp, "VENV": copy / ".venv"}.items():
        monkeypatch.setattr(course, name, value)
    monkeypatch.setattr(course, "works", lambda python: True)
    monkeypatch.setattr(course, "is_current", lambda: stamp.exists())
    monkeypatch.setattr(course, "setup_hash", lambda: "hash")

    def fail(small_torch):
        calls.append("failed")
        sys.exit("pip failed")

    monkeypatch.setattr(course, "install", fail)
    with pytest.raises(SystemExit):
        course.set_up()
    assert not stamp.exists()  # a failed install is tried again
    monkeypatch.setattr(course, "install", lambda small_torch: calls.append("installed"))
    course.set_up()
    course.set_up()
    assert calls == ["failed", "installed"]


def test_a_failed_install_says_what_to_do(course):
    text = "\n".join(course.install_remedies(free=300_000_000))
    assert "0.3 GB" in text and "network" in text and "same command again" in text


def test_an_old_python_stops_before_anything_is_made(course, monkeypatch):
    monkeypatch.setattr(course, "newer_python", lambda: "python3.13")
    with pytest.raises(SystemExit, match=r"3\.9\.1.*3\.11, 3\.12 and 3\.13(.|\n)*python3\.13"):
        course.refuse_old_python((3, 9, 1))


# ---- the command line ----


def test_an_unknown_command_prints_the_three(copy):
    job = run(copy, "strat")
    assert job.returncode == 2
    assert "'strat'" in job.stderr and "course.py doctor" in job.stderr
    assert not (copy / ".venv").exists()


def test_help(copy):
    job = run(copy, "--help")
    assert job.returncode == 0 and "course.py test" in job.stdout


def test_doctor_runs_from_another_folder_with_a_space_and_installs_nothing(copy, tmp_path):
    other = tmp_path / "somewhere else"
    other.mkdir()
    job = run(copy, "doctor", cwd=other)
    assert job.returncode == 1, job.stderr
    assert str(copy) in job.stdout and "no working .venv" in job.stdout
    assert "model.safetensors is missing" in job.stdout
    assert not (copy / ".venv").exists() and list(other.iterdir()) == []


def test_doctor_survives_an_environment_whose_python_dies(course, copy, monkeypatch):
    (copy / ".venv").mkdir()
    monkeypatch.setattr(course, "VENV", copy / ".venv")
    monkeypatch.setattr(course, "PROBE", "import sys; sys.exit('no such luck')")
    monkeypatch.setattr(course, "PYTHON", Path(sys.executable))
    facts = course.Facts()
    course.probe_environment(facts)
    (found,) = course.check_packages(facts)
    assert "no such luck" in found.what


def test_start_leads_to_the_first_notebook(course, monkeypatch, capsys):
    started = []
    monkeypatch.setattr(course, "set_up", lambda: None)
    monkeypatch.setattr(course, "run", lambda command: started.extend(command) or 0)
    monkeypatch.setattr(course, "has_display", lambda: False)
    assert course.main(["start", "--port=8890"]) == 0
    assert "--LabApp.default_url=/lab/tree/notebooks/00_start_here.ipynb" in started
    assert "--port=8890" in started and "--no-browser" in started
    assert "open the address" in capsys.readouterr().out
    if hasattr(course.os, "geteuid"):
        assert ("--allow-root" in started) == (course.os.geteuid() == 0)


@pytest.mark.parametrize(
    "words, given", [([], []), (["--slow"], ["-m", "slow"]), (["-k", "panel"], ["-k", "panel"])]
)
def test_words_after_test_go_to_pytest(course, monkeypatch, words, given):
    started = []
    monkeypatch.setattr(course, "set_up", lambda: None)
    monkeypatch.setattr(course, "run", lambda command: started.extend(command) or 0)
    course.main(["test", *words])
    two = ["-n", "2", "--dist", "worksteal"]
    assert started[1:] == ["-m", "pytest", *two, *given]


def test_the_small_torch_comes_before_everything_else(course):
    """--cpu: uv takes torch's CPU build in our own range, then pip finds it in place."""
    get_uv, torch, rest = course.install_commands(small_torch=True)
    assert get_uv[-1] == "uv"
    assert torch[-3:-1] == ["--torch-backend", "cpu"] and torch[-1].startswith("torch>=")
    assert [rest] == course.install_commands(small_torch=False)


def test_jupyterlab_is_set_once_in_this_environment_alone(course, tmp_path):
    """The names of the extensions are those of the JupyterLab that is installed here."""
    course.set_lab(tmp_path)
    overrides = tmp_path / "share/jupyter/lab/settings/overrides.json"
    plugin, settings = json.loads(overrides.read_text()).popitem()
    extension, name = plugin.split(":")
    schema = Path(sys.prefix, "share/jupyter/lab/schemas", extension, f"{name}.json")
    if schema.is_file():  # JupyterLab 4.4 and later
        known = json.loads(schema.read_text(encoding="utf-8"))["properties"]
        for key, value in settings.items():
            assert value in [option["const"] for option in known[key]["oneOf"]]
    before = overrides.stat().st_mtime_ns
    course.set_lab(tmp_path)
    assert overrides.stat().st_mtime_ns == before  # a folder that cannot be written to is no harm
