"""Packed and unpacked training on text of another kind: WikiText-2.

  python -m experiments.other_text --wikitext wikitext-2

The claims that matter most, on paragraphs of Wikipedia in place of the standard library's
docstrings: packed training comes to what unpacked training comes to, and without the mask
it does not. Takes all .txt files of the folder, a twentieth of the paragraphs held out;
rows of 384 tokens are then half padding. Without --wikitext it says what it would do.

References:
  Krell et al., https://arxiv.org/abs/2107.02027, Figures 3 and 4;
  Merity et al., https://arxiv.org/abs/1609.07843.
"""

from __future__ import annotations

import dataclasses
import pathlib
import sys
from typing import Any

from experiments.lab import part as parts
from experiments.lab.exhibits import Exhibit
from experiments.lab.paired_run import Arm
from experiments.lab.statistics import equivalent, larger
from experiments.lab.study import held_out
from experiments.packing_paper.curves import arms as learning_curves
from experiments.packing_paper.curves import pictures as learning_pictures
from experiments.packing_paper.curves.claims import long_enough
from experiments.packing_paper.curves.tables import mean_difference, named, table
from packing import InputError
from training.command import Parser
from training.record.files import write_text
from training.sweep import jobs as schedule

COMMAND = "python -m experiments.other_text --wikitext FOLDER"

ARMS = ("packed", "constant", "no_mask")
FIELDS: dict[str, Any] = {
  "data.documents": "line",
  "data.max_sequence_length": 384,
  "train.steps": 1000,  # as many real tokens as the learning curves have
  "optimizer.warmup_steps": 59,
}


def exhibits(
  folder: pathlib.Path,
  *,
  quick: bool = False,
  wikitext: str | None = None,
  seeds: int | None = None,
  jobs: int | None = None,
) -> list[Exhibit]:
  """Trains what is not trained yet, draws and tests.

  Args:
    folder: for the data, the runs and the picture.
    quick: a few steps with few seeds, to see that it works.
    wikitext: the folder of the text; None where it is not at hand.
    seeds: how many; as many as the learning curves have if not given.
    jobs: runs at a time; as many as cores if not given.

  Raises:
    InputError: there is no text in the folder.
    Stopped: some runs failed; all others are finished.
  """
  name = "Figures 3 and 4, on WikiText-2"
  title = "packed, unpacked and unmasked training on other text"
  given = folder / "wikitext"  # remembers where the text is, for calls without it
  if wikitext is None and given.exists():
    wikitext = given.read_text()
  if wikitext is None:
    return [
      Exhibit(
        name,
        title,
        "not run here",
        "No folder with WikiText-2 was given.",
        COMMAND,
      )
    ]
  if not list(pathlib.Path(wikitext).glob("*.txt")):
    raise InputError(
      f"--wikitext is {wikitext}; expected a folder with .txt files of WikiText-2, such as "
      "test.txt and valid.txt."
    )
  wikitext = str(pathlib.Path(wikitext).absolute())
  write_text(given, wikitext)
  runs = learning_curves.runs_folder(folder, quick=quick)
  study = learning_curves.shared(folder, ["packed", "no_mask"], quick=quick, seeds=seeds)
  overrides = {**study.overrides, **FIELDS}
  if quick:
    overrides |= learning_curves.QUICK
  overrides |= {
    "data.source": f"{wikitext}/*.txt",
    "data.directory": str(runs / "data"),
  }
  # As the unpacked steps of the paper are.
  constant = Arm("constant", {"packing.adjust": "reduce_batch"}, "constant")
  arms = [constant, *study.arms]
  study = dataclasses.replace(study, folder=runs, arms=arms, overrides=overrides)
  study.run_all(jobs=jobs or len(schedule.cores()))
  found = study.results()
  packed, unpacked, no_mask = (found[arm] for arm in ARMS)
  apart = [mean_difference(runs, packed) for runs in (unpacked, no_mask)]
  finding = (
    f"On WikiText-2 unpacked training ends {apart[0]:+.4f} nats from packed training on "
    f"held-out text, and packed training without the mask {apart[1]:+.4f}."
  )
  learning_pictures.curves(folder / "other_text.png", named(found, *ARMS), title=finding)
  return [
    Exhibit(
      name,
      title,
      "in shape",
      finding,
      COMMAND,
      statements=[
        long_enough(packed),
        equivalent(
          "Packed training comes to the same as unpacked training with a constant number "
          "of sequences a step, as the paper's",
          held_out(packed),
          held_out(unpacked),
          power=held_out(no_mask),
        ),
        larger(
          "Without the mask the held-out loss is higher at the end",
          held_out(no_mask),
          held_out(packed),
        ),
      ],
      pictures=["other_text.png"],
      text=table(found, list(ARMS)),
    )
  ]


def add_options(parser: Parser):
  """Of its command."""
  learning_curves.add_options(parser)
  parser.add_argument(
    "--wikitext", metavar="FOLDER", help="with test.txt and valid.txt of WikiText-2"
  )


if __name__ == "__main__":
  sys.exit(parts.main(__doc__, exhibits, name="other_text", add_options=add_options))
