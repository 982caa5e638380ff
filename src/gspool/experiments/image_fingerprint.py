"""A short name for a collection of pictures, by which one folder is told from another."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from gspool.data.image_source import FileImages

if TYPE_CHECKING:
    from gspool.data import ImageSet


def fingerprint(root: Path, sets: Iterable[ImageSet]) -> str:
    """Hash the paths below ``root``, the classes and the sizes of the files of these sets, not where ``root`` lies.

    Files are looked up and not read: ImageNet is a matter of seconds. A picture that another of the same name and the
    same size to the byte took the place of is not noticed.

    Raises:
        ValueError: if the images of a set are not files.

    Example:
        >>> import tempfile
        >>> from gspool.data import ImageSet
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     place = Path(folder) / "ant.png"
        ...     ants = ImageSet(FileImages([place]), [0], ["ant"], name="ants")
        ...     few = place.write_bytes(b"few") and fingerprint(Path(folder), [ants])
        ...     more = place.write_bytes(b"more") and fingerprint(Path(folder), [ants])
        >>> len(few), few == more
        (16, False)
    """
    found = hashlib.sha256()
    for each in sets:
        if not isinstance(each.images, FileImages):
            raise ValueError(f"{each.name}/{each.split} has no files that could be told from others")
        for path, label in zip(each.images.paths, each.labels.tolist(), strict=True):
            shown = path.relative_to(root) if path.is_relative_to(root) else path
            line = (each.split, shown.as_posix(), each.class_names[label], str(path.stat().st_size))
            found.update("\0".join(line).encode() + b"\n")
    return found.hexdigest()[:16]
