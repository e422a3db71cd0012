"""Repositories of the model hub: hf.co/organisation/repository[:quantization].

huggingface_hub lists the files and checks access (with its token, endpoint and headers). The content is fetched by our
own download, so that it is stored once, resumed and verified like that of every other source.
"""

from __future__ import annotations

from pathlib import Path, PurePosixPath
from typing import Any

from huggingface_hub import HfApi, hf_hub_url
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
)
from huggingface_hub.utils import build_hf_headers

from quire.store.downloads.http import RemoteFile, http_client
from quire.store.downloads.ranges import download_in_ranges
from quire.store.errors import ModelNotFound, SourceDisabled, Unreachable
from quire.store.hub_files import choose_files
from quire.store.model_files import flat_path
from quire.store.names import HUB, ModelName
from quire.store.source import ModelOffer, Progress, SourceFile


class HuggingFace:
    """The model hub or a mirror. `endpoint` None: the one that huggingface_hub is configured with."""

    def __init__(self, endpoint: str | None = None) -> None:
        self.endpoint = endpoint

    def claims(self, name: ModelName) -> bool:
        """Every name that begins with hf.co/."""
        return name.kind == "hub"

    def offer(self, name: ModelName) -> ModelOffer:
        """The files of one quantization in GGUF, or else the safetensors with config and tokenizer."""
        info = self._info(name)
        files = {file.rfilename: file for file in info.siblings or []}
        model = choose_files(name, list(files))
        licence = next((tag.removeprefix("license:") for tag in info.tags or [] if tag.startswith("license:")), "")
        return ModelOffer(
            source=f"{HUB}/{name.name}@{info.sha}",
            files=tuple(self._source_file(name, info.sha, files[each], model.role(each)) for each in model.files),
            format=model.format,
            quantization=model.quantization,
            licence=licence,
        )

    def fetch(self, file: SourceFile, partial: Path, progress: Progress) -> None:
        """Download, with the user's token if there is one."""
        with http_client() as client:
            headers = {key: value for key, value in build_hf_headers(library_name="quire").items() if value}
            download_in_ranges(RemoteFile(file.location, file.file_name, client, headers), partial, file.size, progress)

    def _info(self, name: ModelName) -> Any:
        """The files of the repository. Access is checked too: a gated repository lists its files to everybody."""
        api = HfApi(endpoint=self.endpoint)
        try:
            info = api.model_info(name.name, files_metadata=True)
            if info.gated:
                api.auth_check(name.name)
            return info
        except GatedRepoError as error:
            raise Unreachable(
                f"{name} is gated: accept its conditions on {api.endpoint}/{name.name}, then log in with `hf auth "
                "login`, or set HF_TOKEN to your token."
            ) from error
        except (RepositoryNotFoundError, HFValidationError) as error:
            raise ModelNotFound(
                f"The model hub has no repository {name.name}, or it is private: check the name; if it is private, "
                "log in with `hf auth login`, or set HF_TOKEN to your token."
            ) from error
        except HfHubHTTPError as error:
            raise Unreachable(
                f"The model hub cannot list the files of {name.name} ({error}): try again later."
            ) from error
        except OfflineModeIsEnabled as error:
            raise SourceDisabled(
                f"{name} is not here, and HF_HUB_OFFLINE forbids requests to the model hub: unset it, or use a model "
                "that is here (`quire list`)."
            ) from error
        except Exception as error:  # of the transport, which differs between versions of huggingface_hub
            raise Unreachable(
                f"The model hub cannot be reached at {api.endpoint} ({type(error).__name__}): check the network and "
                "the proxy, or HF_ENDPOINT if you use a mirror, or give the path of a model."
            ) from error

    def _source_file(self, name: ModelName, commit: str, file: Any, role: str) -> SourceFile:
        digest = file.lfs.sha256 if file.lfs else None
        url = hf_hub_url(name.name, file.rfilename, revision=commit, endpoint=self.endpoint)
        # A git object id identifies the content like a digest, but we cannot verify it.
        key = digest or f"git-{file.blob_id or commit + PurePosixPath(file.rfilename).name}"
        return SourceFile(role, PurePosixPath(flat_path(file.rfilename)).name, key, url, digest, file.size)


SOURCE = HuggingFace()
