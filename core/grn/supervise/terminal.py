"""Whether the program on the terminal takes Ctrl-C as a key rather than as an order to end."""

from __future__ import annotations

import os

__all__ = ["takes_keys_itself"]

_LFLAG = 3


def takes_keys_itself() -> bool:
    """Tell whether our terminal is in non-canonical mode, as an editor, shell or REPL sets it.

    False where there is no terminal.
    """
    import termios  # noqa: PLC0415 - only a Ctrl-C asks

    try:
        fd = os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        flags = int(termios.tcgetattr(fd)[_LFLAG])
    except termios.error:
        return False
    finally:
        os.close(fd)
    return not flags & termios.ICANON
