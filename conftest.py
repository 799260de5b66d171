"""Which folders of the packages need a library that may not be installed."""

import importlib.util

collect_ignore = [] if importlib.util.find_spec("torch") else ["packing/torch"]
