"""Writes tests/pipeline/golden/squad anew, from the real questions.

  python -m tests.pipeline.make_squad_golden --data=DATA
  python -m tests.pipeline.make_squad_golden --data=DATA --all=FOLDER

DATA is the folder that `tests/shared_data.py` describes. Transformers 4.57 is the last with
the legacy features, BERT's decoding and the pipeline; so this needs an environment of its
own:

  python -m venv REFERENCE
  REFERENCE/bin/pip install transformers==4.57.6 torch numpy pytest

It first trains a small model, which takes a minute. With --all the windows and answers of
every question, all logits and the model go to a folder, which
`python -m tests.pipeline.compare_squad FOLDER --data=DATA` holds ours against.
"""

# The types are those of another release of transformers.
# mypy: ignore-errors

import argparse
import json
import pathlib
import tempfile
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import pytest

pytest.importorskip("transformers.data.metrics", reason="see the top of this file")

import torch
import transformers
from transformers.data.metrics.squad_metrics import compute_predictions_logits
from transformers.data.processors import squad as legacy

from tests.pipeline.squad_reference import (
  FOLDER,
  MAX_ANSWER_LENGTH,
  NUM_ANSWERS,
  SETTINGS,
  Expected,
  digest,
  rounded,
  write,
)

EPOCHS, BATCH, PEAK = 7, 16, 1e-3


class Question(NamedTuple):
  """As in the file; the first answer counts."""

  name: str
  question: str
  context: str
  answer: str
  answer_start: int


def read(data: pathlib.Path) -> list[Question]:
  articles = json.loads((data / "squad" / "xquad.en.json").read_text())["data"]
  return [
    Question(
      asked["id"],
      asked["question"],
      paragraph["context"],
      asked["answers"][0]["text"],
      asked["answers"][0]["answer_start"],
    )
    for article in articles
    for paragraph in article["paragraphs"]
    for asked in paragraph["qas"]
  ]


# ---- Windows ---------------------------------------------------------------------------


def shorten(question: str, tokenizer, most: int) -> tuple[str, int]:
  """The text of a question's first tokens, and their number: BERT's truncation."""
  offsets = tokenizer(question, add_special_tokens=False, return_offsets_mapping=True)[
    "offset_mapping"
  ]
  if len(offsets) > most:
    return question[: offsets[most - 1][1]], most
  return question, len(offsets)


def fast_windows(item: Question, tokenizer, setting) -> list[dict[str, Any]]:
  """Of the tokenizer in Rust; labels by the rule of transformers' run_qa.py.

  Its stride is the overlap of two windows, where BERT's is the step between them.
  """
  length, step, most = setting
  question, asked = shorten(item.question, tokenizer, most)
  found = tokenizer(
    question,
    item.context,
    truncation="only_second",
    max_length=length,
    stride=length - asked - 3 - step,
    return_overflowing_tokens=True,
    return_offsets_mapping=True,
  )
  windows = []
  for number, ids in enumerate(found["input_ids"]):
    kinds = found.encodings[number].sequence_ids
    inside = [place for place, kind in enumerate(kinds) if kind == 1]
    offsets = found["offset_mapping"][number]
    begin = offsets[inside[0]][0]
    windows.append(
      {
        "input_ids": ids,
        "first_type_length": found["token_type_ids"][number].index(1),
        "offsets": [[at - begin for at in offsets[place]] for place in inside],
        "text": [*map(ord, item.context[begin : offsets[inside[-1]][1]])],
        "label": run_qa_label(item, offsets, inside),
      }
    )
  return windows


def run_qa_label(item: Question, offsets, inside: list[int]) -> list[int]:
  start, end = item.answer_start, item.answer_start + len(item.answer)
  first, last = inside[0], inside[-1]
  if offsets[first][0] > start or offsets[last][1] < end:
    return [0, 0]
  while first <= inside[-1] and offsets[first][0] <= start:
    first += 1
  while offsets[last][1] >= end:
    last -= 1
  return [first - 1, last + 1]


def legacy_windows(item: Question, tokenizer, setting, *, padding: str = "do_not_pad"):
  """Features of squad_convert_examples_to_features, the port of BERT's run_squad.py."""
  length, step, most = setting
  legacy.squad_convert_example_to_features_init(tokenizer)
  return legacy.squad_convert_example_to_features(
    example(item), length, step, most, padding, True
  )


def example(item: Question):
  return legacy.SquadExample(
    item.name, item.question, item.context, item.answer, item.answer_start, ""
  )


def described(feature) -> dict[str, Any]:
  """What of a legacy feature ours has too."""
  return {
    "input_ids": feature.input_ids,
    "first_type_length": feature.token_type_ids.index(1),
    "label": [feature.start_position, feature.end_position],
    "max_context": [place for place, most in feature.token_is_max_context.items() if most],
  }


# ---- A model ---------------------------------------------------------------------------


def train(windows: list[dict], vocab_size: int):
  """A small model that has learned something; the windows all hold their answer."""
  torch.manual_seed(0)
  config = transformers.BertConfig(
    vocab_size=vocab_size,
    hidden_size=64,
    num_hidden_layers=2,
    num_attention_heads=2,
    intermediate_size=256,
    max_position_embeddings=384,
    hidden_dropout_prob=0.0,
    attention_probs_dropout_prob=0.0,
  )
  model = transformers.BertForQuestionAnswering(config)
  optimizer = torch.optim.AdamW(model.parameters(), PEAK, weight_decay=0.01)
  steps = EPOCHS * (len(windows) // BATCH)
  schedule = transformers.get_linear_schedule_with_warmup(optimizer, steps // 10, steps)
  rng = np.random.default_rng(0)
  for epoch in range(EPOCHS):
    order, total = rng.permutation(len(windows)), 0.0
    for part in order[: len(windows) // BATCH * BATCH].reshape(-1, BATCH):
      rows = [windows[number] for number in part]
      starts, ends = torch.tensor([row["label"] for row in rows]).T
      loss = model(**padded(rows), start_positions=starts, end_positions=ends).loss
      optimizer.zero_grad()
      loss.backward()
      optimizer.step()
      schedule.step()
      total += loss.item()
    print(f"epoch {epoch + 1} of {EPOCHS}: loss {total / (len(windows) // BATCH):.3f}")
  return model.eval()


def padded(rows: list[dict]) -> dict[str, torch.Tensor]:
  length = max(len(row["input_ids"]) for row in rows)
  names = ("input_ids", "token_type_ids", "attention_mask")
  batch = {name: torch.zeros(len(rows), length, dtype=torch.long) for name in names}
  for number, row in enumerate(rows):
    size = len(row["input_ids"])
    batch["input_ids"][number, :size] = torch.tensor(row["input_ids"])
    batch["token_type_ids"][number, row["first_type_length"] : size] = 1
    batch["attention_mask"][number, :size] = 1
  return batch


def logits_of(model, feature) -> np.ndarray:
  """float32[length, 2], of a window alone."""
  names = ("input_ids", "token_type_ids", "attention_mask")
  with torch.no_grad():
    result = model(**{name: torch.tensor([getattr(feature, name)]) for name in names})
  return torch.stack([result.start_logits[0], result.end_logits[0]], -1).numpy()


# ---- Answers ---------------------------------------------------------------------------


def by_bert(item: Question, features, logits, tokenizer) -> dict[str, Any]:
  """The best answer by BERT's rule, the sum of its logits, and those of the n best."""
  results = []
  for number, (feature, both) in enumerate(zip(features, logits, strict=True)):
    feature.example_index, feature.unique_id = 0, number
    results.append(legacy.SquadResult(number, *both.T.tolist()))
  with tempfile.NamedTemporaryFile() as file:
    compute_predictions_logits(
      [example(item)],
      features,
      results,
      NUM_ANSWERS,
      MAX_ANSWER_LENGTH,
      True,  # lower case
      None,
      file.name,
      None,
      False,
      False,  # no questions without an answer
      0.0,
      tokenizer,
    )
    found = json.loads(pathlib.Path(file.name).read_text())[item.name]
  scores = [answer["start_logit"] + answer["end_logit"] for answer in found]
  return {"text": found[0]["text"], "score": scores[0], "scores": digest(scores)}


def by_pipeline(item: Question, pipeline, logits, setting, *, align: bool) -> str:
  """The answer of transformers' question-answering pipeline, from logits that are given."""
  length, step, most = setting
  question, asked = shorten(item.question, pipeline.tokenizer, most)
  inputs = list(
    pipeline.preprocess(
      {"question": question, "context": item.context},
      max_seq_len=length,
      doc_stride=length - asked - 3 - step,
    )
  )
  for window, both in zip(inputs, logits, strict=True):
    window["start"], window["end"] = map(torch.tensor, both.T[:, None].astype(np.float64))
  found = pipeline.postprocess(
    inputs, max_answer_len=MAX_ANSWER_LENGTH, align_to_words=align
  )
  return found["answer"] if found else ""


# ---- All of it -------------------------------------------------------------------------


def hashed(window: dict) -> dict:
  long = "input_ids", "offsets", "text", "max_context"
  return {name: digest(value) if name in long else value for name, value in window.items()}


def expectations(
  items: list[Question], setting: str, data: pathlib.Path, model, *, exact: bool
) -> Iterator[Expected]:
  """What transformers makes of questions.

  Args:
    items: the questions.
    setting: a name of SETTINGS.
    data: with the vocabulary.
    model: answers them.
    exact: answers follow from all digits of the logits, not from those a golden file has.
  """
  chosen = SETTINGS[setting]
  vocabulary = str(data / "bert-base-uncased-vocab.txt")
  slow = transformers.BertTokenizer(vocabulary)
  fast = transformers.BertTokenizerFast(vocabulary)
  pipeline = transformers.pipeline(
    "question-answering", model=model, tokenizer=fast, device="cpu"
  )
  for item in items:
    features = legacy_windows(item, slow, chosen)
    filled = legacy_windows(item, slow, chosen, padding="max_length")
    logits = [logits_of(model, feature) for feature in features]
    if not exact:
      logits = [rounded(both) for both in logits]
    windows = {
      "fast": [hashed(window) for window in fast_windows(item, fast, chosen)],
      "legacy": [hashed(described(feature)) for feature in features],
    }
    padded_logits = [logits_of(model, feature) for feature in filled]
    answers = {
      "bert": by_bert(item, features, logits, slow),
      "bert_padded": by_bert(item, filled, padded_logits, slow),
      "pipeline": by_pipeline(item, pipeline, logits, chosen, align=False),
      "pipeline_words": by_pipeline(item, pipeline, logits, chosen, align=True),
    }
    yield Expected(setting, item.name, windows, answers, logits)


def added(windows: list[dict], setting) -> int:
  """The tokens that only the last window has."""
  sizes = [len(window["offsets"]) for window in windows]
  return sizes[-1] - sizes[-2] + setting[1] if len(sizes) > 1 else sizes[-1]


def main():
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument("--data", type=pathlib.Path, required=True, help="the data folder")
  parser.add_argument("--all", type=pathlib.Path, help="a folder for all questions")
  options = parser.parse_args()
  torch.set_num_threads(1)
  transformers.logging.set_verbosity_error()
  items = read(options.data)
  fast = transformers.BertTokenizerFast(str(options.data / "bert-base-uncased-vocab.txt"))
  windows = {
    name: [fast_windows(item, fast, setting) for item in items]
    for name, setting in SETTINGS.items()
  }
  holding = [w for mine in windows["128"] for w in mine if w["label"] != [0, 0]]
  model = train(holding, len(fast))
  folder = options.all or FOLDER
  folder.mkdir(parents=True, exist_ok=True)
  found: list[Expected] = []
  for name, least, most in (("384", 2, 5), ("128", 3, 36)):
    chosen = items
    if options.all is None:  # some with several windows, from all over the file
      pairs = list(zip(items, windows[name], strict=True))
      several = [item for item, mine in pairs if len(mine) >= least]
      full = SETTINGS[name][2] + 2  # [CLS] question [SEP]
      long = [item for item, mine in pairs if mine[0]["first_type_length"] == full]
      edge = [item for item, mine in pairs if added(mine, SETTINGS[name]) == 1]
      chosen = [*several[:: len(several) // most][:most], *long[:9], *edge[:3]]
    exact = options.all is not None
    found += expectations(chosen, name, options.data, model, exact=exact)
    print(f"setting {name}: {len(chosen)} questions")
  write(folder, found, exact=options.all is not None)
  if options.all is not None:
    model.save_pretrained(folder)


if __name__ == "__main__":
  main()
