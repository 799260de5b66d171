"""The table of differences: packed to unpacked, to the reference, and between sequences.

`python -m model verify` prints it: a row for every head, attention implementation and
dtype; or only those of a stored model, with its own weights. If this machine cannot run a
case, its row says why.
"""

from __future__ import annotations

import concurrent.futures
import dataclasses
import importlib.util
import json
import math
import os
import pathlib
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import flax.nnx as nnx
import jax
import jax.numpy as jnp
import numpy as np

from model import attention
from model.attention import kernels
from model.config import ModelConfig
from model.models import CONFIGS, abstract_model
from model.testing import TOLERANCES, differences, first_fit
from model.testing.probe import owners_of
from packing.testing import lay_out
from packing.testing.causality import find_lookahead
from packing.testing.influence import find_leaks

if TYPE_CHECKING:  # imported only for types: random models need no files
  from model.weights import StoredModel

ROW_LENGTH = 128  # tokens; the smallest that splash takes
# A full row, several of the shortest sequences, a single token, and a mixture.
LENGTHS = (128, 60, 50, 18, 2, 2, 2, 1, 33, 70)
# For ModernBERT, a global layer and a local one with a window shorter than most sequences.
_LOCAL = {"global_every": 2, "local_window": 32}
# Encoders of BERT's kind, in which other parts are absent.
_ABSENT = {"next_sentence": False, "pooler": False}
_ROBERTA = {"variant": "roberta", "type_vocab_size": 1, "position_offset": 2} | _ABSENT
_DISTILBERT = {"variant": "distilbert", "type_vocab_size": 0} | _ABSENT
_ELECTRA = {"variant": "electra", "embedding_size": 48} | _ABSENT
# Name: family, head, and fields of the config.
HEADS: dict[str, tuple[str, str, dict]] = {
  "masked tokens, next sentence": ("bert", "pretraining", {}),
  "sequence classes": ("bert", "sequence_classification", {"num_labels": 3}),
  "several classes": (
    "bert",
    "sequence_classification",
    {"num_labels": 3, "multi_label": True},
  ),
  "regression": ("bert", "sequence_classification", {"num_labels": 1}),
  "token classes": ("bert", "token_classification", {"num_labels": 3}),
  "question answering": ("bert", "question_answering", {}),
  "embeddings": ("bert", "encoder", {}),
  "RoBERTa, masked tokens": ("bert", "pretraining", _ROBERTA),
  "RoBERTa, sequence classes": ("bert", "sequence_classification", _ROBERTA),
  "DistilBERT, sequence classes": ("bert", "sequence_classification", _DISTILBERT),
  "DistilBERT, question answering": ("bert", "question_answering", _DISTILBERT),
  "ELECTRA, masked tokens": ("bert", "pretraining", _ELECTRA),
  "ELECTRA, token classes": ("bert", "token_classification", _ELECTRA),
  "ModernBERT, masked tokens": ("modern_bert", "pretraining", _LOCAL),
  "ModernBERT, sequence classes": (
    "modern_bert",
    "sequence_classification",
    {"num_labels": 3, "pooling": "mean"} | _LOCAL,
  ),
  "ModernBERT, token classes": (
    "modern_bert",
    "token_classification",
    {"num_labels": 3} | _LOCAL,
  ),
  "ModernBERT, embeddings": ("modern_bert", "encoder", _LOCAL),
  "next tokens, ALiBi": ("gpt2", "causal", {"positions": "alibi"}),
  "next tokens, learned positions": ("gpt2", "causal", {"positions": "learned"}),
}
DTYPES = ("float32", "float64", "bfloat16")
QUICK_HEAD = "masked tokens, next sentence"
# Tokens. cuDNN's gradients were NaN elsewhere in rows of 64 more than a multiple of 128.
QUICK_LENGTHS = (192, 512)


@dataclasses.dataclass(frozen=True)
class Row:
  """The differences for one head, implementation and dtype.

  Each is the largest difference divided by the largest value; None if nothing is compared.

  Attributes:
    head, implementation, dtype: the case.
    outputs: packed to unpacked, for hidden states and logits.
    losses: packed to unpacked, for losses and accuracies per sequence.
    gradients: packed to unpacked, over the whole tree.
    reference: the logits of packed sequences to Hugging Face's for each sequence alone,
      computed in float32, or in float64 for float64; None unless `has_reference`.
    influence: the largest derivative of a sequence's outputs with respect to another's
      embeddings; in a causal model also of a token's outputs with respect to later tokens.
    limit: the largest difference allowed.
    failed: the error of a kernel that differs from XLA's attention on this device.
    not_run: why the case was not run; empty if it was.
  """

  head: str
  implementation: str
  dtype: str
  outputs: float | None = None
  losses: float | None = None
  gradients: float | None = None
  reference: float | None = None
  influence: float | None = None
  limit: float | None = None
  failed: str = ""
  not_run: str = ""

  @property
  def passes(self) -> bool | None:
    """Whether all differences are within the limit; None if the case was not run."""
    if self.not_run:
      return None
    if self.failed:
      return False
    sizes = (self.outputs, self.losses, self.gradients, self.reference)
    limit = self.limit or 0.0
    equal = all(size <= limit for size in sizes if size is not None)
    return equal and self.influence == 0


@dataclasses.dataclass(frozen=True)
class KernelComparison:
  """An implementation compared with XLA's attention in float32, for outputs and gradients.

  Attributes:
    implementation, dtype, row_length: the case; S in tokens.
    difference: the largest difference divided by the largest value.
    failed: why there is none.
  """

  implementation: str
  dtype: str
  row_length: int
  difference: float = math.nan
  failed: str = ""

  @property
  def passes(self) -> bool:
    return self.difference <= TOLERANCES[self.dtype]

  @property
  def outcome(self) -> str:
    """Empty if it passes. Models refuse a kernel for accelerators where it is wrong."""
    refused = kernels.KERNELS[self.implementation].platform is not None
    return "" if self.passes else "refused" if refused else "FAILS"


def reference_is_installed() -> bool:
  return all(importlib.util.find_spec(name) for name in ("torch", "transformers"))


def cases(heads: Sequence[str] = tuple(HEADS)) -> list[tuple[str, str, str]]:
  """The head, implementation and dtype of each row, in the order of the table."""
  return [
    (head, implementation, dtype)
    for implementation in kernels.IMPLEMENTATIONS
    for head in heads
    for dtype in DTYPES
    if dtype in kernels.dtypes_of(implementation)
  ]


def verify(
  show: Callable[[list], Iterator] = iter,
  *,
  stored: StoredModel | None = None,
  reference: bool,
) -> list[Row]:
  """Runs every case that this machine can run.

  Args:
    show: wraps the list of cases to show progress.
    stored: a model whose weights are used, in float32 and bfloat16; None for small random
      models of every head.
    reference: whether to compare with Hugging Face.
  """
  if stored is None:
    return [verify_case(*case, reference=reference) for case in show(cases())]
  params = stored.load()
  chosen = [case for case in cases([stored.head]) if case[2] != "float64"]
  return [
    _verify(Row(*case), stored.head, stored.config, params, reference=reference)
    for case in show(chosen)
  ]


def quick(
  show: Callable[[list], Iterator] = iter,
  dtypes: Sequence[str] = ("float32", "bfloat16"),
) -> tuple[list[Row], list[KernelComparison]]:
  """The implementations that this device has, in these dtypes.

  One head is verified, with one layer, and attention alone is compared with XLA's. Rows
  end in padding, have padding between sequences, or are empty.

  Args:
    show: wraps the list of cases to show progress.
    dtypes: of the computation.
  """
  names = [
    name
    for name in kernels.IMPLEMENTATIONS
    if name == "xla" or (kernels.runs_here(name) and name != "splash_interpret")
  ]
  pairs = [(n, d) for n in names for d in dtypes if d in kernels.dtypes_of(n)]
  # On a CPU, XLA compiles most of the time, on one core a case. On a GPU, what one thread
  # does can break the graph of launches that XLA records in another.
  workers = os.cpu_count() if jax.default_backend() == "cpu" else 1
  with concurrent.futures.ThreadPoolExecutor(workers) as threads:
    rows = [threads.submit(verify_case, QUICK_HEAD, *pair, num_layers=1) for pair in pairs]
    comparisons = [
      threads.submit(compare_with_xla, *pair, length)
      for pair in pairs
      for length in QUICK_LENGTHS
      if pair[0] != "xla"
    ]
    for case in show([*rows, *comparisons]):
      concurrent.futures.wait([case])
  return [row.result() for row in rows], [one.result() for one in comparisons]


def compare_with_xla(
  implementation: str, dtype: str, row_length: int, head_size: int = 64
) -> KernelComparison:
  """Compares a kernel with XLA's attention; BERT's heads have 64 numbers."""
  case = KernelComparison(implementation, dtype, row_length)
  try:
    needs = kernels.Needs(dtype, head_size=head_size, row_length=row_length)
    size = attention.difference_from_xla(implementation, needs)
  except (RuntimeError, ValueError, TypeError) as error:  # of JAX, cuDNN or XLA
    return dataclasses.replace(case, failed=str(error).strip().partition("\n")[0][:300])
  return dataclasses.replace(case, difference=size)


def verify_case(
  head: str,
  implementation: str,
  dtype: str,
  *,
  num_layers: int = 2,
  reference: bool = False,
) -> Row:
  """Computes one row; the first arguments are its first columns."""
  family, name, fields = HEADS[head]
  config = CONFIGS[family](
    vocab_size=97,
    hidden_size=64,
    num_layers=num_layers,
    num_heads=2,
    intermediate_size=96,
    max_position_embeddings=ROW_LENGTH,
    **fields,
  )
  return _verify(Row(head, implementation, dtype), name, config, reference=reference)


def _verify(
  row: Row, name: str, config: ModelConfig, params=None, *, reference: bool
) -> Row:
  """Fills a row, for the head `name`; parameters are random unless given."""
  dtype = row.dtype
  # By default, accelerators compute products of float32 with fewer bits.
  precision = "highest" if dtype == "float32" else None
  with jax.enable_x64(dtype == "float64"), jax.default_matmul_precision(precision):
    config = dataclasses.replace(
      config,
      dropout_rate=0.0,
      attention_dropout_rate=0.0,
      attention_impl=row.implementation,
      remat="none",
      dtype=jnp.dtype(dtype),
      param_dtype=np.promote_types(dtype, np.float32),
    )
    row_length = ROW_LENGTH
    if not getattr(config, "position_reset", True):  # positions count to the row's end
      row_length = min(ROW_LENGTH, config.max_position_embeddings)
    try:
      for needs in attention.needs_of(config, row_length):
        kernels.check_kernel(row.implementation, needs)
    except kernels.AttentionError as error:
      return dataclasses.replace(row, not_run=str(error))
    try:
      attention.check_model(config, row_length)
    except kernels.AttentionError as error:  # it is wrong or does not run: a row that fails
      return dataclasses.replace(row, failed=str(error))
    if params is None:
      params = _random_params(config, name)
    model = nnx.merge(abstract_model(config, name)[0], params)
    sequences = _random_sequences(config, name)
    packs = first_fit(sequences, row_length)
    batch = lay_out([[sequences[i] for i in pack] for pack in packs], row_length=row_length)

    sizes = {d.output: d.size for d in differences(model, sequences, row_length=row_length)}
    gradients = sizes.pop("gradients")
    of_losses = {k: v for k, v in sizes.items() if k.endswith(("_loss", "_accuracy"))}
    influences = [leak.size for leak in find_leaks(model, batch)]
    if name == "causal" and (lookahead := find_lookahead(model, batch)):
      influences.append(lookahead.size)
    row = dataclasses.replace(
      row,
      outputs=_largest(v for k, v in sizes.items() if k not in of_losses),
      losses=_largest(of_losses.values()) if of_losses else None,
      gradients=gradients,
      influence=_largest([0.0, *influences]),
      limit=TOLERANCES[dtype],
    )
    if reference and has_reference(config):
      ours = jax.jit(lambda model, batch: model(batch))(model, batch)
      theirs = _reference(config, params, sequences)
      gaps = []
      for output, logits in ours.items():
        real = np.asarray(owners_of(output, batch)) > 0
        expected = np.concatenate([theirs[i][output] for pack in packs for i in pack])
        gap = np.abs(np.asarray(logits, np.float64)[real] - expected).max()
        gaps.append(gap / np.abs(expected).max())
      row = dataclasses.replace(row, reference=_largest(gaps))
  return row


def _largest(sizes: Iterable[float]) -> float:
  """The largest; NaN if one is NaN, which Python's `max` may drop."""
  return float(np.max([*sizes]))


def has_reference(config: ModelConfig) -> bool:
  """Whether `transformers` computes the same function, in the config's dtype.

  It has no ALiBi, and no mask between the sentences of a pair, and its ModernBERT always
  rotates queries and keys in float32.
  """
  is_exact = config.FAMILY != "modern_bert" or jnp.dtype(config.dtype).name != "float64"
  return config.slopes is None and config.attention_mask != "token_type" and is_exact


def table(rows: list[Row]) -> str:
  """The rows as Markdown, which is also readable in a terminal."""
  ran = [row for row in rows if not row.not_run]
  parts = [_markdown([{"head": row.head} | _cells([row]) for row in ran])]
  if len({row.head for row in ran}) > 1:
    parts += ["The largest over all heads:", _markdown(largest(rows))]
  for what, name in (("FAILS", "failed"), ("Not run", "not_run")):
    heads: dict[tuple[str, str], list[str]] = {}  # by kernel and reason
    for row in rows:
      if reason := getattr(row, name):
        heads.setdefault((row.implementation, reason), []).append(row.head)
    for (kernel, reason), some in heads.items():
      others = {row.head for row in rows if row.implementation == kernel} - {*some}
      where = f" ({', '.join(dict.fromkeys(some))})" if others else ""
      parts.append(f"{what}, {kernel}{where}: {reason}")
  return "\n\n".join(filter(None, parts))


def largest(rows: list[Row]) -> list[dict[str, str]]:
  """For each implementation and dtype, the largest number of each column over all heads."""
  groups: dict[tuple[str, str], list[Row]] = {}
  for row in rows:
    if not row.not_run:
      groups.setdefault((row.implementation, row.dtype), []).append(row)
  return [_cells(group) for group in groups.values()]


def _cells(rows: list[Row]) -> dict[str, str]:
  """The cells of rows of one implementation and dtype: the largest of each number."""

  def number(name: str) -> str:
    sizes = [x for row in rows if (x := getattr(row, name)) is not None]
    return "-" if not sizes else f"{_largest(sizes):.1e}" if any(sizes) else "0"

  return {
    "attention": rows[0].implementation,
    "dtype": rows[0].dtype,
    "outputs": number("outputs"),
    "losses": number("losses"),
    "gradients": number("gradients"),
    "Hugging Face": number("reference"),
    "influence": number("influence"),
    "": "" if all(row.passes for row in rows) else "FAILS",
  }


def comparison_table(comparisons: Sequence[KernelComparison]) -> str:
  """The comparisons with XLA's attention as Markdown; "" for none."""
  if not comparisons:
    return ""
  text = _markdown(
    [
      {
        "attention": one.implementation,
        "dtype": one.dtype,
        "row length": str(one.row_length),
        "difference from xla in float32": one.failed or f"{one.difference:.1e}",
        "": one.outcome,
      }
      for one in comparisons
    ]
  )
  if any(one.outcome == "refused" for one in comparisons):
    text += (
      "\n\nrefused: wrong on this device in such rows. attention_impl=auto takes another; "
      "by name it is an error."
    )
  return text


def _markdown(records: Sequence[Mapping[str, str]]) -> str:
  """A table; columns of words are those of names, dtypes and outcomes."""
  if not records:
    return ""
  names = list(records[0])
  rule = ["---" if name in ("head", "attention", "dtype", "") else "---:" for name in names]
  lines = [names, *(record.values() for record in records)]
  first, *others = (f"| {' | '.join(line)} |" for line in lines)
  return "\n".join([first, f"|{'|'.join(rule)}|", *others])


def _random_params(config: ModelConfig, head: str):
  """Random parameters, large enough for every path to matter.

  Kernels keep the scale of their inputs.
  """
  rng = np.random.default_rng(0)
  state = abstract_model(config, head)[1]

  def draw(path, x):
    values = rng.standard_normal(x.shape)
    kind = path[-1].key
    if kind == "kernel":
      values /= x.shape[0] ** 0.5
    elif kind != "embedding":
      values = 0.2 * values + (kind == "scale")
    return jnp.asarray(values, x.dtype)

  return jax.tree_util.tree_map_with_path(draw, nnx.to_pure_dict(state))


def _random_sequences(config: ModelConfig, head: str) -> list[dict]:
  rng = np.random.default_rng(1)
  vocab_size, num_labels = config.vocab_size, getattr(config, "num_labels", 2)
  token_types = 2 if getattr(config, "tells_types", True) else 1
  padding = getattr(config, "position_offset", 0) - 1  # which is never in a sequence
  longest = min(ROW_LENGTH, config.max_position_embeddings)
  sequences = []
  for length in np.minimum(LENGTHS, longest).tolist():
    tokens = rng.integers(vocab_size, size=length)
    sequence: dict = {
      "input_ids": np.where(tokens == padding, padding + 1, tokens),
      "token_type_ids": (np.arange(length) >= length // 2) % token_types,
    }
    if head == "pretraining":
      positions = np.sort(rng.choice(length, -(-length // 7), replace=False))
      sequence["mlm_positions"] = positions
      sequence["mlm_labels"] = rng.integers(vocab_size, size=positions.size)
      sequence["sequence_label"] = int(rng.integers(2))
    elif head == "sequence_classification":
      number = num_labels == 1
      sequence["sequence_label"] = (
        float(rng.normal()) if number else int(rng.integers(num_labels))
      )
      if getattr(config, "multi_label", False):
        sequence["sequence_label"] = rng.random(num_labels) < 0.5
    elif head == "token_classification":
      sequence["token_labels"] = rng.integers(-1, num_labels, size=length)
    elif head == "question_answering":
      start, end = np.sort(rng.integers(length, size=2))
      sequence |= {"start_position": int(start), "end_position": int(end)}
    sequences.append(sequence)
  return sequences


def _reference(config: ModelConfig, params, sequences: list[dict]) -> list[dict]:
  """The logits of `transformers` for each sequence alone: float[items, width] by output."""
  import torch
  import transformers

  from model import hf  # imported late: the other columns need no files

  transformers.utils.logging.set_verbosity_error()
  transformers.utils.logging.disable_progress_bar()
  with tempfile.TemporaryDirectory() as folder:
    directory = pathlib.Path(folder) / "model"
    hf.export_model(config, params, directory)
    (architecture,) = json.loads((directory / hf.CONFIG).read_text())["architectures"]
    model = getattr(transformers, architecture).from_pretrained(
      directory, attn_implementation="eager"
    )
  model = model.to(getattr(torch, config.param_dtype.name)).eval()

  return [_run_reference(torch, model, architecture, sequence) for sequence in sequences]


def _run_reference(torch, model, architecture: str, sequence: dict) -> dict:
  names = ["input_ids"]
  has_types = architecture.startswith(("Bert", "Electra"))
  if has_types and model.config.type_vocab_size > 1:
    names.append("token_type_ids")
  inputs = {n: torch.tensor(np.asarray(sequence[n], np.int64)[None]) for n in names}
  with torch.no_grad():
    result = model(**inputs)
  if architecture == "GPT2LMHeadModel":
    return {"causal_logits": result.logits[0].numpy()}
  if architecture == "BertForPreTraining":
    return {
      "mlm_logits": result.prediction_logits[0].numpy()[sequence["mlm_positions"]],
      "nsp_logits": result.seq_relationship_logits.numpy(),
    }
  if architecture.endswith("ForMaskedLM"):
    return {"mlm_logits": result.logits[0].numpy()[sequence["mlm_positions"]]}
  if architecture.endswith("Model"):
    hidden = result.last_hidden_state[0]
    outputs = {"sequence_mean": hidden.mean(0), "sequence_cls": hidden[0]}
    if getattr(result, "pooler_output", None) is not None:
      outputs["sequence_pooled"] = result.pooler_output[0]
    return {name: vector[None].numpy() for name, vector in outputs.items()}
  if architecture.endswith("ForSequenceClassification"):
    return {"sequence_logits": result.logits.numpy()}
  if architecture.endswith("ForTokenClassification"):
    return {"token_logits": result.logits[0].numpy()}
  answers = torch.stack([result.start_logits[0], result.end_logits[0]], -1)
  return {"answer_logits": answers.numpy()}
