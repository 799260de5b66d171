"""What a run comes to: figures for `summary.json`, and tables for people."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

_SHARES = ("input_share", "compute_share", "rest_share")
# What each line of metrics.jsonl has, whatever is trained.
TRAIN_NUMBERS = (
  "seconds",
  "compilations",
  "sequences_per_second",
  "real_tokens_per_second",
  "packs_per_second",
  *_SHARES,
)
# Of a line of eval.jsonl: what is said of the held-out data, and what is no figure of it.
_OF_THE_DATA = ("unigram_mlm_accuracy", "nsp_majority_accuracy", "mlm_accuracy_by_length")
_NO_FIGURES = ("step", "seconds", "sequences", "sequences_trained")


def run_summary(
  train_lines: list[dict], eval_lines: list[dict], *, metric: str = "mlm_accuracy"
) -> dict:
  """What the lines of a run say about the whole of it.

  Args:
    train_lines: of `metrics.jsonl`.
    eval_lines: of `eval.jsonl`.
    metric: of these, that says which is best; more is better.

  Returns:
    Steps; `compilations`, the most that any of the run's processes made of the step;
    seconds of training and sequences, real tokens and packs a second over them; the last
    figures of training and of evaluation, called `train_` and `eval_`; `best_step` and
    what `metric` was there; and over all steps that are timed `input_share`,
    `compute_share` and `rest_share` of the time, and `peak_share`.
  """
  last, held_out = train_lines[-1], eval_lines[-1]
  best = best_of(eval_lines, metric=metric)
  assert best is not None  # the last step is evaluated
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
    **{f"train_{k}": v for k, v in last.items() if k.endswith(("loss", "accuracy"))},
    **{
      k if k in _OF_THE_DATA else f"eval_{k}": v
      for k, v in held_out.items()
      if k not in _NO_FIGURES
    },
    "best_step": best["step"],
    f"best_{metric}": best[metric],
  }
  if "peak_share" in last:
    summary["peak_share"] = rate("peak_share")
  return summary


def metric_of(head: str) -> str:
  """The held-out figure that says how good a model is; more is better.

  Args:
    head: of the model; a key of `model.MODELS`.
  """
  language = {"pretraining": "mlm_accuracy", "causal": "causal_accuracy"}
  return language.get(head, "score")


def sum_of_losses(figures: Mapping[str, float]) -> float:
  """Of all held-out sets; not finite where one is not."""
  return sum(value for name, value in figures.items() if name.endswith("loss"))


def best_of(eval_lines: Sequence[Mapping], *, metric: str) -> Mapping | None:
  """The first of the lines whose metric none exceeds; None of no lines.

  Example:
    >>> best_of([{"step": 5, "f1": 0.5}, {"step": 10, "f1": 0.5}], metric="f1")["step"]
    5
  """
  return max(eval_lines, key=lambda line: line[metric], default=None)


def out_of_patience(eval_lines: Sequence[Mapping], *, metric: str, patience: int) -> bool:
  """Whether the last `patience` evaluations were all no better than one before them.

  Args:
    eval_lines: of `eval.jsonl`, in order.
    metric: a field of the lines; more is better.
    patience: how many; 0 for no end.

  Example:
    >>> lines = [{"f1": 0.3}, {"f1": 0.5}, {"f1": 0.5}, {"f1": 0.4}]
    >>> [out_of_patience(lines, metric="f1", patience=n) for n in (0, 1, 2, 3)]
    [False, True, True, False]
  """
  if not patience or len(eval_lines) <= patience:
    return False
  values = [line[metric] for line in eval_lines]
  return max(values[-patience:]) <= max(values[:-patience])


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
  ]
  if "eval_mlm_accuracy" in summary:
    rows.append(
      (
        "masked-token accuracy",
        f"{summary['train_mlm_accuracy']:.1%} training, "
        f"{summary['eval_mlm_accuracy']:.1%} held out; "
        f"always the commonest token: {summary['unigram_mlm_accuracy']:.1%}",
      )
    )
  elif "eval_perplexity" in summary:
    rows.append(_perplexity(summary, prefix="eval_"))
  else:
    figures = {
      name.removeprefix("eval_"): value
      for name, value in summary.items()
      if name.startswith("eval_")
    }
    rows.append(("held out", _task_figures(figures)))
    best = f"{summary['best_score']:.2%} at step {summary['best_step']:,}"
    rows.append(("best score", best))
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
  if summary.get("missing_lines"):
    lost = f"{summary['missing_lines']}; the speeds are those of the others"
    rows.append(("lines of metrics.jsonl lost", lost))
  return _table(rows + _by_length(summary))


_PEAK_SOURCES = {
  "config": "as given",
  "table": "the vendor's figure",
  "measured": "measured here",
}


def _flops(rate: float) -> str:
  return f"{rate / 1e12:,.0f} TFLOP/s" if rate >= 1e13 else f"{rate / 1e9:,.0f} GFLOP/s"


def _task_figures(figures: Mapping[str, float]) -> str:
  """The metrics of a task as percentages, but for losses and perplexity."""
  return ", ".join(
    f"{name} {value:.4f}"
    if name.endswith(("loss", "perplexity"))
    else f"{name} {value:.2%}"
    for name, value in figures.items()
    if not name.endswith(("sequences", "tokens"))
  )


def _perplexity(result: dict, *, prefix: str = "") -> tuple[str, str]:
  return (
    "held out",
    f"perplexity {result[f'{prefix}perplexity']:.2f}, next-token accuracy "
    f"{result[f'{prefix}causal_accuracy']:.1%} of {result[f'{prefix}tokens']:,} tokens",
  )


def evaluation_table(result: dict) -> str:
  """What `evaluate` returns, in lines for people."""
  rows = [*([] if result["step"] is None else [("step", str(result["step"]))])]
  if "perplexity" in result:
    return _table([*rows, _perplexity(result)])
  rows.append(("held-out sequences", f"{result['sequences']:,}"))
  if "mlm_accuracy" not in result:
    figures = {name: value for name, value in result.items() if name != "step"}
    return _table([*rows, ("held out", _task_figures(figures))])
  rows += [
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
    for part in result.get("mlm_accuracy_by_length", ())
  ]


def _table(rows: list[tuple[str, str]]) -> str:
  width = max(len(name) for name, _ in rows)
  return "\n".join(f"{name:<{width}}  {value}" for name, value in rows)
