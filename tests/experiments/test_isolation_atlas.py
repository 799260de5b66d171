"""The atlas of isolation: its record, its tables, and types that are tried for real."""

import json
import re

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from experiments.isolation_atlas import apart, page, record
from experiments.isolation_atlas.calls import CALLS
from lab import pages

pytestmark = pytest.mark.extra("torch", "transformers")
REPORTS = sorted((pages.ROOT / "experiments/isolation_atlas/reports").glob("*.md"))
GOOD, LEAKS, DIFFERS = [1e-7, 0, 0, 0, 1e-7], [1, 0.5, 3, 0.1, 1], [0.2, 0, 0, 0, 0.2]


def entry(name, kind="causal", **calls):
  found = dict.fromkeys(CALLS, LEAKS) | {
    call.replace("_", " "): numbers for call, numbers in calls.items()
  }
  model = {"model": "Some", "text_type": name, "found": {"eager": found, "sdpa": found}}
  return {"type": name, "kind": kind} | model


def book(tmp_path, *entries):
  made = record.Record({"transformers": "5", "torch": "2"}, {}, tmp_path / "r.jsonl")
  for one in entries:
    made.add(one)
  return made


@pytest.mark.parametrize(
  ("numbers", "expected"),
  [
    (GOOD, "isolated"),
    ([1e-7, 3e-7, 0, 0, 1e-7], "isolated"),  # experts round
    ([1e-7, 0, None, None, None], "isolated"),  # without gradients
    (LEAKS, "leaks"),
    ([1e-7, 2e-5, 0, 0, 0], "leaks"),
    ([1e-7, float("nan"), 0, 0, 0], "leaks"),
    (DIFFERS, "differs"),
    ([1e-7, 0, 0, 0.01, 1e-7], "differs"),  # the loss alone
    ([1e-7, 0, 1e-20, 0, 1e-7], "differs"),  # an influence that changes no bit
    ([float("nan"), 0, 0, 0, 0], "differs"),
    ("TypeError: no position_ids", "refuses"),
    ("No call: PackedCollator makes no mask", "no mask"),
  ],
)
def test_verdicts(numbers, expected):
  assert record.verdict(numbers) == expected


def test_the_record_grows_by_type_and_another_version_starts_an_empty_one(tmp_path):
  made = book(tmp_path, entry("b"), entry("a"), entry("b", positions=GOOD))
  again = record.read(made.versions, made.path)
  assert list(again.entries) == [("a", "causal"), ("b", "causal")]
  assert again.entries["b", "causal"]["found"]["sdpa"]["positions"] == GOOD
  assert record.read(path=made.path).versions == made.versions
  assert not record.read({"transformers": "6", "torch": "2"}, made.path).entries
  with pytest.raises(record.InputError, match=r"of transformers 5 and torch 2, and .* 6 "):
    record.read({"transformers": "6", "torch": "2"}, made.path, replace=False)
  with pytest.raises(record.InputError, match="does not exist"):
    record.read(path=tmp_path / "other")


def test_tables_say_what_to_do(tmp_path):
  flex = entry("flex", four_axes=GOOD)
  flex["found"]["flex_attention"] = {"four axes": "ValueError: on a CPU"}
  mixed = entry("mixed", positions=GOOD, four_axes=GOOD)
  mixed["found"]["sdpa"] = mixed["found"]["sdpa"] | {"positions": DIFFERS}
  cannot = {"type": "broken", "kind": "causal", "cannot": "ValueError: too large"}
  every = dict.fromkeys(CALLS, GOOD)
  free = entry("free") | {"found": {"eager": every}}
  made = page.tables(book(tmp_path, flex, mixed, cannot, free, entry("none")))
  rows = {row["type"]: row for row in made["causal"]}
  assert rows["`flex`"]["four axes"] == "isolated"
  assert rows["`flex`"]["positions"] == "leaks 0.5"
  assert rows["`mixed`"]["positions"] == "isolated (eager); differs 0.2 (sdpa)"
  assert [
    rows[f"`{name}`"]["what to do"] for name in ("flex", "mixed", "free", "none")
  ] == [
    "PackedCollator",
    "PackedCollator",
    "any of these calls that is isolated, even the default",
    "pad",
  ]
  assert made["not run"] == [{"type": "broken", "kind": "causal", "why": cannot["cannot"]}]
  summary = {row["call"]: row for row in made["summary"] if row["models"] == "causal"}
  assert (
    summary["positions"] | {"isolated": "1", "differs": "1", "leaks": "2"}
    == (summary["positions"])
  )


def test_types_for_the_collator(tmp_path):
  refused = entry("refused", four_axes="TypeError: no")
  layers = entry("layers", four_axes="No call: PackedCollator makes no mask. Pad.")
  forward = entry("forward", four_axes=[1e-7, 0, None, None, None])
  encoder = entry("encoder", "encoder", four_axes=GOOD) | {"is_causal": False}
  both = entry("both", "of images and text", four_axes=GOOD) | {"text_type": "inner"}
  entries = (
    *(entry("good", four_axes=GOOD), entry("good", "bidirectional", four_axes=GOOD)),
    *(entry("wrong", four_axes=LEAKS), refused, both, entry("inner", four_axes=DIFFERS)),
    *(layers, forward, encoder),
    {"type": "two", "kind": "causal", "cannot": "it has an encoder and a decoder"},
    {"type": "unknown", "kind": "causal", "cannot": "ValueError: too large"},
    entry("big_bird", "bidirectional", four_axes=GOOD),
  )
  made = page.model_types(book(tmp_path, *entries))
  assert made["causal"] == ["both", "good", "inner"]
  assert made["bidirectional"] == ["encoder", "good"]
  expected = ["big_bird", "forward", "layers", "refused", "two", "wrong"]
  assert list(made["refused"]) == expected
  assert made["refused"]["layers"] == "PackedCollator makes no mask"
  assert "influence of another sequence 5.0e-01" in made["refused"]["wrong"]


def test_what_is_published_follows_from_the_record():
  kept = record.read()
  assert json.loads(page.TYPES.read_text()) == page.model_types(kept)
  assert pages.published()[page.TABLES.name] == page.tables(kept)


def test_the_readme_says_how_many_types_mix_sequences():
  summary = page.tables(record.read())["summary"]
  (row,) = (
    row for row in summary if (row["models"], row["call"]) == ("causal", "flattening")
  )
  told = f"{row['leaks']} of {row['types']} types of causal models mix the sequences"
  assert told in (pages.ROOT / "README.md").read_text()


@pytest.mark.slow
@pytest.mark.parametrize("model_type", ["llama", "gpt_oss", "qwen3_next"])
def test_a_type_is_tried_again_with_the_same_verdicts(model_type):
  found = apart.try_type((model_type, "causal"))
  kept = record.read().entries[model_type, "causal"]
  for attention, calls in found["found"].items():
    for call, numbers in calls.items():
      expected = record.verdict(kept["found"][attention][call])
      assert record.verdict(numbers) == expected, (attention, call)


@pytest.mark.slow
def test_a_type_that_fails_or_hangs_does_not_stop_the_others(monkeypatch):
  assert "cannot" in apart.try_type(("no_such_type", "causal"))
  monkeypatch.setattr(apart, "SECONDS", 0.01)
  found = apart.try_type(("llama", "causal"))
  assert found["cannot"] == "it took more than 0.01 seconds"


@pytest.mark.slow
@pytest.mark.parametrize("path", REPORTS, ids=lambda path: path.stem)
def test_a_report_finds_what_it_says(path, capsys):
  text = path.read_text()
  (code,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
  exec(compile(code, path.name, "exec"), {})
  found = float(capsys.readouterr().out)
  (told,) = re.findall(r"\*\*Found:\*\* (\S+) ", text)
  assert found == pytest.approx(float(told), rel=0.05)
