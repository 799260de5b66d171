"""A run as a typed value.

`launch.parts` has its fields. A config (`launch.door`) names each by its group and its
name, such as "train.steps".
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, NamedTuple

import model
from launch.options import Option, Part, Rule, check_option, option, options_of
from launch.parts import (
  CHOSEN,
  GIVEN,
  AdamW,
  AtomRows,
  Choices,
  Data,
  Encoder,
  Lamb,
  Model,
  OnlineRows,
  Optimizer,
  PackedRows,
  Packs,
  PaddedAtomRows,
  Pairs,
  Rows,
  Sgd,
  Train,
)
from model.losses import PairLoss
from pipeline.batches import atoms
from pipeline.batches.plans import ONLINE
from pipeline.tasks.glue import MULTI_LABEL
from pipeline.tasks.registry import TASK_HEADS, is_masked
from training.errors import ConfigError


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunSettings(Part):
  """A run.

  Attributes:
    pairs: None for tasks without vectors of texts.
    given: the values of the config that it was made from, by field.
  """

  data: Data
  rows: Rows
  model: Model
  pairs: Pairs | None
  optimizer: Optimizer
  train: Train
  seed: int = option(
    0,
    "seed of parameters, dropout, masking and the order of packs",
    Rule(lambda x: 0 <= x < 2**32, "0 to 2^32 - 1"),
  )
  given: Mapping[str, Any] = dataclasses.field(compare=False, repr=False)

  @classmethod
  def of(cls, values: Mapping[str, Any]) -> RunSettings:
    """Makes the settings of a run.

    Args:
      values: a value for each of `OPTIONS`, by field.

    Raises:
      ConfigError: a value cannot be used, alone or together with others; the message says
        what was expected.
    """

    def fields(part: type, group: str = "") -> dict[str, Any]:
      return {known.attribute: values[x] for x, known in options_of(part, group).items()}

    data = Data(**fields(Data))
    kinds = _Kinds.of(values)
    own = kinds.names()
    for name, known in OPTIONS.items():
      if name not in own and not known.metadata.get("shared"):
        _check_no_effect(values, name, kinds.decided_by(values, name))
    return cls(
      data=data,
      rows=kinds.rows(max_sequence_length=data.max_sequence_length, **fields(kinds.rows)),
      model=kinds.model(
        config=_model_config(kinds.config, fields(kinds.config, Model.GROUP), data, values),
        **fields(kinds.model),
      ),
      pairs=kinds.pairs(**fields(kinds.pairs)) if kinds.pairs else None,
      optimizer=kinds.optimizer(**fields(kinds.optimizer)),
      train=Train(**fields(Train)),
      given=dict(values),
      **fields(cls),
    )

  def changed(self, fields: Mapping[str, Any]) -> RunSettings:
    """The settings of the same config with other values of some fields."""
    return type(self).of({**self.given, **fields})

  @property
  def head(self) -> str:
    """What the model learns; a key of `model.MODELS`."""
    return self.data.head

  def pair_loss(self, pooling: str) -> PairLoss:
    """The loss of vectors of texts, by how each is made; for other tasks it has no use."""
    if not isinstance(self.pairs, Choices):
      return PairLoss(pooling)
    return PairLoss(
      pooling,
      self.pairs.temperature,
      self.pairs.both_directions,
      self.pairs.omit_equal_texts,
    )

  def __post_init__(self):
    super().__post_init__()
    self._check_model()
    self._check_stream()
    self._check_train()

  def _check_model(self):
    task, config = self.data.task, self.model.config
    family, heads = config.FAMILY, model.MODELS[config.FAMILY]
    lacks = f"another one with data.task={task}, which needs a head that {family} lacks"
    check_option(self.head in heads, "model.family", family, lacks)
    if isinstance(config, model.BertConfig):
      if task in ("sentences", "documents"):
        check_option(
          not config.next_sentence,
          "model.next_sentence",
          True,
          f"False with data.task={task}, which has no next sentence",
          remedy="Set --config.model.next_sentence=False.",
        )
      length = self.rows.row_length if isinstance(self.rows, Packs) else 0
      check_option(
        config.position_reset or 0 <= length <= self.data.max_sequence_length,
        "packing.row_length",
        length,
        f"0 to data.max_sequence_length={self.data.max_sequence_length} with "
        "model.position_reset=False, since the model has no more positions",
      )

  def _check_stream(self):
    stream = self.data.stream
    if not stream:
      return
    why, algorithm = f"with data.stream={stream}", self.given["packing.algorithm"]
    is_online = isinstance(self.rows, OnlineRows)
    check_option(is_online, "packing.algorithm", algorithm, f"{ONLINE!r} {why}")
    is_chosen = isinstance(self.rows, Packs) and self.rows.is_chosen
    expected = f"0 or a number of tokens {why}, whose lengths are not known"
    check_option(not is_chosen, "packing.row_length", CHOSEN, expected)
    known = [task for task, head in TASK_HEADS.items() if head in model.LANGUAGE_MODELS]
    task = self.data.task
    check_option(task in known, "data.task", task, f"one of {', '.join(known)} {why}")
    durations = {
      "train.duration": self.train.duration,
      "optimizer.warmup": self.optimizer.warmup,
    }
    for field, text in durations.items():
      expected = f"steps or sequences {why}, which has no epochs"
      check_option("epoch" not in text, field, text, expected)

  def _check_train(self):
    why = f"data.task={self.data.task}"
    if not is_masked(self.data.task):
      _check_no_effect(self.given, "train.target_mlm_accuracy", why)
    if self.head == "encoder":
      _check_no_effect(self.given, "train.loss_unit", f"{why}, whose unit is the record")


class _Kinds(NamedTuple):
  """The classes of a run's parts."""

  rows: type[Rows]
  model: type[Model]
  config: type[model.ModelConfig]
  pairs: type[Pairs] | None
  optimizer: type[Optimizer]

  @classmethod
  def of(cls, values: Mapping[str, Any]) -> _Kinds:
    """Those of a config."""

    def choice(field: str) -> Any:
      value, rule = values[field], OPTIONS[field].metadata["rule"]
      check_option(rule.holds(value), field, value, rule.expected)
      return value

    causal = TASK_HEADS[values["data.task"]] == "causal"
    family = "gpt2" if causal else choice("model.family")
    return cls(
      rows=_rows_kind(values, choice("packing.algorithm")),
      model=Model if family == "gpt2" else Encoder,
      config=model.CONFIGS[family],
      pairs=_PAIRS.get(values["data.task"]),
      optimizer=_OPTIMIZERS[choice("optimizer.name")],
    )

  def names(self) -> set[str]:
    """The fields that such a run has."""
    parts = RunSettings, Data, self.rows, self.model, self.optimizer, Train
    names = {name for part in parts for name in options_of(part)}
    names |= options_of(self.config, Model.GROUP).keys()
    return names | (options_of(self.pairs).keys() if self.pairs else set())

  def decided_by(self, values: Mapping[str, Any], field: str) -> str:
    """Which value of a config decides that such a run does not have a field."""
    group = field.partition(".")[0]
    if group == "optimizer":
      decides = "optimizer.name"
    elif group == "pairs" or (group == "model" and self.model is Model):
      decides = "data.task"
    elif group == "model":
      decides = "model.family"
    elif group == "data" or values["data.layout"] != "packed":
      decides = "data.layout"
    else:
      decides = "packing.algorithm"
    return f"{decides}={values[decides]}"


def _rows_kind(values: Mapping[str, Any], algorithm: str) -> type[Rows]:
  """Which rows a config makes."""
  layout, task = values["data.layout"], values["data.task"]
  layouts = ("packed", *(atoms.LAYOUTS if task == "text" else ()))
  across = ""
  if is_masked(task):
    across = "; across documents: data.task=sentences, data.cross_documents=True"
  check_option(layout in layouts, "data.layout", layout, ", ".join(layouts) + across)
  if algorithm == ONLINE:
    expected = "'packed' with packing.algorithm=online, which packs what it reads"
    check_option(layout == "packed", "data.layout", layout, expected)
    return OnlineRows
  if layout == "packed":
    return PackedRows
  return PaddedAtomRows if layout == "padding" else AtomRows


def _model_config(
  kind: type[model.ModelConfig],
  fields: dict[str, Any],
  data: Data,
  values: Mapping[str, Any],
) -> model.ModelConfig:
  """The model that a config describes; with `GIVEN`, in some size."""
  size, impl = values["model.size"], values["model.attention_impl"]
  sizes = *kind.SIZES, GIVEN
  check_option(size in sizes, "model.size", size, ", ".join(sizes))
  known = "auto", *model.IMPLEMENTATIONS
  check_option(impl in known, "model.attention_impl", impl, ", ".join(known))
  if kind is not model.Gpt2Config:
    fields["multi_label"] = data.task == MULTI_LABEL
  if kind is model.BertConfig and data.head == "encoder":
    fields["pooler"] = False  # a mean or a [CLS], without BERT's pooler
  try:
    return kind.from_size(
      next(iter(kind.SIZES)) if size == GIVEN else size,
      vocab_size=data.vocab_size,
      max_position_embeddings=data.max_sequence_length,
      **fields | {"dtype": "float32"},
    )
  except ValueError as error:
    raise ConfigError(f"config.model.{error}") from error


_PAIRS: dict[str, type[Pairs]] = {"pairs": Choices, "scored_pairs": Pairs}
_OPTIMIZERS: dict[str, type[Optimizer]] = {"sgd": Sgd, "lamb": Lamb, "adamw": AdamW}


def _check_no_effect(values: Mapping[str, Any], field: str, why: str):
  """Raises ConfigError if a config sets a field that its kind of run does not have.

  Args:
    values: of a config, by field.
    field: the name of the field.
    why: what decides the kind of run, such as "model.family=modern_bert".
  """
  known = OPTIONS[field]
  if values[field] not in (known.default, *known.metadata.get("absent", ())):
    raise ConfigError(
      f"config.{field} is {values[field]!r}, which has no effect with {why}. Leave it out; "
      f"its default is {known.default!r}."
    )


def _all_options() -> dict[str, Option]:
  """All fields of a config, in the order of its groups; the first class decides."""
  parts: list[type] = [RunSettings, Data, PackedRows, PaddedAtomRows, Encoder, Choices]
  configs: list[type] = [model.ModelConfig, *model.CONFIGS.values()]
  found: dict[str, Option] = {}
  for part, group in [
    *((x, "") for x in (*parts, AdamW, Train)),
    *((x, Model.GROUP) for x in configs),
  ]:
    found |= {k: v for k, v in options_of(part, group).items() if k not in found}
  groups = ["", *("data", "packing", "model", "pairs", "optimizer", "train")]

  def place(name: str) -> tuple[int, bool]:
    # The task decides what other fields mean.
    return groups.index(name.rpartition(".")[0]), name != "data.task"

  return {name: found[name] for name in sorted(found, key=place)}


OPTIONS = _all_options()
