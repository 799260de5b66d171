"""transformers' `Trainer` on packed rows: training, evaluation and masked tokens."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from transformers import Trainer, TrainerCallback, TrainingArguments
from transformers.utils.generic import find_labels

import packing
from packing.errors import InputError
from packing.row import IGNORED, length_of
from packing.torch.collator import PackedCollator
from packing.torch.dataset import PackedDataset
from packing.torch.heads import has_packed_heads, packed_heads
from packing.torch.masking import KeyedPack, MaskingCollator


def packed_trainer(
  model: Any,
  train: Any,
  evaluation: Any = None,
  *,
  args: TrainingArguments,
  max_sequence_length: int,
  masking: Any = None,
  **options: Any,
) -> PackedTrainer:
  """A `Trainer` of transformers that packs its examples.

  It trains as on sequences alone: a step's loss is the mean over its labels, also with
  gradient accumulation, a shorter last batch and several processes, and in each epoch
  other sequences share a row, also after a checkpoint. A process that has no row left gets
  one whose labels do not count. `evaluate` and `predict` pack, too, and give
  `compute_metrics` the answers and labels in the order of the examples. For a model with
  answers by sequence they are [N, L] and [N]; by token, [N, longest, ...], with -100 after
  the end of a sequence.

  A run that continues from a checkpoint ends with the weights of one that was not stopped:
  the order of rows and the masks of tokens depend on the seed, the epoch and the row alone.
  The same holds with torchdata's loader. `TrainingArguments` has no option for it; set
  `trainer.accelerator.dataloader_config.use_stateful_dataloader = True`.

  `per_device_train_batch_size` and `per_device_eval_batch_size` count rows; to keep the
  sequences of a step, divide yours by `trainer.train_dataset.plan.packing_factor`.

  Args:
    model: of transformers, of a type that `PackedCollator.for_model` accepts. A
      `...ForSequenceClassification` gets `packed_heads`.
    train: examples with `input_ids`, and `label` or `labels`; a list or a Hugging Face
      dataset, whose other columns are left out as `Trainer` does, unless
      `remove_unused_columns` of `args` is False. None if you only evaluate.
    evaluation: the same, or a dictionary of them.
    args: as for `Trainer`.
    max_sequence_length: S, tokens of a row. A longer example is an error.
    masking: a `DataCollatorForLanguageModeling(tokenizer)`, which then masks the tokens of
      rows, for masked language models.
    options: others of `Trainer`, such as `compute_metrics` and `callbacks`.

  Raises:
    InputError: the model or an example cannot be packed, or an option of `args` does not
      fit rows.

  Example:
    >>> trainer = packed_trainer(  # doctest: +SKIP
    ...   model, train, test, args=args, max_sequence_length=512, compute_metrics=accuracy
    ... )
    >>> trainer.train()  # doctest: +SKIP
  """
  is_plain = not has_packed_heads(model)
  if is_plain and type(model).__name__.endswith("ForSequenceClassification"):
    packed_heads(model)
  _check(model, args)
  pack = functools.partial(
    _Packs,
    model=model,
    max_sequence_length=max_sequence_length,
    seed=args.seed if args.data_seed is None else args.data_seed,
    keep_columns=not args.remove_unused_columns,
    is_masked=masking is not None,
  )
  collate = functools.partial(_collator, model, masking)
  return PackedTrainer(pack, collate, model, args, train, evaluation, **options)


def _collator(model: Any, masking: Any, plan: packing.Plan) -> Any:
  answers = "sequence" if has_packed_heads(model) else "token"
  collator = PackedCollator.of(plan, model.config, answers=answers)
  return _Collator(collator if masking is None else MaskingCollator(collator, masking))


def _check(model: Any, args: TrainingArguments):
  """Refuses what would not equal sequences alone."""
  name = type(model).__name__
  if (labels := find_labels(type(model))) != ["labels"]:
    raise InputError(
      f"{name} has the labels {labels}; expected labels alone, over which its loss is the "
      "mean. Use a model for one task, such as ...ForMaskedLM."
    )
  if args.n_gpu > 1:
    raise InputError(
      "torch.nn.DataParallel averages the losses of GPUs whatever they hold. Start one "
      "process for each GPU, with torchrun or accelerate launch."
    )
  if args.world_size > 1 and not args.average_tokens_across_devices:
    raise InputError(
      "average_tokens_across_devices=False averages the means of processes, whatever they "
      "hold. Leave it out."
    )
  if (strategy := args.train_sampling_strategy) not in ("random", "sequential"):
    raise InputError(
      f"train_sampling_strategy={strategy!r} sorts single examples. Leave it out: "
      "rows have one length."
    )
  if args.batch_eval_metrics or not args.eval_do_concat_batches or args.include_for_metrics:
    raise InputError(
      "batch_eval_metrics, eval_do_concat_batches=False and include_for_metrics show rows "
      "to compute_metrics. Leave them out; it gets predictions and labels of all examples."
    )


class _Packs(PackedDataset):
  """The packs of examples, with their lengths."""

  def __init__(
    self,
    examples: Any,
    *,
    model: Any,
    max_sequence_length: int,
    seed: int,
    keep_columns: bool,
    is_masked: bool,
  ):
    self.seed = seed
    if not hasattr(examples, "__len__") or not hasattr(examples, "__getitem__"):
      raise InputError(
        f"Examples are a {type(examples).__name__}, which has no length. Give a list or a "
        "dataset, or use PackedIterableDataset with a Trainer."
      )
    names = getattr(examples, "column_names", None)
    if names and not keep_columns:
      kept = {
        "label",
        "token_type_ids",
        *inspect.signature(getattr(_plain(model), "forward")).parameters,  # noqa: B009
      }
      if is_masked:
        kept.add("special_tokens_mask")
      examples = examples.remove_columns([name for name in names if name not in kept])
    self.lengths = np.array(
      [length_of(examples[i], f"Example {i}") for i in range(len(examples))]
    )
    plan = packing.pack(self.lengths, max_sequence_length=max_sequence_length)
    super().__init__(examples, plan, lengths=self.lengths)

  def __getitems__(self, numbers: Sequence[int]) -> list[list[Any]]:
    """Packs; a number from `len(self)` on is that of a dummy."""
    real = [number % len(self) for number in numbers]
    key = self.seed, self.epoch
    return [
      KeyedPack(pack, key=(*key, number), is_dummy=number >= len(self))
      for number, pack in zip(numbers, super().__getitems__(real), strict=True)
    ]


@dataclasses.dataclass(frozen=True)
class _Collator:
  """Lays out packs by another collator, and takes away the labels of dummies."""

  collator: PackedCollator | MaskingCollator

  def __call__(self, packs: Sequence[Any]) -> dict[str, Any]:
    batch = self.collator(packs)
    is_dummy = torch.tensor([pack.is_dummy for pack in packs])
    if is_dummy.any():
      if "sequence_mask" in batch:
        batch["sequence_mask"] &= ~is_dummy[:, None]
      if "labels" in batch and not batch["labels"].is_floating_point():
        labels = batch["labels"].reshape(len(packs), -1)  # also of one long row
        labels = labels.masked_fill(is_dummy[:, None], IGNORED)
        batch["labels"] = labels.view_as(batch["labels"])
    return batch


class _Order(torch.utils.data.Sampler):
  """Numbers of packs, the same in all processes and after a checkpoint.

  Args:
    packs: their epoch is that of the order.
    multiple: numbers of dummies follow up to a multiple of this. accelerate would repeat
      rows instead, and train on them twice.
    is_random: whether each epoch has a random order, or the numbers are sorted.
  """

  def __init__(self, packs: _Packs, *, multiple: int, is_random: bool = False):
    self._packs, self._is_random = packs, is_random
    self._number = -(-len(packs) // multiple) * multiple

  def __len__(self) -> int:
    return self._number

  def __iter__(self) -> Iterator[int]:
    order = np.arange(self._number)
    packs = self._packs
    if self._is_random:
      np.random.default_rng([packs.seed, packs.epoch]).shuffle(order[: len(packs)])
    return iter(order.tolist())


def _plain(model: Any) -> type:
  return getattr(model, "_plain", type(model))


def _targets(inputs: dict[str, Any]) -> torch.Tensor:
  """bool; the labels over which the loss of a batch is the mean."""
  labels = inputs["labels"]
  if labels.is_floating_point():
    return inputs["sequence_mask"]
  return labels != IGNORED


class _OtherPacks(TrainerCallback):
  """Lets other sequences share a row in each epoch, also after a checkpoint."""

  def __init__(self, dataset: PackedDataset):
    self.dataset = dataset

  def on_epoch_begin(self, args, state, control, **_):
    self.dataset.set_epoch(int(state.epoch or 0))


class PackedTrainer(Trainer):
  """What `packed_trainer` makes."""

  compute_metrics: Any
  data_collator: Any

  def __init__(
    self,
    pack: Callable[[Any], _Packs],
    collate: Callable[[packing.Plan], Any],
    model: Any,
    args: TrainingArguments,
    train: Any,
    evaluation: Any,
    **options: Any,
  ):
    self._pack, self._collate = pack, collate
    packs = None if train is None else pack(train)
    if isinstance(evaluation, dict):
      evaluation = {name: pack(examples) for name, examples in evaluation.items()}
    elif evaluation is not None:
      evaluation = pack(evaluation)
    super().__init__(
      model=model,
      args=args,
      train_dataset=packs,
      eval_dataset=evaluation,
      data_collator=None if packs is None else collate(packs.plan),
      **options,
    )
    if packs is not None:
      self.add_callback(_OtherPacks(packs))
    # `compute_loss` divides by the labels of all micro-batches, whatever the model does.
    self.model_accepts_loss_kwargs = self.loss_is_scaled_for_ga = True
    self._sums = np.zeros(2)  # of losses and of labels, in this evaluation

  # ---- the order of rows -------------------------------------------------------------

  def _get_train_sampler(self, train_dataset: Any = None) -> _Order:
    args, packs = self.args, self.train_dataset if train_dataset is None else train_dataset
    return _Order(
      packs,
      multiple=1 if args.dataloader_drop_last else self._rows(self._train_batch_size),
      is_random=args.train_sampling_strategy == "random",
    )

  def _get_eval_sampler(self, eval_dataset: Any) -> _Order:
    return _Order(eval_dataset, multiple=self._rows(self.args.eval_batch_size))

  def get_train_dataloader(self) -> Any:
    loader = super().get_train_dataloader()
    # Loaders draw seeds for workers, and torchdata's at another time after a checkpoint;
    # dropout would then get other numbers.
    base = loader.base_dataloader
    base.generator = torch.Generator()
    if hasattr(base, "load_state_dict"):  # torchdata's, whose workers read epoch 0 already
      base.load_state_dict({})
    return loader

  def _rows(self, batch_size: int) -> int:
    """Rows that all processes take together. One process takes any number, or drops it."""
    ranks, is_split = self.args.world_size, self.args.accelerator_config.split_batches
    if ranks == 1 and not self.args.dataloader_drop_last:
      return 1
    return batch_size * (1 if is_split else ranks)

  # ---- the loss ----------------------------------------------------------------------

  def _get_num_items_in_batch(self, batch_samples: list, device: Any) -> Any:
    """Counts labels. Where they are floats, the Trainer would count empty places, too."""
    counted = []
    for inputs in batch_samples:
      if "labels" not in inputs:
        raise InputError(
          f"Examples have no labels; found {sorted(inputs)}. Give each a label or labels, "
          "or for a masked language model masking=DataCollatorForLanguageModeling(...)."
        )
      own = torch.where(_targets(inputs), 0, IGNORED)
      counted.append({"labels": own, "shift_labels": own})  # nothing left to be shifted
    return super()._get_num_items_in_batch(counted, device)

  def compute_loss(
    self,
    model: Any,
    inputs: dict[str, Any],
    return_outputs: bool = False,
    num_items_in_batch: Any = None,
  ) -> Any:
    """The share of these rows in the mean over all labels of the step.

    Some models, BERT among them, ignore `num_items_in_batch`, and their losses of
    micro-batches would be added up. The mean over its own labels is what all models give.
    """
    own = _targets(inputs).sum()
    loss, outputs = super().compute_loss(model, inputs, return_outputs=True)
    if own == 0:  # the mean of nothing is NaN
      loss = outputs["logits"].sum() * 0
    if return_outputs:  # in an evaluation
      self._sums += float(loss.detach() * own), int(own)
    if num_items_in_batch is not None:
      # A step may have no label at all, and 0 / 0 would make all weights NaN.
      loss = loss * own / torch.as_tensor(num_items_in_batch).clamp(min=1)
      if self.args.average_tokens_across_devices:  # the gradients of ranks are averaged
        loss = loss * (self.accelerator.num_processes // self.get_tp_size())
    return (loss, outputs) if return_outputs else loss

  # ---- evaluation --------------------------------------------------------------------

  def get_eval_dataloader(self, eval_dataset: Any = None) -> Any:
    if isinstance(eval_dataset, str):
      packs = self.eval_dataset[eval_dataset]
    elif eval_dataset is None:
      packs = self.eval_dataset
    else:
      packs = eval_dataset = self._packed(eval_dataset)
    if packs is None:
      raise InputError("There are no examples to evaluate. Give evaluation=examples.")
    with self._collating(packs):
      return super().get_eval_dataloader(eval_dataset)

  def get_test_dataloader(self, test_dataset: Any) -> Any:
    packs = self._packed(test_dataset)
    with self._collating(packs):
      return super().get_test_dataloader(packs)

  def _packed(self, examples: Any) -> _Packs:
    if not isinstance(examples, _Packs):
      return self._pack(examples)
    return examples.with_own_epoch()  # which the loader sets; training may be in another

  @contextlib.contextmanager
  def _collating(self, packs: _Packs) -> Iterator[None]:
    """Lays out rows as the plan of this dataset asks, which may have a greater depth."""
    of_training: Any = self.data_collator
    self.data_collator = self._collate(packs.plan)
    try:
      yield
    finally:
      self.data_collator = of_training

  def evaluation_loop(
    self,
    dataloader: Any,
    description: str,
    prediction_loss_only: bool | None = None,
    ignore_keys: list[str] | None = None,
    metric_key_prefix: str = "eval",
  ) -> Any:
    """As for sequences alone: the mean loss over all labels, and answers in order.

    `num_samples`, and so `eval_samples_per_second`, counts sequences.
    """
    packs: Any = dataloader.dataset
    given: Any = self.compute_metrics
    self._sums[:] = 0

    def in_order(found: Any) -> Any:
      return given(
        type(found)(
          predictions=_by_example(found.predictions, packs),
          label_ids=_by_example(found.label_ids, packs),
        )
      )

    self.compute_metrics = None if given is None else in_order
    # Instead of `gather_for_metrics`, which cuts off what accelerate repeats.
    self.gather_function = self.accelerator.gather
    try:
      output = super().evaluation_loop(
        dataloader, description, prediction_loss_only, ignore_keys, metric_key_prefix
      )
    finally:
      self.compute_metrics = given
    total = torch.tensor(self._sums, dtype=torch.float32, device=self.args.device)
    loss, number = self.accelerator.reduce(total, "sum").tolist()
    name = f"{metric_key_prefix}_loss"
    if name in output.metrics:
      output.metrics[name] = loss / number if number else float("nan")
    return output._replace(
      predictions=_by_example(output.predictions, packs),
      label_ids=_by_example(output.label_ids, packs),
      num_samples=len(packs.lengths),
    )


def _by_example(values: Any, packs: _Packs) -> Any:
  """Puts answers of rows in the order of the examples.

  Args:
    values: [P, M, ...] by sequence or [P, S, ...] by token, for all packs, or several.

  Returns:
    [N, ...] or [N, longest, ...], with -100 after the end of a sequence.
  """
  if values is None:
    return None
  if isinstance(values, tuple | list):
    return type(values)(_by_example(x, packs) for x in values)
  if isinstance(values, dict):
    return {name: _by_example(x, packs) for name, x in values.items()}
  plan, lengths = packs.plan, packs.lengths
  width = values.shape[1] if values.ndim > 1 else 0
  if width % plan.row_length == 0 and width > plan.row_length:  # FlashAttention's long rows
    values = values.reshape(-1, plan.row_length, *values.shape[2:])
    width = plan.row_length
  if width not in (plan.packing_depth, plan.row_length) or len(values) < len(packs):
    raise InputError(
      f"Predictions or labels have shape {list(values.shape)}; expected [{len(packs)}, "
      f"{plan.packing_depth}, ...] by sequence or [{len(packs)}, {plan.row_length}, ...] "
      "by token. Let preprocess_logits_for_metrics keep the first two axes."
    )
  if width == plan.packing_depth:
    ordered = np.zeros((len(lengths), *values.shape[2:]), values.dtype)
    for row, pack in zip(values, packs.assignment, strict=False):
      ordered[pack] = row[: len(pack)]
    return ordered
  shape = len(lengths), int(lengths.max()), *values.shape[2:]
  ordered = np.full(shape, IGNORED, values.dtype)
  for row, pack in zip(values, packs.assignment, strict=False):
    start = 0
    for i in pack:
      end = start + lengths[i]
      ordered[i, : lengths[i]], start = row[start:end], end
  return ordered
