"""The repository as a whole: what no file may mention, what importing quire costs, what the README promises."""

import re
import shutil
import subprocess
import sys
import tomllib
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


INSTALL = re.compile(r"\b(?:pip[\d.]*|pipx|conda|poetry|uv(?: pip| tool)?) (?:install|add) ([^`\n]*)")
OURS = re.compile(r"""['"]?quire(?:[-_]llm)?(?:$|[\['"=<>~!@;,)])""")  # quire, quire[cuda], 'quire-llm==1'


def index_installs(text: str) -> list[str]:
    """Install commands in a text that would fetch this project from a package index, where it is not."""
    return [found[0] for found in INSTALL.finditer(text) if any(OURS.match(word) for word in found[1].split())]


def test_no_text_tells_to_install_quire_from_an_index():
    folders = (ROOT / "docs", ROOT / "src", ROOT / "deploy", ROOT / ".ci")
    files = [
        *ROOT.glob("*.md"),
        ROOT / "Makefile",
        ROOT / "pyproject.toml",
        *(f for d in folders for f in d.rglob("*")),
    ]
    texts = {f: f.read_text("utf-8", errors="ignore") for f in files if f.is_file()}
    assert {str(f.relative_to(ROOT)): said for f, text in texts.items() if (said := index_installs(text))} == {}
    assert 'pip install ".[cuda]"' in texts[ROOT / "README.md"]


@pytest.mark.parametrize("target", ["quire", "quire[cuda]", "'quire[otel]'", '"quire-llm"', "-U quire-llm==0.2"])
def test_an_install_from_an_index_is_found(target):
    assert index_installs(f"run `pip install {target}` now") == [f"pip install {target}"]


@pytest.mark.parametrize("target", [".", '".[cuda]"', "dist/*.whl", "dist/quire_llm-0.1.0.whl", "pre-commit"])
def test_an_install_from_the_source_folder_is_fine(target):
    assert index_installs(f"run `pip install {target}` now") == []


def test_the_distribution_has_a_name_of_its_own():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["name"] == "quire-llm" and list(project["scripts"]) == ["quire"]
    own = [each for extra in project["optional-dependencies"].values() for each in extra if each.startswith("quire")]
    assert own == ["quire-llm[test]"]


@pytest.mark.parametrize("target", ["run", "test"])
def test_the_readme_and_the_makefile_agree(target: str):
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert re.search(rf"\bmake {target}\b", readme), f"README.md does not say `make {target}`"
    assert re.search(rf"^{target}:", makefile, re.MULTILINE), f"the Makefile has no {target}"
