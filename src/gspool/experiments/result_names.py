"""What results are called: data sets and networks of their own never share a file."""

from __future__ import annotations


def name_beside(study: str, chosen: tuple[str, ...], usual: tuple[str, ...]) -> str:
    """Name the result of a study after what was chosen, such as data and backbone, each where it is not the usual one.

    Example:
        >>> name_beside("mu", ("cub", "keras/resnet50"), ("cub", "keras/resnet50"))
        'mu'
        >>> name_beside("mu", ("cars196", "timm/resnet50"), ("cub", "keras/resnet50"))
        'mu_cars196_timm-resnet50'
    """
    others = [word.replace("/", "-") for word, expected in zip(chosen, usual, strict=True) if word != expected]
    return "_".join([study, *others])
