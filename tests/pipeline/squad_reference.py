"""What transformers makes of the real questions, as `make_squad_golden` writes it.

Imports nothing of ours and no transformers, since both sides import it. The answers are
excerpts of XQuAD (CC BY-SA 4.0).
"""

import json
import pathlib
import zlib
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

FOLDER = pathlib.Path(__file__).parent / "golden" / "squad"
# max_sequence_length, doc_stride, max_question_length
SETTINGS = {"384": (384, 128, 64), "128": (128, 32, 24)}
NUM_ANSWERS, MAX_ANSWER_LENGTH = 20, 30
_SCALE = 100  # golden logits are whole hundredths


class Expected(NamedTuple):
  """Of one question under one setting.

  Attributes:
    setting: its name.
    question: its id.
    windows: by how they were made, "fast" or "legacy"; long fields as digests.
    answers: by how they were found: "bert", "bert_padded", "pipeline", "pipeline_words".
    logits: of each legacy window float[length, 2].
  """

  setting: str
  question: str
  windows: dict[str, list[dict[str, Any]]]
  answers: dict[str, Any]
  logits: list[np.ndarray]


def digest(numbers) -> int:
  """Stands for numbers that are too many to keep."""
  return zlib.crc32(np.asarray(numbers, np.float64).tobytes())


def rounded(logits: np.ndarray) -> np.ndarray:
  """As a golden file gives them back."""
  return np.round(logits * _SCALE).astype(np.int16) / _SCALE


def write(folder: pathlib.Path, found: list[Expected], *, exact: bool):
  """Texts and digests to reference.jsonl, logits to logits.npz."""
  with (folder / "reference.jsonl").open("w") as file:
    for one in found:
      print(json.dumps([*one[:4], [len(both) for both in one.logits]]), file=file)
  logits = np.concatenate([both for one in found for both in one.logits])
  if not exact:
    logits = np.round(logits * _SCALE).astype(np.int16)
  np.savez_compressed(folder / "logits.npz", logits=logits)


def read(folder: pathlib.Path) -> Iterator[Expected]:
  """What `write` wrote."""
  with np.load(folder / "logits.npz") as arrays:
    logits = arrays["logits"]
  if logits.dtype == np.int16:
    logits = logits / _SCALE
  start = 0
  for line in (folder / "reference.jsonl").read_text().splitlines():
    setting, question, windows, answers, lengths = json.loads(line)
    stops = start + np.cumsum(lengths)
    parts = np.split(logits[start : stops[-1]], stops[:-1] - start)
    yield Expected(setting, question, windows, answers, parts)
    start = int(stops[-1])
