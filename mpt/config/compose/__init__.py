"""Composition: command-line words and YAML become one RunConfig, or one error with all that is wrong.

The only part of mpt that knows Hydra and OmegaConf.
"""

from __future__ import annotations

from mpt.config.compose._run import Composition, compose, composition
from mpt.config.compose.words import refuse_hydra_words

__all__ = ["Composition", "compose", "composition", "refuse_hydra_words"]
