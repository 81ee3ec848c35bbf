"""Having the broker write down what it knows, before its history is read.

By itself it writes about once a second: whoever asks for the history right after a job's end would
look for that job in vain.

Must not: start a broker, or wait for one that does not answer: what is written already can be read.
"""

from __future__ import annotations

import select

from grn.connection import connect
from grn.errors import GrnError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from grn.settings import Settings

__all__ = ["let_write"]

_WITHIN_S = 1.0


def let_write(settings: Settings) -> None:
    """Return when the broker that runs, if one does, has written all that has happened until now.

    One of an older version does not know how: what it wrote is up to two seconds old then. One that is
    stopped is waited for no longer than a second; one whose disk is slow, no longer than two.
    """
    try:
        connection = connect(settings, wait=False)
    except GrnError:
        return  # none runs: the last one wrote everything as it left
    try:
        connection.send({"op": "record", "id": connection.next_id()})
        poll = select.poll()
        poll.register(connection, select.POLLIN)
        if poll.poll(_WITHIN_S * 1000):
            connection.recv(_WITHIN_S)
    except GrnError:
        return  # it is older, or has left and written everything
    finally:
        connection.close()
