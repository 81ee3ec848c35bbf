"""One job of the queue, as it is kept: what to run, for whom, and what became of it."""

from __future__ import annotations

import msgpack

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

__all__ = ["COLUMNS", "Entry", "Spec", "pack", "shown"]

COLUMNS = (
    "id", "place", "priority", "state", "name", "attempt", "runner_pid", "runner_start", "cancelled",
    "recalled", "added_s", "asked_s", "started_s", "ended_s", "exit_code", "retried_as", "reason", "log",
    "result", "spec",
)  # fmt: skip
_pack = msgpack.Packer(use_bin_type=True, unicode_errors="surrogateescape").pack


def pack(value: Mapping[str, Any]) -> bytes:
    """Put a map into a column; bytes that are no UTF-8 survive."""
    body: bytes = _pack(value)
    return body


def shown(text: str) -> str:
    """Return a text as a column of text can hold it: bytes that are no UTF-8 are written out."""
    if text.isascii():
        return text
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def _unpack(body: bytes | None) -> dict[str, Any]:
    if not body:
        return {}
    value: dict[str, Any] = msgpack.unpackb(body, raw=False, unicode_errors="surrogateescape")
    return value


class Spec:
    """What was submitted, and from where: it runs as if it were started there and then.

    Either `words`, run as they are, or a `line` for a shell; `options` are those of `grn run`.
    """

    __slots__ = ("after", "cwd", "environ", "line", "notebook", "options", "umask", "words")

    def __init__(
        self,
        *,
        words: Sequence[str] = (),
        line: str | None = None,
        options: Sequence[str] = (),
        cwd: str,
        environ: Mapping[str, str],
        after: Sequence[int] = (),
        notebook: str | None = None,
        umask: int | None = None,
    ) -> None:
        self.words = list(words)
        self.line = line
        self.options = list(options)
        self.cwd = cwd
        self.environ = dict(environ)
        self.after = list(after)
        """Jobs that must have ended well before it starts."""
        self.notebook = notebook
        """The notebook that the words run, if they do."""
        self.umask = umask

    @property
    def arguments(self) -> list[str]:
        """What `grn run` would be given."""
        command = ["--", *self.words] if self.line is None else [self.line]
        return [*self.options, *command]

    @property
    def command(self) -> str:
        """The command, as one line for people."""
        return " ".join(self.words) if self.line is None else self.line

    def dump(self) -> bytes:
        """Put it into a column."""
        return pack({name: getattr(self, name) for name in self.__slots__})

    @classmethod
    def load(cls, body: bytes) -> Spec:
        """Read it from its column; what a newer release has added to it is left out."""
        return cls(**{name: x for name, x in _unpack(body).items() if name in cls.__slots__})


class Entry:
    """A row of the list."""

    __slots__ = (
        "_result",
        "_spec",
        "added_s",
        "asked_s",
        "attempt",
        "cancelled",
        "ended_s",
        "exit_code",
        "id",
        "log",
        "name",
        "place",
        "priority",
        "reason",
        "recalled",
        "retried_as",
        "runner",
        "started_s",
        "state",
    )

    def __init__(self, row: Sequence[Any]) -> None:
        """Read a row of `COLUMNS`."""
        values = dict(zip(COLUMNS, row, strict=True))
        self.id: int = values["id"]
        self.place: float = values["place"]
        self.priority: int = values["priority"]
        """That of its place: who was moved takes over his new neighbour's."""
        self.state: str = values["state"]
        self.name: str = values["name"]
        self._spec: bytes | Spec = values["spec"]
        self._result: bytes | dict[str, Any] | None = values["result"]
        self.attempt: int = values["attempt"]
        pid = values["runner_pid"]
        self.runner: tuple[int, str] | None = (pid, values["runner_start"]) if pid else None
        """Its supervising process: pid, and start time with the boot that it belongs to."""
        self.cancelled = bool(values["cancelled"])
        self.recalled = bool(values["recalled"])
        self.added_s: float = values["added_s"]
        self.asked_s: float | None = values["asked_s"]
        self.started_s: float | None = values["started_s"]
        self.ended_s: float | None = values["ended_s"]
        self.exit_code: int | None = values["exit_code"]
        self.retried_as: int | None = values["retried_as"]
        self.reason: str = values["reason"]
        """Why it waits, why it never ran, or how it failed."""
        self.log: str = values["log"]

    @property
    def spec(self) -> Spec:
        """What was submitted; read when it is wanted: a long list is looked at without."""
        if isinstance(self._spec, bytes):
            self._spec = Spec.load(self._spec)
        return self._spec

    @property
    def result(self) -> dict[str, Any]:
        """What is known of its run: devices, peak_mib, outcome, text (how it ended), and more."""
        if not isinstance(self._result, dict):
            self._result = _unpack(self._result)
        return self._result
