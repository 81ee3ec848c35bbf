"""What a fork server is told so that it gets warm for Prefect; see `warmth` for what it does."""

from __future__ import annotations

__all__ = ["Warm"]


class Warm:
    """Sent to the server by the flow's process."""

    def __init__(self, url: str | None, settings: tuple[str, bytes]) -> None:
        self.url = url
        self.settings = settings

    def __call__(self) -> None:
        """Get warm, in the server."""
        from grn_plugins.prefect.warmth import warm_up  # noqa: PLC0415 - only there

        warm_up(self.url, self.settings)
