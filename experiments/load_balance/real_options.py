"""What of un-padding and packing is to be really run: options of the command line."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Mapping, Sequence

from packing import InputError
from training.command import Parser

DEVICES, PROCESSES = "2,4,8", "1,2,4"
QUICK_DEVICES, QUICK_PROCESSES = "2,4", "2"
QUICK = {"real_batch": 4, "real_shares": 8, "real_steps": 2, "real_multiple": 256}


@dataclasses.dataclass(frozen=True)
class DocumentFields:
  """What is to be run.

  Attributes:
    devices: of one process, each number a case.
    processes: of one device each, each number a case.
    batch: b, sequences of a device.
    shares: N, to measure alone, each what a device does in a step.
    steps: K of the cases of one or two devices; of more devices so many fewer, but two.
    multiple: to which un-padding rounds lengths up, in tokens.
    size: of the BERT.
    seed: of all draws.
  """

  devices: Sequence[int]
  processes: Sequence[int]
  batch: int
  shares: int
  steps: int
  multiple: int
  size: str
  seed: int

  def steps_of(self, devices: int) -> int:
    """Of the case with so many devices, in one process or in several."""
    return max(min(self.steps, 2), 2 * self.steps // max(devices, 2))


def add_to(parser: Parser):
  """Adds the options that begin with --real.

  Args:
    parser: of the command.
  """

  def add(name: str, default, what: str, **more):
    parser.add_argument(f"--real-{name}", default=default, help=what, **more)

  said = "really run steps on this many {}, or none; {}, or none with --coefficients"
  cases = {"type": _numbers_or_none, "metavar": "NUMBERS"}
  add("devices", None, said.format("devices of one process", DEVICES), **cases)
  add("processes", None, said.format("processes of one device", PROCESSES), **cases)
  add("batch", 8, "sequences of a device, there; 8", type=int)
  add("shares", 24, "parts of a step, of a device, to measure alone; 24", type=int)
  add("steps", 6, "on one or two devices, of more so many fewer, but two; 6", type=int)
  add("multiple", 128, "of tokens, to which un-padding rounds up there; 128", type=int)


def wanted(parser: Parser, options) -> DocumentFields:
  """Reads and checks them.

  Args:
    parser: which refuses.
    options: of the command line.
  """
  for name in ("batch", "shares", "steps", "multiple"):
    if getattr(options, f"real_{name}") < 1:
      parser.error(
        f"--real-{name} is {getattr(options, f'real_{name}')}; expected more than 0"
      )
  both = (QUICK_DEVICES, QUICK_PROCESSES) if options.quick else (DEVICES, PROCESSES)
  devices, processes = (
    given if given is not None else [] if options.coefficients else numbers(default)
    for given, default in zip(
      (options.real_devices, options.real_processes), both, strict=True
    )
  )
  return DocumentFields(
    devices=devices,
    processes=processes,
    batch=options.real_batch,
    shares=options.real_shares,
    steps=options.real_steps,
    multiple=options.real_multiple,
    size=options.size,
    seed=options.seed,
  )


def check_lengths(wanted: DocumentFields, longest: int):
  """Refuses to round all lengths up to the same.

  Args:
    wanted: what is to be run.
    longest: length of the dataset, in tokens.

  Raises:
    InputError: its multiple is no smaller.
  """
  if wanted.multiple >= longest:
    raise InputError(
      f"--real-multiple is {wanted.multiple}, the longest length {longest}; expected a "
      "smaller multiple, since un-padding would pad all sequences to the longest."
    )


def check_model(wanted: DocumentFields, device: Mapping[str, object]):
  """Refuses coefficients of another model than the one that is to be run.

  Args:
    wanted: what is to be run.
    device: of coefficients.json.

  Raises:
    InputError: they are, or do not say of which.
  """
  if device.get("model") != f"BERT-{wanted.size}":
    raise InputError(
      f"The coefficients are of {device.get('model', 'a model not named')}, --size is "
      f"{wanted.size}; expected 'model' to be 'BERT-{wanted.size}', to hold what is really "
      "run against what they foretell."
    )


def numbers(text: str) -> list[int]:
  """Some numbers above 0, rising.

  Args:
    text: with commas between them.

  Raises:
    argparse.ArgumentTypeError: other text.

  Example:
    >>> numbers("4,1")
    [1, 4]
  """
  try:
    found = sorted({int(x) for x in text.split(",")})
  except ValueError:
    found = [0]
  if found[0] < 1:
    raise argparse.ArgumentTypeError(
      f"{text!r} is no list of numbers; expected such as 1,4,16"
    )
  return found


def _numbers_or_none(text: str) -> list[int]:
  return [] if text == "none" else numbers(text)
