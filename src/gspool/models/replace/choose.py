"""Choose the one global pooling of a network from what was observed, or explain what prevents it."""

from __future__ import annotations

from difflib import get_close_matches
from typing import TYPE_CHECKING

import torch

from gspool.models.replace.observe import Reduction, has_positions, viewed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import nn

    from gspool.models.replace.observe import Observation


def choose(seen: Observation) -> Reduction:
    """Find the global pooling: an average or maximum after which no module sees positions.

    Raises:
        ValueError: if there is none or more than one, with what was found and what can be done.
    """
    known = [r for r in seen.reductions if r.kind not in {"class token", "unknown"}]
    modules = _innermost([r for r in known if r.function is None and r.owner.path])
    functions = [r for r in known if r.function is not None and not any(_within(r, module) for module in modules)]
    candidates = modules + _one_per_map(functions)
    _check_image_size(seen, max((candidate.ended for candidate in candidates), default=0))
    if len(candidates) == 1:
        return candidates[0]
    if candidates:
        raise ValueError(
            f"this network pools in {len(candidates)} places at its end, and one layer cannot replace them all: "
            f"{'; '.join(map(str, candidates))}. Name a module to replace with where=..., once for each; a bare "
            "function has to become a module first"
        )
    raise ValueError(f"this network has no global pooling that could be replaced: {_obstacle(seen)}")


def choose_class_token(seen: Observation) -> Reduction:
    """Find where the class token is read, to pool the patch tokens instead of it."""
    picks = [r for r in seen.reductions if r.kind == "class token"]
    if len(picks) == 1:
        # timm counts its class, distillation and register tokens; others have the class token alone.
        picks[0].skipped = getattr(picks[0].owner.module, "num_prefix_tokens", 1)
        return picks[0]
    found = "; ".join(map(str, picks)) or "no class token is read at the end of this network"
    raise ValueError(f"tokens='patches' pools the patch tokens instead of reading one class token, but found: {found}")


def choose_named(model: nn.Module, seen: Observation, where: str) -> Reduction:
    """Take the module that the user names, whatever it computes."""
    paths = dict(model.named_modules())
    if where not in paths or not where:
        similar = get_close_matches(where, paths, n=3)
        hint = f"; did you mean {' or '.join(map(repr, similar))}?" if similar else ""
        raise ValueError(f"where={where!r} is no module of this {type(model).__name__}{hint}")
    calls = seen.calls_of(paths[where])
    named = f"where={where!r} ({type(paths[where]).__name__})"
    if len(calls) != 1:
        raise ValueError(f"{named} ran {len(calls)} times in one forward pass, a global pooling runs once")
    found = [r for r in seen.reductions if r.function is None and r.owner is calls[0]]
    if not found:
        raise ValueError(
            f"{named} took {calls[0].takes} to {calls[0].gives}: that is no pooling to one vector per image"
        )
    return found[0]


def _innermost(modules: Sequence[Reduction]) -> list[Reduction]:
    """Keep the smallest module that pools, but timm's selector as a whole: printed, it shows its own name only."""
    selectors = [r for r in modules if hasattr(r.owner.module, "feat_mult")]
    smallest = [r for r in modules if not any(_within(other, r) and other is not r for other in modules)]
    return selectors + [r for r in smallest if not any(_within(r, selector) for selector in selectors)]


def _within(inner: Reduction, outer: Reduction) -> bool:
    return outer.owner.started <= inner.owner.started and inner.ended <= outer.ended


def _one_per_map(functions: Sequence[Reduction]) -> list[Reduction]:
    """Join functions that pool the same map, as the mean of average and maximum does."""
    joined: dict[int, Reduction] = {}
    for reduction in functions:
        first = joined.setdefault(id(viewed(reduction.taken)), reduction)
        if first.kind != reduction.kind:
            first.kind = "average and maximum"
    return list(joined.values())


def _check_image_size(seen: Observation, pooled: int) -> None:
    """Refuse images so small that the positions were gone before the pooling: a stride of two looks global then."""
    for call in seen.calls:
        single = call.takes is not None and len(call.takes) > 3 and not has_positions(call.takes)
        pools = "pool" in type(call.module).__name__.lower()
        if single and call.started > pooled and (pools or _is_wide(call.module)):
            raise ValueError(
                f"{call.path!r} ({type(call.module).__name__}) saw a map of a single position, {call.takes}, so the "
                "global pooling of this network cannot be found. Pass a batch of larger images as example=..."
            )


def _is_wide(module: nn.Module) -> bool:
    sizes = getattr(module, "kernel_size", ())
    return isinstance(sizes, tuple) and any(size > 1 for size in sizes)


def _obstacle(seen: Observation) -> str:
    """Describe what the network does instead of pooling, and what can be done."""
    picks = [r for r in seen.reductions if r.kind == "class token"]
    unknown = _innermost([r for r in seen.reductions if r.kind == "unknown" and r.owner.path])
    if unknown:
        return (
            f"{'; '.join(map(str, unknown))}, which is neither an average nor a maximum. "
            f"To replace it with its weights pass where={unknown[0].owner.path!r}"
        )
    if picks:
        return (
            f"its classifier reads a class token, {picks[0]}. Pooling the patches is another model: ask for it with "
            "tokens='patches', or create the network with average pooling (timm: global_pool='avg')"
        )
    last = max((c for c in seen.calls if has_positions(c.gives)), key=lambda c: c.ended, default=None)
    if last is None or last.gives is None:
        return "none of its modules returns a map [B, C, H, W] or tokens [B, N, D]"
    vectors = (call for call in seen.calls if call.started > last.ended and not has_positions(call.takes))
    reader = min(vectors, key=lambda call: call.started, default=None)
    found = f"the last map is that of {last.path!r} ({type(last.module).__name__}), {last.gives}"
    if reader is None:
        return f"{found}, and that is the output of the network"
    found = f"{found}, and {reader.path!r} ({type(reader.module).__name__}) reads {reader.takes}"
    if reader.takes is not None and len(reader.takes) == 2 and reader.takes[1] == torch.Size(last.gives[1:]).numel():
        return f"{found}: it has weights for every position. Give the network a classifier that reads one vector"
    return f"{found}. Name the module to replace with where=..., or give the network a pooling module"
