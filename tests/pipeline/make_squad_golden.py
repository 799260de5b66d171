"""Regenerates tests/pipeline/golden/squad: what transformers computes for real questions.

  python -m tests.pipeline.make_squad_golden --data=DATA
  python -m tests.pipeline.make_squad_golden --data=DATA --all=FOLDER

DATA is the folder that `tests/shared_data.py` describes; the answers are excerpts of XQuAD
(CC BY-SA 4.0). The questions stay those of the golden files: some with several windows, of
the greatest length, or with one token in the last window; so do the logits, which a small
BERT of transformers gave after a minute of training. With --all every question goes to a
folder, with made-up logits, with which
`SQUAD_GOLDEN=FOLDER python -m pytest tests/pipeline/tasks/test_squad_reference.py` compares
ours.

Transformers 4.57 is the last with the legacy features and BERT's decoding; so this imports
nothing of ours and needs an environment of its own:

  python -m venv REFERENCE
  REFERENCE/bin/pip install transformers==4.57.6 numpy
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


def made_up_logits(window, rng: np.random.Generator) -> np.ndarray:
  """int16[length, 2]: noise, from which the answer stands out a little."""
  logits = rng.normal(0, SCALE, (len(window.input_ids), 2))
  if window.end_position:
    logits[[window.start_position, window.end_position], [0, 1]] += 3 * SCALE
  return logits.round().astype(np.int16)


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
  import transformers
  from transformers.data.processors import squad

  tokenizer = transformers.BertTokenizer(str(options.data / "bert-base-uncased-vocab.txt"))
  squad.squad_convert_example_to_features_init(tokenizer)
  questions = {question.qas_id: question for question in read_questions(options.data)}
  lines = (FOLDER / "reference.jsonl").read_text().splitlines()
  chosen = [tuple(json.loads(line)[:2]) for line in lines]
  left = np.load(FOLDER / "logits.npz")["logits"]
  folder, rng = FOLDER, np.random.default_rng(0)
  if options.all:
    chosen = [(setting, name) for setting in SETTINGS for name in questions]
    folder = options.all
    folder.mkdir(parents=True, exist_ok=True)
  kept = []
  with (folder / "reference.jsonl").open("w") as file:
    for setting, name in chosen:
      windows = squad.squad_convert_example_to_features(
        questions[name], *SETTINGS[setting], "do_not_pad", True
      )
      lengths = [len(window.input_ids) for window in windows]
      if options.all:
        logits = [made_up_logits(window, rng) for window in windows]
      else:
        *logits, left = np.split(left, np.cumsum(lengths))
      best = answer(questions[name], windows, logits, tokenizer)
      print(
        json.dumps([setting, name, [*map(described, windows)], best, lengths]), file=file
      )
      kept += logits
  np.savez_compressed(folder / "logits.npz", logits=np.concatenate(kept))


if __name__ == "__main__":
  main()
