"""Type checkers see the public names, and `import quire` stays cheap."""

import subprocess
import sys
from pathlib import Path

import pytest

import quire
from tests.architecture.sources import ROOT

pytestmark = pytest.mark.pure

TYPED = Path(__file__).parent / "typed"


def test_mypy_sees_the_public_names_and_finds_mistakes_in_their_use():

    flags = ("--strict", "--show-error-codes", "--no-error-summary", "--no-pretty", "--no-warn-unused-configs")
    files = [str(TYPED / name) for name in ("sample.py", "mistakes.py")]
    command = [sys.executable, "-m", "mypy", "--cache-dir", ".mypy_cache/typed", *flags, *files]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    found = {line.split(":")[1] for line in done.stdout.splitlines() if "mistakes.py:" in line and ": error:" in line}
    lines = (TYPED / "mistakes.py").read_text().splitlines()
    assert found == {str(place) for place, line in enumerate(lines, 1) if line.endswith("# error")}, done.stdout
    assert "sample.py" not in done.stdout, done.stdout


def test_dir_shows_what_can_be_imported():
    assert set(quire.__all__) <= set(dir(quire))
    assert all(getattr(quire, name) is not None for name in quire.__all__)


def test_importing_quire_imports_none_of_its_parts():
    code = "import sys, quire; print([name for name in sys.modules if name.startswith(('quire.', 'numpy', 'torch'))])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
