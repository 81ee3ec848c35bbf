"""Which kernels there are, looked at when a notebook is added: better now than in the night."""

from __future__ import annotations

from grn.errors import UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from grn.notebook.arguments import NotebookOptions

__all__ = ["require_kernel", "unknown"]


def require_kernel(options: NotebookOptions) -> None:
    """Make sure that a notebook's kernel is installed.

    Raises:
        UsageError: it is not; the message has those that are.
    """
    from jupyter_client.kernelspec import KernelSpecManager, NoSuchKernel  # noqa: PLC0415 - heavy

    manager = KernelSpecManager()
    try:
        manager.get_kernel_spec(options.kernel_name)
    except NoSuchKernel:
        raise UsageError(unknown(options.kernel_name, manager.find_kernel_specs())) from None


def unknown(name: str, known: dict[str, str]) -> str:
    """Say that there is no such kernel."""
    names = ", ".join(sorted(known)) or "none"
    return f"there is no kernel {name!r} here; known are: {names}"
