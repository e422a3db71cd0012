"""Repositories of the model hub: hf.co/organisation/repository[:quantization].

What is there and who may have it, huggingface_hub says (its token, its endpoint, its headers); the bytes come through
our own download, so that they land in one store, once, and are resumed and judged like all others.
"""

from __future__ import annotations

import re
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
from quire.store.errors import ModelNotFound, StoreError, Unreachable
from quire.store.names import DEFAULT_TAG, HUB, ModelName
from quire.store.parts import INDEX, side_role
from quire.store.ranges import download_in_ranges
from quire.store.source import Offer, Progress, Wanted
from quire.text.template_files import flat_name

# Without a tag, the first of these that the repository has: good quality for the size, and fast everywhere.
PREFERRED = ("Q4_K_M", "Q4_0", "Q5_K_M", "Q4_1", "Q4_K_S", "IQ4_NL", "Q8_0", "Q6_K", "MXFP4", "BF16", "F16", "F32")
QUANTIZATION = re.compile(
    r"(?:^|[-._/])((?:I?Q|TQ)\d[A-Z0-9_]*|MXFP4(?:_[A-Z0-9]+)*|BF16|FP?16|FP?32)(?=[-./]|$)", re.IGNORECASE
)
PART = re.compile(r"-\d{5}-of-\d{5}$")
SHARD = re.compile(r"model(?:-\d{5}-of-\d{5})?\.safetensors")


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
        files = list(info.siblings or [])
        gguf = [f for f in files if f.rfilename.endswith(".gguf") and "mmproj" not in f.rfilename.lower()]
        licence = next((tag.removeprefix("license:") for tag in info.tags or [] if tag.startswith("license:")), "")
        source = f"{HUB}/{name.name}@{info.sha}"
        if gguf:
            quantization, chosen = _choose(name, gguf)
            wanted = tuple(self._wanted(name, info.sha, file, "weights") for file in chosen)
            return Offer(source, wanted, format="gguf", quantization=quantization, licence=licence)
        chosen = _safetensors(name, files)
        wanted = tuple(self._wanted(name, info.sha, f, side_role(f.rfilename) or "weights") for f in chosen)
        return Offer(source, wanted, format="safetensors", licence=licence)

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
            raise Unreachable(
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


def quantization_of(file_name: str) -> str:
    """The number format that a GGUF file's name says, in capitals; empty if it says none."""
    found = QUANTIZATION.findall(PART.sub("", file_name.removesuffix(".gguf")))
    last = found[-1].upper() if found else ""
    return {"FP16": "F16", "FP32": "F32"}.get(last, last)


def _choose(name: ModelName, files: list[Any]) -> tuple[str, list[Any]]:
    """The parts of one model, in order."""
    models: dict[tuple[str, str], list[Any]] = {}  # (quantization, name without the part's number)
    for file in sorted(files, key=lambda f: f.rfilename):
        stem = PART.sub("", file.rfilename.removesuffix(".gguf"))
        models.setdefault((quantization_of(file.rfilename), stem), []).append(file)
    by_tag: dict[str, list[Any]] = {}
    for (quantization, stem), parts in models.items():
        by_tag.setdefault(quantization or PurePosixPath(stem).name.upper(), parts)
    if name.tag != DEFAULT_TAG:
        if (wanted := name.tag.upper()) in by_tag:
            return wanted, by_tag[wanted]
        raise ModelNotFound(f"{HUB}/{name.name} has no {name.tag}: choose a tag from {', '.join(sorted(by_tag))}.")
    best = next((tag for tag in PREFERRED if tag in by_tag), next(iter(by_tag)))
    return best, by_tag[best]


def _safetensors(name: ModelName, files: list[Any]) -> list[Any]:
    if name.tag != DEFAULT_TAG:
        raise ModelNotFound(f"{HUB}/{name.name} has no GGUF files to choose {name.tag} from: leave the tag out.")
    by_name = {file.rfilename: file for file in files}
    shards = sorted(each for each in by_name if SHARD.fullmatch(each))
    if not shards or "config.json" not in by_name:
        raise StoreError(
            f"{HUB}/{name.name} has neither GGUF files nor model.safetensors with config.json: "
            "look for a repository with the same model in one of these formats."
        )
    if INDEX in by_name:
        shards = [INDEX, *(each for each in shards if each != "model.safetensors")]
    return [by_name[each] for each in (*shards, *(path for path in by_name if side_role(path)))]


SOURCE = HuggingFace()
