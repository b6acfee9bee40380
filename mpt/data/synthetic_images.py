"""Random images, with nothing in them to learn: for measuring speed."""

from __future__ import annotations

from mpt.config.options import merged
from mpt.config.schema import DataConfig
from mpt.data._context import DataContext, DataSource
from mpt.errors import Problem
from mpt.types import DataKind, DataSpec, InputSpec

KIND: DataKind = "images"
READS = ()
DEFAULTS = {"n": 256, "classes": 1000, "channels": 3}
DEFAULT_SIZE = 224
# The content is the data set's own: runs of all seeds share it.
CONTENT_SEED = 0
EVAL_FRAC = 0.25


def check(cfg: DataConfig) -> list[Problem]:
    """Counts must be positive."""
    from mpt.data._spec import positive_options

    return positive_options(cfg, DEFAULTS)


def open_data(cfg: DataConfig, wanted: InputSpec, context: DataContext) -> DataSource:
    """Standard normal images of the model's size (data.image_size, else 224) and uniform labels.

    They are made on the CPU, so that they are the same on every device.
    """
    import numpy as np
    import torch

    from mpt.data._images import plan_size
    from mpt.data._open import batch_sizes, eval_count, layout
    from mpt.data._order import CONTENT, generator
    from mpt.data._resident import ResidentSource, Table
    from mpt.data._spec import fingerprint, limited, require_kind, require_samples

    require_kind(cfg, wanted, KIND)
    options = merged("data", cfg.options, DEFAULTS)
    n = limited(cfg, options["n"])
    counts = n, eval_count(options["n"], EVAL_FRAC)
    require_samples(cfg, *counts, context.world)
    shape = (wanted.channels or options["channels"], *plan_size(cfg, wanted, DEFAULT_SIZE, DEFAULT_SIZE))
    stored, finish = layout(context, shape)
    random = np.random.Generator(generator(CONTENT, CONTENT_SEED))

    def table(count: int) -> Table:
        inputs = torch.empty((count, *stored), device=context.device)
        into, _ = finish(inputs, inputs)
        for row in into:  # one by one, so that the set is never there twice
            row.copy_(torch.from_numpy(random.standard_normal(shape, np.float32)))
        return Table(inputs, torch.from_numpy(random.integers(options["classes"], size=count)).to(context.device))

    spec = DataSpec(
        name=cfg.name, kind="images", shape=shape, num_classes=options["classes"], n_train=n, n_eval=counts[1],
        classes=(), fingerprint=fingerprint(cfg.name, counts, shape, options["classes"], CONTENT_SEED), synthetic=True,
    )  # fmt: skip
    return ResidentSource(spec, table(n), table(counts[1]), batch_sizes(cfg), context, finish)
