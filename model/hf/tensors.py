"""Reads the safetensors of a Hugging Face directory."""

from __future__ import annotations

import pathlib
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import safetensors

from model.hf import names
from model.hf.config import CONFIG, WEIGHTS
from model.weights import Params, WeightsError


class Tensor(NamedTuple):
  """How a tensor is stored."""

  name: str  # the name in the file
  shape: tuple[int, ...]
  dtype: str  # a name of safetensors, such as F32


def read_headers(directory: pathlib.Path, kind: names.Kind) -> dict[str, Tensor]:
  """The tensors of a directory, by their current names."""
  tensors: dict[str, Tensor] = {}
  path = _weight_file(directory)
  try:
    with safetensors.safe_open(path, framework="numpy") as file:
      for stored_name in file.keys():  # noqa: SIM118  # not a dictionary
        part = file.get_slice(stored_name)
        name = names.current_name(stored_name, kind)
        if name in tensors:
          raise WeightsError(
            f"{directory} holds {name} twice, also as {stored_name}. Remove one."
          )
        tensors[name] = Tensor(stored_name, tuple(part.get_shape()), part.get_dtype())
  except (OSError, safetensors.SafetensorError) as error:
    raise WeightsError(f"{path} cannot be read: {error}. Download it again.") from error
  return tensors


def _weight_file(directory: pathlib.Path) -> pathlib.Path:
  if (directory / WEIGHTS).exists():
    return directory / WEIGHTS
  pickles = sorted(path.name for path in directory.glob("*.bin"))
  if pickles:
    raise WeightsError(
      f"{directory} has {', '.join(pickles)} instead of {WEIGHTS}. A pickle can run any "
      "program. If you trust it, load it with transformers, and save_pretrained elsewhere."
    )
  if list(directory.glob("*.safetensors")):
    raise WeightsError(
      f"{directory} has weights but no {WEIGHTS}. Load them, and save_pretrained elsewhere."
    )
  raise WeightsError(f"There is no {WEIGHTS} in {directory}. Download it.")


def check_tensors(
  directory: pathlib.Path,
  tensors: Mapping[str, Tensor],
  kind: names.Kind,
  shapes: Mapping[str, tuple[int, ...]],
):
  """Raises an error that names all tensors other than those of `shapes`."""
  known = {**shapes, **{copy: shapes[of] for copy, of in names.tied(kind).items()}}
  problems = []
  missing = [name for name in shapes if name not in tensors]
  if missing:
    problems.append(f"missing {some(missing)}")
  foreign = [
    name for name in tensors if name not in known and not names.is_ignored(name, kind)
  ]
  if foreign:
    problems.append(f"unexpected {some(foreign)}")
  wrong = [
    f"{name} of shape {tensors[name].shape} instead of {shape}"
    for name, shape in known.items()
    if name in tensors and tensors[name].shape != shape
  ]
  wrong += [
    f"{name} of type {tensors[name].dtype} instead of F32, F16 or BF16"
    for name in known
    if name in tensors and tensors[name].dtype not in ("F32", "F16", "BF16")
  ]
  if wrong:
    problems.append(f"wrong {some(wrong)}")
  if problems:
    raise WeightsError(
      f"Tensors in {directory} do not fit {CONFIG}: {'; '.join(problems)}."
    )


def some(names: list[str]) -> str:
  """The first names of a list, and how many more there are."""
  first = ", ".join(names[:4])
  return f"{first} and {len(names) - 4} more" if len(names) > 4 else first


def load(
  directory: pathlib.Path, tensors: Mapping[str, Tensor], kind: names.Kind, expected: Params
) -> Params:
  """Reads the parameters, as float32."""
  file: Any = safetensors.safe_open(_weight_file(directory), framework="numpy")

  def read(name: str) -> np.ndarray:
    return file.get_tensor(tensors[name].name).astype(np.float32)

  for copy, original in names.tied(kind).items():
    if copy in tensors and not np.array_equal(read(copy), read(original)):
      raise WeightsError(
        f"In {directory}, {copy} is not a copy of {original}; expected tied weights. "
        "Choose another model."
      )

  return jax.tree.map(jnp.asarray, names.from_tensors(read, expected, kind))
