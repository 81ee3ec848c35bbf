"""Who asks when, and what passes between a body and its flow. No Prefect, no broker."""

from __future__ import annotations

import os
import socket
import threading

from grn_plugins.prefect.channel import Inbox, Outbox
from grn_plugins.prefect.order import Line
from tests.env import eventually


def test_requests_are_in_the_order_of_submits():
    """Threads that come in the opposite order still ask in the order in which they joined."""
    line = Line(late_s=60)
    numbers = [line.join() for _ in range(50)]
    asked: list[int] = []

    def ask(number: int) -> None:
        line.wait(number)
        asked.append(number)
        line.leave(number)

    threads = [threading.Thread(target=ask, args=(number,)) for number in reversed(numbers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert asked == numbers


def test_one_that_never_asks_holds_up_nobody():
    """Who leaves is not waited for, and who does not come, only for a moment."""
    line = Line(late_s=0.05)
    gone, late, last = line.join(), line.join(), line.join()
    line.leave(gone)
    line.wait(last)
    line.leave(last)
    line.wait(late)


def test_a_message_longer_than_a_packet():
    """Pieces of several writers are put together, in whatever order they come."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    inbox, outbox = Inbox(ours), Outbox(theirs)
    long = "x" * 300_000
    pid = os.fork()
    if pid == 0:
        outbox.put("child", long)
        os._exit(0)
    writer = threading.Thread(target=outbox.put, args=("log", long))
    writer.start()
    found: dict[str, str] = {}
    eventually(lambda: found.update(inbox.receive()) or len(found) == 2)
    writer.join()
    os.waitpid(pid, 0)
    assert found == {"log": long, "child": long}
    theirs.close()
    assert list(inbox.receive()) == []
    assert inbox.over
    ours.close()


def test_nobody_hears():
    """A body goes on if its flow does not hear it any more."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.close()
    Outbox(theirs).put("log", "hello")
    theirs.close()
