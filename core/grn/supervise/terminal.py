"""The terminal: whether the program on it takes Ctrl-C as a key, and a stand-in for one descriptor.

Design note. Where a command's output is read along and is a terminal, the command must still find one
there. So it gets the inner end of a pseudo-terminal for what it writes: with the settings and the size
of the real one, except that the inner end changes no byte on the way (the real one will do that). It
is no process's controlling terminal: job control, Ctrl-C, standard input and `/dev/tty` are the real
one's business, and nothing that is typed comes here.
"""

from __future__ import annotations

import os

__all__ = ["Twin", "takes_keys_itself"]

_OFLAG, _LFLAG = 1, 3
_WINDOW_BYTES = 8  # struct winsize: rows, columns and the same in pixels


class Twin:
    """A pseudo-terminal that looks like the terminal `of`. `inner` is the command's end.

    Raises:
        OSError: none can be had (no `/dev/pts`, too many of them, `of` was hung up).
    """

    def __init__(self, of: int) -> None:
        import termios  # noqa: PLC0415 - not needed where standard error is no terminal

        self._of = of
        self.outer, self.inner = os.openpty()
        try:
            mode = termios.tcgetattr(of)
            mode[_OFLAG] &= ~termios.OPOST
            termios.tcsetattr(self.inner, termios.TCSANOW, mode)
            self.resize()
        except termios.error as error:
            self._close()
            raise OSError(*error.args) from error
        except OSError:
            self._close()
            raise

    def resize(self) -> None:
        """Take on the size that the real one has now.

        Raises:
            OSError: the real one was hung up, or this one's ends are closed.
        """
        import fcntl  # noqa: PLC0415 - as above
        import termios  # noqa: PLC0415

        size = fcntl.ioctl(self._of, termios.TIOCGWINSZ, bytes(_WINDOW_BYTES))
        fcntl.ioctl(self.outer, termios.TIOCSWINSZ, size)

    def _close(self) -> None:
        os.close(self.outer)
        os.close(self.inner)


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
