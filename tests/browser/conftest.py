"""A JupyterLab server of its own for the tests, and Debian's Chromium to look at it.

The browser is not installed by pip: it is named by NBCOMPILE_CHROMIUM or found on the PATH. Where there is none these
tests fail and say what to install, as a test that is skipped is soon forgotten; NBCOMPILE_NO_BROWSER=1 skips them.

The lab extension is disabled but for the fixtures that have it in their name: what a notebook shows without it, as in
every other front end, is tested too.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.browser.lab import SCREENSHOTS, Lab, Notebook7

BROWSERS = ("chromium", "chromium-headless-shell", "google-chrome")
ROOT = Path(__file__).parents[2]
EXTENSION = ROOT / "nbcompile" / "labextension"

#: Settings of JupyterLab: no question about news, and every cell in the page, whether it is in view or not.
SETTINGS = {
    "@jupyterlab/apputils-extension/notification": {"fetchNews": "false", "checkForUpdates": False},
    "@jupyterlab/notebook-extension/tracker": {"windowingMode": "none"},
}


_FAILED = pytest.StashKey[bool]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Any:
    """Let a fixture know at its end whether its test has failed."""
    report = yield
    if report.when == "call":
        item.stash[_FAILED] = report.failed
    return report


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here in Path(item.path).parents:
            item.add_marker(pytest.mark.browser)
            if os.environ.get("NBCOMPILE_NO_BROWSER") == "1":
                item.add_marker(pytest.mark.skip(reason="NBCOMPILE_NO_BROWSER=1"))


@pytest.fixture(scope="session")
def chromium() -> str:
    """The browser's executable."""
    named = os.environ.get("NBCOMPILE_CHROMIUM")
    for name in [named] if named else BROWSERS:
        if found := shutil.which(name):
            return found
    pytest.fail(
        f"no browser for the browser tests: {f'NBCOMPILE_CHROMIUM={named}' if named else ', '.join(BROWSERS)} cannot "
        "be run. Install one (on Debian: apt-get install chromium), name one by NBCOMPILE_CHROMIUM, or leave these "
        "tests out: NBCOMPILE_NO_BROWSER=1"
    )


class Server:
    """A running Jupyter server."""

    def __init__(self, folder: Path, app: str, *, extension: bool = False) -> None:
        self.notebooks = folder / "notebooks"
        self.notebooks.mkdir()
        settings = folder / "settings"
        for name, values in SETTINGS.items():
            file = settings / f"{name}.jupyterlab-settings"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(json.dumps(values))
        found = folder / "found"
        if extension:  # that of this checkout, whatever the environment has; JUPYTER_PATH is looked through first
            (found / "labextensions").mkdir(parents=True)
            (found / "labextensions" / "nbcompile").symlink_to(EXTENSION)
        else:  # that of the environment, if it has one
            page = folder / "config_dir" / "labconfig" / "page_config.json"
            page.parent.mkdir(parents=True)
            page.write_text(json.dumps({"disabledExtensions": {"nbcompile": True}}))
        port = _free_port()
        self.url = f"http://127.0.0.1:{port}"
        self.log = folder / "server.log"
        names = ("CONFIG_DIR", "DATA_DIR", "RUNTIME_DIR")
        environment = {
            **os.environ,
            **{f"JUPYTER_{name}": str(folder / name.lower()) for name in names},
            "JUPYTER_PATH": str(found),
            "JUPYTERLAB_SETTINGS_DIR": str(settings),
            "JUPYTERLAB_WORKSPACES_DIR": str(folder / "workspaces"),
            "IPYTHONDIR": str(folder / "ipython"),
            "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep),
        }
        command = [
            sys.executable,
            "-m",
            app,
            "--allow-root",
            "--no-browser",
            "--expose-app-in-browser",  # to change the theme by Lab's own command
            "--ServerApp.ip=127.0.0.1",
            f"--ServerApp.port={port}",
            "--ServerApp.port_retries=0",
            "--IdentityProvider.token=",
            "--ServerApp.password=",
            "--ServerApp.disable_check_xsrf=True",
            f"--ServerApp.root_dir={self.notebooks}",
        ]
        with self.log.open("w") as log:
            self._process = subprocess.Popen(
                command, cwd=folder, env=environment, stdout=log, stderr=log, stdin=subprocess.DEVNULL
            )
        self._wait()

    def request(self, path: str, method: str = "GET") -> Any:
        """Ask the server's own interface; the answer as data."""
        with urllib.request.urlopen(urllib.request.Request(self.url + path, method=method), timeout=30) as answer:
            text = answer.read()
        return json.loads(text) if text else None

    def stop_kernels(self) -> None:
        """Shut every kernel down, as closing its notebook for good would."""
        for session in self.request("/api/sessions"):
            self.request(f"/api/sessions/{session['id']}", "DELETE")

    def stop(self) -> None:
        """End the server, once its kernels are shut down; asked to stop, it may take half a minute to do nothing."""
        with contextlib.suppress(OSError, ValueError):  # it is gone already
            self.stop_kernels()
        self._process.kill()
        self._process.wait()

    def _wait(self, limit: float = 60.0) -> None:
        end = time.monotonic() + limit
        while time.monotonic() < end and self._process.poll() is None:
            try:
                self.request("/api/status")
                return
            except (urllib.error.URLError, ConnectionError):
                time.sleep(0.1)
        self._process.kill()
        pytest.fail(f"the Jupyter server does not answer:\n{self.log.read_text()[-3000:]}")


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    """JupyterLab, with every folder that it writes to in a temporary one."""
    yield from _serve("jupyterlab")


@pytest.fixture(scope="session")
def notebook_server() -> Iterator[Server]:
    """Notebook 7."""
    yield from _serve("notebook")


@pytest.fixture(scope="session")
def built_extension() -> None:
    """The extension, built: `make test` does that; NBCOMPILE_NO_NODE=1 says that it cannot be, and skips its tests."""
    if os.environ.get("NBCOMPILE_NO_NODE"):
        pytest.skip("NBCOMPILE_NO_NODE is set: the JupyterLab extension is not built")
    if not (EXTENSION / "package.json").is_file():
        pytest.fail(f"{EXTENSION} is not there: build the JupyterLab extension first, by `make extension`")


@pytest.fixture(scope="session")
def extended_server(built_extension: None) -> Iterator[Server]:
    """JupyterLab with the extension."""
    yield from _serve("jupyterlab", extension=True)


@pytest.fixture(scope="session")
def extended_notebook_server(built_extension: None) -> Iterator[Server]:
    """Notebook 7 with the extension."""
    yield from _serve("notebook", extension=True)


def _serve(app: str, *, extension: bool = False) -> Iterator[Server]:
    with tempfile.TemporaryDirectory(prefix="nbcompile-browser-", ignore_cleanup_errors=True) as folder:
        server = Server(Path(folder), app, extension=extension)
        try:
            yield server
        finally:
            server.stop()


# Not for the session: while Playwright runs, this thread has a running loop, and nbclient's tests need their own.
@pytest.fixture(scope="module")
def browser(chromium: str) -> Iterator[Any]:
    """Chromium, driven by Playwright."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
        yield browser
        browser.close()


@pytest.fixture
def lab(browser: Any, server: Server, request: pytest.FixtureRequest) -> Iterator[Lab]:
    """A window of JupyterLab. After the test its console must hold no error that is not known."""
    yield from _window(browser, server, request)


@pytest.fixture
def notebook_7(browser: Any, notebook_server: Server, request: pytest.FixtureRequest) -> Iterator[Lab]:
    """The same of Notebook 7."""
    yield from _window(browser, notebook_server, request, Notebook7)


@pytest.fixture
def lab_with_extension(browser: Any, extended_server: Server, request: pytest.FixtureRequest) -> Iterator[Lab]:
    """A window of JupyterLab with the extension."""
    yield from _window(browser, extended_server, request)


@pytest.fixture
def notebook_7_with_extension(
    browser: Any, extended_notebook_server: Server, request: pytest.FixtureRequest
) -> Iterator[Lab]:
    """The same of Notebook 7."""
    yield from _window(browser, extended_notebook_server, request, Notebook7)


def _window(browser: Any, server: Server, request: pytest.FixtureRequest, kind: type[Lab] = Lab) -> Iterator[Lab]:
    page = browser.new_page(viewport={"width": 1200, "height": 2000})
    page.set_default_timeout(30_000)
    lab = kind(page, server)
    try:
        yield lab
        failed = request.node.stash.get(_FAILED, False)
        if failed:
            SCREENSHOTS.mkdir(parents=True, exist_ok=True)
            page.screenshot(path=SCREENSHOTS / f"failed-{request.node.name}.png")
        assert lab.errors() == []
    finally:
        page.close()
        server.stop_kernels()


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])
