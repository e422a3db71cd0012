"""Logs: text lines, or one JSON object per line with the request's id. Prompts are logged only on request."""

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
_STANDARD_FIELDS = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class JsonFormatter(logging.Formatter):
    """Time, level, logger and message, and the fields of `extra`, such as `request_id`."""

    def format(self, record: logging.LogRecord) -> str:
        fields = {
            "time": self.formatTime(record, "%Y-%m-%dT%H:%M:%S") + f".{int(record.msecs):03d}",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **{name: value for name, value in vars(record).items() if name not in _STANDARD_FIELDS},
        }
        if record.exc_info:
            fields["error"] = self.formatException(record.exc_info)
        return json.dumps(fields, default=str, ensure_ascii=False)


def start_logging(config: ObserveConfig, stream: TextIO | None = None, is_whole_process: bool = False) -> None:
    """Send quire's logs to `stream` (default: standard error). A second call replaces the first.

    `is_whole_process`: also log warnings of other packages and uncaught errors. For processes that we start.
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
        _log_whole_process()


def _log_whole_process() -> None:
    """Log the messages of other packages' loggers, of `warnings`, and uncaught errors."""
    redirect_logger("")
    logging.captureWarnings(True)
    logger = logging.getLogger(LOGGER)
    sys.excepthook = lambda kind, error, traceback: _log_uncaught(logger, kind, error, traceback)
    threading.excepthook = lambda args: _log_uncaught(
        logger, args.exc_type, args.exc_value or args.exc_type(), args.exc_traceback
    )


def _log_uncaught(
    logger: logging.Logger, kind: type[BaseException], error: BaseException, traceback: TracebackType | None
) -> None:
    if not issubclass(kind, KeyboardInterrupt | SystemExit):
        logger.error("uncaught error", exc_info=(kind, error, traceback))


def redirect_logger(name: str, level: int = logging.WARNING) -> None:
    """Send the messages of another package's logger, from this level on, where quire's logs go."""
    logger = logging.getLogger(name)
    logger.handlers[:] = logging.getLogger(LOGGER).handlers
    logger.setLevel(level)
    logger.propagate = False


def error_origin(error: BaseException) -> str:
    """An error's type and traceback, without its message, which may contain text of a prompt or an answer."""
    return f"{type(error).__name__}\n{''.join(traceback.format_tb(error.__traceback__))}".rstrip()
