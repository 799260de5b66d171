"""The record as tables of docs/isolation_atlas.md, and as what `packing.torch` refuses."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from experiments.isolation_atlas.calls import CALLS
from experiments.isolation_atlas.record import NO_MASK, Record, verdict
from experiments.isolation_atlas.trial import SPARSE
from lab import pages
from packing.files import write_json, write_text

TABLES = pages.ROOT / "docs" / "measured" / "isolation_atlas.json"
TYPES = pages.ROOT / "packing" / "torch" / "model_types.json"
VERDICTS = ("isolated", "differs", "leaks", "refuses", "no mask")
ORDER = {name: number for number, name in enumerate(VERDICTS)}
TITLES = {  # of the tables, by kind
  "causal": "causal",
  "bidirectional": "masked",
  "encoder": "encoders",
  "of images and text": "images and text",
}


def publish(book: Record):
  """Writes the tables, the pages that show them, and the types for `packing.torch`."""
  write_json(TABLES, tables(book))
  write_text(TYPES, json.dumps(model_types(book), indent=1) + "\n")
  pages.main([])


def tables(book: Record) -> dict[str, list[dict[str, str]]]:
  """`versions`, `summary`, a table of types for each kind, and `not run`."""
  made = {
    "versions": [dict(book.versions)],
    "summary": list(_summary(book)),
  }
  for kind, title in TITLES.items():
    made[title] = [_row(entry) for entry in _ran(book) if entry["kind"] == kind]
  made["not run"] = [
    {"type": entry["type"], "kind": entry["kind"], "why": entry["cannot"]}
    for entry in book.entries.values()
    if "cannot" in entry
  ]
  return made


def _ran(book: Record) -> Iterator[dict[str, Any]]:
  for of in sorted(book.entries):
    if "found" in book.entries[of]:
      yield book.entries[of]


def worst(entry: Mapping[str, Any], call: str) -> str:
  """The worst verdict of a call over all attentions that take it."""
  found = [verdict(calls[call]) for calls in entry["found"].values() if call in calls]
  taken = [x for x in found if x not in ("refuses", "no mask")] or found
  return max(taken, key=ORDER.__getitem__)


def _summary(book: Record) -> Iterator[dict[str, str]]:
  for kind, title in TITLES.items():
    entries = [entry for entry in _ran(book) if entry["kind"] == kind]
    for call in CALLS:
      counts = Counter(worst(entry, call) for entry in entries)
      numbers = {name: str(counts[name]) for name in VERDICTS}
      yield {"models": title, "call": call, "types": str(len(entries))} | numbers


def _row(entry: Mapping[str, Any]) -> dict[str, str]:
  cells = {call: _cell(entry, call) for call in CALLS}
  return {"type": f"`{entry['type']}`"} | cells | {"what to do": advice(entry)}


def _cell(entry: Mapping[str, Any], call: str) -> str:
  """The verdict, by attention if they disagree, with how much."""
  by_verdict: dict[str, list[str]] = {}
  for attention, calls in entry["found"].items():
    if call not in calls:
      continue
    if (found := verdict(calls[call])) != "refuses" or attention != "flex_attention":
      by_verdict.setdefault(found, []).append(attention)
  parts = []
  for found in sorted(by_verdict, key=ORDER.__getitem__):
    attentions = by_verdict[found]
    sizes = [entry["found"][attention][call] for attention in attentions]
    index = {"leaks": 1, "differs": 0}.get(found)
    size = "" if index is None else f" {max(x[index] or 0 for x in sizes):.2g}"
    where = f" ({', '.join(attentions)})" if len(by_verdict) > 1 else ""
    parts.append(f"{found}{size}{where}")
  return "; ".join(parts)


def advice(entry: Mapping[str, Any]) -> str:
  """What a user of this type does."""
  if entry["type"] in SPARSE:
    return "pad: in longer rows its attention skips tokens by their place in the row"
  found, but = entry["found"], ""
  flex = found.get("flex_attention", {})
  if "leaks" in (verdict(flex.get("positions", "")), verdict(flex.get("four axes", ""))):
    found = {name: calls for name, calls in found.items() if calls is not flex}
    if worst({"found": found}, "positions") == "isolated":
      but = ", but not with flex_attention"
    else:
      found = entry["found"]
  good = {call for call in CALLS if worst({"found": found}, call) == "isolated"}
  if "flattening" in good:
    return f"any of these calls that is isolated, even the default{but}"
  if "positions" in good:
    other = ", or PackedCollator" if "four axes" in good else ""
    return f"`use_cache=False` and no mask{other}{but}"
  if "four axes" in good:
    return f"PackedCollator{but}"
  if any("Install" in str(calls.get("boundaries")) for calls in found.values()):
    return "pad; or boundaries on a GPU with the kernels it names, which we did not run"
  return "pad"


def model_types(book: Record) -> dict[str, Any]:
  """What `packing.torch.models` reads: types whose packed rows are right, and others."""
  accepted: dict[str, set[str]] = {"causal": set(), "bidirectional": set()}
  refused = {}
  for entry in book.entries.values():
    name = entry["type"]
    if reason := _reason(entry):
      refused[name] = reason
    elif "found" in entry:
      sees_later = entry["kind"] == "bidirectional" or not entry.get("is_causal", True)
      kind = "bidirectional" if sees_later else "causal"
      accepted[kind] |= {name, entry["text_type"]}
  for names in accepted.values():
    for name in names:
      refused.pop(name, None)
  made = {kind: sorted(names) for kind, names in accepted.items()}
  return {**book.versions, **made, "refused": dict(sorted(refused.items()))}


def _reason(entry: Mapping[str, Any]) -> str | None:
  """Why rows of `PackedCollator` are not for this type; None if they are, or unknown."""
  if entry["type"] in SPARSE:
    return "in long rows its attention skips tokens by their place in the row"
  if "cannot" in entry:
    return entry["cannot"] if "an encoder and a decoder" in entry["cannot"] else None
  measured = False
  for attention, calls in entry["found"].items():
    numbers = calls["four axes"]
    found = verdict(numbers)
    if found == "no mask":
      return numbers.removeprefix(NO_MASK).split(". ")[0]
    if found == "refuses" and attention != "flex_attention":
      return f"with a mask with four axes it raises {numbers}"
    if found in ("differs", "leaks"):
      outputs, influence, *_ = numbers
      return (
        f"packed differs from each sequence alone (logits {outputs:.1e}, influence of "
        f"another sequence {influence:.1e})"
      )
    measured |= found == "isolated" and numbers[-1] is not None
  return None if measured else "its gradients could not be compared with those alone"
