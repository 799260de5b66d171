"""Packing a step's sequences, of the kinds that the benchmark times."""

import pytest

import packing
from benchmarks import step_packers
from benchmarks.step_packers import KINDS, ROW, TASKS, lengths_of
from packing import pack_step

# Of 512 sequences by kind and seed, the packs that `optimal` proves to be the fewest.
FEWEST = {
  ("uniform", 0): 146,
  ("log-normal, narrow", 1): 129,
  ("log-normal, wide", 0): 97,
  ("near thirds", 0): 169,
  ("SQuAD", 0): 243,
  ("SQuAD", 4): 246,
  ("SQuAD", 6): 237,
  ("Wikipedia", 0): 275,
}


@pytest.mark.parametrize(("kind", "seed"), FEWEST)
def test_a_step_takes_the_fewest_packs_and_always_the_same(kind, seed):
  lengths = lengths_of(kind, 512, seed)
  step = pack_step(lengths, row_length=ROW)
  assert step.num_packs == FEWEST[kind, seed]
  assert pack_step(lengths, row_length=ROW).devices == step.devices


def best_fit(lengths):
  return packing.pack(
    lengths, max_sequence_length=ROW, algorithm="bfd", max_sequences_per_pack=None
  ).num_packs


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("number", [3, 40, 256])
def test_not_more_packs_than_best_fit(kind, number):
  for seed in range(3):
    lengths = lengths_of(kind, number, seed)
    assert pack_step(lengths, row_length=ROW).num_packs <= best_fit(lengths), seed


def test_tasks_take_no_more_packs_than_the_methods_of_peers():
  records = [*step_packers.measure_tasks(64, 1)]
  assert {(x["task"], x["kind"]) for x in records} == {(t, k) for t in TASKS for k in KINDS}
  for record in records:
    (batch,) = record["batches"]
    packs = batch["packs"]
    assert (
      packs["bound"]
      <= packs["pack_step"]
      == min(count for name, count in packs.items() if name != "bound")
    ), record
    assert step_packers.task_row(record)["no more than any peer"] == "1 of 1"
