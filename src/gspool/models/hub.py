"""Weights of timm on the Hugging Face hub: which are cached here, and whether others can be downloaded."""

from __future__ import annotations

from difflib import get_close_matches

import timm
from huggingface_hub import CacheNotFound, constants, get_hf_file_metadata, hf_hub_url, scan_cache_dir
from huggingface_hub.errors import HfHubHTTPError

from gspool.models.create import TIMM

# A download without a network would retry for about a minute; one short question shows it in seconds.
PATIENCE = 5.0


def cached_backbones() -> list[str]:
    """List the backbones of timm whose weights are in the cache of the Hugging Face hub, and need no network."""
    return [name for name in _cached_weights() if name.startswith(TIMM)]


def _cached_weights() -> list[str]:
    """List the repositories with weights in the cache; those of timm's backbones have several owners."""
    try:
        repositories = scan_cache_dir(constants.HF_HUB_CACHE).repos
    except CacheNotFound:
        return []
    return sorted(
        repository.repo_id
        for repository in repositories
        if any(
            file.file_name.endswith((".safetensors", ".bin")) for each in repository.revisions for file in each.files
        )
    )


def check_downloadable(name: str) -> None:
    """Check that the weights of ``timm/NAME`` are cached, or that the hub answers.

    Raises:
        ConnectionError: if neither is so, with what can be done and the backbones that are cached.
    """
    record = timm.models.get_pretrained_cfg(name)
    repository = record.hf_hub_id if record else None
    if repository is None:
        return
    if repository in _cached_weights():
        return
    try:
        get_hf_file_metadata(hf_hub_url(repository, "config.json"), timeout=PATIENCE)
    except HfHubHTTPError:
        return  # it answers; what is wrong shows in the download
    except Exception as error:  # of whichever HTTP library is in use, or because HF_HUB_OFFLINE is set
        raise ConnectionError(
            f"the weights of timm/{name} ({repository}) are not in the cache of the Hugging Face hub, and the hub "
            f"cannot be reached ({' '.join(str(error).split()).rstrip('.')}). {ways_without(cached_backbones())}"
        ) from error


def ways_without(cached: list[str]) -> str:
    """Return what can be done without a download."""
    backbones = f"a backbone that is cached ({', '.join(cached[:5])}), " if cached else ""
    return (
        "Use a file of weights, weights=FILE (gspool train: --model.backbone_options.weights FILE, gspool compare: "
        f"--backbone_options.weights FILE), {backbones}or random weights, pretrained=False "
        "(--model.backbone_options.pretrained false, --backbone_options.pretrained false)"
    )


def available_backbone(wanted: str) -> str:
    """Return a backbone with weights that can be had here: the wanted one, or the cached one with the nearest name.

    Raises:
        ConnectionError: if it is not cached, the hub cannot be reached, and no other is cached.
    """
    if not wanted.startswith(TIMM):
        return wanted
    try:
        check_downloadable(wanted.removeprefix(TIMM))
    except ConnectionError:
        near = get_close_matches(wanted, cached_backbones(), n=1, cutoff=0.0)
        if not near:
            raise
        return near[0]
    return wanted


def announced_backbone(wanted: str, option: str) -> str:
    """Return `available_backbone`, and print a line where it is another one; ``option`` is how to name one.

    Raises:
        ConnectionError: as `available_backbone`.
    """
    chosen = available_backbone(wanted)
    if chosen != wanted:
        print(f"the hub cannot be reached and {wanted} is not cached; this is {chosen}, which is ({option})")
    return chosen
