"""A stand-in for NVIDIA's MPS control daemon, and for the tool that talks to it.

The daemon listens on `control` in its pipe directory and keeps its pid beside it; the tool, of the real
one's name, passes what it reads on standard input on, and complains as the real one does if there is no
daemon. A daemon can be told to hang: it accepts, and never answers.
"""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

from tests.env import PATIENCE_S, eventually

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["FakeDaemon", "install_tool"]

_TOOL = """\
#!{python} -S
import os, socket, sys
peer = socket.socket(socket.AF_UNIX)
try:
    peer.connect(os.path.join(os.environ["CUDA_MPS_PIPE_DIRECTORY"], "control"))
except OSError:
    print("Cannot find MPS control daemon process")
    sys.exit(1)
peer.sendall(sys.stdin.buffer.read())
peer.shutdown(socket.SHUT_WR)
while chunk := peer.recv(4096):
    sys.stdout.buffer.write(chunk)
"""


_DAEMON = """\
import os, socket, sys
folder, hangs = sys.argv[1], sys.argv[2] == "1"
listener = socket.socket(socket.AF_UNIX)
path = os.path.join(folder, "control")
if os.path.exists(path):
    os.unlink(path)
listener.bind(path)
listener.listen()
with open(os.path.join(folder, "nvidia-cuda-mps-control.pid"), "w") as file:
    file.write(f"{os.getpid()}\\n")
held = []
while True:
    peer, _ = listener.accept()
    if hangs:
        held.append(peer)
        continue
    command = b""
    while chunk := peer.recv(4096):
        command += chunk
    peer.sendall(b"4711\\n" if command == b"get_server_list\\n" else b"Unrecognized command\\n")
    peer.close()
"""


def install_tool(folder: Path) -> str:
    """Put the tool into a folder of its own; return what `PATH` is with it."""
    tools = folder / "tools"
    tools.mkdir()
    tool = tools / "nvidia-cuda-mps-control"
    tool.write_text(_TOOL.format(python=sys.executable), encoding="utf-8")
    tool.chmod(0o755)
    return f"{tools}:{os.environ.get('PATH', os.defpath)}"


class FakeDaemon:
    """A daemon in a process of its own, which serves one pipe directory."""

    def __init__(self, folder: Path, *, hangs: bool = False, **environ: str) -> None:
        """Start it; `environ` is added to its environment."""
        self.folder = str(folder)
        folder.mkdir(exist_ok=True)
        env = {key: value for key, value in os.environ.items() if not key.startswith("CUDA_")}
        self.process = subprocess.Popen(
            [sys.executable, "-S", "-c", _DAEMON, self.folder, str(int(hangs))],
            env={**env, **environ},
        )
        pid_file = folder / "nvidia-cuda-mps-control.pid"
        mine = f"{self.process.pid}\n"
        eventually(lambda: pid_file.exists() and pid_file.read_text("ascii") == mine)

    def kill(self) -> None:
        """End it as nothing can be prepared for: its socket and its pid file stay."""
        self.process.kill()
        self.process.wait(PATIENCE_S)
