"""A front end for tests: opens the extension's comm in a real kernel, asks, and keeps what comes unasked."""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

from jupyter_client.blocking.client import BlockingKernelClient
from jupyter_client.manager import KernelManager

Message = dict[str, Any]


class FrontEnd:
    """One connection to a kernel of its own, started in ``folder``. All messages go through one loop, in order.

    Attributes:
        events: the states that came unasked, each with the time at which it came.
        closed: whether the kernel has closed the comm, or said that it is gone.
    """

    def __init__(self, folder: Path) -> None:
        self.manager = KernelManager(kernel_name="python3")
        path = os.pathsep.join([str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
        self.manager.start_kernel(cwd=str(folder), env={**os.environ, "PYTHONPATH": path.rstrip(os.pathsep)})
        self.client: BlockingKernelClient = self.manager.blocking_client()
        self.client.start_channels()
        self.client.wait_for_ready(timeout=60)
        self.comm = ""
        self.events: list[tuple[float, Message]] = []
        self.closed = False
        self._subshell: str | None = None
        self._answers: dict[str, Message] = {}
        self._ended: dict[str, str] = {}
        self._printed: dict[str, str] = {}

    def stop(self) -> None:
        self.client.stop_channels()
        self.manager.shutdown_kernel(now=True)

    # -- the comm ----------------------------------------------------------------------------------------------------

    def open(self, *, subshell: bool = True) -> None:
        """Open the comm, over a subshell of its own as JupyterLab does, or over the main shell."""
        self._subshell = None
        if subshell:
            request = self.client.session.msg("create_subshell_request", {})
            self.client.control_channel.send(request)
            self._subshell = self.client.get_control_msg(timeout=20)["content"]["subshell_id"]
        self.comm, self.closed = uuid.uuid4().hex, False
        self._send("comm_open", {"comm_id": self.comm, "target_name": "nbcompile", "data": {}})

    def send(self, data: Any) -> None:
        """Send anything, and do not wait."""
        self._send("comm_msg", {"comm_id": self.comm, "data": data})

    def ask(self, method: str, seconds: float = 30, **params: str) -> Any:
        """The result that a question is answered with; an error is an ``AssertionError``."""
        answer = self.answer(self.question(method, **params), seconds)
        assert "error" not in answer, answer["error"]
        return answer["result"]

    def refused(self, method: str, **params: Any) -> str:
        """The error that a question is answered with."""
        return str(self.answer(self.question(method, **params), 30)["error"])

    def question(self, method: str, **params: Any) -> str:
        """Ask, and do not wait; the question's id."""
        name = uuid.uuid4().hex
        self.send({"id": name, "method": method, "params": params})
        return name

    def answer(self, question: str, seconds: float) -> Message:
        """The whole answer."""
        self.until(lambda: question in self._answers, seconds)
        return self._answers[question]

    def answered(self, question: str) -> bool:
        """Whether the answer has come."""
        self._read(0)
        return question in self._answers

    # -- cells -------------------------------------------------------------------------------------------------------

    def start(self, code: str) -> str:
        """Run a cell, and do not wait; its id."""
        return str(self.client.execute(code))

    def run(self, code: str, seconds: float = 120) -> str:
        """Run a cell to its end, which must be a good one; what it printed."""
        cell = self.start(code)
        assert self.ended(cell, seconds) == "ok", self._printed.get(cell)
        return self._printed.get(cell, "")

    def ended(self, cell: str, seconds: float) -> str:
        """Wait for a cell's end: ``"ok"`` or the name of what it raised."""
        self.until(lambda: self._ended.get(cell, "").startswith("idle"), seconds)
        return self._ended[cell].removeprefix("idle:") or "ok"

    def printed(self, cell: str) -> str:
        """What a cell has printed until now; of an error the traceback as it is shown."""
        return self._printed.get(cell, "")

    def running(self, cell: str) -> bool:
        self._read(0)
        return not self._ended.get(cell, "").startswith("idle")

    # -- the loop ----------------------------------------------------------------------------------------------------

    def until(self, true: Callable[[], bool], seconds: float) -> None:
        """Read what comes until something holds."""
        end = time.monotonic() + seconds
        while not true():
            assert time.monotonic() < end, f"nothing after {seconds} s; printed: {self._printed}"
            self._read(0.05)

    def _send(self, kind: str, content: Message) -> None:
        message = self.client.session.msg(kind, content)
        if self._subshell is not None:
            message["header"]["subshell_id"] = self._subshell
        self.client.shell_channel.send(message)

    def _read(self, wait: float) -> None:
        """Take what has come, or the first that comes within ``wait`` seconds."""
        from queue import Empty

        while True:
            try:
                message = self.client.get_iopub_msg(timeout=wait)
            except Empty:
                return
            wait = 0
            content, parent = message["content"], message["parent_header"].get("msg_id", "")
            match message["msg_type"]:
                case "comm_msg" if content["comm_id"] == self.comm and content["data"].get("event") == "gone":
                    self.closed = True
                case "comm_msg" if content["comm_id"] == self.comm and "event" in content["data"]:
                    self.events.append((time.monotonic(), content["data"]))
                case "comm_msg" if content["comm_id"] == self.comm:
                    self._answers[str(content["data"]["id"])] = content["data"]
                case "comm_close" if content["comm_id"] == self.comm:
                    self.closed = True
                case "status" if content["execution_state"] == "idle":
                    self._ended[parent] = f"idle:{self._ended.get(parent, '')}"
                case "error":
                    self._ended[parent] = content["ename"]
                    self._printed[parent] = self._printed.get(parent, "") + "\n".join(content["traceback"])
                case "stream":
                    self._printed[parent] = self._printed.get(parent, "") + content["text"]
