"""Random tokens, with nothing in them to learn: for measuring speed."""

from __future__ import annotations

from mpt.config.options import merged
from mpt.config.schema import DataConfig
from mpt.data._context import DataContext, DataSource
from mpt.data._idle import image_keys
from mpt.errors import Problem
from mpt.types import DataKind, DataSpec, InputSpec

KIND: DataKind = "tokens"
READS = ()
# GPT-2's vocabulary.
DEFAULTS = {"n": 1024, "vocab": 50257, "context": None}
# The content is the data set's own: runs of all seeds share it.
CONTENT_SEED = 0
EVAL_FRAC = 0.25


def check(cfg: DataConfig) -> list[Problem]:
    """Counts must be positive."""
    from mpt.data._spec import positive_options

    return [*positive_options(cfg, DEFAULTS), *image_keys(cfg)]


def open_data(cfg: DataConfig, wanted: InputSpec, context: DataContext) -> DataSource:
    """Uniform tokens in windows of the model's context (else data.context, else 64); the same on every device."""
    import numpy as np
    import torch

    from mpt.data._open import DEFAULT_CONTEXT, batch_sizes, eval_count
    from mpt.data._order import CONTENT, generator
    from mpt.data._resident import ResidentSource, Windows
    from mpt.data._spec import fingerprint, limited, require_kind, require_samples

    require_kind(cfg, wanted, KIND)
    options = merged("data", cfg.options, DEFAULTS)
    n, vocabulary = limited(cfg, options["n"]), options["vocab"]
    counts = n, eval_count(options["n"], EVAL_FRAC)
    require_samples(cfg, *counts, context.world)
    length = wanted.context or options["context"] or DEFAULT_CONTEXT
    random = np.random.Generator(generator(CONTENT, CONTENT_SEED))

    def windows(count: int) -> Windows:
        made = random.integers(vocabulary, size=(count, length + 1), dtype=np.int32)
        return Windows(torch.from_numpy(made).to(context.device))

    spec = DataSpec(
        name=cfg.name, kind="tokens", shape=(length,), num_classes=vocabulary, n_train=n, n_eval=counts[1], classes=(),
        fingerprint=fingerprint(cfg.name, counts, length, vocabulary, CONTENT_SEED), synthetic=True,
    )  # fmt: skip
    return ResidentSource(spec, windows(n), windows(counts[1]), batch_sizes(cfg), context)
