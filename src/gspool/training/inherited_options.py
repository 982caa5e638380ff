"""Options that come with a preset or a file belong to its layer and its backbone; another one does not have them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gspool.models.create import check_backbone_options
from gspool.pooling.registry import check_options
from gspool.training.config import TrainConfig


def check_model_options(config: TrainConfig, arguments: Sequence[str] = ()) -> None:
    """Refuse options that the pooling layer or the backbone does not have, and say how to be rid of inherited ones.

    Args:
        config: what shall be trained.
        arguments: the words of the command line, to tell an option that was written there from one of a preset.

    Raises:
        ValueError: if an option is none of the layer's or of the backbone's.
    """
    model = config.model
    for check, name, options, section in (
        (check_options, model.pooling, model.pooling_options, "--model.pooling_options"),
        (check_backbone_options, model.backbone, model.backbone_options, "--model.backbone_options"),
    ):
        try:
            check(name, options)
        except ValueError as error:
            written = {word.partition("=")[0] for word in arguments}
            inherited = {} if section in written else options
            foreign = [
                option
                for option, value in inherited.items()
                if f"{section}.{option}" not in written and _is_refused(check, name, {option: value})
            ]
            hint = (
                f". The preset or file has {', '.join(foreign)}, which is not for {name}: write {section} '{{}}' first"
            )
            raise ValueError(f"{error}{hint if foreign else ''}") from error


def _is_refused(check: Callable[[str, Mapping[str, Any]], None], name: str, option: Mapping[str, Any]) -> bool:
    try:
        check(name, option)
    except ValueError:
        return True
    return False
