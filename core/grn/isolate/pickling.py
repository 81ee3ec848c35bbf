"""Which things travel by name, and which by value.

On the way to the body: what can be imported there travels by name; closures, lambdas, everything of
`__main__`, and functions of a module that no import would find (loaded from a file by an engine)
travel by value. On the way back: by name first, for speed and so that the caller gets objects of its
own classes; what has no name by value. A class that came from the caller by value goes back as a
mention: rebuilt from its parts it would overwrite the caller's own methods.

Must not be imported where nothing is called in another process: `cloudpickle` takes 20 ms.
"""

from __future__ import annotations

import functools
import io
import pickle
import sys
import threading
from types import CodeType
from typing import TYPE_CHECKING, Any

import cloudpickle
from cloudpickle import cloudpickle as internals

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from types import ModuleType
    from typing import IO

    Keep = Callable[[pickle.PickleBuffer], bool]

    _Pickler = pickle.Pickler  # what cloudpickle's is, to a checker that would not see it
else:
    _Pickler = cloudpickle.Pickler

__all__ = ["Keep", "Returning", "culprit", "dump_call", "dump_value", "travels_by_name"]

_PROTOCOL = 5
_NO_FILE = "<dynamic-code>"  # what cloudpickle writes instead
_by_value_lock = threading.Lock()

# Private names of cloudpickle, which keeps classes by an id that goes with them. Without them
# (another version) classes without a name come back as copies.
_class_by_id: Mapping[str, type] = getattr(internals, "_DYNAMIC_CLASS_TRACKER_BY_ID", {})
_id_by_class: Mapping[type, str] = getattr(internals, "_DYNAMIC_CLASS_TRACKER_BY_CLASS", {})


def dump_call(
    fn: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    file: IO[bytes],
    keep: Keep,
) -> None:
    """Pickle a call; what cannot be pickled raises whatever it raises."""
    call = (fn, tuple(args), dict(kwargs))
    strangers = [module for module in _modules_of(fn) if not travels_by_name(module)]
    if not strangers:
        _pickler(file, keep).dump(call)
        return
    with _by_value_lock:  # cloudpickle's list of such modules is one for the process
        mine = [module for module in strangers if _register(module)]
        try:
            _pickler(file, keep).dump(call)
        finally:
            for module in mine:
                cloudpickle.unregister_pickle_by_value(module)


def dump_value(value: Any, file: IO[bytes], keep: Keep) -> None:
    """Pickle a value for the server; what cannot be pickled raises whatever it raises."""
    _pickler(file, keep).dump(value)


def _pickler(file: IO[bytes], keep: Keep) -> pickle.Pickler:
    return _Located(file, _PROTOCOL, buffer_callback=keep)


def _register(module: ModuleType) -> bool:
    known: set[str] = cloudpickle.list_registry_pickle_by_value()
    if module.__name__ in known:
        return False
    cloudpickle.register_pickle_by_value(module)
    return True


def _modules_of(fn: Any) -> Iterator[ModuleType]:
    while isinstance(fn, functools.partial):
        fn = fn.func
    name = getattr(fn, "__module__", None) or type(fn).__module__
    module = sys.modules.get(name)
    if module is not None and name not in {"__main__", "builtins"}:
        yield module


def travels_by_name(module: ModuleType) -> bool:
    """Say whether an import of the module's name elsewhere would find the same file."""
    origin = getattr(module, "__file__", None)
    if origin is None:
        return True  # built in, or made by hand: nothing better is known
    parent, _, _ = module.__name__.rpartition(".")
    path = getattr(sys.modules.get(parent), "__path__", None) if parent else None
    if parent and path is None:
        return False
    for finder in sys.meta_path:
        spec = finder.find_spec(module.__name__, path)
        if spec is not None:
            return bool(spec.origin == origin)
    return False


def culprit(fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
    """Name the part of a call that cannot be pickled."""
    parts: list[tuple[str, Any]] = [
        (f"argument {place + 1}", arg) for place, arg in enumerate(args)
    ]
    parts += [(f"argument {name!r}", arg) for name, arg in kwargs.items()]
    for name, value in parts:
        try:
            cloudpickle.Pickler(io.BytesIO(), _PROTOCOL).dump(value)
        except Exception:  # noqa: BLE001 - any class's own code ran
            return f"{name} ({type(value).__name__})"
    name = getattr(fn, "__qualname__", type(fn).__name__)
    return f"the function {name}, or something that it refers to,"


class _Located(_Pickler):
    """Lets code keep the name of its file, so that a traceback shows its lines."""

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, CodeType):
            reduced: Any = self.dispatch_table[CodeType](obj)
            make, parts = reduced
            return make, tuple(obj.co_filename if part == _NO_FILE else part for part in parts)
        return super().reducer_override(obj)


class Returning:
    """Pickles what goes back to the caller. To be made when the call has been rebuilt."""

    def __init__(self) -> None:
        self._callers = dict(_id_by_class)

    def by_name(self, value: Any, file: IO[bytes], keep: Keep | None) -> None:
        """Pickle a value; a class or function without a name that can be looked up raises."""
        pickle.Pickler(file, _PROTOCOL, buffer_callback=keep).dump(value)

    def by_value(self, value: Any, file: IO[bytes], keep: Keep | None) -> None:
        """Pickle a value with the classes and functions that it needs, but for the caller's own."""
        _ByValue(file, keep, self._callers).dump(value)

    def dumps(self, value: Any) -> bytes:
        """Pickle a value into one piece; what cannot be pickled raises whatever it raises."""
        file = io.BytesIO()
        try:
            self.by_name(value, file, None)
        except Exception:  # noqa: BLE001 - whatever it was, the slower way knows more
            file = io.BytesIO()
            self.by_value(value, file, None)
        return file.getvalue()


class _ByValue(_Located):
    """Mentions the caller's classes instead of taking them apart."""

    def __init__(self, file: IO[bytes], keep: Keep | None, callers: Mapping[type, str]) -> None:
        super().__init__(file, _PROTOCOL, buffer_callback=keep)
        self._callers = callers

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, type) and obj in self._callers:
            return _class_of_the_caller, (self._callers[obj], obj.__qualname__)
        return super().reducer_override(obj)


def _class_of_the_caller(number: str, name: str) -> type:
    """Find a class that went to the body by value; called by the unpickler."""
    cls = _class_by_id.get(number)
    if cls is None:
        raise pickle.UnpicklingError(f"the class {name} is gone that was sent with the call")
    return cls
