"""One real JupyterLab in a real browser: keys and mouse move a panel, at once and without a blink.

Needs Debian's Chromium (or CHROMIUM=/path/to/it) and playwright; skipped where one is absent.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

from g2c_serving.paths import NOTEBOOKS

sync_api = pytest.importorskip("playwright.sync_api")
CHROMIUM = (
    os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
)
pytestmark = pytest.mark.skipif(not CHROMIUM, reason="no Chromium: apt-get install chromium")

FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"]
FLAGS += ["--disable-background-networking", "--disable-component-update"]
KERNEL_IDLE = "jupyterapp?.shell?.currentWidget?.sessionContext?.session?.kernel?.status === 'idle'"
SCROLL_TO_PANEL = """() => {
    const notebook = window.jupyterapp.shell.currentWidget.content;
    const place = notebook.widgets.findIndex(
        cell => cell.model.sharedModel.source.includes("reservation.panel()"));
    return notebook.scrollToItem(place, "start");
}"""
PICTURE = ".jp-OutputArea-output .widget-html img, .jp-OutputArea-output .jupyter-widgets img"
STATUS = ".jp-OutputArea-output [role=status]"
LIMIT_S = 1.5


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    """The address of a JupyterLab on a copy of the notebooks, with settings of its own."""
    home = tmp_path_factory.mktemp("lab home")
    shutil.copytree(NOTEBOOKS, home / "notebooks")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    places = {"JUPYTER_CONFIG_DIR": "config", "JUPYTERLAB_SETTINGS_DIR": "settings"}
    places |= {"JUPYTERLAB_WORKSPACES_DIR": "workspaces", "JUPYTER_RUNTIME_DIR": "runtime"}
    env = os.environ | {name: str(home / folder) for name, folder in places.items()}
    command = [sys.executable, "-m", "jupyterlab", "--no-browser", "--ip=127.0.0.1"]
    command += [f"--port={port}", "--ServerApp.port_retries=0", "--IdentityProvider.token="]
    command += ["--LabApp.expose_app_in_browser=True", f"--ServerApp.root_dir={home / 'notebooks'}"]
    command += ["--allow-root"] if hasattr(os, "geteuid") and os.geteuid() == 0 else []
    log = (home / "lab.log").open("w")
    server = subprocess.Popen(command, env=env, stdout=log, stderr=log, cwd=home)
    try:
        wait_for(f"http://127.0.0.1:{port}/api", server, home / "lab.log")
        yield f"http://127.0.0.1:{port}"
    finally:
        server.terminate()
        server.wait(30)
        log.close()


def wait_for(address: str, server: subprocess.Popen, log: Path) -> None:
    for _ in range(300):
        try:
            urllib.request.urlopen(address, timeout=1)
            return
        except OSError:
            assert server.poll() is None, log.read_text()
            time.sleep(0.1)
    pytest.fail(f"JupyterLab did not answer at {address}\n{log.read_text()}")


@pytest.fixture(scope="module")
def page(lab, tmp_path_factory):
    """Notebook 00 in JupyterLab, all cells run."""
    profile = tmp_path_factory.mktemp("profile")
    with sync_api.sync_playwright() as play:
        browser = play.chromium.launch_persistent_context(
            profile,
            executable_path=CHROMIUM,
            headless=True,
            args=FLAGS,
            viewport={"width": 1280, "height": 800},
        )
        page = browser.new_page()
        page.goto(f"{lab}/doc/tree/00_start_here.ipynb")
        page.wait_for_function(f"window.{KERNEL_IDLE}", timeout=60_000)
        page.evaluate("window.jupyterapp.commands.execute('notebook:run-all-cells')")
        page.locator(PICTURE).first.wait_for(state="attached", timeout=60_000)
        page.wait_for_function(f"window.{KERNEL_IDLE}", timeout=60_000)
        page.evaluate(SCROLL_TO_PANEL)  # some versions of JupyterLab hide what is out of sight
        page.locator(PICTURE).first.wait_for()
        page.wait_for_timeout(500)
        yield page
        browser.close()


def sentence(page) -> str:
    return page.locator(PICTURE).first.get_attribute("alt")


def seconds_to_change(page, act) -> float:
    """Do it, and wait until the picture's words are others; how long that took."""
    old, begin = sentence(page), time.monotonic()
    act()
    script = "([selector, old]) => document.querySelector(selector).alt !== old"
    page.wait_for_function(script, arg=[PICTURE, old], timeout=5000, polling=5)
    return time.monotonic() - begin


def test_a_key_moves_the_picture(page):
    page.locator(".noUi-handle").first.focus()
    assert seconds_to_change(page, lambda: page.keyboard.press("ArrowRight")) < LIMIT_S
    assert sentence(page).startswith("301 tokens")
    assert seconds_to_change(page, lambda: page.keyboard.press("PageUp")) < LIMIT_S


def test_the_mouse_moves_the_picture(page):
    handle = page.locator(".noUi-handle").first.bounding_box()
    x, y = handle["x"] + handle["width"] / 2, handle["y"] + handle["height"] / 2

    def drag():
        page.mouse.move(x, y)
        page.mouse.down()
        page.mouse.move(x + 40, y, steps=4)

    assert seconds_to_change(page, drag) < LIMIT_S
    page.mouse.up()
    page.wait_for_timeout(300)


def test_a_typed_number_moves_the_slider_and_the_picture(page):
    box = page.get_by_label("Tokens in the request")
    box.fill("1000")
    assert seconds_to_change(page, lambda: box.press("Enter")) < LIMIT_S
    assert sentence(page).startswith("1,000 tokens")
    assert float(page.locator(".noUi-handle").first.get_attribute("aria-valuenow")) == 1000


def test_there_is_one_picture_and_its_words_stand_above_it(page):
    assert page.locator(PICTURE).count() == 1
    script = "([one, other]) => document.querySelector(one).innerText === "
    script += "document.querySelector(other).alt"
    page.wait_for_function(script, arg=[STATUS, PICTURE], timeout=5000)  # they come one by one
    status = page.locator(STATUS).first
    assert status.inner_text() == sentence(page)
    assert status.bounding_box()["y"] < page.locator(PICTURE).bounding_box()["y"]


def test_controls_sentence_and_picture_fit_one_screen(page):
    top = page.get_by_label("Tokens in the request").bounding_box()["y"]
    picture = page.locator(PICTURE).bounding_box()
    assert picture["y"] + picture["height"] - top < 600
    assert picture["height"] <= 321 and picture["width"] <= 801


def test_every_control_has_a_name_that_is_not_cut(page):
    for label in ("Tokens in the request", "Tokens in a block", "Show the edges of the blocks"):
        assert page.get_by_label(label).count() == 1
        words = page.get_by_text(label, exact=True).first
        assert words.evaluate("e => e.scrollWidth <= e.clientWidth + 1"), label
