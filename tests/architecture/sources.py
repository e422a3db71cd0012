"""The tree under test, as parsed sources: nothing here imports quire."""

import ast
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "src" / "quire"

TORCH_HOMES = ("devices.cuda", "devices._triton", "distributed")  # the modules that may import torch and triton


@dataclass(frozen=True)
class Source:
    """One module. Its name is dotted and without the leading "quire": "cache.blocks"; quire/__init__.py is ""."""

    name: str
    text: str
    is_package: bool = False

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text)

    @property
    def dotted(self) -> str:
        return f"quire.{self.name}" if self.name else "quire"

    def __str__(self) -> str:
        return self.dotted


@cache
def all_sources() -> tuple[Source, ...]:
    return tuple(read_source(path) for path in sorted(PACKAGE.rglob("*.py")))


def read_source(path: Path) -> Source:
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    is_package = parts[-1] == "__init__"
    return Source(".".join(parts[:-1] if is_package else parts), path.read_text(encoding="utf-8"), is_package)


@cache
def sources_by_package() -> dict[str, tuple[Source, ...]]:
    """All modules by the top-level package or module that they are in: a test for each file would take longer."""
    packages: dict[str, list[Source]] = {}
    for source in all_sources():
        packages.setdefault(source.name.split(".")[0] or "quire", []).append(source)
    return {name: tuple(found) for name, found in packages.items()}


def is_under(name: str, package: str) -> bool:
    return name == package or name.startswith(package + ".")
