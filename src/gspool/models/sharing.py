"""Share a model: a folder with weights, settings and a card with its figures; upload it to the Hugging Face hub."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import yaml
from huggingface_hub import HfApi
from huggingface_hub.errors import HfHubHTTPError

from gspool.models import model_card
from gspool.models.model_card import CardFacts
from gspool.models.pretrained import CARD, CONFIG, GENERATED, WEIGHTS

if TYPE_CHECKING:
    from gspool.models.embedder import Embedder

# The parts of a training run that are read here.
RUN_MODEL, RUN_CONFIG, RUN_RESULT = "model", "config.yaml", "result.json"
ONNX = "model.onnx"


def model_place(source: str | Path) -> str | Path:
    """Find the model of a finished run or of a saved folder; a name of the hub is returned as it is.

    Raises:
        ValueError: if the run has not finished, or the parent folder exists and holds no such model.
    """
    folder = Path(source).expanduser()
    if (folder / RUN_MODEL / CONFIG).is_file():
        return folder / RUN_MODEL
    if (folder / RUN_CONFIG).is_file() and not (folder / CONFIG).is_file():
        raise ValueError(f"the run in {folder} has not finished; continue it with: gspool train --resume {folder}")
    if folder.is_dir():
        return folder
    if len(folder.parts) > 1 and folder.parent.is_dir():
        # The hub would take long to answer, and this is clearly meant as a path.
        raise ValueError(f"there is no model {folder}; {folder.parent} holds {_names_in(folder.parent)}")
    return source


def _names_in(folder: Path) -> str:
    """Name some of the folders in a folder, for a message."""
    names = sorted(each.name for each in folder.iterdir() if each.is_dir())
    return ", ".join(names[:5]) + (" ..." if len(names) > 5 else "") if names else "no folders"


def known_facts(place: str | Path) -> CardFacts:
    """Collect what is known about a saved model, from its card and from the run it belongs to."""
    folder = Path(place)
    facts = model_card.read_facts(folder / CARD) if (folder / CARD).is_file() else CardFacts()
    result, config = folder.parent / RUN_RESULT, folder.parent / RUN_CONFIG
    if folder.name != RUN_MODEL or not (result.is_file() and config.is_file()):
        return facts
    try:
        found = json.loads(result.read_text(encoding="utf-8"))["metrics"].items()
        metrics = {str(name): float(value) for name, value in found}
        data = str(yaml.safe_load(config.read_text(encoding="utf-8"))["data"]["name"])
    except (ValueError, KeyError, TypeError, AttributeError, yaml.YAMLError) as error:
        raise ValueError(
            f"the run in {folder.parent} has damaged files ({error}); resume it to write them again"
        ) from error
    return facts._replace(metrics=metrics, data=facts.data or data)


def write_hub_folder(
    model: Embedder, folder: str | Path, facts: CardFacts | None = None, address: str | None = None
) -> Path:
    """Write a folder to share: weights, settings, a card with figures, data and licence.

    A README.md that you have made your own is kept; a ``model.onnx`` in the folder is mentioned. ``facts`` are what the
    card states, see `known_facts`; ``address`` is the name to load the model by, ``owner/name`` of the hub.

    Raises:
        ValueError: if a setting of the model cannot be written.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> from gspool.models import Embedder
        >>> with TemporaryDirectory() as place:
        ...     model = Embedder("resnet20", pooling="gap", dim=8)
        ...     folder = write_hub_folder(model, place, CardFacts({"map@r": 0.25}, data="glyphs", licence="mit"))
        ...     sorted(path.name for path in folder.iterdir())
        ['README.md', 'config.json', 'model.safetensors']
    """
    folder, facts = Path(folder), facts or CardFacts()
    card = {"data": facts.data, "licence": facts.licence, "onnx": (folder / ONNX).is_file()}
    if address is not None:
        card["address"] = address
    model.save_pretrained(folder, metrics=facts.metrics, model_card_kwargs=card)
    return folder


def keep_own_card(place: str | Path, folder: Path) -> None:
    """Copy the card of a saved model if its owner has edited it and the folder has none yet."""
    card = Path(place) / CARD
    if card.is_file() and not (folder / CARD).exists():
        page = card.read_text(encoding="utf-8")
        if GENERATED not in page:
            (folder / CARD).write_text(page, encoding="utf-8")


def push_folder(folder: str | Path, repository: str, private: bool = False, token: str | None = None) -> str:
    """Upload a folder of `write_hub_folder` with its card, and return its address.

    Raises:
        ValueError: if the folder holds no model, or the hub refuses.
    """
    folder = Path(folder)
    missing = [name for name in (CONFIG, WEIGHTS, CARD) if not (folder / name).is_file()]
    if missing:
        raise ValueError(f"{folder} lacks {', '.join(missing)}; write it with gspool export MODEL --folder {folder}")
    hub = HfApi(token=token)
    try:
        name = hub.create_repo(repository, private=private, exist_ok=True).repo_id
        hub.upload_folder(
            repo_id=name,
            folder_path=folder,
            allow_patterns=[CONFIG, WEIGHTS, CARD, ONNX, f"{ONNX}.data"],
            commit_message="Add a gspool model",
        )
    except Exception as error:
        if not _is_from_the_hub(error):
            raise
        raise ValueError(
            f"the hub refused {repository} ({error}); sign in with: hf auth login, and use an owner/name of yours"
        ) from error
    return f"{hub.endpoint}/{name}"


def _is_from_the_hub(error: Exception) -> bool:
    """Distinguish a refusal or a lost connection from a programming error, whichever HTTP library is in use."""
    library = type(error).__module__.partition(".")[0]
    return isinstance(error, HfHubHTTPError | OSError) or library in ("httpx", "httpx2", "requests")
