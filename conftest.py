"""Which parts of the packages, and of their tests, need a library that may be missing."""

import importlib.util

NEEDED = {
  "packing/arrow.py": "pyarrow",
  "packing/torch": "torch",
  "packing/torch/trainer.py": "transformers",
  "packing/grain": "grain",
  "packing/datasets": "datasets",
  **{
    f"experiments/isolation_atlas/{name}.py": "transformers"
    for name in ("calls", "page", "tiny", "trial")
  },
}
collect_ignore = [
  place + folder
  for folder, library in NEEDED.items()
  if not importlib.util.find_spec(library)
  for place in ("", "tests/")
]
