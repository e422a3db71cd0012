"""`python -m quire.bench`: every figure of this machine, with its target."""

from __future__ import annotations

import platform

from quire.bench import core


def main() -> None:
    """Print the table."""
    print(f"{platform.machine()}, Python {platform.python_version()}, one core")
    for figure in core.run():
        print(figure, flush=True)


if __name__ == "__main__":
    main()
