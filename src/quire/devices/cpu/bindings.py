"""Finds the native extension. Without it everything still runs, on the numpy references, and one warning says so."""

import logging
from functools import cache
from importlib import import_module
from types import ModuleType

logger = logging.getLogger("quire.devices.cpu")

_REMEDY = (
    "Every op runs on its numpy reference: correct, but many times slower. For full speed install a C++17 compiler and "
    "the Python headers (Debian, Ubuntu: g++ and python3-dev), then reinstall quire."
)


@cache
def native() -> ModuleType | None:
    """The extension, or None. Cached, so that its absence is told once in a process."""
    try:
        return import_module("quire.devices.cpu._native")
    except ModuleNotFoundError:
        logger.warning("quire was installed without its native CPU kernels. %s", _REMEDY)
    except ImportError as error:  # it exists, but was built for another Python or another C++ runtime
        logger.warning("quire's native CPU kernels do not load (%s). %s", error, _REMEDY)
    return None
