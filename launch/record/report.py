"""The results of a run: figures of its lines, and printed tables."""

from __future__ import annotations

import pathlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from launch import workdir
from training.errors import ConfigError
from training.stopping import best_of

_SHARES = ("input_share", "compute_share", "rest_share")
# Fields of eval.jsonl that describe the held-out data, and fields of the run itself.
_OF_THE_DATA = ("unigram_mlm_accuracy", "nsp_majority_accuracy", "mlm_accuracy_by_length")
_OF_THE_RUN = ("step", "seconds", "sequences", "sequences_trained")


def finished(folder: pathlib.Path) -> str | None:
  """The results of a finished run, as a table; None if it is not finished.

  Raises:
    InputError: `summary.json` is damaged.
  """
  summary = workdir.read_summary(folder)
  try:
    return None if summary is None else summary_table(summary)
  except (KeyError, TypeError, ValueError) as error:
    raise ConfigError(
      f"{folder}/summary.json is damaged ({error!r}). Delete it: train.py writes it again."
    ) from error


def run_summary(
  train_lines: list[dict], eval_lines: list[dict], *, metric: str = "mlm_accuracy"
) -> dict:
  """Summarises the lines of a run.

  Args:
    train_lines: the lines of `metrics.jsonl`.
    eval_lines: the lines of `eval.jsonl`.
    metric: the field of `eval_lines` that decides which is best; higher is better.

  Returns:
    `steps`; `compilations` of the step, the most after any start of the run; `seconds` of
    training, and sequences, real tokens and packs per second; the last metrics of training
    and of evaluation, with the prefixes `train_` and `eval_`; `best_step` and its `metric`;
    and over all timed steps `input_share`, `compute_share`, `rest_share` and `peak_share`.
  """
  last, held_out = train_lines[-1], eval_lines[-1]
  best = best_of(eval_lines, metric=metric)
  assert best is not None  # the last step is evaluated
  seconds = np.diff([line["seconds"] for line in train_lines], prepend=0.0)

  def rate(name: str) -> float:
    if not seconds.any():
      return 0.0  # a run of one step: it compiles and is not timed
    return float(np.average([line[name] for line in train_lines], weights=seconds))

  summary = {
    "steps": last["step"],
    "compilations": max(line["compilations"] for line in train_lines),
    "seconds": last["seconds"],
    "sequences_per_second": rate("sequences_per_second"),
    "real_tokens_per_second": rate("real_tokens_per_second"),
    "packs_per_second": rate("packs_per_second"),
    **{name: rate(name) for name in _SHARES},
    **{f"train_{k}": v for k, v in last.items() if k.endswith(("loss", "accuracy"))},
    **{
      k if k in _OF_THE_DATA else f"eval_{k}": v
      for k, v in held_out.items()
      if k not in _OF_THE_RUN
    },
    "best_step": best["step"],
    f"best_{metric}": best[metric],
  }
  if "peak_share" in last:
    summary["peak_share"] = rate("peak_share")
  return summary


def sum_of_losses(figures: Mapping[str, float]) -> float:
  """The sum of the losses of all held-out sets; not finite if one loss is not."""
  return sum(value for name, value in figures.items() if name.endswith("loss"))


def summary_table(summary: Mapping[str, Any]) -> str:
  """A printed table of a summary, as in `summary.json`."""
  s, rows = summary, dict[str, str]()
  sample = " of the sample" if s.get("stream") else ""
  rows[f"sequences{sample} -> packs"] = f"{s['sequences']:,} -> {s['packs']:,}"
  rows["packing factor"] = f"{s['packing_factor']:.3f} sequences a pack"
  rows["efficiency"] = f"{s['efficiency']:.2%} of all tokens are real"
  padding, unpacked = s["padding_tokens"], s["unpacked_padding_tokens"]
  rows["padding avoided"] = (
    f"{1 - padding / max(unpacked, 1):.1%} of it: {unpacked:,} -> {padding:,} tokens an "
    "epoch"
  )
  if shares := s.get("device_shares"):
    unpadded = shares["unpadded"]
    rows["real tokens of a device"] = (
      f"{shares['smallest']:,} to {shares['largest']:,} a step; un-padded "
      f"{unpadded['smallest']:,} to {unpadded['largest']:,}, waiting "
      f"{unpadded['waiting']:.1%} of the time"
    )
  figures = {
    name.removeprefix("eval_"): value
    for name, value in s.items()
    if name.startswith("eval_") or name in _OF_THE_DATA
  }
  rows |= _held_out(figures, s, digits=1)
  if "best_score" in s:
    rows["best score"] = f"{s['best_score']:.2%} at step {s['best_step']:,}"
  rows["training speed"] = (
    f"{s['sequences_per_second']:.0f} sequences, {s['real_tokens_per_second']:,.0f} real "
    "tokens a second"
  )
  if "input_share" in s:
    shares = (f"{name.split('_')[0]} {s[name]:.1%}" for name in _SHARES)
    rows["step time"] = ", ".join(shares)
  if "peak_share" in s:
    source = _PEAK_SOURCES[s["peak_flops_source"]]
    peak = f"{_flops(s['peak_flops'])} in matrix products ({source})"
    rows["share of the peak"] = f"{s['peak_share']:.1%} of {peak}"
  if "speedup_measured" in s:
    speedup = s["speedup_measured"]
    rows["packed : unpacked"] = (
      f"{s['packed_sequences_per_second']:.0f} : {s['unpacked_sequences_per_second']:.0f} "
      f"sequences a second = {speedup:.2f} times (quartiles {s['speedup_low']:.2f} to "
      f"{s['speedup_high']:.2f})"
    )
    # Where packed rows are longer, packing cannot gain as much as the packing factor.
    if s.get("row_length") == s.get("unpacked_row_length"):
      of_factor = f"{speedup / s['packing_factor']:.2f} of the packing factor"
      rows["packed : unpacked"] += f", {of_factor}"
  if target := s.get("target_mlm_accuracy"):
    reached = "not reached"
    if "step_to_target" in s:
      reached = (
        f"at step {s['step_to_target']:,}, after {s['seconds_to_target']:,.0f} s and "
        f"{s['sequences_to_target']:,} sequences"
      )
    rows["target accuracy"] = f"{target:.1%} {reached}"
  rows["compilations of the step"] = str(s["compilations"])
  return _table(rows | _by_length(s))


_PEAK_SOURCES = {"table": "the vendor's figure", "measured": "measured here"}


def _flops(rate: float) -> str:
  return f"{rate / 1e12:,.0f} TFLOP/s" if rate >= 1e13 else f"{rate / 1e9:,.0f} GFLOP/s"


def _task_figures(figures: Mapping[str, float]) -> str:
  """The metrics of a task: losses and perplexity as numbers, others as percentages."""
  return ", ".join(
    f"{name} {value:.4f}"
    if name.endswith(("loss", "perplexity"))
    else f"{name} {value:.2%}"
    for name, value in figures.items()
    if not name.endswith(("sequences", "tokens"))
  )


def _held_out(figures: Mapping, summary: Mapping, *, digits: int) -> dict[str, str]:
  """Rows of held-out figures, with those of training that a summary has."""
  if "perplexity" in figures:
    accuracy = f"{figures['causal_accuracy']:.1%} of {figures['tokens']:,} tokens"
    text = f"perplexity {figures['perplexity']:.2f}, next-token accuracy {accuracy}"
    return {"held out": text}
  if "mlm_accuracy" not in figures:
    return {"held out": _task_figures(figures)}
  rows = {}
  for name, title, baseline, words in (
    ("mlm", "masked-token", "unigram_mlm_accuracy", "most-frequent-token baseline"),
    ("nsp", "next-sentence", "nsp_majority_accuracy", "most-frequent-label baseline"),
  ):
    if (accuracy := f"{name}_accuracy") in figures:
      trained = summary.get(f"train_{accuracy}")
      before = "" if trained is None else f"{trained:.{digits}%} training, "
      text = f"{before}{figures[accuracy]:.{digits}%} held out; {words}: "
      rows[f"{title} accuracy"] = f"{text}{figures[baseline]:.{digits}%}"
  return rows


def evaluation_table(result: Mapping[str, Any]) -> str:
  """A printed table of the result of `evaluate`."""
  rows = {} if result["step"] is None else {"step": str(result["step"])}
  rows["held-out sequences"] = f"{result['sequences']:,}"
  if "mlm_accuracy" in result:
    rows["loss"] = f"{result['loss']:.4f} nats"
  figures = {name: value for name, value in result.items() if name != "step"}
  return _table(rows | _held_out(figures, {}, digits=2) | _by_length(result))


def _by_length(result: Mapping[str, Any]) -> dict[str, str]:
  return {
    f"  {part['from']} to {part['to']} tokens": (
      f"{part['mlm_accuracy']:.1%} masked-token accuracy of {part['sequences']} sequences"
    )
    for part in result.get("mlm_accuracy_by_length", ())
  }


def _table(rows: Mapping[str, str]) -> str:
  width = max(map(len, rows))
  return "\n".join(f"{name:<{width}}  {value}" for name, value in rows.items())
