"""A folder of class sub-folders, the plainest way to keep labelled pictures."""

from __future__ import annotations

import warnings
from pathlib import Path

from gspool.data.csv_list import Listing, Picture
from gspool.data.decode import IMAGE_SUFFIXES
from gspool.data.image_set import Split

# Folder names that mean a split rather than a class.
SPLIT_FOLDERS: dict[str, Split] = {"train": "train", "val": "validation", "validation": "validation", "test": "test"}


def read_class_folders(root: Path) -> Listing:
    """List ``root/CLASS/**/picture.jpg``; a root with nothing but split folders is ``root/SPLIT/CLASS/...``.

    Pictures are told by the ends of their names (.jpg .jpeg .png .webp, in any case); other files are left out with a
    warning that counts and names them. Hidden files and folders are none of our business.

    Raises:
        FileNotFoundError: if there is no such folder.
        ValueError: if it holds no sub-folders.

    Warns:
        UserWarning: if files are left out.
    """
    if not root.exists():
        raise FileNotFoundError(f"{root} does not exist; give a folder of class sub-folders, or a CSV file")
    folders = _folders(root)
    if not folders:
        raise ValueError(
            f"{root} has no sub-folders; one a class is expected, with its pictures inside "
            f"(found {sum(1 for _ in root.iterdir())} files)"
        )
    pictures: list[Picture] = []
    class_names: set[str] = set()
    others: list[Path] = [entry for entry in root.iterdir() if entry.is_file() and not entry.name.startswith(".")]
    # Folders inside: a class that is called "test" holds pictures.
    has_splits = all(each.name in SPLIT_FOLDERS for each in folders) and any(_folders(each) for each in folders)
    for split_folder in folders if has_splits else [root]:
        split = SPLIT_FOLDERS[split_folder.name] if has_splits else None
        for class_folder in _folders(split_folder):
            class_names.add(class_folder.name)
            for file in sorted(class_folder.rglob("*")):
                if not file.is_file() or file.name.startswith("."):
                    continue
                if file.suffix.lower() in IMAGE_SUFFIXES:
                    pictures.append(Picture(file, class_folder.name, split))
                else:
                    others.append(file)
    if others:
        names = ", ".join(str(file.relative_to(root)) for file in others[:3]) + (", ..." if len(others) > 3 else "")
        warnings.warn(
            f"{root}: {len(others)} files are no pictures by their name or place and are left out ({names}); "
            f"pictures end in {', '.join(IMAGE_SUFFIXES)} and lie in the folder of their class",
            stacklevel=2,
        )
    return Listing(pictures, sorted(class_names))


def _folders(root: Path) -> list[Path]:
    return sorted(entry for entry in root.iterdir() if entry.is_dir() and not entry.name.startswith("."))
