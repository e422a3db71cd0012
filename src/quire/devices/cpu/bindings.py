"""Finds the native extension. Without it everything still runs, on the numpy references, and one warning says so."""

import logging
from functools import cache
from importlib import import_module
from types import ModuleType

logger = logging.getLogger("quire.devices.cpu")

REMEDY = (
    "Every op runs on its numpy reference: correct, but many times slower. For full speed install a C++17 compiler and "
    "the Python headers (Debian, Ubuntu: g++ and python3-dev), then reinstall quire."
)


@cache
def native() -> ModuleType | None:
    """Return the extension, or None. Cached, so that its absence is logged once per process."""
    module, problem = find_native()
    if isinstance(problem, ModuleNotFoundError):
        logger.warning("quire was installed without its native CPU kernels. %s", REMEDY)
    elif problem is not None:
        logger.warning("quire's native CPU kernels do not load (%s). %s", problem, REMEDY)
    return module


def find_native() -> tuple[ModuleType | None, ImportError | None]:
    """Return the extension, or why it does not load: not built, or built for another Python or C++ runtime."""
    try:
        return import_module("quire.devices.cpu._native"), None
    except ImportError as error:
        return None, error
