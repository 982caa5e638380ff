"""Tokens of a frozen backbone, computed once: extraction, the store on disk, and sets of tokens to train heads on."""

from gspool.features.extract import FeatureConfig, extract_tokens
from gspool.features.store import TokenLayout, TokenStore
from gspool.features.tokens import TokenSet

__all__ = ["FeatureConfig", "TokenLayout", "TokenSet", "TokenStore", "extract_tokens"]
