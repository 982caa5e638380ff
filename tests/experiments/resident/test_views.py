"""What a step sees is a function of (seed, step): the boxes drawn from them, of the images of the set at hand."""

from __future__ import annotations

import pickle

import pytest
import torch

from gspool.experiments.resident import ResidentSet, centre_boxes, draw_crops, resample
from gspool.experiments.resident.views import BatchPlan, evaluation_view, training_view
from gspool.training import DataConfig
from gspool.training.stream import mixed_seed

CROP = DataConfig(transform="crop", classes_per_batch=3, images_per_class=2)
SIDE = 12


def ragged() -> ResidentSet:
    """Give 24 images of 6 classes, each of its own size in a frame of 40 x 50."""
    generator = torch.Generator().manual_seed(5)
    pixels = torch.randint(256, (24, 3, 40, 50), dtype=torch.uint8, generator=generator)
    sizes = torch.stack([torch.randint(20, side + 1, (24,), generator=generator) for side in (40, 50)], dim=1)
    return ResidentSet(pixels, sizes, torch.randperm(24, generator=generator), torch.arange(24) % 6)


def plainly(images: ResidentSet, places: torch.Tensor, seed: int, step: int, flip: float = 0.5) -> torch.Tensor:
    """Draw and cut as the numbers of a seed and a step have it, one operation after the other."""
    rows = images.rows[places]
    generator = torch.Generator().manual_seed(mixed_seed(seed, step, 2))
    boxes = draw_crops(images.sizes[rows], generator)
    return resample(images.pixels[rows], boxes, SIDE, torch.rand(len(rows), generator=generator) < flip)


@pytest.mark.parametrize("classes", [None, [1, 4], [0, 2, 3, 5]])
@pytest.mark.parametrize(("seed", "step"), [(0, 0), (0, 7), (3, 7)])
def test_a_step_sees_the_crops_of_its_seed(classes: list[int] | None, seed: int, step: int) -> None:
    images = ragged() if classes is None else ragged().of_classes(classes)
    places = torch.tensor([3, 0, 5, 3])
    assert torch.equal(training_view(images, places, CROP, SIDE, seed, step), plainly(images, places, seed, step))


def test_a_cut_of_a_set_that_was_looked_at_sees_its_own_images() -> None:
    whole, places = ragged(), torch.arange(4)
    training_view(whole, places, CROP, SIDE, 0, 0)
    part = whole.of_classes([5, 2])
    assert torch.equal(training_view(part, places, CROP, SIDE, 0, 0), plainly(part, places, 0, 0))


def test_images_can_be_flipped_always_and_never() -> None:
    images, places = ragged(), torch.arange(6)
    never, always = (DataConfig(transform="crop", transform_options={"flip": share}) for share in (0.0, 1.0))
    straight, mirrored = (training_view(images, places, each, SIDE, 0, 0) for each in (never, always))
    assert torch.equal(straight, plainly(images, places, 0, 0, flip=0.0))
    assert torch.equal(mirrored, straight.flip(-1))


def test_evaluation_sees_the_middle() -> None:
    images, places = ragged().of_classes([1, 2]), torch.tensor([6, 1])
    rows = images.rows[places]
    wanted = resample(images.pixels[rows], centre_boxes(images.sizes[rows], SIDE), SIDE)
    assert torch.equal(evaluation_view(images, places, CROP, SIDE), wanted)


def test_images_seen_whole_are_those_of_the_set() -> None:
    images, places = ragged().of_classes([3]), torch.tensor([2, 0])
    whole = DataConfig(transform="none")
    assert torch.equal(training_view(images, places, whole, SIDE, 0, 0), images.pixels[images.rows[places]])


def test_a_set_that_was_looked_at_travels_to_another_process() -> None:
    images, places = ragged(), torch.arange(5)
    seen = training_view(images, places, CROP, SIDE, 0, 0)
    assert torch.equal(training_view(pickle.loads(pickle.dumps(images)), places, CROP, SIDE, 0, 0), seen)


def test_a_plan_gives_the_same_rows_in_both_memories_in_any_order() -> None:
    plan, other = (BatchPlan(ragged(), CROP, seed=1) for _ in range(2))
    for step in (0, 1, len(plan) + 1, 0):
        assert torch.equal(plan.rows_of(step), other.rows_on_cpu_of(step))


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
def test_a_gpu_sees_the_same_crops_and_nothing_waits_for_it() -> None:
    images = ragged().of_classes([0, 2, 5])
    there = images.to("cuda")
    plan = BatchPlan(there, CROP, seed=1)
    batches = [plan.rows_on_cpu_of(step) for step in range(3)]
    middle_of = plan.rows_of(0)
    # The first view fetches what the CPU has to know, and waits for it.
    training_view(there, batches[0], CROP, SIDE, 0, 0)
    before = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("error")
    try:
        views = [training_view(there, places, CROP, SIDE, 0, step) for step, places in enumerate(batches)]
        middle = evaluation_view(there, middle_of, CROP, SIDE)
    finally:
        torch.cuda.set_sync_debug_mode(before)
    for step, (places, seen) in enumerate(zip(batches, views, strict=True)):
        plain = training_view(images, places, CROP, SIDE, 0, step)
        assert int((seen.cpu().int() - plain.int()).abs().max()) <= 1
    assert torch.equal(middle.cpu(), evaluation_view(images, batches[0], CROP, SIDE))
