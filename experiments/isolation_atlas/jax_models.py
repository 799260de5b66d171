"""The same for models in JAX: those of this project, and of two libraries.

  python -m experiments.isolation_atlas.jax_models

The libraries are gemma 3.3.0 and penzai 0.2.5. Without one of them its rows stay as they
were found before. `pip install --no-deps gemma==3.3.0 penzai==0.2.5 kauldron` and what they
then ask for is enough.
"""

from __future__ import annotations

import importlib.metadata
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from experiments.isolation_atlas.examples import VOCABULARY, examples
from lab import options, pages
from model.config import BertConfig
from model.gpt2 import Gpt2Config
from model.models import make_model
from model.modern_bert import ModernBertConfig
from packing.files import write_json
from packing.testing import isolation, lay_out

TABLES = pages.ROOT / "docs" / "measured" / "isolation_atlas_jax.json"
Rows = Callable[[Sequence[dict]], dict[str, np.ndarray]]


class Way(NamedTuple):
  """A model and a way to call it with several sequences in a row."""

  model: str
  call: str
  apply: Callable[..., Any]
  collate: Rows


def packed(rows: Sequence[dict]) -> dict[str, np.ndarray]:
  """All sequences in one row, with `segment_ids` and positions that restart."""
  return lay_out([list(rows)], row_length=sum(len(x["input_ids"]) for x in rows))


def positions(rows: Sequence[dict]) -> dict[str, np.ndarray]:
  """All sequences in one row, with positions that restart and nothing else."""
  return {name: packed(rows)[name] for name in ("input_ids", "position_ids")}


def whole(rows: Sequence[dict]) -> dict[str, np.ndarray]:
  """The same, as if the row were one sequence."""
  ids = [token for example in rows for token in example["input_ids"]]
  return packed([{"input_ids": ids}])


def ours() -> Iterator[Way]:
  """BERT, ModernBERT and GPT-2 of this project, with the segment mask and without."""
  size: dict[str, Any] = {
    **{"vocab_size": VOCABULARY, "hidden_size": 64, "num_layers": 4, "num_heads": 4},
    **{"intermediate_size": 128, "initializer_range": 0.08},
    **{"dropout_rate": 0.0, "attention_dropout_rate": 0.0, "max_position_embeddings": 64},
  }
  configs = [
    ("BERT", BertConfig(**size), "pretraining"),
    ("ModernBERT", ModernBertConfig(**size, local_window=4), "pretraining"),
    ("GPT-2, learned positions", Gpt2Config(**size, positions="learned"), "causal"),
    ("GPT-2, ALiBi", Gpt2Config(**size), "causal"),
  ]
  for name, config, head in configs:
    model = make_model(config, head, seed=0)

    def apply(model: Any = model, **batch: Any) -> Any:
      batch.setdefault("segment_ids", np.ones_like(batch["input_ids"]))
      batch.setdefault("token_type_ids", np.zeros_like(batch["input_ids"]))
      length = batch["input_ids"].shape[1]
      batch.setdefault("position_ids", np.arange(length, dtype=np.int32)[None])
      return list(model.hidden_states(batch).values())[-1]

    yield Way(f"isopack {name}", "`segment_ids` and `position_ids`", apply, packed)
    yield Way(f"isopack {name}", "the row as one sequence", apply, whole)


def gemma() -> Iterator[Way]:
  """The Gemma of Google DeepMind's library, in Flax."""
  from gemma import gm

  kinds = gm.nn.AttentionType
  config = gm.nn.config.TransformerConfig(
    num_embed=VOCABULARY,
    embed_dim=64,
    hidden_dim=128,
    num_heads=4,
    head_dim=16,
    num_kv_heads=2,
    final_logit_softcap=None,
    use_post_attn_norm=False,
    use_post_ffw_norm=False,
    attention_types=(kinds.LOCAL_SLIDING, kinds.GLOBAL) * 2,
    sliding_window_size=4,
  )
  model = gm.nn.Transformer(config=config, dtype=jnp.float32)
  params = model.init(jax.random.key(0), jnp.ones((1, 4), jnp.int32))

  def apply(input_ids, position_ids=None, attention_mask=None):
    more = {"positions": position_ids, "attention_mask": attention_mask}
    return model.apply(params, jnp.asarray(input_ids), **more).logits

  def masked(rows):
    segments = packed(rows)["segment_ids"]
    same = segments[:, :, None] == segments[:, None, :]
    return positions(rows) | {"attention_mask": np.tril(same)}

  name = f"gemma {importlib.metadata.version('gemma')}"
  yield Way(name, "`positions` that restart", apply, positions)
  yield Way(name, "the same and `attention_mask` by segments", apply, masked)


def penzai() -> Iterator[Way]:
  """The Llama of penzai."""
  from penzai import pz
  from penzai.models.transformer.variants import llamalike_common as common

  config = common.LlamalikeTransformerConfig(
    num_kv_heads=2,
    query_head_multiplier=2,
    embedding_dim=64,
    projection_dim=16,
    mlp_hidden_dim=128,
    num_decoder_blocks=4,
    vocab_size=VOCABULARY,
    mlp_variant="swiglu",
    tie_embedder_and_logits=False,
  )
  model = common.build_llamalike_transformer(config, jax.random.key(0))

  def apply(input_ids, position_ids=None):
    if position_ids is None:
      position_ids = np.arange(input_ids.shape[1])[None]
    ids, places = (
      pz.nx.wrap(jnp.asarray(x), "batch", "seq") for x in (input_ids, position_ids)
    )
    return model(ids, token_positions=places).unwrap("batch", "seq", "vocabulary")

  name = f"penzai {importlib.metadata.version('penzai')}, Llama"
  yield Way(name, "`token_positions` that restart", apply, positions)


def main(arguments: list[str] | None = None):
  options.make_parser(__doc__, "experiments.isolation_atlas.jax_models").parse_args(
    arguments
  )
  before = pages.published().get(TABLES.name, {}).get("models", [])
  rows: list[dict[str, str]] = []
  for make in (ours, gemma, penzai):
    try:
      ways = list(make())
    except ImportError as error:
      print(f"Left as it was: {make.__name__} ({error}).", file=sys.stderr)
      rows += [dict(row) for row in before if row["model"].startswith(make.__name__)]
      continue
    rows += [_row(way) for way in ways]
  write_json(TABLES, {"models": rows})
  pages.main([])


def _row(way: Way) -> dict[str, str]:
  found = isolation(way.apply, way.collate, examples=examples())
  return {
    "model": way.model,
    "call": way.call,
    "verdict": found.verdict,
    "influence": f"{found.influence:.2g}",
    "difference from alone": f"{found.difference:.2g}",
  }


if __name__ == "__main__":
  sys.exit(options.run(main))
