"""Pairs of texts: from every format to records, batches and scores."""

import csv
import dataclasses
import json
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
import scipy.stats

import packing
from packing import InputError
from pipeline.batches.audit import AuditError, audit
from pipeline.batches.loader import PackedLoader
from pipeline.preparation.prepare import prepare
from pipeline.settings import DatasetSettings
from pipeline.store import PAIR_SCHEMA, SequenceStore
from pipeline.tasks import pairs
from pipeline.tasks.registry import score
from tests.pipeline.sources.files import write_arrow
from tests.pipeline.tasks.making import CLS, SEP, VOCABULARY, tokens

ROWS = [
  {"query": "a b", "positive": "c d e", "negative": "f", "negative_1": ""},
  {"query": "g", "positive": "h i", "negative": "", "negative_1": "j a b"},
  {"query": "yes ?", "positive": "no .", "negative": "a", "negative_1": "b"},
]
EXPECTED = [
  "[CLS] a b [SEP] [CLS] c d e [SEP] [CLS] f [SEP]",
  "[CLS] g [SEP] [CLS] h i [SEP] [CLS] j a b [SEP]",
  "[CLS] yes ? [SEP] [CLS] no . [SEP] [CLS] a [SEP] [CLS] b [SEP]",
]


@pytest.mark.parametrize("suffix", ["jsonl", "csv", "tsv", "parquet", "arrow"])
def test_every_table_gives_the_same_records(tmp_path, vocab_file, suffix):
  path = tmp_path / f"rows.{suffix}"
  if suffix == "jsonl":  # which may lack a field
    path.write_text(
      "\n".join(json.dumps({k: v for k, v in row.items() if v}) for row in ROWS)
    )
  elif suffix in ("csv", "tsv"):
    with path.open("w", newline="") as file:
      writer = csv.DictWriter(file, [*ROWS[0]], delimiter=",\t"[suffix == "tsv"])
      writer.writeheader()
      writer.writerows(ROWS)
  else:  # in which a field may be null
    table = pa.Table.from_pylist([{k: v or None for k, v in row.items()} for row in ROWS])
    write = write_arrow if suffix == "arrow" else lambda p, t: pa.parquet.write_table(t, p)
    write(path, table)
  settings = DatasetSettings(
    str(path), 24, task="pairs", vocab_file=vocab_file, columns="anchor=query"
  )
  dataset = prepare(tmp_path / "out", settings, num_workers=1)
  store = dataset.train
  assert tokens(store) == EXPECTED
  assert store.texts.lengths.tolist() == [4, 5, 3, 3, 4, 5, 4, 4, 3, 3]
  assert (store.texts.ends.tolist(), store.texts.most) == ([0, 3, 6, 10], 4)
  assert dataset.manifest["counts"]["train"]["sequences"] == 3


def test_scores_are_kept_and_the_longest_text_is_cut(make):
  rows = [
    {"sentence1": "a b c d e f g", "sentence2": "a b c d e f g h i j", "score": "-0.25"},
    {"sentence1": "a", "sentence2": "b", "score": 1},
  ]
  dataset = make("scored_pairs", rows, max_sequence_length=16)
  assert tokens(dataset.train) == [
    "[CLS] a b c d e f [SEP] [CLS] a b c d e f [SEP]",
    "[CLS] a [SEP] [CLS] b [SEP]",
  ]
  assert dataset.train.sequence_labels.tolist() == [-0.25, 1.0]
  assert dataset.train.sequence_labels.dtype == np.float32
  assert dataset.manifest["counts"]["train"]["too_long"] == 1
  with pytest.raises(InputError, match="record of 2 texts has 21 tokens; expected at most"):
    make("scored_pairs", rows, max_sequence_length=16, too_long="error")


@pytest.mark.parametrize(
  ("task", "row", "message"),
  [
    ("pairs", {"anchor": "a"}, "has no 'positive'"),
    ("pairs", {"anchor": "a", "positive": None}, "positive is None; expected text"),
    (
      "pairs",
      {"anchor": " ", "positive": "b"},
      "anchor is ' '; expected words. Remove the",
    ),
    ("pairs", {"anchor": "a", "positive": ""}, "positive is ''; expected words"),
    ("pairs", {"anchor": "a", "positive": "b", "negative": " "}, "negative is ' '"),
    ("pairs", {"anchor": "a", "positive": "b", "negative": ["c"]}, "expected text"),
    ("pairs", {"anchor": "a", "positive": "\u0301"}, "text 2 has no tokens"),
    (
      "pairs",
      {"anchor": "a", "positive": "b", "negative": "c"} | {"negative_2": "d e f g h"},
      "needs max_sequence_length 12, not 11",
    ),
    ("scored_pairs", {"score": "high"}, "score is 'high'; expected a 32-bit number"),
    ("scored_pairs", {"score": float("nan")}, "score is nan; expected a 32-bit number"),
    ("scored_pairs", {"score": True}, "score is True; expected a 32-bit number"),
    ("scored_pairs", {"score": 3.5}, "score is 3.5; expected -1 to 1"),
    ("scored_pairs", {"score": 1.0000001}, "score is 1.0000001; expected -1 to 1"),
    ("scored_pairs", {}, "has no 'score'"),
  ],
)
def test_bad_records_are_refused(make, tmp_path, task, row, message):
  if task == "scored_pairs":
    row = {"sentence1": "a", "sentence2": "b"} | row
  with pytest.raises(InputError, match=message):
    make(task, [row], max_sequence_length=11)
  assert not list(tmp_path.glob("*out*"))


def test_columns_that_occur_twice_or_are_unknown_are_refused(tmp_path, vocab_file):
  (tmp_path / "a.csv").write_text("anchor,positive,positive\na,b,c\n")
  settings = DatasetSettings(
    str(tmp_path / "a.csv"), 16, task="pairs", vocab_file=vocab_file
  )
  with pytest.raises(InputError, match="several columns 'positive'"):
    prepare(tmp_path / "out", settings)
  (tmp_path / "a.csv").write_text("query,answer\na,b\n")
  with pytest.raises(InputError, match=r"no column 'anchor'; found 'query'"):
    prepare(tmp_path / "out", settings)


@pytest.mark.parametrize("name", ["label", "labels", "Score"])
def test_what_says_that_texts_do_not_belong_together_is_not_lost(make, name):
  rows = [
    {"anchor": "a", "positive": "b", name: 1},
    {"anchor": "a", "positive": "c", name: 0},
  ]
  with pytest.raises(
    InputError, match=f"line 1 has '{name}', which is not read: the texts"
  ):
    make("pairs", rows)


def test_the_column_of_positives_is_named_or_removed(make):
  with pytest.raises(InputError, match=r"'pos', .* Name it with --columns positive=pos"):
    make("pairs", [{"anchor": "a", "pos": "b"}])
  with pytest.raises(
    InputError, match=r"'pos', which is not read\. Write a record for each positive, or"
  ):
    make("pairs", [{"anchor": "a", "positive": "b", "pos": "c"}])
  rows = [{"anchor": "a", "positive": "b", "worse": "c", "pos": "c"}]
  with pytest.raises(InputError, match=r"'pos', .* Write a record for each positive, or"):
    make("pairs", rows, columns="negative=worse")


@pytest.mark.parametrize("suffix", ["jsonl", "csv", "parquet"])
@pytest.mark.parametrize(
  "name", ["hard_negative", "negative_0", "negative_51", "neg", "negatives", "positive_2"]
)
def test_a_column_that_would_be_lost_is_named(tmp_path, vocab_file, suffix, name):
  row, path = (
    {"anchor": "a", "positive": "b", name: "c", "id": "7"},
    tmp_path / f"a.{suffix}",
  )
  if suffix == "parquet":
    pa.parquet.write_table(pa.Table.from_pylist([row] * 3), path)
  elif suffix == "csv":
    path.write_text("\n".join([",".join(row), *[",".join(row.values())] * 3]) + "\n")
  else:
    path.write_text((json.dumps(row) + "\n") * 3)
  settings = DatasetSettings(str(path), 24, task="pairs", vocab_file=vocab_file)
  with pytest.raises(InputError, match=f"has '{name}', which is not read. (Name it|Write)"):
    prepare(tmp_path / "out", settings, num_workers=1)
  named = dataclasses.replace(settings, columns=f"negative={name}")
  assert prepare(tmp_path / "named", named, num_workers=1).train.texts.most == 3


def test_one_column_is_not_both_anchor_and_positive(tmp_path, vocab_file):
  (tmp_path / "a.jsonl").write_text('{"text": "a b"}\n' * 3)
  settings = DatasetSettings(
    str(tmp_path / "a.jsonl"),
    24,
    task="pairs",
    vocab_file=vocab_file,
    columns="anchor=text,positive=text",
  )
  with pytest.raises(InputError, match="anchor and positive are both column 'text'"):
    prepare(tmp_path / "out", settings)


# ---- batches ---------------------------------------------------------------------------


def made_up(num_records=61, most=4, seed=0) -> SequenceStore:
  """Records of two to `most` texts, in memory."""
  rng, records = np.random.default_rng(seed), []
  for _ in range(num_records):
    lengths = rng.integers(3, 9, rng.integers(2, most + 1)).tolist()
    ids = [[CLS, *rng.integers(5, len(VOCABULARY), n - 2).tolist(), SEP] for n in lengths]
    flat = [token for part in ids for token in part]
    records.append(pairs.Record(flat, len(flat), 0, lengths))
  return SequenceStore.from_sequences(records, PAIR_SCHEMA)


def make_loader(store, kind=PackedLoader, **options):
  histogram = packing.Histogram.from_lengths(store.lengths, max_sequence_length=40)
  plan = packing.pack(histogram, max_sequences_per_pack=5)
  chosen = {"batch_size": 4, "masking": None, "seed": 3} | options
  return kind(store, plan, **chosen)


@pytest.mark.parametrize("options", [{}, {"balance": "devices", "devices": 2}])
@pytest.mark.parametrize("processes", [1, 2])
def test_each_record_is_used_once_and_whole(options, processes):
  store = made_up()
  loader = make_loader(store, **options).for_process(0, processes)
  for epoch in (0, 2):
    result = audit(loader, epoch=epoch)
    assert result["sequences"] == len(store)
    assert result["tokens"] == store.lengths.sum()
  seen = []
  for batch in make_loader(store).evaluation_batches():
    assert batch["text_numbers"].shape[1] == 40 // 3 < 4 * loader.plan.packing_depth
    for row in range(len(batch["text_numbers"])):
      for slot in np.flatnonzero(batch["sequence_mask"][row]):
        own = batch["segment_ids"][row] == slot + 1
        assert batch["position_ids"][row, own].tolist() == [*range(own.sum())]
        ids, number = batch["input_ids"][row, own], batch["text_numbers"][row, slot]
        assert (ids[0], ids[-1], (ids == CLS).sum()) == (CLS, SEP, 1)
        record = batch["sequence_ids"][row, slot]
        text = store.texts.ends[record] + number - 1
        assert own.sum() == store.texts.lengths[text]
        seen.append(text)
  assert sorted(seen) == [*range(store.texts.ends[-1])]


def test_one_record_of_many_texts_does_not_multiply_the_slots_of_all():
  rows = [[3] * 2] * 20 + [[4] * 10]
  store = SequenceStore.from_sequences(
    [pairs.Record([5] * sum(x), sum(x), 0, x) for x in rows], PAIR_SCHEMA
  )
  batches = [*make_loader(store).evaluation_batches()]
  assert {batch["text_numbers"].shape for batch in batches} == {(4, 13)}
  assert sum(batch["sequence_mask"].sum() for batch in batches) == 50


def split_record(batch):
  """The last text of the first row becomes one of another record."""
  last = np.flatnonzero(batch["sequence_mask"][0])[-1]
  batch["sequence_ids"][0, last] = 1 + batch["sequence_ids"][0, last]


def wrong_number(batch):
  batch["text_numbers"][0, 1] = 3


def wrong_segment(batch):
  """Two texts become one."""
  batch["segment_ids"][0, batch["segment_ids"][0] == 2] = 1


@pytest.mark.parametrize("change", [split_record, wrong_number, wrong_segment])
def test_the_audit_finds_a_record_that_was_taken_apart(change):
  class Altered(PackedLoader):
    def __getitem__(self, number):
      batch = super().__getitem__(number)
      change(batch)
      return batch

  with pytest.raises(AuditError, match="row 0"):
    audit(make_loader(made_up(), Altered))


# ---- scores ----------------------------------------------------------------------------


def of_texts(records: list[tuple[str, str]]) -> SequenceStore:
  """Records of texts of single letters, in memory."""
  ids = [[[CLS, *map(VOCABULARY.index, text), SEP] for text in one] for one in records]
  flat = [[token for part in one for token in part] for one in ids]
  made = zip(flat, ids, strict=True)
  return SequenceStore.from_sequences(
    [pairs.Record(x, len(x), 0, [*map(len, one)]) for x, one in made], PAIR_SCHEMA
  )


# Several right answers, a record twice, a pair and its reverse, an anchor that is its own
# positive, and an anchor that is the positive of another.
SEVERAL = [("a", "ab"), ("a", "ac"), ("b", "bc"), ("a", "ab"), ("d", "e"), ("e", "d")]
SEVERAL += [("f", "f"), ("g", "b"), ("h", "hi"), ("i", "hi"), ("j", "a")]


def random_vectors(records, *, seed=0):
  rng = np.random.default_rng(seed)
  return {text: rng.standard_normal(3) for one in records for text in one}


def score_texts(records, by_text, **options):
  vectors = [by_text[text] for one in records for text in one]
  return score("pairs", of_texts(records), vectors, **options)


@pytest.mark.parametrize(
  "records",
  [
    [("how", "a"), ("how", "b"), ("where", "c")],
    [("a", "b"), ("b", "a"), ("c", "d"), ("d", "c")],
  ],
)
def test_perfect_vectors_score_one(records):
  texts = sorted({text for one in records for text in one})
  short = dict(zip(texts, "abcdefghij", strict=False))
  records = [(short[anchor], short[positive]) for anchor, positive in records]
  by_text: dict = {}  # each positive is near its anchor, some nearer than others
  for number, (anchor, positive) in enumerate(records):
    by_text.setdefault(anchor, np.eye(11)[number])
    noise = 0.1 * (number + 1) * np.eye(11)[10 - number]
    by_text.setdefault(positive, by_text[anchor] + noise)
  found = score_texts(records, by_text)
  for name in ("score", "mrr", "accuracy_at_1", "map_at_100", "ndcg_at_10"):
    assert found[name] == 1
  assert found["sequences"] == len(records)


@pytest.mark.parametrize("seed", range(5))
def test_retrieval_is_scored_as_in_a_loop(seed):
  by_text = {
    k: v / np.linalg.norm(v) for k, v in random_vectors(SEVERAL, seed=seed).items()
  }
  found, losses = score_texts(SEVERAL, by_text, temperature=0.1), []
  ranks: dict[Any, Any] = {}
  for anchor, positive in SEVERAL:
    right = {other for x, other in SEVERAL if x == anchor}
    wrong = {other for _, other in SEVERAL} - right - {anchor}
    cosines = [by_text[anchor] @ by_text[other] for other in wrong]
    own = by_text[anchor] @ by_text[positive]
    losses.append(np.log(sum(np.exp((x - own) / 0.1) for x in [own, *cosines])))
    above = sum(cosine >= own for cosine in cosines)
    ranks[anchor] = min(ranks.get(anchor, 99), 1 + above)
  first = np.array([*ranks.values()])
  assert found["loss"] == pytest.approx(np.mean(losses), rel=1e-5)
  assert found["mrr"] == found["score"] == pytest.approx(np.mean(1 / first))
  assert found["accuracy_at_1"] == pytest.approx(np.mean(first == 1))
  assert found["accuracy_at_10"] == 1


def test_ties_are_misses_and_many_records_are_scored_in_blocks(monkeypatch):
  records = [(x, x * 2) for x in "abcdefghij"]
  vectors = dict.fromkeys((text for one in records for text in one), np.ones(3))
  assert score_texts(records, vectors)["mrr"] == pytest.approx(1 / 10)
  whole = score_texts(SEVERAL, random_vectors(SEVERAL))
  monkeypatch.setattr(pairs, "_BLOCK", 2)
  assert score_texts(SEVERAL, random_vectors(SEVERAL)) == pytest.approx(whole)
  with pytest.raises(ValueError, match="Found 3 vectors; expected"):
    score("pairs", of_texts(records), [np.ones(3)] * 3)


@pytest.mark.extra("sentence_transformers")
@pytest.mark.parametrize("seed", range(3))
def test_retrieval_is_scored_as_by_sentence_transformers(seed):
  torch = pytest.importorskip("torch")
  from sentence_transformers import util
  from sentence_transformers.sentence_transformer import evaluation

  letters = np.random.default_rng(seed).choice([*"abcdefghij"], (61, 2, 2))
  records = [("".join(one), "".join(other)) for one, other in letters]
  by_text = random_vectors(records, seed=seed)

  class Model:
    """Gives a text its vector."""

    def encode_query(self, texts, **_):
      return torch.tensor(np.array([by_text[text] for text in texts]))

    encode_document = encode_query

  names = {"accuracy@k": (1, 10), "map@k": (100,), "mrr@k": (100,), "ndcg@k": (10,)}
  each: dict = {name: [] for name in names}
  for anchor in {anchor for anchor, _ in records}:
    right = {other for one, other in records if one == anchor}
    corpus = {other: other for _, other in records if other != anchor or other in right}
    evaluator = evaluation.InformationRetrievalEvaluator(
      {"0": anchor},
      corpus,
      {"0": right},
      mrr_at_k=[100],
      score_functions={"cosine": util.cos_sim},
    )
    metrics = evaluator.compute_all_metrics(Model())["cosine"]
    for name, limits in names.items():
      each[name].append([metrics[name][limit] for limit in limits])
  expected = np.concatenate([np.mean(each[name], axis=0) for name in names])
  ours = "accuracy_at_1", "accuracy_at_10", "map_at_100", "mrr", "ndcg_at_10"
  found = score_texts(records, by_text)
  assert [found[name] for name in ours] == pytest.approx(expected, abs=1e-9)
  assert 0 < found["mrr"] < 1


def test_scored_pairs_are_scored_by_the_ranks_of_their_cosines(make):
  rng = np.random.default_rng(2)
  numbers, vectors = rng.uniform(-1, 1, 23).round(2), rng.standard_normal((46, 5))
  rows = [{"sentence1": "a", "sentence2": "b", "score": x} for x in numbers.tolist()]
  store = make("scored_pairs", rows).train
  cosines = [
    a @ b / np.sqrt((a @ a) * (b @ b))
    for a, b in zip(*vectors.reshape(23, 2, 5).swapaxes(0, 1), strict=True)
  ]
  found = score("scored_pairs", store, list(vectors), temperature=0.05)
  expected = scipy.stats.spearmanr(numbers, cosines).statistic
  assert found["score"] == found["spearman"] == pytest.approx(expected)
  assert found["loss"] == pytest.approx(np.mean((cosines - numbers) ** 2), rel=1e-5)
