"""An explanation is the layer's own account, and agrees with a second computation by plain loops."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from gspool import Embedder, pooling
from gspool.evaluation.entropy import FLAT_ENTROPY
from gspool.search import explain
from gspool.search.explanation import Explanation, shared_prototypes
from gspool.search.explanation.overlay import (
    Scales,
    common_scale,
    css_colour,
    owners_over,
    panels,
    prototype_colour,
    weights_over,
)


def some_image(seed: int = 0, side: int = 64) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(256, (3, side, side), generator=generator, dtype=torch.uint8)


def model_with(pooling: str, **options) -> Embedder:
    with torch.random.fork_rng():
        torch.manual_seed(1)
        return Embedder(
            "timm/test_vit" if pooling.endswith("+cls") else "small_cnn",
            pooling=pooling,
            dim=8,
            backbone_options={"img_size": 64} if pooling.endswith("+cls") else {},
            pooling_options=options,
        ).eval()


def plan_by_loops(prototypes: np.ndarray, tokens: np.ndarray, mu: float, epsilon: float) -> np.ndarray:
    """(P2) in float64 by bisection on the one threshold, token by token."""
    clip = [row / max(1.0, np.linalg.norm(row)) for row in prototypes]
    affinity = np.array(
        [[math.exp(-epsilon * np.linalg.norm(w - f / max(1.0, np.linalg.norm(f)))) for f in tokens] for w in clip]
    )
    low, high = -60.0, 60.0
    for _ in range(200):
        middle = (low + high) / 2
        taken = [math.exp(middle) * column.sum() / (1 + math.exp(middle) * column.sum()) for column in affinity.T]
        low, high = (middle, high) if sum(taken) / len(taken) < mu else (low, middle)
    plan = np.array(
        [[affinity[i, j] / affinity[:, j].sum() * taken[j] for j in range(len(tokens))] for i in range(len(clip))]
    )
    return plan / plan.sum()


@pytest.mark.parametrize("pooling", ["gsp", "gmp+gsp", "gemean+gsp"])
def test_the_plan_is_that_of_a_second_computation(pooling: str) -> None:
    model = model_with(pooling, prototypes=5, mu=0.3, epsilon=8.0)
    image = some_image()
    with torch.no_grad():
        features = model.feature_map(image[None])
        tokens = model.head.embed(features.flatten(2).transpose(1, 2))[0].double().numpy()
    layer = model.head.layer if pooling == "gsp" else model.head.gsp
    oracle = plan_by_loops(layer.prototypes.detach().double().numpy(), tokens, 0.3, 8.0)
    explanation = explain(model, image)
    shape = (5, *explanation.weights.shape)
    np.testing.assert_allclose(explanation.plan.numpy(), oracle.reshape(shape), rtol=2e-4, atol=1e-8)
    assert explanation.owners.tolist() == oracle.reshape(shape).argmax(0).tolist()


@pytest.mark.parametrize("options", [{}, {"groups": 2}, {"keys": 3}, {"groups": 2, "keys": 3}])
@pytest.mark.parametrize("pooling", ["gsp", "gsp+cls", "gmp+gsp", "gemean+gsp"])
def test_it_agrees_with_the_model(pooling: str, options: dict[str, int]) -> None:
    if not pooling.startswith("gsp"):
        options = {name: value for name, value in options.items() if pooling == "gemean+gsp" and name == "keys"}
    model = model_with(pooling, prototypes=6, **options)
    image = some_image(3)
    explanation = explain(model, image)
    with torch.no_grad():
        embedded = model.embed(image[None])
    torch.testing.assert_close(explanation.embedding, embedded.embedding[0])
    torch.testing.assert_close(explanation.weights.flatten(), embedded.weights[0])
    torch.testing.assert_close(explanation.attributes, embedded.attributes[0])
    torch.testing.assert_close(explanation.plan.sum(0), explanation.weights)


@pytest.mark.parametrize("options", [{}, {"groups": 2, "keys": 3}])
def test_places_and_class_token_share_the_embedding(options: dict[str, int]) -> None:
    model, image = model_with("gsp+cls", prototypes=6, **options), some_image(3)
    explanation = explain(model, image)
    with torch.no_grad():
        features, token, _ = model.features(image[None])
        # Another way to the same: the head without its class token.
        places = model.head.scale * model.head.layer(features)[0]
        both = places + model.head.project(token)[0]
    assert explanation.patch_share == pytest.approx(float(places @ both / both.square().sum()), rel=1e-4)
    assert f"weights ({explanation.patch_share:.0%} of the embedding)" in titles(explanation)[1]
    with torch.no_grad():
        model.head.scale.fill_(1e-3)
    little = explain(model, image)
    assert abs(little.patch_share) < 0.02
    assert re.search(r"class token makes (9[89]|10[0-2])% of the embedding", little.caveat)
    assert little.figures()["patch_share"] == little.patch_share
    with torch.no_grad():
        model.head.scale.fill_(1e3)
    assert explain(model, image).patch_share == pytest.approx(1, abs=0.02)
    alone = explain(model_with("gsp", prototypes=4), image)
    assert alone.patch_share == 1
    assert "of the embedding" not in titles(alone)[1]


def test_side_by_side_the_weight_of_the_patches_is_their_share() -> None:
    model = model_with("gsp+cls", prototypes=4, join="concat", patch_scale=0.5)
    explanation = explain(model, some_image())
    assert explanation.patch_share == pytest.approx(0.25 / 1.25)
    assert explanation.plan is not None


def titles(explanation: Explanation) -> list[str]:
    return [title for title, _ in panels(explanation, Scales.of([explanation]))]


def test_the_background_role_pools_what_no_prototype_takes() -> None:
    model = model_with("gsp", prototypes=4, role="background", epsilon=20.0)
    explanation = explain(model, some_image())
    taken = explanation.plan.sum(0).flatten()
    weights = explanation.weights.flatten()
    order = torch.corrcoef(torch.stack((taken, weights)))[0, 1]
    assert float(order) < -0.999
    torch.testing.assert_close(explanation.attributes.sum(), torch.tensor(1.0))


def test_a_picture_of_any_size_is_cut_as_the_model_expects() -> None:
    model = model_with("gsp", prototypes=4)
    picture = Image.fromarray(some_image(5, 96)[:, :80].permute(1, 2, 0).numpy())
    explanation = explain(model, picture)
    assert torch.equal(explanation.image, model.pixels.transform()(picture))
    torch.testing.assert_close(explanation.embedding, model(explanation.image[None])[0].detach())


def test_a_model_that_is_fed_with_normalised_pixels_is_explained_all_the_same() -> None:
    inside = model_with("gsp", prototypes=4)
    outside = Embedder("small_cnn", pooling="gsp", dim=8, pooling_options={"prototypes": 4}, normalise=False).eval()
    outside.load_state_dict(inside.state_dict(), strict=False)
    torch.testing.assert_close(explain(outside, some_image()).weights, explain(inside, some_image()).weights)


def test_one_prototype_in_every_group_has_weights_and_no_attributes() -> None:
    explanation = explain(model_with("gsp", prototypes=4, groups=4, mu=0.1, epsilon=20.0), some_image())
    assert explanation.entropy < 0.99
    assert explanation.owners is explanation.attributes is explanation.plan is None
    assert explanation.missing == "one prototype in each of 4 groups: their shares are the same in every image"


@pytest.mark.parametrize(("pooling", "options"), [("gap", {}), ("gsp", {"prototypes": 4, "warm_start": 100})])
def test_without_prototypes_or_before_they_are_set_weights_are_even(pooling: str, options: dict[str, int]) -> None:
    explanation = explain(model_with(pooling, **options), some_image())
    assert explanation.entropy == pytest.approx(1.0)
    assert explanation.owners is explanation.attributes is explanation.plan is None
    assert explanation.prominent == []
    # What to change is another thing here than mu and epsilon.
    assert "epsilon" not in explanation.caveat
    with pytest.raises(ValueError, match="has no prototypes"):
        owners_over(explanation)


def test_a_layer_without_weights_is_refused_with_the_names_of_all_that_have_them() -> None:
    def refusal(name: str) -> str:
        try:
            explain(model_with(name), some_image())
        except ValueError as error:
            return str(error)
        return ""

    refusals = {name: refusal(name) for name in pooling.list()}
    named = refusals["gmp"].partition("layers with weights are ")[2]
    assert {*re.split(", | and ", named)} == {name for name, words in refusals.items() if not words}


@pytest.mark.parametrize("wrong", [some_image().float(), some_image()[None], torch.zeros(1, 8, 8, dtype=torch.uint8)])
def test_what_is_no_image_is_refused(wrong: torch.Tensor) -> None:
    with pytest.raises(ValueError, match=r"uint8 tensor \[3, H, W\], got"):
        explain(model_with("gsp", prototypes=4), wrong)


def test_entropy_of_a_single_place_is_zero_and_of_a_single_token_one() -> None:
    image = some_image(side=8)
    one = Explanation(image, torch.ones(1), torch.tensor([[0.0, 1.0], [0.0, 0.0]]))
    assert one.entropy == 0.0
    assert Explanation(image, torch.ones(1), torch.ones(1, 1)).entropy == 1.0


def histogram(attributes: list[float]) -> Explanation:
    vector = torch.tensor(attributes)
    return Explanation(some_image(side=8), torch.tensor([1.0, 0.0]), torch.ones(1, 1), attributes=vector)


@settings(max_examples=50)
@given(st.lists(st.floats(0.01, 1.0), min_size=1, max_size=9), st.lists(st.floats(0.01, 1.0), min_size=9, max_size=9))
def test_shares_are_the_smaller_of_both(left: list[float], right: list[float]) -> None:
    right = right[: len(left)]
    first = [value / sum(left) for value in left]
    second = [value / sum(right) for value in right]
    shared = shared_prototypes(histogram(first), histogram(second), top=len(left))
    expected = {number: min(pair) for number, pair in enumerate(zip(first, second, strict=True))}
    for number, share in zip(shared.prototypes.tolist(), shared.share.tolist(), strict=True):
        assert share == pytest.approx(expected[number], rel=1e-5)
    assert shared.share.tolist() == sorted(shared.share.tolist(), reverse=True)
    assert shared.overlap == pytest.approx(sum(expected.values()), rel=1e-5)
    other_way = shared_prototypes(histogram(second), histogram(first), top=len(left))
    assert other_way.overlap == pytest.approx(shared.overlap)


def test_different_prototypes_share_nothing_and_equal_images_everything() -> None:
    assert shared_prototypes(histogram([1.0, 0.0]), histogram([0.0, 1.0])).overlap == 0.0
    same = shared_prototypes(histogram([0.25, 0.75]), histogram([0.25, 0.75]))
    assert (same.overlap, same.similarity, same.prototypes.tolist()) == (1.0, 1.0, [1, 0])


def test_comparisons_that_mean_nothing_are_refused() -> None:
    with pytest.raises(ValueError, match="no prototypes to compare"):
        shared_prototypes(histogram([1.0]), Explanation(some_image(), torch.ones(2), torch.ones(1, 1)))
    with pytest.raises(ValueError, match="2 and 3 prototypes; explain both with one model"):
        shared_prototypes(histogram([0.5, 0.5]), histogram([0.5, 0.25, 0.25]))
    with pytest.raises(ValueError, match="at least 1, got 0"):
        shared_prototypes(histogram([1.0]), histogram([1.0]), top=0)


def with_plan(plan: torch.Tensor, *size: int) -> Explanation:
    image = torch.full((3, *size), 100, dtype=torch.uint8)
    return Explanation(image, torch.ones(1), plan.sum(0), plan.argmax(0), plan.sum((1, 2)), plan)


def test_on_the_grid_every_pixel_has_the_colour_of_the_token_that_covers_it() -> None:
    plan = torch.zeros(3, 2, 3)
    plan[2, 0, 0], plan[1, 1, 2] = 0.6, 0.4
    explanation = with_plan(plan, 7, 10)
    drawn = owners_over(explanation, grid=True)
    strongest = 0.3 * 100 + 0.7 * np.array(prototype_colour(2))
    np.testing.assert_allclose(drawn[0, 0], strongest, atol=1)
    weaker = 0.7 * 0.4 / 0.6
    np.testing.assert_allclose(drawn[6, 9], (1 - weaker) * 100 + weaker * np.array(prototype_colour(1)), atol=1)
    assert drawn[0, 9].tolist() == [100, 100, 100]
    # Rows 0-3 belong to the first of two token rows, columns 0-3 to the first of three: pixel * tokens // pixels.
    for row in range(7):
        for column in range(10):
            same = (row * 2 // 7, column * 3 // 10) == (0, 0)
            assert (drawn[row, column].tolist() == drawn[0, 0].tolist()) == same
    alone = owners_over(explanation, only=[1], grid=True)
    assert alone[0, 0].tolist() == [100, 100, 100]
    assert alone[6, 9].tolist() == drawn[6, 9].tolist()


@pytest.mark.parametrize("over", [owners_over, lambda each, **how: weights_over(each.image, each.weights, **how)])
def test_smooth_maps_pass_through_the_tokens_and_have_no_edges(over) -> None:
    generator = torch.Generator().manual_seed(0)
    plan = torch.rand(2, 3, 4, generator=generator) ** 3 * torch.tensor([1.0, 0.01])[:, None, None]
    explanation = with_plan(plan / plan.sum(), 27, 36)
    smooth, cells = over(explanation).astype(int), over(explanation, grid=True).astype(int)
    assert np.array_equal(smooth[4::9, 4::9], cells[4::9, 4::9])
    assert np.abs(np.diff(smooth, axis=1)).max() < 0.5 * np.abs(np.diff(cells, axis=1)).max()


def test_prototypes_with_less_than_their_even_share_are_not_coloured() -> None:
    plan = torch.zeros(3, 1, 3)
    plan[0, 0, 0], plan[1, 0, 1], plan[2, 0, 2] = 0.40, 0.35, 0.25
    explanation = with_plan(plan, 3, 9)
    assert explanation.prominent == [0, 1]
    coloured = np.ptp(owners_over(explanation, grid=True)[0, 1::3], axis=-1) > 0
    assert coloured.tolist() == [True, True, False]


@settings(max_examples=20)
@given(st.integers(1, 300))
def test_even_attributes_are_all_coloured(prototypes: int) -> None:
    assert len(histogram([1 / prototypes] * prototypes).prominent) == prototypes


def test_one_scale_gives_the_same_weight_the_same_colour_in_every_image() -> None:
    image = torch.full((3, 2, 4), 128, dtype=torch.uint8)
    maps = [torch.tensor([[0.1, 0.2, 0.3, 0.4]]), torch.tensor([[0.0, 0.1, 0.2, 0.7]])]
    scale = common_scale(maps)
    assert scale == pytest.approx(4 * 0.7)
    first, second = (weights_over(image, each, scale, grid=True)[0].tolist() for each in maps)
    assert first[:2] == second[1:3]
    # Heat rises with the weight.
    assert len({*map(sum, second)}) == 4
    assert [*map(sum, second)] == sorted(map(sum, second))
    assert weights_over(image, maps[1], scale, grid=True).tolist() == weights_over(image, maps[1], grid=True).tolist()


@pytest.mark.parametrize(("epsilon", "flat"), [(0.01, True), (200.0, False)])
def test_nearly_uniform_weights_are_faded_and_told(epsilon: float, flat: bool) -> None:
    explanation = explain(model_with("gsp", prototypes=4, epsilon=epsilon), some_image())
    assert (explanation.entropy >= FLAT_ENTROPY) == flat
    assert ("smaller mu or a larger epsilon" in (explanation.caveat or "")) == flat
    grey = explanation.image.float().mean(0).numpy()[..., None]
    for drawn in (weights_over(explanation.image, explanation.weights), owners_over(explanation)):
        assert (np.abs(drawn - grey).max() < 60) == flat


def test_every_prototype_has_a_colour_of_its_own_and_those_of_few_are_far_apart() -> None:
    assert len({css_colour(number) for number in range(128)}) == 128
    colours = np.array([prototype_colour(number) for number in range(32)], dtype=float)
    between = np.linalg.norm(colours[:, None] - colours[None], axis=-1) + 1000 * np.eye(32)
    assert between.min() > 25
