"""GSP for sentences: a pooling module for sentence-transformers, over tokens with an attention mask."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import torch
from sentence_transformers.sentence_transformer.modules import Module

from gspool.functional.checks import computing_dtype
from gspool.models.weights import CHECKSUM, check_fit, copy_weights, read_weights, write_weights
from gspool.pooling.gsp import GSP

if TYPE_CHECKING:
    from jaxtyping import Bool, Float
    from sentence_transformers import SentenceTransformer
    from torch import Tensor

WEIGHTS = "model.safetensors"


class GSPPooling(Module):
    """Pool the tokens of a sentence that are near learned prototypes: a replacement of sentence-transformers' Pooling.

    `for_transformer` creates one that fits a transformer and leaves out its special tokens, [CLS] and [SEP].
    Besides ``sentence_embedding`` it adds ``token_weights`` [B, N] (sum 1, 0 on padding) and ``attributes`` [B, M] to
    the features. ``mu = 1`` is mean pooling exactly, so a model that was trained with it can start from there.

    Args:
        embedding_dimension: length of a token's vector, ``transformer.get_embedding_dimension()``.
        prototypes: number of prototypes.
        mu: fraction of the tokens to pool, in (0, 1].
        epsilon: sharpness; it multiplies the distance.
        learn_mu: learn mu.
        learn_epsilon: learn epsilon.
        warm_start: pool by averaging until this many sentences were seen in training, then set the prototypes by greedy
            k-center on what came out. 0 starts from random prototypes, or from those of `init_prototypes`.
        include_prompt: whether the tokens of a prompt take part.
        special_tokens: ids of tokens that take no part; a sentence that has no others keeps them.

    Raises:
        ValueError: for values outside their range, and for features that cannot be pooled.

    Example:
        >>> pooling = GSPPooling(embedding_dimension=8, prototypes=4)
        >>> tokens, mask = torch.randn(2, 5, 8), torch.tensor([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]])
        >>> features = pooling({"token_embeddings": tokens, "attention_mask": mask})
        >>> features["sentence_embedding"].shape, features["token_weights"][0, 3:].tolist()
        (torch.Size([2, 8]), [0.0, 0.0])
    """

    config_keys = [  # noqa: RUF012
        "embedding_dimension",
        "prototypes",
        "mu",
        "epsilon",
        "learn_mu",
        "learn_epsilon",
        "warm_start",
        "include_prompt",
        "special_tokens",
    ]

    def __init__(
        self,
        embedding_dimension: int,
        prototypes: int = 64,
        mu: float = 0.5,
        epsilon: float = 5.0,
        learn_mu: bool = False,
        learn_epsilon: bool = False,
        warm_start: int = 0,
        include_prompt: bool = True,
        special_tokens: Sequence[int] = (),
    ) -> None:
        super().__init__()
        if not isinstance(special_tokens, list | tuple) or not all(type(each) is int for each in special_tokens):
            raise ValueError(f"special_tokens are ids of tokens, such as [101, 102], got {special_tokens!r}")
        self.special_tokens = list(special_tokens)
        self.embedding_dimension, self.include_prompt = embedding_dimension, include_prompt
        self.prototypes, self.mu, self.epsilon = prototypes, mu, epsilon
        self.learn_mu, self.learn_epsilon, self.warm_start = learn_mu, learn_epsilon, warm_start
        self.gsp = GSP(embedding_dimension, prototypes, mu, epsilon, learn_mu, learn_epsilon, warm_start=warm_start)

    @classmethod
    def for_transformer(cls, transformer: Any, **options: Any) -> Self:
        """Create the module for a Transformer module: its dimension, and its special tokens left out.

        Unknown words and masks are kept, because they stand for words. ``special_tokens=()`` keeps all of them, as mean
        pooling does.
        """
        tokenizer = transformer.tokenizer
        found = [getattr(tokenizer, f"{name}_token_id", None) for name in ("cls", "sep", "bos", "eos")]
        ids = {each for each in found if each is not None}
        return cls(
            **{"embedding_dimension": transformer.get_embedding_dimension(), "special_tokens": sorted(ids), **options}
        )

    def forward(self, features: dict[str, Any], **_: Any) -> dict[str, Any]:
        """Pool ``token_embeddings`` under ``attention_mask`` into ``sentence_embedding``.

        Raises:
            ValueError: if there are no padded token embeddings, or a sentence has no token left.
        """
        if "cu_seq_lens_q" in features:
            raise ValueError(
                "these sentences are packed without padding, as for flash attention; load the transformer without it, "
                "or with model_kwargs={'attn_implementation': 'sdpa'}"
            )
        if "token_embeddings" not in features:
            raise ValueError(
                f"there are no token_embeddings to pool among {', '.join(features) or 'no features'}; put GSPPooling "
                "after a Transformer module"
            )
        tokens = features["token_embeddings"]
        pooled = self.gsp.pool(tokens, self._mask(features, tokens))
        features["sentence_embedding"] = pooled.pooled
        features["token_weights"], features["attributes"] = pooled.weights, pooled.attributes
        return features

    def _mask(self, features: dict[str, Any], tokens: Float[Tensor, "B N D"]) -> Bool[Tensor, "B N"]:
        mask: Tensor = features.get("attention_mask", tokens.new_ones(tokens.shape[:2])).bool()
        length = features.get("prompt_length")
        if not self.include_prompt and length is not None:
            # One number, or a tensor of equal ones; counted from the first real token, because padding may come first.
            prompt = int(length.flatten()[0]) if isinstance(length, torch.Tensor) else int(length)
            mask = mask & (mask.cumsum(1) > prompt)
        if self.special_tokens:
            if "input_ids" not in features:
                raise ValueError("special_tokens are found by input_ids, which these features lack; set it to []")
            ids = features["input_ids"]
            words = mask & ~torch.isin(ids, ids.new_tensor(self.special_tokens))
            mask = torch.where(words.any(1, keepdim=True), words, mask)
        return mask

    def get_embedding_dimension(self) -> int:
        """Return the length of a sentence's vector."""
        return self.embedding_dimension

    @torch.no_grad()
    def init_prototypes(self, model: SentenceTransformer, sentences: Sequence[str], batch_size: int = 32) -> None:
        """Set the prototypes by greedy k-center on the tokens of typical sentences, in place.

        ``model`` is the model that this module is part of, or another with the same tokens.

        Raises:
            ValueError: if the sentences have fewer tokens than there are prototypes.
        """
        found: Any = model.encode(list(sentences), batch_size=batch_size, output_value=None, show_progress_bar=False)
        tokens = []
        for features in found:
            batch = {name: features[name][None] for name in ("input_ids", "attention_mask") if name in features}
            vectors = features["token_embeddings"]
            tokens.append(vectors[self._mask(batch, vectors[None])[0]].to(computing_dtype(vectors)))
        self.gsp.init_prototypes(torch.cat(tokens))

    def save(self, output_path: str, *_: Any, **__: Any) -> None:
        """Write model.safetensors, with the state of a warm start, and config.json, with its checksum."""
        folder = Path(output_path)
        config = {**self.get_config_dict(), CHECKSUM: write_weights(self, folder / WEIGHTS)}
        (folder / self.config_file_name).write_text(json.dumps(config, indent=4), encoding="utf-8")

    @classmethod
    def load(
        cls,
        model_name_or_path: str,
        subfolder: str = "",
        token: bool | str | None = None,
        cache_folder: str | None = None,
        revision: str | None = None,
        local_files_only: bool = False,
        init_defaults: dict[str, Any] | None = None,
        **_: Any,
    ) -> Self:
        """Read what `save` wrote, from a folder or from the hub; the files need not be trusted.

        Raises:
            ValueError: if a file is missing or damaged, or config and weights do not fit together.
        """
        where = {"subfolder": subfolder, "local_files_only": local_files_only}
        where |= {"token": token, "cache_folder": cache_folder, "revision": revision}
        config = {**(init_defaults or {}), **cls.load_config(model_name_or_path, **where)}
        found = cls.load_file_path(model_name_or_path, filename=WEIGHTS, **where)
        if found is None:
            raise ValueError(
                f"{model_name_or_path}/{subfolder} holds no {WEIGHTS}; pickled weights are never loaded here"
            )
        path = Path(found)
        weights = read_weights(path, config.pop(CHECKSUM, None))
        unknown = sorted(set(config) - set(cls.config_keys))
        if unknown:
            raise ValueError(f"the config of {path.parent} has unknown keys {unknown}; it has {cls.config_keys}")
        try:
            # On the meta device first, where no size takes memory.
            with torch.device("meta"):
                check_fit(cls(**config), weights, source=str(path))
            module = cls(**config)
        except (TypeError, RuntimeError, OverflowError) as error:
            raise ValueError(f"the config of {path.parent} describes no GSPPooling: {error}") from error
        copy_weights(module, weights, source=str(path))
        return module
