"""How sentence-transformers makes the vector of a text, as the files of a folder say."""

from __future__ import annotations

import pathlib
import shutil
from typing import Any, NamedTuple

from model.hf.tokenizer import lowercases
from model.weights import StoredModel, WeightsError
from packing.files import parse_json, write_json

MODULES = "modules.json"
_MODULES = ["Transformer", "Pooling"], ["Transformer", "Pooling", "Normalize"]
_KINDS = "bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet"
# Settings of the transformer; sentence-transformers takes the first file that has any.
_TRANSFORMERS = [f"sentence_{kind}_config.json" for kind in _KINDS]
_PROMPTS = "config_sentence_transformers.json"
# Settings of the transformer that may change its vectors. model_args say how it computes.
_CHANGING = (
  *("processing_kwargs", "processor_kwargs", "tokenizer_args"),
  *("config_kwargs", "config_args"),
)
_OUTPUT, _STATES = "method_output_name", "last_hidden_state"
_NO_LIMIT = 1_000_000_000  # tokenizers without a limit have a larger one
_FLAGS = "cls_token", "mean_tokens"  # of a pooling's config; newer files have a name
_MODES = {"cls_token": "cls", "mean_tokens": "mean", "cls": "cls", "mean": "mean"}


class Pooling(NamedTuple):
  """How the vectors of tokens become that of a text.

  Attributes:
    mode: "cls", "mean", or what the user chose instead.
    max_length: the most tokens of a text, special tokens included; None for the model's.
    normalized: whether the vector is divided by its length.
    description: all this in words; "" if the user chose, and the folder says nothing.
  """

  mode: str
  max_length: int | None = None
  normalized: bool = False
  description: str = ""


def read_pooling(stored: StoredModel, *, instead: str | None = None) -> Pooling:
  """Reads how the folder of a model makes vectors; the mean if it does not say.

  Args:
    stored: the model.
    instead: the user's mode, in place of the folder's.

  Raises:
    WeightsError: the folder has other files of sentence-transformers, but no list of
      modules; it has another module, another mode without `instead`, prompts or
      lower case that a program would have to add, or settings of the tokenizer or the
      model that change vectors; or a file is damaged.
  """
  folder = stored.directory
  path = folder / MODULES
  if not path.exists():
    _refuse_without_modules(folder)
    default = "" if instead else f"pooling mean, since {folder} has no {MODULES}"
    return Pooling(instead or "mean", description=default)
  (own_path, own), normalized = _own(folder), "Normalize" in _modules(folder)
  prompts = _read(folder / _PROMPTS)
  texts, name = prompts.get("prompts") or {}, prompts.get("default_prompt_name")
  if not isinstance(texts, dict) or not isinstance(name, str | None):
    raise _damaged(folder / _PROMPTS, "prompts without names")
  if prompt := texts.get(name):
    raise WeightsError(
      f"{folder / _PROMPTS} puts {prompt!r} before each text. Put it there yourself, and "
      "set default_prompt_name to null."
    )
  if own.get("do_lower_case") and not lowercases(folder, stored.vocabulary):
    raise WeightsError(
      f"{own_path} has do_lower_case, but its tokenizer does not lowercase. Lowercase text "
      "yourself, and set it to false."
    )
  _refuse_changes(own_path, own)
  mode = instead or _mode(folder)
  is_own = [_MODES.get(name) for name in _modes(folder)[1]] == [mode]
  longest = _max_length(folder)
  if longest and longest >= stored.config.max_position_embeddings:
    longest = None
  what = [f"pooling {mode}{'' if is_own else ', by --embed, not its own'}"]
  what += [f"at most {longest} tokens a text"] if longest else []
  what += ["vectors of length 1"] if normalized else []
  return Pooling(mode, longest, normalized, f"as {path} says: {', '.join(what)}")


def _refuse_without_modules(folder: pathlib.Path):
  """Refuses files of sentence-transformers that nothing says how to combine."""
  left = [x for x in (*_TRANSFORMERS, "1_Pooling") if (folder / x).exists()]
  if left:
    raise WeightsError(
      f"{folder} has {' and '.join(left)}, but no {MODULES} to say how they are used. Copy "
      f"the model's own there, or remove them."
    )


def _refuse_changes(path: pathlib.Path, own: dict):
  """Refuses settings of the transformer with which it would compute other vectors."""
  for name in _CHANGING:
    values = own.get(name) or {}
    if not isinstance(values, dict):
      raise _damaged(path, f"{name}={values!r}")
    if set(values) - {"trust_remote_code"}:  # which is never obeyed
      raise WeightsError(
        f"{path} has {name}={values!r}, which may change vectors. Remove it, and give what "
        "it sets in the files of the tokenizer or the model."
      )
  try:
    output = own.get("modality_config", {}).get("text", {}).get(_OUTPUT, _STATES)
  except AttributeError as error:
    raise _damaged(path, f"modality_config={own['modality_config']!r}") from error
  if output != _STATES:
    raise WeightsError(
      f"{path} takes {output!r} of a text; expected {_STATES}. Choose another model."
    )


def write_pooling(folder: pathlib.Path, pooling: Pooling, *, width: int):
  """Writes the files that `read_pooling` and sentence-transformers read.

  Args:
    folder: of a model.
    pooling: with mode "mean" or "cls".
    width: D, of the vectors.
  """
  kinds = ["Transformer", "Pooling", *["Normalize"] * pooling.normalized]
  modules = [
    {
      "idx": number,
      "name": str(number),
      "path": f"{number}_{kind}" if number else "",
      "type": f"sentence_transformers.models.{kind}",
    }
    for number, kind in enumerate(kinds)
  ]
  write_json(folder / MODULES, modules)
  flags = {f"pooling_mode_{name}": _MODES[name] == pooling.mode for name in _FLAGS}
  path = _config_of_pooling(folder)
  path.parent.mkdir(exist_ok=True)
  write_json(path, {"word_embedding_dimension": width} | flags)
  write_json(folder / _TRANSFORMERS[0], {"max_seq_length": pooling.max_length})


def copy_pooling(source: pathlib.Path, folder: pathlib.Path):
  """Copies the files that `read_pooling` reads, if there are any, to another folder.

  The most tokens of a text are written where sentence-transformers looks first, since the
  tokenizer's own settings are not copied.

  Raises:
    WeightsError: the folder has a module that would be lost, such as Dense.
  """
  if not (source / MODULES).exists():
    _refuse_without_modules(source)
    return
  names = [MODULES, _PROMPTS, str(_config_of_pooling(source).relative_to(source))]
  for name in names:
    if (source / name).exists():
      (folder / name).parent.mkdir(exist_ok=True)
      shutil.copyfile(source / name, folder / name)
  own = _own(source)[1] | {"max_seq_length": _max_length(source)}
  write_json(folder / _TRANSFORMERS[0], own)


def _modules(folder: pathlib.Path) -> dict[str, str]:
  """The subfolders of the modules, by their names."""
  path = folder / MODULES
  modules = _read(path, list)
  try:
    found = [(str(one["type"]).rpartition(".")[2], str(one["path"])) for one in modules]
  except (KeyError, TypeError) as error:
    raise _damaged(path, f"a module without a type or a path: {error!r}") from error
  names = [name for name, _ in found]
  if names not in _MODULES:
    raise WeightsError(
      f"{path} has modules {names}; expected Transformer, Pooling and at most Normalize."
    )
  return dict(found)


def _config_of_pooling(folder: pathlib.Path) -> pathlib.Path:
  name = _modules(folder)["Pooling"]
  if not name or pathlib.PurePath(name).name != name:
    raise _damaged(folder / MODULES, f"Pooling in {name!r}, which is no folder's name")
  return folder / name / "config.json"


def _mode(folder: pathlib.Path) -> str:
  path, modes = _modes(folder)
  if len(modes) != 1 or modes[0] not in _MODES:
    raise WeightsError(
      f"{path} has pooling {modes}; expected cls or mean. Choose one by --embed, or in "
      "training by --config.pairs.pooling."
    )
  return _MODES[modes[0]]


def _modes(folder: pathlib.Path) -> tuple[pathlib.Path, list[str]]:
  """The names of the modes of pooling, and their file."""
  path = _config_of_pooling(folder)
  about, begin = _read(path), "pooling_mode_"
  modes = about.get("pooling_mode")  # newer files have a name, or a list of names
  if modes is None:
    modes = [x.removeprefix(begin) for x in about if x.startswith(begin) and about[x]]
  return path, [str(x) for x in (modes if isinstance(modes, list) else [modes])]


def _own(folder: pathlib.Path) -> tuple[pathlib.Path, dict]:
  """The settings of the transformer, and their file."""
  paths = [folder / name for name in _TRANSFORMERS]
  return next(((path, own) for path in paths if (own := _read(path))), (paths[0], {}))


def _max_length(folder: pathlib.Path) -> int | None:
  """The most tokens of a text, without the model's own limit, as sentence-transformers."""
  path, own = _own(folder)
  longest = own.get("max_seq_length")
  if longest is None:
    longest = _read(folder / "tokenizer_config.json").get("model_max_length")
    if not isinstance(longest, int) or longest > _NO_LIMIT:
      return None
  if type(longest) is not int or longest < 1:
    raise _damaged(path, f"max_seq_length={longest!r}")
  return longest


def _read(path: pathlib.Path, kind: type = dict) -> Any:
  """The content of a JSON file; empty if there is none."""
  if not path.exists():
    return kind()
  try:
    value = parse_json(path.read_text(encoding="utf-8"))
  except ValueError as error:
    raise _damaged(path, str(error)) from error
  if not isinstance(value, kind):
    raise _damaged(path, f"a {type(value).__name__}")
  return value


def _damaged(path: pathlib.Path, found: str) -> WeightsError:
  return WeightsError(
    f"{path} is not as sentence-transformers writes it: found {found}. Restore it."
  )
