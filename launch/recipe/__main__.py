"""Prints a config's recipe without and with packing; this needs no data.

  python -m launch.recipe --config=configs/bert_base_phase1.py --packing_factor=1.17 \\
      --num_sequences=35974144 --num_tokens=3806243014
"""

from __future__ import annotations

import json

from absl import flags
from ml_collections import config_flags

from launch import command
from launch.door import settings_of_flags
from launch.recipe.adjustment import resolve
from launch.recipe.table import table

config_flags.DEFINE_config_file("config", lock_config=True)
_FACTOR = flags.DEFINE_float("packing_factor", None, "Sequences per row.", required=True)
_SEQUENCES = flags.DEFINE_integer(
  "num_sequences", None, "Sequences in the dataset.", lower_bound=1
)
_TOKENS = flags.DEFINE_integer(
  "num_tokens", None, "Real tokens in the dataset.", lower_bound=1
)
_DEVICES = flags.DEFINE_integer(
  "num_devices", 1, "Devices that share a batch.", lower_bound=1
)
_JSON = flags.DEFINE_bool("json", False, "Print one JSON object.")
flags.mark_flag_as_required("config")


def main():
  run = settings_of_flags()
  before, after = resolve(
    run.train,
    run.optimizer,
    packing_factor=_FACTOR.value,
    num_sequences=_SEQUENCES.value,
    num_tokens=_TOKENS.value,
    num_devices=_DEVICES.value,
  )
  if _JSON.value:
    print(json.dumps({"unpacked": before.as_dict(), "packed": after.as_dict()}))
  else:
    print(table(before, after))


if __name__ == "__main__":
  command.run(main)
