"""What can be asked for: one dataclass per group. Defaults live in conf/, meanings here.

Groups whose entries differ (model, data, task, precision, scaling, optimizer, schedule) keep the keys
that all share as fields; every other key that the chosen YAML lists lands in `options`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass
class ModelConfig:
    name: str
    """A file in mpt/models/ (or a plugin's name)."""
    choice: str = ""
    """The YAML that was chosen (`resnet50`); filled in by composition."""
    options: dict[str, Any] = field(default_factory=dict)
    """Arguments of the model's `build`."""


@dataclass
class DataConfig:
    name: str
    """A file in mpt/data/."""
    batch_size: int
    """Samples in one micro-batch of one rank; ≥ 1."""
    eval_batch_size: int | None
    """Samples in one evaluation batch; None: four times batch_size."""
    root: str | None
    """Folder that holds (or receives) the files; relative to where the command was typed."""
    download: bool
    """Fetch a missing torchvision set into `root`."""
    workers: int | None
    """Threads or processes that read; 0: the training thread does; None: one for each CPU, at most 6. Acts only where
    files are streamed."""
    on_error: str
    """`error` or `skip`: what an unreadable sample does."""
    image_size: int | None
    """Pixels of a side; None: what the model wants, else the data's own."""
    mean: list[float] | None
    """Per-channel mean subtracted after scaling to 0–1; None: the data set's own."""
    std: list[float] | None
    """Per-channel divisor; > 0; None: the data set's own."""
    limit: int | None
    """Only the first n training samples; None: all."""
    threads: str = "auto"
    """`auto` (threads where there are at most 6 workers, else processes), `true` or `false`. Acts on image_folder."""
    options: dict[str, Any] = field(default_factory=dict)


@dataclass
class TaskConfig:
    name: str
    """`auto` takes the task that fits the data."""
    loss_weight: float
    """Multiplies the loss that gradients are of; finite, not 0. What is logged is the loss before it."""
    options: dict[str, Any] = field(default_factory=dict)


@dataclass
class LayerRule:
    match: str
    """A glob over module names, or a regex after `re:`."""
    format: str
    """`float32`, or a compute format (`bfloat16`, `float16`)."""
    type: str | None = None
    """Only modules of this class name."""
    first: int | None = None
    """Of the layers that multiply and match, only the first n; ≥ 1."""
    last: int | None = None
    """Of the layers that multiply and match, only the last n; ≥ 1."""
    below: int | None = None
    """Only modules with fewer weights than this; ≥ 1."""
    gemms: dict[str, Any] | None = None
    """Products of its own, written as `precision.gemms` is; `format` is the policy's compute format then."""
    attention: dict[str, Any] | None = None
    """Operands of attention in the modules that attend: query, key, probability, value, as `e4m3/tensor`."""


@dataclass
class PrecisionConfig:
    name: str
    """The policy's name (`bf16`)."""
    backend: str
    """`auto`, `native` or `emulated`."""
    param: str
    """Format of stored weights."""
    compute: str
    """Format of matmul and convolution operands; `tfloat32` uses the TF32 mode."""
    master: str | None
    """Format of the copy that the optimizer updates: float32, or `split`, the 16 bits that bfloat16 weights lack of it;
    None: the weights themselves."""
    moment: str
    """Format of optimizer state; `int8`: 8-bit codes with a scale for each 256."""
    scaling: str
    """The strategy that `scaling=auto` stands for."""
    keep: list[str]
    """Kinds of ops held in float32 (names of mpt/precision/ops.py)."""
    layers: list[LayerRule]
    """Ordered rules; the first match wins; one that matches nothing, or nothing that is left, is an error."""
    options: dict[str, Any] = field(default_factory=dict)


@dataclass
class ScalingConfig:
    """None: no such limit, or nothing that the strategy knows; a value that it has no use for is an error."""

    name: str
    init_scale: float | None
    """The first scale; > 0."""
    growth_factor: float | None
    """What the scale is multiplied by when it grows; > 1."""
    backoff_factor: float | None
    """What the scale is multiplied by on overflow; in (0, 1)."""
    growth_interval: int | None
    """Finite updates before the scale grows; ≥ 1."""
    min_scale: float | None
    """Floor of the scale; > 0."""
    max_scale: float | None
    """Ceiling of the scale."""
    hysteresis: int | None
    """Overflows that are let pass before the scale shrinks; ≥ 1."""
    max_consecutive_skips: int | None
    """Skips in a row after which guard.skips acts; in every strategy."""
    rule: str | None = None
    """The file in mpt/scaling/; None: that of its name. Several presets are one rule with other constants."""
    options: dict[str, Any] = field(default_factory=dict)
    uses: list[str] = field(default_factory=list)
    """Keys that the chosen YAML lists: those that mean something to the strategy; filled in by composition."""


@dataclass
class OptimizerConfig:
    name: str
    lr: float
    """Peak learning rate; > 0."""
    weight_decay: float
    """Share of the rate by which weights shrink in an update, or of weights added to gradients (sgd, adam); ≥ 0."""
    fused: str
    """`auto`, `true` or `false`: one kernel for all parameters, with the skip decided inside it."""
    options: dict[str, Any] = field(default_factory=dict)


@dataclass
class ScheduleConfig:
    name: str
    warmup: int
    """Updates of linear warm-up; ≥ 0."""
    options: dict[str, Any] = field(default_factory=dict)


@dataclass
class TrainerConfig:
    max_epochs: float | None
    """Passes over the data; None: 10, or 4 for over 10M parameters, unless max_steps is given. The first limit ends."""
    max_steps: int | None
    """Attempts at an update (skipped ones count)."""
    max_time_s: float | None
    """Wall-clock seconds after which the run stops, saved."""
    patience: int | None
    """Evaluations without improvement after which the run stops."""
    target: float | None
    """Value of the task's headline metric at which the run stops."""
    accumulate: int
    """Micro-batches in one update; ≥ 1."""
    clip_norm: float | None
    """Largest global norm of the unscaled gradient; None: no clipping."""
    ema_decay: float | None
    """Decay of a float32 average of the weights; in (0, 1)."""
    eval_every: int | None
    """Updates between evaluations; None: at the end of each epoch; 0: only at the end."""
    log_every: int
    """Steps between reads of device values; ≥ 1."""
    eval_precision: str
    """`same` as training, or `fp32`."""
    compile: bool
    """Compile the model with torch.compile."""
    cuda_graphs: bool
    """Replay a compiled model's kernels as CUDA graphs (mode reduce-overhead): for steps that launching bounds."""
    checkpoint_activations: bool | list[str]
    """Keep only the inputs of the model's repeated blocks (`true`), or of modules by globs (`[layer1.*]`), and compute
    the rest again in the backward pass: less memory, the same numbers, a third more computing at most."""
    channels_last: str
    """`auto` (convolutional nets), `true` or `false`."""
    deterministic: bool
    """Only deterministic kernels, no cuDNN benchmark."""
    onednn: str
    """`auto` or `false`: on AMD CPUs, float32 products of large nets by oneDNN where a probe proves them exact, and
    attention over short contexts by products of whole matrices."""
    peak_tflops: float | None
    """Dense TFLOP/s of the device in the format of the policy, for MFU; > 0; None: from the table of GPUs."""
    predict: str
    """`auto` (runs of a minute or more), `true` or `false`: predict the peak memory too, beside what was measured."""
    profile: int | None
    """Steps that torch's profiler sees after the warm-up, into the run folder; ≥ 1; None: none."""
    threads: int | None
    """CPU threads; None: torch's own, one for tiny nets."""


@dataclass
class DistributedConfig:
    name: str
    nproc: int | None
    """Processes, each with data.batch_size samples of its own; ≥ 1. This version trains with one and plans for more."""
    link_gb_s: float | None
    """GB/s that one process sends to the others while it receives as much (busbw of nccl-tests); > 0; None: predicted
    times leave communication out."""


@dataclass
class CheckpointConfig:
    every: int | None
    """Updates between checkpoints; None: at each evaluation; 0: only at the end."""
    keep: int
    """Newest checkpoints kept (the best one is kept besides); ≥ 1."""
    dir: str | None
    """Folder of checkpoints; None: `checkpoints` in the run folder."""
    allow_changes: bool
    """Resume although the configuration differs in keys that alter the result."""
    background: bool
    """Write beside the training, from a copy in the host's memory; false: the loop waits for the disk."""


@dataclass
class GuardConfig:
    """Each guard has an action: `stop` (as diverged), `skip`, `rollback`, `warn` or `off`; docs/scaling.md."""

    skips: str
    """What scaling.max_consecutive_skips skipped steps in a row do."""
    floor: str
    """What overflows at the scale's floor do."""
    floor_skips: int
    """So many within 100 steps; ≥ 1."""
    falling: str
    """What a scale does whose peak sinks over four windows, by a factor of 8 or more."""
    falling_window: int
    """Steps of a window; ≥ 1."""
    sawtooth: str
    """What a scale does that grows and overflows in turn, at more than one step in a hundred."""
    sawtooth_teeth: int
    """Times in a row; ≥ 1."""
    ceiling: str
    """What a scale does that stays at its ceiling."""
    ceiling_steps: int
    """Steps in a row; ≥ 1."""
    nonfinite: str
    """What a non-finite loss does, or gradient where no scale adapts; `skip`: no more than the skipped update."""
    nonfinite_steps: int
    """Steps in a row; ≥ 1."""
    spike: str
    """What a jump of the loss does; `skip` returns to before it and passes over its batch."""
    spike_score: float
    """Robust deviations of log(loss) above its median."""
    spike_window: int
    """Losses that it is compared with; ≥ 20."""
    rollback_attempts: int
    """Returns to a checkpoint in a run, after which the next one stops it; ≥ 1."""
    rollback_margin: int
    """Steps between the checkpoint and the fault, where there is such a checkpoint; ≥ 0."""
    rollback_scale: float
    """Factor of the loss scale after a rollback."""
    rollback_lr: float
    """Factor of the learning rate for the updates after a rollback; in (0, 1]."""
    rollback_precision: str
    """`same`, or `fp32`: plain float32 for the attempts after a rollback; of float32 weights."""
    rollback_steps: int
    """For how many updates that rate, and for how many attempts that precision; ≥ 1."""


@dataclass
class Injection:
    step: int
    """The first attempt (from 1) that has the fault."""
    module: str
    """Name of a module, whose output (`forward`) or its gradient (`backward`) is spoilt."""
    kind: str
    """`inf`, `nan`: one element becomes that; `spike`, `underflow`: all are multiplied by `factor`."""
    where: str = "backward"
    """`backward` or `forward`."""
    steps: int = 1
    """Attempts in a row; ≥ 1."""
    factor: float | None = None
    """None: 1024 for a spike, 2^-40 for an underflow."""


@dataclass
class DebugConfig:
    inject: list[Injection]
    """Faults put in on purpose."""
    anomaly: bool
    """Look for the module that went non-finite at every such step; else at the first of a run only."""


@dataclass
class RunConfig:
    model: ModelConfig
    data: DataConfig
    task: TaskConfig
    precision: PrecisionConfig
    scaling: ScalingConfig
    optimizer: OptimizerConfig
    schedule: ScheduleConfig
    trainer: TrainerConfig
    distributed: DistributedConfig
    checkpoint: CheckpointConfig
    debug: DebugConfig
    guard: GuardConfig
    device: str
    """`auto`, `cpu`, `cuda`, `cuda:N`, `mps`; for `mpt plan` also a GPU by name (`h100`: `mpt list gpus`)."""
    seed: int
    """Seeds initial weights, data order and dropout; 0 ≤ seed < 2^63."""
    name: str | None
    """Shown in reports; None: model-precision."""
    run_dir: str | None
    """Folder of this run; None: a fresh one under outputs/."""
    resume: str | None
    """`auto`, a run folder or a checkpoint; None: a new run."""
    init_from: str | None
    """A run folder or checkpoint whose weights alone are taken, or another program's file of them (a state dict,
    safetensors); ignored where resume=auto finds a run to go on with."""
    numerics: str
    """`off`, or statistics of tensors at some steps in numerics.jsonl. `light`: of activations and gradients, exponents
    of a sample; `full`: of all elements, weights and gradients of outputs too, and what rounding does to products."""
    logger: list[str]
    """Trackers that get the record's numbers: `tensorboard`, `wandb`, `mlflow`, `trackio`."""
    plugins: list[str]
    """Python packages imported before anything is looked up."""
    recipe: str | None = None
    """A whole run to start from (`mpt list recipes`)."""
    numerics_every: int | None = None
    """Steps between looks at the tensors, after the first; ≥ 1. Acts with numerics=light or full. None: 50, or as many
    as make 200 looks of a longer run."""
