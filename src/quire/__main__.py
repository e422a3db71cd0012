"""`python -m quire`."""

import sys

from quire.cli.main import main_of_module

if __name__ == "__main__":
    sys.exit(main_of_module())
