"""Repositories of the model hub: hf.co/organisation/repository[:quantization].

What is there and who may have it, huggingface_hub says (its token, its endpoint, its headers); the bytes come through
our own download, so that they land in one store, once, and are resumed and judged like all others.
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

from quire.store.download import Address, http_client
from quire.store.errors import ModelNotFound, NotAsked, Unreachable
from quire.store.hub_files import choose_files
from quire.store.names import HUB, ModelName
from quire.store.ranges import download_in_ranges
from quire.store.source import Offer, Progress, Wanted
from quire.text.template_files import flat_name


class HuggingFace:
    """The model hub, or a mirror of it. None: the endpoint that huggingface_hub is set to."""

    def __init__(self, endpoint: str | None = None) -> None:
        self.endpoint = endpoint

    def claims(self, name: ModelName) -> bool:
        """Every name that begins with hf.co/."""
        return name.kind == "hub"

    def offer(self, name: ModelName) -> Offer:
        """The files of one quantization in GGUF, or else the safetensors with what belongs to them."""
        info = self._info(name)
        files = {file.rfilename: file for file in info.siblings or []}
        chosen = choose_files(name, list(files))
        licence = next((tag.removeprefix("license:") for tag in info.tags or [] if tag.startswith("license:")), "")
        return Offer(
            source=f"{HUB}/{name.name}@{info.sha}",
            files=tuple(self._wanted(name, info.sha, files[each], chosen.role(each)) for each in chosen.files),
            format=chosen.format,
            quantization=chosen.quantization,
            licence=licence,
        )

    def fetch(self, wanted: Wanted, partial: Path, progress: Progress) -> None:
        """Resumed over HTTP, with the user's token if there is one."""
        with http_client() as client:
            headers = {key: value for key, value in build_hf_headers(library_name="quire").items() if value}
            download_in_ranges(Address(wanted.place, wanted.file_name, client, headers), partial, wanted.size, progress)

    def _info(self, name: ModelName) -> Any:
        """What is in the repository, and that we may have it: a model on conditions lets everybody look."""
        api = HfApi(endpoint=self.endpoint)
        try:
            info = api.model_info(name.name, files_metadata=True)
            if info.gated:
                api.auth_check(name.name)
            return info
        except GatedRepoError as error:
            raise Unreachable(
                f"{name} is given out on conditions: accept them on {api.endpoint}/{name.name}, then log in with "
                "`hf auth login`, or set HF_TOKEN to a token of yours."
            ) from error
        except (RepositoryNotFoundError, HFValidationError) as error:
            raise ModelNotFound(
                f"The model hub has no repository {name.name}, or it is private: check the name; if it is private, "
                "log in with `hf auth login`, or set HF_TOKEN to a token of yours."
            ) from error
        except HfHubHTTPError as error:
            raise Unreachable(
                f"The model hub cannot tell what is in {name.name} ({error}): try again later."
            ) from error
        except OfflineModeIsEnabled as error:
            raise NotAsked(
                f"{name} is not here, and HF_HUB_OFFLINE forbids to ask the model hub: unset it, or use what is here "
                "(`quire list`)."
            ) from error
        except Exception as error:  # of a transport, which is not the same in every huggingface_hub
            raise Unreachable(
                f"The model hub cannot be reached at {api.endpoint} ({type(error).__name__}): check the network and "
                "the proxy, or HF_ENDPOINT if you use a mirror, or give the path of a model."
            ) from error

    def _wanted(self, name: ModelName, commit: str, file: Any, role: str) -> Wanted:
        digest = file.lfs.sha256 if file.lfs else None
        url = hf_hub_url(name.name, file.rfilename, revision=commit, endpoint=self.endpoint)
        # A git object id names the bytes as well as a digest does, only not in a way that we could check.
        key = digest or f"git-{file.blob_id or commit + PurePosixPath(file.rfilename).name}"
        return Wanted(role, PurePosixPath(flat_name(file.rfilename)).name, key, url, digest, file.size)


SOURCE = HuggingFace()
