"""Logs: lines for people, or one JSON object a line with the request's id. Prompts are logged only on demand."""

from __future__ import annotations

import json
import logging
import sys
import threading
import traceback
from types import TracebackType
from typing import TextIO

from quire.config import ObserveConfig

LOGGER = "quire"
_OWN = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class JsonFormatter(logging.Formatter):
    """Time, level, logger and message; and whatever was given as `extra`, such as `request_id`."""

    def format(self, record: logging.LogRecord) -> str:
        said = {
            "time": self.formatTime(record, "%Y-%m-%dT%H:%M:%S") + f".{int(record.msecs):03d}",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **{name: value for name, value in vars(record).items() if name not in _OWN},
        }
        if record.exc_info:
            said["error"] = self.formatException(record.exc_info)
        return json.dumps(said, default=str, ensure_ascii=False)


def start_logging(config: ObserveConfig, stream: TextIO | None = None, is_whole_process: bool = False) -> None:
    """Send what quire says to `stream` (standard error). A second call replaces the first.

    `is_whole_process`: also warnings of other packages, and uncaught errors. For processes of our own.
    """
    handler = logging.StreamHandler(sys.stderr if stream is None else stream)
    if config.log_format == "json":
        handler.setFormatter(JsonFormatter())
    else:
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s", "%H:%M:%S"))
    logger = logging.getLogger(LOGGER)
    logger.handlers[:] = [handler]
    logger.setLevel(config.log_level.upper())
    logger.propagate = False
    if is_whole_process:
        _take_over()


def _take_over() -> None:
    """Every line of this process is one of the log: of other packages' loggers, of `warnings`, of uncaught errors."""
    adopt("")
    logging.captureWarnings(True)
    logger = logging.getLogger(LOGGER)
    sys.excepthook = lambda kind, error, where: _log_uncaught(logger, kind, error, where)
    threading.excepthook = lambda given: _log_uncaught(
        logger, given.exc_type, given.exc_value or given.exc_type(), given.exc_traceback
    )


def _log_uncaught(
    logger: logging.Logger, kind: type[BaseException], error: BaseException, where: TracebackType | None
) -> None:
    if not issubclass(kind, KeyboardInterrupt | SystemExit):
        logger.error("an error was not caught", exc_info=(kind, error, where))


def adopt(name: str, level: int = logging.WARNING) -> None:
    """Send what another package's logger says, from this level on, the way of our own."""
    logger = logging.getLogger(name)
    logger.handlers[:] = logging.getLogger(LOGGER).handlers
    logger.setLevel(level)
    logger.propagate = False


def origin(error: BaseException) -> str:
    """An error's type, and where it comes from, but not its words: they may be those of a prompt or an answer."""
    return f"{type(error).__name__}\n{''.join(traceback.format_tb(error.__traceback__))}".rstrip()
