"""The repository as a whole: what no file may mention, what importing quire costs, what the README promises."""

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.architecture.sources import ROOT

pytestmark = pytest.mark.pure

# Hosts of package registries and places of one machine: the user's own settings decide those. In halves, so that this
# file does not mention them.
UNMENTIONABLE = tuple(
    first + second
    for first, second in (
        ("py", "pi.org"),
        ("python", "hosted"),
        ("npm", "js.org"),
        ("deb.", "debian"),
        ("/wo", "rk/"),
        ("bash_", "jobs"),
    )
)


def mentions(name: str, text: str) -> Iterator[str]:
    lowered = text.lower()
    yield from (f"{name} mentions {word}" for word in UNMENTIONABLE if word in lowered)


@pytest.mark.skipif(not (ROOT / ".git").exists() or not shutil.which("git"), reason="not a git checkout")
def test_no_file_mentions_a_registry_or_a_machine():
    listing = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(listing, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\0")
    files = [ROOT / name for name in names if name and (ROOT / name).is_file()]
    found = [said for f in files for said in mentions(str(f.relative_to(ROOT)), f.read_text("utf-8", errors="ignore"))]
    assert files and found == []


def test_a_mention_is_found():
    assert list(mentions("a.py", "https://" + UNMENTIONABLE[0].upper())) == [f"a.py mentions {UNMENTIONABLE[0]}"]
    assert list(mentions("a.py", "a network/of work")) == []


def test_importing_quire_loads_nothing_heavy():
    child = subprocess.run(
        [sys.executable, "-c", "import quire, sys; print(*sys.modules)"], capture_output=True, text=True, check=True
    )
    loaded = set(child.stdout.split())
    assert "quire" in loaded
    assert loaded & {"numpy", "torch", "asyncio", "starlette", "typer", "tokenizers", "importlib.metadata"} == set()


def test_the_names_of_quire_are_loaded_when_they_are_used():
    script = "import sys, quire; print([quire.LLM, quire.AsyncLLM, quire.SamplingParams]); print(*sys.modules)"
    child = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    named, loaded = child.stdout.splitlines()
    assert "quire.engine.llm.LLM" in named and "quire.types.request.SamplingParams" in named
    dear = {"torch", "transformers", "zmq", "msgspec", "rich"}  # those of a child process are loaded with one
    assert dear & set(loaded.split()) == set()


@pytest.mark.parametrize("target", ["run", "test"])
def test_the_readme_and_the_makefile_agree(target: str):
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert re.search(rf"\bmake {target}\b", readme), f"README.md does not say `make {target}`"
    assert re.search(rf"^{target}:", makefile, re.MULTILINE), f"the Makefile has no {target}"
