"""Writes tests/pipeline/golden/squad anew: what transformers makes of real questions.

  python -m tests.pipeline.make_squad_golden --data=DATA
  python -m tests.pipeline.make_squad_golden --data=DATA --all=FOLDER

DATA is the folder that `tests/shared_data.py` describes; the answers are excerpts of XQuAD
(CC BY-SA 4.0). The questions stay those of the golden file: some with several windows, of
the greatest length, or with one token in the last window. With --all every question goes to
a folder, with which
`SQUAD_GOLDEN=FOLDER python -m pytest tests/pipeline/tasks/test_squad_reference.py` compares
ours. A small model is trained first, which takes a minute.

Transformers 4.57 is the last with the legacy features and BERT's decoding; so this imports
nothing of ours and needs an environment of its own:

  python -m venv REFERENCE
  REFERENCE/bin/pip install transformers==4.57.6 torch numpy
"""

# The types are those of another release of transformers.
# mypy: ignore-errors

import argparse
import json
import pathlib
import tempfile
import zlib

import numpy as np

FOLDER = pathlib.Path(__file__).parent / "golden" / "squad"
# max_sequence_length, doc_stride, max_question_length
SETTINGS = {"384": (384, 128, 64), "128": (128, 32, 24)}
NUM_ANSWERS, MAX_ANSWER_LENGTH = 20, 30
SCALE = 100  # logits are kept, and decoded, as whole hundredths
EPOCHS, BATCH, PEAK = 7, 16, 1e-3


def digest(numbers) -> int:
  """Stands for numbers that are too many to keep."""
  return zlib.crc32(np.asarray(numbers, np.float64).tobytes())


def read_questions(data: pathlib.Path) -> list:
  """As transformers has them; the first answer counts."""
  from transformers.data.processors.squad import SquadExample

  articles = json.loads((data / "squad" / "xquad.en.json").read_text())["data"]
  return [
    SquadExample(
      asked["id"],
      asked["question"],
      paragraph["context"],
      asked["answers"][0]["text"],
      asked["answers"][0]["answer_start"],
      "",
    )
    for article in articles
    for paragraph in article["paragraphs"]
    for asked in paragraph["qas"]
  ]


def batch_of(windows: list) -> dict:
  """Windows as the model takes them, filled up to the longest."""
  import torch

  length = max(len(window.input_ids) for window in windows)
  names = ("input_ids", "token_type_ids", "attention_mask")
  batch = {name: torch.zeros(len(windows), length, dtype=torch.long) for name in names}
  for row, window in enumerate(windows):
    for name in names:
      batch[name][row, : len(window.input_ids)] = torch.tensor(getattr(window, name))
  return batch


def train(windows: list, vocab_size: int):
  """A small model that has learned something; the windows all hold their answer."""
  import torch
  import transformers

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
  for _ in range(EPOCHS):
    order = rng.permutation(len(windows))[: len(windows) // BATCH * BATCH]
    for part in order.reshape(-1, BATCH):
      rows = [windows[number] for number in part]
      places = [[row.start_position, row.end_position] for row in rows]
      starts, ends = torch.tensor(places).T
      loss = model(**batch_of(rows), start_positions=starts, end_positions=ends).loss
      optimizer.zero_grad()
      loss.backward()
      optimizer.step()
      schedule.step()
  return model.eval()


def logits_of(model, window) -> np.ndarray:
  """int16[length, 2], of a window alone."""
  import torch

  with torch.no_grad():
    result = model(**batch_of([window]))
  both = torch.stack([result.start_logits[0], result.end_logits[0]], -1).numpy()
  return np.round(both * SCALE).astype(np.int16)


def answer(question, windows: list, logits: list, tokenizer) -> dict:
  """The best answer by BERT's rule, and the scores of the n best."""
  from transformers.data.metrics import squad_metrics
  from transformers.data.processors.squad import SquadResult

  results = []
  for number, (window, both) in enumerate(zip(windows, logits, strict=True)):
    window.example_index, window.unique_id = 0, number
    results.append(SquadResult(number, *(both / SCALE).T.tolist()))
  with tempfile.NamedTemporaryFile() as file:
    squad_metrics.compute_predictions_logits(
      [question],
      windows,
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
    found = json.loads(pathlib.Path(file.name).read_text())[question.qas_id]
  scores = [one["start_logit"] + one["end_logit"] for one in found]
  return {"text": found[0]["text"], "scores": digest(scores)}


def described(window) -> dict:
  """What of a window ours has too."""
  max_context = [place for place, most in window.token_is_max_context.items() if most]
  return {
    "input_ids": digest(window.input_ids),
    "first_type_length": window.token_type_ids.index(1),
    "label": [window.start_position, window.end_position],
    "max_context": digest(max_context),
  }


def main():
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument("--data", type=pathlib.Path, required=True, help="the data folder")
  parser.add_argument("--all", type=pathlib.Path, help="a folder for all questions")
  options = parser.parse_args()
  import torch
  import transformers
  from transformers.data.processors import squad

  torch.set_num_threads(1)
  transformers.logging.set_verbosity_error()
  tokenizer = transformers.BertTokenizer(str(options.data / "bert-base-uncased-vocab.txt"))
  squad.squad_convert_example_to_features_init(tokenizer)
  questions = {question.qas_id: question for question in read_questions(options.data)}
  windows = {
    (setting, name): squad.squad_convert_example_to_features(
      question, *sizes, "do_not_pad", True
    )
    for setting, sizes in SETTINGS.items()
    for name, question in questions.items()
  }
  short = [mine for (setting, _), mine in windows.items() if setting == "128"]
  model = train([w for mine in short for w in mine if w.end_position], len(tokenizer))
  chosen = list(windows)
  if not options.all:  # those that the golden file has
    lines = (FOLDER / "reference.jsonl").read_text().splitlines()
    chosen = [tuple(json.loads(line)[:2]) for line in lines]
  folder = options.all or FOLDER
  folder.mkdir(parents=True, exist_ok=True)
  kept = []
  with (folder / "reference.jsonl").open("w") as file:
    for setting, name in chosen:
      mine = windows[setting, name]
      logits = [logits_of(model, window) for window in mine]
      best = answer(questions[name], mine, logits, tokenizer)
      lengths = [len(both) for both in logits]
      print(json.dumps([setting, name, [*map(described, mine)], best, lengths]), file=file)
      kept += logits
  np.savez_compressed(folder / "logits.npz", logits=np.concatenate(kept))


if __name__ == "__main__":
  main()
