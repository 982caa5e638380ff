"""Data sets, splits, transforms, class-balanced and shuffled batches and a cache of decoded images.

Every data set is an `ImageSet`: ``set[i] == (image, label)`` with the image uint8 [3, H, W] before any transform,
``set.labels`` (int64, 0 to K-1), ``set.class_names``, and ``set.roles`` (query or gallery) where the data has them.
`subset`, `of_classes`, `with_role` and `class_fold` select parts of it, `with_transform` augments it.

Example:
    >>> from gspool import data
    >>> train = data.create("glyphs", split="train", images_per_class=4)
    >>> train
    glyphs/train: 800 images of 200 classes
    >>> batches = data.ClassBalancedBatches(train.labels, classes_per_batch=8, images_per_class=4)
    >>> len(next(iter(batches)))
    32
"""

from gspool.data.batches import ClassBalancedBatches, Shard, ShuffledBatches
from gspool.data.cache import cached
from gspool.data.check import ImageCheck, check_images
from gspool.data.decode import BrokenImageError, decode
from gspool.data.glyphs import Distortion
from gspool.data.image_set import ImageSet
from gspool.data.image_source import ArrayImages, FileImages, ImageSource
from gspool.data.problems import DataCheck, DataProblemsError, Problem, find_problems
from gspool.data.registry import create, data_root, list
from gspool.data.splits import Fold, ImageSplits, class_fold, image_fold, split_images
from gspool.data.transforms import ShiftAndFlip, evaluation_transform, train_transform

__all__ = [
    "ArrayImages",
    "BrokenImageError",
    "ClassBalancedBatches",
    "DataCheck",
    "DataProblemsError",
    "Distortion",
    "FileImages",
    "Fold",
    "ImageCheck",
    "ImageSet",
    "ImageSource",
    "ImageSplits",
    "Problem",
    "Shard",
    "ShiftAndFlip",
    "ShuffledBatches",
    "cached",
    "check_images",
    "class_fold",
    "create",
    "data_root",
    "decode",
    "evaluation_transform",
    "find_problems",
    "image_fold",
    "list",
    "split_images",
    "train_transform",
]
