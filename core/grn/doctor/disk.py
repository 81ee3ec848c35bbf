"""Folders and the disk below them, looked at without writing."""

from __future__ import annotations

import os

__all__ = ["free_files", "free_mib", "nearest", "obstacle_to_writing"]


def nearest(path: str) -> str:
    """Return the folder, or the nearest one above it that exists."""
    while not os.path.exists(path):
        above = os.path.dirname(path)
        if above == path:
            break
        path = above
    return path


def obstacle_to_writing(folder: str) -> str:
    """Say why nothing can be made in a folder, or the folder itself; '' if nothing seems in the way."""
    there = nearest(folder)
    if not os.path.isdir(there):
        return f"{there} is not a folder"
    if _is_read_only(there):
        return f"{there} is on a file system that is read-only"
    if not os.access(there, os.W_OK | os.X_OK):
        return f"{there} may not be written by this user (uid {os.geteuid()})"
    return ""


def _is_read_only(path: str) -> bool:
    try:
        return bool(os.statvfs(path).f_flag & os.ST_RDONLY)
    except OSError:
        return False


def free_mib(folder: str) -> int | None:
    """Return how much this user can still write there; None if it cannot be told."""
    try:
        found = os.statvfs(nearest(folder))
    except OSError:
        return None
    return found.f_bavail * found.f_frsize >> 20


def free_files(folder: str) -> int | None:
    """Return how many files can still be made there; None where nobody counts."""
    try:
        found = os.statvfs(nearest(folder))
    except OSError:
        return None
    return found.f_favail if found.f_files else None
