"""Every field of a run, set to its default: docs/config.md says what each is.

The other config files change some of these values. `launch/parts.py` has the fields,
their defaults, with the value from BERT's papers where they give one, and their rules.
"""

from launch.door import default_config


def get_config():
  return default_config()
