"""What the devices of a run get: counts beside plain loops, for each kind of batch."""

import numpy as np
import pytest

import pipeline
from launch.door import read_settings
from launch.plans import make_plan
from launch.shares import count_shares, shares_line, shares_of
from tests.programs import ROOT
from tests.stdlib_corpus import make_library


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
  folder = tmp_path_factory.mktemp("shares")
  make_library(folder / "library")
  settings = pipeline.DatasetSettings(
    f"stdlib:{folder / 'library'}", 64, vocab_size=300, held_out_fraction=0.1
  )
  return pipeline.prepare(folder / "data", settings)


def settings_for(**packing):
  run = read_settings(str(ROOT / "configs" / "quickstart.py"))
  fields = {f"packing.{name}": value for name, value in packing.items()}
  return run.changed({"data.max_sequence_length": 64, **fields})


def by_hand(batches, devices):
  """The same counts, token by token."""
  packed, unpadded, waiting = [], [], []
  rng = np.random.default_rng(0)
  for batch in batches:
    lengths, rows = [], len(batch["segment_ids"])
    tokens = [0] * devices
    for number, row in enumerate(batch["segment_ids"].tolist()):
      tokens[number * devices // rows] += sum(segment > 0 for segment in row)
      lengths += [row.count(segment) for segment in range(1, max(row) + 1)]
    packed += tokens
    dealt = [0] * devices
    for number, length in enumerate(rng.permutation(lengths).tolist()):
      dealt[number % devices] += length
    unpadded += dealt
    waiting.append(1 - sum(dealt) / devices / max(dealt))
  return {
    "devices": devices,
    "steps": len(waiting),
    "smallest": min(packed),
    "largest": max(packed),
    "unpadded": {
      "smallest": min(unpadded),
      "largest": max(unpadded),
      "waiting": pytest.approx(sum(waiting) / len(waiting)),
    },
  }


@pytest.mark.parametrize("algorithm", ["auto", "none", "online"])
def test_counts_are_those_of_the_batches_of_the_run(dataset, algorithm):
  run = settings_for(algorithm=algorithm)
  plan = make_plan(run.rows, dataset.train, seed=run.seed)
  found = count_shares(run, dataset, plan, rows=12, steps=60, devices=3)
  parts = []
  for process in range(2):  # which the counts put together again
    options = {"batch_size": 12, "masking": None}
    if algorithm == "online":
      reader = pipeline.batches.online.ShuffledSequences(dataset.train, seed=run.seed)
      parts.append(
        pipeline.OnlineBatches(
          reader, plan, process_index=process, process_count=2, **options
        )
      )
    else:
      loader = pipeline.PackedLoader(dataset.train, plan, seed=run.seed, **options)
      parts.append(loader.for_process(process, 2).iterate())
  batches = []
  for _ in range(60):
    both = [next(part)["segment_ids"] for part in parts]
    batches.append({"segment_ids": np.concatenate(both)})
  for part in parts:
    part.close()
  more = {"rows": 4, "row_length": 64, "stream": ""}
  assert found == by_hand(batches, 3) | more
  if algorithm != "online":  # whose first packs are full
    assert found["unpadded"]["waiting"] > 0.01
    assert found["smallest"] < found["largest"] <= 4 * 64


def test_few_rows_are_counted_and_at_least_one_step(dataset):
  run = settings_for(algorithm="none")
  plan = make_plan(run.rows, dataset.train, seed=run.seed)
  for rows, steps in ((512, 2), (2048, 1)):
    found = count_shares(run, dataset, plan, rows=rows, steps=9, devices=4)
    assert (found["steps"], found["rows"]) == (steps, rows // 4)


def test_end_tokens_that_fill_a_row_are_not_real():
  batch = {
    "segment_ids": np.ones((4, 7), np.int32),
    "sequence_mask": np.ones((4, 1), bool),
    "real_tokens": np.array([3, 7, 5, 1], np.int32),
  }
  found = shares_of([batch], devices=2)
  assert (found["smallest"], found["largest"]) == (6, 10)
  assert found["unpadded"]["smallest"] + found["unpadded"]["largest"] == 16


def test_the_line_names_a_sample():
  shares = {"devices": 4, "steps": 128, "rows": 2, "row_length": 128, "stream": "hf:a#b"}
  shares |= {"smallest": 1, "largest": 2000}
  shares["unpadded"] = {"smallest": 3, "largest": 4000, "waiting": 0.25}
  assert shares_line(shares) == (
    "Each of 4 devices computes 2 rows of 128 tokens in a step, 1 to 2,000 of them real "
    "(counted in the first 128 steps of the sample). Un-padding would give the devices 3 "
    "to 4,000 tokens of the same sequences; they would wait 25.0% of the time for the "
    "slowest."
  )
