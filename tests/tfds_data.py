"""Small datasets by real TFDS builders, with the names and features of the catalogue."""

import pathlib

import numpy as np
import tensorflow_datasets as tfds
from etils import epath

TEXT = tfds.features.Text()


def build(data_dir, name: str, features: dict, splits: dict, *, config=None, version):
  """Writes a dataset as array_record, as `tfds build --file_format=array_record` does.

  Args:
    data_dir: what TFDS_DATA_DIR then names.
    name: of the catalogue's builder.
    features: of an example.
    splits: lists of examples by name.
    config: of the builder, such as cola.
    version: the catalogue's, which `tfds.builder` looks for.
  """

  class Builder(tfds.core.GeneratorBasedBuilder, skip_registration=True):  # type: ignore[call-arg]
    VERSION = tfds.core.Version(version)
    BUILDER_CONFIGS = [tfds.core.BuilderConfig(name=config)] if config else []
    pkg_dir_path = epath.Path(pathlib.Path(__file__).parent)

    def _info(self):
      return tfds.core.DatasetInfo(
        builder=self, features=tfds.features.FeaturesDict(features)
      )

    def _split_generators(self, dl_manager):
      return {split: self._generate_examples(rows) for split, rows in splits.items()}

    def _generate_examples(self, rows):
      yield from enumerate(rows)

  Builder.name = name
  builder = Builder(
    data_dir=str(data_dir),
    file_format="array_record",
    **({"config": config} if config else {}),
  )
  builder.download_and_prepare()


WORDS = "a the cat sat on mat and saw how rows of cats were packed by hand".split()  # noqa: SIM905


def sentence(rng) -> str:
  return " ".join(rng.choice(WORDS, rng.integers(3, 12))).capitalize() + "."


def build_all(data_dir):
  """glue/cola, glue/mrpc, glue/mnli, squad and wikipedia/20230601.en."""
  rng = np.random.default_rng(0)
  cola = {
    "sentence": TEXT,
    "label": tfds.features.ClassLabel(names=["unacceptable", "acceptable"]),
    "idx": np.int32,
  }

  def cola_rows(count):
    return [
      {"sentence": sentence(rng), "label": int(rng.integers(2)), "idx": i}
      for i in range(count)
    ]

  splits = {"train": cola_rows(61), "validation": cola_rows(13)}
  splits["test"] = [row | {"label": -1} for row in cola_rows(5)]
  build(data_dir, "glue", cola, splits, config="cola", version="2.0.0")

  mrpc = {
    "sentence1": TEXT,
    "sentence2": TEXT,
    "label": tfds.features.ClassLabel(names=["not_equivalent", "equivalent"]),
    "idx": np.int32,
  }
  rows = [
    {"sentence1": sentence(rng), "sentence2": sentence(rng), "label": i % 2, "idx": i}
    for i in range(37)
  ]
  build(data_dir, "glue", mrpc, {"train": rows}, config="mrpc", version="2.0.0")

  mnli = {
    "premise": TEXT,
    "hypothesis": TEXT,
    "label": tfds.features.ClassLabel(names=["entailment", "neutral", "contradiction"]),
    "idx": np.int32,
  }

  def mnli_rows(count):
    return [
      {"premise": sentence(rng), "hypothesis": sentence(rng), "label": i % 3, "idx": i}
      for i in range(count)
    ]

  sizes = {"train": 19, "validation_matched": 7, "validation_mismatched": 11}
  splits = {name: mnli_rows(count) for name, count in sizes.items()}
  splits["test_matched"] = [row | {"label": -1} for row in mnli_rows(5)]
  build(data_dir, "glue", mnli, splits, config="mnli", version="2.0.0")

  squad = {
    "id": np.str_,
    "title": TEXT,
    "context": TEXT,
    "question": TEXT,
    "answers": tfds.features.Sequence({"text": TEXT, "answer_start": np.int32}),
  }
  rows = []
  for i in range(11):
    context = " ".join(sentence(rng) for _ in range(9))
    start = context.index(" ") + 1
    answer = context[start : context.index(" ", start)]
    rows.append(
      {
        "id": f"q{i}",
        "title": "A title",
        "context": context,
        "question": "What is it?",
        "answers": {"text": [answer, answer], "answer_start": [start, start]},
      }
    )
  build(data_dir, "squad", squad, {"train": rows}, config="v1.1", version="3.0.0")

  articles = [
    {"title": f"Article {i}", "text": "\n\n".join(sentence(rng) for _ in range(7))}
    for i in range(29)
  ]
  build(
    data_dir,
    "wikipedia",
    {"title": TEXT, "text": TEXT},
    {"train": articles},
    config="20230601.en",
    version="1.0.0",
  )
