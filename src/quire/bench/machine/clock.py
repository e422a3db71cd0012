"""The clock of all times in a benchmark."""

from __future__ import annotations

import time

clock = time.perf_counter  # seconds
