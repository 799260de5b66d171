"""Which folders of the packages need a library that may not be installed."""

import importlib.util

NEEDED = {
  "packing/torch": "torch",
  "packing/grain": "grain",
  "packing/datasets": "datasets",
}
collect_ignore = [
  folder for folder, library in NEEDED.items() if not importlib.util.find_spec(library)
]
