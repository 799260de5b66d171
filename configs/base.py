"""Every field of a run, set to its default: docs/config.md says what each is.

The other config files change some of these values. Where BERT's papers give a value, it is
the default.
"""

from launch.door import default_config


def get_config():
  return default_config()
