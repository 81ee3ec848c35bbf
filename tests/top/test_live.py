"""`grn top` on a terminal: it follows the broker, obeys keys, and leaves the terminal as it was."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.env import PATIENCE_S, ROOT, eventually
from tests.top.terminal import Terminal, grn_top

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.env import BrokerEnv

    Top = Callable[..., Terminal]

COLOUR = re.compile(rb"\x1b\[[0-9;]*(?:3[0-7]|38;|48;|9[0-7])[0-9;]*m")


def test_it_follows_what_happens(env: BrokerEnv, top: Top) -> None:
    """A grant, what the job holds, who waits and why, and how it ended: as it happens."""
    terminal = top()
    terminal.shows("2 devices", "0 leases", "9.77G free of 9.77G")
    talker = env.talker()
    grant = talker.acquire("train", memory_mib=4096, label="first")
    terminal.shows("1 lease ", "first (train)", "4G", "░")
    job = env.job(talker, grant, "--memory=3072MiB")
    terminal.shows("█", " 3G ")
    talker.ask("big", memory_mib=9000, label="second")
    talker.ask("big", memory_mib=9000, label="third")
    terminal.shows("1 waiting", "third (big)", "9000 MiB on 1 device wanted")
    job.finish()
    talker.release(grant, exit_code=3)
    terminal.shows("failed 3", "0 waiting", "2 leases")
    terminal.press("q")
    assert terminal.end() == 0
    assert terminal.given_back


def test_a_job_that_ended_in_order_is_no_warning(env: BrokerEnv, top: Top) -> None:
    """What lived at the last look at all processes is not said to live when it has ended since."""
    talker = env.talker()
    grant = talker.acquire("train", memory_mib=4096)
    job = env.job(talker, grant, "--memory=1GiB")
    job.wait_holding()
    terminal = top()
    terminal.shows("1 lease ", " 1G ")
    job.finish()
    talker.release(grant)
    assert "still live" not in terminal.shows("0 leases", " ok ")
    terminal.press("q")
    assert terminal.end() == 0


def test_keys(env: BrokerEnv, top: Top) -> None:
    """Order, filter, help, another list: at once, whatever the broker does."""
    talker = env.talker()
    for number, mib in enumerate((100, 900, 500)):
        talker.acquire("train", memory_mib=mib, label=f"seed-{number}")
    terminal = top()
    terminal.shows("seed-2", "newest first")
    terminal.press("m")
    text = terminal.shows("by memory")
    assert text.index("seed-1") < text.index("seed-2") < text.index("seed-0")
    terminal.press("mr")
    terminal.press("/SEED-1")
    terminal.shows("leases 1 of 3", "/SEED-1")
    terminal.press("\r")
    terminal.shows("/ 'SEED-1'")
    terminal.press("\x1b")
    terminal.shows("leases 3")
    terminal.press("?")
    terminal.shows("scroll it")
    terminal.press(" \t")
    terminal.shows("scrolls waiting")
    terminal.press("q")
    assert terminal.end() == 0


def test_hundreds_can_be_scrolled(env: BrokerEnv, top: Top) -> None:
    """Line by line, page by page, to the end; and the window may change its size."""
    talker = env.talker()
    for number in talker.ask_many(300, "small", memory_mib=10):
        talker.granted(number)
    terminal = top()
    terminal.shows("leases 300", "of 300 lines")
    first = terminal.text
    terminal.press("\x1b[6~")
    terminal.shows(" 11-")
    assert terminal.text != first
    terminal.press("G")
    terminal.until(lambda text: re.search(r"-300 of 300", text), "the end of the list")
    terminal.resize(40, 12)
    terminal.until(lambda text: len(text.split("\n")[0]) <= 40 and "q leave" in text, "it fits")
    terminal.press("q")
    assert terminal.end() == 0


def test_the_terminal_itself_says_how_wide_it_is(env: BrokerEnv, top: Top) -> None:
    """A COLUMNS that a shell or a test runner has exported may be of another terminal."""
    del env
    terminal = top(environ={"COLUMNS": "40"})
    terminal.shows("0 leases", "9.77G free of 9.77G")
    terminal.press("q")
    assert terminal.end() == 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_it_in_order(number: signal.Signals, env: BrokerEnv, top: Top) -> None:
    """The terminal is as it was, and the caller sees the signal."""
    del env
    terminal = top()
    terminal.shows("0 leases")
    if number == signal.SIGINT:
        terminal.press("\x03")
    else:
        terminal.process.send_signal(number)
    assert terminal.end() == -number
    assert terminal.given_back


def test_a_crash_leaves_the_terminal_as_it_was(env: BrokerEnv) -> None:
    """Whatever goes wrong while it has the terminal, the traceback can be read afterwards."""
    crash = (
        "import grn.cli.top.live as live, sys\n"
        "def draw(*_): raise ZeroDivisionError('no such frame')\n"
        "live.draw = draw\n"
        "from grn.cli.main import main\n"
        "sys.exit(main(['top']))\n"
    )
    terminal = Terminal([sys.executable, "-c", crash], env.environ)
    try:
        assert terminal.end() == 1
        assert terminal.given_back
        assert "no such frame" in terminal.text
    finally:
        terminal.close()


def test_it_can_be_stopped_and_continued(env: BrokerEnv, top: Top) -> None:
    """Ctrl-Z gives the terminal back while it is stopped; then it is taken again."""
    del env
    terminal = top()
    terminal.shows("0 leases")
    os.kill(terminal.process.pid, signal.SIGTSTP)
    pid, status = os.waitpid(terminal.process.pid, os.WUNTRACED)
    assert os.WIFSTOPPED(status)
    while terminal.read(0.0):
        pass
    assert terminal.given_back
    os.kill(pid, signal.SIGCONT)
    eventually(lambda: terminal.read(0.1) and not terminal.given_back, what="it has the terminal")
    terminal.press("q")
    assert terminal.end() == 0
    assert terminal.given_back


def test_a_broker_that_goes_and_comes_back(env: BrokerEnv, top: Top) -> None:
    """It says so, shows what it knew, and goes on with the next broker by itself."""
    talker = env.remote()
    talker.acquire("train", memory_mib=4096, label="survivor")
    terminal = top()
    terminal.shows("survivor")
    env.kill()
    terminal.shows("the broker has left at", "survivor")
    terminal.press("m")
    terminal.shows("the broker has left at", "by memory")
    env.start()
    terminal.lacks("the broker has left")
    env.talker().acquire("train", memory_mib=4096, label="newcomer")
    terminal.shows("newcomer", "survivor")
    terminal.press("q")
    assert terminal.end() == 0


def test_without_a_broker_the_terminal_is_not_touched(env: BrokerEnv, top: Top) -> None:
    """There is nothing to show: an error, as from `grn status`."""
    env.stop()
    terminal = top()
    assert terminal.end() == 125
    assert "no broker at" in terminal.text.replace("\n", "")
    assert b"\x1b" not in terminal.written


@pytest.mark.parametrize(
    ("environ", "colour", "ascii_only"),
    [
        ({"NO_COLOR": "1"}, False, False),
        ({"LC_ALL": "C"}, True, True),
    ],
)
def test_colour_and_unicode_as_wanted(
    env: BrokerEnv, top: Top, environ: dict[str, str], *, colour: bool, ascii_only: bool
) -> None:
    """No colour under NO_COLOR, nothing but ASCII in the C locale; bars tell leases apart anyway."""
    talker = env.talker()
    for label in ("one", "two"):
        talker.acquire("train", memory_mib=3000, label=label)
    terminal = top(environ=environ)
    text = terminal.shows("one", "two", "free of")
    assert bool(COLOUR.search(terminal.written)) is colour
    assert text.isascii() is ascii_only
    rows = [line for line in text.splitlines() if "(train)" in line]
    bars = text.split("leases 2")[0]
    assert all(re.search(rf" {row[0]}[=▒]", bars) for row in rows)
    terminal.press("q")
    assert terminal.end() == 0


def test_without_a_terminal_it_is_a_page(env: BrokerEnv) -> None:
    """All of it, plain, 80 columns at most, and the end."""
    talker = env.talker()
    for number in talker.ask_many(60, "small", memory_mib=10):
        talker.granted(number)
    done = subprocess.run(
        grn_top(), env=env.environ, capture_output=True, text=True, check=False, cwd=ROOT,
        stdin=subprocess.DEVNULL, timeout=2 * PATIENCE_S,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("small") == 60
    assert "\x1b" not in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 80


def test_once_prints_a_page_on_a_terminal(env: BrokerEnv, top: Top) -> None:
    """In colour, on the terminal's own screen, where it stays; only what the filter lets through."""
    talker = env.talker()
    for label in ("one", "two"):
        talker.acquire("train", memory_mib=3000, label=label)
    terminal = top("--once", "--filter", "one", columns=40)
    assert terminal.end() == 0
    assert b"\x1b[?1049h" not in terminal.written
    assert COLOUR.search(terminal.written)
    assert "one (train)" in terminal.text
    assert "two (train)" not in terminal.text
