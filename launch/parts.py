"""The parts of a run: each field's type, default, meaning and rule.

The fields of a dataset stand in `pipeline.settings`, those of a model in `model.config`.

Kinds that exclude each other are classes, so that a run has only the fields that mean
something for it: rows are packed, packed while reading, or made of atoms; a model is a
BERT, a ModernBERT or a GPT-2, with the fields of its own config.
"""

from __future__ import annotations

import dataclasses
import math
import re
from typing import Any, ClassVar, Literal

import model
import packing
from launch.options import (
  AT_LEAST_0,
  AT_LEAST_1,
  FRACTION,
  FRACTION_BELOW_1,
  INNER_FRACTION,
  NOT_NEGATIVE,
  POSITIVE,
  Part,
  Rule,
  check_option,
  one_of,
  option,
)
from packing import InputError
from pipeline.batches.plans import ONLINE
from pipeline.settings import DatasetSettings
from pipeline.tasks.registry import TASK_HEADS
from training import optimizer
from training.errors import ConfigError

ALGORITHMS = (*packing.ALGORITHMS, ONLINE)
PREPARED = "prepared"  # the data.source of a run that uses data.directory as it is
A_MODEL = "the folder of a run or an imported model to start from"
CHOSEN = -1  # the packing.row_length that fits the data
GIVEN = "given"  # the model.size that takes the sizes of model.init_from
FAMILIES = ("bert", "modern_bert")  # of models that are not causal
LAYER_SIZES = ("num_layers", "hidden_size", "num_heads", "intermediate_size")
# Names allowed in train.trackers, and the modules that they need.
TRACKERS = {"wandb": ("wandb",), "mlflow": ("mlflow", "sqlalchemy", "alembic")}
# Ways to adjust a recipe to rows that hold `packing_factor` times as many sequences.
ADJUSTMENTS = ("reduce_batch", "lamb_betas", "lr_linear", "lr_sqrt", "none")

_DURATION = re.compile(r"\s*(\S+)\s+(step|sequence|epoch)s?\s*")


# ----------------------------------------------------------------------------------- data


@dataclasses.dataclass(frozen=True, kw_only=True)
class Data(Part, DatasetSettings):
  """The data of a run: the settings of its dataset, and how the run uses it.

  The settings of a dataset that is "prepared" already are in its manifest.
  """

  GROUP: ClassVar = "data"

  # The defaults of a run, where `python -m pipeline prepare` has others or none.
  source: str = "stdlib"
  max_sequence_length: int = 128
  vocab_size: int = 4096
  held_out_fraction: float = 0.05

  directory: str = option("data/stdlib", "the prepared dataset; made if it does not exist")
  stream: str = option(
    "",
    "With packing.algorithm=online: documents that are read during training, as hf:NAME. "
    "data.source is then a sample of them.",
  )
  mask_rate: float = option(
    0.15, "fraction of a sequence's tokens that are masked", INNER_FRACTION
  )

  def __post_init__(self):
    try:
      DatasetSettings.__post_init__(self)
    except InputError as error:
      raise ConfigError(f"config.data.{error}") from error
    super().__post_init__()
    check_option(
      self.task in TASK_HEADS, "data.task", self.task, f"one of {', '.join(TASK_HEADS)}"
    )

  @property
  def dataset(self) -> DatasetSettings:
    """The settings of the dataset that the run prepares."""
    names = (field.name for field in dataclasses.fields(DatasetSettings))
    return DatasetSettings(**{name: getattr(self, name) for name in names})

  @property
  def head(self) -> str:
    """What a model learns from this task; a key of `model.MODELS`."""
    return TASK_HEADS[self.task]


# ----------------------------------------------------------------------------------- rows


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rows(Part):
  """How sequences become rows.

  Attributes:
    max_sequence_length: S, the longest sequence in tokens, and by default a row.
  """

  GROUP: ClassVar = "packing"

  max_sequence_length: int
  layout: str = option(
    "packed",
    "text: how documents become rows. packed: cut at the row length, packed and isolated; "
    "concat, concat_isolated, padding: cut into atoms, the units of shuffling, which share "
    "rows (docs/batches.md).",
    name="data.layout",
  )

  @property
  def lengths(self) -> set[int]:
    """The lengths of rows that a run computes, in tokens, but those that are `CHOSEN`."""
    return {self.max_sequence_length}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Packs(Rows):
  """Rows of whole sequences."""

  algorithm: str = option(
    "auto",
    "auto: near the optimum; optimal, spfhp, lpfhp, nnlshp, ...: docs/packing.md; online: "
    "packed while reading; none: unpacked, the baseline",
    one_of(ALGORITHMS),
    shared=True,
  )
  max_sequences_per_pack: int = option(
    0,
    "0: the smallest limit that costs at most 0.5 % more packs than no limit. Use "
    "the row length for no limit.",
    AT_LEAST_0,
    shared=True,
  )
  row_length: int = option(
    0,
    "length of a row in tokens; 0: data.max_sequence_length; -1: the run chooses the "
    "shortest that holds the longest sequence and packs well",
    Rule(lambda x: x in (CHOSEN, 0) or 5 <= x <= 65535, "-1, 0, or 5 to 65535 tokens"),
  )
  throughput_rounds: int = option(
    24,
    "After training, time at most this many packed steps against as many unpacked ones, in "
    "about a tenth of the training's time; 0: none.",
    AT_LEAST_0,
    name="train.throughput_rounds",
    absent=(0,),
  )

  def __post_init__(self):
    super().__post_init__()
    longest = self.max_sequence_length
    expected = f"-1, 0, or at least {longest}, the longest sequence"
    fits = self.row_length <= 0 or longest <= self.row_length
    check_option(fits, "packing.row_length", self.row_length, expected)

  @property
  def is_chosen(self) -> bool:
    """Whether the data decide the row length."""
    return self.row_length == CHOSEN and self.algorithm != "none"

  @property
  def lengths(self) -> set[int]:
    if self.algorithm == "none":
      return {self.max_sequence_length}
    return {self.max_sequence_length, max(self.row_length, self.max_sequence_length)}


@dataclasses.dataclass(frozen=True, kw_only=True)
class OnlineRows(Packs):
  """Sequences that are packed while they are read."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class PackedRows(Packs):
  """Sequences that are packed by a plan, or stand alone."""

  balance: Literal["none", "devices"] = option(
    "none",
    "none; devices: all devices of a step have nearly the same sum of squared lengths",
    one_of(("none", "devices")),
  )


@dataclasses.dataclass(frozen=True, kw_only=True)
class AtomRows(Rows):
  """Documents cut into atoms, which are shuffled and share rows in their new order."""

  atom_size: int = option(
    0,
    "concat, concat_isolated, padding: tokens of an atom; 0: the row length",
    name="data.atom_size",
  )

  def __post_init__(self):
    super().__post_init__()
    size, length = self.atom_size, self.max_sequence_length
    check_option(
      not size or (size > 1 and max(size, length) % min(size, length) == 0),
      "data.atom_size",
      size,
      f"0, or at least 2 and a divisor or multiple of data.max_sequence_length={length}",
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class PaddedAtomRows(AtomRows):
  """Atoms that belong to one document each, and are filled with end tokens."""

  loss_on_padding: bool = option(
    False,
    "padding: whether to predict end tokens that only fill an atom",
    name="data.loss_on_padding",
  )


# ---------------------------------------------------------------------------------- model


@dataclasses.dataclass(frozen=True, kw_only=True)
class Model(Part):
  """The model of a run.

  Attributes:
    config: of the model, in float32. Its vocabulary is not known before the data are
      prepared, nor the sizes of its layers with `GIVEN`: see `of`.
  """

  GROUP: ClassVar = "model"

  config: model.ModelConfig
  size: str = option(
    "base",
    "bert: tiny, mini, small, medium, base, large; modern_bert: tiny, mini, base, large; "
    "GPT-2: tiny, mini, small, medium, large, xl; given: the sizes of init_from",
  )
  init_from: str = option("", 'folder with initial weights; "": random weights')
  dtype: str = option(
    "auto",
    "The type of the computation: float32, bfloat16; auto: bfloat16 on TPUs and on GPUs "
    "since Ampere, else float32.",
    one_of(("auto", "float32", "bfloat16")),
  )

  def __post_init__(self):
    super().__post_init__()
    if self.size == GIVEN:
      expected = f"{A_MODEL}, since model.size is {GIVEN!r}"
      check_option(bool(self.init_from), "model.init_from", self.init_from, expected)

  def of(
    self,
    *,
    vocab_size: int,
    sizes: model.ModelConfig | None = None,
    num_labels: int = 2,
  ) -> model.ModelConfig:
    """The config of the model for a dataset.

    Args:
      vocab_size: V.
      sizes: the model to take the sizes of layers from, if `size` is `GIVEN`.
      num_labels: classes of a sequence; 1 for regression.
    """
    fields: dict[str, Any] = {"vocab_size": vocab_size, "dtype": self.dtype}
    if isinstance(self.config, model.EncoderConfig):
      fields["num_labels"] = num_labels
    if self.size == GIVEN:
      assert sizes is not None
      fields |= {name: getattr(sizes, name) for name in LAYER_SIZES}
    return dataclasses.replace(self.config, **fields)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Encoder(Model):
  """A model that is not causal, of one of several families."""

  family: str = option(
    "bert",
    "bert, modern_bert; data.task=text always trains a GPT-2",
    one_of(FAMILIES),
  )


# ---------------------------------------------------------------------------------- pairs


@dataclasses.dataclass(frozen=True, kw_only=True)
class Pairs(Part):
  """The vectors of texts."""

  GROUP: ClassVar = "pairs"

  pooling: str = option(
    "auto",
    "How the vector of a text is made: mean, over its tokens; cls, of its [CLS]; auto: as "
    "the files of sentence-transformers in init_from say, otherwise the mean.",
    one_of(("auto", "mean", "cls")),
  )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Choices(Pairs):
  """Vectors that are learned by choosing each anchor's positive."""

  temperature: float = option(
    0.05, "cosines are divided by it before the softmax", POSITIVE
  )
  both_directions: bool = option(
    False,
    "Whether positives also choose their anchors; the loss is then the mean of both.",
  )
  omit_equal_texts: bool = option(
    False,
    "Whether an anchor's choices omit texts that equal it, or another positive of it in "
    "the step. Otherwise they are negatives.",
  )


# ------------------------------------------------------------------------------ optimizer


@dataclasses.dataclass(frozen=True, kw_only=True)
class Optimizer(Part):
  """What all optimizers have."""

  GROUP: ClassVar = "optimizer"

  name: str = option("lamb", "lamb, adamw, sgd", one_of(optimizer.OPTIMIZERS))
  learning_rate: float = option(1e-3, "the peak learning rate", POSITIVE)
  warmup_steps: int = option(
    100,
    "Steps of warm-up, without packing: the learning rate rises. If warm-up would last the "
    "whole run, it is cut to a tenth of the steps.",
    AT_LEAST_0,
  )
  warmup: str = option(
    "", 'Instead of warmup_steps, such as "0.1 epochs" or "5e4 sequences".'
  )
  b1: float = option(
    0.9, "lamb, adamw: decay rate of the first moment; sgd: the momentum", INNER_FRACTION
  )
  weight_decay: float = option(0.01, "not for biases and LayerNorm", NOT_NEGATIVE)
  decay: str = option(
    "linear",
    "How the learning rate falls to zero after the warm-up: linear, or sqrt, as "
    "1 - sqrt(x).",
    one_of(optimizer.DECAYS),
  )
  decay_share: float = option(
    1.0,
    "The learning rate falls in the last steps: this fraction of those after the warm-up.",
    FRACTION,
  )
  clip_norm: float = option(
    1.0, "largest global norm of the gradients; 0: no limit", NOT_NEGATIVE
  )

  def __post_init__(self):
    super().__post_init__()
    if self.warmup:
      parse_duration("optimizer.warmup", self.warmup)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sgd(Optimizer):
  """Gradient descent with momentum."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Adaptive(Optimizer):
  """An optimizer that divides by the root of a second moment."""

  b2: float = option(
    0.999, "lamb, adamw: decay rate of the second moment", INNER_FRACTION, shared=True
  )
  eps: float = option(
    1e-6, "lamb, adamw: added to the root of the second moment", POSITIVE, shared=True
  )
  bias_correction: bool = option(True, "lamb, adamw: correct the moments for their bias")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Lamb(Adaptive):
  """LAMB (You et al., https://arxiv.org/abs/1904.00962)."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class AdamW(Adaptive):
  """AdamW."""

  clip_update: float = option(
    0.0, "adamw: largest RMS of a tensor's update; 0: no limit", NOT_NEGATIVE
  )


# ------------------------------------------------------------------------------- training


@dataclasses.dataclass(frozen=True, kw_only=True)
class Train(Part):
  """How long a run trains, in steps of what size, and what it keeps."""

  GROUP: ClassVar = "train"

  adjust: str = option(
    "reduce_batch",
    "The batch size, steps and optimizer give the recipe without packing. This field says "
    "how to adjust it to steps with more sequences. reduce_batch: fewer rows a step; "
    "lamb_betas: beta ** packing factor, as in the paper; lr_linear, lr_sqrt: a higher "
    "learning rate; none. At equal sequences, reduce_batch ended lowest in our study "
    "(docs/training.md).",
    one_of(ADJUSTMENTS),
    name="packing.adjust",
  )
  loss_unit: str = option(
    "sequence",
    "What has equal weight: sequence, token; pack: the ablation of the paper",
    one_of(model.LOSS_UNITS),
  )
  batch_size: int = option(
    32, "sequences a step without packing, over all devices", AT_LEAST_1
  )
  micro_batch_size: int = option(0, "rows computed at once; 0: all rows of a step")
  fsdp: int = option(
    1, "devices that share one copy of parameters and optimizer state", AT_LEAST_1
  )
  steps: int = option(1000, "steps without packing", AT_LEAST_1)
  duration: str = option("", 'instead of steps, such as "3 epochs" or "1e6 sequences"')
  log_every: int = option(20, "in steps with packing", AT_LEAST_1)
  eval_every: int = option(
    100, "in steps with packing; a multiple of log_every", AT_LEAST_1
  )
  checkpoint_every: int = option(
    200, "in steps with packing; a multiple of log_every", AT_LEAST_1
  )
  keep_checkpoints: int = option(
    2, "how many of the newest checkpoints to keep", AT_LEAST_1
  )
  keep_best: bool = option(False, "also keep the checkpoint of the best evaluation")
  patience: int = option(
    0, "Stop after this many evaluations without improvement; 0: never.", AT_LEAST_0
  )
  target_mlm_accuracy: float = option(
    0.0,
    "Held-out accuracy of masked tokens at which training stops; 0: no target.",
    FRACTION_BELOW_1,
  )
  trackers: str = option("", "wandb, mlflow, or both: docs/training.md")

  def __post_init__(self):
    super().__post_init__()
    rows, micro = self.batch_size, self.micro_batch_size
    expected = f"0, or a divisor of train.batch_size={rows}"
    divides = micro >= 0 and (micro == 0 or rows % micro == 0)
    check_option(divides, "train.micro_batch_size", micro, expected)
    if self.duration:
      parse_duration("train.duration", self.duration)
    names = self.tracker_names
    check_option(
      len(names) == len({*names} & TRACKERS.keys()),
      "train.trackers",
      self.trackers,
      f"names from {', '.join(TRACKERS)}, each once, separated by commas",
    )
    for field in ("eval_every", "checkpoint_every"):
      value = getattr(self, field)
      expected = f"a multiple of train.log_every={self.log_every}"
      check_option(value % self.log_every == 0, f"train.{field}", value, expected)

  @property
  def rows_at_once(self) -> int:
    """Rows that a run computes at once."""
    return self.micro_batch_size or self.batch_size

  @property
  def tracker_names(self) -> list[str]:
    """The names in `trackers`."""
    return [name.strip() for name in self.trackers.split(",") if name.strip()]


def parse_duration(field: str, text: str) -> tuple[float, str]:
  """Parses a number of steps, sequences or epochs.

  Args:
    field: the config field that has the text, for the message.
    text: such as "3 epochs".

  Returns:
    The number and "step", "sequence" or "epoch".

  Raises:
    ConfigError: the text is something else, or the number is negative.

  Example:
    >>> parse_duration("train.duration", "1e6 sequences")
    (1000000.0, 'sequence')
  """
  match = _DURATION.fullmatch(text)
  try:
    number = float(match[1]) if match else math.nan
  except ValueError:
    number = math.nan
  expected = "a number of steps, sequences or epochs, such as '3 epochs'"
  check_option(0 <= number < math.inf, field, text, expected)
  assert match is not None
  return number, match[2]
