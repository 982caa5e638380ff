"""The regions nearest to each prototype: the same as a search through every token of every image, one by one."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from gspool import Embedder
from gspool.data import ArrayImages, FileImages
from gspool.search.explanation.prototypes import gallery_page, nearest_regions, region_crop, region_figures
from search.corpus_files import draw_picture


def pictures(count: int, side: int = 64) -> ArrayImages:
    generator = torch.Generator().manual_seed(7)
    return ArrayImages(torch.randint(256, (count, 3, side, side), generator=generator, dtype=torch.uint8), "picture")


def regions_by_loops(model: Embedder, source: ArrayImages, kept: int) -> list[list[tuple[float, int, int, int]]]:
    prototypes = model.head.layer.prototypes.detach().double().numpy()
    found: list[list[tuple[float, int, int, int]]] = [[] for _ in prototypes]
    for index in range(len(source)):
        with torch.no_grad():
            features = model.head.embed(model.feature_map(source[index][None]))[0].double().numpy()
        for number, prototype in enumerate(prototypes):
            clipped = prototype / max(1.0, np.linalg.norm(prototype))
            best = None
            for row in range(features.shape[1]):
                for column in range(features.shape[2]):
                    token = features[:, row, column]
                    distance = float(np.linalg.norm(clipped - token / max(1.0, np.linalg.norm(token))))
                    if best is None or distance < best[0]:
                        best = (distance, index, row, column)
            found[number].append(best)
    return [sorted(entries)[:kept] for entries in found]


@pytest.mark.parametrize("batch", [1, 4, 16])
def test_regions_are_those_of_a_search_one_by_one(small_model, batch: int) -> None:
    source = pictures(11)
    regions = nearest_regions(small_model, source, per_prototype=3, batch=batch)
    for number, expected in enumerate(regions_by_loops(small_model, source, 3)):
        for rank, (distance, image, row, column) in enumerate(expected):
            assert float(regions.distance[number, rank]) == pytest.approx(distance, abs=1e-5)
            found = (
                int(regions.image[number, rank]),
                int(regions.row[number, rank]),
                int(regions.column[number, rank]),
            )
            assert found == (image, row, column)


def test_use_is_the_mean_of_the_attributes(small_model) -> None:
    source = pictures(5)
    regions = nearest_regions(small_model, source, batch=2)
    with torch.no_grad():
        attributes = small_model.embed(torch.stack([source[row] for row in range(5)])).attributes
    torch.testing.assert_close(regions.use, attributes.double().mean(0), rtol=1e-4, atol=1e-6)
    assert regions.images == 5


def test_fewer_images_than_asked_for_leave_places_empty(small_model) -> None:
    regions = nearest_regions(small_model, pictures(2), per_prototype=4)
    assert (regions.image[:, 2:] == -1).all()
    assert (regions.image[:, :2].sort(1).values == torch.tensor([0, 1])).all()
    page = gallery_page(small_model, pictures(2), regions, "two")
    assert page.count("<img ") == 2 * len(regions.use)


def test_images_that_cannot_be_read_are_left_out_and_named(small_model, tmp_path) -> None:
    (tmp_path / "words.png").write_text("words")
    broken = [tmp_path / "words.png", tmp_path / "nowhere.png"]
    with pytest.raises(ValueError, match="2 of 2 are broken"):
        nearest_regions(small_model, FileImages(broken))
    draw_picture(tmp_path / "whole.png", 1)
    source = FileImages([broken[0], tmp_path / "whole.png", broken[1]])
    regions = nearest_regions(small_model, source, per_prototype=2, batch=2)
    assert regions.images == 1
    assert [problem.split(":")[0] for problem in regions.broken] == [str(path) for path in broken]
    assert set(regions.image.flatten().tolist()) == {1, -1}
    assert "2 images could not be read" in gallery_page(small_model, source, regions, "some")


def test_models_without_prototypes_are_refused(small_model) -> None:
    with pytest.raises(ValueError, match="'gap' of this model has no prototypes"):
        nearest_regions(Embedder("small_cnn", pooling="gap", dim=8), pictures(1))
    waiting = Embedder("small_cnn", pooling="gsp", dim=8, pooling_options={"prototypes": 2, "warm_start": 9})
    with pytest.raises(
        ValueError, match=r"the 2 prototypes of this model are not set yet.* 0 vectors and warm_start needs 9"
    ):
        nearest_regions(waiting, pictures(1))
    with pytest.raises(ValueError, match="at least 1, got 0 and 16"):
        nearest_regions(small_model, pictures(1), per_prototype=0)


def test_the_page_stands_alone_and_shows_names_as_text(small_model) -> None:
    source = pictures(3)
    source.kind = "<script>alert(1)</script>"
    regions = nearest_regions(small_model, source, per_prototype=2)
    page = gallery_page(small_model, source, regions, "<b>bold</b>")
    assert "<script>" not in page
    assert "<b>bold" not in page
    assert "http" not in page
    assert page.count("data:image/jpeg;base64,") == 2 * len(regions.use)
    order = [page.index(f'id="prototype-{number}"') for number in regions.use.argsort(descending=True).tolist()]
    assert order == sorted(order)


def test_figures_name_every_region(small_model) -> None:
    source = pictures(3)
    figures = region_figures(source, nearest_regions(small_model, source, per_prototype=2))
    assert figures["images"] == 3
    assert sum(each["use"] for each in figures["prototypes"]) == pytest.approx(1.0)
    first = figures["prototypes"][0]["regions"]
    assert [region["distance"] for region in first] == sorted(region["distance"] for region in first)
    assert all(region["image"].startswith("picture ") for region in first)


@pytest.mark.parametrize(("row", "column"), [(0, 0), (0, 7), (7, 0), (7, 7), (3, 4)])
def test_the_frame_is_around_the_token(row: int, column: int) -> None:
    """The token's cell is painted white in a black picture: inside the frame all is white, outside all is black."""
    image = torch.zeros(3, 64, 64, dtype=torch.uint8)
    image[:, 8 * row : 8 * row + 8, 8 * column : 8 * column + 8] = 255
    crop = np.asarray(region_crop(image, (8, 8), row, column, (255, 0, 0)))
    framed = (crop[..., 0] > 200) & (crop[..., 1] < 60)
    rows, columns = np.nonzero(framed)
    top, bottom, left, right = rows.min(), rows.max(), columns.min(), columns.max()
    assert abs((bottom - top) - 112 / 4) <= 2
    inside = crop[top + 4 : bottom - 3, left + 4 : right - 3]
    assert inside.min() > 200
    outside = np.ones(crop.shape[:2], bool)
    outside[max(top - 5, 0) : bottom + 6, max(left - 5, 0) : right + 6] = False
    assert crop[outside].max() < 60
