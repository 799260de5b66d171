"""Small datasets by real TFDS builders, with the names and features of the catalogue."""

import pathlib

import numpy as np
import tensorflow_datasets as tfds
from etils import epath

TEXT = tfds.features.Text()
WORDS = "a the cat sat on mat and saw how rows of cats were packed by hand".split()  # noqa: SIM905
GLUE = {  # fields, classes, and how many examples a split has
  "cola": (
    ["sentence"],
    ["unacceptable", "acceptable"],
    {"train": 61, "validation": 13, "test": 5},
  ),
  "mrpc": (["sentence1", "sentence2"], ["not_equivalent", "equivalent"], {"train": 37}),
  "mnli": (
    ["premise", "hypothesis"],
    ["entailment", "neutral", "contradiction"],
    {"train": 19, "validation_matched": 7, "validation_mismatched": 11, "test_matched": 5},
  ),
}


def build(data_dir, name: str, config: str, version: str, features: dict, splits: dict):
  """As `tfds build --file_format=array_record`, with the catalogue's names and version."""

  class Builder(tfds.core.GeneratorBasedBuilder, skip_registration=True):  # type: ignore[call-arg]
    VERSION = tfds.core.Version(version)
    BUILDER_CONFIGS = (tfds.core.BuilderConfig(name=config),)
    pkg_dir_path = epath.Path(pathlib.Path(__file__).parent)

    def _info(self):
      as_dict = tfds.features.FeaturesDict(features)
      return tfds.core.DatasetInfo(builder=self, features=as_dict)

    def _split_generators(self, dl_manager):
      return {split: self._generate_examples(rows) for split, rows in splits.items()}

    def _generate_examples(self, rows):
      yield from enumerate(rows)

  Builder.name = name
  builder = Builder(data_dir=str(data_dir), file_format="array_record", config=config)
  builder.download_and_prepare()


def sentence(rng) -> str:
  return " ".join(rng.choice(WORDS, rng.integers(3, 12))).capitalize() + "."


def build_all(data_dir):
  """glue/cola, glue/mrpc, glue/mnli, squad and wikipedia/20230601.en."""
  rng = np.random.default_rng(0)

  def rows(split, count, fields, classes):
    hidden = split.startswith("test")
    for i in range(count):
      texts = {field: sentence(rng) for field in fields}
      yield texts | {"label": -1 if hidden else i % len(classes), "idx": i}

  for config, (fields, classes, sizes) in GLUE.items():
    features = dict.fromkeys(fields, TEXT)
    features |= {"label": tfds.features.ClassLabel(names=classes), "idx": np.int32}
    splits = {split: [*rows(split, n, fields, classes)] for split, n in sizes.items()}
    build(data_dir, "glue", config, "2.0.0", features, splits)

  answers = tfds.features.Sequence({"text": TEXT, "answer_start": np.int32})
  squad = dict.fromkeys(("title", "context", "question"), TEXT)
  squad |= {"id": np.str_, "answers": answers}
  questions = []
  for i in range(11):
    context = " ".join(sentence(rng) for _ in range(9))
    answer = context.split(" ")[1]
    found = {"text": [answer] * 2, "answer_start": [context.index(" ") + 1] * 2}
    one = {"id": f"q{i}", "title": "A title", "question": "What is it?"}
    questions.append(one | {"context": context, "answers": found})
  build(data_dir, "squad", "v1.1", "3.0.0", squad, {"train": questions})

  articles = [
    {"title": f"Article {i}", "text": "\n\n".join(sentence(rng) for _ in range(7))}
    for i in range(29)
  ]
  texts = dict.fromkeys(("title", "text"), TEXT)
  build(data_dir, "wikipedia", "20230601.en", "1.0.0", texts, {"train": articles})
