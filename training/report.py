"""What a run comes to: figures for `summary.json`, and tables for people."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

_SHARES = ("input_share", "compute_share", "rest_share")


def run_summary(train_lines: list[dict], eval_lines: list[dict]) -> dict:
  """What the lines of a run say about the whole of it.

  Args:
    train_lines: of `metrics.jsonl`.
    eval_lines: of `eval.jsonl`.

  Returns:
    Steps; `compilations`, the most that any of the run's processes made of the step;
    seconds of training and sequences, real tokens and packs a second over them; the last
    figures of training and of evaluation; and over all steps that are timed
    `input_share`, `compute_share` and `rest_share` of the time, and `peak_share`.
  """
  last, held_out = train_lines[-1], eval_lines[-1]
  seconds = np.diff([line["seconds"] for line in train_lines], prepend=0.0)

  def rate(name: str) -> float:
    if not seconds.any():
      return 0.0  # a run of one step, which compiles and is not timed
    return float(np.average([line[name] for line in train_lines], weights=seconds))

  summary = {
    "steps": last["step"],
    "compilations": max(line["compilations"] for line in train_lines),
    "seconds": last["seconds"],
    "sequences_per_second": rate("sequences_per_second"),
    "real_tokens_per_second": rate("real_tokens_per_second"),
    "packs_per_second": rate("packs_per_second"),
    **{name: rate(name) for name in _SHARES},
    "train_loss": last["loss"],
    "train_mlm_accuracy": last["mlm_accuracy"],
    "eval_loss": held_out["loss"],
    "eval_mlm_loss": held_out["mlm_loss"],
    "eval_mlm_accuracy": held_out["mlm_accuracy"],
    "unigram_mlm_accuracy": held_out["unigram_mlm_accuracy"],
    "mlm_accuracy_by_length": held_out["mlm_accuracy_by_length"],
  }
  if "peak_share" in last:
    summary["peak_share"] = rate("peak_share")
  if "nsp_accuracy" in held_out:
    summary |= {
      "train_nsp_accuracy": last["nsp_accuracy"],
      "eval_nsp_accuracy": held_out["nsp_accuracy"],
      "nsp_majority_accuracy": held_out["nsp_majority_accuracy"],
    }
  return summary


def target_reached(
  eval_lines: Iterable[Mapping], *, target: float, metric: str = "mlm_accuracy"
) -> dict[str, float] | None:
  """Where a held-out accuracy first reached its target, as MLPerf reports it.

  Args:
    eval_lines: of `eval.jsonl`, in order, with `seconds` of training and
      `sequences_trained` until then.
    target: what `metric` shall reach, a fraction.
    metric: a field of the lines; more is better.

  Returns:
    `step_to_target`, `seconds_to_target`, `sequences_to_target`; None if it was not
    reached.

  Example:
    >>> lines = [
    ...   {"step": 5, "seconds": 1.5, "sequences_trained": 70, "mlm_accuracy": 0.31},
    ...   {"step": 10, "seconds": 3.0, "sequences_trained": 140, "mlm_accuracy": 0.34},
    ... ]
    >>> target_reached(lines, target=0.33)
    {'step_to_target': 10, 'seconds_to_target': 3.0, 'sequences_to_target': 140}

  References:
    Mattson et al., https://arxiv.org/abs/1910.01500.
  """
  for line in eval_lines:
    if line[metric] >= target:
      return {
        "step_to_target": line["step"],
        "seconds_to_target": line["seconds"],
        "sequences_to_target": line["sequences_trained"],
      }
  return None


def summary_table(summary: dict) -> str:
  """A summary, as `summary.json` holds it, in lines for people."""
  padding = summary["padding_tokens"]
  unpacked_padding = summary["unpacked_padding_tokens"]
  rows = [
    ("sequences -> packs", f"{summary['sequences']:,} -> {summary['packs']:,}"),
    ("packing factor", f"{summary['packing_factor']:.3f} sequences a pack"),
    ("efficiency", f"{summary['efficiency']:.2%} of all tokens are real"),
    (
      "padding avoided",
      f"{1 - padding / max(unpacked_padding, 1):.1%} of it: {unpacked_padding:,} -> "
      f"{padding:,} tokens an epoch",
    ),
    (
      "masked-token accuracy",
      f"{summary['train_mlm_accuracy']:.1%} training, "
      f"{summary['eval_mlm_accuracy']:.1%} held out; "
      f"always the commonest token: {summary['unigram_mlm_accuracy']:.1%}",
    ),
  ]
  if "eval_nsp_accuracy" in summary:
    rows.append(
      (
        "next-sentence accuracy",
        f"{summary['train_nsp_accuracy']:.1%} training, "
        f"{summary['eval_nsp_accuracy']:.1%} held out; "
        f"always the commoner label: {summary['nsp_majority_accuracy']:.1%}",
      )
    )
  rows.append(
    (
      "training speed",
      f"{summary['sequences_per_second']:.0f} sequences, "
      f"{summary['real_tokens_per_second']:,.0f} real tokens a second",
    )
  )
  if "input_share" in summary:
    shares = (f"{name.split('_')[0]} {summary[name]:.1%}" for name in _SHARES)
    rows.append(("step time", ", ".join(shares)))
  if "peak_share" in summary:
    rows.append(
      (
        "share of the peak",
        f"{summary['peak_share']:.1%} of {_flops(summary['peak_flops'])} in matrix "
        f"products ({_PEAK_SOURCES[summary['peak_flops_source']]})",
      )
    )
  if "speedup_measured" in summary:
    speedup = summary["speedup_measured"]
    spread = f"quartiles {summary['speedup_low']:.2f} to {summary['speedup_high']:.2f}"
    rows.append(
      (
        "packed : unpacked",
        f"{summary['packed_sequences_per_second']:.0f} : "
        f"{summary['unpacked_sequences_per_second']:.0f} sequences a second = "
        f"{speedup:.2f} times ({spread}), "
        f"{speedup / summary['packing_factor']:.2f} of the packing factor",
      )
    )
  if "step_to_target" in summary:
    rows.append(
      (
        "target accuracy",
        f"{summary['target_mlm_accuracy']:.1%} at step {summary['step_to_target']:,}, "
        f"after {summary['seconds_to_target']:,.0f} s and "
        f"{summary['sequences_to_target']:,} sequences",
      )
    )
  elif summary.get("target_mlm_accuracy"):
    rows.append(("target accuracy", f"{summary['target_mlm_accuracy']:.1%} not reached"))
  rows.append(("compilations of the step", str(summary["compilations"])))
  return _table(rows + _by_length(summary))


_PEAK_SOURCES = {
  "config": "as given",
  "table": "the vendor's figure",
  "measured": "measured here",
}


def _flops(rate: float) -> str:
  return f"{rate / 1e12:,.0f} TFLOP/s" if rate >= 1e13 else f"{rate / 1e9:,.0f} GFLOP/s"


def evaluation_table(result: dict) -> str:
  """What `evaluate` returns, in lines for people."""
  rows = [
    ("step", str(result["step"])),
    ("held-out sequences", f"{result['sequences']:,}"),
    ("loss", f"{result['loss']:.4f} nats"),
    (
      "masked-token accuracy",
      f"{result['mlm_accuracy']:.2%}; always the commonest token: "
      f"{result['unigram_mlm_accuracy']:.2%}",
    ),
  ]
  if "nsp_accuracy" in result:
    rows.append(
      (
        "next-sentence accuracy",
        f"{result['nsp_accuracy']:.2%}; always the commoner label: "
        f"{result['nsp_majority_accuracy']:.2%}",
      )
    )
  return _table(rows + _by_length(result))


def _by_length(result: dict) -> list[tuple[str, str]]:
  return [
    (
      f"  {part['from']} to {part['to']} tokens",
      f"{part['mlm_accuracy']:.1%} masked-token accuracy of {part['sequences']} sequences",
    )
    for part in result["mlm_accuracy_by_length"]
  ]


def _table(rows: list[tuple[str, str]]) -> str:
  width = max(len(name) for name, _ in rows)
  return "\n".join(f"{name:<{width}}  {value}" for name, value in rows)
