"""Text as bytes: a token is a byte, and the last tenth is for evaluation."""

from __future__ import annotations

import numpy as np

from mpt.data._open import RawTokens

EVAL_FRAC = 0.1
VOCABULARY = 256


def parts_of(text: bytes, content: object) -> RawTokens:
    """Both parts of the text; `content` identifies it."""
    tokens = np.frombuffer(text, dtype=np.uint8)
    cut = len(tokens) - round(EVAL_FRAC * len(tokens))
    return RawTokens(tokens[:cut], tokens[cut:], VOCABULARY, content=(content, EVAL_FRAC))
