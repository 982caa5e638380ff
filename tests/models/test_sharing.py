from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
import torch
from huggingface_hub import HfApi, ModelCard

from gspool.models import Embedder
from gspool.models.model_card import CardFacts, read_facts
from gspool.models.sharing import known_facts, model_place, push_folder, write_hub_folder
from models.local_hub import local_hub

METRICS = {"map@r": 0.2832, "p@1": 0.61}


def tiny() -> Embedder:
    torch.manual_seed(0)
    return Embedder("resnet20", pooling="gsp", dim=8, pooling_options={"prototypes": 3}).eval()


def a_run(folder: Path, finished: bool = True) -> Path:
    """Write the files of a run that sharing looks at."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.yaml").write_text("data:\n  name: glyphs\n")
    if finished:
        (folder / "result.json").write_text(json.dumps({"metrics": METRICS, "best_step": 3}))
        tiny().save_pretrained(folder / "model", metrics={"map@r": 0.1})
    return folder


PUSH_AND_FETCH = """
import sys, torch
from gspool.models import Embedder
from gspool.models.model_card import CardFacts
from gspool.models.sharing import push_folder, write_hub_folder

folder = sys.argv[1]
model = Embedder.from_pretrained(folder)
write_hub_folder(model, folder, CardFacts({"map@r": 0.25}, data="glyphs", licence="mit"), address="me/birds")
print(push_folder(folder, "me/birds"))
model.push_to_hub("me/direct", model_card_kwargs={"metrics": {"p@1": 0.5}})
images = torch.randint(256, (2, 3, 32, 32), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
for name in ("me/birds", "me/direct"):
    again = Embedder.from_pretrained(name)
    assert again.settings == model.settings, name
    with torch.no_grad():
        assert torch.equal(again(images), model(images)), name
try:
    Embedder.from_pretrained("me/nothing")
except ValueError as error:
    print(error)
"""


def test_a_model_goes_to_a_hub_and_comes_back_the_same(tmp_path: Path) -> None:
    tiny().save_pretrained(tmp_path / "model")
    (tmp_path / "model" / "notes.txt").write_text("not for others")
    with local_hub() as hub:
        settings = {
            **{name: value for name, value in os.environ.items() if not name.startswith("HF_")},
            "HF_ENDPOINT": hub.address,
            "HF_HOME": str(tmp_path / "home"),
            "HF_TOKEN": "hf_of_nobody",
            "HF_HUB_DISABLE_TELEMETRY": "1",
            "HF_HUB_DISABLE_PROGRESS_BARS": "1",
            "no_proxy": "*",
        }
        command = [sys.executable, "-c", PUSH_AND_FETCH, str(tmp_path / "model")]
        done = subprocess.run(command, env=settings, capture_output=True, text=True, check=False, timeout=240)
        assert done.returncode == 0, f"{done.stderr}\nnot answered: {hub.unknown}"
    assert f"{hub.address}/me/birds" in done.stdout
    assert "the Hugging Face hub returned no model of that name" in done.stdout
    for name in ("me/birds", "me/direct"):
        assert set(hub.repositories[name]) - {".gitattributes"} == {"README.md", "config.json", "model.safetensors"}
    assert [head["library_name"] for head in hub.checked_heads] == ["gspool", "gspool"]
    assert hub.checked_heads[0]["license"] == "mit"
    assert hub.checked_heads[0]["model-index"][0]["results"][0]["metrics"] == [{"type": "map@r", "value": 0.25}]
    assert 'from_pretrained("me/birds")' in hub.repositories["me/birds"]["README.md"].decode()


def test_a_card_tells_figures_data_licence_use_and_limits(tmp_path: Path) -> None:
    write_hub_folder(tiny(), tmp_path, CardFacts(METRICS, data="glyph collages", licence="cc-by-4.0"))
    card = ModelCard.load(tmp_path / "README.md")
    assert card.data.license == "cc-by-4.0"
    assert card.data.library_name == "gspool"
    assert card.data.pipeline_tag == "image-feature-extraction"
    for result in card.data.eval_results:
        assert result.dataset_name == "glyph collages"
        assert METRICS[result.metric_type] == result.metric_value
    for words in (
        "## Intended use",
        "## Limits",
        "Trained for and measured on glyph collages.",
        "| map@r | 0.2832 |",
        "| pooling options | prototypes = 3 |",
        "32 x 32",
        "RGB, 0-1",
        "`cc-by-4.0`",
        "resizes the shorter side to",
        "not made to identify people",
    ):
        assert words in card.text
    assert "model.onnx" not in card.text


def test_the_facts_of_a_card_are_read_back(tmp_path: Path) -> None:
    for facts in (
        CardFacts(METRICS, data="glyph collages", licence="mit"),
        CardFacts(METRICS),
        CardFacts(data='birds: "all" of them'),
        CardFacts(),
    ):
        write_hub_folder(tiny(), tmp_path, facts)
        assert read_facts(tmp_path / "README.md") == facts
    with pytest.raises(ValueError, match="there is no model card"):
        read_facts(tmp_path / "absent.md")


def test_text_of_a_downloaded_card_is_one_printable_line_and_no_markup(tmp_path: Path) -> None:
    card = tmp_path / "README.md"
    card.write_text('---\nlicense: "mit\\e[2J"\ntrained_for: "<script>|x|\\n\\e[2J"\n---\n')
    facts = read_facts(card)
    assert (facts.licence, facts.data) == ("mit[2J", "<script>|x| [2J")
    write_hub_folder(tiny(), tmp_path / "share", facts)
    page = (tmp_path / "share" / "README.md").read_text().split("---")[2]
    assert "&lt;script&gt;\\|x\\| [2J" in page
    assert "<script>" not in page


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"---\nlicense: [\n---\n", "is damaged"),
        (b"---\n- a\n- b\n---\n", "is damaged"),
        (b"---\nlicense: \x1b[2J\n---\n", "is damaged"),
        (b"\xff\xfe\x00", "is damaged"),
        (b" " * 2_000_000, "2,000,000 bytes"),
    ],
)
def test_a_damaged_card_is_refused(content: bytes, words: str, tmp_path: Path) -> None:
    (tmp_path / "README.md").write_bytes(content)
    with pytest.raises(ValueError, match=words):
        read_facts(tmp_path / "README.md")


def test_a_run_gives_its_model_its_figures_and_its_data(tmp_path: Path) -> None:
    run = a_run(tmp_path / "run")
    place = model_place(run)
    assert place == run / "model"
    assert known_facts(place) == CardFacts(METRICS, data="glyphs")
    assert model_place(str(place)) == place
    assert model_place("owner/name") == "owner/name"
    with pytest.raises(ValueError, match=r"has not finished; .*gspool train --resume"):
        model_place(a_run(tmp_path / "unfinished", finished=False))
    (run / "result.json").write_text("{")
    with pytest.raises(ValueError, match="damaged files"):
        known_facts(place)


def test_a_model_by_itself_is_known_by_its_card(tmp_path: Path) -> None:
    tiny().save_pretrained(tmp_path / "alone", metrics=METRICS)
    assert known_facts(tmp_path / "alone") == CardFacts(METRICS)
    (tmp_path / "alone" / "README.md").unlink()
    assert known_facts(tmp_path / "alone") == CardFacts()


def test_a_hub_that_does_not_answer_is_told_in_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match=r"lacks config\.json, model\.safetensors, README\.md"):
        push_folder(tmp_path, "me/nothing")
    write_hub_folder(tiny(), tmp_path)
    monkeypatch.setattr("gspool.models.sharing.HfApi", partial(HfApi, endpoint="http://127.0.0.1:9"))
    with pytest.raises(ValueError, match=r"the hub refused me/birds .*hf auth login"):
        push_folder(tmp_path, "me/birds", token="hf_of_nobody")

    class Broken:
        def __init__(self, token: str | None) -> None: ...

        def create_repo(self, *_: object, **__: object) -> None:
            raise KeyError("a mistake of a programmer")

    monkeypatch.setattr("gspool.models.sharing.HfApi", Broken)
    with pytest.raises(KeyError, match="programmer"):
        push_folder(tmp_path, "me/birds")
