"""The setting experts_on_host: how much of a model's experts is kept in host memory."""

from __future__ import annotations

from quire.types.formats import AUTO
from quire.types.setting import BadSetting

OFF = "off"


def expert_bytes_on_host(value: str) -> int | None:
    """Read a value of the setting: bytes. None: as few as needed."""
    if value == AUTO:
        return None
    if value == OFF:
        return 0
    try:
        gigabytes = float(value)
    except ValueError:
        gigabytes = -1.0
    if not 0 <= gigabytes < 1e6:
        raise BadSetting(
            f"experts_on_host is {value!r}; it must be {AUTO}, {OFF} or a number of GB.", field="experts_on_host"
        )
    return int(gigabytes * 1e9)
